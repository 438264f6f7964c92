import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.attention.dense import STREAM_ABOVE, dot_product_attention
from softmax_jax.attention.forms import FORMS, Found, stream, streaming_form
from softmax_jax.attention.rows import Block
from softmax_jax.attention.streaming import default_block_size, streaming_attention

BATCH, QUERIES, KEYS, HEADS, KV_HEADS, SIZE = 2, 5, 19, 4, 2, 8
LENGTHS = np.array([KEYS, 13], np.int32)
HIDDEN = KEYS - 1
"""A key that no query of the second batch entry sees."""


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@functools.cache
def arrays():
    """Queries, keys, values and a bias; infinities stand in the bias where nothing is visible."""
    bias = normal(3, BATCH, HEADS, QUERIES, KEYS)
    bias[1, ..., LENGTHS[1] :] = np.inf
    q, kv = (BATCH, QUERIES, HEADS, SIZE), (BATCH, KEYS, KV_HEADS, SIZE)
    return tuple(jnp.asarray(array) for array in (normal(0, *q), normal(1, *kv), normal(2, *kv), bias))


@functools.cache
def some_mask():
    """Hides three entries in ten, and everything from one query."""
    mask = np.random.default_rng(4).random((BATCH, 1, QUERIES, KEYS)) < 0.7
    mask[0, :, 3] = False
    return jnp.asarray(mask)


def with_arrays(name):
    """The registered normalizer with one number per head where it can be learned, so that all of them are differentiated."""

    def per_head(number):
        return number if isinstance(number, int) else number * jnp.linspace(0.9, 1.1, HEADS).reshape(HEADS, 1, 1)

    return jax.tree.map(per_head, sj.normalizer(name))


def value_and_gradients(attention, normalizer, arrays):
    """The output, and the gradient of a fixed uneven sum of it in all arrays and numbers."""

    def loss(normalizer, query, key, value, bias):
        # A window as a static keyword, a mask of some entries, and lengths.
        output = attention(
            *(query, key, value, bias, some_mask()),
            key_value_seq_lengths=jnp.asarray(LENGTHS),
            local_window_size=(KEYS, 16),
            normalizer=normalizer,
        )
        return jnp.sum(output * jnp.cos(jnp.arange(output.size, dtype=jnp.float32)).reshape(output.shape)), output

    argnums = tuple(range(5))
    (_, output), gradients = jax.value_and_grad(loss, argnums, has_aux=True, allow_int=True)(normalizer, *arrays)
    return output, [leaf for leaf in jax.tree.leaves(gradients) if leaf.dtype != jax.dtypes.float0]


@functools.partial(jax.jit, static_argnums=0)
def both(attentions, normalizer, arrays):
    return [value_and_gradients(attention, normalizer, arrays) for attention in attentions]


def assert_equal_to_dense(dense, other):
    """Values and gradients within 1e-5 of the largest, or of 1 where that is less."""
    np.testing.assert_allclose(other[0], dense[0], atol=2e-6)
    assert len(dense[1]) == len(other[1])
    for wanted, gradient in zip(dense[1], other[1]):
        np.testing.assert_allclose(gradient, wanted, atol=1e-5 * max(1.0, float(np.abs(wanted).max())))


dense_attention = functools.partial(dot_product_attention, implementation="dense")
in_blocks = functools.partial(dot_product_attention, implementation="streaming", block_size=8)


@pytest.mark.parametrize("name", sj.METHODS)
def test_values_and_gradients_are_those_of_dense_attention(name):
    dense, streamed = both((dense_attention, in_blocks), with_arrays(name), arrays())
    assert_equal_to_dense(dense, streamed)
    output, (*_, to_query, to_key, to_value, to_bias) = streamed
    for rows in (output[0, 3], to_query[0, 3], to_bias[0, :, 3], to_key[1, HIDDEN], to_value[1, HIDDEN]):
        np.testing.assert_array_equal(rows, 0)


@pytest.mark.parametrize("name", ["ssmax", "adaptive", "softpick", "top_k", "entmax15"])
def test_block_sizes_agree_under_a_causal_mask(name):
    query, key, value, _ = arrays()
    query = jnp.tile(query, (1, 4, 1, 1))[:, :KEYS]
    causal = functools.partial(dot_product_attention, is_causal=True, normalizer=name)

    @jax.jit
    def all_sizes(query, key, value):
        sizes = (1, 6, KEYS, 100)
        streamed = [causal(query, key, value, implementation="streaming", block_size=size) for size in sizes]
        return causal(query, key, value, implementation="dense"), streamed

    dense, streamed = all_sizes(query, key, value)
    for output in streamed:
        np.testing.assert_allclose(output, dense, atol=2e-6)


@pytest.mark.parametrize("name", ["ssmax", "adaptive", "entmax"])
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


@pytest.mark.parametrize("name", ["adaptive", "entmax15"])
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


@pytest.mark.parametrize("beta", [-1.5, 0.0])
@pytest.mark.parametrize("map", [sj.softmax, sj.hardmax, sj.entmax15, sj.top_k_softmax, sj.softpick])
def test_any_inverse_temperature(map, beta):
    query, key, value, _ = arrays()
    normalizer = sj.Normalizer(map, sj.InverseTemperature(beta))
    mask = some_mask()

    @jax.jit
    def run(query, normalizer):
        def loss(attention, normalizer):
            return jnp.sum(attention(query, key, value, mask=mask, normalizer=normalizer)[..., 0])

        return [jax.value_and_grad(functools.partial(loss, attend))(normalizer) for attend in (dense_attention, in_blocks)]

    (dense, in_dense), (streamed, in_streamed) = run(query, jax.tree.map(jnp.asarray, normalizer_floats(normalizer)))
    np.testing.assert_allclose(streamed, dense, atol=1e-4)
    np.testing.assert_allclose(in_streamed.scale.beta, in_dense.scale.beta, atol=1e-4)


def normalizer_floats(normalizer):
    return jax.tree.map(float, normalizer)


def test_a_shift_of_all_logits_changes_nothing():
    query, key, value, _ = arrays()
    for name in ("ssmax", "adaptive", "sparsemax"):
        shifted = in_blocks(query, key, value, jnp.full((1, 1, 1, 1), 1e4), normalizer=name)
        np.testing.assert_allclose(shifted, in_blocks(query, key, value, normalizer=name), atol=2e-2)
        dense = dense_attention(query, key, value, jnp.full((1, 1, 1, 1), 1e4), normalizer=name)
        np.testing.assert_allclose(shifted, dense, atol=1e-5)


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
    return compiled.lower(query, key, key).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("differentiate", [False, True])
@pytest.mark.parametrize("name", ["softmax", "entmax15"])
def test_memory_does_not_grow_with_the_keys(name, differentiate):
    short, long = (temporary_bytes(name, keys, differentiate) for keys in (512, 8192))
    assert long < short + 1024
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
    assert len(calls) == 1
    assert STREAM_ABOVE >= 2**16


def test_default_block_sizes():
    assert default_block_size(2**20, 10**6) == 128
    assert default_block_size(1024, 10**6) == 1024
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
        ({"normalizer": sj.Normalizer(my_map)}, r"the map my_map has no streaming form: .* implementation='dense'"),
        ({"normalizer": sj.Normalizer(sj.softmax, MyScale())}, r"the scale MyScale needs whole rows: give it .*of_row"),
        ({"block_size": 0}, r"block_size is 0; it must be at least 1"),
        ({"return_weights": True}, r"implementation='streaming' never forms all weights: return_weights needs 'dense'"),
        ({"normalizer": sj.Normalizer(jax.tree_util.Partial(sj.entmax, alpha=0.5))}, r"alpha is 0.5; it must be"),
    ],
)
def test_what_cannot_stream_is_refused_in_one_line(keywords, message):
    with pytest.raises(ValueError, match=message) as caught:
        dot_product_attention(*arrays()[:3], implementation="streaming", **keywords)
    assert "\n" not in str(caught.value)


def test_an_unknown_implementation_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"implementation is 'flash'; it must be None or one of 'dense', 'streaming'"):
        dot_product_attention(*arrays()[:3], implementation="flash")  # pyright: ignore


def test_a_map_of_ones_own_brings_its_form(monkeypatch):
    monkeypatch.setattr("softmax_jax.attention.forms.FORMS", FORMS)

    @streaming_form(my_map)
    def _(rows, *, power=1.0):
        found = FORMS[sj.softmax](rows)
        return Found(found.attended * power, lambda block: found.weigh(block) * power)

    query, key, value, _ = arrays()
    mine = sj.Normalizer(jax.tree_util.Partial(my_map, power=3.0))
    doubled = in_blocks(query, key, value, normalizer=mine)
    FORMS.pop(my_map)
    np.testing.assert_allclose(doubled, 3 * dense_attention(query, key, value), atol=1e-5)


@pytest.mark.parametrize("name", ["ssmax", "softpick", "sparsemax", "signed_l1"])
def test_blocks_may_be_drawn_when_their_turn_comes(name):
    sets, entries, blocks, width = 3, 8, 4, 5
    normalizer = sj.normalizer(name)

    def draw(index):
        logits_key, values_key = jax.random.split(jax.random.fold_in(jax.random.key(0), index))
        logits, values = jax.random.normal(logits_key, (sets, entries)), jax.random.normal(values_key, (sets, entries, width))
        return logits, values, index * entries + jnp.arange(entries)[None] < jnp.array([[32], [11], [0]])

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
        dense = jnp.einsum("sn,snf->sf", weights, values), entropy(weights), jnp.where(where.any(-1, keepdims=True), largest, 0)
        return dense, stream(normalizer, read, jnp.arange(blocks), measure=entropy)

    for dense, streamed in zip(*run(normalizer)):
        np.testing.assert_allclose(streamed, dense, atol=2e-6)
