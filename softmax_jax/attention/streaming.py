"""Attention in blocks of keys: values and gradients of dense attention, in memory that does not grow with the keys.

Beyond queries, keys, values, their gradients and one copy of them laid out in blocks, memory is a small multiple of
batch · heads · queries · block size. How many passes over the keys a normalizer takes is for its form to say: one for
softmax, its relatives and every scale known from the length, two for adaptive temperature, and for thresholds one
for each step of the search. Where it takes more than one and rows are short, blocks of queries are faster, which
`whole_rows` makes.
"""

import functools
from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.attention.logits import (
    Bias,
    Given,
    Inputs,
    Keys,
    Lengths,
    Mask,
    Options,
    Outputs,
    Queries,
    Window,
    align,
    attention_logits,
    scaled_query,
    visible_entries,
    weighted_values,
)
from softmax_jax.attention.whole_rows import in_blocks, queries_of_block, whole_rows_attention
from softmax_jax.normalizers import checks
from softmax_jax.normalizers.blocks import Block
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.streaming import check_streams, stream
from softmax_jax.normalizers.surroundings import as_one, is_known, spec_of

BLOCK_ENTRIES = 2**19
"""Logits of a block, unless a block size is given: of 2^18, 2^20 and 2^22, the largest was never the fastest."""

UNKNOWN_SIZE = 256
"""Keys in a block where sizes are symbols of `jax.export`."""


def default_block_size(rows: int, keys: int) -> int:
    """Keys in a block: a power of two that makes about `BLOCK_ENTRIES` logits of the rows, from 64 to 16,384.

    >>> default_block_size(rows=1024, keys=4096), default_block_size(rows=1, keys=2**20)
    (512, 16384)
    """
    if not (is_known(rows) and is_known(keys)):
        return UNKNOWN_SIZE
    wanted = BLOCK_ENTRIES // max(rows, 1)
    size = 1 << min(max(wanted.bit_length() - 1, 6), 14)
    return max(min(size, keys), 1)


def streaming_attention(
    query: Queries,
    key: Keys,
    value: Keys,
    bias: Given = None,
    mask: Given = None,
    *,
    block_size: int | None = None,
    **options: Unpack[Options],
) -> Outputs:
    """`dot_product_attention` in blocks of `block_size` keys; see there for the other arguments and what they raise.

    Unless a size is given, blocks are chosen: some keys of all queries, or all keys of some queries (see `whole_rows`).
    Both modes of differentiation work, and second derivatives, which sparsemax, entmax and Stieltjes refuse with
    NotImplementedError in blocks of keys. Raises ValueError for a normalizer that cannot come in blocks of keys and for
    a block size below 1.

    >>> x = jnp.eye(4).reshape(4, 1, 4)
    >>> streaming_attention(x, x, x, is_causal=True, normalizer="ssmax", block_size=3)[0, 0]
    Array([1., 0., 0., 0.], dtype=float32)
    """
    inputs = Inputs.checked(query, key, value, bias, mask, options)
    is_causal, window, size = _static(inputs, inputs.shape[-1], block_size)
    empty = 0 in (*inputs.shape, inputs.query.shape[-1])  # which `jax.lax.map` cannot cut
    queries = queries_of_block(inputs) if block_size is None and not empty else None

    def attend(inputs: Inputs) -> Outputs:
        if queries:
            attended = whole_rows_attention(*_operands(inputs), is_causal=is_causal, window=window, size=queries)
        else:
            attended = _compiled(*_operands(inputs), static=(is_causal, window, size))
        return inputs.returned(attended)

    return as_one(attend, inputs, out=spec_of(query))


def sharded_attention(
    query: Queries,
    key: Keys,
    value: Keys,
    bias: Given = None,
    mask: Given = None,
    *,
    mesh: Mesh,
    axis: str,
    block_size: int | None = None,
    **options: Unpack[Options],
) -> Outputs:
    """`streaming_attention` with the keys divided over the devices along one axis of a mesh.

    Each device makes the passes over its own keys; their sums, as many numbers as the output, are added up over
    the devices, and maxima compared. Queries and output are the same on all. Keys whose number is no multiple of
    the devices are filled up with hidden ones.

    Raises as `streaming_attention`, and ValueError for an axis that the mesh lacks.

    >>> mesh = jax.make_mesh((1,), ("keys",))
    >>> x = jnp.eye(4).reshape(4, 1, 4)
    >>> sharded_attention(x, x, x, normalizer="hardmax", mesh=mesh, axis="keys")[2, 0]
    Array([0., 0., 1., 0.], dtype=float32)
    """
    if axis not in mesh.shape:
        near = checks.did_you_mean(axis, mesh.shape)
        raise ValueError(f"axis is {axis!r}; {near}it must be one of the mesh, which has {', '.join(mesh.shape)}")
    inputs = Inputs.checked(query, key, value, bias, mask, options)
    static = _static(inputs, -(-inputs.shape[-1] // mesh.shape[axis]), block_size)
    # Axes of the type that follows the arrays wherever they are, whatever the type of those given.
    mesh = Mesh(mesh.devices, mesh.axis_names)
    return inputs.returned(_compiled(*_operands(inputs), static=static, mesh=mesh, axis=axis))


def _operands(inputs: Inputs) -> tuple[Any, ...]:
    """The arrays of the compiled program, and the normalizer, whose numbers are more of them."""
    query = scaled_query(inputs.query, inputs.scale)
    return (query, inputs.key, inputs.value, inputs.bias, inputs.mask, *inputs.lengths, inputs.normalizer)


def _static(inputs: Inputs, keys: int, block_size: int | None) -> tuple[bool, Window, int]:
    """What the program is compiled for; the keys are those of one device. Raises unless the normalizer can stream."""
    check_streams(inputs.normalizer)
    if block_size is not None:
        checks.whole("block_size", block_size, 1, 1024)
    batch, heads, queries, _ = inputs.shape
    size = default_block_size(batch * heads * queries, keys) if block_size is None else block_size
    if is_known(keys):  # a block beyond them would be filled up with hidden ones
        size = min(size, max(keys, 1))
    return inputs.is_causal, inputs.window, size


@functools.partial(jax.jit, static_argnames=("static", "mesh", "axis"))
def _compiled(
    *operands: Any, static: tuple[bool, Window, int], mesh: Mesh | None = None, axis: str | None = None
) -> Outputs:
    """Attention over keys that are here, or divided over an axis of a mesh."""
    query, key, value, bias, mask, *rest = operands
    attend = functools.partial(_attend, static=static, keys=key.shape[1], axis=axis)
    if mesh is None or axis is None:
        return attend(0, query, key, value, bias, mask, *rest)
    devices = mesh.shape[axis]
    key, value = (_filled_up(array, 1, devices) for array in (key, value))
    bias, mask = (array if _one_key(array) else _filled_up(array, -1, devices) for array in (bias, mask))
    along_keys = PartitionSpec(None, axis)
    specs = [PartitionSpec(), along_keys, along_keys]
    specs += [
        PartitionSpec() if array is None or _one_key(array) else PartitionSpec(*(None,) * (array.ndim - 1), axis)
        for array in (bias, mask)
    ]

    def on_each(*operands: Any) -> Outputs:
        return attend(jax.lax.axis_index(axis) * operands[1].shape[1], *operands)

    # What is replicated becomes so by sums and maxima over the devices, which the check does not follow.
    divided = jax.shard_map(
        on_each,
        mesh=mesh,
        in_specs=(*specs, *(PartitionSpec() for _ in rest)),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return divided(query, key, value, bias, mask, *rest)


def _attend(
    first_key: ArrayLike,
    query: Queries,
    key: Keys,
    value: Keys,
    bias: Bias,
    mask: Mask,
    query_seq_lengths: Lengths,
    key_value_seq_lengths: Lengths,
    normalizer: Normalizer,
    *,
    static: tuple[bool, Window, int],
    keys: int,
    axis: str | None,
) -> Outputs:
    """Attention over the blocks of some keys, of which the first is the `first_key` of all `keys`."""
    is_causal, window, size = static
    batch, queries, heads, _ = query.shape
    blocks = max(-(-key.shape[1] // size), 1)
    shape = (batch, heads, queries, size)
    # Whatever all blocks share sums up its gradient in the type it has here.
    bias = bias.astype(query.dtype) if bias is not None and _one_key(bias) else bias
    shared_bias, own_bias = (bias, None) if _one_key(bias) else (None, bias)
    shared_mask, own_mask = (mask, None) if _one_key(mask) else (None, mask)
    filled = blocks * size != key.shape[1] or axis is not None

    def read(operand: Any) -> Block:
        index, k, v, bias, mask = operand
        start = first_key + index * size
        hiding = query_seq_lengths, key_value_seq_lengths, window
        bias, mask = shared_bias if bias is None else bias, shared_mask if mask is None else mask
        where = visible_entries(shape, mask, is_causal, *hiding, first_key=start, bias=bias)
        if filled:
            there = index * size + jnp.arange(size, dtype=jnp.int32) < key.shape[1]
            there &= start + jnp.arange(size, dtype=jnp.int32) < keys
            where = align(there, 4) if where is None else where & align(there, 4)
        logits = attention_logits(query, k, bias, 1.0)
        return Block(logits, _weighing(v), where, finite=True)

    split = functools.partial(in_blocks, size=size, blocks=blocks)
    operands = jnp.arange(blocks, dtype=jnp.int32), split(key, 1), split(value, 1), split(own_bias), split(own_mask)
    output = stream(normalizer, read, operands, axis_name=axis).attended
    return jnp.moveaxis(output, 1, 2)


def _weighing(
    value: Keys,
) -> Callable[[Float[Array, "batch heads queries keys"]], Float[Array, "batch heads queries size"]]:
    """Weighted sums of these values, with the rows first."""

    def attend(weights: Array) -> Array:
        return jnp.moveaxis(weighted_values(weights, value), 2, 1)

    return attend


def _one_key(array: Array | None) -> bool:
    """Whether the array is the same for all keys."""
    return array is None or array.ndim == 0 or array.shape[-1] == 1


def _filled_up(array: Array, axis: int, multiple: int) -> Array:
    """The array with zeros at the end of an axis, up to a multiple of this length."""
    padding = [(0, 0)] * array.ndim
    padding[axis] = (0, -array.shape[axis] % multiple)
    return jnp.pad(array, padding)
