"""Every requirement is one version with its hashes, within the ranges of the project."""

import re
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUNTIME = ROOT / "requirements.txt"
NAMED = {"flax": RUNTIME, "experiment": RUNTIME, "dev": ROOT / "requirements-dev.txt"}
FILES = {extra: NAMED.get(extra, ROOT / f"requirements/{extra}.txt") for extra in PROJECT["optional-dependencies"]}
WITHOUT_HASHES = ROOT / "requirements/torch.txt"
"""Every build of PyTorch has other hashes, and its transformers is another than that of the models in JAX."""
PIN = re.compile(r"[a-z0-9-]+==[\w.]+( ; [^#]+?)?( +--hash=sha256:[0-9a-f]{64})+ *")


def lines_of(path):
    """The requirements of a file, each with its continuation lines, less comments."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def pins(path):
    """The pins of every package that a file installs, those of the files that it includes too."""
    versions = defaultdict(list)
    for line in lines_of(path):
        if line.startswith("-r "):
            for package, requirements in pins(path.parent / line[3:].strip()).items():
                versions[package] += requirements
        else:
            requirement = Requirement(line.split("--hash")[0].strip())
            versions[canonicalize_name(requirement.name)].append(requirement)
    return versions


@pytest.mark.parametrize("path", sorted({*FILES.values()} - {WITHOUT_HASHES}), ids=lambda path: path.name)
def test_every_requirement_is_one_version_with_its_hashes(path):
    lines = [line for line in lines_of(path) if not line.startswith("-r ")]
    assert lines
    assert [line for line in lines if not PIN.fullmatch(line)] == []


@pytest.mark.parametrize("extra", [None, *FILES])
def test_the_pins_are_within_the_ranges_of_the_project(extra):
    pinned = pins(FILES.get(extra, RUNTIME))
    ranges = PROJECT["dependencies"] + (PROJECT["optional-dependencies"][extra] if extra else [])
    for requirement in map(Requirement, ranges):
        for pin in pinned[canonicalize_name(requirement.name)]:
            (version,) = pin.specifier
            assert requirement.specifier.contains(version.version), pin


@pytest.mark.full
def test_all_files_name_one_version_of_a_package():
    """Or one for each range of Python versions."""
    versions = defaultdict(list)
    for path in (RUNTIME, *FILES.values()):
        for package, requirements in pins(path).items():
            versions[package] += requirements
    for package, requirements in versions.items():
        one_version = len({pin.specifier for pin in requirements}) == 1
        assert one_version or all("python_full_version" in str(pin.marker) for pin in requirements), package
