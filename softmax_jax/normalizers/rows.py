"""A row of logits that is there as a whole: what maps and scales may ask of it."""

import dataclasses
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.normalizers.checks import against
from softmax_jax.normalizers.masking import (
    AnyAxis,
    AnyMask,
    Axis,
    Mask,
    axis_and_mask,
    below,
    settled,
    unless_low,
    visible_count,
    visible_or_lowest,
)
from softmax_jax.normalizers.products import entropy_of, entropy_sums
from softmax_jax.normalizers.surroundings import as_one, spec_of


@runtime_checkable
class Row(Protocol):
    """What a scale may know of each row, with the row's axes at size 1; what it does not ask for is not computed."""

    def count(self) -> Float[Array, "*row"]:
        """Number of visible entries, as `masking` has it: a logit of -inf is none."""
        ...

    def entropy(self) -> Float[Array, "*row"]:
        """Entropy in nats of the softmax of the row."""
        ...

    def number(self, value: ArrayLike) -> Float[Array, "..."]:
        """A number of a map or scale, in the type and rank of the logits."""
        ...


@dataclasses.dataclass(frozen=True)
class WholeRow:
    """Rows along `axis`. `logits` are in float32 (float64 stays), with -inf in the place of every masked entry."""

    logits: Float[Array, "*shape"]
    axis: Axis

    @classmethod
    def of(cls, logits: Float[Array, "*shape"], axis: Axis, where: Mask) -> "WholeRow":
        """The rows of logits of any floating-point type, masked or not."""
        return cls(visible_or_lowest(logits, where), axis)

    def number(self, value: ArrayLike) -> Float[Array, "..."]:
        return against(value, self.logits)

    def count(self) -> Float[Array, "*row"]:
        return visible_count(self.logits, self.axis)

    def sum(self, values: Float[Array, "*shape"]) -> Float[Array, "*row"]:
        """Sum over each row."""
        return jnp.sum(values, self.axis, keepdims=True)

    def pivot(self, heights: Float[Array, "*shape"], start: ArrayLike = -jnp.inf) -> Float[Array, "*row"]:
        """The largest of each row, and at least `start`, as `settled` has it."""
        largest = jnp.max(heights, self.axis, keepdims=True, initial=-jnp.inf)
        return settled(jnp.maximum(largest, self.number(start)))

    def below(self, logits: Float[Array, "*shape"], pivot: Float[Array, "*row"]) -> Float[Array, "*shape"]:
        """Distance of logits to a pivot: at most 0 if the pivot is the largest."""
        return below(logits, pivot)

    def entropy(self) -> Float[Array, "*row"]:
        gap = self.below(self.logits, jax.lax.stop_gradient(self.pivot(self.logits)))
        return entropy_of(entropy_sums(gap, self.axis))


def entropy(logits: Float[Array, "*shape"], axis: AnyAxis = -1, where: AnyMask = None) -> Float[Array, "*row"]:
    r"""Entropy in nats of the softmax of each row, straight from the logits, with the axis kept at size 1.

    $$H = \log l - t / l, \qquad l = \sum_j e^{z_j - m}, \quad t = \sum_j e^{z_j - m} (z_j - m)$$

    An empty row has entropy 0. No weight is ever divided by or logged, so zeros are harmless.

    >>> entropy(jnp.zeros(8)) - jnp.log(8.0)
    Array([0.], dtype=float32)
    """
    axis, where = axis_and_mask(logits, axis, where)

    def of_rows(logits: Array, where: Mask) -> Array:
        return WholeRow.of(logits, axis, where).entropy()

    return as_one(of_rows, logits, where, out=spec_of(logits, axis))


def critical_beta(logits: Float[Array, "*rows n"], where: AnyMask = None) -> Float[Array, "*rows"]:
    r"""The critical inverse temperature of each row along the last axis, within a compiled program.

    $$\beta_c = \max_{k \ge 2} \frac{\log k}{z_{(1)} - z_{(k)}}$$

    As `softmax_jax.theory.critical_beta`, which says what follows from it: inf where the two largest logits are equal,
    0 for a row with one visible entry or none; NaN for a row with a visible NaN or +inf. It sorts every row.

    >>> critical_beta(jnp.array([2.0, 0.0, 0.0, 0.0]))  # log(4) / 2
    Array(0.6931472, dtype=float32)
    """
    axis, where = axis_and_mask(logits, -1, where)

    def of_rows(logits: Array, where: Mask) -> Array:
        return critical_beta_of(WholeRow.of(logits, axis, unless_low(logits, axis, where)))

    return as_one(of_rows, logits, where, out=PartitionSpec(*spec_of(logits)[:-1]))


def critical_beta_of(row: WholeRow) -> Float[Array, "*rows"]:
    """The critical inverse temperature of rows along the last axis."""
    z = row.logits
    ordered = jnp.sort(z, -1, descending=True)
    place = jax.lax.broadcasted_iota(jnp.int32, z.shape, z.ndim - 1)
    counted = (place > 0) & (ordered > -jnp.inf)
    gap = jnp.where(counted, ordered[..., :1] - ordered, 1)
    slope = jnp.where(counted, jnp.log1p(place.astype(z.dtype)) / gap, 0)
    return jnp.where(jnp.all(z < jnp.inf, -1), jnp.max(slope, -1, initial=0), jnp.nan)
