import hypothesis
import numpy as np
import pytest
import scipy.special
from hypothesis import strategies as st

from softmax_jax import theory

ROWS = st.lists(st.floats(-40, 40), min_size=1, max_size=40)
BETAS = st.floats(0, 8)
ROUNDING = 1e-12


def weights_of(row, beta):
    return scipy.special.softmax(beta * np.array(row))


def entropy_of(weights):
    return scipy.special.entr(weights).sum()


@hypothesis.given(ROWS, BETAS, st.floats(0, 5))
def test_no_row_breaks_the_bounds(row, beta, slack):
    """Whether the spread is measured or merely known not to be exceeded."""
    weights, n, spread = weights_of(row, beta), len(row), np.ptp(row) + slack
    low, high = theory.weight_bounds(n, spread, beta)
    assert low * (1 - ROUNDING) <= weights.min()
    assert weights.max() <= high * (1 + ROUNDING)
    loose = theory.loose_weight_bounds(n, spread, beta)
    assert loose.lower <= low * (1 + ROUNDING)
    assert high <= loose.upper * (1 + ROUNDING)
    least, most = theory.largest_weight_bounds(n, spread, beta)
    assert least * (1 - ROUNDING) <= weights.max() <= most * (1 + ROUNDING)
    lowest, highest = theory.entropy_bounds(n, spread, beta)
    assert lowest - ROUNDING <= entropy_of(weights) <= highest + ROUNDING
    assert lowest >= -np.log(most) - ROUNDING


@hypothesis.given(ROWS, st.floats(0.01, 8))
def test_no_row_breaks_the_bound_from_its_nearest_logits(row, beta):
    upper = theory.largest_weight_from_nearest(*theory.gap_counting(row), beta)
    assert weights_of(row, beta).max() <= upper * (1 + ROUNDING)
    hidden = theory.largest_weight_from_nearest(*theory.gap_counting([*row, -np.inf]), beta)
    assert hidden == pytest.approx(upper)
    assert upper <= theory.largest_weight_bounds(len(row), np.ptp(row), beta).upper


@pytest.mark.parametrize("n", [2, 3, 400])
def test_the_bounds_are_attained(n):
    for spread in 0.0, 1e-9, 0.5, 5.0, 800.0:
        step = spread * np.eye(n)[0]
        low, high = theory.weight_bounds(n, spread)
        np.testing.assert_allclose(weights_of(step, 1).max(), high, rtol=1e-9)
        np.testing.assert_allclose(weights_of(-step, 1).min(), low, rtol=1e-9, atol=1e-300)
        steps = [entropy_of(weights_of(spread * (np.arange(n) < k), 1)) for k in range(1, n)]
        np.testing.assert_allclose(theory.entropy_bounds(n, spread).lower, min(steps), rtol=1e-9, atol=1e-11)
        assert theory.entropy_bounds(n, spread).upper == np.log(n)


def test_the_forced_length_is_the_least_that_forces():
    for threshold, spread, beta in (0.1, 0.0, 1.0), (0.5, 3.0, 1.0), (0.9, 3.0, 2.5), (0.1, 20.0, 0.5):
        n = theory.length_forced_below(threshold, spread, beta)
        assert theory.largest_weight_bounds(n, spread, beta).upper <= threshold * (1 + 1e-9)
        assert theory.largest_weight_bounds(n - 1, spread, beta).upper > threshold * (1 - 1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.weight_bounds(0, 1.0), "n is 0: .* so give 1 or more"),
        (lambda: theory.entropy_bounds(3, np.array([1.0, -2.0])), "spread is -2: it must be at least 0"),
        (lambda: theory.largest_weight_bounds(3, 1.0, float("nan")), "beta is nan: it must be at least 0"),
        (lambda: theory.length_forced_below(1.0, 1.0), "threshold is 1: it must lie between 0 and 1"),
        (lambda: theory.gap_counting([1.0, np.nan]), r"logits is nan: .*hide it by where="),
        (lambda: theory.critical_beta([1.0, np.inf]), r"logits is inf: "),
        (lambda: theory.largest_weight_near_critical(-1.0, 8), "ratio is -1: .*at least 0"),
        (lambda: theory.largest_weight_near_critical(1.0, 1), "n is 1: .*at least 2"),
        (lambda: theory.largest_weight_near_critical(1.0, 2.5), "n is 2.5: .*whole number"),
        (lambda: theory.largest_weight_near_critical(1.0, 8, 9), "count is 9: .*from 2 to n"),
    ],
)
def test_impossible_rows_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_gaps_are_counted_from_the_largest_and_norms_bound_every_spread():
    logits = np.array([[3.0, 1.0, 2.5, -np.inf], [0.0, 4.0, 4.0, 9.0], [1.0, 2.0, 3.0, 4.0]])
    counts, gaps = theory.gap_counting(logits, np.array([[True] * 4, [True, True, True, False], [False] * 4]))
    np.testing.assert_array_equal(counts, [1, 2, 3, 4])
    np.testing.assert_array_equal(gaps, [[0, 0.5, 2, np.inf], [0, 0, 4, np.inf], [np.inf] * 4])
    random = np.random.default_rng(0)
    for _ in range(50):
        query, key, items, y = (random.normal(size=size) for size in ((6, 4), (6, 4), (12, 6), 6))
        bound = theory.spread_from_norms(query, key, np.linalg.norm(y), np.linalg.norm(items, axis=1).max(), 0.5)
        assert np.ptp(items @ key @ (y @ query) / 2) <= bound


@hypothesis.given(ROWS, st.lists(st.booleans(), min_size=40, max_size=40), st.floats(-5, 5), st.floats(0.1, 9))
def test_the_critical_beta_is_the_largest_slope(row, shown, shift, factor):
    shown = shown[: len(row)]
    visible = sorted((logit for logit, is_shown in zip(row, shown) if is_shown), reverse=True)
    with np.errstate(divide="ignore", over="ignore"):
        slopes = [np.log(k) / np.float64(visible[0] - logit) for k, logit in enumerate(visible, 1) if k > 1]
    expected = max(slopes, default=0.0)
    assert theory.critical_beta(row, shown) == pytest.approx(expected)
    assert theory.critical_beta([*visible, -np.inf]) == pytest.approx(expected)
    assert theory.critical_beta(factor * np.array(row), shown) == pytest.approx(expected / factor, rel=1e-6)
    count = int(theory.critical_count(row, shown))
    assert count == 1 if not slopes else slopes[count - 2] == pytest.approx(expected)


def test_ties_and_rows_without_a_choice():
    rows = np.array([[1.0, 1.0, 0.0], [1.0, -np.inf, -np.inf], [-np.inf] * 3])
    np.testing.assert_array_equal(theory.critical_beta(rows), [np.inf, 0, 0])
    np.testing.assert_array_equal(theory.critical_count(rows), [2, 1, 1])
    np.testing.assert_array_equal(theory.critical_count(np.zeros(5)), 5)
    np.testing.assert_array_equal(theory.critical_beta(np.zeros((2, 3, 4))).shape, (2, 3))


DISTINCT = st.lists(st.integers(-4000, 4000), min_size=2, max_size=40, unique=True).map(lambda row: np.array(row) / 100)


@hypothesis.given(DISTINCT, st.floats(0, 6))
def test_no_row_breaks_the_bounds_near_its_critical_beta(row, ratio):
    largest = weights_of(row, ratio * theory.critical_beta(row)).max()
    lower, upper = theory.largest_weight_near_critical(ratio, len(row), theory.critical_count(row))
    assert lower * (1 - 1e-9) <= largest <= upper * (1 + 1e-9)
    assert theory.largest_weight_near_critical(ratio, np.inf).lower <= lower


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0, 1 + 1e-7, 2.0, 7.5, 300.0])
def test_the_bounds_near_the_critical_beta_are_attained_and_summed_for_long_rows(ratio):
    for n in 2, 7, 300:
        lower, upper = theory.largest_weight_near_critical(ratio, n, n)
        logarithmic, crowd = -np.log(np.arange(1.0, n + 1)) / 3, np.where(np.arange(n) > 0, -np.log(n) / 3, 0)
        for row, bound in ((logarithmic, lower), (crowd, upper)):
            assert theory.critical_beta(row) == pytest.approx(3)
            assert weights_of(row, 3 * ratio).max() == pytest.approx(bound)
    for n in (2, 1000, 1001, 300_000):
        summed = np.sum(np.arange(1.0, n + 1)[::-1] ** -ratio)
        np.testing.assert_allclose(theory.largest_weight_near_critical(ratio, n).lower, 1 / summed, rtol=1e-11)
    assert 0 < theory.largest_weight_near_critical(ratio, 1e12).lower <= 1
