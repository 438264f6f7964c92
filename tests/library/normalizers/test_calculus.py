import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import softmax_jax as sj
from tests.library.laws import references

INF, NAN = float("inf"), float("nan")
RNG = np.random.default_rng(0)
LOGITS, WHERE = 3 * RNG.normal(size=(5, 9)), RNG.random((5, 9)) < 0.7
WHERE[3] = False
VECTORS = RNG.normal(size=(5, 9))
LABELS = np.array([np.flatnonzero(row)[-1] if row.any() else 4 for row in WHERE], np.int32)
TARGETS = RNG.dirichlet(np.ones(9), size=5) * (RNG.random((5, 9)) < 0.8)
LARGE = [[3e38, -3e38, 0.0, 3e38], [-3e38] * 4, [1e4, 1e4 + 1, 1e4 - 1, -1e4]]

every_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])


def arrays(*values, dtype="float32"):
    return tuple(jnp.asarray(value, dtype if value.dtype == np.float64 else value.dtype) for value in values)


def log_weights(logits, where):
    """Logarithm of the weights in float64, -inf where there is none."""
    with np.errstate(invalid="ignore"):
        z = np.where(where, np.asarray(logits, np.float64), -INF)
        z = z - z.max(-1, keepdims=True)
        result = z - np.logaddexp.reduce(z, -1, keepdims=True)
    return np.where(where & (z > -INF), result, -INF)


@pytest.mark.full
def test_derivatives_in_both_modes_are_those_of_differences():
    where, labels = jnp.asarray(WHERE), jnp.asarray(LABELS)
    with jax.enable_x64(True):
        logits, targets, weights = arrays(LOGITS, TARGETS, RNG.dirichlet(np.ones(6)), dtype="float64")
        for function, *points in (
            (lambda z: jnp.where(where, sj.log_softmax(z, where=where), 0), logits),
            (sj.weight_entropy, weights),
            (lambda z: sj.cross_entropy(z, labels, where=where), logits),
            (lambda z, t: sj.soft_cross_entropy(z, t, where=where), logits, targets),
        ):
            check_grads(jax.jit(function), points, order=1, eps=1e-6, atol=1e-8, rtol=1e-8)


@pytest.mark.full
def test_bfloat16_is_computed_in_float32():
    weights, tangent = (jnp.asarray(x, jnp.bfloat16) for x in (RNG.dirichlet(np.ones(4096)), RNG.normal(size=4096)))
    p, g = np.asarray(weights, np.float64), np.asarray(tangent, np.float64)
    product = sj.softmax_jvp(weights, tangent)
    assert product.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(product, np.float64), p * (g - p @ g), rtol=2.0**-8)
    shares = p / p.sum()
    np.testing.assert_allclose(sj.weight_entropy(weights), -(shares * np.log(shares)).sum(), rtol=1e-5)


# Each function on logits of which some are hidden, along the last axis and the first


@pytest.mark.full
def test_values_equal_their_definitions_in_both_layouts():
    z, where, labels, targets = arrays(LOGITS, WHERE, LABELS, TARGETS)
    logs = log_weights(LOGITS, WHERE)
    loss = np.where(WHERE.any(-1), -logs[np.arange(5), LABELS], 0)
    soft_loss = -np.where(WHERE, TARGETS * np.where(WHERE, logs, 0), 0).sum(-1)
    h = [references.entropy(row[visible]) if visible.any() else 0 for row, visible in zip(LOGITS, WHERE)]
    flat = log_weights(LOGITS.reshape(1, -1), WHERE.reshape(1, -1)).reshape(LOGITS.shape)

    @jax.jit
    def together(z, where, labels, targets):
        p = sj.softmax(z, where=where)
        return (
            (sj.log_softmax(z, where=where), sj.log_softmax(z.T, 0, where.T).T),
            (sj.cross_entropy(z, labels, where=where), sj.cross_entropy(z.T, labels, 0, where.T)),
            (sj.soft_cross_entropy(z, targets, where=where), sj.soft_cross_entropy(z.T, targets.T, 0, where.T)),
            (sj.weight_entropy(p), sj.weight_entropy(p.T, 0), sj.entropy(z, where=where)[:, 0]),
            (sj.log_softmax(z, (0, 1), where),),
        )

    for layouts, wanted in zip(together(z, where, labels, targets), (logs, loss, soft_loss, h, flat), strict=True):
        for found in layouts:
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sj.weight_entropy(jnp.array([0.1, -0.1, 0.0])), np.log(2), rtol=1e-6)  # absolute shares
    gradient = jax.grad(lambda w: sj.weight_entropy(w).sum())(jnp.array([[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]))
    entropy = references.entropy(np.log([0.25, 0.75]))
    np.testing.assert_allclose(gradient, [[-np.log(0.25) - entropy, -np.log(0.75) - entropy, 0], [0, 0, 0]], atol=1e-6)


@pytest.mark.full
@every_dtype
def test_large_logits(dtype):
    z = jnp.clip(jnp.array(LARGE), float(jnp.finfo(dtype).min), float(jnp.finfo(dtype).max)).astype(dtype)

    def soft_loss(z):
        return sj.soft_cross_entropy(z, jnp.full(z.shape, 0.25, dtype))

    @jax.jit
    def together(z):
        slopes = [jax.grad(lambda z, of=of: of(z).sum())(z) for of in (sj.log_softmax, soft_loss)]
        return sj.log_softmax(z), sj.cross_entropy(z, jnp.array([0, 2, 1])), soft_loss(z), slopes

    logarithms, losses, soft, slopes = together(z)
    wanted = log_weights(np.asarray(z, np.float64), np.ones(z.shape, bool))
    assert logarithms.dtype == dtype
    assert np.isfinite(np.asarray(logarithms, np.float64)).all()
    lowest = float(jnp.finfo(dtype).min)
    np.testing.assert_allclose(np.asarray(logarithms, np.float64), np.maximum(wanted, lowest), rtol=4e-3)
    assert losses.dtype == soft.dtype == jnp.float32
    np.testing.assert_allclose(losses, -wanted[np.arange(3), [0, 2, 1]], rtol=1e-5)
    assert np.isfinite(soft).all()
    assert all(np.isfinite(np.asarray(slope, np.float64)).all() for slope in slopes)


@pytest.mark.full
def test_log_softmax_is_minus_infinity_with_zero_gradient_where_nothing_weighs():
    z = jnp.array([[1.0, NAN, -INF, 2.0], [-INF] * 4, [INF, NAN, -INF, 0.0]])
    where = jnp.array([[True, False, True, True], [True] * 4, [False] * 4])
    logarithms, pull = jax.vjp(lambda z: sj.log_softmax(z, where=where), z)
    none = np.array([[False, True, True, False], [True] * 4, [True] * 4])
    np.testing.assert_array_equal(np.asarray(logarithms) == -INF, none)
    (gradient,) = pull(jnp.where(none, NAN, 1.0))
    assert not gradient[none].any()
    np.testing.assert_allclose(gradient[0, [0, 3]], 1 - 2 * references.softmax(np.array([1.0, 2.0])), atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("axis", [-1, 0, (0, 1)])
def test_jacobian_and_products_equal_those_of_autodiff_whatever_is_behind_the_mask(axis):
    def weigh(z):
        return sj.softmax(z, axis, where)

    with jax.enable_x64(True):
        z, where, g = arrays(LOGITS, WHERE, VECTORS, dtype="float64")
        weights, pushed = jax.jvp(weigh, (z,), (g,))
        (pulled,) = jax.vjp(weigh, z)[1](g)
        junk = jnp.where(where, g, NAN)
        np.testing.assert_allclose(sj.softmax_jvp(weights, junk, axis, where), pushed, atol=1e-15)
        np.testing.assert_allclose(sj.softmax_vjp(weights, junk, axis, where), pulled, atol=1e-15)
        if axis == -1:
            wanted = jax.vmap(jax.jacfwd(lambda z, visible: sj.softmax(z, where=visible)))(z, where)
            np.testing.assert_allclose(sj.softmax_jacobian(weights), wanted, atol=1e-15)
        for gradient in jax.grad(lambda p, g: sj.softmax_jvp(p, g, axis, where).sum(), (0, 1))(weights, junk):
            assert np.isfinite(gradient).all()
            assert not gradient[~where].any()


@pytest.mark.full
def test_nothing_behind_the_mask_matters_and_an_empty_row_costs_nothing():
    z, where, labels, targets = arrays(LOGITS, WHERE, LABELS, TARGETS)
    z, where = z.at[2].set(-INF), where.at[2].set(True)  # a row that hides all by itself
    targets, empty = targets.at[2, :2].set(1.0), np.arange(5)[:, None] // 2 == 1

    def losses(z, t, labels):
        hard, soft = sj.cross_entropy(z, labels, where=where), sj.soft_cross_entropy(z, t, where=where)
        return (hard + soft).sum(), (hard, soft)

    compiled = jax.jit(jax.value_and_grad(losses, (0, 1), has_aux=True))
    (_, (hard, soft)), (in_logits, in_targets) = clean = compiled(z, targets, labels)
    assert not hard[2:4].any()
    assert not soft[2:4].any()
    assert not in_logits[2:4].any()
    assert not in_targets[3].any()
    assert np.isfinite(in_targets).all()
    for junk in NAN, INF, -INF:
        for label in -1, 0, 9:
            dirty = jnp.where(where, z, junk), jnp.where(where, targets, junk), jnp.where(empty[:, 0], label, labels)
            jax.tree.map(np.testing.assert_array_equal, compiled(*dirty), clean)


@pytest.mark.full
def test_what_is_impossible_costs_infinity_and_what_is_no_entry_gives_nan():
    z, where = jnp.array([0.0, -INF, 1.0, 2.0]), jnp.array([True, True, True, False])
    losses = [sj.cross_entropy(z, jnp.array(label), where=where) for label in (1, 3, -1, 4)]
    np.testing.assert_array_equal(losses, [INF, INF, NAN, NAN])
    for label in 1, 3:
        assert not jax.grad(lambda z, y=label: sj.cross_entropy(z, jnp.array(y), where=where))(z).any()
    targets = jnp.array([0.5, 0.5, 0.0, 0.0])
    assert sj.soft_cross_entropy(z, targets, where=where) == INF
    possible = jnp.array([0.5, 0.0, 0.5, 0.0])
    loss, gradients = jax.value_and_grad(sj.soft_cross_entropy, (0, 1))(z, possible, where=where)
    np.testing.assert_allclose(loss, np.log1p(np.e) - 0.5, rtol=1e-6)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize(("dtype", "n"), [("int8", 300), ("int16", 40_000)])
def test_labels_of_small_types_go_unchanged(dtype, n):
    labels = jnp.array([3, -1], dtype)
    losses = sj.cross_entropy(jnp.zeros((2, n)), labels)
    np.testing.assert_allclose(losses[0], np.log(n), rtol=1e-6)
    assert jnp.isnan(losses[1])
