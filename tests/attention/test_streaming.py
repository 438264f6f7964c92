import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.attention.dense import SEARCH_ABOVE, STREAM_ABOVE, dot_product_attention
from softmax_jax.attention.streaming import default_block_size, streaming_attention
from softmax_jax.normalizers.blocks import Attended, Block
from softmax_jax.normalizers.streaming import stream
from tests.tiers import methods

from .inputs import EMPTY, KEYS, arrays, assert_equal, dense_attention, each, some_mask, with_arrays

HIDDEN = KEYS - 1
"""A key that no query of the second batch entry sees."""

in_blocks = functools.partial(dot_product_attention, implementation="streaming", block_size=8)


@pytest.mark.parametrize("name", methods())
def test_values_and_gradients_are_those_of_dense_attention(name):
    dense, streamed = each((dense_attention, in_blocks), with_arrays(name), arrays())
    assert_equal(dense, streamed)
    output, (*_, to_query, to_key, to_value, to_bias) = streamed
    for rows in (output[0, EMPTY], to_query[0, EMPTY], to_bias[0, :, EMPTY], to_key[1, HIDDEN], to_value[1, HIDDEN]):
        np.testing.assert_array_equal(rows, 0)


@pytest.mark.parametrize("name", ["adaptive", "top_k"])
def test_block_sizes_agree_under_a_causal_mask(name):
    query, key, value, _ = arrays()
    query = jnp.tile(query, (1, 4, 1, 1))[:, :KEYS]
    causal = functools.partial(dot_product_attention, is_causal=True, normalizer=name)

    @jax.jit
    def all_sizes(query, key, value):
        sizes = (1, 6, 100)
        streamed = [causal(query, key, value, implementation="streaming", block_size=size) for size in sizes]
        return causal(query, key, value, implementation="dense"), streamed

    dense, streamed = all_sizes(query, key, value)
    for output in streamed:
        np.testing.assert_allclose(output, dense, atol=2e-6)


@pytest.mark.full
@pytest.mark.parametrize("name", ["ssmax", "adaptive"])
def test_half_precision_is_computed_in_float32_and_rounded_once(name):
    half = tuple(array.astype(jnp.bfloat16) for array in arrays()[:3])

    @jax.jit
    def run(half):
        def loss(*arrays):
            return jnp.sum(in_blocks(*arrays, normalizer=name).astype(jnp.float32) ** 2)

        whole = tuple(array.astype(jnp.float32) for array in half)
        dense = dense_attention(*whole, normalizer=name)
        return in_blocks(*half, normalizer=name), dense, jax.grad(loss, (0, 1, 2))(*half)

    output, dense, gradients = run(half)
    assert output.dtype == jnp.bfloat16
    np.testing.assert_allclose(output.astype(jnp.float32), dense, rtol=2.0**-8, atol=1e-5)
    assert all(gradient.dtype == jnp.bfloat16 for gradient in gradients)


@pytest.mark.full
@pytest.mark.parametrize("name", ["adaptive", "sparsemax"])
def test_forward_mode_and_vmap(name):
    query, key, value, _ = arrays()
    tangent = jnp.cos(jnp.arange(query.size, dtype=jnp.float32)).reshape(query.shape)

    def derivative(attention, query, key, value, tangent):
        return jax.jvp(lambda query: attention(query, key, value, normalizer=name), (query,), (tangent,))

    def over_batch(*arrays):
        return jax.vmap(functools.partial(derivative, in_blocks))(*arrays)

    run = jax.jit(lambda *arrays: (derivative(dense_attention, *arrays), over_batch(*arrays)))
    for wanted, mapped in zip(*run(query, key, value, tangent)):
        np.testing.assert_allclose(mapped, wanted, atol=5e-6)


@pytest.mark.full
@pytest.mark.parametrize("map", [sj.softmax, sj.hardmax, sj.entmax15, sj.top_k_softmax])
def test_any_inverse_temperature(map):
    query, key, value, _ = arrays()
    mask = some_mask()

    @jax.jit
    def run(normalizer):
        def loss(attention, normalizer):
            output = attention(query, key, value, mask=mask, normalizer=normalizer)
            return jnp.sum(output[..., 0]), output

        both = (dense_attention, in_blocks)
        grad = functools.partial(jax.grad, has_aux=True, allow_int=True)  # k of top_k is whole
        return [grad(functools.partial(loss, attend))(normalizer) for attend in both]

    for beta in (-1.5, 0.0, 1.5):
        normalizer = sj.Normalizer(map, sj.InverseTemperature(jnp.float32(beta)))
        (gradient, dense), (streamed_gradient, streamed) = run(normalizer)
        np.testing.assert_allclose(streamed, dense, atol=2e-6)
        np.testing.assert_allclose(streamed_gradient.scale.beta, gradient.scale.beta, atol=2e-4)


@pytest.mark.full
@pytest.mark.parametrize("name", ["softmax", "adaptive"])
def test_second_derivatives(name):
    query, key, value, _ = arrays()
    small = query[:1, :1, :2, :3], key[:1, :, :1, :3], value[:1, :, :1, :3]

    def loss(attention, query):
        return jnp.sum(attention(query, *small[1:], normalizer=name) ** 2)

    attentions = (dense_attention, in_blocks)
    run = jax.jit(lambda query: [jax.hessian(functools.partial(loss, attend))(query) for attend in attentions])
    dense, streamed = run(small[0])
    np.testing.assert_allclose(streamed, dense, atol=1e-5 * float(jnp.abs(dense).max()))


def test_a_threshold_has_no_second_derivative():
    query, key, value, _ = arrays()
    attend = functools.partial(in_blocks, key=key, value=value, normalizer="sparsemax")
    with pytest.raises(NotImplementedError, match=r"first derivative alone: use implementation='dense'"):
        jax.hessian(lambda scale: jnp.sum(attend(query * scale) ** 2))(jnp.float32(1))


def test_large_logits_lose_no_more_digits_than_in_dense_attention():
    @jax.jit
    def run(*arrays):
        return [attend(*arrays, normalizer="ssmax(s=3.0)") for attend in (dense_attention, in_blocks)]

    query, key, value, bias = arrays()
    dense, streamed = run(query, key, value, jnp.where(jnp.isfinite(bias), bias, 0) + 1e4)
    np.testing.assert_allclose(streamed, dense, atol=1e-5)


@pytest.mark.parametrize("keys", [0, 1])
def test_smallest_lengths(keys):
    query, key, value, _ = arrays()
    output = in_blocks(query, key[:, :keys], value[:, :keys], normalizer="softmax")
    wanted = jnp.repeat(value[:, :1], 2, 2) if keys else jnp.zeros((1, 1, 1, 1))
    np.testing.assert_array_equal(output, jnp.broadcast_to(wanted, output.shape))


def temporary_bytes(name, keys, differentiate):
    """Memory that the compiled program needs beside its arguments and results."""
    attend = functools.partial(streaming_attention, normalizer=name, block_size=64)

    def loss(query, key, value):
        return jnp.sum(attend(query, key, value))

    compiled = jax.jit(jax.grad(loss, (0, 1, 2)) if differentiate else attend)
    query, key = (jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32) for length in (32, keys))
    memory = compiled.lower(query, key, key).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes


@pytest.mark.parametrize("differentiate", [False, True])
@pytest.mark.parametrize("name", ["softmax", pytest.param("entmax15", marks=pytest.mark.full)])
def test_memory_does_not_grow_with_the_keys(name, differentiate):
    short, long = (temporary_bytes(name, keys, differentiate) for keys in (512, 8192))
    # Keys and values are laid out in blocks once. A threshold gets a gradient of them of its own, which is added to
    # that of the weights.
    keys_and_values = 2 * (8192 - 512) * 2 * 8 * 4
    copies = 2 if differentiate and name == "entmax15" else 1
    assert long < short + copies * keys_and_values + 1024
    assert short < 1_000_000


def test_none_streams_large_inputs_alone(monkeypatch):
    monkeypatch.setattr("softmax_jax.attention.dense.STREAM_ABOVE", 512)
    calls = []
    monkeypatch.setattr(
        "softmax_jax.attention.dense.streaming_attention", lambda query, *_, **__: calls.append(query.shape) or query
    )
    query, key, value, _ = arrays()
    dot_product_attention(query[:1, :1], key[:1], value[:1])
    assert not calls
    dot_product_attention(query, key, value)
    assert calls == [query.shape]
    dot_product_attention(query, key, value, return_weights=True)
    dot_product_attention(query, key, value, normalizer=sj.Normalizer(my_map))
    dot_product_attention(query, key, value, normalizer="sparsemax", block_size=8)
    assert len(calls) == 1
    dot_product_attention(query, key, value, normalizer="sparsemax")  # of whole rows
    assert len(calls) == 2
    assert STREAM_ABOVE < SEARCH_ABOVE


def test_default_block_sizes():
    assert default_block_size(2**20, 10**6) == 64
    assert default_block_size(1024, 10**6) == 512
    assert default_block_size(1, 10**6) == 16384
    assert default_block_size(1024, 100) == 100
    assert default_block_size(0, 0) == 1


def my_map(logits, axis=-1, where=None, *, power=1.0):
    return sj.softmax(logits, axis, where)


class MyScale:
    def __call__(self, logits, axis, where):
        return 2.0


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"normalizer": sj.Normalizer(my_map)}, r"the map my_map needs whole rows: .* implementation='dense'"),
        (
            {"normalizer": sj.Normalizer(sj.softmax, cast(Any, MyScale()))},
            r"the scale MyScale needs whole rows: .*of_row",
        ),
        ({"block_size": 0}, r"block_size is 0; it must be at least 1"),
        ({"return_weights": True}, r"implementation='streaming' never forms all weights: return_weights needs 'dense'"),
    ],
)
def test_what_cannot_stream_is_refused_in_one_line(keywords, message):
    with pytest.raises(ValueError, match=message) as caught:
        dot_product_attention(*arrays()[:3], implementation="streaming", **keywords)
    assert "\n" not in str(caught.value)


@pytest.fixture
def unchecked():
    """Turns off the run-time checks of these tests, so that the function itself has to see what is wrong."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match=r"implementation is 'flash'; it must be one of 'dense', 'streaming'"):
        dot_product_attention(*arrays()[:3], implementation=cast(Any, "flash"))


class Tripled(sj.Map):
    factor: float = sj.number(default=3.0)

    def weights(self, row):
        return row.number(self.factor) * sj.softmax.weights(row)

    def in_blocks(self, rows):
        attended = sj.softmax.in_blocks(rows)
        return Attended(attended.values * self.factor, lambda block: attended.weigh(block) * self.factor)


def test_a_map_of_ones_own_may_come_in_blocks():
    query, key, value, _ = arrays()
    tripled = in_blocks(query, key, value, normalizer=sj.Normalizer(Tripled()))
    np.testing.assert_allclose(tripled, 3 * dense_attention(query, key, value), atol=1e-5)


@pytest.mark.parametrize("name", methods(["softpick", "sparsemax"]))
def test_blocks_may_be_drawn_when_their_turn_comes(name):
    sets, entries, blocks, width = 3, 8, 4, 5
    normalizer = sj.normalizer(name)

    def draw(index):
        number = jnp.asarray(index, jnp.float32) + jnp.arange(sets * entries * width, dtype=jnp.float32)
        values = jnp.sin(number**2).reshape(sets, entries, width)
        return 3 * values[..., 0], values, index * entries + jnp.arange(entries)[None] < jnp.array([[32], [11], [0]])

    def read(index):
        logits, values, where = draw(index)
        return Block(logits, lambda weights: jnp.einsum("sn,snf->sf", weights, values), where)

    def entropy(weights):
        return jax.scipy.special.entr(jnp.abs(weights)).sum(-1)

    @jax.jit
    def run(normalizer):
        logits, values, where = (jnp.concatenate(parts, 1) for parts in zip(*map(draw, range(blocks))))
        weights = normalizer(logits, where=where)
        largest = jnp.max(weights, -1, keepdims=True, where=where, initial=-jnp.inf)
        largest = jnp.where(where.any(-1, keepdims=True), largest, 0)
        dense = jnp.einsum("sn,snf->sf", weights, values), entropy(weights), largest
        return dense, stream(normalizer, read, jnp.arange(blocks), measure=entropy)

    for dense, streamed in zip(*run(normalizer)):
        np.testing.assert_allclose(streamed, dense, atol=2e-6)


@pytest.mark.parametrize("name", methods(["ssmax", "length_scaled", "asentmax", "adaptive"]))
def test_a_mask_that_is_added_counts_as_one_that_is_given(name):
    query, key, value, _ = arrays()
    ways = [dense_attention, in_blocks] + [functools.partial(dot_product_attention, implementation="xla")] * (
        name == "ssmax"
    )

    @jax.jit
    def run(bias, mask):
        return [
            (way(query, key, value, bias, normalizer=name), way(query, key, value, None, mask, normalizer=name))
            for way in ways
        ]

    for added, given in run(jnp.where(some_mask(), 0.0, -jnp.inf), some_mask()):
        np.testing.assert_allclose(added, given, atol=1e-6)


def test_a_block_whose_logits_hide_counts_as_one_whose_mask_does():
    logits, ones = jnp.array([[[0.0, -jnp.inf]], [[1.0, 2.0]]]), jnp.ones((1, 2, 1))

    def read(block, by_mask):
        where = block != -jnp.inf if by_mask else None
        return Block(block, lambda weights: jnp.einsum("rn,nf->rf", weights, ones[0]), where)

    def largest(by_mask):
        of = functools.partial(read, by_mask=by_mask)
        return stream(sj.normalizer("ssmax", s=1.0), of, logits, measure=lambda weights: weights.sum(-1)).largest

    dense = sj.ssmax(logits.reshape(1, 4), s=1.0).max()
    np.testing.assert_allclose(np.asarray(largest(False)), [[dense]], rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(largest(True)), np.asarray(largest(False)))
    assert abs(dense - jax.nn.softmax(jnp.log(4.0) * logits.ravel()).max()) > 0.01  # as if all four were visible
