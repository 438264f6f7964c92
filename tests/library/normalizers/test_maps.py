"""What the laws, which compare each map with its formula and its gradients with differences, do not say of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.normalizers.row import weigh
from tests.library.laws import references
from tests.tiers import full_except

MIXED = [0.5, -0.3, 0.1, 2.5, -0.1, 0.3, 0.0, 2.0, -0.5, 0.2]
INF = float("inf")


def test_sigmoid_weighs_each_entry_by_itself():
    z = jnp.array([0.0, np.log(2), -np.log(4)])
    np.testing.assert_allclose(sj.sigmoid(z), [1 / 4, 2 / 5, 1 / 13], rtol=1e-6)
    np.testing.assert_allclose(sj.sigmoid(z, bias=0.0), [1 / 2, 2 / 3, 1 / 5], rtol=1e-6)
    # n is the number of visible entries.
    np.testing.assert_allclose(sj.sigmoid(z, where=jnp.array([True, True, False])), [1 / 3, 1 / 2, 0], rtol=1e-6)


def test_a_sink_is_a_logit_whose_weight_is_dropped():
    for offset in 0.0, 500.0, -500.0:
        for sink in -3.0, 0.5, 600.0:
            z = jnp.array(MIXED) + offset
            with_one_more = sj.softmax(jnp.append(z, sink))
            np.testing.assert_allclose(sj.sink_softmax(z, sink=sink), with_one_more[:-1], rtol=1e-6)


def test_softmax_n_is_a_sink_at_the_logarithm_and_softpick_keeps_the_digits_of_small_logits():
    z = jnp.array(MIXED)
    np.testing.assert_allclose(sj.softmax_n(z, n0=3.0), sj.sink_softmax(z, sink=np.log(3.0)), rtol=1e-6)
    small = np.array([1e-4, 3e-4, -2e-4])
    wanted = np.maximum(np.expm1(small), 0) / (np.abs(np.expm1(small)).sum() + 1e-12)
    np.testing.assert_allclose(sj.softpick(jnp.array(small, jnp.float32), eps=1e-12), wanted, rtol=1e-5)


@pytest.mark.parametrize("axis", [-1, (0, 2)])
def test_the_factor_of_the_first_token_goes_to_the_first_visible_entry(axis):
    z = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    where = np.ones(z.shape, bool)
    where[0, 1, 0] = False
    factor = np.ones_like(z)
    for row in range(3):
        places = [(0, row, 0), (1, row, 0)] if axis == -1 else [(0, row, 0)]
        for batch, _, first in places:
            factor[batch, row, first + (not where[batch, row, first])] = 3
    weights = factor * np.exp(z) * where
    weights /= weights.sum(axis, keepdims=True)
    given = sj.first_token_softmax(jnp.asarray(z), axis, jnp.asarray(where), bias=np.log(3.0))
    np.testing.assert_allclose(given, weights, rtol=1e-5)


def test_numbers_of_clipped_and_elastic_softmax():
    z = np.array(MIXED)
    for numbers in {"gamma": -0.03, "alpha": 0.0}, {"alpha": 2.0}, {"zeta": 1.5, "alpha": 0.5}:
        wanted = references.clipped_softmax(z, **numbers)
        np.testing.assert_allclose(sj.clipped_softmax(jnp.array(z), **numbers), wanted, rtol=1e-5, atol=1e-7)
    wanted = references.softmax(z) + 0.5 / z.size
    np.testing.assert_allclose(sj.elastic_softmax(jnp.array(z), tau=0.5), wanted, rtol=1e-5)


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
