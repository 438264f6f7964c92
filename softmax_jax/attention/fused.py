"""Attention on the fused softmax kernels of `jax.nn.dot_product_attention`, for every normalizer that is a softmax.

A scale is a factor on the query. Where it depends on the entropy of the row, a first call with the keys as values
gives the mean logit E[z], and its residual the log-sum-exp, so that H = lse - E[z]. A sink leaves the output times
1 / (1 + exp(sink - lse)). The residual has no derivative of its own; the others are written such that theirs is right.

    softmax(β z) v = attention(β q, k, v)
    H = -Σ p log p = lse(z) - s·q·attention(q, k, k), as log p = z - lse(z)

"xla" computes in float32 on any device; "cudnn" in the type of the input, float16 or bfloat16, on GPUs, where an
entropy so carries the rounding of that type, and the gradient is of reverse mode alone. A query that sees nothing gets
0, unlike in JAX. "xla" marks what is masked by a logit of -2.4e38. To stay above it, the factor on a query whose logits
might be beyond ±1e38, judged by Σ |q| times the largest |k|, is less, down to where they cannot.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.attention.inputs import Bias, Inputs, Keys, Options, Outputs, Queries
from softmax_jax.normalizers.arithmetic import at_least, at_most
from softmax_jax.normalizers.checks import against
from softmax_jax.normalizers.maps import ShiftedSoftmax, SinkSoftmax, Softmax, Softmax1, SoftmaxN
from softmax_jax.normalizers.naming import name_of
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.row import Row
from softmax_jax.normalizers.scales import EntropyInterpolation, EntropyPolynomial
from softmax_jax.refusal import Refusal

PerQuery = Float[Array, "batch heads queries 1"]

LARGEST_LOGIT = 1e38
"""What logits are kept below on "xla": those that it masks are -2.4e38."""


PLAIN, WITH_SINK = (Softmax, ShiftedSoftmax), (Softmax1, SinkSoftmax, SoftmaxN)
"""Maps that are the kernel's softmax, and those that are it times a factor for a sink afterwards."""
READ_ENTROPY = EntropyPolynomial, EntropyInterpolation


def ride(inputs: Inputs, implementation: Literal["xla", "cudnn"]) -> Outputs:
    """Attention of inputs that a kernel will do for: "xla" on any device, "cudnn" on GPUs."""
    normalizer, bias, options, key = inputs.normalizer, inputs.bias, inputs.options, inputs.key
    dtype = key.dtype if implementation == "cudnn" else jnp.float32
    query = inputs.query.astype(jnp.float32)
    query = query * _swapped(jnp.minimum(_largest_factor(query, key.astype(dtype)), 1))
    inputs = inputs._replace(query=query, key=key.astype(dtype), value=inputs.value.astype(dtype))
    by_position = {
        "is_causal": options.is_causal,
        "query_seq_lengths": inputs.lengths[0],
        "key_value_seq_lengths": inputs.lengths[1],
        "local_window_size": options.window,
    }
    # With what the bias hides, or a row that has nothing else would be NaN.
    mask = inputs._replace(lengths=(None, None), options=Options()).visible()
    kernel = functools.partial(jax.nn.dot_product_attention, mask=mask, implementation=implementation, **by_position)
    row, beta = FusedRow(kernel, inputs), jnp.ones((1,) * 4, jnp.float32)
    if normalizer.scale is not None:
        beta = cast(Any, normalizer.scale).of_row(row)
        most = _largest_factor(query, inputs.key)
        query = query * _swapped(jnp.clip(jnp.broadcast_to(beta, most.shape), -most, most))
    bias = None if bias is None else _bounded(bias.astype(jnp.float32), beta)
    if not isinstance(normalizer.map, Softmax1):
        output = row.call(query, inputs.value, bias=bias)
    else:
        output, residual = row.call(query, inputs.value, return_residual=True)
        share = jax.nn.sigmoid(row.log_sum_exp(query, residual) - row.number(normalizer.map.sink_logit()))
        output = output * _swapped(share)
    # The kernel weighs all keys alike where nothing is visible.
    return jnp.where(_swapped(row.count()) == 0, 0, output)


def rides(normalizer: Normalizer) -> bool:
    """Returns True if a softmax kernel gives the weights, up to a factor on the query or on the output."""
    by_row = normalizer.scale is None or hasattr(normalizer.scale, "of_row")
    return by_row and type(normalizer.map) in PLAIN + WITH_SINK


class FusedRow(Row):
    """A `Row` without its logits: what a scale asks of it comes from calls of a kernel. The query is scaled."""

    def __init__(self, kernel: Callable[..., Any], inputs: Inputs) -> None:
        # Past the lock of the frozen class; the logits are left out, so that asking for them ends in __getattr__.
        self.__dict__.update(kernel=kernel, inputs=inputs, visible=inputs.visible(), axis=-1)

    def __getattr__(self, name: str) -> Any:
        raise Refusal(f"a fused kernel never forms the logits for row.{name}: use implementation='streaming'")

    def number(self, value: ArrayLike) -> Float[Array, "..."]:
        return against(value, jnp.zeros((1,) * 4, jnp.float32))

    def count(self) -> PerQuery:
        *rows, keys = self.inputs.shape
        visible = jnp.ones((1,) * 4, bool) if self.visible is None else self.visible
        for_each_key = jnp.broadcast_to(visible, (*visible.shape[:-1], keys))
        count = jnp.sum(for_each_key, -1, keepdims=True).astype(jnp.float32)
        return jnp.broadcast_to(count, (*rows, 1))

    def entropy(self) -> PerQuery:
        if self.inputs.bias is not None:
            raise Refusal(
                "a fused kernel does not give the mean of a bias, of which the entropy needs it: leave bias out, "
                "or use implementation='streaming'"
            )
        fixed_query, fixed_key = jax.lax.stop_gradient((self.inputs.query, self.inputs.key))
        mean_key, lse = self.call(self.inputs.query, fixed_key, return_residual=True)
        # dH = -Σ z dp: where the entropy moves, it is because the weights do, and not for the logits they weigh.
        entropy = jax.lax.stop_gradient(lse) - _product(fixed_query, mean_key)
        # The difference of two large numbers may be rounded to what no entropy can be.
        return jnp.clip(entropy, 0, jnp.log(jnp.maximum(self.count(), 1)))

    def log_sum_exp(self, query: Queries, residual: PerQuery) -> PerQuery:
        """The residual for this query, with its derivative: that of the mean logit at fixed weights."""
        fixed_query, fixed_key = jax.lax.stop_gradient((query, self.inputs.key))
        mean_key = self.call(fixed_query, self.inputs.key, key=fixed_key)
        return _with_derivative_of(jax.lax.stop_gradient(residual), _product(query, mean_key))

    def call(
        self, query: Queries, value: Keys, *, key: Keys | None = None, bias: Bias = None, return_residual: bool = False
    ) -> Any:
        """The output of the kernel in float32, and the log-sum-exp of each row if asked for."""
        keys: Keys = self.inputs.key if key is None else key
        bias = None if bias is None else bias.astype(keys.dtype)
        called = self.kernel(query.astype(keys.dtype), keys, value, bias, scale=1.0, return_residual=return_residual)
        if not return_residual:
            return called.astype(jnp.float32)
        output, residual = called
        return output.astype(jnp.float32), jnp.moveaxis(residual, 1, 2)[..., None].astype(jnp.float32)


def _largest_factor(query: Queries, key: Keys) -> PerQuery:
    """The factor at which the logits of a query might reach `LARGEST_LOGIT`; infinite on kernels that do not care."""
    batch, queries, heads, _ = query.shape
    if key.dtype != jnp.float32:
        return jnp.full((batch, heads, queries, 1), jnp.inf, jnp.float32)
    query, key = jax.lax.stop_gradient((query, key))
    furthest = jnp.repeat(jnp.max(jnp.abs(key), 1, keepdims=True, initial=0), heads // key.shape[2], 2)
    reach = _swapped(jnp.sum(jnp.abs(query) * furthest, -1, keepdims=True))
    # Of logits that are not finite, the row is NaN.
    return jnp.where(jnp.isfinite(reach), LARGEST_LOGIT / reach, jnp.inf)


def _bounded(bias: Float[Array, "..."], beta: Float[Array, "..."]) -> Float[Array, "..."]:
    """β times the bias, within ±`LARGEST_LOGIT`; what is not finite stays."""
    finite = jnp.isfinite(bias)
    product = beta * jnp.where(finite, bias, 0)
    return jnp.where(finite, at_most(at_least(product, -LARGEST_LOGIT), LARGEST_LOGIT), bias)


def _swapped(number: Float[Array, "batch one other 1"]) -> Float[Array, "batch other one 1"]:
    """A number of each row of logits, laid out like the queries; or back from there."""
    return jnp.moveaxis(number, 1, 2)


@jax.custom_jvp
def _with_derivative_of(value: PerQuery, other: PerQuery) -> PerQuery:
    """Returns the value; its derivative is that of the other, which may be infinite where the value is not."""
    return value


@_with_derivative_of.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    return primals[0], tangents[1]


def _product(query: Queries, key: Queries) -> PerQuery:
    """Logit of each query with a key of its own."""
    return _swapped(jnp.sum(query * key, -1, keepdims=True))


def check_rides(normalizer: Normalizer, bias: Bias) -> None:
    """Raises unless a kernel will do."""
    name = name_of(normalizer.map)
    if type(normalizer.map) not in PLAIN + WITH_SINK:
        raise Refusal(f"the map {name} is no softmax and rides no fused kernel: use implementation='streaming'")
    if not rides(normalizer):
        raise Refusal(
            f"the scale {type(normalizer.scale).__name__} needs the logits, which a fused kernel never forms: "
            "give it a method of_row(row), or use implementation='streaming'"
        )
    if bias is not None and type(normalizer.map) in WITH_SINK:
        raise Refusal(
            f"a fused kernel does not give the mean of a bias, of which {name} needs it: leave bias out, "
            "or use implementation='streaming'"
        )
