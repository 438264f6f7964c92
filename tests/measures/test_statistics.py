import numpy as np
import polars as pl
import pytest
import scipy.stats

from softmax_jax.measures.statistics import corrected, half_width, over_seeds, paired_p_value

VALUES = [0.5, 0.51, 0.55]
FRAME = pl.DataFrame(
    {
        "normalizer": ["b"] * 3 + ["a"] * 3 + ["none"],
        "n": [16, 16, 16, 4, 4, 4, 4],
        "weight": [*VALUES, 0.9, 1, 1, None],
    }
)


def test_without_enough_seeds_or_differences_there_is_no_test():
    assert half_width([1.0]) is None
    assert paired_p_value([1.0], [2.0]) is None
    assert paired_p_value([1.0, 2.0], []) is None
    assert paired_p_value([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert paired_p_value([1.0, 2.0], [0.0, 1.0]) is None
    # Alike but for rounding, or not finite.
    assert paired_p_value([98.3, 97.1, 96.4], [98.2, 97.0, 96.3]) is None
    assert paired_p_value([0.1 + 0.2, 1.0], [0.3, 1.0]) == 1.0
    assert paired_p_value([98.3, float("nan"), 96.4], [98.2, 97.0, 96.3]) is None


def test_corrected_p_values_keep_the_order_of_the_tests_and_the_risk_of_any_false_one():
    assert corrected([0.5, 0.011, None, 0.01]) == pytest.approx([0.5, 0.03, None, 0.03])  # never below a smaller one's
    assert corrected([0.6, 0.7]) == [1.0, 1.0]
    assert corrected([None]) == [None]
    # Of ten tests without an effect any is called significant in 5 % of the cases: least p below 0.005.
    p_values = np.random.default_rng(0).uniform(size=(2000, 10))
    false_alarms = np.mean([min(filter(None, corrected(tests))) < 0.05 for tests in p_values.tolist()])
    assert 0.035 < false_alarms < 0.065


def test_intervals_are_students_over_seeds():
    first = over_seeds(FRAME, ["normalizer", "n"], "weight").row(0, named=True)
    mean = float(np.mean(VALUES))
    low, high = scipy.stats.t.interval(0.95, len(VALUES) - 1, mean, scipy.stats.sem(VALUES))
    assert first["value"] == pytest.approx(mean)
    assert (first["low"], first["high"]) == pytest.approx((low, high))


def test_groups_keep_their_order_without_those_that_have_no_values_and_intervals_are_cut():
    b, a = over_seeds(FRAME, ["normalizer"], "weight", low=0.9, high=1.0).rows(named=True)
    assert (b["normalizer"], a["normalizer"]) == ("b", "a")
    assert (a["low"], a["high"]) == (0.9, 1.0)
    assert over_seeds(FRAME.clear(), ["normalizer"], "weight").rows() == []
