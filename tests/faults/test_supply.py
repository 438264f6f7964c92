"""Every requirement is one version with its hashes, within the ranges of the project."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUNTIME = "requirements.txt"
EXTRAS = {
    extra: RUNTIME if extra in ("flax", "experiment") else f"requirements-{extra}.txt"
    for extra in PROJECT["optional-dependencies"]
}


def blocks(name):
    """The requirements of a file, each with its continuation lines, less comments."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / name).read_text(), flags=re.MULTILINE)
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def included(name):
    """The files that a file includes, and itself."""
    return [other for line in blocks(name) if line.startswith("-r ") for other in included(line[3:].strip())] + [name]


def pins(name):
    """Of every package that a file installs, its versions."""
    found = {}
    for file in included(name):
        for line in blocks(file):
            if not line.startswith("-r "):
                requirement = Requirement(line.split("--hash")[0].strip())
                found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


@pytest.mark.parametrize("name", sorted(set(EXTRAS.values())))
def test_every_requirement_is_one_version_with_its_hashes(name):
    lines = [line for line in blocks(name) if not line.startswith("-r ")]
    assert lines
    for line in lines:
        assert re.fullmatch(
            r"[a-z0-9-]+==[\w.]+( ; [^#]+?)?( +--hash=sha256:[0-9a-f]{64})+ *",
            line,
        ), line


@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_the_pins_are_within_the_ranges_of_the_project(extra):
    pinned = pins(EXTRAS.get(extra, RUNTIME))
    wanted = PROJECT["dependencies"] + (PROJECT["optional-dependencies"][extra] if extra else [])
    for requirement in map(Requirement, wanted):
        for pin in pinned[canonicalize_name(requirement.name)]:
            (version,) = pin.specifier
            assert requirement.specifier.contains(version.version), pin


@pytest.mark.full
def test_all_files_name_one_version_of_a_package():
    """Or one for each range of Python versions."""
    found = {}
    for name in [RUNTIME, *EXTRAS.values()]:
        for package, some in pins(name).items():
            found.setdefault(package, []).extend(some)
    for package, some in found.items():
        one_version = len({pin.specifier for pin in some}) == 1
        assert one_version or all("python_full_version" in str(pin.marker) for pin in some), package
