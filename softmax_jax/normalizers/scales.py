"""Scales: each gives a row's inverse temperature β = 1/θ, from the row itself.

A scale is a frozen dataclass and a pytree whose numbers are the leaves, so they can be traced, differentiated
and learned, and changing one recompiles nothing. A number is a scalar, or an array that broadcasts against
the logits with the row's axis at size 1: one number per head of (batch, heads, queries, keys) has the shape
(heads, 1, 1).
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar, dataclass_transform, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.checks import against, finite, positive, require
from softmax_jax.normalizers.masking import Axis, Mask, centre, hide, row_sum, visible_count, visible_logits

T = TypeVar("T")


@runtime_checkable
class Scale(Protocol):
    """Anything that maps (logits, axis, where) to inverse temperatures that broadcast against the logits."""

    def __call__(self, logits: Float[Array, "*shape"], axis: Axis, where: Mask) -> Float[Array, "..."]: ...


@runtime_checkable
class Row(Protocol):
    """What a scale may know of each row, with the row's axes at size 1; what it does not ask for is not computed."""

    def count(self) -> Float[Array, "*row"]:
        """Number of visible entries."""
        ...

    def entropy(self) -> Float[Array, "*row"]:
        """Entropy in nats of the softmax of the row."""
        ...

    def number(self, value: ArrayLike) -> Float[Array, "..."]:
        """A number of the scale, in the type and rank of the logits."""
        ...


@dataclasses.dataclass(frozen=True)
class WholeRow:
    """A row whose logits are all there."""

    logits: Float[Array, "*shape"]
    axis: Axis
    where: Mask

    def count(self) -> Float[Array, "*row"]:
        return visible_count(self.logits, self.axis, self.where)

    def entropy(self) -> Float[Array, "*row"]:
        return entropy(self.logits, self.axis, self.where)

    def number(self, value: ArrayLike) -> Float[Array, "..."]:
        return against(value, self.logits)


class OfRow:
    """A scale that needs no more of a row than `Row` tells, so that the row may come in blocks."""

    def of_row(self, row: Row) -> Float[Array, "..."]:
        """β, which broadcasts against the logits."""
        raise NotImplementedError

    def __call__(self, logits: Float[Array, "*shape"], axis: Axis, where: Mask) -> Float[Array, "..."]:
        return self.of_row(WholeRow(logits, axis, where))


@dataclass_transform(frozen_default=True)
def scale(cls: type[T]) -> type[T]:
    """Makes a class a frozen dataclass and a pytree with every field a leaf (or a tree of them).

    Its checks run when a user builds one. They do not when JAX rebuilds one, because transformations put
    other things than numbers into the leaves: axes, labels, masks, zeros.
    """
    if not isinstance(cls, type):
        raise TypeError(f"the scale is {checks.shown(cls)}; it must be a class with fields: write @scale above one")
    made = dataclasses.dataclass(frozen=True)(cls)
    names = [field.name for field in dataclasses.fields(made)]  # pyright: ignore[reportArgumentType]

    def flatten(numbers: T) -> tuple[list[tuple[Any, Any]], None]:
        return [(jax.tree_util.GetAttrKey(name), getattr(numbers, name)) for name in names], None

    def unflatten(_: None, leaves: Iterable[Any]) -> T:
        rebuilt = object.__new__(made)
        rebuilt.__dict__.update(zip(names, leaves))
        return rebuilt

    jax.tree_util.register_pytree_with_keys(made, flatten, unflatten)
    return made


def entropy(logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None) -> Float[Array, "*row"]:
    r"""Entropy in nats of the softmax of each row, straight from the logits, with the axis kept at size 1.

    $$H = \log l - t / l, \qquad l = \sum_j e^{z_j - m}, \quad t = \sum_j e^{z_j - m} (z_j - m)$$

    An empty row has entropy 0. No weight is ever divided by or logged, so zeros are harmless.

    >>> entropy(jnp.zeros(8)) - jnp.log(8.0)
    Array([0.], dtype=float32)
    """
    checks.row(logits, axis)
    z = centre(visible_logits(logits, where), axis, where)
    exponentials = hide(jnp.exp(z), where)
    total = row_sum(exponentials, axis)
    return jnp.log(total) - jnp.sum(exponentials * z, axis, keepdims=True) / total


@scale
class ConstantTemperature(OfRow):
    """The same temperature for every row: β = 1/θ. `theta` > 0; below 1 it sharpens."""

    theta: ArrayLike = 1.0

    def __post_init__(self) -> None:
        positive("theta", self.theta)

    def of_row(self, row: Row) -> Float[Array, "..."]:
        return 1 / row.number(self.theta)


@scale
class InverseTemperature(OfRow):
    """β as it is given: one for every row, or an array that broadcasts against the logits, the row's axis at size 1.

    For a β that something else computes, such as one per query of shape (batch, heads, queries, 1). At 0 all
    visible entries weigh the same; below 0 the order of the logits is reversed.
    """

    beta: ArrayLike = 1.0

    def __post_init__(self) -> None:
        finite("beta", self.beta)

    def of_row(self, row: Row) -> Float[Array, "..."]:
        return row.number(self.beta)


@scale
class LogLength(OfRow):
    """The scale of SSMax: β = s·log n + b, with n the number of visible entries and natural log.

    The default `s` makes β = 1 for rows of 16 entries.

    Source: Nakanishi, "Scalable-Softmax Is Superior for Attention", arXiv 2501.19399.
    """

    s: ArrayLike = 1 / math.log(16)
    bias: ArrayLike = 0.0

    def __post_init__(self) -> None:
        finite("s", self.s)
        finite("bias", self.bias)

    def of_row(self, row: Row) -> Float[Array, "..."]:
        count = jnp.maximum(row.count(), 1)
        return row.number(self.s) * jnp.log(count) + row.number(self.bias)


@scale
class ClippedLogLength(OfRow):
    """The scale of SSMax within bounds: β = s·log n + b, clipped to [low, high].

    The default bounds leave rows of up to 16 entries as they are and stop at rows of 4096. A learned `s` gets
    no gradient from a row at a bound. `low` must lie below `high`.
    """

    s: ArrayLike = LogLength.s
    bias: ArrayLike = 0.0
    low: ArrayLike = 1.0
    high: ArrayLike = 3.0

    def __post_init__(self) -> None:
        for name in ("s", "bias", "low", "high"):
            finite(name, getattr(self, name))
        if not any(map(checks.is_jax, (self.low, self.high))) and np.any(np.asarray(self.low) >= np.asarray(self.high)):
            raise ValueError(
                f"low is {self.low!r} and high is {self.high!r}; low must lie below high: give 1.0 and 3.0"
            )

    def of_row(self, row: Row) -> Float[Array, "..."]:
        beta = LogLength(self.s, self.bias).of_row(row)
        return jnp.clip(beta, row.number(self.low), row.number(self.high))


@scale
class LogLengthPower(OfRow):
    r"""The scale of ASEntmax: a power of log n, with n the number of visible entries.

    $$\beta = \delta + \operatorname{softplus}(\text{weight}) \cdot (\log n)^\gamma, \qquad
      \gamma = 2 \tanh(\text{power})$$

    `weight` and `power` may take any value, so they are learned without bounds: what multiplies stays
    positive, γ between -2 and 2. With the defaults β = 1 + 0.693·log n. A row of one entry, whose log n = 0
    has no negative power, has β = δ.

    Source: Vasylenko et al., "Long-Context Generalization with Sparse Attention", arXiv 2506.16640, where
    `weight` and `power` are linear in the query.
    """

    weight: ArrayLike = 0.0
    power: ArrayLike = math.atanh(1 / 2)
    delta: ArrayLike = 1.0

    def __post_init__(self) -> None:
        finite("weight", self.weight)
        finite("power", self.power)
        finite("delta", self.delta)

    def of_row(self, row: Row) -> Float[Array, "..."]:
        count = row.count()
        gamma = 2 * jnp.tanh(row.number(self.power))
        # Replaced before the power is taken, because at log 1 = 0 its derivative in γ is not finite.
        power = jnp.where(count > 1, jnp.log(jnp.maximum(count, 2)) ** gamma, 0)
        return row.number(self.delta) + jax.nn.softplus(row.number(self.weight)) * power


@scale
class LengthRule(OfRow):
    r"""The least β that leaves a mass of at most ε outside the m entries that matter.

    $$\beta = \tfrac12 \ln \frac{(1-\varepsilon)(n-m)}{\varepsilon m}, \qquad
      \beta = 0 \text{ where that is negative or } n \le m$$

    Derived for rows of n visible entries of which m have logit +1 and the others -1. `m` > 0 and
    0 < `eps` < 1.

    Source: a note of 2017 on softmax over long rows.
    """

    m: ArrayLike = 1.0
    eps: ArrayLike = 0.05

    def __post_init__(self) -> None:
        positive("m", self.m)
        require("eps", self.eps, "between 0 and 1, such as 0.05", lambda eps: 0 < eps < 1)

    def of_row(self, row: Row) -> Float[Array, "..."]:
        m, eps = row.number(self.m), row.number(self.eps)
        odds = (1 - eps) * (row.count() - m) / (eps * m)
        return jnp.log(jnp.maximum(odds, 1)) / 2


@scale
class EntropyPolynomial(OfRow):
    r"""Adaptive temperature: β is a polynomial of the entropy H of the row's softmax.

    $$\beta = \max(\mathrm{poly}(H), \text{floor}) \text{ if } H > \text{threshold, else } 1$$

    `coefficients` come highest power first; `entropy_range` (low, high), in nats, clamps H before the
    polynomial is evaluated, for fits that hold only there. With the default, published coefficients β
    exceeds 1 only for 0.849 < H < 5.945 nats.

    Source: Veličković et al., "softmax is not enough", arXiv 2410.01104, the adaptive temperature function.
    """

    coefficients: tuple[ArrayLike, ...] = (-0.037, 0.481, -2.3, 4.917, -1.791)
    threshold: ArrayLike = 0.5
    floor: ArrayLike = 1.0
    entropy_range: tuple[ArrayLike, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.coefficients, tuple | list):
            raise TypeError(
                f"coefficients is {checks.shown(self.coefficients)}; it must be a tuple of numbers, highest power "
                "first: call tuple on it, or give (1.0,) for a constant"
            )
        if not self.coefficients:
            raise ValueError("coefficients is (); it must hold at least one number, such as (1.0,) for a constant")
        for coefficient in self.coefficients:
            finite("each of coefficients", coefficient)
        finite("threshold", self.threshold)
        finite("floor", self.floor)
        if self.entropy_range is not None:
            if not isinstance(self.entropy_range, tuple | list):
                raise TypeError(
                    f"entropy_range is {checks.shown(self.entropy_range)}; it must be a tuple (low, high), such as "
                    "(0.5, 6.0), or None"
                )
            for end in self.entropy_range:
                finite("each end of entropy_range", end)
            plain = [end for end in self.entropy_range if isinstance(end, int | float)]
            if len(self.entropy_range) != 2 or plain != sorted(set(plain)):
                raise ValueError(
                    f"entropy_range is {self.entropy_range!r}; it must be (low, high) with low below high, "
                    "such as (0.5, 6.0)"
                )

    def of_row(self, row: Row) -> Float[Array, "..."]:
        row_entropy = row.entropy()
        beta = jnp.maximum(self.polynomial(row_entropy), row.number(self.floor))
        return jnp.where(row_entropy > row.number(self.threshold), beta, jnp.ones((), row_entropy.dtype))

    def extrapolates(self, logits: Float[Array, "*shape"], axis: Axis, where: Mask) -> Bool[Array, "..."]:
        """True for the rows above the threshold whose entropy lies outside `entropy_range`; axis kept at size 1."""
        row_entropy = entropy(logits, axis, where)
        low, high = (-jnp.inf, jnp.inf) if self.entropy_range is None else self.entropy_range
        inside = (against(low, logits) <= row_entropy) & (row_entropy <= against(high, logits))
        return (row_entropy > against(self.threshold, logits)) & ~inside

    def polynomial(self, row_entropy: Float[Array, "*row"]) -> Float[Array, "*row"]:
        """poly(H) by Horner's rule, H clamped to `entropy_range` first."""
        if self.entropy_range is not None:
            low, high = (against(bound, row_entropy) for bound in self.entropy_range)
            row_entropy = jnp.clip(row_entropy, low, high)
        value = jnp.zeros_like(row_entropy)
        for coefficient in self.coefficients:
            value = value * row_entropy + against(coefficient, row_entropy)
        return value


@scale
class EntropyInterpolation(OfRow):
    r"""Adaptive temperature of any shape: β by linear interpolation of the entropy H of the row's softmax.

    β goes through `betas` at `entropies`, which ascend, in nats, and stays at the first and last beyond them; it is
    at least the floor, and 1 up to the threshold.

    >>> shape = EntropyInterpolation(entropies=jnp.array([1.0, 2.0]), betas=jnp.array([1.0, 3.0]))
    >>> shape(jnp.zeros((1, 5)), -1, None)  # H = log 5 = 1.609
    Array([[2.218876]], dtype=float32)
    """

    entropies: Float[ArrayLike, " knots"]
    betas: Float[ArrayLike, " knots"]
    threshold: ArrayLike = 0.5
    floor: ArrayLike = 1.0

    def __post_init__(self) -> None:
        finite("threshold", self.threshold)
        finite("floor", self.floor)
        for name in ("entropies", "betas"):
            knots = getattr(self, name)
            if not checks.is_array(knots) or jnp.ndim(knots) != 1 or jnp.size(knots) < 1:
                raise ValueError(
                    f"{name} is {checks.shown(knots)}; it must be an array of at least one number, such as "
                    "jnp.array([1.0, 2.0])"
                )
            finite(name, knots)
        if jnp.shape(self.entropies) != jnp.shape(self.betas):
            raise ValueError(
                f"entropies has shape {jnp.shape(self.entropies)} and betas {jnp.shape(self.betas)}; they must be "
                "alike: give one β for each entropy"
            )
        known = None if checks.is_traced(self.entropies) else np.asarray(self.entropies)
        if known is not None and not np.all(np.diff(known) >= 0):
            raise ValueError(f"entropies is {known.tolist()}; they must ascend: sort them, and betas with them")

    def of_row(self, row: Row) -> Float[Array, "..."]:
        row_entropy = row.entropy()
        knots, values = (jnp.asarray(numbers, row_entropy.dtype) for numbers in (self.entropies, self.betas))
        beta = jnp.maximum(jnp.interp(row_entropy, knots, values), row.number(self.floor))
        return jnp.where(row_entropy > row.number(self.threshold), beta, jnp.ones((), row_entropy.dtype))
