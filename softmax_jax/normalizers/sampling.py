"""Sampling: what to draw from, drawing from it, and drawing in a way that has a gradient.

`top_k_mask`, `top_p_mask` and `min_p_mask` narrow a mask, which then goes to any map as `where`; each takes one number
for all rows or one for each. `sample` draws from the weights:

>>> logits = jnp.array([2.0, 1.0, 0.0, -1.0])
>>> weights = softmax(logits, where=top_p_mask(logits, 0.9))
>>> bool(sample(jax.random.key(0), weights) < 3)
True
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Key

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.arithmetic import reaches
from softmax_jax.normalizers.checks import against, require
from softmax_jax.normalizers.execution import spec_of
from softmax_jax.normalizers.layout import Along
from softmax_jax.normalizers.maps import hardmax, softmax
from softmax_jax.normalizers.naming import name_rows
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.rank_search import as_ranks, kth_largest
from softmax_jax.normalizers.row import AnyAxis, AnyMask, Row, axis_and_mask, compute_rows
from softmax_jax.normalizers.scales import ConstantTemperature


def top_k_mask(
    logits: Float[Array, "*shape"], k: ArrayLike, axis: AnyAxis = -1, where: AnyMask = None
) -> Bool[Array, "*shape"]:
    """Returns the mask of the k largest visible logits of each row.

    Logits that tie with the k-th largest are all kept, so there may be more than k: the result does not depend on
    the order of the row. With fewer than k visible, all are kept. What is hidden is never kept.

    Arguments:
        logits: An array of floating point.
        k: A whole number of at least 1, or an array of them that broadcasts against the logits, with size 1 along
            `axis`. One below 1 in an array of JAX, whose numbers are not read, counts as 1.
        axis: The axis of a row, of which there is one.
        where: True at the visible entries; None for no mask.

    Returns:
        True at the entries that are kept, in the shape of the logits.

    Raises:
        TypeError: k is not whole.
        ValueError: k is below 1, or there are several axes.

    Example:
        >>> top_k_mask(jnp.array([3.0, 1.0, 2.0, 2.0]), 2)
        Array([ True, False,  True,  True], dtype=bool)
        >>> top_k_mask(jnp.array([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]]), jnp.array([[1], [2]]))
        Array([[ True, False, False],
               [ True, False,  True]], dtype=bool)
    """
    checks.whole_each("k", k, 1, 10)
    axis, where = axis_and_mask(logits, axis, where, k=k)
    axis = checks.one_axis(axis)

    def keep(row: Row, k: ArrayLike) -> Array:
        z, ranks = row.logits, as_ranks(k)
        if ranks.ndim:
            ranks = jnp.moveaxis(jnp.expand_dims(ranks, tuple(range(z.ndim - ranks.ndim))), axis, -1)
        least = kth_largest(jnp.moveaxis(jax.lax.stop_gradient(z), axis, -1), ranks)
        return reaches(z, jnp.moveaxis(least, -1, axis)) & (z != -jnp.inf)

    return compute_rows(keep, logits, axis, where, k)


def top_p_mask(
    logits: Float[Array, "*shape"], p: ArrayLike, axis: AnyAxis = -1, where: AnyMask = None
) -> Bool[Array, "*shape"]:
    r"""Returns the mask of the nucleus of each row: the fewest largest logits whose softmax sums to at least p.

    $$\text{kept}_i \iff \sum_{z_j > z_i} \operatorname{softmax}(z)_j < p$$

    Logits that tie with the smallest kept are all kept: the result does not depend on the order of the row. The
    largest are kept for any p, at p = 1 all are whose weight is not 0. What is hidden is never kept.

    Arguments:
        logits: An array of floating point.
        p: A number above 0 and at most 1, or an array of them that broadcasts against the logits.
        axis: The axis of a row, of which there is one.
        where: True at the visible entries; None for no mask.

    Returns:
        True at the entries that are kept, in the shape of the logits.

    Raises:
        ValueError: p is another number, or there are several axes.

    Example:
        >>> top_p_mask(jnp.log(jnp.array([0.125, 0.5, 0.125, 0.25])), 0.75)
        Array([False,  True, False,  True], dtype=bool)
        >>> top_p_mask(jnp.log(jnp.array([0.125, 0.5, 0.125, 0.25])), 0.8)
        Array([ True,  True,  True,  True], dtype=bool)

    References:
        Holtzman et al., "The Curious Case of Neural Text Degeneration", arXiv 1904.09751.
    """
    require("p", p, "above 0 and at most 1, such as 0.9", lambda p: 0 < p <= 1)
    axis, where = axis_and_mask(logits, axis, where, p=p)
    axis = checks.one_axis(axis)

    def keep(row: Row, p: ArrayLike) -> Array:
        z = row.logits
        if not z.shape[axis]:
            return z != -jnp.inf
        rising = jnp.sort(z, axis)
        # Summed from the smallest: `mass` is that of an entry and all below, so an entry is kept if it exceeds 1 - p.
        mass = jnp.cumsum(jnp.exp(Along(axis).centre(rising)), axis)
        total = jnp.take(mass, jnp.array([-1]), axis)
        kept = mass > (1 - against(p, z)) * total
        smallest = jnp.min(jnp.where(kept, rising, jnp.max(z, axis, keepdims=True)), axis, keepdims=True)
        return reaches(z, smallest) & (z != -jnp.inf)

    return compute_rows(keep, logits, axis, where, p, low_hides=False)


def min_p_mask(
    logits: Float[Array, "*shape"], p_base: ArrayLike, axis: AnyAxis = -1, where: AnyMask = None
) -> Bool[Array, "*shape"]:
    r"""Returns the mask of the entries whose softmax is at least `p_base` times the largest of their row.

    $$\text{kept}_i \iff \operatorname{softmax}(z)_i \ge p_\text{base} \max_j \operatorname{softmax}(z)_j
    \iff z_i - \max_j z_j \ge \log p_\text{base}$$

    So it keeps few entries where the model is sure, and many where it is not. The largest are kept for any p_base: at 1
    they alone are, at 0 all that is visible is. What is hidden is never kept.

    Arguments:
        logits: An array of floating point.
        p_base: A number from 0 to 1, or an array of them that broadcasts against the logits, with size 1 along `axis`.
        axis: The axis of a row, of which there is one.
        where: True at the visible entries; None for no mask.

    Returns:
        True at the entries that are kept, in the shape of the logits.

    Raises:
        ValueError: p_base is another number, or there are several axes.

    Example:
        >>> min_p_mask(jnp.log(jnp.array([0.125, 0.5, 0.125, 0.25])), 0.3)
        Array([False,  True, False,  True], dtype=bool)

    References:
        Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs", arXiv 2407.01082.
    """
    require("p_base", p_base, "from 0 to 1, such as 0.1", lambda p: 0 <= p <= 1)
    axis, where = axis_and_mask(logits, axis, where, p_base=p_base)
    axis = checks.one_axis(axis)

    def keep(row: Row, p_base: ArrayLike) -> Array:
        z = row.logits
        kept = Along(axis).centre(z) >= jnp.log(against(p_base, z))
        largest = jnp.max(z, axis, keepdims=True, initial=-jnp.inf)
        # By the smallest logit that is kept, so that what ties with it is too, however a compiler rounds the gap.
        smallest = jnp.min(jnp.where(kept, z, largest), axis, keepdims=True, initial=jnp.inf)
        return reaches(z, smallest) & (z != -jnp.inf)

    return compute_rows(keep, logits, axis, where, p_base)


def sample(key: Key[Array, ""], weights: Float[Array, "*shape"], axis: AnyAxis = -1) -> Int[Array, "..."]:
    """Draws the index of one entry of each row, with probability proportional to its weight.

    The weights of a row need not sum to 1. Those of 0 or below are never drawn; a row with no other gives -1, as does
    one that holds NaN or +inf. The axis, of which there is one, is removed. By
    `jax.random.categorical`, in which probabilities below 1e-7 are biased unless
    the JAX option `use_high_dynamic_range_gumbel` is set.

    >>> sample(jax.random.key(0), jnp.array([[0.0, 0.0, 0.3], [0.0, 0.0, 0.0]]))
    Array([ 2, -1], dtype=int32)
    """
    axis = checks.one_axis(checks.row(weights, axis, "weights"))

    def draw(row: Row, key: Array) -> Array:
        w = row.logits
        if not w.shape[axis]:
            return jnp.full(jnp.any(w > 0, axis).shape, -1, jnp.int32)
        index = jax.random.categorical(key, jnp.log(jnp.maximum(w, 0)), axis)
        return jnp.where(jnp.any(w > 0, axis) & jnp.all(w < jnp.inf, axis), index, -1)

    mesh_axes = list(spec_of(weights))
    mesh_axes.pop(axis)
    return compute_rows(draw, weights, axis, None, key, low_hides=False, out=PartitionSpec(*mesh_axes))


def gumbel_softmax(
    key: Key[Array, ""],
    logits: Float[Array, "*shape"],
    axis: AnyAxis = -1,
    where: AnyMask = None,
    *,
    temperature: ArrayLike = 1.0,
    hard: bool = False,
) -> Float[Array, "*shape"]:
    r"""Draws a row of weights whose largest entry is a draw from the softmax of the logits, with a gradient.

    $$w = \operatorname{softmax}((z + g) / \theta), \qquad g_i = -\log(-\log u_i), \quad u_i \sim U(0, 1)$$

    Arguments:
        key: A key of `jax.random`.
        logits: An array of floating point.
        axis: The axis, or axes, of a row.
        where: True at the visible entries; None for no mask.
        temperature: θ, above 0; the lower, the closer the weights are to one-hot.
        hard: Whether the weights are the one-hot of the draw, with the gradient of the soft ones, as in
            `straight_through`. Should two perturbed logits be the same float, they share it.

    Returns:
        Weights in the shape and type of the logits.

    Raises:
        ValueError: The temperature, here called theta, is not positive.

    Example:
        >>> logits, where = jnp.array([0.0, 0.0, 9.0]), jnp.array([True, True, False])
        >>> gumbel_softmax(jax.random.key(0), logits, where=where, hard=True)
        Array([0., 1., 0.], dtype=float32)

    References:
        Jang, Gu, Poole, arXiv 1611.01144; Maddison, Mnih, Teh, "The Concrete Distribution", arXiv 1611.00712.
    """
    checks.flag("hard", hard)
    normalizer = Normalizer(softmax, ConstantTemperature(temperature))
    axis, where = axis_and_mask(logits, axis, where)
    normalizer.check(logits, axis)
    name_rows(normalizer, logits, Along(axis), where)

    def draw(row: Row, normalizer: Normalizer, key: Array) -> Array:
        # Centred first, or the noise would be rounded away in large logits.
        noisy = row.layout.centre(row.logits) + jax.random.gumbel(key, row.logits.shape, row.logits.dtype)
        row = dataclasses.replace(row, logits=jnp.where(row.logits == -jnp.inf, -jnp.inf, noisy), given=None)
        weights = normalizer.of_row(row)
        if hard:
            weights = straight_through(hardmax.of_row(row), weights)
        return weights.astype(jnp.result_type(logits))

    return compute_rows(draw, logits, axis, where, normalizer, key)


def straight_through(hard: Float[Array, "*shape"], soft: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns the value of `hard`, exactly, with the gradient of `soft`.

    Source: Bengio, Léonard, Courville, "Estimating or Propagating Gradients Through Stochastic Neurons",
    arXiv 1308.3432.

    >>> value, gradient = jax.value_and_grad(lambda x: straight_through(jnp.round(x), x**2))(3.4)
    >>> float(value), round(float(gradient), 4)
    (3.0, 6.8)
    """
    # Not soft + (hard - soft), which rounds.
    return jax.lax.stop_gradient(hard) + (soft - jax.lax.stop_gradient(soft))
