"""Blocks of queries with whole rows are dense attention of few queries at a time, and equal it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.attention import whole_rows
from softmax_jax.attention.dense import dot_product_attention
from softmax_jax.attention.logits import Inputs, Options
from softmax_jax.attention.streaming import streaming_attention
from softmax_jax.attention.whole_rows import queries_of_block
from tests.tiers import methods

from .inputs import BATCH, HEADS, KEYS, QUERIES, arrays, assert_equal, dense_attention, each, some_mask, with_arrays

READ_AGAIN = ["adaptive", "entmax15", "sparsemax", "top_k", "as_stieltjes", "adaptive_entmax15"]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of at most two queries, of which five fill the last one half."""
    monkeypatch.setattr(whole_rows, "ROWS_ENTRIES", 2 * HEADS * KEYS)
    monkeypatch.setattr(whole_rows, "LEAST_QUERIES", 1)


def size_of(query, key, normalizer):
    return queries_of_block(Inputs.checked(query, key, key, None, None, Options(normalizer=normalizer)))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", methods(READ_AGAIN))
def test_values_and_gradients_are_those_of_dense_attention(name):
    query, key, _, _ = arrays()
    assert size_of(query, key, name) == 2
    dense, in_blocks = each((dense_attention, streaming_attention), with_arrays(name), arrays())
    assert_equal(dense, in_blocks)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (BATCH, 1, 1, KEYS), (1, HEADS, QUERIES, 1), (QUERIES, KEYS), (KEYS,)])
def test_a_bias_and_a_mask_of_any_shape(shape):
    query, key, value, bias = arrays()
    bias = jnp.where(jnp.isfinite(bias), bias, 0)[tuple(slice(size) for size in (1,) * (4 - len(shape)) + shape)]
    bias, mask = bias.reshape(shape), (bias > -0.5).reshape(shape)

    @jax.jit
    def run(*arrays):
        def loss(attend, *arrays):
            output = attend(*arrays, mask=mask, normalizer="entmax15", is_causal=True)
            return jnp.sum(output[..., 0] ** 2), output

        return [
            jax.grad(functools.partial(loss, attend), (0, 1, 2, 3), has_aux=True)(*arrays)
            for attend in (dense_attention, streaming_attention)
        ]

    for wanted, got in zip(*map(jax.tree.leaves, run(query, key, value, bias))):
        np.testing.assert_allclose(got, wanted, atol=1e-5 * max(1.0, float(np.abs(wanted).max())))


@pytest.mark.usefixtures("small_blocks")
def test_gradients_of_half_precision_sum_up_in_float32():
    query, key, value, _ = arrays()
    bias = jnp.cos(jnp.arange(KEYS, dtype=jnp.float32))
    half = tuple(array.astype(jnp.bfloat16) for array in (jnp.tile(query, (1, 8, 1, 1)), key, value, bias))

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(attend, *arrays):
        def loss(*arrays):
            return jnp.sum(jnp.sin(attend(*arrays, normalizer="entmax15").astype(jnp.float32)))

        return jax.grad(loss, (0, 1, 2, 3))(*arrays)

    whole = tuple(array.astype(jnp.float32) for array in half)
    for wanted, got in zip(gradients(dense_attention, *whole), gradients(streaming_attention, *half)):
        assert got.dtype == jnp.bfloat16
        np.testing.assert_allclose(got.astype(jnp.float32), wanted, rtol=2.0**-8, atol=0.04)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", methods(["adaptive", "sparsemax"]))
def test_forward_mode_vmap_and_second_derivatives(name):
    query, key, value, _ = arrays()
    tangent = jnp.cos(jnp.arange(query.size, dtype=jnp.float32)).reshape(query.shape)

    def derivatives(attend, query, key, value, tangent):
        def loss(query):
            return jnp.sum(attend(query, key, value, normalizer=name) ** 2)

        return jax.jvp(loss, (query,), (tangent,)), jax.jvp(jax.grad(loss), (query,), (tangent,))

    def over_batch(attend, *arrays):
        return jax.vmap(functools.partial(derivatives, attend))(*arrays)

    @jax.jit
    def run(*arrays):
        return [over_batch(attend, *arrays) for attend in (dense_attention, streaming_attention)]

    for wanted, got in zip(*map(jax.tree.leaves, run(query, key, value, tangent))):
        np.testing.assert_allclose(got, wanted, atol=1e-5 * float(np.abs(wanted).max()))


def test_batch_entries_that_fit_into_one_block_are_taken_together(monkeypatch):
    query, key, value, _ = (jnp.concatenate([array] * 2)[:3] for array in arrays())
    attend = functools.partial(dot_product_attention, query, key, value, mask=some_mask()[:1], normalizer="entmax15")
    dense = attend(implementation="dense")
    for entries in (1, 2, 10):
        monkeypatch.setattr(whole_rows, "ROWS_ENTRIES", entries * HEADS * QUERIES * KEYS)
        jax.clear_caches()
        np.testing.assert_allclose(attend(implementation="streaming"), dense, atol=2e-6)


def test_rows_are_whole_where_they_are_read_again_and_fit():
    def size(queries, keys, normalizer, heads=4):
        query, key = (jnp.zeros((2, length, heads, 1)) for length in (queries, keys))
        return size_of(query, key, normalizer)

    for name in READ_AGAIN:
        assert size(2048, 2048, name) == 128
        assert size(2048, 16384, name) is None
    for name in ("softmax", "ssmax", "softpick", "hardmax"):
        assert size(2048, 2048, name) is None
    # As many blocks as are needed, and those alike.
    assert [size(queries, 2048, "entmax15") for queries in (129, 128, 3)] == [65, 128, 3]
    assert [size(queries, 2**17, "entmax15") for queries in (1, 2, 3)] == [1, 2, None]
    assert size(0, 2048, "entmax15") is None
    assert size(8, 0, "entmax15") == 8
    # A number for each head may come; those of each query stand in other places in every block.
    per_head, per_query, per_entry = (jnp.full(shape, 1.5) for shape in ((4, 1, 1), (8, 1), (2, 1, 1, 1)))
    assert size(8, 64, sj.normalizer("entmax", alpha=per_head)) == 8
    assert size(8, 64, sj.normalizer("entmax", alpha=per_query)) is None
    assert size(8, 64, sj.normalizer("entmax", alpha=per_entry)) is None
    with sj.name_bad_rows():
        assert size(8, 64, "entmax15") is None


def test_memory_is_that_of_a_block(monkeypatch):
    monkeypatch.setattr(whole_rows, "ROWS_ENTRIES", 2**14)
    query, key = (jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32) for length in (2048, 64))

    def temporary(implementation):
        def loss(*arrays):
            return jnp.sum(dot_product_attention(*arrays, normalizer="entmax15", implementation=implementation))

        memory = jax.jit(jax.grad(loss, (0, 1, 2))).lower(query, key, key).compile().memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    queries_four_times, of_a_block = 4 * 2048 * 2 * 8 * 4, 8 * 2**14 * 4
    assert temporary("streaming") < queries_four_times + of_a_block < temporary("dense") / 2
