"""Attention with any normalizer between logits and weights, under one name for all its implementations."""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np
from jax.lax import PrecisionLike
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array

from softmax_jax.attention.by_queries import LEAST_QUERIES, attend_by_queries, queries_of_block
from softmax_jax.attention.fused import attend_by_kernel, check_fused
from softmax_jax.attention.inputs import (
    Given,
    Inputs,
    Keys,
    Options,
    Outputs,
    Queries,
    Values,
    Weights,
    as_bias_and_mask,
    as_lengths,
    as_segments,
    as_window,
    check_layout,
    check_numbers,
    check_scale,
    scaled_query,
)
from softmax_jax.normalizers import checks
from softmax_jax.normalizers.execution import as_one, is_known, on_cpu, spec_of
from softmax_jax.normalizers.layout import LAST
from softmax_jax.normalizers.naming import name_bad_rows, name_rows, naming
from softmax_jax.normalizers.registry import NormalizerLike, as_normalizer
from softmax_jax.refusal import Refusal

AnySegmentIds = Array | np.ndarray | tuple[Any, ...] | list[Any] | None
"""The ids of documents as users give them."""

Implementation = Literal["dense", "streaming", "xla", "cudnn"]

IMPLEMENTATIONS: dict[Implementation, Callable[[Inputs, int | None], tuple[Outputs, Weights | None]]] = {
    "dense": lambda inputs, block_size: inputs.attend(),
    "streaming": lambda inputs, block_size: (attend_by_queries(inputs, block_size), None),
    "xla": lambda inputs, block_size: (attend_by_kernel(inputs, "xla"), None),
    "cudnn": lambda inputs, block_size: (attend_by_kernel(inputs, "cudnn"), None),
}
"""From inputs and a block size to the output, and to the weights where all are formed at once."""

STREAM_ABOVE = 2**20
"""Logits, of all batch entries, heads, queries and keys, above which attention on CPUs streams unless told otherwise.

Of 2^21 logits, whose arrays glibc maps into fresh pages in every call, adaptive takes 0.3 to 0.4 of the time in blocks
forward, and 0.5 forward and backward; SSMax 0.7 to 1.1 and 0.5 to 0.7, softmax 0.7 to 1.2 and 0.5 to 1.4.
"""
ACCELERATOR_STREAM_ABOVE = 2**21
"""The same elsewhere."""


def dot_product_attention(
    query: Queries,
    key: Keys,
    value: Values,
    bias: Given = None,
    mask: Given = None,
    *,
    scale: ArrayLike | None = None,
    is_causal: bool = False,
    query_seq_lengths: Given = None,
    key_value_seq_lengths: Given = None,
    local_window_size: Given = None,
    segment_ids: AnySegmentIds = None,
    normalizer: NormalizerLike = "softmax",
    implementation: Implementation | None = None,
    block_size: int | None = None,
    return_weights: bool = False,
    precision: PrecisionLike = None,
) -> Any:
    r"""Computes `jax.nn.dot_product_attention` with any normalizer in place of softmax.

    $$o_i = \sum_j w_{ij} v_j, \qquad w_i = \operatorname{normalizer}(\text{scale} \cdot k\, q_i + b_i)$$

    An entry is visible if `mask`, `is_causal`, both `seq_lengths`, `local_window_size` and `segment_ids` all show it,
    and its `bias` is above -9,000: a position bias that grows so low is a mask. The size of scale · k q hides nothing.
    n in a scale such as that of SSMax counts the visible entries of a query. A query that sees nothing has weights and
    output 0; `jax.nn.dot_product_attention` weighs all keys alike there.

    Arguments:
        query, key, value: Of shape (batch, length, heads, size), or without the batch. The heads of the query must be a
            multiple of those of key and value: equal is multi-head, less is grouped-query, one is multi-query
            attention.
        bias: Is added to the logits. Like `mask`, it broadcasts to (batch, heads, queries, keys).
        mask: True where an entry is visible.
        scale: The factor of the logits, 1/√size unless given.
        is_causal: Shows a query no key after its own position.
        query_seq_lengths, key_value_seq_lengths: One whole number for each batch entry. Later positions are hidden.
        local_window_size: Shows keys at most (left, right) positions from the query. One number stands for both.
        segment_ids: The document of each position where several are packed into one row, as whole numbers of shape
            (batch, length); or a pair (query_ids, key_ids) of such arrays, as `SegmentIds` of the kernels of JAX. A
            query sees the keys with its own id. So n, and the position that a scale reads from it, restart in each
            document. Padding takes an id of its own.
        normalizer: A `Normalizer`, its name, as in "ssmax(s=0.43)", or any function with the signature of
            `jax.nn.softmax`. Its numbers per head have the shape (heads, 1, 1).
        implementation: "dense" forms all logits at once. "streaming" forms those of a block of queries at a time, in
            little memory, for any normalizer (see `by_queries`). "xla" and "cudnn" call the fused kernels of
            `jax.nn.dot_product_attention` (see `fused`). None streams above `STREAM_ABOVE` logits of many queries,
            on accelerators `ACCELERATOR_STREAM_ABOVE`, unless the weights are asked for, and is dense otherwise.
        block_size: The queries of a block of "streaming".
        return_weights: Whether to return the weights too.
        precision: That of the products in `jax.lax.dot_general`, where no fused kernel computes them.

    Returns:
        The output in the type of the query, or (output, weights) with `return_weights`. Logits and weights are
        float32, and float64 for float64 inputs.

    Raises:
        ValueError: For shapes that do not fit and for what an implementation cannot do.
        TypeError: For types that do not fit, both before anything is computed.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.eye(4).reshape(4, 1, 4)
        >>> output, weights = dot_product_attention(x, x, x, is_causal=True, normalizer="ssmax", return_weights=True)
        >>> output.shape, weights.shape, weights[0, 0].tolist()
        ((4, 1, 4), (1, 4, 4), [1.0, 0.0, 0.0, 0.0])

    References:
        Vaswani et al., "Attention is all you need", arXiv 1706.03762.
    """
    checks.flag("is_causal", is_causal)
    checks.flag("return_weights", return_weights)
    _check_implementation(implementation, block_size, return_weights)
    query, key, value = (checks.array(*pair) for pair in (("query", query), ("key", key), ("value", value)))
    check_layout(query, key, value)
    check_scale(scale)
    batched = query.ndim == 4
    shape = (query.shape[0] if batched else 1, query.shape[-2], query.shape[-3], key.shape[-3])
    bias, mask = as_bias_and_mask(bias, mask, shape)
    normalizer = as_normalizer(normalizer)
    check_numbers(normalizer, shape)
    lengths = (
        as_lengths("query_seq_lengths", query_seq_lengths, shape[0]),
        as_lengths("key_value_seq_lengths", key_value_seq_lengths, shape[0]),
    )
    options = Options(bool(is_causal), as_window(local_window_size), precision)
    segments = as_segments(segment_ids, query.shape[:-3], shape[2], shape[3])
    query, key, value = (jnp.asarray(array if batched else array[None]) for array in (query, key, value))
    inputs = Inputs(query, key, value, bias, mask, lengths, normalizer, options, segments)
    implementation = "dense" if return_weights else _choose(inputs, implementation)
    if implementation in ("xla", "cudnn"):
        check_fused(normalizer, bias)
    attend = functools.partial(_attend, implementation=implementation, block_size=block_size)
    batch, queries, heads, _ = spec_of(query)
    weights_spec = PartitionSpec(batch, heads, queries, None) if implementation == "dense" else None
    output, weights = as_one(attend, (inputs, scale), (spec_of(query), weights_spec))()
    if not batched:
        output, weights = output[0], None if weights is None else weights[0]
    return (output, weights) if return_weights else output


def _check_implementation(implementation: Implementation | None, block_size: int | None, return_weights: bool) -> None:
    """Raises unless an implementation, if named, has the blocks and the weights that are asked for."""
    if implementation is not None:
        checks.one_of("implementation", implementation, get_args(Implementation))
    if block_size is not None:
        checks.whole("block_size", block_size, 1, 1024)
    if block_size is not None and implementation not in (None, "streaming"):
        raise Refusal(
            f"block_size is {block_size} and implementation {implementation!r}, which has no blocks: it must be "
            "'streaming' or None, or leave block_size out"
        )
    if return_weights and implementation not in (None, "dense"):
        raise Refusal(f"implementation={implementation!r} never forms all weights: return_weights needs 'dense'")


def _choose(inputs: Inputs, implementation: Implementation | None) -> Implementation:
    """Returns the implementation that is named, or "streaming" where blocks of queries save memory, or "dense"."""
    if 0 in (*inputs.shape, inputs.query.shape[-1]):
        return "dense"  # as nothing can be cut into blocks
    if implementation is not None:
        return implementation
    threshold = STREAM_ABOVE if on_cpu() else ACCELERATOR_STREAM_ABOVE
    if not all(map(is_known, inputs.shape)) or math.prod(inputs.shape) <= threshold:
        return "dense"
    batch, _, queries, _ = inputs.shape
    # Few queries over long rows are one block already, or blocks so small that each reads all keys for little.
    few = queries <= LEAST_QUERIES and (queries_of_block(inputs) < queries or batch == 1)
    return "dense" if few else "streaming"


def _attend(
    inputs: Inputs, scale: ArrayLike | None, *, implementation: Implementation, block_size: int | None
) -> tuple[Outputs, Weights | None]:
    """Returns the output in the type of the query, and the weights if the implementation forms them."""
    dtype = inputs.query.dtype
    inputs = inputs._replace(query=scaled_query(inputs.query, scale))
    dense = implementation == "dense"
    if naming() and not dense:
        name_rows(inputs.normalizer, inputs.logits(), LAST, inputs.visible())
    with name_bad_rows(naming() and dense):
        output, weights = IMPLEMENTATIONS[implementation](inputs, block_size)
    return output.astype(dtype), weights
