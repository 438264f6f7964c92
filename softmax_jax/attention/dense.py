"""Attention with any normalizer between logits and weights, under one name for all its implementations."""

import math
from typing import Literal, Unpack, get_args, overload

from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from softmax_jax.attention.fused import fused_attention
from softmax_jax.attention.logits import (
    Given,
    Inputs,
    Keys,
    Options,
    Queries,
    Weights,
    as_normalizer,
    attention_logits,
    weighted_values,
)
from softmax_jax.attention.streaming import streaming_attention
from softmax_jax.attention.whole_rows import queries_of_block
from softmax_jax.normalizers import checks
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.streaming import streams
from softmax_jax.normalizers.surroundings import as_one, is_known, spec_of

Implementation = Literal["dense", "streaming", "xla", "cudnn"]

STREAM_ABOVE = 2**21
"""Logits, of all batch entries, heads, queries and keys, above which attention streams unless told otherwise.

By `python -m benchmarks.attention --rounds 3` on 2 cores of an x86-64 CPU, 2026-11-24, forward and backward, blocks
take 0.84 × the time of dense attention at 2048 × 2048 under softmax, 0.82 × under adaptive, 0.88 × under entmax15, and
from a seventh to an eleventh of the memory.
"""

SEARCH_ABOVE = 2**25
"""The same where a search reads blocks of keys: entmax15 takes 1.2 × the time of dense attention at 64 × 65,536."""


@overload
def dot_product_attention(
    query: Queries,
    key: Keys,
    value: Keys,
    bias: Given = None,
    mask: Given = None,
    *,
    implementation: Implementation | None = None,
    block_size: int | None = None,
    return_weights: Literal[False] = False,
    **options: Unpack[Options],
) -> Queries: ...


@overload
def dot_product_attention(
    query: Queries,
    key: Keys,
    value: Keys,
    bias: Given = None,
    mask: Given = None,
    *,
    implementation: Implementation | None = None,
    block_size: int | None = None,
    return_weights: Literal[True],
    **options: Unpack[Options],
) -> tuple[Queries, Weights]: ...


def dot_product_attention(
    query: Queries,
    key: Keys,
    value: Keys,
    bias: Given = None,
    mask: Given = None,
    *,
    scale: ArrayLike | None = None,
    is_causal: bool = False,
    query_seq_lengths: Given = None,
    key_value_seq_lengths: Given = None,
    local_window_size: Given = None,
    normalizer: Normalizer | str = "softmax",
    implementation: Implementation | None = None,
    block_size: int | None = None,
    return_weights: bool = False,
) -> Queries | tuple[Queries, Weights]:
    r"""`jax.nn.dot_product_attention` with any normalizer in the place of softmax.

    $$o_i = \sum_j w_{ij} v_j, \qquad w_i = \operatorname{normalizer}(\text{scale} \cdot k\, q_i + b_i)$$

    `heads` must be a multiple of `kv_heads`: equal is multi-head, less is grouped-query, one is multi-query
    attention. `scale` is 1/√size unless given. `bias` is added to the logits. `bias` and `mask` broadcast to
    (batch, heads, queries, keys).

    An entry is visible where `mask` is True; under `is_causal`, where its key comes no later than its query;
    where both lie within their `seq_lengths`, one whole number per batch entry; and where its key is at most
    `local_window_size` = (left, right) positions from its query, one number standing for both sides. A `bias` of
    -9,000 or less hides its entry too, as one of -inf does: a position bias that grows so low is a mask. The size of
    scale · k q hides nothing. All of these combine, and n in a scale such as that of SSMax counts the entries that a
    query sees under them. A query that sees nothing has weights and output 0; there `jax.nn.dot_product_attention`
    weighs all keys alike.

    `normalizer` is a `Normalizer` or its name, as in "ssmax(s=0.43)". Its per-head numbers have the shape
    (heads, 1, 1). With `return_weights` the result is (output, weights). Logits and weights are float32
    (float64 for float64 input), the output has the type of the input.

    `implementation` says how: "dense" forms all logits at once, "streaming" those of a block at a time, of `block_size`
    keys if that is given (see `streaming_attention`), "xla" and "cudnn" ride `jax.nn.dot_product_attention` (see
    `fused_attention`). None is dense up to `STREAM_ABOVE` logits, or `SEARCH_ABOVE` where blocks of keys are read many
    times in search of a threshold, and beyond that streams, if the normalizer can and the weights are not asked for.

    Raises ValueError for shapes that do not fit and for what an implementation cannot do, and TypeError for types
    that do not fit, before computing anything.

    Source: Vaswani et al., "Attention is all you need", arXiv 1706.03762.

    >>> import jax.numpy as jnp
    >>> x = jnp.eye(4).reshape(4, 1, 4)
    >>> output, weights = dot_product_attention(x, x, x, is_causal=True, normalizer="ssmax", return_weights=True)
    >>> output.shape, weights.shape, weights[0, 0].tolist()
    ((4, 1, 4), (1, 4, 4), [1.0, 0.0, 0.0, 0.0])
    """
    options = Options(
        scale=scale,
        is_causal=is_causal,
        query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths,
        local_window_size=local_window_size,
        normalizer=as_normalizer(normalizer),
    )
    inputs = Inputs.checked(query, key, value, bias, mask, options)
    if implementation is not None:
        checks.one_of("implementation", implementation, get_args(Implementation))
    checks.flag("return_weights", return_weights)
    how = implementation or _implementation(inputs, block_size, return_weights)
    if block_size is not None:
        checks.whole("block_size", block_size, 1, 1024)
    if block_size is not None and implementation not in (None, "streaming"):
        raise ValueError(
            f"block_size is {block_size} and implementation {implementation!r}, which has no blocks: it must be "
            "'streaming' or None, or leave block_size out"
        )
    if return_weights and how != "dense":
        raise ValueError(f"implementation={how!r} never forms all weights: return_weights needs 'dense'")
    arrays = (query, key, value, bias, mask)
    match how:
        case "streaming":
            return streaming_attention(*arrays, block_size=block_size, **options)
        case "xla" | "cudnn":
            return fused_attention(*arrays, implementation=how, **options)

    def attend(inputs: Inputs) -> tuple[Queries, Weights]:
        logits = attention_logits(inputs.query, inputs.key, inputs.bias, inputs.scale)
        weights = inputs.normalizer.weigh(logits, where=inputs.visible())
        output = inputs.returned(weighted_values(weights, inputs.value))
        return output, weights.reshape(*query.shape[:-3], *inputs.shape[1:])

    *batch, queries, heads, _ = spec_of(query)
    output, weights = as_one(attend, inputs, out=(spec_of(query), PartitionSpec(*batch, heads, queries, None)))
    return (output, weights) if return_weights else output


def _implementation(inputs: Inputs, block_size: int | None, return_weights: bool) -> Implementation:
    """The one to use when none is named."""
    normalizer = inputs.normalizer
    if return_weights or not streams(normalizer):
        return "dense"
    by_keys = block_size is not None or queries_of_block(inputs) is None
    if not all(map(is_known, inputs.shape)):
        return "dense"
    most = SEARCH_ABOVE if by_keys and getattr(normalizer.map, "searches", False) else STREAM_ABOVE
    return "streaming" if math.prod(inputs.shape) > most else "dense"
