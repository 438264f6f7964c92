"""The API pages show what users call, each name once and with its sections."""

import doctest
import importlib
import inspect
import re
from pathlib import Path
from types import FunctionType

import jax.numpy as jnp
import pytest

import softmax_jax as sj
from softmax_jax.normalizers.registry import Method

PAGES = Path(__file__).parents[2] / "docs" / "api"
SHOWN = [name for page in PAGES.glob("*.md") for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE)]
BESIDE = {
    "softmax_jax.transforms.sites": {"Site"},
    "softmax_jax.transforms.probe": {"SiteRows"},
    "softmax_jax.theory": {
        *("critical_beta", "critical_count", "entropy_bounds", "gap_counting", "largest_weight_bounds"),
        *("largest_weight_from_nearest", "largest_weight_near_critical", "length_forced_below", "spread_from_norms"),
        "weight_bounds",
    },
    "softmax_jax.temperature": {"Rows", "TemperatureFit", "fit", "search"},
    "softmax_jax.experiment.configs": {"load_preset"},
    "softmax_jax.experiment.measures.evaluation": {"evaluate"},
    "softmax_jax.experiment.report.model_page": {"model_page"},
    "softmax_jax.experiment.tasks.sequences": {"SequenceTask"},
    "softmax_jax.experiment.tasks.task": {"Task"},
    "softmax_jax.experiment.training.config": {"Config"},
    "softmax_jax.experiment.training.run_directory": {"load_checkpoint"},
    "softmax_jax.experiment.training.train": {"train"},
}
"""What users import from a module: results of public functions, and what is no part of `sj`."""


def test_every_public_name_stands_once_and_nothing_else_and_is_there():
    beside = [f"{module}.{name}" for module, names in BESIDE.items() for name in names]
    assert sorted(SHOWN) == sorted([*(f"softmax_jax.{name}" for name in sj.__all__), *beside])
    for module, names in BESIDE.items():
        assert names <= vars(importlib.import_module(module)).keys()


def test_the_table_of_the_api_names_what_there_is():
    table = [line.split("|")[2] for line in (PAGES / "index.md").read_text().splitlines() if line.startswith("| ")]
    names = set(re.findall(r"`(\w+)`", "".join(table)))
    assert len(names) > 20
    assert names <= {*dir(sj), "theory", "temperature"}


def test_every_public_name_has_an_example():
    without = {name for name in sj.__all__ if ">>>" not in (inspect.getdoc(described(name)) or "")}
    assert without == {"METHODS"}


def described(name: str) -> object:
    """Returns what has the docstring of a public name: the entry of a method, else the object itself."""
    value = getattr(sj, name)
    if not isinstance(value, Method):
        return value
    return type(name, (), {"__doc__": value.entry.docstring})


METHODS = [name for name in sj.__all__ if isinstance(getattr(sj, name), Method)]


@pytest.mark.parametrize("name", METHODS)
def test_the_example_of_a_method_prints_what_it_says(name: str):
    """A method is no function when the other examples are looked for."""
    names = {"jnp": jnp, **{public: getattr(sj, public) for public in sj.__all__}}
    example = doctest.DocTestParser().get_doctest(getattr(sj, name).entry.docstring, names, name, None, None)
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))
    assert example.examples


LONG = [
    name
    for name in sj.__all__
    if isinstance(value := getattr(sj, name), FunctionType) and len(inspect.signature(value).parameters) > 3
]
"""The public functions with more than three parameters."""


@pytest.mark.parametrize("name", LONG)
def test_a_function_with_many_parameters_has_its_sections(name: str):
    function = getattr(sj, name)
    docstring = inspect.getdoc(function) or ""
    sections = re.findall(r"^(\w+):$", docstring, re.MULTILINE)
    assert [section for section in sections if section != "References"] == ["Arguments", "Returns", "Raises", "Example"]
    arguments = docstring.split("Arguments:\n")[1].split("\n\n")[0]
    described = re.findall(r"^ {4}(\w+(?:, \w+)*): ", arguments, re.MULTILINE)
    assert ", ".join(described).split(", ") == list(inspect.signature(function).parameters)


@pytest.mark.parametrize("folder", ["softmax_jax", "studies"])
def test_sections_have_one_layout(folder: str):
    """A title by itself, with its lines indented below."""
    other = re.compile(r"^( +)(?:Arguments|Returns|Raises|Example|References):(?: .*|\n(?!\1    ).*)$", re.MULTILINE)
    sources = {path: path.read_text() for path in (PAGES.parents[1] / folder).rglob("*.py")}
    assert {path: found for path, text in sources.items() if (found := other.findall(text))} == {}
