"""Maps: each turns a row of logits into weights, with the signature of `jax.nn.softmax`.

Every map computes in float32 whatever the input type (float64 stays), returns the type it was given, and
obeys the mask as `masking` says. In the formulas `z` are the logits of one row, and every sum runs over the
visible entries alone.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.checks import against
from softmax_jax.normalizers.masking import (
    Axis,
    Mask,
    at_least,
    at_most,
    centre,
    hide,
    row_maximum,
    row_sum,
    shares,
    visible_count,
    visible_logits,
)

Map = Callable[..., Float[Array, "..."]]
AnyMap = TypeVar("AnyMap", bound=Map)


def shift_invariant(map: AnyMap) -> AnyMap:
    """Marks a map whose weights stay the same when a constant is added to the row.

    A `Normalizer` subtracts the row's maximum before it scales the logits of such a map, so that large
    logits neither overflow nor lose digits.
    """
    checks.function("map", map, "softmax_jax.softmax")
    map.shift_invariant = True  # pyright: ignore[reportFunctionMemberAccess]
    return map


@shift_invariant
def softmax(logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None) -> Float[Array, "*shape"]:
    r"""Softmax over the visible entries.

    $$w_i = \frac{e^{z_i}}{\sum_j e^{z_j}}$$

    Equal to `jax.nn.softmax(logits, axis, where=where)`, but for half-precision input, which is computed in
    float32 here, and for rows whose logits are all -inf, which get zeros.

    >>> softmax(jnp.array([1.0, 1.0, 7.0]), where=jnp.array([True, True, False]))
    Array([0.5, 0.5, 0. ], dtype=float32)
    """
    checks.row(logits, axis)
    z = visible_logits(logits, where)
    exponentials = hide(jnp.exp(centre(z, axis, where)), where)
    return shares(exponentials, row_sum(exponentials, axis), where).astype(logits.dtype)


def softmax1(logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None) -> Float[Array, "*shape"]:
    r"""Softmax with a one in the denominator, so that a row may attend to nothing.

    $$w_i = \frac{e^{z_i}}{1 + \sum_j e^{z_j}}$$

    The weights sum to less than 1. Adding a constant to the row changes them.

    Source: Miller, "Attention is off by one" (2023).

    >>> softmax1(jnp.array([0.0, 0.0]))
    Array([0.33333334, 0.33333334], dtype=float32)
    """
    return sink_softmax(logits, axis, where, sink=0.0)


def sink_softmax(
    logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None, *, sink: ArrayLike = 0.0
) -> Float[Array, "*shape"]:
    r"""Softmax with a sink: one more logit, in the denominator alone, that takes weight from the row.

    $$w_i = \frac{e^{z_i}}{e^{\text{sink}} + \sum_j e^{z_j}}$$

    Usually learned, one per head, of shape (heads, 1, 1). At 0 this is `softmax1`; the lower the sink, the
    closer to `softmax`. The weights sum to less than 1. Adding a constant to the row changes them, and a
    scale multiplies the logits, not the sink.

    Raises ValueError for a sink that is not finite.

    Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv 2309.17453, for the
    sink; OpenAI, "gpt-oss model card", arXiv 2508.10925, for the learned logit per head.

    >>> sink_softmax(jnp.log(jnp.array([1.0, 2.0])), sink=jnp.log(5.0)).round(3)
    Array([0.125, 0.25 ], dtype=float32)
    """
    checks.finite("sink", sink)
    checks.row(logits, axis, sink=sink)
    z = visible_logits(logits, where)
    s = against(sink, z)
    # The maximum cancels, so it counts as a constant in derivatives.
    maximum = jax.lax.stop_gradient(at_least(row_maximum(z, axis, where), s))
    exponentials = hide(jnp.exp(z - maximum), where)
    total = jnp.exp(s - maximum) + jnp.sum(exponentials, axis, keepdims=True)
    # It is 0 in an empty row alone, if the sink is so low that its exponential vanishes.
    return shares(exponentials, jnp.where(total == 0, jnp.ones((), z.dtype), total), where).astype(logits.dtype)


def softpick(
    logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None, *, eps: ArrayLike = 1e-6
) -> Float[Array, "*shape"]:
    r"""Rectified softmax: entries with a logit below 0 get exactly 0, yet still count in the denominator.

    $$w_i = \frac{\max(e^{z_i - m} - e^{-m}, 0)}{\sum_j |e^{z_j - m} - e^{-m}| + \varepsilon},
      \qquad m = \max(0, \max_j z_j)$$

    `eps`, at least 1e-37, keeps a row of zeros finite. The weights sum to at most 1. Adding a constant to the row
    changes them.

    Source: Zuhri, Fuadi, Aji, "Softpick", arXiv 2504.20966.

    >>> softpick(jnp.array([jnp.log(2.0), jnp.log(4.0), -1e9])).round(3)
    Array([0.2, 0.6, 0. ], dtype=float32)
    """
    # No less is a normal number in float32.
    checks.require("eps", eps, "above 0, at least 1e-37, such as 1e-06", lambda value: value >= 1e-37)
    checks.row(logits, axis, eps=eps)
    z = visible_logits(logits, where)
    maximum = at_least(row_maximum(z, axis, where), 0)
    difference = hide(less_one(z, maximum), where)
    total = jnp.sum(jnp.abs(difference), axis, keepdims=True) + against(eps, z)
    return shares(jnp.where(difference > 0, difference, 0), total, where).astype(logits.dtype)


def less_one(z: Float[Array, "*shape"], maximum: Float[Array, "*row"]) -> Float[Array, "*shape"]:
    """exp(z) - 1, both times exp(-maximum)."""
    # Two forms of the same difference: for small logits the right one alone cancels all its digits.
    small = z < 1
    return jnp.where(
        small,
        jnp.exp(-maximum) * jnp.expm1(jnp.where(small, z, 0)),
        jnp.exp(z - maximum) - jnp.exp(-maximum),
    )


@shift_invariant
def hardmax(logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None) -> Float[Array, "*shape"]:
    r"""One-hot of the largest logit: the limit of softmax(z / θ) as θ → 0, and so the bound of every temperature.

    Entries that tie for the maximum share the weight equally, as they do in that limit. The gradient is 0.

    >>> hardmax(jnp.array([1.0, 3.0, 3.0, 2.0]))
    Array([0. , 0.5, 0.5, 0. ], dtype=float32)
    """
    checks.row(logits, axis)
    z = visible_logits(logits, where)
    # The sign is 0 at the largest and -1 below. Of NaN it is NaN, which a comparison would not hand on.
    largest = hide(1 + jnp.sign(z - row_maximum(z, axis, where)), where)
    return shares(largest, row_sum(largest, axis), where).astype(logits.dtype)


@shift_invariant
def shifted_softmax(
    logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None, *, s: ArrayLike = 1.0
) -> Float[Array, "*shape"]:
    r"""Softmax of shifted logits, sometimes published under the name of SSMax: it is plain softmax.

    $$w = \operatorname{softmax}(z - s \log n)$$

    `n` is the number of visible entries. A shift is the same for the whole row, so it cancels, and the
    gradient in `s` is 0. Kept to show just that; the real SSMax is `ssmax`, which multiplies.

    >>> z = jnp.array([1.0, 2.0, 3.0])
    >>> bool(jnp.allclose(shifted_softmax(z, s=5.0), softmax(z)))
    True
    """
    checks.finite("s", s)
    checks.row(logits, axis, s=s)
    # Centred first, or the shift would round away digits of large logits and so change the weights after all.
    z = visible_logits(logits, where)
    z = z - row_maximum(z, axis, where)
    count = jnp.maximum(visible_count(z, axis, where), 1)
    return softmax(z - against(s, z) * jnp.log(count), axis, where).astype(logits.dtype)


def signed_l1(logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None) -> Float[Array, "*shape"]:
    r"""Logits over one plus their absolute sum, sometimes published under the name of Softpick.

    $$w_i = \frac{z_i}{1 + \sum_j |z_j|}$$

    Weights carry the sign of their logit and their absolute values sum to less than 1. There is no
    exponential, so nothing is picked; the real Softpick is `softpick`. A logit of -inf counts as masked.

    >>> signed_l1(jnp.array([1.0, -2.0]))
    Array([ 0.25, -0.5 ], dtype=float32)
    """
    checks.row(logits, axis)
    z = visible_logits(logits, where)
    z = jnp.where(z == -jnp.inf, 0, z)
    # Dividing through by the largest term keeps the sum finite; by at most 1e37, whose reciprocal is not subnormal.
    largest = at_most(at_least(row_maximum(jnp.abs(z), axis, where), 1), 1e37)
    ratio = z / largest
    total = 1 / largest + jnp.sum(jnp.abs(ratio), axis, keepdims=True)
    return shares(ratio, total, where).astype(logits.dtype)
