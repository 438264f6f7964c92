"""Attention in blocks of queries with whole rows of logits, for normalizers that read a row more than once.

Blocks of keys compute their logits anew for each reading: for the entropy and the weights, for every step of a search.
Here a block's logits are there until its output is, so that it is dense attention of few queries, one batch entry
after the other. In the backward pass all of a block is computed once more.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from softmax_jax.attention.logits import (
    Bias,
    Inputs,
    Keys,
    Lengths,
    Mask,
    Outputs,
    Queries,
    Window,
    align,
    attention_logits,
    visible_entries,
    weighted_values,
)
from softmax_jax.normalizers.naming import naming
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.surroundings import is_known

ROWS_ENTRIES = 2**20
"""Logits of a block. Half of it, 2^19, takes 1.05 to 1.15 × the time at 2048 keys."""

LEAST_QUERIES = 64
"""Queries below which a block takes longer than one of keys: each reads all keys, and adds to all their gradients."""


def queries_of_block(inputs: Inputs) -> int | None:
    """How many queries a block should have, None where blocks of keys are better or the numbers are not the same."""
    _, heads, queries, keys = inputs.shape
    if not all(map(is_known, (heads, queries, keys))):
        return None
    most = ROWS_ENTRIES // max(heads * keys, 1)
    if not queries or most < min(LEAST_QUERIES, queries) or not _reads_again(inputs.normalizer):
        return None
    # Rows are named by their place among all of them, and have their own numbers there.
    if naming() or any(_of_each_row(leaf) for leaf in jax.tree.leaves(inputs.normalizer)):
        return None
    return -(-queries // -(-queries // most))


def _reads_again(normalizer: Normalizer) -> bool:
    """Whether blocks of keys are read more than once, for an entropy or in a search."""
    return getattr(normalizer.map, "searches", False) or getattr(normalizer.scale, "reads_entropy", False)


def _of_each_row(number: ArrayLike) -> bool:
    """Whether a number of the normalizer may differ between queries or batch entries."""
    shape = (1, 1, 1, 1, *jnp.shape(number))
    return shape[-2] > 1 or shape[-4] > 1


@functools.partial(jax.jit, static_argnames=("is_causal", "window", "size"))
def whole_rows_attention(
    query: Queries,
    key: Keys,
    value: Keys,
    bias: Bias,
    mask: Mask,
    query_seq_lengths: Lengths,
    key_value_seq_lengths: Lengths,
    normalizer: Normalizer,
    *,
    is_causal: bool,
    window: Window,
    size: int,
) -> Outputs:
    """Attention of a query that is scaled already, `size` queries of one batch entry at a time.

    Batch entries that fit into one block together are taken together.
    """
    bias, mask = (None if array is None else align(array, 4) for array in (bias, mask))
    if bias is not None and 1 in (bias.shape[0], bias.shape[-2]):
        bias = bias.astype(query.dtype)  # what several blocks share sums up its gradient in the type it has here
    attend = functools.partial(_one_entry, normalizer=normalizer, is_causal=is_causal, window=window, size=size)
    own_bias, shared_bias = _own(bias, 0)
    own_mask, shared_mask = _own(mask, 0)

    def of_entry(entry: Any) -> Array:
        query, key, value, bias, mask, *lengths = jax.tree.map(lambda array: array[None], entry)
        bias, mask = shared_bias if bias is None else bias, shared_mask if mask is None else mask
        return attend(query, key, value, bias, mask, tuple(lengths))[0]

    batch, queries, heads, _ = query.shape
    together = max(ROWS_ENTRIES // (heads * queries * max(key.shape[1], 1)), 1)
    together = min(together, batch) if is_known(batch) else 1
    entries = query, key, value, own_bias, own_mask, query_seq_lengths, key_value_seq_lengths
    return jax.lax.map(of_entry, entries, batch_size=together if together > 1 else None)


def _one_entry(
    query: Queries,
    key: Keys,
    value: Keys,
    bias: Bias,
    mask: Mask,
    lengths: tuple[Lengths, Lengths],
    *,
    normalizer: Normalizer,
    is_causal: bool,
    window: Window,
    size: int,
) -> Outputs:
    """Attention of one batch entry, block after block."""
    _, queries, heads, _ = query.shape
    blocks = -(-queries // size)
    key, value = key.astype(query.dtype), value.astype(query.dtype)
    own_bias, shared_bias = _own(bias, -2)
    own_mask, shared_mask = _own(mask, -2)

    def of_block(block: Any) -> Outputs:
        index, query, bias, mask = block
        bias, mask = shared_bias if bias is None else bias, shared_mask if mask is None else mask
        shape = (1, heads, size, key.shape[1])
        where = visible_entries(shape, mask, is_causal, *lengths, window, first_query=index * size, bias=bias)
        weights = normalizer.weigh(attention_logits(query, key, bias, 1.0), where=where)
        return weighted_values(weights, value)

    split = functools.partial(in_blocks, size=size, blocks=blocks)
    operands = jnp.arange(blocks, dtype=jnp.int32), split(query, 1), split(own_bias, -2), split(own_mask, -2)
    # A loop is a barrier already, so the common subexpressions may stay.
    outputs = jax.lax.map(jax.checkpoint(of_block, prevent_cse=False), operands)
    joined = jnp.moveaxis(outputs, 0, 1).reshape(1, blocks * size, *outputs.shape[3:])
    return joined[:, :queries]


def _own(array: Array | None, axis: int) -> tuple[Array | None, Array | None]:
    """The array and None if it differs along the axis, None and the array if it is the same for all."""
    return (None, array) if array is None or array.shape[axis] == 1 else (array, None)


def in_blocks(array: Array | None, axis: int = -1, *, size: int, blocks: int) -> Array | None:
    """The array cut along an axis into blocks, along a new first axis; zeros fill the last one up."""
    if array is None:
        return None
    axis %= array.ndim
    padding = [(0, 0)] * array.ndim
    padding[axis] = (0, blocks * size - array.shape[axis])
    cut = jnp.pad(array, padding).reshape(*array.shape[:axis], blocks, size, *array.shape[axis + 1 :])
    return jnp.moveaxis(cut, axis, 0)
