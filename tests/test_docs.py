"""Pages of the documentation run as they are printed."""

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def run_page(name: str) -> dict[str, Any]:
    """Runs the Python blocks of a page one after the other, and returns their variables."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)
    assert blocks
    variables: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, name, "exec"), variables)
    return variables


def test_the_refit_page_refits_a_stock_model():
    variables = run_page("refit.md")
    assert variables["refitted"] < variables["before"] - 0.05
    assert variables["refitted"] < variables["published"]
    assert variables["found"].entropy_range[1] > 1


def cells(notebook: str) -> list[tuple[bool, str]]:
    """Of each cell of a notebook in percent format: whether it is prose, and its text."""
    parts = re.split(r"^# %%", (ROOT / "notebooks" / notebook).read_text(), flags=re.MULTILINE)[1:]
    heads_and_bodies = [part.split("\n", 1) for part in parts]
    return [("[markdown]" in head, body.strip()) for head, body in heads_and_bodies]


def test_the_shootout_notebook_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EPOCHS", "1")
    monkeypatch.setenv("SEEDS", "1")
    monkeypatch.setenv("TESTS", "2")
    variables: dict[str, Any] = {}
    for prose, text in cells("shootout.py"):
        if not prose:
            exec(compile(text, "notebooks/shootout.py", "exec"), variables)
    assert [outcome.normalizer for outcome in variables["outcomes"]] == variables["NAMES"]
    assert {test.length for outcome in variables["outcomes"] for test in outcome.tests} == {32, 128, 512}


def test_the_page_of_the_shootout_is_that_of_the_notebook():
    page = (DOCS / "shootout.md").read_text()
    for prose, text in cells("shootout.py"):
        written = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines()) if prose else text
        assert written in page
    images = re.findall(r"!\[\w+\]\((.*?)\)", page)
    assert len(images) == 5
    assert all((DOCS / image).exists() for image in images)
