"""Attention on the fused softmax kernels of `jax.nn.dot_product_attention`, for every normalizer that is a softmax.

A scale is a factor on the query, as β z = (β q)·k. A kernel never shows the logits z, but called with the keys as
values it gives their mean under the weights, E[z] = q·Σ p k, and its residual is lse(z) = log Σ e^z. A scale that reads
the entropy, and a sink of logit s, need no more:

    H = -Σ p log p = lse(z) - E[z], as log p = z - lse(z)
    e^z / (e^s + Σ e^z) = p / (1 + e^(s - lse(z)))

JAX gives the log-sum-exp no gradient, so we write one for what depends on it.

"xla" computes in float32 on any device. "cudnn" computes in the type of the input, float16 or bfloat16, on GPUs, where
an entropy has the rounding of that type, and only reverse mode works. A query that sees nothing gets 0, unlike in JAX.
We shrink the factor of a query whose logits could exceed 1e38, as "xla" marks hidden logits by -2.4e38.
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
from softmax_jax.refusal import Refusal

PerQuery = Float[Array, "batch heads queries 1"]

LARGEST_LOGIT = 1e38
"""What logits are kept below on "xla": those that it hides are -2.4e38."""

PLAIN, WITH_SINK = (Softmax, ShiftedSoftmax), (Softmax1, SinkSoftmax, SoftmaxN)
"""Maps that are the kernel's softmax, and those that are it times a factor for a sink afterwards."""


def attend_by_kernel(inputs: Inputs, implementation: Literal["xla", "cudnn"]) -> Outputs:
    """Returns the output of inputs that `check_fused` lets pass."""
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
    # The mask hides what the bias hides too: a row of nothing but -inf would be NaN.
    mask = inputs._replace(lengths=(None, None), options=Options()).visible()
    kernel = functools.partial(jax.nn.dot_product_attention, mask=mask, implementation=implementation, **by_position)
    row, beta = FusedRow(kernel, inputs), jnp.ones((1,) * 4, jnp.float32)
    if normalizer.scale is not None:
        beta = cast(Any, normalizer.scale).of_row(row)
        # β (q·k) = (β q)·k, so the scale costs no pass over the keys. A bias takes β apart from the query:
        # β (q·k + b) = (β q)·k + β b.
        most = _largest_factor(query, inputs.key)
        query = query * _swapped(jnp.clip(jnp.broadcast_to(beta, most.shape), -most, most))
    bias = None if bias is None else _bounded(bias.astype(jnp.float32), beta)
    if not isinstance(normalizer.map, Softmax1):
        output = row.call(query, inputs.value, bias=bias)
    else:
        # Logits 2, 1, 0 have lse = 2.408; a sink at 1 leaves 1 / (1 + e^(1 - 2.408)) = 0.803 to them, and
        # 0.803 · 0.665 = 0.534 to the first: it is e² / (e + e² + e + 1).
        output, lse = row.call(query, inputs.value, return_residual=True)
        share = jax.nn.sigmoid(row.log_sum_exp(query, lse) - row.number(normalizer.map.sink_logit()))
        output = output * _swapped(share)
    # The kernel weighs all keys alike where nothing is visible.
    return jnp.where(_swapped(row.count()) == 0, 0, output)


def runs_fused(normalizer: Normalizer) -> bool:
    """Returns True if a softmax kernel gives the weights, up to a factor on the query or on the output."""
    by_row = normalizer.scale is None or hasattr(normalizer.scale, "of_row")
    return by_row and type(normalizer.map) in PLAIN + WITH_SINK


class FusedRow(Row):
    """A `Row` without its logits: its entropy and count come from calls of a kernel. The query is scaled."""

    def __init__(self, kernel: Callable[..., Any], inputs: Inputs) -> None:
        # Past the lock of the frozen class. It has no logits, so that reading them ends in __getattr__.
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
        # dH = -Σ (log p + 1) dp = -Σ z dp, as log p = z - lse and Σ dp = 0. So the entropy moves with the weights only:
        # lse, and the z that are weighed, are constants, and the gradient goes through the weights of the kernel. At
        # z = (2, 1, 0), p = (0.665, 0.245, 0.090) and H = 0.832. If z₁ grows by dz, dp = (0.223, -0.163, -0.060) dz,
        # so dH = -(2 · 0.223 - 0.163) dz = -0.283 dz.
        fixed_query, fixed_key = jax.lax.stop_gradient((self.inputs.query, self.inputs.key))
        mean_key, lse = self.call(self.inputs.query, fixed_key, return_residual=True)
        entropy = jax.lax.stop_gradient(lse) - _product(fixed_query, mean_key)
        # Rounding of a difference of two large numbers may give what no entropy can be.
        return jnp.clip(entropy, 0, jnp.log(jnp.maximum(self.count(), 1)))

    def log_sum_exp(self, query: Queries, residual: PerQuery) -> PerQuery:
        """Returns the residual of this query, with a derivative."""
        # d log Σ e^z = Σ e^z dz / Σ e^z = Σ p dz: the derivative of the mean logit q·Σ p k with p fixed. A call whose
        # weights come from a fixed query and fixed keys, and whose values are the keys, has it. At z = (2, 1, 0),
        # lse = 2.408 and its slopes are p = (0.665, 0.245, 0.090).
        fixed_query, fixed_key = jax.lax.stop_gradient((query, self.inputs.key))
        mean_key = self.call(fixed_query, self.inputs.key, key=fixed_key)
        return _with_derivative_of(jax.lax.stop_gradient(residual), _product(query, mean_key))

    def call(
        self, query: Queries, value: Keys, *, key: Keys | None = None, bias: Bias = None, return_residual: bool = False
    ) -> Any:
        """Returns the output of the kernel in float32, and with `return_residual` the log-sum-exp of each row."""
        keys: Keys = self.inputs.key if key is None else key
        bias = None if bias is None else bias.astype(keys.dtype)
        result = self.kernel(query.astype(keys.dtype), keys, value, bias, scale=1.0, return_residual=return_residual)
        if not return_residual:
            return result.astype(jnp.float32)
        output, residual = result
        return output.astype(jnp.float32), jnp.moveaxis(residual, 1, 2)[..., None].astype(jnp.float32)


def _largest_factor(query: Queries, key: Keys) -> PerQuery:
    """Returns the factor at which the logits of a query could reach `LARGEST_LOGIT`; infinite for half types."""
    batch, queries, heads, _ = query.shape
    if key.dtype != jnp.float32:
        return jnp.full((batch, heads, queries, 1), jnp.inf, jnp.float32)
    # |q·k_j| ≤ Σ_d |q_d| max_j |k_jd| = r, and a factor c keeps every logit within c·r: 1e38 / r is the largest safe
    # one. q = (3, -4) and keys (1, 2), (-2, 1) have r = 3·2 + 4·2 = 14, and logits -5 and -10.
    query, key = jax.lax.stop_gradient((query, key))
    furthest = jnp.repeat(jnp.max(jnp.abs(key), 1, keepdims=True, initial=0), heads // key.shape[2], 2)
    reach = _swapped(jnp.sum(jnp.abs(query) * furthest, -1, keepdims=True))
    # A row with logits that are not finite is NaN whatever the factor.
    return jnp.where(jnp.isfinite(reach), LARGEST_LOGIT / reach, jnp.inf)


def _bounded(bias: Float[Array, "..."], beta: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns β times the bias, within ±`LARGEST_LOGIT`; what is not finite stays."""
    finite = jnp.isfinite(bias)
    product = beta * jnp.where(finite, bias, 0)
    return jnp.where(finite, at_most(at_least(product, -LARGEST_LOGIT), LARGEST_LOGIT), bias)


def _swapped(number: Float[Array, "batch one other 1"]) -> Float[Array, "batch other one 1"]:
    """Returns a number of each row of logits laid out like the queries, or one laid out so as a number of each row."""
    return jnp.moveaxis(number, 1, 2)


@jax.custom_jvp
def _with_derivative_of(value: PerQuery, other: PerQuery) -> PerQuery:
    """Returns the value; its derivative is that of the other, which may be infinite where the value is not."""
    return value


@_with_derivative_of.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    return primals[0], tangents[1]


def _product(query: Queries, key: Queries) -> PerQuery:
    """Returns the logit of each query with a key of its own."""
    return _swapped(jnp.sum(query * key, -1, keepdims=True))


def check_fused(normalizer: Normalizer, bias: Bias) -> None:
    """Raises unless a kernel gives the weights of the normalizer, and knows what it needs of a bias."""
    name = name_of(normalizer.map)
    if type(normalizer.map) not in PLAIN + WITH_SINK:
        raise Refusal(f"the map {name} is no softmax and rides no fused kernel: use implementation='streaming'")
    if not runs_fused(normalizer):
        raise Refusal(
            f"the scale {name_of(normalizer.scale)} needs the logits, which a fused kernel never forms: "
            "give it a method of_row(row), or use implementation='streaming'"
        )
    if bias is not None and type(normalizer.map) in WITH_SINK:
        raise Refusal(
            f"a fused kernel does not give the mean of a bias, of which {name} needs it: leave bias out, "
            "or use implementation='streaming'"
        )
