import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.normalizers.rank_search import kth_largest
from softmax_jax.normalizers.threshold_families import log1p
from tests.library.laws import references
from tests.tiers import full_except

MAPS = {
    "sparsemax": (sj.sparsemax, references.sparsemax),
    "entmax15": (sj.entmax15, references.entmax15),
    "entmax 1.05": (functools.partial(sj.entmax, alpha=1.05), functools.partial(references.entmax, alpha=1.05)),
    "entmax 1.25": (functools.partial(sj.entmax, alpha=1.25), functools.partial(references.entmax, alpha=1.25)),
    "entmax 2": (functools.partial(sj.entmax, alpha=2.0), references.sparsemax),
    "stieltjes 0.5": (functools.partial(sj.stieltjes, q=0.5), functools.partial(references.stieltjes, q=0.5)),
    "stieltjes 4": (sj.stieltjes, functools.partial(references.stieltjes, q=4.0)),
    "top 8": (sj.top_k_softmax, functools.partial(references.top_k, k=8)),
}
SHARED = {name: (jax.jit(weigh), reference) for name, (weigh, reference) in MAPS.items()}
every_map = pytest.mark.parametrize("name", full_except(MAPS, "entmax15", "top 8"))
# The laws have the gradients of the others, at their default numbers.
other_numbers = pytest.mark.parametrize("name", ["entmax 1.05", "entmax 2", "stieltjes 0.5"])


def differences(f, x, h=1e-6):
    """Central differences of f in each entry of x, along the last axis."""
    moved = jax.vmap(lambda step: f(x + step) - f(x - step))(h * jnp.eye(x.size))
    return jnp.moveaxis(moved, 0, -1) / (2 * h)


def assert_exact(name, logits):
    """Weights are those of the formula in float64."""
    weigh, reference = SHARED[name]
    weights = np.asarray(weigh(jnp.asarray(logits)), np.float64)
    np.testing.assert_allclose(weights, [reference(row) for row in logits.astype(np.float64)], atol=5e-7, rtol=0)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)


@every_map
@pytest.mark.parametrize("n", full_except([1, 2, 31, 65536], 31))
def test_weights_are_those_of_float64(name, n):
    rows = np.random.default_rng(n).normal(size=(2, n))
    assert_exact(name, np.concatenate([spread * rows for spread in (0.01, 1.0, 10.0)]).astype(np.float32))


@pytest.mark.full
@every_map
def test_entries_that_hide_behind_equal_ones_count(name):
    # The start sees one in 16 of them, so that its slope leads beyond the solution, far in all but the first row.
    for spread in 0.01, 1.0, 30.0:
        some = spread * np.random.default_rng(3).normal(size=(4, 64))
        some[2:] = np.round(some[2:] / spread) * spread
        some[3, 0] += 5 * spread
        logits = np.tile(some, 16).astype(np.float32)
        logits[0, 64:] -= np.float32(spread)
        assert_exact(name, logits)


@pytest.mark.full
@pytest.mark.parametrize(
    ("weigh", "numbers", "atol"),
    [
        (lambda z, alpha, where: sj.entmax(z, where=where, alpha=alpha), [1.0001, 1.05, 1.5, 2.0, 2.5], 1e-7),
        (lambda z, q, where: sj.stieltjes(z, where=where, q=q), [0.5, 1.0, 4.0], 1e-8),
    ],
    ids=["entmax", "stieltjes"],
)
def test_gradients_in_logits_and_numbers_equal_central_differences(weigh, numbers, atol):
    where = np.arange(20) % 5 != 0
    points = np.array([[*np.random.default_rng(1).normal(size=20), number] for number in numbers])

    def weights(point):
        return weigh(point[:-1], point[-1:], jnp.asarray(where))

    with jax.enable_x64(True):
        three = jax.jit(jax.vmap(lambda x: (jax.jacfwd(weights)(x), jax.jacrev(weights)(x), differences(weights, x))))
        forward, reverse, moved = (np.asarray(one) for one in three(jnp.asarray(points)))
    np.testing.assert_allclose(forward, reverse, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(forward[..., :-1], moved[..., :-1], atol=2e-8)
    np.testing.assert_allclose(forward[..., -1], moved[..., -1], atol=atol)
    assert not forward[..., :-1][..., ~where].any()
    single = jax.jit(jax.vmap(jax.jacfwd(weights)))(jnp.asarray(points, jnp.float32))
    np.testing.assert_allclose(single[..., -1], forward[..., -1], atol=5e-6)


@pytest.mark.full
def test_entmax_from_softmax_to_hardmax():
    logits = 3 * np.random.default_rng(0).normal(size=(4, 300))
    alphas, wanted = jnp.array([1.0, 1 + 1e-6, 40.0])[:, None, None], [references.softmax] * 2 + [references.hardmax]
    found = sj.entmax(jnp.tile(jnp.asarray(logits, jnp.float32), (3, 1, 1)), alpha=alphas)
    for weights, reference in zip(found, wanted):
        np.testing.assert_allclose(weights, [reference(row) for row in logits], atol=2e-6)
    p = references.softmax(row := logits[0, :30] / 3)
    second = -p * np.log(p) ** 2 / 2
    with jax.enable_x64(True):
        found = sj.entmax(jnp.asarray(logits[:3]), alpha=jnp.array([2.5, 3.0, 4.0])[:, None])
        gradient = jax.jacfwd(lambda alpha: sj.entmax(jnp.asarray(row), alpha=alpha))(jnp.array(1.0))
    wanted = [references.entmax(row, alpha) for row, alpha in zip(logits, (2.5, 3.0, 4.0))]
    np.testing.assert_allclose(found, wanted, atol=1e-9)
    np.testing.assert_allclose(gradient, second - p * second.sum(), atol=1e-12)
    # Sixteen equal logits have the weight 1/16 and, at alpha = 40, the slope 16^38, which float32 does not hold.
    gradient = jax.grad(lambda z: sj.entmax(z, alpha=40.0)[0])(jnp.zeros(16))
    assert 0 < gradient[0] < jnp.inf
    np.testing.assert_allclose(gradient[1:], -gradient[0] / 15, rtol=1e-5)


@pytest.mark.full
def test_one_alpha_per_head():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4, 50)), jnp.float32)
    alphas, cotangent = jnp.array([1.1, 1.5, 2.0]), jnp.cos(37 * logits)

    @jax.jit
    def weights_and_gradient(logits, alpha, cotangent):
        weights, pull = jax.vjp(lambda a: sj.entmax(logits, (-2, -1), alpha=a), alpha)
        return weights, pull(cotangent)[0]

    together, gradients = weights_and_gradient(logits, alphas[:, None, None], cotangent)
    for head, alpha in enumerate(alphas):
        alone, gradient = weights_and_gradient(logits[:, head], alpha, cotangent[:, head])
        np.testing.assert_allclose(together[:, head], alone, atol=1e-7)
        np.testing.assert_allclose(gradients[head, 0, 0], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.full
def test_top_k_keeps_every_tie_for_the_last_place():
    logits = jnp.array([3.0, 1.0, 2.0, 2.0, 0.0, -0.0])
    for k, kept in {1: 1, 2: 3, 3: 3, 5: 6, 6: 6, 100: 6}.items():
        for number in k, jnp.array(k):
            weights = sj.top_k_softmax(logits, k=number)
            assert jnp.sum(weights > 0) == kept
            np.testing.assert_allclose(weights, references.top_k(np.asarray(logits), k), atol=1e-7)


@pytest.mark.full
@pytest.mark.parametrize("n", [1, 31, 32, 33, 1000])
def test_the_kth_largest_is_reached_by_the_entries_that_sorting_puts_first(n):
    rows = np.random.default_rng(n).normal(size=(5, n)).astype(np.float32)
    rows[1] = np.round(rows[1])
    rows[2, rows[2] < 1] = -np.inf
    rows[3] *= np.float32(7e37)
    rows[4] = -np.inf
    ordered, compiled = -np.sort(-rows), jax.jit(kth_largest)
    for k in 1, 2, 8, 40, 5000:
        least = ordered[:, k - 1, None] if k <= n else -np.inf
        found = compiled(jnp.asarray(rows), jnp.full((1, 1), k, jnp.int32))
        np.testing.assert_array_equal(rows >= found, rows >= least)


def test_neighbouring_floats_are_told_apart():
    below = np.nextafter(np.float32(1), np.float32(0))
    row = jnp.array([below, 1.0, np.nextafter(below, np.float32(0)), -1.0])
    least = kth_largest(jnp.tile(row, (4, 1)), jnp.arange(1, 5)[:, None])
    np.testing.assert_array_equal((row[None] >= least).sum(1), [1, 2, 3, 4])


@pytest.mark.full
@other_numbers
def test_finite_for_any_size_with_ties_and_gradients(name):
    logits = jnp.asarray(np.array([[1e-38], [1], [3e38]]) * np.resize([1, -1, 1, 0], (3, 400)), jnp.float32)
    weights, pull = jax.vjp(SHARED[name][0], logits)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    assert np.isfinite(pull(jnp.cos(jnp.arange(1200.0)).reshape(3, 400))[0]).all()


@pytest.mark.full
@pytest.mark.parametrize(("dtype", "wider"), [("float32", np.float64), ("float64", np.longdouble)])
def test_log1p_keeps_its_digits(dtype, wider):
    sizes = np.exp(np.linspace(-45, 0, 20_000))
    x = np.concatenate([-sizes, np.linspace(-1, 1, 20_001)[1:], sizes, 1 / sizes]).astype(dtype)
    x = x[x > -1]
    with jax.enable_x64(dtype == "float64"):
        found = np.asarray(jax.jit(log1p)(jnp.asarray(x)), wider)
        ends = np.asarray(log1p(jnp.asarray([-1, 0, np.inf, np.nan], dtype)))
    exact = np.log1p(x.astype(wider))
    ulp = np.abs(found - exact) / np.spacing(np.abs(exact).astype(dtype)).astype(wider)
    assert ulp.max() < 3
    np.testing.assert_array_equal(ends, [-np.inf, 0, np.inf, np.nan])
