import functools

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


MASKS = [(sj.top_k_mask, kept_by_k, 3), (sj.top_p_mask, kept_by_p, 0.7), (sj.min_p_mask, kept_by_min_p, 0.3)]
TOP_K, TOP_P, MIN_P = (jax.jit(lambda z, number, where, mask=mask: mask(z, number, where=where)) for mask, *_ in MASKS)


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
    both = jax.jit(lambda key: (sj.sample(key, weights), sj.sample(key, weights.T, 0)))
    for seed in range(3):
        for places in both(jax.random.key(seed)):
            np.testing.assert_array_equal(places, [1, -1, 2, -1, -1, -1])


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


@pytest.mark.full
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


BOUNDARIES = [
    (sj.min_p_mask, {0.0: 4, 0.24: 4, 0.26: 2, 0.5: 2, 0.51: 1, 1.0: 1}),
    (sj.top_p_mask, {0.5: 1, 0.500001: 2, 0.75: 2, 0.750001: 4, 0.875: 4, 1.0: 4, 1e-30: 1}),
]


@pytest.mark.parametrize(("mask", "kept"), BOUNDARIES)
def test_masks_at_their_boundary(mask, kept):
    z = jnp.log(jnp.array([0.5, 0.25, 0.125, 0.125]))
    found = mask(jnp.tile(z, (len(kept), 1)), jnp.array([*kept])[:, None])  # a number for each row
    np.testing.assert_array_equal(found, np.arange(4) < np.array([*kept.values()])[:, None])


def test_what_hides_is_kept_by_no_mask():
    z = jnp.array([1e4, 1e4 - 500, 1e4, -INF, -2e4])
    np.testing.assert_array_equal(sj.min_p_mask(z, 0.0), [True, True, True, False, False])  # the last is hidden
    np.testing.assert_array_equal(sj.min_p_mask(z, 1.0), [True, False, True, False, False])
    z = jnp.array([0.0, -50.0, -80.0, -INF, -200.0])
    np.testing.assert_array_equal(sj.top_p_mask(z, 1.0), [True, True, True, False, False])


@pytest.mark.full
@pytest.mark.parametrize(("mask", "keep", "number"), MASKS)
def test_masks_of_logits_of_any_size_and_with_anything_behind_the_mask(mask, keep, number):
    z = np.array(
        [[3e38, -3e38, 0.0, 3e38], [-3e38] * 4, [1e4, 1e4 + 8, 1e4 - 50, -1e4], [-INF] * 4, [1.0, -INF, 1.0, -INF]]
    )
    where = np.ones(z.shape, bool)
    kept = mask(jnp.asarray(z, jnp.float32), number, where=jnp.asarray(where))
    np.testing.assert_array_equal(kept, by_row(keep, z, where & (z > -INF), number))
    for junk in NAN, INF, -INF, 3e38:  # one row of WHERE hides all
        kept = mask(jnp.asarray(np.where(WHERE, LOGITS, junk), jnp.float32), number, where=jnp.asarray(WHERE))
        np.testing.assert_array_equal(kept, by_row(keep, LOGITS, WHERE, number))


# Draws


def chi_square(counts, probabilities):
    """The chance of counts at least as far from their expectation; probabilities of 0 must have no count."""
    possible = probabilities > 0
    assert not counts[~possible].any()
    expected = counts.sum() * probabilities[possible] / probabilities.sum()
    return scipy.stats.chisquare(counts[possible], expected).pvalue


@pytest.mark.full
@every_dtype
def test_sample_draws_in_proportion_to_the_weights_and_each_row_by_itself(dtype):
    with jax.enable_x64(dtype == "float64"):
        weights = jnp.asarray([[0.1, 0.0, 0.5], [0.25, 1.0, 0.02]], dtype)
        keys = jax.random.split(jax.random.key(0), DRAWS)
        drawn = jax.jit(jax.vmap(lambda key: sj.sample(key, weights)))(keys)
    joint = np.bincount(3 * np.asarray(drawn[:, 0]) + np.asarray(drawn[:, 1]), minlength=9)
    assert chi_square(joint, np.outer(*np.asarray(weights, np.float64)).ravel()) > 0.01


# Gumbel-softmax


@pytest.mark.full
@pytest.mark.parametrize(("hard", "offset", "temperature"), [(False, 0.0, 0.1), (True, 2.0**22, 2.0)])
def test_the_largest_entry_of_gumbel_softmax_is_a_draw_from_softmax(hard, offset, temperature):
    z = np.array([0.5, -1.0, NAN, 2.0, 1.5, -INF])
    where = jnp.array([True, True, False, True, True, True])

    def largest(key):
        logits = jnp.asarray(z + offset, jnp.float32)
        return sj.gumbel_softmax(key, logits, where=where, temperature=temperature, hard=hard).argmax()

    counts = np.bincount(jax.vmap(largest)(jax.random.split(jax.random.key(0), DRAWS)), minlength=6)
    assert chi_square(counts, references.softmax(np.where(where, z, -INF))) > 0.01


@pytest.mark.full
@every_dtype
def test_soft_is_softmax_of_perturbed_logits_and_hard_its_one_hot_with_the_same_gradient(dtype):
    key, direction = jax.random.key(4), RNG.normal(size=(40, 9))
    with jax.enable_x64(dtype == "float64"):
        z, where, direction = jnp.asarray(LOGITS, dtype), jnp.asarray(WHERE), jnp.asarray(direction, dtype)
        noise = jax.random.gumbel(key, z.shape, jnp.float64 if dtype == "float64" else jnp.float32)

        @functools.partial(jax.jit, static_argnums=1)
        def weigh(z, hard):
            weights, pull = jax.vjp(lambda z: sj.gumbel_softmax(key, z, where=where, temperature=0.7, hard=hard), z)
            return weights, pull(direction)[0]

        (soft, gradient), (hard, hard_gradient) = (weigh(z, hard) for hard in (False, True))
    np.testing.assert_array_equal(hard_gradient, gradient)
    assert hard.dtype == soft.dtype == dtype
    noisy = (LOGITS + np.asarray(noise, np.float64)) / 0.7
    rtol = {"float32": 1e-5, "bfloat16": 2.0**-8, "float64": 1e-12}[dtype]
    hard, soft = np.asarray(hard, np.float64), np.asarray(soft, np.float64)
    for row, visible, weights in zip(noisy, WHERE, soft):
        wanted = references.softmax(row[visible]) if visible.any() else []
        np.testing.assert_allclose(weights[visible], wanted, rtol=rtol)
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
    for value in hard, 1e-6 * hard:
        through, pull = jax.vjp(sj.straight_through, value, soft)
        np.testing.assert_array_equal(through, value)
        gradient_hard, gradient_soft = pull(soft[::-1])
        assert not gradient_hard.any()
        np.testing.assert_allclose(gradient_soft, soft[::-1], rtol=1e-6)
