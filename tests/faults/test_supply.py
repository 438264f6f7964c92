"""What is installed is what was chosen: every pin has its hashes, and the built packages work where nothing else is."""

import os
import re
import shutil
import subprocess
import sys
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
SMOKE = """
import importlib.metadata, jax.numpy as jnp, softmax_jax as sj
z = jnp.asarray([[1.0, 2.0, 3.0]])
for name in sj.METHODS:
    assert jnp.isfinite(sj.normalizer(name)(z)).all(), name
q = jnp.ones((1, 4, 2, 8))
assert sj.dot_product_attention(q, q, q, normalizer=sj.normalizer("ssmax")).shape == q.shape
print(importlib.metadata.version("softmax-jax"), sj.__file__)
"""


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


@pytest.mark.full
def test_the_comparison_with_pytorch_says_why_it_has_no_hashes():
    text = (ROOT / "requirements-parity.txt").read_text()
    assert "no hashes" in text
    lines = blocks("requirements-parity.txt")
    assert lines
    assert all("==" in line for line in lines)


def interpreters():
    """The Python of every minor version present that the project supports, by version."""
    beside = Path(sys.base_prefix).parent.glob("*/bin/python3")
    found = [Path(path) for minor in range(11, 40) if (path := shutil.which(f"python3.{minor}"))]
    versions = {}
    for python in [*found, *beside, Path(sys.executable)]:
        done = subprocess.run(
            [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True
        )
        version = tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()
        if version >= (3, 11):
            versions.setdefault(version, python)
    return versions


def run(*command, cwd):
    """The output of a command, which knows nothing of the flags and paths of this process."""
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "PYTHONPATH")}
    parts = [str(part) for part in command]
    done = subprocess.run(parts, cwd=cwd, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The directory of the wheel and the sdist, of which the wheel was built from the sdist."""
    path = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "venv", path / "environment", cwd=path)
    python = path / "environment" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "build", cwd=path)
    run(python, "-m", "build", "--outdir", path / "dist", ROOT, cwd=path)
    return path / "dist"


@pytest.mark.slow
@pytest.mark.parametrize("newest", [False, True], ids=["pins", "newest"])
def test_the_built_packages_work_in_an_empty_environment(built, tmp_path, newest):
    """The oldest supported Python with the pins, and the newest one present with the newest releases."""
    pythons = interpreters()
    python = pythons[max(pythons) if newest else (3, 11)]
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    run(python, "-m", "venv", tmp_path / "environment", cwd=tmp_path)
    python = tmp_path / "environment" / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet")
    if newest:
        run(*pip, "--upgrade", f"{wheel}[experiment]", cwd=tmp_path)
    else:
        run(*pip, "--require-hashes", "-r", ROOT / RUNTIME, cwd=tmp_path)
        run(*pip, "--no-deps", wheel, cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    version, where = run(python, "-c", SMOKE, cwd=tmp_path).split()
    assert version == PROJECT["version"]
    assert where.startswith(str(tmp_path / "environment"))
    command = python.with_name("softmax-jax")
    assert "train" in run(command, "--help", cwd=tmp_path)
    said = run(command, "train", "quick", "--steps", 20, "--chunk", 10, "--width", 8, cwd=tmp_path)
    assert "softmax-jax evaluate --checkpoint runs/quick" in said
    options = ("--checkpoint", "runs/quick", "--lengths", 16, "--sets", 8, "--normalizers", "softmax")
    run(command, "evaluate", *options, cwd=tmp_path)
    assert (tmp_path / "results" / "evaluate" / "latest" / "evaluation.csv").exists()
    shutil.unpack_archive(sdist, tmp_path, filter="data")
    (source,) = tmp_path.glob("softmax_jax-*")
    options = ("--lengths", 16, "--sets", 64, "--normalizers", "softmax", "--output", tmp_path / "out")
    table = run(python, "evaluate.py", *options, cwd=source)
    assert "softmax" in table
    rows = (tmp_path / "out" / "evaluation.csv").read_text().splitlines()[1:]
    accuracies = [float(row.split(",")[3]) for row in rows]
    assert sum(accuracies) / len(accuracies) >= 97
