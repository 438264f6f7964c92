"""The table of the precision page: what it is measured against, and that cells of it hold."""

import re
from pathlib import Path

import numpy as np
import pytest

import softmax_jax as sj
from benchmarks import precision
from tests.normalizers.references import expected

PAGE = (Path(__file__).parents[1] / "docs" / "precision.md").read_text()
TABLE = {cells[0].strip("` "): cells[1:] for line in PAGE.splitlines() if (cells := line.split("|")[1:-1])}


def test_the_page_has_every_normalizer_and_the_text_of_the_command(monkeypatch):
    assert list(TABLE)[2:] == [precision.PEER, *sj.METHODS]
    monkeypatch.setattr(precision, "contenders", dict)
    before_the_date = precision.page().rpartition(": ")[0]
    assert "\n".join(line for line in PAGE.splitlines() if not line.startswith("| `")).startswith(before_the_date)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "n"),
    [("jax.nn.softmax", 256), ("softmax", 256), ("ssmax", 4096), ("softpick", 16), ("entmax15", 256), ("top_k", 4096)],
)
def test_a_cell_holds(name, n):
    cell = TABLE[name][precision.LENGTHS.index(n)]
    wanted = [float(ulp) for ulp in re.findall(r"[\d.]+", cell)]
    found = precision.error(precision.contenders()[name], precision.logits_of(n))
    # Another compiler and another processor round differently, by about as much again.
    assert found.of_largest <= 2 * wanted[0] + 2
    assert found.own <= 2 * wanted[1] + 2


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
