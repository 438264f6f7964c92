"""Attention by blocks of queries: what dense attention gives, for any normalizer, in little memory.

Queries are independent of each other, so a block of them over all keys has whole rows of logits. These live until the
output of the block is there, and the backward pass computes the block once more. On CPUs the heads take turns too, so
that a block has many queries of few heads: each block reads the keys of its heads, and adds to their gradients. Small
batch entries are taken together.
"""

import dataclasses
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
    """Returns how many logits a block may have; on CPUs one of `LEAST_QUERIES` may have more."""
    return BLOCK_ENTRIES if on_cpu() else ACCELERATOR_ENTRIES


def heads_of_block(inputs: Inputs, queries: int) -> int:
    """Returns how many heads of the keys a block of that many queries has."""
    _, heads, _, keys = inputs.shape
    kv_heads = inputs.key.shape[2]
    in_turn = on_cpu() and all(map(is_known, (heads, queries, keys)))  # elsewhere a mesh may divide them
    if not in_turn or not may_divide_heads(inputs.normalizer):
        return kv_heads
    # One head of the keys brings heads / kv_heads rows of logits for each query: 512 queries of 8 heads over 4 heads of
    # 512 keys are 2 · 512 · 512 = 2^19 logits for each head of the keys, so each gets a block of its own.
    return evened(kv_heads, entries_of_block() // (heads // kv_heads * queries * keys))


def may_divide_heads(normalizer: Normalizer) -> bool:
    """Returns True if heads can be computed separately: no part of the normalizer holds something for each head.

    A function may, and so may an array; but numbers of each row, of size 1 along the keys, are divided with the rows.
    """
    leaves = jax.tree.leaves(normalizer, is_leaf=lambda part: callable(part) and not isinstance(part, Numbers))
    return not any(callable(leaf) or (jnp.ndim(leaf) and jnp.shape(leaf)[-1] != 1) for leaf in leaves)


def queries_of_block(inputs: Inputs) -> int:
    """Returns how many queries a block has unless that is given, so that blocks are alike."""
    _, heads, queries, keys = inputs.shape
    if not all(map(is_known, (heads, queries, keys))):
        return LEAST_QUERIES
    # Each query of a block has a row of logits for each head of the block. 1,024 queries and keys, a head at a time:
    # 2^19 / 1,024 = 512 queries. 16,384 keys leave 32, so LEAST_QUERIES = 128 take their place, of 2^21 logits; 2^20
    # keys leave 0, and MOST_ENTRIES allows 2^24 / 2^20 = 16.
    row_entries = heads // inputs.key.shape[2] * heads_of_block(inputs, queries) * keys
    return evened(queries, max(entries_of_block() // row_entries, min(LEAST_QUERIES, MOST_ENTRIES // row_entries)))


def evened(length: int, most: int) -> int:
    """Returns the size of pieces that are as few as pieces of at most `most`, and alike.

    >>> evened(10, 8)
    5
    """
    return -(-length // -(-length // max(most, 1)))


def attend_by_queries(inputs: Inputs, block_size: int | None = None) -> Outputs:
    """Returns the output in the type of the query, in blocks of `block_size` queries if given. No size may be 0."""
    size, queries = queries_of_block(inputs) if block_size is None else block_size, inputs.shape[2]
    size = min(size, queries) if is_known(queries) else size
    return _in_blocks(inputs, size, heads_of_block(inputs, queries if block_size is None else size))


@functools.partial(jax.jit, static_argnames=("queries_together", "heads_together"))
def _in_blocks(inputs: Inputs, queries_together: int, heads_together: int) -> Outputs:
    """Computes attention in three nested loops: over batch entries, their heads, and blocks of their queries."""
    sizes, bias, dtype = inputs.shape, inputs.bias, inputs.query.dtype
    # What several blocks share gets a gradient from each, and JAX sums these in the type of the array: in bfloat16, of
    # 8 bits, 256 + 1 is 256. So bias, keys and values take the type of the query before they are shared.
    if bias is not None and 1 in bias.shape[:-1]:
        inputs = inputs._replace(bias=bias.astype(dtype))
    group = inputs.query.shape[2] // inputs.key.shape[2]

    # Of o = w v the gradients are dv = wᵀ do and dw = do vᵀ, and dz is that of the normalizer at z and dw: all need the
    # weights of the block only. So the backward pass computes them once more, where it would else keep those of all
    # blocks: 1,024 queries and keys of 4 heads are 16 MiB of logits, a block of 512 of one head 2 MiB.
    @jax.checkpoint
    def attend_block(index: Array, block: Inputs) -> Outputs:
        return block.attend(first_query=index * queries_together)[0]

    def attend_heads(_: Array, heads: Inputs) -> Outputs:
        return _in_pieces(attend_block, heads, QUERIES, queries_together)

    def attend_entries(_: Array, entries: Inputs) -> Outputs:
        entries = entries._replace(key=entries.key.astype(dtype), value=entries.value.astype(dtype))
        return _in_pieces(attend_heads, entries, HEADS, heads_together * group)

    entries_together = 1
    if all(map(is_known, sizes)):
        batch, heads, queries, keys = sizes
        entries_together = evened(batch, entries_of_block() // (heads * queries * keys))
    return _in_pieces(attend_entries, inputs, BATCH, entries_together)


BATCH, QUERIES, HEADS = 0, 1, 2
"""Axes of queries and outputs, along which inputs are cut into pieces."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """How an array is cut: along which axis, into pieces of which size."""

    axis: int
    size: int


WHOLE = Cut(0, 0)
"""No cut: all pieces share the array."""


def _in_pieces(attend: Callable[[Array, Inputs], Outputs], inputs: Inputs, axis: int, size: int) -> Outputs:
    """Returns attend(index, piece) of each piece of the inputs in turn, joined along the axis of the query."""
    length = inputs.query.shape[axis]
    pieces = -(-length // size)
    if is_known(pieces) and pieces == 1:
        return attend(jnp.int32(0), inputs)
    arrays, structure = jax.tree.flatten(inputs)
    cuts = jax.tree.leaves(_cuts(inputs, axis, size))
    stacks = {place: _cut(arrays[place], cut, pieces) for place, cut in enumerate(cuts) if cut is not WHOLE}

    def attend_piece(piece: tuple[Array, dict[int, Array]]) -> Outputs:
        index, parts = piece
        return attend(index, structure.unflatten([parts.get(place, whole) for place, whole in enumerate(arrays)]))

    outputs = jax.lax.map(attend_piece, (jnp.arange(pieces, dtype=jnp.int32), stacks))
    outputs = jnp.moveaxis(outputs, 0, axis)
    joined = outputs.reshape(*outputs.shape[:axis], pieces * size, *outputs.shape[axis + 2 :])
    return jax.lax.slice_in_dim(joined, 0, length, axis=axis)


def _cuts(inputs: Inputs, axis: int, size: int) -> Any:
    """Returns the inputs with a `Cut` in place of each array, for pieces of that size along an axis of the query."""
    length, group = inputs.query.shape[axis], inputs.query.shape[2] // inputs.key.shape[2]
    logits_axis = {BATCH: -4, QUERIES: -2, HEADS: -3}[axis]
    logits_cut = Cut(logits_axis, size)

    def cut_number(number: Array) -> Cut:
        # A number of each row, as β of shape (heads, queries, 1), goes with its rows. Another array, as the table of a
        # function, stays whole even if its length is theirs.
        per_row = number.ndim >= -logits_axis and number.shape[logits_axis] == length and number.shape[-1] == 1
        return logits_cut if per_row else WHOLE

    keys = {BATCH: Cut(BATCH, size), QUERIES: WHOLE, HEADS: Cut(HEADS, size // group)}[axis]
    bias, mask = (
        None if array is None else WHOLE if array.shape[logits_axis] == 1 else logits_cut
        for array in (inputs.bias, inputs.mask)
    )
    lengths = jax.tree.map(lambda _: Cut(0, size) if axis == BATCH else WHOLE, inputs.lengths)
    packed = inputs.segments[0] is not None
    query_ids = WHOLE if axis == HEADS else Cut(axis, size)
    segments: Any = (query_ids, keys if axis == BATCH else WHOLE) if packed else (None, None)
    numbers = jax.tree.map(cut_number, inputs.normalizer)
    cuts: Any = Cut(axis, size), keys, keys, bias, mask, lengths, numbers
    return Inputs(*cuts, options=inputs.options, segments=segments)


def _cut(array: Array, cut: Cut, pieces: int) -> Array:
    """Returns the pieces of an array, stacked along a new first axis."""
    axis = cut.axis % array.ndim
    missing = pieces * cut.size - array.shape[axis]
    # 5 queries in pieces of 2 are 6, of which the last is dropped from the output, so its gradient is 0. It is a copy
    # of the fifth and not a row of zeros, where a scale may have an infinite slope, which times 0 is NaN.
    if not is_known(missing) or missing:
        last = jax.lax.slice_in_dim(array, array.shape[axis] - 1, array.shape[axis], axis=axis)
        copies = jnp.broadcast_to(last, (*array.shape[:axis], missing, *array.shape[axis + 1 :]))
        array = jnp.concatenate([array, copies], axis)
    shape = (*array.shape[:axis], pieces, cut.size, *array.shape[axis + 1 :])
    return jnp.moveaxis(array.reshape(shape), axis, 0)
