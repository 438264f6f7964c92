"""The table of errors in ulp: what it is measured against, and that cells of it hold."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import softmax_jax as sj
from benchmarks import precision
from tests.library.laws.references import expected

TABLE = pl.read_csv(Path(__file__).parents[3] / "docs" / "data" / "precision.csv")


def test_the_table_has_every_normalizer_at_every_length(monkeypatch):
    monkeypatch.setattr(precision, "error", lambda *_: precision.Error(0.0, 0.0))
    keys = ["normalizer", "n"]
    assert TABLE.select(keys).equals(precision.table().select(keys))


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "n"),
    [("jax.nn.softmax", 256), ("softmax", 256), ("ssmax", 4096), ("softpick", 16), ("entmax15", 256), ("top_k", 4096)],
)
def test_a_cell_holds(name, n):
    ((of_largest, own),) = TABLE.filter(normalizer=name, n=n).select("of_largest", "own").rows()
    found = precision.error(precision.contenders()[name], precision.logits_of(n))
    # Another compiler and another processor round differently, by about as much again.
    assert found.of_largest <= 2 * of_largest + 2
    assert found.own <= 2 * own + 2


@pytest.mark.full
@pytest.mark.parametrize("name", ["softmax", "softpick", "entmax15", "adaptive"])
def test_float64_is_what_the_formula_gives(name):
    logits = precision.logits_of(256)[:8]
    wanted = expected(name, logits, np.ones(logits.shape, bool))
    np.testing.assert_allclose(precision.in_float64(sj.normalizer(name), logits), wanted, atol=1e-14)


def test_errors_are_counted_in_the_distance_to_the_next_float():
    logits = np.zeros((1, 4), np.float32)

    def off_by_three(z):
        return sj.softmax(z) * (1 + 3 * 2.0**-23) if z.dtype == np.float32 else sj.softmax(z)

    found = precision.error(off_by_three, logits)
    assert (found.of_largest, found.own) == (3, 3)
