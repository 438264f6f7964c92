"""Attention of some queries at a time: that of dense attention, for any normalizer, in little memory.

Queries are independent of each other, so a block of them over all keys has whole rows of logits. These are there until
the block's output is, and the backward pass computes the block once more. Heads take turns too, so that a block has
many queries of few heads: it reads the keys of its heads, and adds to their gradients. Small batch entries are taken
together.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from softmax_jax.attention.logits import Inputs, Outputs
from softmax_jax.normalizers.maps import Map
from softmax_jax.normalizers.scales import Scale
from softmax_jax.normalizers.surroundings import is_known

BLOCK_ENTRIES = 2**19
"""Logits of a block, where they are those of `LEAST_QUERIES` or more. A backward pass holds about ten such arrays, and
above 32 MiB together glibc maps fresh pages in every call."""

LEAST_QUERIES = 128
"""Queries of a block over long rows, up to `MOST_ENTRIES` logits: each block reads all keys, and adds to all their
gradients."""

MOST_ENTRIES = 2**24
"""64 MiB in float32, of which a backward pass holds several."""


def heads_of_block(inputs: Inputs) -> int:
    """How many heads of the keys a block has."""
    _, heads, queries, keys = inputs.shape
    kv_heads, normalizer = inputs.key.shape[2], inputs.normalizer
    # A function may hold a number for each head, which only its own code could divide.
    whole = isinstance(normalizer.map, Map) and isinstance(normalizer.scale, Scale | None)
    if not whole or not all(map(is_known, (heads, queries, keys))):
        return kv_heads
    return evened(kv_heads, BLOCK_ENTRIES // max(heads // kv_heads * queries * keys, 1))


def queries_of_block(inputs: Inputs) -> int:
    """How many queries a block has unless that is given, so that blocks are alike."""
    _, heads, queries, keys = inputs.shape
    if not all(map(is_known, (heads, queries, keys))):
        return LEAST_QUERIES
    of_query = max(heads * heads_of_block(inputs) // inputs.key.shape[2] * keys, 1)
    return evened(queries, max(BLOCK_ENTRIES // of_query, min(LEAST_QUERIES, MOST_ENTRIES // of_query)))


def evened(length: int, most: int) -> int:
    """The size of pieces that are alike, at most so large but at least 1.

    >>> evened(10, 8)
    5
    """
    return -(-length // -(-length // max(most, 1)))


def attend_by_queries(inputs: Inputs, block_size: int | None = None) -> Outputs:
    """Output in the type of the query, in blocks of `block_size` queries if that is given. No size may be 0."""
    size = queries_of_block(inputs) if block_size is None else block_size
    queries = inputs.shape[2]
    return _in_blocks(inputs, min(size, queries) if is_known(queries) else size, heads_of_block(inputs))


@functools.partial(jax.jit, static_argnames=("size", "heads_together"))
def _in_blocks(inputs: Inputs, size: int, heads_together: int) -> Outputs:
    """Attention of batch entries in turn, of the heads of each, and of blocks of their queries."""
    batch, heads, queries, keys = inputs.shape
    bias, dtype = inputs.bias, inputs.query.dtype
    if bias is not None and 1 in bias.shape[:-1]:
        inputs = inputs._replace(bias=bias.astype(dtype))  # what several blocks share sums up its gradient in this type

    def of_block(index: Array, block: Inputs) -> Outputs:
        return block.attend(first_query=index * size)[0]

    def of_heads(_: Array, of_heads: Inputs) -> Outputs:
        return _in_pieces(jax.checkpoint(of_block, prevent_cse=False), of_heads, 1, queries, size)

    def of_entries(_: Array, entries: Inputs) -> Outputs:
        # In the type of the query before they are shared, so that their gradients sum up in it.
        entries = entries._replace(key=entries.key.astype(dtype), value=entries.value.astype(dtype))
        return _in_pieces(of_heads, entries, 2, entries.key.shape[2], heads_together)

    together = 1
    if all(map(is_known, (batch, heads, queries, keys))):
        together = evened(batch, BLOCK_ENTRIES // (heads * queries * keys))
    return _in_pieces(of_entries, inputs, 0, batch, together)


def _in_pieces(
    attend: Callable[[Array, Inputs], Outputs], inputs: Inputs, axis: int, length: int, size: int
) -> Outputs:
    """attend(index, inputs) of so many batch entries (axis 0), queries (1) or heads of the keys (2) at a time."""
    pieces, of_logits = -(-length // size), (-4, -2, -3)[axis]
    if is_known(pieces) and pieces == 1:
        return attend(jnp.int32(0), inputs)
    group = inputs.query.shape[2] // inputs.key.shape[2] if axis == 2 else 1

    def cut(array: Array, along: int, size: int = size * group, mode: str = "constant") -> Array:
        """Pieces of an array along a new first axis, the last one filled up by zeros or by its end."""
        along %= array.ndim
        padding = [(0, 0)] * array.ndim
        padding[along] = (0, pieces * size - array.shape[along])
        filled = jnp.pad(array, padding, mode=mode)
        return jnp.moveaxis(filled.reshape(*array.shape[:along], pieces, size, *array.shape[along + 1 :]), along, 0)

    def of_each(array: Array | None) -> Array | None:
        return None if array is None or axis else cut(array, 0)

    def of_keys(array: Array) -> Array | None:
        return None if axis == 1 else cut(array, axis, size)

    def of_logit(array: Array | None) -> Array | None:
        return None if array is None or array.shape[of_logits] == 1 else cut(array, of_logits)

    def of_rows(number: Array) -> Array | None:
        fits = number.ndim >= -of_logits and number.shape[of_logits] == length * group and number.shape[-1] == 1
        return cut(number, of_logits, mode="edge") if fits else None

    # None where all pieces have the same.
    own: Any = (
        cut(inputs.query, axis),
        *map(of_keys, (inputs.key, inputs.value)),
        *map(of_logit, (inputs.bias, inputs.mask)),
        tuple(map(of_each, inputs.lengths)),
        jax.tree.map(of_rows, inputs.normalizer),
    )

    def chosen(one: Any, whole: Any) -> Any:
        return whole if one is None else one

    def of_piece(piece: tuple[Array, Any]) -> Outputs:
        index, own = piece
        arrays: Any = jax.tree.map(chosen, own, tuple(inputs)[:-1], is_leaf=lambda one: one is None)
        return attend(index, Inputs(*arrays, options=inputs.options))

    outputs = jnp.moveaxis(jax.lax.map(of_piece, (jnp.arange(pieces, dtype=jnp.int32), own)), 0, axis)
    joined = outputs.reshape(*outputs.shape[:axis], pieces * size * group, *outputs.shape[axis + 2 :])
    return jax.lax.slice_in_dim(joined, 0, length * group, axis=axis)
