"""The house: imports point down, and `import softmax_jax` loads the library alone."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import softmax_jax as sj

PACKAGE = Path(sj.__file__).parent
ROOT = PACKAGE.parent
FLOORS = (
    ("files", "normalizers", "refusal"),
    ("attention", "temperature", "theory", "transforms"),
    ("display", "laws"),
    ("experiment",),
    ("experiment.tasks",),
    ("experiment.training",),
    ("experiment.configs", "experiment.measures"),
    ("experiment.board",),
    ("experiment.report",),
    ("experiment.language_models",),
    ("experiment.commands",),
)
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}
LIBRARY = {name for floor in FLOORS[:3] for name in floor}


def room_of(module: str) -> str:
    """The folder or file of the package that a module is or lies in."""
    _, *parts = module.split(".")
    return ".".join(parts[: 2 if parts[:1] == ["experiment"] else 1])


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, wherever in it, but for the types alone."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and id(node) not in skipped:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [name for name in inside if room_of(name) in FLOOR_OF]
            yield from modules if room_of(node.module) not in FLOOR_OF or modules else [node.module]


def test_imports_point_down():
    upward = []
    for path in PACKAGE.rglob("*.py"):
        if path.name == "__main__.py" or path == PACKAGE / "__init__.py":  # a program; the names for users
            continue
        own = FLOOR_OF[room_of(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))]
        rooms = [room_of(module) for module in imported(path) if module.startswith("softmax_jax.")]
        upward += [f"{path.relative_to(PACKAGE)}: {room}" for room in rooms if FLOOR_OF[room] > own]
    assert not upward


def test_the_package_imports_nothing_that_stands_beside_it():
    """A study adds its task and its preset by `register_task` and `register_preset`."""
    beside = ("benchmarks", "configs", "docs", "examples", "studies", "tests")
    assert not [path for path in PACKAGE.rglob("*.py") for name in imported(path) if name.split(".")[0] in beside]
    assert not [path for path in PACKAGE.rglob("*.py") if re.search(r"[\"'](studies|projects)\b", path.read_text())]


def test_no_file_hides_a_module_of_python():
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "configs").glob("*.py"), *(ROOT / "studies").rglob("*.py")]
    assert not [path for path in files if path.stem in sys.stdlib_module_names]


def test_the_top_of_the_repository_can_be_read_aloud():
    listed = subprocess.run(("git", "ls-files"), cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    folders = {line.split("/")[0] for line in listed if "/" in line and not line.startswith(".")}
    assert folders == {
        *("benchmarks", "checkpoints", "configs", "docs", "examples"),
        *("requirements", "softmax_jax", "studies", "tests"),
    }


def test_the_public_names_are_those_that_are_listed():
    assert dir(sj) == sorted(sj.__all__)
    assert {"softmax", "normalizer", "swap", "attention_fn"} <= set(dir(sj))
    assert {"normalizers", "attention", "importlib"}.isdisjoint(dir(sj))


def test_the_root_holds_little():
    assert sorted(path.stem for path in PACKAGE.glob("*.py")) == [
        "__init__",
        "display",
        "files",
        "refusal",
        "temperature",
        "theory",
    ]


EXTRAS = {"NnxAttention": ("flax", "flax"), "show": ("treescope", "experiment")}
"""Names of the library that need more than it does: the package, and the extra that brings it."""
PROGRAM = f"""
import sys, softmax_jax as sj
print(*sys.modules)
for name, (package, _) in {EXTRAS!r}.items():
    sys.modules[package] = None
    try: getattr(sj, name)
    except ImportError as error: print(error)
    del sys.modules[package]
import softmax_jax.experiment.commands.evaluate
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    """The lines of one program: what the library loads, what is said where an extra lacks, what measuring loads."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_the_import_loads_the_library_alone(said: list[str]):
    loaded = said[0].split()
    parts = {name.split(".")[1] for name in loaded if name.startswith("softmax_jax.")}
    assert parts <= LIBRARY
    absent = ["altair", "flax", "optax", "orbax", "polars", "rich", "scipy", "treescope", "tyro", "vl_convert"]
    assert not {name.split(".")[0] for name in loaded} & set(absent)


def test_measuring_waits_for_nothing_that_draws_charts(said: list[str]):
    loaded = said[-1].split()
    assert "softmax_jax.experiment.commands.evaluate" in loaded
    assert {"altair", "scipy.optimize", "scipy.special", "scipy.stats", "vl_convert"}.isdisjoint(loaded)


def test_a_name_from_an_extra_says_what_to_install(said: list[str]):
    assert said[1:-1] == [
        f"softmax_jax.{name} needs {package}, which is not installed: pip install 'softmax-jax[{extra}]'"
        for name, (package, extra) in EXTRAS.items()
    ]
    assert set(EXTRAS) <= set(dir(sj))


def test_the_citation_names_this_version():
    assert f"\nversion: {sj.__version__}\n" in (PACKAGE.parent / "CITATION.cff").read_text()
