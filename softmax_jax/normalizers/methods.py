"""The published methods as plain functions with the signature of `jax.nn.softmax`: each one map over one scale."""

from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.normalizers.maps import softmax, softpick
from softmax_jax.normalizers.masking import Axis, Mask
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.scales import ConstantTemperature, EntropyPolynomial, LengthRule, LogLength


def temperature_softmax(
    logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None, *, theta: ArrayLike = 1.0
) -> Float[Array, "*shape"]:
    r"""Softmax at a constant temperature: $w = \operatorname{softmax}(z / \theta)$, with θ > 0.

    >>> import jax.numpy as jnp
    >>> temperature_softmax(jnp.array([0.0, 1.0]), theta=1e-3)
    Array([0., 1.], dtype=float32)
    """
    return Normalizer(softmax, ConstantTemperature(theta))(logits, axis, where)


def adaptive_temperature_softmax(
    logits: Float[Array, "*shape"],
    axis: Axis = -1,
    where: Mask = None,
    *,
    coefficients: tuple[ArrayLike, ...] = EntropyPolynomial.coefficients,
    entropy_range: tuple[ArrayLike, ArrayLike] | None = None,
) -> Float[Array, "*shape"]:
    r"""Softmax at the temperature that a polynomial of the row's entropy gives.

    $$w = \operatorname{softmax}(\beta(H)\, z), \qquad H = -\sum_i p_i \ln p_i, \quad p = \operatorname{softmax}(z)$$

    See `EntropyPolynomial` for β, the order of the coefficients and the range where it does anything.

    Source: Veličković et al., "softmax is not enough", arXiv 2410.01104.

    >>> import jax.numpy as jnp
    >>> z = jnp.array([3.0] + [0.0] * 31)
    >>> bool(adaptive_temperature_softmax(z)[0] > softmax(z)[0])
    True
    """
    return Normalizer(softmax, EntropyPolynomial(coefficients, entropy_range=entropy_range))(logits, axis, where)


def ssmax(
    logits: Float[Array, "*shape"],
    axis: Axis = -1,
    where: Mask = None,
    *,
    s: ArrayLike = LogLength.s,
    bias: ArrayLike = 0.0,
) -> Float[Array, "*shape"]:
    r"""Scalable softmax: $w = \operatorname{softmax}((s \ln n + b)\, z)$, with n the number of visible entries.

    Source: Nakanishi, arXiv 2501.19399.

    >>> import jax.numpy as jnp
    >>> z = jnp.array([3.0] + [-2.0] * 999)
    >>> [round(float(w), 4) for w in (softmax(z)[0], ssmax(z, s=0.43)[0])]
    [0.1293, 0.9996]
    """
    return Normalizer(softmax, LogLength(s, bias))(logits, axis, where)


def scalable_softpick(
    logits: Float[Array, "*shape"],
    axis: Axis = -1,
    where: Mask = None,
    *,
    s: ArrayLike = LogLength.s,
    bias: ArrayLike = 0.0,
) -> Float[Array, "*shape"]:
    r"""Softpick at the scale of SSMax: $w = \operatorname{softpick}((s \ln n + b)\, z)$.

    Source: Zuhri, Fuadi, Aji, arXiv 2504.20966.

    >>> import jax.numpy as jnp
    >>> w = scalable_softpick(jnp.array([1.0, -1.0, -1.0, -1.0]), s=1.0)
    >>> round(float(w[0]), 3), float(w[1])
    (0.571, 0.0)
    """
    return Normalizer(softpick, LogLength(s, bias))(logits, axis, where)


def length_scaled_softmax(
    logits: Float[Array, "*shape"],
    axis: Axis = -1,
    where: Mask = None,
    *,
    m: ArrayLike = 1.0,
    eps: ArrayLike = 0.05,
) -> Float[Array, "*shape"]:
    r"""Softmax at the β that leaves a mass of ε outside m of n entries, were their logits ±1.

    See `LengthRule` for the formula and for short rows.

    >>> import jax.numpy as jnp
    >>> z = jnp.array([1.0] * 10 + [-1.0] * 190)
    >>> round(float(length_scaled_softmax(z, m=10, eps=0.25)[:10].sum()), 4)
    0.75
    """
    return Normalizer(softmax, LengthRule(m, eps))(logits, axis, where)
