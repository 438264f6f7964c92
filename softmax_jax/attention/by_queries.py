"""Attention of some queries at a time: that of dense attention, for any normalizer, in little memory.

Queries are independent of each other, so a block of them over all keys has whole rows of logits. These are there until
the block's output is, and the backward pass computes the block once more. On CPUs heads take turns too, so that a block
has many queries of few heads: it reads the keys of its heads, and adds to their gradients. Small batch entries are
taken together.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from softmax_jax.attention.inputs import Inputs, Outputs
from softmax_jax.normalizers.execution import is_known, on_cpu
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.parameters import Numbers

BLOCK_ENTRIES = 2**19
"""Logits of a block on CPUs, where they are those of `LEAST_QUERIES` or more. A backward pass holds about ten such
arrays, and above 32 MiB together glibc maps fresh pages in every call."""

LEAST_QUERIES = 128
"""Queries of such a block over long rows, up to `MOST_ENTRIES` logits: each block reads all keys of its heads, and adds
to their gradients."""

MOST_ENTRIES = 2**24
"""64 MiB in float32, of which a backward pass holds several."""

ACCELERATOR_ENTRIES = 2**26
"""Logits of a block elsewhere, where most of a small block's time goes to starting programs. On an H100 entmax15 takes
0.3, 0.6 and 0.5 of the time of blocks of 2^22 to 2^24 logits, at 4,096, 16,384 and 65,536 keys, in 2 GiB instead of
0.8."""


def entries_of_block() -> int:
    """Logits that a block may have; on CPUs those of `LEAST_QUERIES` may be more."""
    return BLOCK_ENTRIES if on_cpu() else ACCELERATOR_ENTRIES


def heads_of_block(inputs: Inputs, queries: int) -> int:
    """How many heads of the keys a block has, whose queries are at most so many."""
    _, heads, _, keys = inputs.shape
    kv_heads = inputs.key.shape[2]
    in_turn = on_cpu() and all(map(is_known, (heads, queries, keys)))  # elsewhere a mesh may divide them
    if not in_turn or not may_divide_heads(inputs.normalizer):
        return kv_heads
    return evened(kv_heads, entries_of_block() // (heads // kv_heads * queries * keys))


def may_divide_heads(normalizer: Normalizer) -> bool:
    """Tells whether a normalizer holds nothing for each head but numbers of each row, divided with the rows."""
    leaves = jax.tree.leaves(normalizer, is_leaf=lambda part: callable(part) and not isinstance(part, Numbers))
    return not any(callable(leaf) or (jnp.ndim(leaf) and jnp.shape(leaf)[-1] != 1) for leaf in leaves)


def queries_of_block(inputs: Inputs) -> int:
    """How many queries a block has unless that is given, so that blocks are alike."""
    _, heads, queries, keys = inputs.shape
    if not all(map(is_known, (heads, queries, keys))):
        return LEAST_QUERIES
    of_query = heads // inputs.key.shape[2] * heads_of_block(inputs, queries) * keys
    return evened(queries, max(entries_of_block() // of_query, min(LEAST_QUERIES, MOST_ENTRIES // of_query)))


def evened(length: int, most: int) -> int:
    """The size of pieces that are alike, at most so large but at least 1.

    >>> evened(10, 8)
    5
    """
    return -(-length // -(-length // max(most, 1)))


def attend_by_queries(inputs: Inputs, block_size: int | None = None) -> Outputs:
    """Output in the type of the query, in blocks of `block_size` queries if that is given. No size may be 0."""
    size, queries = queries_of_block(inputs) if block_size is None else block_size, inputs.shape[2]
    size = min(size, queries) if is_known(queries) else size
    return _in_blocks(inputs, size, heads_of_block(inputs, queries if block_size is None else size))


@functools.partial(jax.jit, static_argnames=("queries_together", "heads_together"))
def _in_blocks(inputs: Inputs, queries_together: int, heads_together: int) -> Outputs:
    """Attention of batch entries in turn, of the heads of each, and of blocks of their queries."""
    sizes, bias, dtype = inputs.shape, inputs.bias, inputs.query.dtype
    if bias is not None and 1 in bias.shape[:-1]:
        inputs = inputs._replace(bias=bias.astype(dtype))  # what several blocks share sums up its gradient in this type
    group = inputs.query.shape[2] // inputs.key.shape[2]

    def of_block(index: Array, block: Inputs) -> Outputs:
        return block.attend(first_query=index * queries_together)[0]

    def of_heads(_: Array, heads: Inputs) -> Outputs:
        return _in_pieces(jax.checkpoint(of_block), heads, 1, queries_together)

    def of_entries(_: Array, entries: Inputs) -> Outputs:
        # In the type of the query before they are shared, so that their gradients sum up in it.
        entries = entries._replace(key=entries.key.astype(dtype), value=entries.value.astype(dtype))
        return _in_pieces(of_heads, entries, 2, heads_together * group)

    entries_together = 1
    if all(map(is_known, sizes)):
        batch, heads, queries, keys = sizes
        entries_together = evened(batch, entries_of_block() // (heads * queries * keys))
    return _in_pieces(of_entries, inputs, 0, entries_together)


def _in_pieces(attend: Callable[[Array, Inputs], Outputs], inputs: Inputs, axis: int, size: int) -> Outputs:
    """attend(index, inputs) of so many batch entries (axis 0), queries (1) or heads (2) at a time, joined."""
    length, of_logits = inputs.query.shape[axis], (-4, -2, -3)[axis]
    pieces = -(-length // size)
    if is_known(pieces) and pieces == 1:
        return attend(jnp.int32(0), inputs)

    def cut(array: Array, along: int, size: int = size) -> Array:
        """Pieces of an array along a new first axis, the last one filled up by its end."""
        along %= array.ndim
        padding = [(0, 0)] * array.ndim
        padding[along] = (0, pieces * size - array.shape[along])
        filled = jnp.pad(array, padding, mode="edge")
        return jnp.moveaxis(filled.reshape(*array.shape[:along], pieces, size, *array.shape[along + 1 :]), along, 0)

    def of_keys(array: Array) -> Array | None:
        group = inputs.query.shape[2] // inputs.key.shape[2] if axis == 2 else 1
        return None if axis == 1 else cut(array, axis, size // group)

    def of_each(array: Array | None) -> Array | None:
        return None if array is None or axis else cut(array, 0)

    def of_logit(array: Array | None) -> Array | None:
        return None if array is None or array.shape[of_logits] == 1 else cut(array, of_logits)

    def of_rows(number: Array) -> Array | None:
        fits = number.ndim >= -of_logits and number.shape[of_logits] == length and number.shape[-1] == 1
        return cut(number, of_logits) if fits else None

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
    joined = outputs.reshape(*outputs.shape[:axis], pieces * size, *outputs.shape[axis + 2 :])
    return jax.lax.slice_in_dim(joined, 0, length, axis=axis)
