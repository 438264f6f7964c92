"""The page of the normalizers is what the package says."""

import sys
from pathlib import Path

import softmax_jax as sj
from softmax_jax.normalizers import page
from softmax_jax.normalizers.__main__ import main

ROOT = Path(__file__).parents[2]


def test_every_registered_method_has_an_entry():
    assert list(page.ENTRIES) == list(sj.METHODS)


def test_the_page_of_the_documentation_is_current():
    assert (ROOT / "docs" / "normalizers.md").read_text() == page.markdown()


def test_a_method_that_somebody_registers_is_in_the_table_alone(monkeypatch):
    monkeypatch.delitem(page.ENTRIES, "softpick")
    assert "| `softpick` |" in page.markdown()
    assert "## softpick" not in page.markdown()


def test_the_page_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["normalizers", "--markdown"])
    main()
    assert capsys.readouterr().out == page.markdown()
