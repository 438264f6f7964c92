from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from softmax_jax.experiment.measures.agreement import MARGIN, agreement, with_nulls
from softmax_jax.experiment.report.accuracy import ACCURACY

DATA = Path(__file__).parents[3] / "docs" / "data" / "precision_study" / "accuracy.csv"


def test_it_is_what_scipy_says_of_drawn_rows():
    random = np.random.default_rng(0)
    baseline, method = random.normal(50, 1, (2, 6, 3))
    method += 2
    published = (50.0, 50.0, 47.0), (51.0, 52.0, 53.0)
    found = agreement(baseline, method, published)
    gains = (method - baseline).mean(1)
    low, high = stats.t.interval(0.95, 5, gains.mean(), stats.sem(gains))
    assert found.seeds == 6
    assert found.gain == pytest.approx((low + high) / 2)
    assert found.gain_interval == pytest.approx((high - low) / 2)
    assert found.published_gain == pytest.approx(3.0)
    assert found.method == pytest.approx(np.sqrt(np.mean((method.mean(0) - published[1]) ** 2)))
    # Two one-sided tests at 5 %: the cell is not off by the margin, in either direction.
    both: list[float] = []
    for rows, means in zip((baseline, method), published):
        for cell, mean in zip(rows.T, means):
            lower: Any = stats.ttest_1samp(cell - mean, -MARGIN, alternative="greater")
            upper: Any = stats.ttest_1samp(cell - mean, MARGIN, alternative="less")
            both.append(max(lower.pvalue, upper.pvalue))
    assert (found.equivalent, found.cells) == (sum(p < 0.05 for p in both), 6)


def test_of_twenty_models_it_tells_a_copy_and_no_model_from_the_method_but_not_ssmax():
    """The gain does, and the root mean square of the row: counts of cells do not."""
    frame, lengths = pl.read_csv(DATA), list(ACCURACY["softmax"])
    rows = {
        name: np.array([frame.filter(normalizer=name, n=n).sort("seed")["accuracy"].to_list() for n in lengths]).T
        for name in ("softmax", "adaptive", "ssmax")
    }
    published = tuple(ACCURACY["softmax"].values()), tuple(ACCURACY["adaptive"].values())
    found = with_nulls(rows, lengths, published)
    models, copy, ssmax, nothing = found.values()
    assert models.seeds == 20
    assert models.gain - models.gain_interval > 0 == copy.gain == nothing.gain
    assert abs(ssmax.gain - models.gain) < models.gain_interval
    assert (models.method, copy.method, ssmax.method) == pytest.approx((0.49, 1.34, 0.56), abs=0.01)
    assert nothing.method == pytest.approx(0.89, abs=0.01)
    assert nothing.baseline > 2 * models.baseline
    assert [row.equivalent for row in found.values()] == [16, 13, 16, 17]


@pytest.mark.parametrize(("offset", "equivalent"), [(1.49, 2), (1.5, 0), (-1.5, 0)])
def test_a_cell_is_equivalent_below_one_and_a_half_points_and_not_at_them(offset, equivalent):
    rows = np.full((3, 1), 50.0 + offset)
    assert agreement(rows, rows, ((50.0,), (50.0,))).equivalent == equivalent
