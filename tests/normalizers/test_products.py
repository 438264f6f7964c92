"""Products along rows are written apart from plain sums, for speed; here they are held against these."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax.normalizers.products import over, product, row_dot

SHAPE = (3, 4, 5)
AXES = [-1, 0, 1, (0, 2), (2, 1), (0, 1, 2)]


def normal(seed, shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def plain_dot(left, right, axis):
    return jnp.sum(left * right, axis, keepdims=True)


def plain_product(beta, logits, axis):
    return beta * logits


def of_rows(axis):
    axes = {place % 3 for place in (axis if isinstance(axis, tuple) else (axis,))}
    return tuple(1 if place in axes else size for place, size in enumerate(SHAPE))


def assert_same_derivatives(ours, plain, *arrays):
    """Values, gradients, slopes and gradients of the gradients, in both arrays at once and in each alone."""
    uneven = jnp.cos(jnp.arange(plain(*arrays).size, dtype=jnp.float32)).reshape(plain(*arrays).shape)
    slopes = tuple(normal(10 + place, array.shape) for place, array in enumerate(arrays))

    def of(form):
        def loss(*arrays):
            return jnp.sum(jnp.sin(form(*arrays)) * uneven)

        def steep(*arrays):
            return sum(jnp.sum(gradient**2) for gradient in jax.grad(loss, (0, 1))(*arrays))

        alone = [jax.grad(loss, place)(*arrays) for place in (0, 1)]
        both, forward = jax.grad(loss, (0, 1))(*arrays), jax.jvp(loss, arrays, slopes)
        return form(*arrays), both, alone, forward, jax.grad(steep, (0, 1))(*arrays)

    for got, expected in zip(*(jax.tree.leaves(jax.jit(of, static_argnums=0)(form)) for form in (ours, plain))):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("axis", AXES)
def test_a_sum_of_products_is_the_plain_one_with_its_derivatives(axis):
    left, right = normal(0, SHAPE), normal(1, SHAPE)
    assert row_dot(left, right, axis).shape == of_rows(axis)
    assert_same_derivatives(
        lambda left, right: row_dot(left, right, axis),
        lambda left, right: plain_dot(left, right, axis),
        left,
        right,
    )


@pytest.mark.parametrize("axis", AXES)
def test_a_scaled_row_is_the_plain_product_with_its_derivatives(axis):
    for shape in (of_rows(axis), (1, 1, 1), ()):
        beta, logits = normal(2, shape), normal(3, SHAPE)
        assert_same_derivatives(
            lambda beta, logits: product(beta, logits, axis),
            lambda beta, logits: plain_product(beta, logits, axis),
            beta,
            logits,
        )


@pytest.mark.parametrize("axis", AXES)
def test_a_row_over_its_divisor_is_the_plain_quotient_with_its_derivatives(axis):
    values, divisor = normal(6, SHAPE), 1 + normal(7, of_rows(axis)) ** 2
    np.testing.assert_array_equal(over(values, divisor, axis), values / divisor)
    assert_same_derivatives(lambda *arrays: over(*arrays, axis), lambda *arrays: arrays[0] / arrays[1], values, divisor)


def test_a_scaled_row_is_finite_whatever_its_inverse_temperature():
    for beta in (jnp.inf, -jnp.inf, 3e38, 0.0):
        assert np.isfinite(product(jnp.float32(beta), jnp.array([-3e38, -1.0, 0.0]))).all()
    np.testing.assert_array_equal(product(2, jnp.array([-1.5, 3.0])), [-3.0, 6.0])
    assert np.isnan(product(jnp.float32(jnp.nan), jnp.ones(2))).all()


def test_rows_under_vmap_are_those_of_the_loop():
    beta, logits = normal(4, (3, 4, 1)), normal(5, SHAPE)
    np.testing.assert_array_equal(jax.vmap(product)(beta, logits), product(beta, logits))
    np.testing.assert_allclose(jax.vmap(row_dot)(logits, logits), row_dot(logits, logits), rtol=1e-6)
