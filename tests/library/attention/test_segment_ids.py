"""Documents that are packed into one row attend as each does by itself."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import softmax_jax as sj
from softmax_jax.refusal import Refusal

LENGTHS = 5, 1, 9, 3
STARTS = np.cumsum([0, *LENGTHS])
IDS: Any = np.repeat([3, 0, 7, 1], LENGTHS)[None].repeat(2, 0)
READS_LENGTH = "ssmax(s=1.0)"
READS_POSITION = "llama4(attn_scale=1.0, floor_scale=2)"
BY_POSITION = "first_token(bias=1.0)"
FUSED = READS_LENGTH, READS_POSITION, "adaptive"
NORMALIZERS = *FUSED, "entmax15", BY_POSITION
IMPLEMENTATIONS = {
    "dense": {"implementation": "dense"},
    "streaming": {"implementation": "streaming", "block_size": 4},
    "xla": {"implementation": "xla"},
}


def qkv():
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=(2, sum(LENGTHS), heads, 8)), jnp.float32) for heads in (4, 2, 2))


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "is_causal"),
    [*((name, True) for name in NORMALIZERS), *((name, False) for name in (READS_LENGTH, READS_POSITION))],
)
def test_packed_documents_are_each_by_itself(name, is_causal):
    """In every implementation that the normalizer has; gradients are those of a mask in the place of the ids."""
    forms = [IMPLEMENTATIONS[form] for form in IMPLEMENTATIONS if form != "xla" or name in FUSED]
    attend = functools.partial(sj.dot_product_attention, is_causal=is_causal, normalizer=name)
    rows = np.equal(IDS[0][:, None], IDS[0])[None, None]

    def value_and_gradients(arrays, **keywords):
        def loss(*arrays):
            output = attend(*arrays, **keywords)
            return jnp.sum(jnp.cos(output)), output

        (_, output), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*arrays)
        return output, gradients

    @jax.jit
    def together(*arrays):
        documents = itertools.pairwise(STARTS)
        alone = jnp.concatenate([attend(*(array[:, a:b] for array in arrays)) for a, b in documents], 1)
        _, masked = value_and_gradients(arrays, mask=rows)
        return (alone, masked), [value_and_gradients(arrays, segment_ids=IDS, **form) for form in forms]

    expected, packed = together(*qkv())
    for form, actual in zip(forms, packed):
        for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected)):
            np.testing.assert_allclose(ours, theirs, atol=1e-5, err_msg=str(form))


def test_a_pair_gives_queries_and_keys_their_own_ids():
    query, key, value = qkv()
    query, query_ids = query[:, :2], np.array([[7, 9], [3, 0]])
    mask = (query_ids[:, :, None] == IDS[:, None])[:, None]
    actual = sj.dot_product_attention(query, key, value, normalizer=READS_LENGTH, segment_ids=(query_ids, IDS))
    expected = sj.dot_product_attention(query, key, value, normalizer=READS_LENGTH, mask=mask)
    np.testing.assert_array_equal(actual, expected)
    assert not actual[0, 1].any()  # whose document has no keys


@pytest.mark.full
def test_a_flax_layer_takes_documents_as_a_mask():
    layer = nnx.MultiHeadAttention(4, 32, attention_fn=sj.attention_fn(READS_LENGTH), decode=False, rngs=nnx.Rngs(0))
    tokens = jnp.asarray(np.random.default_rng(1).normal(size=(2, sum(LENGTHS), 32)), jnp.float32)
    mask = nnx.combine_masks(nnx.make_attention_mask(IDS, IDS, jnp.equal), nnx.make_causal_mask(IDS))
    alone = [layer(tokens[:, a:b], mask=nnx.make_causal_mask(IDS[:, a:b])) for a, b in itertools.pairwise(STARTS)]
    np.testing.assert_allclose(layer(tokens, mask=mask), jnp.concatenate(alone, 1), atol=1e-5)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (IDS[:, :3], r"segment_ids of the queries has shape \(2, 3\); it must be \(2, 18\)"),
        ((IDS, IDS[:1]), r"segment_ids of the keys has shape \(1, 18\); it must be \(2, 18\)"),
        (IDS / 2, "segment_ids of the queries has dtype float32; it must hold whole numbers"),
        ((IDS, IDS, IDS), "segment_ids is a tuple of 3; it must be one array"),
    ],
)
def test_bad_ids_are_refused_in_one_line(ids, message):
    with pytest.raises(Refusal, match=message):
        sj.dot_product_attention(*qkv(), segment_ids=ids)
