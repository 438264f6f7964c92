"""Attention with any normalizer between logits and weights, under one name for all its implementations."""

import math
from typing import Any, Literal, get_args

import jax.numpy as jnp
from jax.lax import PrecisionLike
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from softmax_jax.attention import inputs as checked
from softmax_jax.attention.by_queries import LEAST_QUERIES, attend_by_queries, queries_of_block
from softmax_jax.attention.fused import check_rides, ride
from softmax_jax.attention.inputs import Given, Inputs, Keys, Options, Outputs, Queries, Values, Weights
from softmax_jax.normalizers import checks
from softmax_jax.normalizers.execution import as_one, is_known, spec_of
from softmax_jax.normalizers.naming import name_bad_rows, name_rows, naming
from softmax_jax.normalizers.registry import NormalizerLike, as_normalizer
from softmax_jax.refusal import Refusal

Implementation = Literal["dense", "streaming", "xla", "cudnn"]

STREAM_ABOVE = 2**21
"""Logits, of all batch entries, heads, queries and keys, above which attention streams unless told otherwise."""


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
    normalizer: NormalizerLike = "softmax",
    implementation: Implementation | None = None,
    block_size: int | None = None,
    return_weights: bool = False,
    precision: PrecisionLike = None,
) -> Any:
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

    `normalizer` is a `Normalizer`, its name, as in "ssmax(s=0.43)", or any function with the signature of
    `jax.nn.softmax`. Its per-head numbers have the shape
    (heads, 1, 1). Returns the output or, with `return_weights`, (output, weights). Logits and weights are float32
    (float64 for float64 input), the output has the type of the input. `precision` is that of the products in
    `jax.lax.dot_general`, where no fused kernel computes them.

    `implementation` says how: "dense" forms all logits at once, "streaming" those of some queries at a time, of
    `block_size` if that is given, in little memory for any normalizer (see `by_queries`); "xla" and "cudnn" ride the
    fused kernels of `jax.nn.dot_product_attention` (see `fused`). None is dense up to `STREAM_ABOVE` logits, for few
    queries, and where the weights are asked for; else it streams.

    Raises ValueError for shapes that do not fit and for what an implementation cannot do, and TypeError for types
    that do not fit, before computing anything.

    Source: Vaswani et al., "Attention is all you need", arXiv 1706.03762.

    >>> import jax.numpy as jnp
    >>> x = jnp.eye(4).reshape(4, 1, 4)
    >>> output, weights = dot_product_attention(x, x, x, is_causal=True, normalizer="ssmax", return_weights=True)
    >>> output.shape, weights.shape, weights[0, 0].tolist()
    ((4, 1, 4), (1, 4, 4), [1.0, 0.0, 0.0, 0.0])
    """
    checks.flag("is_causal", is_causal)
    checks.flag("return_weights", return_weights)
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
    query, key, value = (checks.array(*one) for one in (("query", query), ("key", key), ("value", value)))
    checked.check_layout(query, key, value)
    checked.check_scale(scale)
    batched = query.ndim == 4
    shape = (query.shape[0] if batched else 1, query.shape[-2], query.shape[-3], key.shape[-3])
    bias, mask = checked.bias_and_mask(bias, mask, shape)
    normalizer = as_normalizer(normalizer)
    checked.check_numbers(normalizer, shape)
    lengths = (
        checked.lengths_of("query_seq_lengths", query_seq_lengths, shape[0]),
        checked.lengths_of("key_value_seq_lengths", key_value_seq_lengths, shape[0]),
    )
    options = Options(bool(is_causal), checked.window_of(local_window_size), precision)
    query, key, value = (jnp.asarray(one if batched else one[None]) for one in (query, key, value))
    inputs = Inputs(query, key, value, bias, mask, lengths, normalizer, options)
    how = "dense" if return_weights else _implementation(inputs, implementation)
    if how in ("xla", "cudnn"):
        check_rides(normalizer, bias)

    def attend(inputs: Inputs, scale: ArrayLike | None) -> tuple[Outputs, Weights | None]:
        inputs, dtype = inputs._replace(query=checked.scaled_query(inputs.query, scale)), inputs.query.dtype
        if how == "dense":
            output, weights = inputs.attend()
            return output.astype(dtype), weights
        if naming():  # which forms all logits
            name_rows(inputs.normalizer, inputs.logits(), -1, inputs.visible())
        with name_bad_rows(False):
            output = attend_by_queries(inputs, block_size) if how == "streaming" else ride(inputs, how)
        return output.astype(dtype), None

    batch, queries, heads, _ = spec_of(query)
    of_weights = PartitionSpec(batch, heads, queries, None) if how == "dense" else None
    output, weights = as_one(attend, inputs, scale, out=(spec_of(query), of_weights))
    if not batched:
        output, weights = output[0], None if weights is None else weights[0]
    return (output, weights) if return_weights else output


def _implementation(inputs: Inputs, implementation: Implementation | None) -> Implementation:
    """The one that is named, or the best. Few queries over long rows gain nothing from blocks, and are for dense."""
    if 0 in (*inputs.shape, inputs.query.shape[-1]):
        return "dense"  # as nothing can be cut into blocks
    if implementation is not None:
        return implementation
    if not all(map(is_known, inputs.shape)) or math.prod(inputs.shape) <= STREAM_ABOVE:
        return "dense"
    batch, _, queries, _ = inputs.shape
    few = queries <= LEAST_QUERIES and (queries_of_block(inputs) < queries or batch == 1)
    return "dense" if few else "streaming"
