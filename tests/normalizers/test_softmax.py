"""Softmax of whole rows is written apart from that of blocks, for speed; here it is held against the plain quotient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.normalizers.map import Quotient
from softmax_jax.normalizers.rows import WholeRow
from tests.faults.hostile_rows import hostile


def plain(logits, where):
    return Quotient.weights(sj.softmax, WholeRow.of(logits, -1, where))


def direct(logits, where):
    return sj.softmax.weights(WholeRow.of(logits, -1, where))


@pytest.mark.parametrize("n", [1, 2, 33, 1000])
def test_softmax_is_the_plain_quotient_bit_for_bit(n):
    rows = hostile("float32", n, 200)
    logits, where = jnp.asarray(rows.logits), jnp.asarray(rows.where)
    got, expected = (np.asarray(form(logits, where)) for form in (direct, plain))
    finite = np.isfinite(expected).all(-1)
    assert finite.sum() > 100
    np.testing.assert_array_equal(got[finite], expected[finite])
    seen = rows.where & (rows.logits != -np.inf)
    assert np.isnan(got[~finite][seen[~finite]]).all()


def test_so_are_its_derivatives():
    generator = np.random.default_rng(0)
    logits, slope = (jnp.asarray(generator.normal(size=(20, 33)) * 3, jnp.float32) for _ in range(2))
    where = jnp.asarray(generator.random((20, 33)) < 0.7).at[0].set(False)

    def gradient(form):
        return jax.grad(lambda z: jnp.sum(jnp.cos(form(z, where) * slope)))

    for derivative in (gradient, lambda form: lambda z: jax.jvp(gradient(form), (z,), (slope,))[1]):
        expected = np.asarray(derivative(plain)(logits))
        assert np.abs(expected).max() > 0.01
        np.testing.assert_allclose(derivative(direct)(logits), expected, rtol=1e-5, atol=1e-6)
