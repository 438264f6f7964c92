"""Arithmetic of rows that neither compilers nor extreme numbers break.

Sums carry a NaN from one entry to its row. Maxima do not: on CPU the maximum of a row may drop it, and so may that of
two numbers in a loop over a sum. What is here keeps NaN, stays finite where the result is, and rounds one way only.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from softmax_jax.normalizers.execution import on_cpu


def at_least(values: Float[Array, "*shape"], low: ArrayLike) -> Float[Array, "*shape"]:
    """Returns the larger of the two, and NaN where the values are."""
    return jnp.where(values < low, low, values)


def at_most(values: Float[Array, "*shape"], high: ArrayLike) -> Float[Array, "*shape"]:
    """Returns the smaller of the two, and NaN where the values are."""
    return jnp.where(values > high, high, values)


def reaches(values: Float[Array, "*shape"], bound: Float[Array, "..."]) -> Bool[Array, "*shape"]:
    """Returns where values are not below a bound that was computed from them, such as the largest of their row.

    Every choice that hangs on the last bit is made here. A compiler may compute the same values once for the bound and
    again for the comparison, and fuse a product in them with a subtraction that follows, which rounds otherwise: so
    they are compared directly, never by the sign of their difference. NaN reaches everything.
    """
    return ~(values < bound)


def place_of_largest(values: Float[Array, "*rows n"]) -> Int[Array, "*rows"]:
    """Returns the place of the first largest entry of each row without NaN, as `argmax` does.

    On CPUs XLA's `argmax` looks at one entry after the other: with it, an item of 1,024 or 16,384 takes `evaluate.py`
    1.12 × as long (two AVX-512 cores, November 2026).

    >>> place_of_largest(jnp.array([[1.0, 3.0, 3.0], [7.0, 0.0, 5.0]])).tolist()
    [1, 0]
    """
    if not on_cpu():
        return jnp.argmax(values, -1).astype(jnp.int32)
    # The barrier keeps the values from being computed once for the maximum and again for the comparison.
    values = jax.lax.optimization_barrier(values)
    places = jnp.arange(values.shape[-1], dtype=jnp.int32)
    return jnp.where(reaches(values, values.max(-1, keepdims=True)), places, values.shape[-1]).min(-1)


def as_pivot(maximum: Float[Array, "*row"]) -> Float[Array, "*row"]:
    """Returns what to subtract from a row: its maximum, the lowest number for an empty row, NaN for a row with +inf."""
    # From the lowest number -inf is as far as from any other, so that e^(z - pivot) of an empty row is 0. Of +inf
    # the difference inf - inf would be NaN, of the other entries -inf: NaN for both says that the row has no weights.
    lowest = float(jnp.finfo(maximum.dtype).min)
    return jnp.where(maximum == jnp.inf, jnp.nan, jnp.maximum(maximum, lowest))


def subtract_pivot(logits: Float[Array, "*shape"], pivot: Float[Array, "*row"]) -> Float[Array, "*shape"]:
    """Returns logits less a pivot, but never below the most negative finite number."""
    return at_least(logits - pivot, float(jnp.finfo(logits.dtype).min))


def times_row(values: Float[Array, "*shape"], number: Float[Array, "*row"]) -> Float[Array, "*shape"]:
    """Returns values times one number for each row."""
    # The transpose sums products over the row. XLA on CPUs (jax 0.10) hands product and sum to its library as one
    # operation, which takes 20 times as long as the two. `keep_apart` prevents that: adaptive attention of 1,024
    # queries and keys takes 0.6 of the time, forward and backward (2 cores with AVX-512).
    return values * keep_apart(number, values)


def keep_apart(summands: Float[Array, "*#shape"], like: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns the summands, NaN where `like` is: a select that stops XLA from fusing product and sum."""
    return jnp.where(jnp.isnan(like), jax.lax.stop_gradient(like), summands)


@jax.custom_jvp
def divide_row(values: Float[Array, "*shape"], divisor: Float[Array, "*row"]) -> Float[Array, "*shape"]:
    """Returns the values over the divisor of their row, which may be so small that its square is 0."""
    return values / divisor


@divide_row.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    # d(v/d) = dv/d - v·dd/d² = dv/d - (v/d)·(dd/d), where no square is formed: for v = d = 1e-30 in float32 d² is 0,
    # and both quotients are 1.
    shares, (values_change, divisor_change) = divide_row(*primals), (tangent / primals[1] for tangent in tangents)
    return shares, values_change - times_row(shares, divisor_change)


def product(beta: ArrayLike, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns β·z with one β for each row, kept finite, for finite logits: so 0 · inf cannot arise."""
    largest = float(jnp.finfo(logits.dtype).max)
    beta = jnp.clip(jnp.asarray(beta, logits.dtype), -largest, largest)
    return at_most(at_least(_times(beta, logits), -largest), largest)


@jax.custom_jvp
def _times(beta: Float[Array, "..."], logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return beta * logits


@_times.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    # d(β·z) = β·dz + z·dβ. A logit near the largest float, 3.4e38, times a dβ above 1 would be +inf; where its weight
    # is 0, the chain rule then multiplies 0 · inf = NaN. So z counts in the second term as at most 1e-8 of that float:
    # ±3.4e30 times any dβ up to 1e8 is finite.
    (beta, logits), (beta_change, logits_change) = primals, tangents
    bound = 1e-8 * float(jnp.finfo(logits.dtype).max)
    bounded = at_most(at_least(logits, -bound), bound)
    return _times(beta, logits), beta * logits_change + times_row(bounded, beta_change)
