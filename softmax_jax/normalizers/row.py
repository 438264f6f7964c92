"""A row of logits as maps and scales see it: its entries, with -inf where one is hidden.

What hides an entry is settled here, once for a call. A mask, called `where` as in `jax.nn.softmax`, is True at the
visible entries. Masked entries enter no maximum, no sum and no count, get a weight of exactly 0, and send back a
gradient of exactly 0, whatever number stands in them. A row with nothing visible is empty: all its weights are 0.

One rule tells which numbers hide: a number of `HIDDEN` = -9,000 or less that is added to the logits hides its entry, as
-inf does. Attention reads the rule from its bias only. What is called with logits sees only the sum. There a logit
hides if it is -inf, or if it is at most -9,000 and at least `APART` = 8,000 below the largest visible one of its row:
so are all masks of -10,000 and lower over logits within ±1,000. Rows whose logits are all that low, such as
log-likelihoods, keep all their entries.

A visible NaN or +inf leaves its row without weights, as in `jax.nn.softmax`: they are NaN wherever a visible logit
is above -inf. What `where` masks keeps its 0, a logit of -inf may be NaN there too, and other rows keep their weights.
`name_bad_rows` says which rows those are.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Shaped

from softmax_jax.normalizers import arithmetic, checks
from softmax_jax.normalizers.checks import against, shown
from softmax_jax.normalizers.execution import as_one, spec_of
from softmax_jax.normalizers.layout import Along, Axis, Layout
from softmax_jax.normalizers.naming import name_rows
from softmax_jax.refusal import Refusal, WrongType

Mask = Bool[Array, "*#shape"] | None
AnyAxis = ArrayLike | Sequence[Any] | None
"""An axis as users give it: one, several, or None for all."""
AnyMask = Shaped[ArrayLike, "*#shape"] | Sequence[Any] | None
"""A mask as users give it: of booleans or of 0 and 1, an array, a list or one for all."""

HIDDEN = -9e3
"""The largest number that hides the entry to which it is added."""
APART = 8e3
"""How far below the largest of its row a logit of such a size is taken for a hidden one."""
ADD = "add a mask of other numbers to the logits, or give where=mask > -9000"
"""What to do with a mask that is to be added to the logits."""
SEEN = "it must be bool, or hold 0 and 1, True or 1 where an entry is visible"
"""What a mask must be."""


# The mask.


def axis_and_mask(logits: Float[Array, "*shape"], axis: AnyAxis, where: AnyMask, **numbers: Any) -> tuple[Axis, Mask]:
    """Returns the axis and the mask of a row in the form of this package, from those that a user gives.

    Raises TypeError or ValueError for logits, an axis, a mask or numbers of the row that do not fit each other; `name`
    among the numbers says what the logits are instead.
    """
    axis = checks.row(logits, axis, **numbers)
    return axis, read_mask(where, jnp.shape(logits), ADD)


def read_mask(
    where: Any, shape: tuple[int, ...], remedy: str, whose: str = "that of the logits,", nonzero: bool = False
) -> Array | None:
    """Returns a mask as booleans that broadcast to a shape.

    Arguments:
        where: An array, a list or one value, of booleans or of 0 and 1; None for no mask.
        shape: The shape to which it must broadcast.
        remedy: What to do with a mask that is to be added to the logits.
        whose: Says in the message what has the shape.
        nonzero: As in `_read_numbers`.

    Raises:
        TypeError: For other types.
        ValueError: For other numbers and for a shape that does not fit.

    Example:
        >>> read_mask([1, 1, 0], (2, 3), ADD)
        Array([ True,  True, False], dtype=bool)
    """
    if where is None:
        return None
    if not checks.is_array(where) and not isinstance(where, bool | int | float | list | tuple):
        raise WrongType(f"the mask is {shown(where)}; {SEEN}: {remedy}")
    mask = checks.array("the mask", where, object)
    if not checks.broadcasts(mask.shape, shape):
        raise Refusal(
            f"the mask has shape {mask.shape}; it must broadcast to {whose} {shape}: give each axis its full size or 1"
        )
    return jnp.asarray(mask) if mask.dtype == jnp.bool_ else _read_numbers(mask, remedy, nonzero)


def _read_numbers(numbers: Any, remedy: str, nonzero: bool) -> Array:
    """Returns where a mask of numbers is not 0.

    Known numbers must be 0 and 1. Numbers of floating point may be meant to be added to the logits, and would
    then show exactly what they hide: so they are refused if they are traced, or all 0. With `nonzero` any number but 0
    shows its entry, as in the layers of Flax, and none may be negative.
    """
    dtype, floating = numbers.dtype, jnp.issubdtype(numbers.dtype, jnp.floating)
    if not floating and not jnp.issubdtype(dtype, jnp.integer):
        raise WrongType(f"the mask has dtype {dtype}; {SEEN}: {remedy}")
    if not checks.is_known(numbers):
        if floating and not nonzero:
            raise WrongType(
                f"the mask has dtype {dtype} and is traced; {SEEN}: give mask != 0 if it holds 0 and 1, or {remedy}"
            )
        return numbers != 0
    known = np.asarray(numbers).astype(np.float64)
    wrong = known[~(known >= 0 if nonzero else (known == 0) | (known == 1))]
    if wrong.size:
        raise Refusal(f"the mask of {dtype} holds {wrong[0]:g}; {SEEN}: {remedy}")
    if floating and not nonzero and known.size and not known.any():
        raise Refusal(f"the mask of {dtype} holds 0 alone; {SEEN}: give mask != 0 if all is hidden, or {remedy}")
    return jnp.asarray(known != 0)


def is_low(logits: Any, largest: Any) -> Any:
    """Returns where logits, of JAX or numpy, are hidden by their size beside the largest visible one of their row."""
    # (2, -1, -10000): the last is at most -9000 and 10002 below the 2, so hidden. (-10000, -10001): none is 8000 below
    # the largest, so both count. By the difference, not the ratio: a constant added to the row then changes only
    # whether its logits are low at all.
    return (logits <= HIDDEN) & (largest - logits >= APART)


def hide(values: Float[Array, "*shape"], where: Mask) -> Float[Array, "*shape"]:
    """Returns the values with 0 where the mask is False."""
    if where is None:
        return values
    return jnp.where(jnp.broadcast_to(where, values.shape), values, jnp.zeros((), values.dtype))


def visible_values(values: Float[Array, "*shape"], where: Mask = None) -> Float[Array, "*shape"]:
    """Returns values in float32 (float64 stays), with 0 in the place of every masked entry."""
    return hide(_wide(values), where)


def _wide(values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.asarray(values, jnp.float64 if jnp.result_type(values) == jnp.float64 else jnp.float32)


# The row.


@dataclasses.dataclass(frozen=True)
class Row:
    """Rows of logits, in float32 (float64 stays), with -inf in the place of every hidden entry.

    What is one number for each row broadcasts against the logits: it has the row's axes at size 1, and in segments it
    stands at each entry. `sum`, `maximum`, `count` and `entropy` know where the entries of a row lie; `axis` is for
    rows that have one, so that a map which reads it sees segments as padded rows.

    >>> row = Row.of(jnp.array([1.0, 2.0, 9.0]), -1, jnp.array([True, True, False]))
    >>> row.count(), row.maximum(row.logits)
    (Array([2.], dtype=float32), Array([2.], dtype=float32))
    """

    logits: Float[Array, "*shape"]
    layout: Layout
    """Where the entries of each row lie."""
    where: Mask = None
    """False at the entries that a mask or their size hides, which get a weight of exactly 0."""
    given: Float[Array, "*shape"] | None = None
    """The logits of the caller: the weights get their type, and a plain function without a scale is called with them.
    """
    known_largest: tuple[Array, Array] | None = None
    """Logits and the largest of each of their rows, which `largest` returns while the row has these logits."""

    @classmethod
    def of(cls, logits: Float[Array, "*shape"], axis: Axis | Layout, where: Mask, low_hides: bool = True) -> "Row":
        """Returns rows of logits of any floating-point type, masked or not; with `low_hides` low numbers hide too."""
        layout = axis if isinstance(axis, Layout) else Along(axis)
        # The select comes before any arithmetic. Its derivative is 0 behind the mask, and every formula after it meets
        # -inf, which e^z makes 0: (2, 1, NaN) under (True, True, False) becomes (2, 1, -inf), with weights (0.731,
        # 0.269, 0) and dw₀/dz = w₀·(1 - w₀, -w₁, -0) = (0.197, -0.197, 0). A select of the weights at the end would
        # come too late: 0 times the slope of what is behind the mask is NaN where that is infinite.
        z = _wide(logits)
        z = z if where is None else jnp.where(jnp.broadcast_to(where, z.shape), z, -jnp.inf)
        if not low_hides:
            return cls(z, layout, where, logits)
        largest = jax.lax.stop_gradient(layout.largest(z))
        low = is_low(z, largest)
        z = jnp.where(low, -jnp.inf, z)  # whose largest is the same: no low logit is
        return cls(z, layout, ~low if where is None else ~low & where, logits, (z, largest))

    @property
    def axis(self) -> Axis:
        """The axis, or axes, of a row. Segments have none, and what reads it is computed over padded rows instead."""
        return self.layout.axis

    def scaled(self, beta: ArrayLike, *, centred: bool) -> "Row":
        """Returns rows of β·z, kept finite; of z less the largest of its row if `centred`.

        The offset counts as a constant in derivatives. Logits that are not finite pass by the product: no β changes
        what they say.
        """
        # Centred logits lose no digits to a common offset. Of 100,000 and 100,000.25 at β = 10, float32 forms 1,000,000
        # and 1,000,002.5, whose neighbours are 1/16 apart; centred first, 0 and -0.25 give 0 and -2.5 exactly.
        z = arithmetic.subtract_pivot(self.logits, arithmetic.as_pivot(self.largest())) if centred else self.logits
        product = arithmetic.product(beta, z)
        return dataclasses.replace(self, logits=jnp.where(jnp.isfinite(self.logits), product, self.logits))

    def shown(self) -> Float[Array, "*shape"]:
        """Returns the logits with 0 where `where` is False, for a plain function, which is given the mask besides."""
        return hide(self.logits, self.where)

    def weights(self, weights: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns weights in the type of the logits that were given, exactly 0 where `where` is False."""
        hidden = hide(weights, self.where)
        return hidden if self.given is None else hidden.astype(jnp.result_type(self.given))

    def number(self, value: ArrayLike) -> Float[Array, "..."]:
        """Returns a number of a map or scale in the type and rank of the logits."""
        return against(value, self.logits)

    def count(self) -> Float[Array, "*row"]:
        """Returns the number of visible entries; a logit of -inf is none."""
        return self.layout.sum(self.logits != -jnp.inf).astype(self.logits.dtype)

    def sum(self, values: Float[Array, "*shape"]) -> Float[Array, "*row"]:
        """Returns the sum over each row."""
        return self.layout.sum(values)

    def largest(self) -> Float[Array, "*row"]:
        """Returns the largest logit of each row, -inf for an empty one. It counts as a constant in derivatives."""
        if self.known_largest is not None and self.known_largest[0] is self.logits:
            return self.known_largest[1]
        return jax.lax.stop_gradient(self.layout.largest(self.logits))

    def zero(self) -> Float[Array, "*row"]:
        """Returns 0 for each row, but NaN for one with a visible NaN or +inf: for maps that weigh each entry alone."""
        visible = jnp.where(self.logits != -jnp.inf, self.logits, 0)
        return jax.lax.stop_gradient(self.sum(visible * 0))

    def maximum(self, values: Float[Array, "*shape"], least: ArrayLike = -jnp.inf) -> Float[Array, "*row"]:
        """Returns the largest value of each row, and at least `least`: finite if both are -inf, NaN if it is +inf."""
        return arithmetic.as_pivot(jnp.maximum(self.layout.largest(values), self.number(least)))

    def entropy(self) -> Float[Array, "*row"]:
        """Returns the entropy in nats of the softmax of the row."""
        return _entropy(self.logits, self.largest(), self.layout)


# From the logits of a user to what is computed of their rows.


def weigh(
    part: Any, logits: Float[Array, "*shape"], axis: AnyAxis = -1, where: AnyMask = None, *, low_hides: bool = False
) -> Float[Array, "*shape"]:
    """Weighs logits by a map or a normalizer: the one way from logits of a user to weights of their type.

    Arguments:
        part: A map or a normalizer.
        logits: An array of floating point.
        axis: One axis, several, or None for all.
        where: True at the visible entries; None for no mask.
        low_hides: Whether low numbers hide their entry, as in a call of the part. Without it only `where` and -inf do,
            as in attention, which reads low numbers from its bias.

    Raises:
        TypeError, ValueError: For logits, an axis, a mask or numbers of the part that do not fit each other.
    """
    axis, where = axis_and_mask(logits, axis, where)
    return weigh_rows(part, logits, Along(axis), where, low_hides=low_hides)


def weigh_rows(
    part: Any, logits: Float[Array, "*shape"], layout: Layout, where: Mask, *, low_hides: bool
) -> Float[Array, "*shape"]:
    """Weighs logits and a mask that are checked, whose rows lie as a layout says; otherwise as `weigh`."""
    part.check(logits, layout.number_axis)
    name_rows(part, logits, layout, where)
    low_hides = low_hides and not part.ignores_low
    return compute_rows(lambda row, part: part.of_row(row), logits, layout, where, part, low_hides=low_hides)


def compute_rows(
    function: Callable[..., Any],
    logits: Float[Array, "*shape"],
    axis: Axis | Layout,
    where: Mask,
    *operands: Any,
    low_hides: bool = True,
    out: PartitionSpec | None = None,
) -> Any:
    """Returns function(row, *operands) of the rows of logits, computed as one operation.

    Arguments:
        function: A function of a `Row` and of the operands.
        logits: An array of floating point.
        axis: The axis, or axes, of a row, or the layout of rows.
        where: A boolean mask that broadcasts to the logits, or None.
        operands: Pytrees whose arrays the function reads; it must not close over arrays.
        low_hides: Whether low numbers hide their entry.
        out: How the result is divided over a mesh with explicit axes; as the logits unless given.
    """

    def compute(logits: Array, layout: Layout, where: Mask, *operands: Any) -> Any:
        return function(Row.of(logits, layout, where, low_hides), *operands)

    layout = axis if isinstance(axis, Layout) else Along(axis)
    return as_one(compute, (logits, layout, where, *operands), spec_of(logits) if out is None else out)()


# Statistics of a row.


def entropy(logits: Float[Array, "*shape"], axis: AnyAxis = -1, where: AnyMask = None) -> Float[Array, "*row"]:
    r"""Returns the entropy in nats of the softmax of each row, straight from the logits, with the axis kept at size 1.

    $$H = \log l - t / l, \qquad l = \sum_j e^{z_j - m}, \quad t = \sum_j e^{z_j - m} (z_j - m)$$

    An empty row has entropy 0. No weight is ever divided by or logged, so zeros are harmless.

    >>> entropy(jnp.zeros(8)) - jnp.log(8.0)
    Array([0.], dtype=float32)
    """
    axis, where = axis_and_mask(logits, axis, where)
    return compute_rows(Row.entropy, logits, axis, where, low_hides=False, out=spec_of(logits, axis))


LEAST_GAP = -1000.0
"""g·e^g and its derivatives are 0 from g = -760 down, in float64 too. A gap stops here, so that none times a slope is
infinite, which times e^g = 0 would be NaN."""


@jax.custom_jvp
def _entropy(logits: Float[Array, "*shape"], largest: Float[Array, "*row"], layout: Layout) -> Float[Array, "*row"]:
    """Returns log l - t / l of rows with their largest logit, -inf where an entry is masked; an empty row gets 0."""
    # With g = z - m, log p = g - log l, and so H = -Σ p log p = log l - Σ p g = log l - t / l.
    # For z = (0, 0, log 2): p = (1/4, 1/4, 1/2), g = (-log 2, -log 2, 0), l = 2, t = -log 2, H = (3/2) log 2 = 1.0397.
    _, _, total, mean = _exponentials(logits, largest, layout)
    return jnp.log(total) - mean


@_entropy.defjvp
def _(primals: tuple[Array, Array, Layout], tangents: tuple[Array, Any, Any]) -> tuple[Array, Array]:
    # The derivative of p log p is (log p + 1) dp, and Σ dp = 0, so dH = -Σ log p dp with dp = p (dz - Σ p dz). In
    # log p = g - log l the constant cancels, which leaves dH = Σ p (t / l - g) dz.
    # In the row above t / l = -log(2) / 2 and dH/dz = (1/8, 1/8, -1/4) log 2 = (0.0866, 0.0866, -0.1733), of sum 0.
    (logits, largest, layout), (change, *_) = primals, tangents
    gap, exponentials, total, mean = _exponentials(logits, largest, layout)
    change = jnp.where(gap == LEAST_GAP, 0, change)  # of a masked entry it may be infinite
    entropy_change = layout.sum(exponentials * (mean - gap) / total * change)
    return jnp.log(total) - mean, entropy_change


def _exponentials(
    logits: Float[Array, "*shape"], largest: Float[Array, "*row"], layout: Layout
) -> tuple[Array, Array, Array, Array]:
    """Returns the gaps g to the largest logit, e^g, its sum l, 1 for an empty row, and the mean t / l of g by e^g."""
    gap = arithmetic.at_least(arithmetic.subtract_pivot(logits, arithmetic.as_pivot(largest)), LEAST_GAP)
    exponentials = jnp.exp(gap)
    total = layout.divisor(exponentials)
    return gap, exponentials, total, layout.sum(arithmetic.keep_apart(exponentials * gap, gap)) / total


def critical_beta(logits: Float[Array, "*rows n"], where: AnyMask = None) -> Float[Array, "*rows"]:
    r"""Returns the critical inverse temperature of each row along the last axis, within a compiled program.

    $$\beta_c = \max_{k \ge 2} \frac{\log k}{z_{(1)} - z_{(k)}}$$

    As `softmax_jax.theory.critical_beta`, which says what follows from it: inf where the two largest logits are equal,
    0 for a row with one visible entry or none; NaN for a row with a visible NaN or +inf. It sorts every row.

    >>> critical_beta(jnp.array([2.0, 0.0, 0.0, 0.0]))  # log(4) / 2
    Array(0.6931472, dtype=float32)
    """
    axis, where = axis_and_mask(logits, -1, where)
    return compute_rows(critical_beta_of, logits, axis, where, out=PartitionSpec(*spec_of(logits)[:-1]))


def critical_beta_of(row: Row) -> Float[Array, "*rows"]:
    """Returns the critical inverse temperature of rows, without axes of size 1."""
    # The row (2, 0, 0, 0) has log(2)/2, log(3)/2 and log(4)/2 at k = 2, 3 and 4: of equal gaps the last k is largest.
    ordered, rank, layout = row.layout.descending(row.logits)
    counted = (rank > 0) & (ordered > -jnp.inf)
    gap = jnp.where(counted, layout.spread(layout.head(ordered)) - ordered, 1)
    slope = jnp.where(counted, jnp.log1p(rank.astype(ordered.dtype)) / gap, 0)
    largest = jnp.maximum(layout.squeeze(layout.top(slope)), 0)
    return jnp.where(layout.any(~(ordered < jnp.inf)), jnp.nan, largest)
