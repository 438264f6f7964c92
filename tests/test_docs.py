"""Pages of the documentation run as they are printed."""

import doctest
import json
import re
import runpy
import types
from pathlib import Path
from typing import Any

import jax
import polars as pl
import pytest

import softmax_jax
from docs import pages
from tests.models.zoo import MODELS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FOLDER = ROOT / "examples" / "notebooks"


@pytest.mark.rare
def test_the_example_of_refitting_refits_a_stock_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    with jax.numpy_dtype_promotion("standard"):  # as users have it
        variables = runpy.run_module("examples.refit")
        of_fit = variables["loss"](softmax_jax.Normalizer(softmax_jax.softmax, variables["found"].scale))
    assert variables["refitted"] < variables["before"] - 0.05
    assert variables["refitted"] < variables["published"]
    assert variables["found"].entropy_range[1] > 1
    assert variables["refitted"] == of_fit


def cells(notebook: str) -> list[tuple[bool, str]]:
    """Of each cell of a notebook in percent format: whether it is prose, and its text."""
    parts = re.split(r"^# %%", (FOLDER / notebook).read_text(), flags=re.MULTILINE)[1:]
    heads_and_bodies = [part.split("\n", 1) for part in parts]
    return [("[markdown]" in head, body.strip()) for head, body in heads_and_bodies]


def run_notebook(name: str, monkeypatch: pytest.MonkeyPatch, **sizes: int | str) -> dict[str, Any]:
    """Runs the cells of a notebook with these environment variables, and returns its variables."""
    for variable, value in sizes.items():
        monkeypatch.setenv(variable, str(value))
    variables: dict[str, Any] = {}
    for prose, text in cells(name):
        if not prose:
            exec(compile(text, f"examples/notebooks/{name}", "exec"), variables)
    return variables


@pytest.mark.rare
def test_the_shootout_notebook_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    sizes = {"EPOCHS": 1, "SEEDS": 1, "RUNS": tmp_path, "LENGTHS": "32 64", "NAMES": "softmax shifted_softmax ssmax"}
    variables = run_notebook("shootout.py", monkeypatch, **sizes)
    tests = variables["outcomes"].tests
    assert tests["normalizer"].unique(maintain_order=True).to_list() == variables["NAMES"]
    assert set(tests["n"]) == {32, 64}


@pytest.mark.rare
def test_the_max_retrieval_notebook_runs(monkeypatch: pytest.MonkeyPatch):
    sizes = {"STEPS": 60, "SEEDS": 1, "ITEMS": 5, "SETS": 64, "LONGEST": 16}
    variables = run_notebook("max_retrieval.py", monkeypatch, **sizes)
    assert set(variables["frame"]["n"]) == {16}
    assert list(variables["fits"]) == ["adaptive_refit", "adaptive_refit_train"]
    names = {"softmax", "adaptive", "hardmax", "adaptive_refit", "adaptive_refit_train"}
    assert variables["here"].keys() == variables["there"].keys() == names
    assert min(float(cells[""][16]) for cells in variables["there"].values()) > 95


@pytest.mark.full
def test_the_tour_of_any_model_runs(monkeypatch: pytest.MonkeyPatch):
    with jax.numpy_dtype_promotion("standard"):  # which optax needs
        variables = run_notebook("any_model_tour.py", monkeypatch, STEPS=60, SETS=16, LONGEST=64)
    sites = softmax_jax.sites(variables["apply"])(variables["parameters"], variables["tests"][16].items)
    assert [site.use for site in sites] == ["attention"] * 2
    assert set(variables["frame"]["n"]) == {16, 64}
    assert len(variables["frame"]) == 2 * 2 * variables["HEADS"]
    assert variables["table"].keys() >= {"softmax", "adaptive", "hardmax"}
    assert sorted(variables["numbers"]) == [0, 1]


NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.py"))
IMAGES = {"max_retrieval.py": 3, "shootout.py": 5}
"""The notebooks that are pages too, with the number of their pictures."""


@pytest.mark.parametrize("notebook", IMAGES)
def test_the_page_of_a_notebook_is_that_of_its_cells_and_of_the_code_as_it_is(notebook: str):
    page = (FOLDER / notebook).with_suffix(".md").read_text()
    for prose, text in cells(notebook):
        written = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines()) if prose else text
        assert written in page
    images = re.findall(r"!\[\w+\]\((.*?)\)", page)
    assert len(images) == IMAGES[notebook]
    assert all((FOLDER / image).exists() for image in images)
    assert "\x1b" not in page
    name = notebook.removesuffix(".py")
    assert pages.signed(page) == pages.signature(name), f"run docs/render {name}"


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_a_notebook_for_jupyter_has_the_same_cells(notebook: str):
    content = json.loads((FOLDER / notebook).with_suffix(".ipynb").read_text())
    made = [(cell["cell_type"] == "markdown", "".join(cell["source"])) for cell in content["cells"]]
    bare = [(prose, re.sub(r"^# ?", "", text, flags=re.M) if prose else text) for prose, text in cells(notebook)]
    assert made == bare


@pytest.mark.full
@pytest.mark.parametrize("name", [page.name for page in DOCS.glob("*.md") if "```pycon" in page.read_text()])
def test_the_examples_of_a_page_print_what_it_says(name: str):
    blocks = re.findall(r"```pycon\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)
    assert blocks
    examples = doctest.DocTestParser().get_doctest("".join(blocks), {}, name, name, 0)
    with jax.numpy_dtype_promotion("standard"):  # as users have it
        assert doctest.DocTestRunner().run(examples).failed == 0


README = (ROOT / "README.md").read_text()


def test_the_first_block_of_the_readme_prints_what_it_says(capsys: pytest.CaptureFixture[str]):
    ((code, said),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as users have it
        exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == said


def test_the_tests_behind_the_guarantees_exist():
    promises = re.split(r"^## \d+", (DOCS / "guarantees.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(promises) == 12
    for promise in promises:
        paths = re.findall(r"`(tests/[\w/.]+)`", promise.partition("Tests: ")[2])
        assert paths
        assert all((ROOT / path).exists() for path in paths)


def test_the_models_of_other_libraries_are_those_of_the_zoo():
    assert pl.read_csv(DOCS / "data" / "models.csv")["model"].to_list() == list(MODELS)


@pytest.mark.full
def test_the_blocks_of_the_readme_write_a_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
            exec(compile(block, "README.md", "exec"), names)
    assert "My model" in (tmp_path / "page" / "index.html").read_text()


def test_the_first_page_is_the_readme_and_its_links_lead_to_pages():
    show = runpy.run_path(str(DOCS / "hooks" / "readme.py"))["on_page_markdown"]
    page, readme = show((DOCS / "index.md").read_text()), (ROOT / "README.md").read_text()
    assert page.splitlines()[0] == readme.splitlines()[0]
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    links = re.findall(r"\]\((?!\w+:|#)([^)#]+)", prose)
    assert len(links) > 5
    assert [link for link in links if not (DOCS / link).exists()] == []


REFUSED = [
    '<script src="https://example.org/a.js"></script>',
    '<link rel="stylesheet" href="//example.org/a.css">',
    "<img alt='a' src=http://example.org/a.png>",
    *("<p>$$z$$</p>", r"<p>\frac{1}{n}</p>", "<pre>\x1b[1mbold</pre>"),
]


def test_a_page_that_fetches_or_shows_what_was_typed_is_refused_and_links_and_code_may_say_anything():
    hook = runpy.run_path(str(DOCS / "hooks" / "offline.py"))["on_post_page"]
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri="page.md"))
    for output in REFUSED:
        with pytest.raises(ValueError, match=r"page\.md"):
            hook(f"<h1>Title</h1>{output}", page)
    output = r'<a href="https://arxiv.org">a</a><code>$$\frac{1}{n}$$</code><script src="assets/a.js"></script>'
    assert hook(output, page) == output
