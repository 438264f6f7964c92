"""The page of the normalizers is what the package says."""

import subprocess
import sys
from pathlib import Path

import pytest

import softmax_jax as sj
from docs import catalogue
from softmax_jax.normalizers import registry

ROOT = Path(__file__).parents[2]


def test_the_page_is_current_and_has_every_registered_method_with_its_use():
    assert (ROOT / "docs" / "normalizers.md").read_text() == catalogue.markdown()
    assert [row[0] for row in catalogue.rows()] == list(sj.METHODS)
    assert all(len(row) == len(catalogue.COLUMNS) for row in catalogue.rows())
    assert all(all(catalogue.latex_and_use(method)) for method in sj.METHODS.values())


@pytest.mark.full
def test_a_method_that_somebody_registers_has_a_row_and_no_entry(monkeypatch):
    mine = registry.Method("mine", lambda logits, axis=-1, where=None: sj.softmax(logits, axis, where))
    monkeypatch.setitem(registry._methods, "mine", mine)
    assert "| `mine` | – |" in catalogue.markdown()
    assert "## mine" not in catalogue.markdown()


@pytest.mark.full
def test_the_page_is_printed():
    command = [sys.executable, "-m", "docs.catalogue"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == catalogue.markdown()
