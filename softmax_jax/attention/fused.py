"""Attention on the fused softmax kernels of `jax.nn.dot_product_attention`, for every normalizer that is a softmax.

A scale is a factor on the query. Where it depends on the entropy of the row, a first call with the keys as values
gives the mean logit E[z], and its residual the log-sum-exp, so that H = lse - E[z]. A sink leaves the output times
1 / (1 + exp(sink - lse)). The residual has no derivative of its own; the others are written such that theirs is right.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.attention.logits import (
    Bias,
    Keys,
    Lengths,
    Mask,
    Outputs,
    Queries,
    Window,
    align,
    as_normalizer,
    check_inputs,
    scaled_query,
    visible_entries,
)
from softmax_jax.attention.rows import attach
from softmax_jax.normalizers import checks, maps
from softmax_jax.normalizers.checks import against
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.scales import OfRow

SOFTMAXES = maps.softmax, maps.shifted_softmax
WITH_SINK = maps.softmax1, maps.sink_softmax

PerQuery = Float[Array, "batch heads queries 1"]


def fused_attention(
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
    implementation: Literal["xla", "cudnn"] = "xla",
) -> Outputs:
    r"""`dot_product_attention` on a fused kernel of JAX; see there for the other arguments and what they raise.

    $$\operatorname{softmax}(\beta\, z)\, v = \operatorname{attention}(\beta\, q, k, v), \qquad
      H = \operatorname{lse}(z) - s\, q^\top \operatorname{attention}(q, k, k)$$

    "xla" computes in float32 on any device; "cudnn" in the type of the input, float16 or bfloat16, on GPUs, where
    an entropy so carries the rounding of that type. A query that sees nothing gets 0, unlike in JAX. The gradient
    is of reverse mode alone in "cudnn".

    Raises ValueError for a map that is no softmax, for a scale without `of_row`, and for a bias together with an
    entropy or a sink, to both of which a kernel does not give the mean of the bias.

    Source: the identity is that of the entropy, H = -Σ p log p with log p = z - lse.

    >>> x = jnp.eye(4).reshape(4, 1, 4)
    >>> fused_attention(x, x, x, is_causal=True, normalizer="adaptive")[0, 0]
    Array([1., 0., 0., 0.], dtype=float32)
    """
    lengths = query_seq_lengths, key_value_seq_lengths
    q, k, v, shape = check_inputs(query, key, value, bias, mask, *lengths, local_window_size, scale, is_causal)
    checks.one_of("implementation", implementation, ("xla", "cudnn"))
    chosen = as_normalizer(normalizer)
    _check_rides(chosen, bias)
    jax.eval_shape(lambda logits: chosen(logits), jax.ShapeDtypeStruct((*shape[:-1], 1), jnp.float32))
    dtype = query.dtype if implementation == "cudnn" else jnp.float32
    kernel = functools.partial(
        jax.nn.dot_product_attention,
        mask=None if mask is None else align(mask, 4),
        is_causal=is_causal,
        query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths,
        local_window_size=local_window_size,
        implementation=implementation,
    )
    visible = visible_entries(shape, mask, is_causal, *lengths, local_window_size)
    row = FusedRow(kernel, scaled_query(q, scale).astype(jnp.float32), k.astype(dtype), shape, visible, bias is None)
    output = _attend(chosen, row, v.astype(dtype), bias)
    return output.astype(query.dtype).reshape(query.shape)


def rides(normalizer: Normalizer) -> bool:
    """Whether the weights are those of a softmax kernel under some factor on the query, or times one afterwards."""
    known = _function(normalizer) in (*SOFTMAXES, *WITH_SINK)
    return known and (normalizer.scale is None or hasattr(normalizer.scale, "of_row"))


@dataclasses.dataclass(frozen=True)
class FusedRow:
    """What a scale may know of each row, from calls of a kernel. The query is scaled."""

    kernel: Callable[..., Any]
    query: Queries
    key: Keys
    shape: tuple[int, int, int, int]
    visible: Mask
    without_bias: bool

    def number(self, value: ArrayLike) -> Float[Array, "..."]:
        return against(value, jnp.zeros((1,) * 4))

    def count(self) -> PerQuery:
        keys = self.shape[-1]
        if self.visible is None:
            return jnp.full((*self.shape[:-1], 1), keys, jnp.float32)
        own = jnp.broadcast_to(self.visible, (*self.visible.shape[:-1], keys))
        count = jnp.sum(own, -1, keepdims=True).astype(jnp.float32)
        return jnp.broadcast_to(count, (*self.shape[:-1], 1))

    def entropy(self) -> PerQuery:
        if not self.without_bias:
            raise ValueError(
                "a fused kernel does not give the mean of a bias, of which the entropy needs it: leave bias out, "
                "or use implementation='streaming'"
            )
        fixed_query, fixed_key = jax.lax.stop_gradient((self.query, self.key))
        mean_key, lse = self.call(self.query, fixed_key, return_residual=True)
        # dH = -Σ z dp: where the entropy moves, it is because the weights do, and not for the logits they weigh.
        entropy = jax.lax.stop_gradient(lse) - _product(fixed_query, mean_key)
        return jnp.where(self.count() > 0, entropy, 0)

    def log_sum_exp(self, query: Queries, residual: PerQuery) -> PerQuery:
        """The residual for this query, with its derivative: that of the mean logit at fixed weights."""
        fixed_query, fixed_key = jax.lax.stop_gradient((query, self.key))
        mean_key = self.call(fixed_query, self.key, key=fixed_key)
        return attach(jax.lax.stop_gradient(residual), _product(query, mean_key))

    def call(
        self, query: Queries, value: Keys, *, key: Keys | None = None, bias: Bias = None, return_residual: bool = False
    ) -> Any:
        """The output of the kernel in float32, and the log-sum-exp of each row if asked for."""
        key = self.key if key is None else key
        bias = None if bias is None else bias.astype(key.dtype)
        called = self.kernel(query.astype(key.dtype), key, value, bias, scale=1.0, return_residual=return_residual)
        if not return_residual:
            return called.astype(jnp.float32)
        output, residual = called
        return output.astype(jnp.float32), jnp.moveaxis(residual, 1, 2)[..., None].astype(jnp.float32)


def _attend(normalizer: Normalizer, row: FusedRow, value: Keys, bias: Bias) -> Outputs:
    """Output of the kernel under the normalizer, in float32."""
    query, bias = row.query, None if bias is None else align(bias, 4).astype(jnp.float32)
    if normalizer.scale is not None:
        beta = cast(OfRow, normalizer.scale).of_row(row)
        bias = None if bias is None else beta * bias
        query = query * jnp.moveaxis(jnp.broadcast_to(beta, (*row.shape[:-1], 1)), 1, 2)
    if _function(normalizer) in SOFTMAXES:
        output = row.call(query, value, bias=bias)
    else:
        output, residual = row.call(query, value, return_residual=True)
        sink = row.number(getattr(normalizer.map, "keywords", {}).get("sink", 0.0))
        share = jax.nn.sigmoid(row.log_sum_exp(query, residual) - sink)
        output = output * jnp.moveaxis(share, 1, 2)
    # The kernel weighs all keys alike where nothing is visible.
    return jnp.where(jnp.moveaxis(row.count() > 0, 1, 2), output, 0)


def _product(query: Queries, key: Queries) -> PerQuery:
    """Logit of each query with a key of its own."""
    return jnp.moveaxis(jnp.sum(query * key, -1, keepdims=True), 1, 2)


def _function(normalizer: Normalizer) -> Any:
    return getattr(normalizer.map, "func", normalizer.map)


def _check_rides(normalizer: Normalizer, bias: Bias) -> None:
    """Raises unless a kernel will do."""
    name = getattr(_function(normalizer), "__name__", repr(normalizer.map))
    if _function(normalizer) not in (*SOFTMAXES, *WITH_SINK):
        raise ValueError(f"the map {name} is no softmax and rides no fused kernel: use implementation='streaming'")
    if not rides(normalizer):
        raise ValueError(
            f"the scale {type(normalizer.scale).__name__} needs whole rows: give it a method of_row(row), "
            "or use implementation='dense'"
        )
    if bias is not None and _function(normalizer) in WITH_SINK:
        raise ValueError(
            f"a fused kernel does not give the mean of a bias, of which {name} needs it: leave bias out, "
            "or use implementation='streaming'"
        )
