import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import softmax_jax as sj
from tests.library.laws import references
from tests.tiers import full_except

INF, NAN = float("inf"), float("nan")
RNG = np.random.default_rng(0)
# Multiples of 1/2 in a narrow range: many ties, and no rounding in half precision.
LOGITS, WHERE = RNG.integers(-4, 4, (40, 9)) / 2, RNG.random((40, 9)) < 0.7
WHERE[3] = False
DRAWS = 20_000

every_dtype = pytest.mark.parametrize("dtype", full_except(["float32", "bfloat16", "float64"], "float32"))
every_mask = pytest.mark.parametrize(
    "mask",
    [
        lambda z, where: sj.top_k_mask(z, 3, -1, where),
        lambda z, where: sj.top_p_mask(z, 0.7, -1, where),
        lambda z, where: sj.min_p_mask(z, 0.3, -1, where),
    ],
)


TOP_K = jax.jit(lambda z, k, where: sj.top_k_mask(z, k, where=where))
TOP_P = jax.jit(lambda z, p, where: sj.top_p_mask(z, p, where=where))
MIN_P = jax.jit(lambda z, p, where: sj.min_p_mask(z, p, where=where))


def kept_by_k(row, k):
    """Entries with fewer than k larger ones."""
    return np.array([(row > z).sum() < k for z in row], bool)


def kept_by_p(row, p):
    """Entries with less than p in larger ones, in float64."""
    weights = references.softmax(row)
    return np.array([weights[row > z].sum() < p for z in row], bool)


def kept_by_min_p(row, p):
    """Entries with at least p of the largest weight, in float64."""
    weights = references.softmax(row)
    return weights >= p * weights.max()


def by_row(keep, logits, where, number):
    kept = np.zeros(where.shape, bool)
    for row, visible, out in zip(logits, where, kept):
        if visible.any():
            out[visible] = keep(row[visible], number)
    return kept


def test_rows_without_a_choice():
    weights = jnp.array(
        [[0.0, 1e-30, 0.0], [0.0] * 3, [-1.0, 0.0, 2.0], [-1.0, -2.0, 0.0], [NAN, 0.5, 0.5], [INF, 0, 1]]
    )
    for seed in range(3):
        np.testing.assert_array_equal(sj.sample(jax.random.key(seed), weights), [1, -1, 2, -1, -1, -1])
        np.testing.assert_array_equal(sj.sample(jax.random.key(seed), weights.T, 0), [1, -1, 2, -1, -1, -1])


# Masks


@every_dtype
def test_masks_equal_their_definitions(dtype):
    with jax.enable_x64(dtype == "float64"):
        z, where = jnp.asarray(LOGITS, dtype), jnp.asarray(WHERE)
        by_k = [(k, sj.top_k_mask(z, k, where=where)) for k in (1, 2, 3, 8, 9, 100)]
        # A number is traced, as it is where it may change: all in one program.
        by_p = [(p, TOP_P(z, p, where)) for p in (1e-9, 0.1, 0.5, 0.9, 0.999, 1.0)]
        by_min_p = [(p, MIN_P(z, p, where)) for p in (0.0, 1e-9, 0.1, 0.5, 0.9, 1.0)]
        np.testing.assert_array_equal(sj.top_p_mask(z.T, 0.5, 0, where.T), TOP_P(z, 0.5, where).T)
    for keep, kept in (kept_by_k, by_k), (kept_by_p, by_p), (kept_by_min_p, by_min_p):
        for number, mask in kept:
            np.testing.assert_array_equal(mask, by_row(keep, LOGITS, WHERE, number), err_msg=str(number))


def test_each_row_has_a_number_of_its_own():
    """Traced or known, of any whole type, along any axis, under vmap: as one row at a time."""
    z, where = jnp.asarray(LOGITS[:6], jnp.float32), jnp.asarray(WHERE[:6])
    ks, ps = np.array([1, 2, 3, 5, 9, 2**31 - 1]), np.array([0.0, 0.01, 0.1, 0.5, 0.9, 1.0], np.float32)
    by_k = np.stack([by_row(kept_by_k, LOGITS[i : i + 1], WHERE[i : i + 1], k)[0] for i, k in enumerate(ks)])
    by_p = np.stack([by_row(kept_by_min_p, LOGITS[i : i + 1], WHERE[i : i + 1], p)[0] for i, p in enumerate(ps)])
    np.testing.assert_array_equal(TOP_K(z, jnp.asarray(ks, jnp.int32)[:, None], where), by_k)
    np.testing.assert_array_equal(MIN_P(z, jnp.asarray(ps)[:, None], where), by_p)
    for k in ks[:, None], (ks + 2**40 * (ks > 100))[:, None], ks.astype(np.uint32)[:, None]:
        np.testing.assert_array_equal(sj.top_k_mask(z, k, where=where), by_k)
    np.testing.assert_array_equal(sj.top_k_mask(z.T, ks, 0, where.T), by_k.T)
    mapped = jax.vmap(lambda z, k, p, where: (sj.top_k_mask(z, k, 0, where), sj.min_p_mask(z, p, 0, where)))
    for kept, wanted in zip(mapped(z, jnp.asarray(ks, jnp.int32), jnp.asarray(ps), where), (by_k, by_p)):
        np.testing.assert_array_equal(kept, wanted)


def test_a_k_below_1_that_cannot_be_read_counts_as_1():
    z = jnp.array([[1.0, 2.0], [1.0, 2.0], [2.0, 2.0]])
    kept = TOP_K(z, jnp.array([[0], [-1], [1]]), jnp.ones((3, 2), bool))
    np.testing.assert_array_equal(kept, [[False, True], [False, True], [True, True]])


def test_min_p_at_its_boundary():
    z = jnp.log(jnp.array([0.5, 0.25, 0.125, 0.125]))
    wanted = {0.0: 4, 0.24: 4, 0.26: 2, 0.5: 2, 0.51: 1, 1.0: 1}
    kept = sj.min_p_mask(jnp.tile(z, (len(wanted), 1)), jnp.array([*wanted])[:, None])
    np.testing.assert_array_equal(kept, np.arange(4) < np.array([*wanted.values()])[:, None])
    z = jnp.array([1e4, 1e4 - 500, 1e4, -INF, -2e4])
    np.testing.assert_array_equal(sj.min_p_mask(z, 0.0), [True, True, True, False, False])  # the last is hidden
    np.testing.assert_array_equal(sj.min_p_mask(z, 1.0), [True, False, True, False, False])


def test_top_p_at_its_boundary():
    z = jnp.log(jnp.array([0.5, 0.25, 0.125, 0.125]))
    wanted = {0.5: 1, 0.500001: 2, 0.75: 2, 0.750001: 4, 0.875: 4, 1.0: 4, 1e-30: 1}
    kept = sj.top_p_mask(jnp.tile(z, (len(wanted), 1)), jnp.array([*wanted])[:, None])  # a number for each row
    np.testing.assert_array_equal(kept, np.arange(4) < np.array([*wanted.values()])[:, None])
    z = jnp.array([0.0, -50.0, -80.0, -INF, -200.0])
    np.testing.assert_array_equal(sj.top_p_mask(z, 1.0), [True, True, True, False, False])


@pytest.mark.full
@every_mask
@pytest.mark.parametrize("junk", [NAN, INF, -INF, 3e38])
def test_nothing_behind_the_mask_matters(mask, junk):
    z, where = jnp.asarray(LOGITS, jnp.float32), jnp.asarray(WHERE)
    np.testing.assert_array_equal(mask(jnp.where(where, z, junk), where), mask(z, where))
    assert not mask(z, where)[~where].any()


@pytest.mark.full
@every_mask
def test_empty_rows_and_infinite_logits_keep_nothing(mask):
    z = jnp.array([[-INF, -INF, -INF], [NAN, INF, 0.0], [1.0, -INF, 1.0]])
    where = jnp.array([[True] * 3, [False] * 3, [True] * 3])
    np.testing.assert_array_equal(mask(z, where), [[False] * 3, [False] * 3, [True, False, True]])


@pytest.mark.full
@pytest.mark.parametrize("row", [[3e38, -3e38, 0.0, 3e38], [-3e38] * 4, [1e4, 1e4 + 8, 1e4 - 50, -1e4]], ids=str)
def test_logits_of_any_size(row):
    np.testing.assert_array_equal(sj.top_k_mask(jnp.array(row), 2), kept_by_k(np.array(row), 2))
    np.testing.assert_array_equal(sj.top_p_mask(jnp.array(row), 0.7), kept_by_p(np.array(row), 0.7))
    np.testing.assert_array_equal(sj.min_p_mask(jnp.array(row), 0.3), kept_by_min_p(np.array(row), 0.3))


# Draws


def chi_square(counts, probabilities):
    """The chance of counts at least as far from their expectation; probabilities of 0 must have no count."""
    possible = probabilities > 0
    assert not counts[~possible].any()
    expected = counts.sum() * probabilities[possible] / probabilities.sum()
    return scipy.stats.chisquare(counts[possible], expected).pvalue


@pytest.mark.full
@every_dtype
def test_sample_draws_in_proportion_to_the_weights(dtype):
    with jax.enable_x64(dtype == "float64"):
        weights = jnp.asarray([0.1, 0.0, 0.5, 0.25, 1.0, 0.0, 0.02], dtype)
        keys = jax.random.split(jax.random.key(0), DRAWS)
        drawn = jax.jit(jax.vmap(lambda key: sj.sample(key, weights)))(keys)
    counts = np.bincount(drawn, minlength=7)
    assert chi_square(counts, np.asarray(weights, np.float64)) > 0.01


@pytest.mark.full
def test_each_row_is_drawn_by_itself():
    weights = jnp.array([[0.7, 0.3], [0.2, 0.8]])
    drawn = jax.vmap(lambda key: sj.sample(key, weights))(jax.random.split(jax.random.key(1), DRAWS))
    joint = np.bincount(2 * np.asarray(drawn[:, 0]) + np.asarray(drawn[:, 1]), minlength=4)
    assert chi_square(joint, np.outer([0.7, 0.3], [0.2, 0.8]).ravel()) > 0.01


# Gumbel-softmax


@pytest.mark.full
@pytest.mark.parametrize(("hard", "offset", "temperature"), [(False, 0.0, 0.1), (True, 2.0**22, 2.0)])
def test_the_largest_entry_of_gumbel_softmax_is_a_draw_from_softmax(hard, offset, temperature):
    z = np.array([0.5, -1.0, NAN, 2.0, 1.5, -INF])
    where = jnp.array([True, True, False, True, True, True])

    def largest(key):
        weights = sj.gumbel_softmax(
            key, jnp.asarray(z + offset, jnp.float32), where=where, temperature=temperature, hard=hard
        )
        return weights.argmax()

    counts = np.bincount(jax.vmap(largest)(jax.random.split(jax.random.key(0), DRAWS)), minlength=6)
    assert chi_square(counts, references.softmax(np.where(where, z, -INF))) > 0.01


@pytest.mark.full
@every_dtype
def test_gumbel_softmax_is_softmax_of_perturbed_logits(dtype):
    key, z = jax.random.key(3), RNG.normal(size=(4, 7))
    with jax.enable_x64(dtype == "float64"):
        z = jnp.asarray(z, dtype)
        noise = jax.random.gumbel(key, z.shape, jnp.float64 if dtype == "float64" else jnp.float32)
        weights = sj.gumbel_softmax(key, z, temperature=0.7)
    assert weights.dtype == dtype
    noisy = (np.asarray(z, np.float64) + np.asarray(noise, np.float64)) / 0.7
    rtol = {"float32": 1e-5, "bfloat16": 2.0**-8, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(np.asarray(weights, np.float64), [references.softmax(row) for row in noisy], rtol=rtol)


@pytest.mark.full
@every_dtype
def test_hard_is_one_hot_and_has_the_gradient_of_soft(dtype):
    key, direction = jax.random.key(4), RNG.normal(size=(40, 9))
    with jax.enable_x64(dtype == "float64"):
        z, where, direction = jnp.asarray(LOGITS, dtype), jnp.asarray(WHERE), jnp.asarray(direction, dtype)
        (soft, pull_soft), (hard, pull_hard) = (
            jax.vjp(lambda z, hard=hard: sj.gumbel_softmax(key, z, where=where, temperature=0.7, hard=hard), z)
            for hard in (False, True)
        )
        np.testing.assert_array_equal(pull_hard(direction)[0], pull_soft(direction)[0])
    assert hard.dtype == dtype
    hard, soft = np.asarray(hard, np.float64), np.asarray(soft, np.float64)
    np.testing.assert_array_equal(np.sort(hard)[:, :-1], 0)
    np.testing.assert_array_equal(hard.max(-1), WHERE.any(-1))
    np.testing.assert_array_equal((hard * soft).max(-1), soft.max(-1))


@pytest.mark.full
@pytest.mark.parametrize("hard", [False, True])
def test_gumbel_softmax_of_masked_empty_and_huge_rows(hard):
    z = jnp.array([[NAN, 0.0, 1.0], [-INF] * 3, [INF, NAN, 0.0], [3e38, -3e38, 3e38], [-3e38] * 3])
    where = jnp.array([[False, True, True], [True] * 3, [False] * 3, [True] * 3, [True] * 3])
    weights, pull = jax.vjp(lambda z: sj.gumbel_softmax(jax.random.key(6), z, where=where, hard=hard), z)
    np.testing.assert_allclose(weights.sum(-1), [1, 0, 0, 1, 1], rtol=1e-6)
    assert weights[0, 0] == weights[3, 1] == 0
    (gradient,) = pull(jnp.asarray(RNG.normal(size=(5, 3)), jnp.float32))
    assert np.isfinite(gradient).all()
    assert not gradient[1:3].any()
    assert gradient[0, 0] == 0


@pytest.mark.full
def test_straight_through_is_exact_in_value_and_soft_in_gradient():
    soft = jnp.asarray(RNG.dirichlet(np.ones(9), size=200), jnp.float32)
    hard = sj.hardmax(soft)
    gradient_hard, gradient_soft = jax.grad(
        lambda hard, soft: jnp.sum(sj.straight_through(hard, soft) * soft[0][None]), (0, 1)
    )(hard, soft)
    for value in hard, 1e-6 * hard:
        np.testing.assert_array_equal(sj.straight_through(value, soft), value)
    assert not gradient_hard.any()
    np.testing.assert_allclose(gradient_soft[1:], np.broadcast_to(soft[0], (199, 9)), rtol=1e-6)
