"""Attention with any normalizer between logits and weights, under one name for all its implementations."""

import functools
import math
from typing import Literal, get_args, overload

from jax.typing import ArrayLike

from softmax_jax.attention.fused import fused_attention
from softmax_jax.attention.logits import (
    Bias,
    Keys,
    Lengths,
    Mask,
    Queries,
    Weights,
    Window,
    as_normalizer,
    attention_logits,
    check_inputs,
    check_numbers,
    visible_entries,
    weighted_values,
)
from softmax_jax.attention.streaming import streaming_attention
from softmax_jax.normalizers import checks
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.streaming import streams

Implementation = Literal["dense", "streaming", "xla", "cudnn"]

STREAM_ABOVE = 2**21
"""Logits, of all batch entries, heads, queries and keys, above which attention streams unless told otherwise.

By `python -m benchmarks.attention` on 2 cores of an x86-64 CPU that others used too, 2026-11-21, forward and backward,
softmax in blocks takes 0.8 × the time of dense attention at 2^18 logits, 0.65 × at 2^22 and 0.4 × at 2^24.
"""

SEARCH_ABOVE = 2**25
"""The same where the form searches: entmax15 takes 1.7 × the time of dense attention at 2^22, 1.2 × at 2^24."""


@overload
def dot_product_attention(
    query: Queries,
    key: Keys,
    value: Keys,
    bias: Bias = None,
    mask: Mask = None,
    *,
    scale: ArrayLike | None = None,
    is_causal: bool = False,
    query_seq_lengths: Lengths = None,
    key_value_seq_lengths: Lengths = None,
    local_window_size: Window = None,
    normalizer: Normalizer | str = "softmax",
    implementation: Implementation | None = None,
    block_size: int | None = None,
    return_weights: Literal[False] = False,
) -> Queries: ...


@overload
def dot_product_attention(
    query: Queries,
    key: Keys,
    value: Keys,
    bias: Bias = None,
    mask: Mask = None,
    *,
    scale: ArrayLike | None = None,
    is_causal: bool = False,
    query_seq_lengths: Lengths = None,
    key_value_seq_lengths: Lengths = None,
    local_window_size: Window = None,
    normalizer: Normalizer | str = "softmax",
    implementation: Implementation | None = None,
    block_size: int | None = None,
    return_weights: Literal[True],
) -> tuple[Queries, Weights]: ...


def dot_product_attention(
    query: Queries,
    key: Keys,
    value: Keys,
    bias: Bias = None,
    mask: Mask = None,
    *,
    scale: ArrayLike | None = None,
    is_causal: bool = False,
    query_seq_lengths: Lengths = None,
    key_value_seq_lengths: Lengths = None,
    local_window_size: Window = None,
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
    where both lie within their `seq_lengths`, one int32 per batch entry; and where its key is at most
    `local_window_size` = (left, right) positions from its query, one number standing for both sides. Keywords
    combine, and n in a scale such as that of SSMax counts the entries that a query sees under all of them. A
    query that sees nothing has weights and output 0; there `jax.nn.dot_product_attention` weighs all keys alike.

    `normalizer` is a `Normalizer` or its name, as in "ssmax(s=0.43)". Its per-head numbers have the shape
    (heads, 1, 1). With `return_weights` the result is (output, weights). Logits and weights are float32
    (float64 for float64 input), the output has the type of the input.

    `implementation` says how: "dense" forms all logits at once, "streaming" those of `block_size` keys at a time
    (see `streaming_attention`), "xla" and "cudnn" ride `jax.nn.dot_product_attention` (see `fused_attention`).
    None is dense up to `STREAM_ABOVE` logits, or `SEARCH_ABOVE` where blocks are read many times in search of a
    threshold, and beyond that streams, if the normalizer can and the weights are not asked for.

    Raises ValueError for shapes that do not fit and for what an implementation cannot do, and TypeError for types
    that do not fit, before computing anything.

    Source: Vaswani et al., "Attention is all you need", arXiv 1706.03762.

    >>> import jax.numpy as jnp
    >>> x = jnp.eye(4).reshape(4, 1, 4)
    >>> output, weights = dot_product_attention(x, x, x, is_causal=True, normalizer="ssmax", return_weights=True)
    >>> output.shape, weights.shape, weights[0, 0].tolist()
    ((4, 1, 4), (1, 4, 4), [1.0, 0.0, 0.0, 0.0])
    """
    lengths = query_seq_lengths, key_value_seq_lengths
    q, k, v, shape = check_inputs(query, key, value, bias, mask, *lengths, local_window_size, scale, is_causal)
    checks.yes_or_no("return_weights", return_weights)
    if implementation is not None:
        checks.one_of("implementation", implementation, get_args(Implementation))
    if block_size is not None:
        checks.whole("block_size", block_size, 1, 1024)
        if implementation not in (None, "streaming"):
            raise ValueError(
                f"block_size is {block_size} and implementation {implementation!r}, which has no blocks: it must be "
                "'streaming' or None, or leave block_size out"
            )
    chosen = as_normalizer(normalizer)
    check_numbers(chosen, shape)
    how = implementation or _implementation(shape, chosen, return_weights)
    if return_weights and how != "dense":
        raise ValueError(f"implementation={how!r} never forms all weights: return_weights needs 'dense'")
    match how:
        case "dense":
            visible = visible_entries(shape, mask, is_causal, *lengths, local_window_size)
            weights = chosen(attention_logits(q, k, bias, scale), where=visible)
            output = weighted_values(weights, v).astype(query.dtype).reshape(query.shape)
            return (output, weights.reshape(*query.shape[:-3], *shape[1:])) if return_weights else output
        case "streaming":
            attend = functools.partial(streaming_attention, block_size=block_size)
        case "xla" | "cudnn":
            attend = functools.partial(fused_attention, implementation=how)
    return attend(
        *(query, key, value, bias, mask),
        scale=scale,
        is_causal=is_causal,
        query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths,
        local_window_size=local_window_size,
        normalizer=chosen,
    )


def _implementation(shape: tuple[int, ...], normalizer: Normalizer, return_weights: bool) -> Implementation:
    """The one to use when none is named."""
    if return_weights or not streams(normalizer):
        return "dense"
    return (
        "streaming"
        if math.prod(shape) > (SEARCH_ABOVE if getattr(normalizer.map, "searches", False) else STREAM_ABOVE)
        else "dense"
    )
