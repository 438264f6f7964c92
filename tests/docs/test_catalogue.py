"""The page of the normalizers is what the package says."""

from pathlib import Path

import pytest

import softmax_jax as sj
from docs import catalogue
from softmax_jax.normalizers import registry

ROOT = Path(__file__).parents[2]


def test_the_page_is_current_and_has_every_registered_method_with_its_use():
    assert (ROOT / "docs" / "normalizers.md").read_text() == catalogue.markdown()
    largest = [name for fact, names in catalogue.rows() if fact.startswith("largest weight") for name in names]
    assert sorted(largest) == sorted(sj.METHODS)
    assert [names for fact, names in catalogue.rows() if fact == "negative weights"] == [["signed_l1"]]
    assert all(all(catalogue.latex_and_use(method)) for method in sj.METHODS.values())


@pytest.mark.full
def test_a_method_that_somebody_registers_is_named_and_has_no_entry(monkeypatch):
    mine = registry.Method("mine", lambda logits, axis=-1, where=None: sj.softmax(logits, axis, where))
    monkeypatch.setitem(registry._methods, "mine", mine)
    assert "| not described | `mine` |" in catalogue.markdown()
    assert "## mine" not in catalogue.markdown()
