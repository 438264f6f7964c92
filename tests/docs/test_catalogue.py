"""The page of the normalizers is what the package says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import softmax_jax as sj
from docs import catalogue
from softmax_jax.normalizers import registry

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_every_registered_method_is_in_the_table_and_has_an_entry():
    assert [row[0] for row in catalogue.rows()] == list(sj.METHODS)
    assert all(len(row) == len(catalogue.COLUMNS) for row in catalogue.rows())
    assert all(method.entry.use for method in sj.METHODS.values())


def test_the_page_of_the_documentation_is_current():
    assert (ROOT / "docs" / "normalizers.md").read_text() == catalogue.markdown()


@pytest.mark.full
def test_a_method_that_somebody_registers_is_in_the_table_alone(monkeypatch):
    mine = registry.Method("mine", lambda logits, axis=-1, where=None: sj.softmax(logits, axis, where))
    monkeypatch.setitem(registry._methods, "mine", mine)
    assert "| `mine` | – |" in catalogue.markdown()
    assert "## mine" not in catalogue.markdown()


@pytest.mark.full
def test_table_and_page_are_printed():
    wide = os.environ | {"COLUMNS": "300"}
    for options in [], ["--markdown"]:
        command = [sys.executable, "-m", "softmax_jax.normalizers", *options]
        done = subprocess.run(command, cwd=ROOT, env=wide, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert set(sj.METHODS) <= set(re.findall(r"\w+", done.stdout))
    assert done.stdout == catalogue.markdown()


@pytest.mark.full
def test_the_table_keeps_words_whole_at_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["normalizers"])
    catalogue.main()
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    words = {word for row in catalogue.rows() for cell in row for word in cell.split()}
    assert not [word for word in words if word.isalpha() and word not in printed]
