"""Each criterion on rows whose best inverse temperature is known, and the β of the largest weight of the true item."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from softmax_jax import temperature
from softmax_jax.temperature import CRITERIA, Rows, target_beta
from tests.library.test_temperature import ITEMS, drawn_rows, entropy64, softmax64

AT = np.array([1.0, 1.5, 2.0, 2.5])


def truth(entropy):
    """β* from 1.3 at half a nat to 3 at three nats."""
    return 1.3 + 0.7 * (entropy - 0.5)


@pytest.fixture(scope="module")
def rows():
    """Rows whose answers are drawn from softmax(β*(H) z): no other temperature has a lower expected loss."""
    return drawn_rows(0, beta=truth, classes=8)


BIAS = {"inputs": (0.3, 0.5), "bins": (0.95, 1.05), "accuracy": (0.2, 1.0), "target": (0.0, 1.15)}
"""What each criterion gives of the β that is known, at least and at most: what `points` says of them."""


@pytest.mark.full
@pytest.mark.parametrize("criterion", CRITERIA)
def test_each_criterion_finds_what_is_known_within_its_bias(rows, criterion):
    found = temperature.fit_polynomial({ITEMS: rows}, criterion, degree=3).curve(AT) / truth(AT)
    low, high = BIAS[criterion]
    assert ((low <= found) & (found <= high)).all()


@pytest.mark.full
def test_rows_whose_true_item_is_best_at_a_known_temperature_give_it_back():
    """The logit of the true item is moved until it is the mean of the row under its own β*(H)."""
    z = np.random.default_rng(2).normal(size=(2, 400, ITEMS)) * np.linspace(0.5, 3, 400)[:, None]
    for _ in range(200):
        z[..., 0] = (softmax64(truth(entropy64(z))[..., None] * z) * z).sum(-1)
    best = target_beta(jnp.asarray(z.reshape(-1, ITEMS), jnp.float32), jnp.zeros(800, int)).reshape(2, 400)
    nothing = np.zeros((2, 400), np.float32)
    grids = np.zeros((2, 400, temperature.GRID_SIZE), np.float32)
    rows = Rows(entropy64(z), 1 + nothing, nothing > 0, nothing, grids, grids, np.asarray(best))
    found = temperature.fit({ITEMS: rows}, {ITEMS: rows}, seeds=[0, 1], criterion="target", degree=2)
    np.testing.assert_allclose(found.curve(AT), truth(AT), rtol=1e-3)
    assert found.used == {str(ITEMS): pytest.approx(100 * (rows.entropy > temperature.THRESHOLD).mean())}


def solved(z, target):
    """The root in float64, by SciPy, for one row; NaN where there is none within the range."""

    def off(beta):
        return softmax64(beta * z) @ z - z[target]

    low, high = 1 / temperature.THETA_RANGE[1], 1 / temperature.THETA_RANGE[0]
    return scipy.optimize.brentq(off, low, high) if off(low) < 0 < off(high) else np.nan


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_target_beta_is_the_root(dtype):
    random = np.random.default_rng(1)
    z = jnp.asarray(random.normal(size=(200, 20)) * random.uniform(0.1, 5, (200, 1)), dtype)
    target = random.integers(0, 20, 200)
    found = np.asarray(jax.jit(target_beta)(z, jnp.asarray(target)))
    expected = np.array([solved(row, place) for row, place in zip(np.asarray(z, np.float64), target)])
    assert 0.2 < np.isnan(expected).mean() < 0.8
    np.testing.assert_allclose(found, expected, rtol=2e-5)


@pytest.mark.full
def test_masked_items_do_not_move_target_beta_and_a_row_without_a_maximum_has_none():
    z = jnp.array([[2.0, 1.2, 0.3, jnp.nan], [jnp.inf, 1.2, 0.3, 2.0]])
    found = target_beta(z, jnp.array([1, 1]), where=jnp.array([[True] * 3 + [False], [False] + [True] * 3]))
    np.testing.assert_allclose(found, target_beta(jnp.array([[2.0, 1.2, 0.3]]), jnp.array([1])).repeat(2), rtol=1e-6)
    # The true item, the second, is the largest, shares that, or is below the mean.
    none = jnp.array([[1.0, 2.0, 0.0], [2.0, 2.0, 0.0], [9.0, -1.0, 8.0], [1.0, 1.0, 1.0]])
    assert np.isnan(target_beta(none, jnp.ones(4, int))).all()
