import numpy as np
import polars as pl
import pytest
import scipy.stats

from softmax_jax.experiment.measures.families import copies
from softmax_jax.experiment.measures.significance import (
    MOST_FLIPS,
    corrected,
    detectable,
    half_width,
    max_t_p_values,
    over_seeds,
    over_sets,
    paired_p_value,
)
from softmax_jax.experiment.measures.summary import summarize

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


def test_intervals_are_students_over_seeds_and_cut_and_groups_keep_their_order_without_those_that_have_no_values():
    first = over_seeds(FRAME, ["normalizer", "n"], "weight").row(0, named=True)
    mean = float(np.mean(VALUES))
    low, high = scipy.stats.t.interval(0.95, len(VALUES) - 1, mean, scipy.stats.sem(VALUES))
    assert (first["value"], first["low"], first["high"]) == pytest.approx((mean, low, high))
    b, a = over_seeds(FRAME, ["normalizer"], "weight", low=0.9, high=1.0).rows(named=True)
    assert (b["normalizer"], a["normalizer"]) == ("b", "a")
    assert (a["low"], a["high"]) == (0.9, 1.0)
    assert over_seeds(FRAME.clear(), ["normalizer"], "weight").rows() == []


def test_p_values_by_flips_are_those_of_scipy_for_one_test_and_hold_the_risk_of_any_false_one():
    random = np.random.default_rng(0)
    one = random.normal(0.5, 1, size=(1, 9))
    expected = scipy.stats.permutation_test(
        one, lambda x, axis: np.abs(np.mean(x, axis)), permutation_type="samples", alternative="greater"
    )
    assert max_t_p_values(one) == pytest.approx([expected.pvalue])
    # Ten tests that share half of their noise: of 300 families without an effect 5 % have a p below 5 %.
    families = random.normal(size=(300, 10, 8)) + random.normal(size=(300, 1, 8))
    false_alarms = np.mean([min(max_t_p_values(family)) < 0.05 for family in families])
    assert 0.02 < false_alarms < 0.08
    # Many seeds are flipped by chance.
    sure = np.full((2, 20), 3.0) + np.random.default_rng(0).normal(size=(2, 20))
    assert max(max_t_p_values(sure)) == pytest.approx(1 / MOST_FLIPS)


def test_a_detectable_difference_is_found_in_four_of_five_cases():
    random = np.random.default_rng(0)
    least = np.mean([detectable(random.normal(size=10).tolist()) or 0 for _ in range(2000)])
    drawn = random.normal(least, 1, size=(2000, 10)).tolist()
    power = np.mean([(paired_p_value(values, [0.0] * 10) or 1) < 0.05 for values in drawn])
    assert 0.75 < power < 0.85
    assert detectable([1.0]) is None


def test_other_seeds_than_those_of_the_baseline_are_not_paired():
    rows = [(name, 16, seed, 50.0 + seed) for name, seeds in (("softmax", 2), ("x", 3)) for seed in range(seeds)]
    summary = summarize(pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy"], orient="row"))
    assert summary.select("accuracy", "gain", "p_value").rows() == [(50.5, None, None), (51.0, None, None)]


def test_a_family_is_a_normalizer_at_all_lengths_and_copies_of_the_baseline_are_not_tested():
    random = np.random.default_rng(0)
    base = random.normal(50, 1, (2, 6))
    of = {"softmax": base, "copy": base, "better": base + random.normal(2, 0.5, base.shape)}
    cells = [(name, n, row) for name, values in of.items() for n, row in zip((64, 256), values.tolist())]
    rows = [(name, n, seed, value) for name, n, row in cells for seed, value in enumerate(row)]
    frame = pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy"], orient="row")
    summary = summarize(frame)
    assert summary["accuracy"].to_list() == pytest.approx([np.mean(row) for *_, row in cells])
    assert summary["interval"].to_list() == pytest.approx([half_width(row) for *_, row in cells])
    assert summary.filter(pl.col("normalizer") != "better")["p_value"].to_list() == [None] * 4
    better = summary.filter(normalizer="better")
    gains = of["better"] - base
    np.testing.assert_allclose(better["gain"], gains.mean(1))
    assert better["gain_interval"].to_list() == pytest.approx([half_width(of_length) for of_length in gains.tolist()])
    alone = [paired_p_value(*pair) for pair in zip(of["better"].tolist(), base.tolist())]
    assert better["p_value"].to_list() == pytest.approx(corrected(alone))
    assert better["p_max_t"].to_list() == pytest.approx(max_t_p_values(gains))
    by_length = summarize(frame, family="n").filter(normalizer="better")
    assert by_length["p_value"].to_list() == pytest.approx(alone)  # one test at each length


def test_an_interval_and_a_paired_test_over_sets_are_corrected_for_every_cell():
    right = {
        ("a", "softmax", 4): np.arange(10) < 9,
        ("a", "ssmax", 4): np.arange(10) == 9,
        ("b", "softmax", 4): np.ones(10, bool),
        ("b", "ssmax", 4): np.arange(10) > 6,
        ("c", "ssmax", 4): np.ones(10, bool),
    }
    first, second, third, fourth, alone = over_sets(right, "softmax").values()
    assert first["low"] == pytest.approx(59.58, abs=0.01)  # Wilson's interval of 9 in 10
    assert first["high"] == pytest.approx(98.21, abs=0.01)
    assert first["p"] is third["p"] is alone["p"] is None
    # Of ssmax alone 1 of 10 sets, whose p is 22 in 1024, and 0 of 7: Holm never puts the larger p below the smaller.
    assert [second["p"], fourth["p"]] == pytest.approx([2 * 2 * 0.5**7] * 2)


def test_answers_that_are_all_wrong_make_no_copy():
    rows = [(name, n, 0, accuracy) for name in ("softmax", "x") for n, accuracy in ((5, 0.0), (16, 0.0))]
    frame = pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy"], orient="row")
    assert copies(frame) == []
    assert copies(frame.with_columns(accuracy=pl.col("n") + 1.0)) == ["x"]


def test_a_copy_within_rounding_is_not_tested():
    rows = [("softmax", 16, seed, 50.0 + seed) for seed in range(6)]
    rows += [("copy", 16, seed, 50.0 + seed + (4 + seed) * 1e-8) for seed in range(6)]
    frame = pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy"], orient="row")
    assert summarize(frame)["p_value"].to_list() == [None, None]
    assert summarize(frame.with_columns(entropy=pl.col("accuracy"), max_weight=1e7 * pl.col("accuracy")))["p_value"][1]
