"""The meaning of a mask for a row of logits, decided in this module only.

A mask, called `where` as in `jax.nn.softmax`, is True at the visible entries. Masked entries enter no
maximum, no sum and no count, get a weight of exactly 0, and send back a gradient of exactly 0, whatever
number stands in them. A row with nothing visible is empty: all its weights are 0.

One rule tells which numbers hide: a number of `HIDDEN` = -9,000 or less that is added to the logits hides its entry, as
-inf does. Attention reads the rule from its bias alone. What is called with logits sees only the sum. There a logit
hides if it is -inf, or if it is at most -9,000 and at least `APART` = 8,000 below the largest visible one of its row:
so are all masks of -10,000 and lower over logits within ±1,000. Rows whose logits are all that low, as log-likelihoods
are, are weighed as they stand.

A visible NaN or +inf leaves its row without weights, as in `jax.nn.softmax`: they are NaN wherever a visible logit
is above -inf. What `where` masks keeps its 0, a logit of -inf may be NaN there too, and other rows keep their weights.
`name_bad_rows` says which rows those are.
Sums carry a NaN from one entry to its row. Maxima do not: on CPU the maximum of a row may drop it, and so may that of
two numbers in a loop over a sum. `at_least` and `at_most` keep it.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Shaped

from softmax_jax.normalizers import checks

Axis = int | tuple[int, ...]
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


def axis_and_mask(logits: Float[Array, "*shape"], axis: AnyAxis, where: AnyMask, **numbers: Any) -> tuple[Axis, Mask]:
    """Axis and mask of a row as this package has them, from those that a user gives.

    Raises TypeError or ValueError for logits, an axis, a mask or numbers of the row that do not fit each other; `name`
    among the numbers says what the logits are instead.
    """
    axis = checks.row(logits, axis, **numbers)
    return axis, checks.mask(where, jnp.shape(logits), ADD)


def is_low(logits: Any, largest: Any) -> Any:
    """Returns where logits, of JAX or numpy, are hidden by their size beside the largest visible one of their row."""
    return (logits <= HIDDEN) & (largest - logits >= APART)


def hide(values: Float[Array, "*shape"], where: Mask) -> Float[Array, "*shape"]:
    """Puts 0 where the mask is False."""
    if where is None:
        return values
    return jnp.where(jnp.broadcast_to(where, values.shape), values, jnp.zeros((), values.dtype))


def visible_logits(logits: Float[Array, "*shape"], where: Mask = None) -> Float[Array, "*shape"]:
    """The logits in float32 (float64 stays), with 0 in the place of every masked entry.

    Masked entries are replaced before any arithmetic, so that an infinity or NaN behind the mask reaches
    neither the weights nor the gradient.
    """
    return hide(_wide(logits), where)


def visible_or_lowest(logits: Float[Array, "*shape"], where: Mask) -> Float[Array, "*shape"]:
    """Returns the logits in float32 (float64 stays), with -inf in the place of every masked entry."""
    z = _wide(logits)
    return z if where is None else jnp.where(jnp.broadcast_to(where, z.shape), z, -jnp.inf)


def _wide(logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.asarray(logits, jnp.float64 if jnp.result_type(logits) == jnp.float64 else jnp.float32)


def settled(maximum: Float[Array, "*row"]) -> Float[Array, "*row"]:
    """Returns the number to subtract from a row: its maximum, 0 for an empty row, NaN for a row with +inf."""
    zero = jnp.zeros((), maximum.dtype)
    return jnp.where(maximum == -jnp.inf, zero, jnp.where(maximum == jnp.inf, jnp.nan, maximum))


def centre(logits: Float[Array, "*shape"], axis: Axis, where: Mask = None) -> Float[Array, "*shape"]:
    """Logits less the maximum of their row: at most 0, and never below the most negative finite number.

    The lower bound keeps products with the result finite where two logits lie more than the largest
    float apart; exp() of it is 0 either way. The maximum counts as a constant in derivatives, so use
    this only where adding a constant to a row changes nothing.
    """
    visible = None if where is None else jnp.broadcast_to(where, logits.shape)
    largest = jax.lax.stop_gradient(jnp.max(logits, axis, keepdims=True, where=visible, initial=-jnp.inf))
    # The lowest number for an empty row, from which -inf is as far as ever; NaN for a row with +inf.
    pivot = jnp.where(largest == jnp.inf, jnp.nan, jnp.maximum(largest, float(jnp.finfo(logits.dtype).min)))
    return hide(below(logits, pivot), where)


def below(logits: Float[Array, "*shape"], pivot: Float[Array, "*row"]) -> Float[Array, "*shape"]:
    """Logits less a pivot, but never below the most negative finite number."""
    return at_least(logits - pivot, float(jnp.finfo(logits.dtype).min))


def at_least(values: Float[Array, "*shape"], low: ArrayLike) -> Float[Array, "*shape"]:
    """The larger of the two, and NaN where the values are."""
    return jnp.where(values < low, low, values)


def at_most(values: Float[Array, "*shape"], high: ArrayLike) -> Float[Array, "*shape"]:
    """The smaller of the two, and NaN where the values are."""
    return jnp.where(values > high, high, values)


def reaches(values: Float[Array, "*shape"], bound: Float[Array, "..."]) -> Bool[Array, "*shape"]:
    """Returns where values are not below a number that was found from them, such as the largest of their row.

    Every choice that hangs on the last bit is made here. A compiler may compute the same values once for the number and
    again for the comparison, and fuse a product in them with a subtraction that follows, which rounds otherwise: so
    they are compared as they are, never by the sign of their difference. NaN reaches everything.
    """
    return ~(values < bound)


def row_sum(values: Float[Array, "*shape"], axis: Axis) -> Float[Array, "*row"]:
    """Sum of each row for use as a divisor: 1 where the sum is 0, which is the case of an empty row alone."""
    total = jnp.sum(values, axis, keepdims=True)
    return jnp.where(total == 0, jnp.ones((), values.dtype), total)


def times_row(values: Float[Array, "*shape"], number: Float[Array, "*row"]) -> Float[Array, "*shape"]:
    """Returns values times one number for each row.

    The transpose sums products over the row, and a choice keeps these apart from their sum, as elsewhere in this
    package: XLA on CPUs (jax 0.10) otherwise hands both to its library as one operation, which took 20 times as long as
    the two. Adaptive attention of 1,024 queries and keys takes 0.6 of the time by it, forward and backward (2 cores
    with AVX-512, 2026-11-26).
    """
    return values * apart(number, values)


def apart(summands: Float[Array, "*#shape"], like: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns the summands, NaN where another array is: the choice of `times_row`, which changes nothing."""
    return jnp.where(jnp.isnan(like), jax.lax.stop_gradient(like), summands)
