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
FLOORS = (
    ("files", "normalizers", "refusal"),
    ("attention", "temperature", "theory", "transforms"),
    ("tasks",),
    ("training",),
    ("configs", "measures"),
    ("report",),
    ("commands",),
)
LIBRARY = {name for floor in FLOORS[:2] for name in floor}
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}


def imported(path: Path) -> Iterator[str]:
    """The parts of the package that a module imports, wherever in it, but for the types alone."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in skipped:
            parts = (node.module or "").split(".")
            if parts[0] == "softmax_jax":
                yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]


def test_imports_point_down():
    upward = []
    for path in PACKAGE.rglob("*.py"):
        if path.name == "__main__.py" or path == PACKAGE / "__init__.py":  # a program; the names for users
            continue
        own = FLOOR_OF[path.relative_to(PACKAGE).with_suffix("").parts[0]]
        upward += [f"{path.relative_to(PACKAGE)}: {part}" for part in imported(path) if FLOOR_OF[part] > own]
    assert not upward


def test_the_package_imports_nothing_that_stands_beside_it():
    """A task of the table is imported by its name, when somebody asks for it."""
    beside = re.compile(r"^\s*(?:from|import) (?:benchmarks|docs|projects|studies|tests)\b", re.MULTILINE)
    assert [path for path in PACKAGE.rglob("*.py") if beside.search(path.read_text())] == []


def test_the_public_names_are_those_that_are_listed():
    assert dir(sj) == sorted(sj.__all__)
    assert {"softmax", "normalizer", "swap", "attention_fn"} <= set(dir(sj))
    assert {"normalizers", "attention", "importlib"}.isdisjoint(dir(sj))


def test_the_root_holds_little():
    assert sorted(path.stem for path in PACKAGE.glob("*.py")) == [
        "__init__",
        "files",
        "refusal",
        "temperature",
        "theory",
    ]


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_the_import_loads_the_library_alone():
    loaded = run("import sys, softmax_jax; print(*sys.modules)").split()
    parts = {name.split(".")[1] for name in loaded if name.startswith("softmax_jax.")}
    assert parts <= LIBRARY
    absent = ["altair", "flax", "optax", "orbax", "polars", "rich", "scipy", "treescope", "tyro", "vl_convert"]
    assert not {name.split(".")[0] for name in loaded} & set(absent)


def test_measuring_waits_for_nothing_that_draws_charts():
    loaded = run("import sys, softmax_jax.commands.evaluate; print(*sys.modules)").split()
    assert {"altair", "scipy.optimize", "scipy.special", "scipy.stats", "vl_convert"}.isdisjoint(loaded)


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("NnxAttention", "flax", "flax"), ("show", "treescope", "experiment")]
)
def test_a_name_from_an_extra_says_what_to_install(name: str, package: str, extra: str):
    said = run(
        f"import sys; sys.modules[{package!r}] = None\nimport softmax_jax as sj\n"
        f"try: sj.{name}\nexcept ImportError as error: print(error)"
    )
    assert said == f"softmax_jax.{name} needs {package}, which is not installed: pip install 'softmax-jax[{extra}]'\n"
    assert name in dir(sj)


def test_the_citation_names_this_version():
    assert f"\nversion: {sj.__version__}\n" in (PACKAGE.parent / "CITATION.cff").read_text()
