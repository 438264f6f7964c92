"""Attention by blocks of queries equals dense attention, for every normalizer, in the memory of a block."""

import functools
import math
import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.attention import attention, by_queries, inputs
from softmax_jax.normalizers.normalizer import SoftCapped
from tests.tiers import full_except

from .inputs import (
    BATCH,
    EMPTY,
    HEADS,
    KEYS,
    KV_HEADS,
    QUERIES,
    arrays,
    assert_equal,
    dense_attention,
    each,
    some_mask,
    with_arrays,
)

HIDDEN = KEYS - 1
"""A key that no query of the second batch entry sees."""


def blocks_of_2(*arrays, **keywords):
    """Attention of two queries, which are five in all, and of one head of the keys at a time, as of many queries."""
    one_head = mock.patch.object(by_queries, "entries_of_block", return_value=HEADS // KV_HEADS * 2 * KEYS)
    with one_head, mock.patch.object(inputs, "MANY_ROWS", 1):
        return sj.dot_product_attention(*arrays, implementation="streaming", block_size=2, **keywords)


class Spread(sj.Scale):
    """A scale with a statistic of the row that no other has: β = s over the mean distance to the largest logit."""

    s: float = sj.number(default=2.0, learn=True)

    def of_row(self, row):
        gaps = jnp.where(row.logits > -jnp.inf, row.maximum(row.logits) - row.logits, 0)
        return row.number(self.s) / (row.sum(gaps) / jnp.maximum(row.count(), 1) + 0.1)


EVERY = BATCH, HEADS, QUERIES, KEYS


@pytest.mark.parametrize(
    ("name", "shape"),
    full_except([("adaptive", EVERY), ("ssmax(cap=3)", (1, HEADS, QUERIES, 1)), ("softmax", (KEYS,))], "adaptive"),
)
def test_values_and_gradients_are_those_of_dense_attention(name, shape):
    *qkv, bias = arrays()
    bias = bias[tuple(slice(size) for size in (1,) * (4 - len(shape)) + shape)].reshape(shape)
    dense, in_blocks = each((dense_attention, blocks_of_2), with_arrays(name), (*qkv, bias))
    assert_equal(dense, in_blocks)
    output, (*_, to_query, to_key, to_value, to_bias) = in_blocks
    rows = [output[0, EMPTY], to_query[0, EMPTY], to_key[1, HIDDEN], to_value[1, HIDDEN]]
    for row in (*rows, *([to_bias[0, :, EMPTY]] if shape == EVERY else [])):
        np.testing.assert_array_equal(row, 0)


@pytest.mark.full
def test_gradients_of_half_precision_sum_up_in_float32():
    query, key, value, _ = arrays()
    bias = jnp.cos(jnp.arange(KEYS, dtype=jnp.float32))
    half = tuple(array.astype(jnp.bfloat16) for array in (jnp.tile(query, (1, 8, 1, 1)), key, value, bias))

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(attend, *arrays):
        def loss(*arrays):
            return jnp.sum(jnp.sin(attend(*arrays, normalizer="ssmax").astype(jnp.float32)))

        return jax.grad(loss, (0, 1, 2, 3))(*arrays)

    whole = tuple(array.astype(jnp.float32) for array in half)
    for wanted, got in zip(gradients(dense_attention, *whole), gradients(blocks_of_2, *half)):
        assert got.dtype == jnp.bfloat16
        np.testing.assert_allclose(got.astype(jnp.float32), wanted, rtol=2.0**-8, atol=0.04)


@pytest.mark.full
def test_forward_mode_vmap_and_second_derivatives():
    query, key, value, _ = arrays()
    tangent = jnp.cos(jnp.arange(query.size, dtype=jnp.float32)).reshape(query.shape)

    def derivatives(attend, query, key, value, tangent):
        def loss(query):
            return jnp.sum(attend(query, key, value, normalizer="ssmax") ** 2)

        return jax.jvp(loss, (query,), (tangent,)), jax.jvp(jax.grad(loss), (query,), (tangent,))

    def over_batch(attend, *arrays):
        return jax.vmap(functools.partial(derivatives, attend))(*arrays)

    @jax.jit
    def run(*arrays):
        return [over_batch(attend, *arrays) for attend in (dense_attention, blocks_of_2)]

    for wanted, got in zip(*map(jax.tree.leaves, run(query, key, value, tangent))):
        np.testing.assert_allclose(got, wanted, atol=1e-5 * float(np.abs(wanted).max()))


@pytest.mark.full
def test_heads_and_batch_entries_that_fit_into_one_block_are_taken_together(monkeypatch):
    query, key, value, _ = (jnp.concatenate([array] * 2)[:3] for array in arrays())
    attend = functools.partial(sj.dot_product_attention, query, key, value, mask=some_mask()[:1], normalizer="ssmax")
    dense = jax.jit(lambda: attend(implementation="dense"))()
    for heads in (1, HEADS, 2 * HEADS):
        monkeypatch.setattr(by_queries, "entries_of_block", lambda heads=heads: heads * QUERIES * KEYS)
        jax.clear_caches()
        np.testing.assert_allclose(jax.jit(lambda: attend(implementation="streaming"))(), dense, atol=2e-6)


def how(batch, heads, queries, keys):
    """Heads and queries of a block, and the implementation that is chosen."""
    query, key = (jnp.zeros((batch, length, heads, 1)) for length in (queries, keys))
    inputs = attention.Inputs(query, key, key, None, None, (None, None), sj.normalizer("softmax"))
    sizes = by_queries.heads_of_block(inputs, queries), by_queries.queries_of_block(inputs)
    return *sizes, attention._choose(inputs, None)


def test_the_derivative_of_blocks_sums_no_zeros_and_transposes_no_logits():
    queries, keys, size = 256, 96, 8
    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(rng.normal(size=(1, n, 1, size)), jnp.float32) for n in (queries, keys, keys)]

    def gradients(attend, **options):
        return jax.jit(jax.grad(lambda *qkv: (attend(*qkv, **options) ** 2).sum(), (0, 1, 2)))

    blocks = gradients(sj.dot_product_attention, implementation="streaming", block_size=128)
    program = str(blocks.lower(*arrays).compile().as_text())
    products = re.findall(r"f32\[([\d,]+)\]\S* dot\(", program)
    # qᵀ dz and doᵀ w, in place of dzᵀ q and wᵀ do
    assert products.count(f"{size},{keys}") == 2, products
    assert f"{keys},{size}" not in products
    assert " pad(" not in program  # zeros around a slice
    for found, expected in zip(blocks(*arrays), gradients(jax.nn.dot_product_attention)(*arrays)):
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_the_size_of_a_block_and_who_comes_in_blocks():
    assert how(1, 4, 512, 512) == (2, 512, "dense")  # 2^20 logits
    assert how(1, 4, 513, 512) == (1, 513, "streaming")
    with mock.patch.object(attention, "on_cpu", return_value=False):
        assert how(1, 4, 513, 512)[-1] == "dense"
    assert how(8, 4, 256, 512) == (4, 256, "streaming")
    assert how(8, 5, 256, 512) == (3, 256, "streaming")  # the last block has two heads and a copy of one
    assert how(1, 4, 1024, 1024) == (1, 512, "streaming")
    assert how(1, 4, 2049, 2048) == (1, 228, "streaming")  # as many blocks as are needed, and those alike
    assert how(1, 4, 4096, 16384) == (1, 128, "streaming")
    assert how(1, 32, 4096, 2**20) == (1, 16, "streaming")
    assert how(1, 4, 64, 65536) == (1, 64, "dense")
    assert how(1, 4, 64, 2**20) == (1, 16, "dense")
    assert how(100, 4, 64, 4096) == (2, 64, "streaming")


class Standardized(sj.Scale):
    """A scale that is singular where all logits are equal: β = s over the deviation of the row."""

    s: float = sj.number(default=1.0)

    def of_row(self, row):
        return row.number(self.s) / jnp.std(row.logits, row.axis, keepdims=True)


@pytest.mark.full
def test_a_last_block_of_fewer_heads_and_queries_adds_no_gradient_of_its_own(monkeypatch):
    monkeypatch.setattr(by_queries, "entries_of_block", lambda: 2 * 5 * 8)
    query, key, value = (jax.random.normal(one, (1, 8, 3, 4)) for one in jax.random.split(jax.random.key(0), 3))

    def loss(s, **form):
        normalizer = sj.Normalizer(sj.softmax, Standardized(s))
        return jnp.sum(jnp.sin(sj.dot_product_attention(query[:, :5], key, value, normalizer=normalizer, **form)))

    dense, in_blocks = (jax.jit(jax.grad(functools.partial(loss, **form)))(1.0) for form in ({}, {"block_size": 3}))
    np.testing.assert_allclose(in_blocks, dense, rtol=1e-5)


def by_head(logits, axis=-1, where=None):
    return sj.softmax(logits * jnp.linspace(0.5, 2, HEADS)[None, :, None, None], axis, where)


def by_table(logits, axis=-1, where=None, *, table):
    return sj.softmax(logits * table.sum(), axis, where)


TABLE = jnp.linspace(0.0, 0.3, 3 * QUERIES).reshape(QUERIES, 3)
"""Not numbers of rows, though it has as many rows as there are queries."""


@pytest.mark.full
def test_memory_stays_below_two_gigabytes_at_16384_by_16384():
    array = jax.ShapeDtypeStruct((1, 16384, 4, 64), jnp.float32)
    loss = lambda *arrays: jnp.sum(sj.dot_product_attention(*arrays, normalizer="entmax15"))  # noqa: E731
    memory = jax.jit(jax.grad(loss, (0, 1, 2))).lower(array, array, array).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 2e9


def numbers_of(*shape):
    return sj.Normalizer(sj.softmax, sj.InverseTemperature(jnp.linspace(0.5, 2.0, math.prod(shape)).reshape(shape)))


OWN = {
    "scale": sj.Normalizer(sj.sigmoid, Spread()),
    "numbers of queries": numbers_of(QUERIES, 1),
    "numbers of all rows": numbers_of(BATCH, HEADS, QUERIES, 1),
    "function": sj.Normalizer(by_head),
    "capped function": sj.Normalizer(SoftCapped(of=sj.Normalizer(by_head))),
    "table": sj.Normalizer(jax.tree_util.Partial(by_table, table=TABLE)),
}


@pytest.mark.full
@pytest.mark.parametrize("own", OWN)
def test_a_normalizer_of_ones_own_comes_in_blocks(own):
    assert_equal(*each((dense_attention, blocks_of_2), OWN[own], arrays()[:3]))
