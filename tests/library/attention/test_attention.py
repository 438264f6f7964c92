import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax import normalizer
from softmax_jax.attention.attention import dot_product_attention
from tests.tiers import HEART, full_except

BATCH, QUERIES, KEYS, HEADS, SIZE = 2, 5, 6, 4, 8
LOGITS = (BATCH, HEADS, QUERIES, KEYS)


def normal(seed, shape, dtype=jnp.float32):
    # From NumPy, because JAX would compile a program for each shape.
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(dtype))


def qkv(kv_heads=HEADS, keys=KEYS, dtype=jnp.float32):
    query = normal(0, (BATCH, QUERIES, HEADS, SIZE), dtype)
    shape = (BATCH, keys, kv_heads, SIZE)
    return query, normal(1, shape, dtype), normal(2, shape, dtype)


def some_bias(shape=LOGITS, dtype=jnp.float32):
    return normal(3, shape, dtype)


def some_mask(shape=LOGITS, first=False):
    """A random mask that hides three in ten entries, yet no first key if `first`."""
    mask = np.random.default_rng(4).random(shape) < 0.7
    mask[..., 0] |= first
    return jnp.asarray(mask)


def logits_of(query, key):
    """Logits the long way round, in NumPy, with the heads of key repeated."""
    key = np.repeat(np.asarray(key), query.shape[2] // key.shape[2], axis=2)
    return np.einsum("bqhd,bkhd->bhqk", np.asarray(query), key) / np.sqrt(query.shape[-1])


def visible_by_definition(mask, is_causal, query_seq_lengths, key_value_seq_lengths, local_window_size):
    """Where each query sees a key, in NumPy, from what the keywords mean."""
    b, _, i, j = np.indices(LOGITS)
    visible = np.ones(LOGITS, bool) if mask is None else np.array(mask)
    if is_causal:
        visible &= j <= i
    if query_seq_lengths is not None:
        visible &= i < np.asarray(query_seq_lengths)[b]
    if key_value_seq_lengths is not None:
        visible &= j < np.asarray(key_value_seq_lengths)[b]
    if local_window_size is not None:
        left, right = (local_window_size,) * 2 if isinstance(local_window_size, int) else local_window_size
        visible &= (-right <= i - j) & (i - j <= left)
    return visible


@pytest.mark.parametrize(
    ("kv_heads", "is_causal", "local_window_size"),
    [(2, True, None), *full_except([(1, False, None), (HEADS, False, 1), (2, False, (2, 0))])],
)
def test_equals_jax_for_every_combination_of_keywords(kv_heads, is_causal, local_window_size):
    arrays = qkv(kv_heads)
    static = {"is_causal": is_causal, "local_window_size": local_window_size}
    # Given or not; what is not given is spelled out for jax, so that it compiles one program for all combinations.
    given = {
        "bias": some_bias(),
        "mask": some_mask(),
        "scale": 0.7,
        "query_seq_lengths": jnp.array([5, 3], jnp.int32),
        "key_value_seq_lengths": jnp.array([4, 6], jnp.int32),
    }
    absent = {
        "bias": jnp.zeros(LOGITS),
        "mask": jnp.ones(LOGITS, bool),
        "scale": SIZE**-0.5,
        "query_seq_lengths": jnp.array([QUERIES] * BATCH, jnp.int32),
        "key_value_seq_lengths": jnp.array([KEYS] * BATCH, jnp.int32),
    }
    reference = jax.jit(functools.partial(jax.nn.dot_product_attention, *arrays, **static))
    for names in itertools.chain.from_iterable(itertools.combinations(given, r) for r in range(len(given) + 1)):
        keywords = {name: given[name] for name in names}
        output, weights = dot_product_attention(*arrays, **keywords, **static, return_weights=True)

        hiding = {name: keywords.get(name) for name in ("mask", "query_seq_lengths", "key_value_seq_lengths")}
        visible = visible_by_definition(**hiding, **static)
        np.testing.assert_array_equal(weights != 0, visible, err_msg=f"given {names}")
        empty = ~np.any(visible, -1).swapaxes(1, 2)
        difference = np.abs(output - reference(**absent | keywords))
        assert difference[~empty].max() <= 1e-6, names
        np.testing.assert_array_equal(output[empty], 0, err_msg=f"given {names}")


BROADCAST = [((BATCH, 1, 1, KEYS),), ((KEYS,),), ((QUERIES, 1),), ((HEADS, 1, KEYS),), ((1, HEADS, 1, KEYS),)]


@pytest.mark.parametrize("shape", full_except(BROADCAST, (BATCH, 1, 1, KEYS)))
def test_bias_and_mask_broadcast_with_the_gradients_of_jax(shape):
    def output_and_gradients(attend):
        attend = functools.partial(attend, mask=some_mask(shape, first=True), is_causal=True)
        output, pull = jax.vjp(attend, *qkv(2), some_bias(shape))
        return output, pull(normal(5, output.shape))

    ways = dot_product_attention, jax.nn.dot_product_attention
    ours, theirs = jax.jit(lambda: [*map(output_and_gradients, ways)])()
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=5e-6, rtol=0), ours, theirs)


def test_batch_axis_may_be_left_out():
    batched = tuple(array[:1] for array in qkv(2))
    keywords = {"mask": some_mask(LOGITS[1:]), "is_causal": True, "query_seq_lengths": jnp.array([4], jnp.int32)}
    output, weights = dot_product_attention(*(array[0] for array in batched), **keywords, return_weights=True)
    expected_output, expected_weights = dot_product_attention(*batched, **keywords, return_weights=True)
    np.testing.assert_array_equal(output, expected_output[0])
    np.testing.assert_array_equal(weights, expected_weights[0])


FORMS = {
    "dense": {"implementation": "dense"},
    "streaming": {"implementation": "streaming", "block_size": 2},
    "xla": {"implementation": "xla"},
}


@pytest.mark.parametrize(
    ("name", "form"),
    [*full_except([("adaptive", "dense"), ("softmax", "streaming"), ("ssmax", "xla")], "adaptive")],
)
def test_a_bias_of_minus_9000_or_less_hides_as_a_mask_does(name, form):
    arrays, mask = qkv(2), some_mask((BATCH, 1, QUERIES, KEYS)).at[0, :, 3].set(False)

    @jax.jit
    def both(arrays, bias, mask):
        attend = functools.partial(dot_product_attention, normalizer=name, **FORMS[form])
        output, pull = jax.vjp(lambda arrays, bias: attend(*arrays, bias, mask), arrays, bias)
        return output, pull(normal(5, output.shape))

    given, (of_given, _) = both(arrays, jnp.zeros(mask.shape), mask)
    for low in (-9e3, -1e9, float(jnp.finfo("float32").min), -jnp.inf):
        added, (of_added, of_bias) = both(arrays, jnp.where(mask, 0, low), jnp.ones_like(mask))
        np.testing.assert_allclose(added, given, atol=1e-6)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), of_added, of_given)
        assert not of_bias[~mask].any()
        assert not added[0, 3].any()


def test_the_size_of_a_product_hides_nothing_and_a_bias_above_minus_9000_neither():
    q, k = jnp.ones((1, 1, 1)), jnp.array([0.0, -2e4]).reshape(2, 1, 1)
    for bias in None, jnp.array([0.0, -8999.0]):
        _, weights = dot_product_attention(q, k, k, bias, scale=1.0, normalizer="sigmoid", return_weights=True)
        np.testing.assert_allclose(weights[0, 0], [1 / 3, 0], rtol=1e-6)  # of two entries


@pytest.mark.full
def test_lists_and_numbers_are_taken_for_arrays():
    arrays, mask = qkv(), some_mask((QUERIES, KEYS))
    attend = functools.partial(dot_product_attention, *arrays, normalizer="ssmax")
    for given, same in [
        ({"key_value_seq_lengths": [4, 6]}, {"key_value_seq_lengths": jnp.array([4, 6], jnp.int32)}),
        ({"local_window_size": [3, np.int64(0)]}, {"local_window_size": (3, 0)}),
        ({"local_window_size": np.int64(2)}, {"local_window_size": 2}),
        ({"mask": mask.tolist(), "bias": 1.0}, {"mask": mask, "bias": jnp.ones(())}),
        ({"mask": mask.astype(jnp.float32), "block_size": 6}, {"mask": mask}),
        ({"mask": True}, {}),
    ]:
        np.testing.assert_array_equal(attend(**given), attend(**same))


@pytest.mark.full
def test_half_precision_is_computed_in_float32_and_rounded_once():
    dtype, float32 = jnp.bfloat16, functools.partial(jnp.asarray, dtype=jnp.float32)
    half = qkv(kv_heads=2, dtype=dtype)
    attend = functools.partial(dot_product_attention, is_causal=True, normalizer="ssmax", return_weights=True)
    arrays = (*half, some_bias(dtype=dtype))
    output, weights = attend(*arrays)
    expected_output, expected_weights = attend(*map(float32, arrays))
    assert output.dtype == dtype
    assert weights.dtype == jnp.float32
    np.testing.assert_array_equal(float32(output), float32(expected_output.astype(dtype)))
    np.testing.assert_array_equal(weights, expected_weights)

    with jax.numpy_dtype_promotion("standard"):  # which jax itself needs for half precision
        theirs = float32(jax.nn.dot_product_attention(*half))
    np.testing.assert_allclose(float32(dot_product_attention(*half)), theirs, atol=4 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize(("name", "kv_heads"), [*((name, 2) for name in HEART), ("ssmax", HEADS), ("softmax", 1)])
def test_the_normalizer_gets_the_logits_and_the_mask(name, kv_heads):
    query, key, value = qkv(kv_heads)
    hiding = {"mask": some_mask(), "is_causal": True, "local_window_size": (3, 1)}
    output, weights = dot_product_attention(query, key, value, **hiding, normalizer=name, return_weights=True)
    visible = visible_by_definition(**hiding, query_seq_lengths=None, key_value_seq_lengths=None)
    expected = normalizer(name)(jnp.asarray(logits_of(query, key)), where=jnp.asarray(visible))
    np.testing.assert_allclose(weights, expected, atol=2e-6)
    repeated = np.repeat(np.asarray(value), HEADS // kv_heads, axis=2)
    np.testing.assert_allclose(output, np.einsum("bhqk,bkhd->bqhd", weights, repeated), atol=2e-6)


def shaped(*shape, dtype=jnp.float32):
    """A shape and a type without numbers: to compute anything from it is an error."""
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.usefixtures("symbols_pass")
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"query": shaped(3, 5, 4, 8)}, ValueError, r"its batch and size must be those of the query, .*\(3, 5, 4, 8\)"),
        ({"value": shaped(2, 6, 2, 8, dtype=jnp.float16)}, TypeError, r"float16; they must be one floating-point type"),
        ({"bias": shaped(2, 3, 5, 6)}, ValueError, r"bias has shape \(2, 3, 5, 6\).*broadcast.* \(2, 4, 5, 6\)"),
        ({"mask": shaped(5, 6)}, TypeError, r"mask has dtype float32 and is traced; it must be bool.*bias="),
        ({"query_seq_lengths": shaped(3, dtype=jnp.int32)}, ValueError, r"query_seq_lengths has shape \(3,\).*\(2,\)"),
        ({"key_value_seq_lengths": shaped(dtype=jnp.int32)}, ValueError, r"key_value_seq_lengths has shape \(\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_raises_before_anything_is_computed(wrong, error, message):
    right = {"query": shaped(2, 5, 4, 8), "key": shaped(2, 6, 2, 8), "value": shaped(2, 6, 2, 8)}
    with pytest.raises(error, match=message) as caught:
        dot_product_attention(**right | wrong)
    assert "\n" not in str(caught.value)
