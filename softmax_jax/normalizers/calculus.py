"""Calculus of softmax: its logarithm, its Jacobian and products with it, the entropy of weights, cross-entropy.

All obey the mask as `row` says and compute in float32 whatever the input type (float64 stays). Nothing here counts
a row or multiplies its logits, so the logarithm of a low logit is what it is, and -inf where it is -inf. In the
formulas `z` are the logits of one row, `p` is its softmax, and every sum runs over the visible entries alone.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from softmax_jax.normalizers import arithmetic, checks
from softmax_jax.normalizers.layout import Along, Axis, Layout
from softmax_jax.normalizers.row import AnyAxis, AnyMask, Mask, Row, axis_and_mask, visible_values


def log_softmax(logits: Float[Array, "*shape"], axis: AnyAxis = -1, where: AnyMask = None) -> Float[Array, "*shape"]:
    r"""Returns the logarithm of the softmax over the visible entries, straight from the logits.

    $$\log p_i = z_i - \log \sum_j e^{z_j}$$

    An entry that is masked or whose logit is -inf gets -inf and sends back a gradient of exactly 0; so does every
    entry of an empty row. All others are finite. To sum them against weights or targets that may be 0 there,
    use `soft_cross_entropy`, because 0 · -inf is NaN.

    Equal to `jax.nn.log_softmax(logits, axis, where=where)`, but for half-precision input, which is computed in
    float32 here, and for rows whose logits are all -inf, which get NaN there.

    >>> log_softmax(jnp.array([1.0, 1.0, 7.0]), where=jnp.array([True, True, False]))
    Array([-0.6931472, -0.6931472,       -inf], dtype=float32)
    """
    axis, where = axis_and_mask(logits, axis, where)
    z = _visible_logits(logits, axis, where)
    # Stops at the lowest number of the type itself, so that a half-precision result is finite too.
    logarithms = arithmetic.at_least(_log_weights(z, axis), float(jnp.finfo(jnp.result_type(logits)).min))
    return jnp.where(z != -jnp.inf, logarithms, -jnp.inf).astype(jnp.result_type(logits))


def _visible_logits(logits: Float[Array, "*shape"], axis: Axis, where: Mask) -> Float[Array, "*shape"]:
    """Returns logits in float32 (float64 stays), -inf at the entries that softmax can give no weight."""
    return Row.of(logits, axis, where, low_hides=False).logits


def _log_weights(z: Float[Array, "*shape"], axis: Axis) -> Float[Array, "*shape"]:
    """Returns the logarithm of each weight; where it would be -inf, some finite number."""
    # log p = (z - m) - log Σ e^(z - m), of which no part can overflow, and no weight that is 0 is logged: z = (0, 1000)
    # has log p = (-1000, 0), where log(softmax(z)) gives (-inf, 0). Its derivative is dz - Σ p dz.
    gaps = Along(axis).centre(z)
    return gaps - jnp.log(Along(axis).divisor(jnp.exp(gaps)))


def softmax_jacobian(weights: Float[Array, "*rows n"]) -> Float[Array, "*rows n n"]:
    r"""Returns the Jacobian of softmax along the last axis, from its weights.

    $$J = \operatorname{diag}(p) - p\, p^\top, \qquad J_{ij} = \frac{\partial p_i}{\partial z_j}$$

    Rows and columns of an entry of weight 0 are 0, so no mask is needed. A product with J takes `softmax_jvp`
    time and memory of O(n) instead of O(n²).

    >>> softmax_jacobian(jnp.array([0.5, 0.5, 0.0]))
    Array([[ 0.25, -0.25,  0.  ],
           [-0.25,  0.25,  0.  ],
           [ 0.  ,  0.  ,  0.  ]], dtype=float32)
    """
    checks.row(weights, -1, "weights")
    # From w_i = e^(z_i) / S: ∂w_i/∂z_j = δ_ij w_i - w_i w_j. Each row of J sums to w_i - w_i Σ w = 0, as a shift of all
    # logits changes nothing: w = (1/2, 1/2) gives ±1/4.
    p = visible_values(weights)
    diagonal = p[..., :, None] * jnp.eye(p.shape[-1], dtype=p.dtype).reshape((1,) * (p.ndim - 1) + (p.shape[-1],) * 2)
    return (diagonal - p[..., :, None] * p[..., None, :]).astype(jnp.result_type(weights))


def softmax_jvp(
    weights: Float[Array, "*shape"], tangent: Float[Array, "*shape"], axis: AnyAxis = -1, where: AnyMask = None
) -> Float[Array, "*shape"]:
    r"""Returns the product of the Jacobian of softmax and a vector, from the weights, in O(n).

    $$J g = p \circ (g - \langle p, g \rangle)$$

    `softmax_vjp` is the same function, because J is symmetric.

    Arguments:
        weights: Weights of softmax, an array of floating point.
        tangent: The vector g, in the shape of the weights. It counts as 0 behind the mask.
        axis: The axis, or axes, of a row.
        where: True at the visible entries; None for no mask.

    Returns:
        The product, in the shape and type of the weights.

    Raises:
        TypeError: The weights or the vector are not of floating point.
        ValueError: The shapes, the axis or the mask do not fit each other.

    Example:
        >>> softmax_jvp(jnp.array([0.5, 0.5, 0.0]), jnp.array([1.0, 0.0, 7.0]))
        Array([ 0.25, -0.25,  0.  ], dtype=float32)
    """
    axis, where = axis_and_mask(weights, axis, where, name="weights")
    checks.floats("tangent", tangent)
    checks.same_shape("tangent", tangent, "the weights", jnp.shape(weights))
    p, g = visible_values(weights, where), visible_values(tangent, where)
    return (p * (g - jnp.sum(p * g, axis, keepdims=True))).astype(jnp.result_type(weights))


softmax_vjp = softmax_jvp
"""The same function, because the Jacobian is symmetric."""


def weight_entropy(weights: Float[Array, "*shape"], axis: AnyAxis = -1) -> Float[Array, "..."]:
    r"""Returns the entropy in nats of weights: of their shares in the absolute sum of their row, which any map has.

    $$H = -\sum_i s_i \log s_i, \qquad s_i = \frac{|w_i|}{\sum_j |w_j|}$$

    Weights of 0 add nothing and their gradient is 0, where the limit from above would be infinite. A row of zeros
    has entropy 0. In float32 (float64 stays), with the axis removed. For softmax, `entropy` gives the same from the
    logits, with the axis kept.

    >>> weight_entropy(jnp.array([[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]))
    Array([0.6931472, 0.       ], dtype=float32)
    """
    layout = Along(checks.row(weights, axis, "weights"))
    return layout.squeeze(entropy_of_weights(visible_values(weights), layout))


def entropy_of_weights(w: Float[Array, "*shape"], layout: Layout) -> Float[Array, "*row"]:
    """Returns the entropy of weights in the rows of a layout."""
    sizes = jnp.where(w == 0, 0, jnp.abs(w))
    shares = sizes / layout.divisor(sizes)
    # With S = Σ|w| and s = w / S, dH = -Σ (log s + 1) ds, and Σ ds = 0 leaves ∂H/∂w_i = -(log s_i + H) / S: of
    # (1/4, 3/4) with H = 0.5623 it is (0.8240, -0.2747). Zeros are replaced before the logarithm too, whose
    # derivative there would turn the gradient into NaN.
    logarithms = jnp.log(jnp.where(shares == 0, 1, shares))
    # From 0, so that an entropy of 0 has no sign.
    return 0 - layout.total(arithmetic.keep_apart(shares * logarithms, shares))


def cross_entropy(
    logits: Float[Array, "*shape"],
    labels: Int[ArrayLike, "..."] | Sequence[Any],
    axis: AnyAxis = -1,
    where: AnyMask = None,
) -> Float[Array, "..."]:
    r"""Returns the cross-entropy of softmax and one right entry per row, given as its index.

    $$L = -\log p_y = \log \sum_j e^{z_j} - z_y, \qquad \frac{\partial L}{\partial z} = p - \operatorname{onehot}(y)$$

    An empty row has loss 0, whatever its label. Else a label whose entry is masked or has a logit of -inf costs
    infinity, with zero gradient, and a label outside 0 … n - 1 gives NaN, so neither goes unnoticed.

    Without masks `optax.softmax_cross_entropy_with_integer_labels` does the same in the type of the logits; under
    its mask, a label that is masked costs a finite number there.

    Arguments:
        logits: An array of floating point.
        labels: Whole numbers, in the shape of the logits less the axis.
        axis: The axis of a row, of which there is one.
        where: True at the visible entries; None for no mask.

    Returns:
        The loss of each row in float32 (float64 stays), with the axis removed.

    Raises:
        TypeError: The labels are not whole.
        ValueError: A shape or an axis does not fit.

    Example:
        >>> logits, labels = jnp.array([[0.0, 0.0, 9.0], [0.0, 0.0, 9.0]]), jnp.array([1, 2])
        >>> cross_entropy(logits, labels, where=jnp.arange(3)[None] < 2)
        Array([0.6931472,       inf], dtype=float32)
    """
    axis, where = axis_and_mask(logits, axis, where)
    axis = checks.one_axis(axis)
    indices = checks.indices("labels", labels)
    rows = tuple(np.delete(jnp.shape(logits), axis).tolist())
    checks.same_shape("labels", indices, "the logits less the axis", rows)
    z = _visible_logits(logits, axis, where)
    # A small type may not hold n, which stands for a label below 0.
    places = jnp.expand_dims(indices.astype(jnp.int32) if indices.dtype.itemsize < 4 else indices, axis)
    # An index past the end reads NaN by itself; one below 0 would count from the end.
    places = jnp.where(places < 0, z.shape[axis], places)
    chosen = jnp.take_along_axis(log_softmax(z, axis), places, axis, mode="fill")
    return jnp.where(jnp.any(z != -jnp.inf, axis), -jnp.squeeze(chosen, axis), 0)


def soft_cross_entropy(
    logits: Float[Array, "*shape"], targets: Float[Array, "*shape"], axis: AnyAxis = -1, where: AnyMask = None
) -> Float[Array, "..."]:
    r"""Returns the cross-entropy of softmax and target weights.

    $$L = -\sum_j t_j \log p_j, \qquad \frac{\partial L}{\partial z} = \Big(\sum_j t_j\Big)\, p - t$$

    0 · log 0 counts as 0. Targets behind the mask are left out, like logits. Another target than 0 where the logit is
    -inf costs infinity. An empty row has loss 0.

    Without masks and infinities `optax.softmax_cross_entropy` does the same in the type of the logits.

    Arguments:
        logits: An array of floating point.
        targets: Weights in the shape of the logits, which should sum to 1 over the visible entries of a row.
        axis: The axis, or axes, of a row.
        where: True at the visible entries; None for no mask.

    Returns:
        The loss of each row in float32 (float64 stays), with the axis removed.

    Raises:
        TypeError: The logits or targets are not of floating point.
        ValueError: The shapes, the axis or the mask do not fit each other.

    Example:
        >>> soft_cross_entropy(jnp.array([0.0, 0.0, -jnp.inf]), jnp.array([0.5, 0.5, 0.0]))
        Array(0.6931472, dtype=float32)
    """
    axis, where = axis_and_mask(logits, axis, where)
    checks.floats("targets", targets)
    checks.same_shape("targets", targets, "the logits", jnp.shape(logits))
    z, t = _visible_logits(logits, axis, where), visible_values(targets, where)
    possible = z != -jnp.inf
    t = jnp.where(jnp.any(possible, axis, keepdims=True), t, 0)
    # Finite wherever the target is 0, so that neither the product nor its derivatives are NaN there.
    logarithms = jnp.where(possible | (t == 0), _log_weights(z, axis), -jnp.inf)
    return -jnp.sum(t * logarithms, axis)
