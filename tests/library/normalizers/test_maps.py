"""What the laws, which compare each map at its own numbers with its formula, do not say of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.normalizers.row import weigh
from tests.library.laws.references import (
    adaptive_beta,
    clipped_softmax,
    entropy,
    first_token,
    length_rule_beta,
    softmax,
    softpick,
)
from tests.tiers import full_except

INF = float("inf")


def adaptive(z, beta):
    return softmax((beta if entropy(z) > 0.5 else 1) * z)


FORMULAS = {
    "temperature(theta=0.4)": lambda z: softmax(z / 0.4),
    "adaptive(coefficients=(0.5, 1.0))": lambda z: adaptive(z, max(entropy(z) / 2 + 1, 1)),
    "adaptive(entropy_range=(2.0, 3.0))": lambda z: adaptive(z, adaptive_beta(2.0)),
    "ssmax(s=0.43, bias=0.2)": lambda z: softmax((0.43 * np.log(z.size) + 0.2) * z),
    "ssmax(s=-0.5)": lambda z: softmax(-0.5 * np.log(z.size) * z),
    "scalable_softpick(s=0.9)": lambda z: softpick(0.9 * np.log(z.size) * z),
    "length_scaled(m=2, eps=0.1)": lambda z: softmax(length_rule_beta(z.size, 2, 0.1) * z),
    "sigmoid(bias=0.0)": lambda z: 1 / (1 + np.exp(-z)),
    "softmax_n(n0=3.0)": lambda z: softmax(np.append(z, np.log(3)))[:-1],
    "first_token(bias=1.1)": lambda z: first_token(z, 1.1),
    "clipped_softmax(gamma=-0.03, alpha=0.0)": lambda z: clipped_softmax(z, -0.03, 0.0),
    "clipped_softmax(alpha=2.0)": lambda z: clipped_softmax(z, alpha=2.0),
    "clipped_softmax(alpha=0.5, zeta=1.5)": lambda z: clipped_softmax(z, alpha=0.5, zeta=1.5),
    "elastic_softmax(tau=0.5)": lambda z: softmax(z) + 0.5 / z.size,
}


weigh_visible = jax.jit(lambda normalizer, logits, where: normalizer(logits, where=where))


@pytest.mark.parametrize("name", full_except(FORMULAS, "temperature(theta=0.4)", "sigmoid(bias=0.0)"))
def test_at_other_numbers_a_method_is_its_formula(name):
    rng = np.random.default_rng(0)
    logits, where = 2 * rng.normal(size=(5, 9)), rng.random((5, 9)) < 0.7
    weights = weigh_visible(sj.normalizer(name), jnp.asarray(logits, jnp.float32), where)
    for row, visible, found in zip(logits, where, weights):
        np.testing.assert_allclose(found[visible], FORMULAS[name](row[visible]), rtol=2e-5, atol=1e-7)
        assert not found[~visible].any()


def test_a_sink_is_a_logit_whose_weight_is_dropped():
    with_sink = jax.jit(lambda z, sink: (sj.sink_softmax(z, sink=sink), sj.softmax(jnp.append(z, sink))[:-1]))
    for offset in 0.0, 500.0, -500.0:
        for sink in -3.0, 0.5, 600.0:
            z = np.array([0.5, -0.3, 0.1, 2.5, -0.1], np.float32) + np.float32(offset)
            np.testing.assert_allclose(*with_sink(z, np.float32(sink)), rtol=1e-6)


def test_softpick_keeps_the_digits_of_small_logits():
    small = np.array([1e-4, 3e-4, -2e-4])
    wanted = np.maximum(np.expm1(small), 0) / (np.abs(np.expm1(small)).sum() + 1e-12)
    np.testing.assert_allclose(sj.softpick(jnp.array(small, jnp.float32), eps=1e-12), wanted, rtol=1e-5)


def test_the_first_token_of_a_row_along_two_axes_is_its_first_visible_entry():
    z, seen = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32), np.ones((2, 3, 4), bool)
    seen[0, 1, 0] = False
    rows, visible = (np.moveaxis(array, 1, 0).reshape(3, 8) for array in (z, seen))
    weigh = jax.jit(lambda z, where, axis: sj.first_token_softmax(z, axis, where, bias=1.1), static_argnums=2)
    wanted, weights = weigh(rows, visible, -1), weigh(z, seen, (0, 2))
    np.testing.assert_allclose(np.moveaxis(weights, 1, 0).reshape(3, 8), wanted, rtol=1e-6)


def test_elastic_softmax_gives_a_logit_of_minus_infinity_nothing_where_it_adds_to_the_weights():
    weights = weigh(dataclasses.replace(sj.elastic_softmax, tau=0.5), jnp.array([0.0, -INF, 0.0]))
    np.testing.assert_allclose(weights, [0.75, 0, 0.75])


@pytest.mark.parametrize("sink", [-3e38, *full_except([3e38, -200.0])])
def test_a_sink_of_any_size_is_finite_and_a_low_one_leaves_softmax(sink):
    z = jnp.array([[3e38, -3e38], [3e38, 3e38], [-3e38, -3e38], [0.5, -0.3], [-INF, -INF]])
    weights, pull = jax.jit(lambda z, s: jax.vjp(lambda z, s: sj.sink_softmax(z, sink=s), z, s))(z, jnp.float32(sink))
    assert np.isfinite(weights).all()
    assert all(np.isfinite(gradient).all() for gradient in pull(jnp.full(z.shape, 1.0).at[:, 1].set(-2)))
    if sink < 0:
        np.testing.assert_allclose(weights[3:], sj.softmax(z[3:]), rtol=1e-6)


def test_second_derivatives_where_a_weight_is_0():
    """Of z₀ / (1 + Σ|z|), at z = (0, 1, -2)."""
    second = jax.jit(jax.hessian(lambda z: sj.signed_l1(z)[0]))(jnp.array([0.0, 1.0, -2.0]))
    np.testing.assert_allclose(second[1:, 0], [-1 / 16, 1 / 16], rtol=1e-6)
    np.testing.assert_allclose(second, second.T, rtol=1e-6)
