"""Attention of some queries at a time: that of dense attention, for any normalizer, in little memory.

Queries are independent of each other, so a block of them over all keys has whole rows of logits. These are there until
the block's output is, and the backward pass computes the block once more. Small batch entries are taken together.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from softmax_jax.attention.logits import (
    Bias,
    Inputs,
    Keys,
    Lengths,
    Mask,
    Outputs,
    Queries,
    Values,
    Window,
    align,
    attention_logits,
    scaled_query,
    visible_entries,
    weighted_values,
)
from softmax_jax.normalizers.surroundings import is_known

BLOCK_ENTRIES = 2**20
"""Logits of a block, where they are those of `LEAST_QUERIES` or more."""

LEAST_QUERIES = 128
"""Queries of a block over long rows, up to `MOST_ENTRIES` logits: each block reads all keys, and adds to all their
gradients."""

MOST_ENTRIES = 2**24
"""64 MiB in float32, of which a backward pass holds several."""


class Operands(NamedTuple):
    """Arrays of attention that are cut along an axis, or the same for all pieces. The query is scaled."""

    query: Queries
    key: Keys
    value: Values
    bias: Bias
    mask: Mask
    lengths: tuple[Lengths, Lengths]
    numbers: list[Any]
    """Of the normalizer."""


def queries_of_block(inputs: Inputs) -> int:
    """How many queries a block has unless that is given, so that blocks are alike."""
    _, heads, queries, keys = inputs.shape
    if not all(map(is_known, (heads, queries, keys))):
        return LEAST_QUERIES
    of_query = max(heads * keys, 1)
    most = max(BLOCK_ENTRIES // of_query, min(LEAST_QUERIES, MOST_ENTRIES // of_query), 1)
    return -(-queries // -(-queries // most))


def attend_by_queries(inputs: Inputs, block_size: int | None = None) -> Outputs:
    """Output in float32 (float64 stays), in blocks of `block_size` queries if that is given. No size may be 0."""
    size = queries_of_block(inputs) if block_size is None else block_size
    queries = inputs.shape[2]
    size = min(size, queries) if is_known(queries) else size
    query = scaled_query(inputs.query, inputs.scale)
    bias, mask = (None if array is None else align(array, 4) for array in (inputs.bias, inputs.mask))
    if bias is not None and 1 in (bias.shape[0], bias.shape[-2]):
        bias = bias.astype(query.dtype)  # what several blocks share sums up its gradient in the type it has here
    numbers, normalizer = jax.tree.flatten(inputs.normalizer)
    operands = Operands(query, inputs.key, inputs.value, bias, mask, inputs.lengths, numbers)
    static = {"is_causal": inputs.is_causal, "window": inputs.window, "precision": inputs.precision}
    return _compiled(operands, normalizer=normalizer, size=size, **static)


@functools.partial(jax.jit, static_argnames=("normalizer", "size", "is_causal", "window", "precision"))
def _compiled(
    operands: Operands,
    *,
    normalizer: Any,
    size: int,
    is_causal: bool,
    window: Window,
    precision: jax.lax.PrecisionLike,
) -> Outputs:
    """Attention under a normalizer of this structure: batch entries in turn, and blocks of queries of each."""
    batch, queries, heads, _ = operands.query.shape
    keys = operands.key.shape[1]

    def of_block(index: Array, block: Operands) -> Outputs:
        rows = block.query.shape[1]
        shape = (block.query.shape[0], heads, rows, keys)
        first = index * size
        where = visible_entries(
            shape, block.mask, is_causal, *block.lengths, window, first_query=first, bias=block.bias
        )
        logits = attention_logits(block.query, block.key, block.bias, 1.0, precision)
        weights = normalizer.unflatten(block.numbers).weigh(logits, where=where)
        return weighted_values(weights, block.value, precision)

    def of_entries(_: Array, entries: Operands) -> Outputs:
        # In the type of the query before they are shared, so that their gradients sum up in it.
        key, value = (array.astype(entries.query.dtype) for array in (entries.key, entries.value))
        entries = entries._replace(key=key, value=value)
        return _in_pieces(jax.checkpoint(of_block, prevent_cse=False), entries, _query_axes(entries), queries, size)

    together = 1
    if all(map(is_known, (batch, heads, queries, keys))):
        together = min(max(BLOCK_ENTRIES // (heads * queries * keys), 1), batch)
        together = -(-batch // -(-batch // together))
    return _in_pieces(of_entries, operands, _batch_axes(operands), batch, together, axis=0)


def _batch_axes(operands: Operands) -> Operands:
    """The axis of each operand along which batch entries differ, None where they are the same."""
    batch = operands.query.shape[0]
    bias, mask = (None if array is None or array.shape[0] == 1 else 0 for array in (operands.bias, operands.mask))
    numbers = [-4 if jnp.ndim(one) == 4 and one.shape[0] == batch else None for one in operands.numbers]
    return Operands(0, 0, 0, bias, mask, (0, 0), numbers)  # pyright: ignore[reportArgumentType]


def _query_axes(operands: Operands) -> Operands:
    """The axis of each operand along which queries differ, None where they are the same."""
    queries = operands.query.shape[1]
    bias, mask = (None if array is None or array.shape[-2] == 1 else -2 for array in (operands.bias, operands.mask))
    rows = (queries, 1)
    numbers = [-2 if jnp.ndim(one) >= 2 and jnp.shape(one)[-2:] == rows else None for one in operands.numbers]
    return Operands(1, None, None, bias, mask, (None, None), numbers)  # pyright: ignore[reportArgumentType]


def _in_pieces(
    attend: Callable[[Array, Operands], Outputs],
    operands: Operands,
    axes: Operands,
    length: int,
    size: int,
    axis: int = 1,
) -> Outputs:
    """attend(index, operands) of pieces of this size along an axis of each operand, joined along one of the output."""
    pieces = -(-length // size)
    leaves, structure = jax.tree.flatten(operands, is_leaf=lambda leaf: leaf is None)
    along = jax.tree.leaves(axes, is_leaf=lambda leaf: leaf is None)
    numbers = len(operands.numbers)
    cut = [
        None if leaf is None or one is None else _cut(leaf, one, pieces, size, edge=place >= len(leaves) - numbers)
        for place, (leaf, one) in enumerate(zip(leaves, along, strict=True))
    ]

    def of_piece(piece: tuple[Array, list[Any]]) -> Outputs:
        index, own = piece
        return attend(index, structure.unflatten([leaf if one is None else one for one, leaf in zip(own, leaves)]))

    if is_known(pieces) and pieces == 1:
        return of_piece((jnp.int32(0), [leaf if one is None else one[0] for one, leaf in zip(cut, leaves)]))
    outputs = jnp.moveaxis(jax.lax.map(of_piece, (jnp.arange(pieces, dtype=jnp.int32), cut)), 0, axis)
    joined = outputs.reshape(*outputs.shape[:axis], pieces * size, *outputs.shape[axis + 2 :])
    return jax.lax.slice_in_dim(joined, 0, length, axis=axis)


def _cut(array: Array, axis: int, pieces: int, size: int, edge: bool) -> Array:
    """The array cut along an axis into pieces, along a new first axis, the last filled up by zeros or by its end."""
    axis %= array.ndim
    padding = [(0, 0)] * array.ndim
    padding[axis] = (0, pieces * size - array.shape[axis])
    filled = jnp.pad(array, padding, mode="edge" if edge else "constant")
    return jnp.moveaxis(filled.reshape(*array.shape[:axis], pieces, size, *array.shape[axis + 1 :]), axis, 0)
