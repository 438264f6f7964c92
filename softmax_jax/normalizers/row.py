"""A row of logits as maps and scales see it: whole, along one axis, with -inf where an entry is masked."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.normalizers import masking
from softmax_jax.normalizers.checks import against
from softmax_jax.normalizers.masking import AnyAxis, AnyMask, Axis, Mask
from softmax_jax.normalizers.surroundings import as_one, spec_of


@dataclasses.dataclass(frozen=True)
class Row:
    """Rows of logits along `axis`, in float32 (float64 stays), with -inf in the place of every masked entry.

    What is one number for each row has the row's axes at size 1.
    """

    logits: Float[Array, "*shape"]
    axis: Axis

    @classmethod
    def of(cls, logits: Float[Array, "*shape"], axis: Axis, where: Mask) -> "Row":
        """Rows of logits of any floating-point type, masked or not."""
        return cls(masking.visible_or_lowest(logits, where), axis)

    def axes(self) -> tuple[int, ...]:
        """The axes of a row, counted from the first."""
        along = self.axis if isinstance(self.axis, tuple) else (self.axis,)
        return tuple(axis % self.logits.ndim for axis in along)

    def number(self, value: ArrayLike) -> Float[Array, "..."]:
        """A number of a map or scale, in the type and rank of the logits."""
        return against(value, self.logits)

    def count(self) -> Float[Array, "*row"]:
        """Number of visible entries; a logit of -inf is none."""
        return jnp.sum(self.logits != -jnp.inf, self.axis, keepdims=True).astype(self.logits.dtype)

    def sum(self, values: Float[Array, "*shape"]) -> Float[Array, "*row"]:
        """Sum over each row."""
        return jnp.sum(values, self.axis, keepdims=True)

    def zero(self) -> Float[Array, "*row"]:
        """0 for each row, but NaN for one with a visible NaN or +inf: for maps that weigh each entry by itself."""
        visible = jnp.where(self.logits != -jnp.inf, self.logits, 0)
        return jax.lax.stop_gradient(self.sum(visible * 0))

    def maximum(self, values: Float[Array, "*shape"], least: ArrayLike = -jnp.inf) -> Float[Array, "*row"]:
        """Largest value of each row, and at least `least`: 0 where that is -inf, NaN where it is +inf."""
        largest = jnp.max(values, self.axis, keepdims=True, initial=-jnp.inf)
        return masking.settled(jnp.maximum(largest, self.number(least)))

    def entropy(self) -> Float[Array, "*row"]:
        """Entropy in nats of the softmax of the row."""
        return _entropy(self.logits, self.axis)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _entropy(logits: Float[Array, "*shape"], axis: Axis) -> Float[Array, "*row"]:
    """Returns log l - t / l of whole rows, with -inf where an entry is masked; an empty row gets 0."""
    _, _, total, mean = _exponentials(logits, axis)
    return jnp.log(total) - mean


@_entropy.defjvp
def _(axis: Axis, logits: tuple[Array], changes: tuple[Array]) -> tuple[Array, Array]:
    """The slope of H, Σ p (t / l - g) dz: of p log p the derivative is log p + 1, and Σ dp = 0."""
    gap, exponentials, total, mean = _exponentials(*logits, axis)
    change = jnp.where(gap == LEAST_GAP, 0, changes[0])  # of a masked entry it may be infinite
    slope = jnp.sum(exponentials * (mean - gap) / total * change, axis, keepdims=True)
    return jnp.log(total) - mean, slope


LEAST_GAP = -1000.0
"""g·e^g and its derivatives are 0 from g = -760 down, in float64 too. A gap stops here, so that none times a slope is
infinite, which times e^g = 0 would be NaN."""


def _exponentials(logits: Float[Array, "*shape"], axis: Axis) -> tuple[Array, Array, Array, Array]:
    """Returns the gaps g to the largest logit, e^g, its sum l, 1 for an empty row, and the mean t / l of g by e^g."""
    row = Row(logits, axis)
    gap = masking.at_least(masking.below(logits, jax.lax.stop_gradient(row.maximum(logits))), LEAST_GAP)
    exponentials = jnp.exp(gap)
    total = row.sum(exponentials)
    total = jnp.where(total == 0, 1, total)
    return gap, exponentials, total, row.sum(masking.apart(exponentials * gap, gap)) / total


def entropy(logits: Float[Array, "*shape"], axis: AnyAxis = -1, where: AnyMask = None) -> Float[Array, "*row"]:
    r"""Entropy in nats of the softmax of each row, straight from the logits, with the axis kept at size 1.

    $$H = \log l - t / l, \qquad l = \sum_j e^{z_j - m}, \quad t = \sum_j e^{z_j - m} (z_j - m)$$

    An empty row has entropy 0. No weight is ever divided by or logged, so zeros are harmless.

    >>> entropy(jnp.zeros(8)) - jnp.log(8.0)
    Array([0.], dtype=float32)
    """
    axis, where = masking.axis_and_mask(logits, axis, where)

    def of_rows(logits: Array, where: Mask) -> Array:
        return Row.of(logits, axis, where).entropy()

    return as_one(of_rows, logits, where, out=spec_of(logits, axis))


def critical_beta(logits: Float[Array, "*rows n"], where: AnyMask = None) -> Float[Array, "*rows"]:
    r"""The critical inverse temperature of each row along the last axis, within a compiled program.

    $$\beta_c = \max_{k \ge 2} \frac{\log k}{z_{(1)} - z_{(k)}}$$

    As `softmax_jax.theory.critical_beta`, which says what follows from it: inf where the two largest logits are equal,
    0 for a row with one visible entry or none; NaN for a row with a visible NaN or +inf. It sorts every row.

    >>> critical_beta(jnp.array([2.0, 0.0, 0.0, 0.0]))  # log(4) / 2
    Array(0.6931472, dtype=float32)
    """
    axis, where = masking.axis_and_mask(logits, -1, where)

    def of_rows(logits: Array, where: Mask) -> Array:
        return critical_beta_of(Row.of(logits, axis, masking.unless_low(logits, axis, where)))

    return as_one(of_rows, logits, where, out=PartitionSpec(*spec_of(logits)[:-1]))


def critical_beta_of(row: Row) -> Float[Array, "*rows"]:
    """The critical inverse temperature of rows along the last axis."""
    z = row.logits
    ordered = jnp.sort(z, -1, descending=True)
    place = jax.lax.broadcasted_iota(jnp.int32, z.shape, z.ndim - 1)
    counted = (place > 0) & (ordered > -jnp.inf)
    gap = jnp.where(counted, ordered[..., :1] - ordered, 1)
    slope = jnp.where(counted, jnp.log1p(place.astype(z.dtype)) / gap, 0)
    return jnp.where(jnp.all(z < jnp.inf, -1), jnp.max(slope, -1, initial=0), jnp.nan)
