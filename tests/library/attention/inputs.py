"""Attention inputs that meet every edge, and the comparison of one implementation with another."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import softmax_jax as sj
from softmax_jax.attention.attention import dot_product_attention

BATCH, QUERIES, KEYS, HEADS, KV_HEADS, SIZE = 2, 5, 19, 4, 2, 8
LENGTHS = np.array([KEYS, 13], np.int32)
EMPTY = 3
"""A query of the first batch entry that sees nothing."""

dense_attention = functools.partial(dot_product_attention, implementation="dense")


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def arrays():
    """Queries, keys, values and a bias; infinities stand in the bias where nothing is visible."""
    bias = normal(3, BATCH, HEADS, QUERIES, KEYS)
    bias[1, ..., LENGTHS[1] :] = np.inf
    q, kv = (BATCH, QUERIES, HEADS, SIZE), (BATCH, KEYS, KV_HEADS, SIZE)
    return tuple(jnp.asarray(array, jnp.float32) for array in (normal(0, *q), normal(1, *kv), normal(2, *kv), bias))


def some_mask():
    """Hides three entries in ten, and everything from one query."""
    mask = np.random.default_rng(4).random((BATCH, 1, QUERIES, KEYS)) < 0.7
    mask[0, :, EMPTY] = False
    return jnp.asarray(mask)


def with_arrays(name):
    """The registered normalizer with a number per head where it may be learned, so that all are differentiated."""

    def per_head(number):
        return number if isinstance(number, int) else number * jnp.linspace(0.9, 1.1, HEADS).reshape(HEADS, 1, 1)

    return jax.tree.map(per_head, sj.normalizer(name))


def value_and_gradients(attention, normalizer, arrays):
    """The output, and the gradient of a fixed uneven sum of it in all numbers and arrays."""

    def loss(normalizer, *arrays):
        keywords = {"key_value_seq_lengths": jnp.asarray(LENGTHS), "local_window_size": (KEYS, 16)}
        output = attention(*arrays, mask=some_mask(), normalizer=normalizer, **keywords)
        return jnp.sum(output * jnp.cos(jnp.arange(output.size, dtype=jnp.float32)).reshape(output.shape)), output

    argnums = tuple(range(1 + len(arrays)))
    (_, output), gradients = jax.value_and_grad(loss, argnums, has_aux=True, allow_int=True)(normalizer, *arrays)
    return output, [leaf for leaf in jax.tree.leaves(gradients) if leaf.dtype != jax.dtypes.float0]


@functools.partial(jax.jit, static_argnums=0)
def each(attentions, normalizer, arrays):
    """Value and gradients of several implementations, in one program."""
    return [value_and_gradients(attention, normalizer, arrays) for attention in attentions]


def assert_equal(wanted, other, values=2e-6, gradients=1e-5):
    """Values and gradients as near as this, times the largest, or times 1 where that is less."""
    np.testing.assert_allclose(other[0], wanted[0], atol=values * max(1.0, float(np.abs(wanted[0]).max())), rtol=0)
    assert len(wanted[1]) == len(other[1])
    for ours, theirs in zip(other[1], wanted[1]):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, theirs, atol=gradients * max(1.0, float(np.abs(theirs).max())), rtol=0)
