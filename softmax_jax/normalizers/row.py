"""A row of logits as maps and scales see it: whole, along one axis, with -inf where an entry is hidden.

What hides an entry is settled here, once for a call: the mask, -inf, and the size of a low number, as `masking` says.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.normalizers import masking
from softmax_jax.normalizers.checks import against
from softmax_jax.normalizers.execution import as_one, spec_of
from softmax_jax.normalizers.masking import AnyAxis, AnyMask, Axis, Mask
from softmax_jax.normalizers.naming import name_rows


@dataclasses.dataclass(frozen=True)
class Row:
    """Rows of logits along `axis`, in float32 (float64 stays), with -inf in the place of every hidden entry.

    What is one number for each row has the row's axes at size 1.
    """

    logits: Float[Array, "*shape"]
    axis: Axis
    where: Mask = None
    """False at the entries that a mask or their size hides, which get a weight of exactly 0."""
    given: Float[Array, "*shape"] | None = None
    """The logits as they came: the weights get their type, and a plain function without a scale is called with them."""

    @classmethod
    def of(cls, logits: Float[Array, "*shape"], axis: Axis, where: Mask, low_hides: bool = True) -> "Row":
        """Rows of logits of any floating-point type, masked or not; with `low_hides` low numbers hide too."""
        # Replaced before any arithmetic, so that an infinity or NaN behind the mask reaches neither weights nor slopes.
        z = masking.visible_or_lowest(logits, where)
        if low_hides:
            low = masking.is_low(z, jax.lax.stop_gradient(jnp.max(z, axis, keepdims=True, initial=-jnp.inf)))
            z, where = jnp.where(low, -jnp.inf, z), ~low if where is None else ~low & where
        return cls(z, axis, where, logits)

    def scaled(self, beta: ArrayLike, *, centred: bool) -> "Row":
        """Rows of β·z, kept finite; of z less the largest of its row if `centred`.

        Centred logits lose no digits to a common offset: of 100,000 and 100,000.25 at β = 10 float32 would keep a
        difference of 2.5 only to 1/16. The offset counts as a constant in derivatives. Logits that are not finite pass
        by the product: no β changes what they say.
        """
        z = masking.centre(self.logits, self.axis) if centred else self.logits
        return dataclasses.replace(self, logits=jnp.where(jnp.isfinite(self.logits), product(beta, z), self.logits))

    def shown(self) -> Float[Array, "*shape"]:
        """The logits with 0 where `where` is False, for a plain function, which is given the mask besides."""
        return masking.hide(self.logits, self.where)

    def weights(self, weights: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Weights in the type of the logits that were given, exactly 0 where `where` is False."""
        hidden = masking.hide(weights, self.where)
        return hidden if self.given is None else hidden.astype(jnp.result_type(self.given))

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


def weigh(
    part: Any, logits: Float[Array, "*shape"], axis: AnyAxis = -1, where: AnyMask = None, *, low_hides: bool = False
) -> Float[Array, "*shape"]:
    """Weighs logits by a map or a normalizer: the one way from logits of a user to weights of their type.

    Only `where` and -inf hide an entry, as in attention, which reads low numbers from its bias; with `low_hides`, as in
    a call of the part, low numbers do too.
    Raises TypeError or ValueError for logits, an axis, a mask or numbers of the part that do not fit each other.
    """
    axis, where = masking.axis_and_mask(logits, axis, where)
    part.check(logits, axis)
    name_rows(part, logits, axis, where)
    low_hides = low_hides and not part.ignores_low

    def weights(part: Any, logits: Array, where: Mask) -> Array:
        return part.of_row(Row.of(logits, axis, where, low_hides))

    return as_one(weights, part, logits, where, out=spec_of(logits))


def product(beta: ArrayLike, logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """β·z with one β for each row, kept finite: of finite logits, so that 0 · inf cannot arise."""
    largest = float(jnp.finfo(logits.dtype).max)
    beta = jnp.clip(jnp.asarray(beta, logits.dtype), -largest, largest)
    return masking.at_most(masking.at_least(_times(beta, logits), -largest), largest)


@jax.custom_jvp
def _times(beta: Float[Array, "..."], logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return beta * logits


@_times.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (beta, logits), (beta_slope, logits_slope) = primals, tangents
    # Within 1e-8 of the largest float, so that no product with a slope is infinite, which times 0 would be NaN.
    bound = 1e-8 * float(jnp.finfo(logits.dtype).max)
    bounded = masking.at_most(masking.at_least(logits, -bound), bound)
    return _times(beta, logits), beta * logits_slope + masking.times_row(bounded, beta_slope)


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
        return Row.of(logits, axis, where, low_hides=False).entropy()

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
        return critical_beta_of(Row.of(logits, axis, where))

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
