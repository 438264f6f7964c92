import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from softmax_jax import theory

ROWS = st.lists(st.floats(-40, 40), min_size=1, max_size=40)
BETAS = st.floats(0, 8)
ROUNDING = 1e-12


def weights_of(row, beta):
    z = beta * np.array(row)
    exponentials = np.exp(z - z.max())
    return exponentials / exponentials.sum()


def entropy_of(weights):
    return -np.sum(weights * np.log(np.where(weights > 0, weights, 1)))


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


@hypothesis.given(ROWS, BETAS, st.sets(st.integers(1, 40), min_size=1))
def test_no_row_breaks_the_bound_from_its_nearest_logits(row, beta, some):
    counts = sorted({min(k, len(row)) for k in some} | {len(row)})
    ordered = np.sort(row)[::-1]
    upper = theory.largest_weight_from_nearest(counts, ordered[0] - ordered[np.array(counts) - 1], beta)
    assert weights_of(row, beta).max() <= upper * (1 + ROUNDING)
    assert upper <= theory.largest_weight_bounds(len(row), np.ptp(row), beta).upper


@pytest.mark.parametrize("n", [2, 3, 17, 400])
@pytest.mark.parametrize("spread", [0.0, 1e-9, 0.01, 0.5, 2.0, 5.0, 30.0, 800.0])
def test_the_bounds_are_attained(n, spread):
    one_above, one_below = np.zeros(n), np.zeros(n)
    one_above[0], one_below[0] = spread, -spread
    low, high = theory.weight_bounds(n, spread)
    np.testing.assert_allclose(weights_of(one_above, 1).max(), high, rtol=1e-9)
    np.testing.assert_allclose(weights_of(one_below, 1).min(), low, rtol=1e-9, atol=1e-300)
    steps = [entropy_of(weights_of(spread * (np.arange(n) < k), 1)) for k in range(1, n)]
    np.testing.assert_allclose(theory.entropy_bounds(n, spread).lower, min(steps), rtol=1e-9, atol=1e-11)
    assert theory.entropy_bounds(n, spread).upper == np.log(n)


def test_a_row_of_one_has_one_weight_and_no_entropy():
    assert theory.weight_bounds(1, 3.0) == (1, 1)
    assert theory.entropy_bounds(1, 3.0) == (0, 0)


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("spread", "beta"), [(0.0, 1.0), (3.0, 1.0), (3.0, 2.5), (20.0, 0.5)])
def test_the_forced_length_is_the_least_that_forces(threshold, spread, beta):
    n = theory.length_forced_below(threshold, spread, beta)
    assert theory.largest_weight_bounds(n, spread, beta).upper <= threshold * (1 + 1e-9)
    assert theory.largest_weight_bounds(n - 1, spread, beta).upper > threshold * (1 - 1e-9)


def test_a_length_beyond_all_numbers_is_infinite():
    assert theory.length_forced_below(0.5, 1e4) == np.inf


def test_bounds_broadcast():
    lower, upper = theory.entropy_bounds(np.array([[2], [9]]), np.array([0.1, 1.0, 2.0]))
    assert lower.shape == (2, 3)
    assert upper.shape == (2, 1)


def test_norms_bound_every_spread():
    random = np.random.default_rng(0)
    for _ in range(50):
        query, key = random.normal(size=(2, 6, 4))
        y, items = random.normal(size=6), random.normal(size=(12, 6))
        logits = items @ key @ (y @ query) / 2
        bound = theory.spread_from_norms(query, key, np.linalg.norm(y), np.linalg.norm(items, axis=1).max(), 0.5)
        assert np.ptp(logits) <= bound


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.weight_bounds(0, 1.0), "n is 0: a row must have at least 1 logit"),
        (lambda: theory.entropy_bounds(3, np.array([1.0, -2.0])), "spread is -2: it must be at least 0"),
        (lambda: theory.largest_weight_bounds(3, 1.0, float("nan")), "beta is nan: it must be at least 0"),
        (lambda: theory.length_forced_below(1.0, 1.0), "threshold is 1: it must lie between 0 and 1"),
    ],
)
def test_impossible_rows_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
