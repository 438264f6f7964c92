from pathlib import Path

import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.measures.agreement import with_nulls
from softmax_jax.experiment.report.accuracy import ACCURACY

DATA = Path(__file__).parents[3] / "docs" / "data" / "precision_study" / "accuracy.csv"


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
