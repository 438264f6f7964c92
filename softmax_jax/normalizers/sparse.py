"""Maps with a threshold: sparsemax, the entmax family, Stieltjes and top-k, none of which sorts its row.

Each weight is a function of its own logit and of one number of the row, the threshold, at which the weights sum
to 1. A safeguarded secant iteration finds it from one sum over the row per step, so a row may come in blocks; Newton's
would take a few steps less but a second sum in each, which XLA on CPU fuses with the first into a loop five times as
slow. Gradients are those of the solution, by the implicit function theorem; nothing is unrolled, and both modes work.
The searches are jitted, because outside of jit JAX would compile their loops anew at every call.

The rules of `maps` hold here too: float32 within, the type of the logits outside, masks as `masking` says.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.checks import against
from softmax_jax.normalizers.maps import shift_invariant
from softmax_jax.normalizers.masking import Axis, Mask, centre, hide, row_sum, shares, visible_or_lowest

Weigh = Callable[[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]], Float[Array, "..."]]
"""From logits, and a threshold and an ε that broadcast against them, to weights."""

Advance = Callable[[Float[Array, "*row"], Float[Array, "*row"], Float[Array, "*row"], Array], Float[Array, "*row"]]
"""From two thresholds, a multiple of their distance, and ε, to the threshold that far beyond the second."""

Total = Callable[[Float[Array, "*row"]], Float[Array, "*row"]]
"""From thresholds to the sums of the weights there."""


class Family(NamedTuple):
    """Weights that are functions of a logit, a threshold and ε, with what the search for the threshold must know.

    Their derivative in the logit is that of `slopes`. Where `halve` is True, the total may not be convex.
    """

    weigh: Weigh
    advance: Advance
    halve: Callable[[Float[Array, "..."]], Bool[Array, "..."]]
    start: float
    """No threshold is below."""
    end: Callable[[int], float]
    """No threshold of a row of so many entries is above."""


BLOCKS = 16
"""Parts into which a row is cut to be summed. The warm start sees the largest of each place in them."""

FIRST_STEP = 1 / 64
"""Distance of the first two thresholds of a search."""

MAX_STEPS = 64
"""Bound on the steps of one search: the secant's takes about 6, and halving an interval exhausts float32 after 30."""


@shift_invariant
def sparsemax(logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None) -> Float[Array, "*shape"]:
    r"""The point of the probability simplex nearest to the logits: small weights are exactly 0.

    $$w_i = \max(z_i - \tau, 0), \qquad \tau \text{ such that } \sum_j w_j = 1$$

    Equal to `entmax` at `alpha` = 2, and faster.

    Source: Martins & Astudillo, "From Softmax to Sparsemax", ICML 2016.

    >>> sparsemax(jnp.array([1.0, 0.5, -1.0]))
    Array([0.75, 0.25, 0.  ], dtype=float32)
    """
    x = _rows(logits, axis, where)
    return _back(_power_of_excess(1, x), logits, axis)


@shift_invariant
def entmax15(logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None) -> Float[Array, "*shape"]:
    r"""Halfway between softmax and sparsemax: smooth, with small weights exactly 0.

    $$w_i = \max(z_i / 2 - \tau, 0)^2, \qquad \tau \text{ such that } \sum_j w_j = 1$$

    Equal to `entmax` at `alpha` = 1.5, and faster.

    Source: Peters, Niculae, Martins, "Sparse Sequence-to-Sequence Models", ACL 2019.

    >>> entmax15(jnp.array([1.0, 1.0, -3.0]))
    Array([0.5, 0.5, 0. ], dtype=float32)
    """
    x = _rows(logits, axis, where)
    return _back(_power_of_excess(2, x), logits, axis)


@shift_invariant
def entmax(
    logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None, *, alpha: ArrayLike = 1.5
) -> Float[Array, "*shape"]:
    r"""The family from softmax (α → 1) over sparsemax (α = 2) to hardmax (α → ∞): sparser as α grows.

    $$w_i = \max((\alpha - 1) z_i - \tau, 0)^{1 / (\alpha - 1)}, \qquad \tau \text{ such that } \sum_j w_j = 1$$

    `alpha` > 1 is a number, or an array that broadcasts against the logits with the row's axis at size 1, as in
    (heads, 1, 1). Weights and gradients, that in `alpha` too, keep their digits down to `alpha` = 1, which an
    array may hold and which is softmax. Above 2 a weight near 0 changes steeply with its logit, and so is only
    as good as the digits of the logits.

    Raises ValueError for a plain number that is not above 1, or above 1e6.

    Source: Peters, Niculae, Martins, "Sparse Sequence-to-Sequence Models", ACL 2019; gradient in α: Correia,
    Niculae, Martins, "Adaptively Sparse Transformers", EMNLP 2019.

    >>> entmax(jnp.array([1.0, 1.0, -3.0]), alpha=1.3)
    Array([0.5, 0.5, 0. ], dtype=float32)
    """
    checks.require("alpha", alpha, "above 1 and at most 1e6, such as 1.5", lambda value: 1 < value <= 1e6)
    checks.row(logits, axis, alpha=alpha)
    x = _rows(logits, axis, where)
    return _back(_tsallis(x, _per_row(alpha, logits, axis, x.dtype) - 1), logits, axis)


@shift_invariant
def stieltjes(
    logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None, *, q: ArrayLike = 4.0
) -> Float[Array, "*shape"]:
    r"""Weights with a tail: they fall off as a power of the distance to the largest logit, and are never 0.

    $$w_i = (\lambda - z_i)^{-q}, \qquad \lambda > \max_j z_j \text{ such that } \sum_j w_j = 1$$

    `q` > 0 is a number, or an array that broadcasts against the logits with the row's axis at size 1. A logit
    of -inf gets 0.

    Raises ValueError for a plain number below 1e-6 or above 1e6.

    Source: AS-Stieltjes, which is this map with `q` = 4 at a scale that grows with the length of the row.

    >>> stieltjes(jnp.array([3.0, 3.0, 3.0, -jnp.inf, 3.0]))
    Array([0.25, 0.25, 0.25, 0.  , 0.25], dtype=float32)
    """
    checks.require("q", q, "above 0, from 1e-6 to 1e6, such as 4.0", lambda value: 1e-6 <= value <= 1e6)
    checks.row(logits, axis, q=q)
    x = _rows(logits, axis, where)
    power = _per_row(q, logits, axis, x.dtype)
    # Replaced before the product, because the derivative in q of one with -inf is not finite.
    product = jnp.where(x != -jnp.inf, power * jnp.where(x != -jnp.inf, x, 0), -jnp.inf)
    # The family of entmax goes on below α = 1, where its weights are these.
    return _back(_tsallis(product, -1 / power), logits, axis)


@shift_invariant
def top_k_softmax(
    logits: Float[Array, "*shape"], axis: Axis = -1, where: Mask = None, *, k: ArrayLike = 8
) -> Float[Array, "*shape"]:
    r"""Softmax over the k largest visible logits; the others get exactly 0.

    $$w_i = \frac{[z_i \ge z_{(k)}]\, e^{z_i}}{\sum_j [z_j \ge z_{(k)}]\, e^{z_j}}, \qquad
      z_{(k)} \text{ the k-th largest}$$

    Every logit that ties with the k-th largest is kept, so more than k may be; a row with fewer than k is kept
    whole. `k` ≥ 1 is a whole number, or an array of them that broadcasts against the logits with the row's axis
    at size 1; it may be traced.

    Raises ValueError for a plain number that is not whole or below 1.

    >>> top_k_softmax(jnp.array([2.0, 1.0, 2.0, 1.5]), k=2)
    Array([0.5, 0. , 0.5, 0. ], dtype=float32)
    """
    checks.require("k", k, "that is whole and at least 1, such as 8", lambda value: value >= 1 and value == int(value))
    checks.row(logits, axis, k=k)
    z = visible_or_lowest(logits, where)
    rank = whole_ranks(k)
    rank = rank.reshape((1,) * (z.ndim - rank.ndim) + rank.shape)
    kept = ~(z < kth_largest(jax.lax.stop_gradient(z), rank, axis)) & (z != -jnp.inf)
    exponentials = hide(jnp.exp(centre(z, axis, kept)), kept)
    return shares(exponentials, row_sum(exponentials, axis), where).astype(logits.dtype)


def _rows(logits: Float[Array, "*shape"], axis: Axis, where: Mask) -> Float[Array, "*rows n"]:
    """Logits less the largest of their row, the row along the last axis, with -inf where no weight goes."""
    checks.row(logits, axis)
    z = visible_or_lowest(logits, where)
    return _last(jnp.where(z != -jnp.inf, centre(z, axis, where), -jnp.inf), axis)


def _back(weights: Float[Array, "*rows n"], logits: Float[Array, "*shape"], axis: Axis) -> Float[Array, "*shape"]:
    """Undoes the layout of `_rows`, in the type of the logits."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    last = tuple(range(-len(axes), 0))
    moved = jnp.moveaxis(jnp.empty(logits.shape, bool), axes, last).shape
    return jnp.moveaxis(weights.reshape(moved), last, axes).astype(logits.dtype)


def _last(array: Array, axis: Axis) -> Array:
    """The array with the axes of the row joined into one at the end."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    moved = jnp.moveaxis(array, axes, tuple(range(-len(axes), 0)))
    return moved.reshape(*moved.shape[: moved.ndim - len(axes)], -1)


def _per_row(number: ArrayLike, logits: Float[Array, "*shape"], axis: Axis, dtype: Any) -> Float[Array, "..."]:
    """A number that broadcasts against the logits, in this type and laid out like their rows."""
    return _last(against(number, jnp.empty(logits.shape, dtype)), axis)


class Search(NamedTuple):
    """State of the search for a threshold, all per row."""

    before: Float[Array, "*row"]
    total_before: Float[Array, "*row"]
    here: Float[Array, "*row"]
    total: Float[Array, "*row"]
    low: Float[Array, "*row"]
    high: Float[Array, "*row"]
    active: Bool[Array, "*row"]


def _search(
    family: Family, total: Total, eps: Float[Array, "..."], start: Float[Array, "*row"], entries: int
) -> Search:
    """Finds the threshold from start on at which a falling total is 1; start where the total is less there.

    The secant through two points on the near side of the solution never passes it where (total^ε - 1) / ε is
    convex in what `advance` is linear in. `halve` marks the rows where it may not be: there every other step,
    and each one that leaves the interval known to hold the solution, goes to its middle instead.
    """
    tolerance, halve = 2 * jnp.finfo(start.dtype).eps, family.halve(eps)

    def unfinished(state: tuple[Array, Search]) -> Array:
        count, rows = state
        return (count < MAX_STEPS) & jnp.any(rows.active)

    def step(state: tuple[Array, Search]) -> tuple[Array, Search]:
        count, rows = state
        low, high = jnp.where(rows.total > 1, rows.here, rows.low), jnp.where(rows.total < 1, rows.here, rows.high)
        left, left_before = (jnp.expm1(eps * jnp.log(value)) / eps for value in (rows.total, rows.total_before))
        fall = left_before - left
        secant = family.advance(rows.before, rows.here, jnp.where(fall > 0, left / fall, 0), eps)
        inside = (secant > low) & (secant < high) & (count % 2 == 0)
        moved = jnp.where(halve & ~inside, low + (high - low) / 2, secant)
        moved = jnp.where(count == 0, start, jnp.where(rows.active, moved, rows.here))
        reached = total(moved)
        # Where the miss grows, rounding has the last word. At the start, a total below 1 has no solution beyond.
        miss, miss_before = jnp.abs(reached - 1), jnp.abs(rows.total - 1)
        nearer = jnp.where(count == 0, reached > 1, halve | (miss < miss_before))
        active = rows.active & (miss > tolerance) & nearer & (moved != rows.here)
        return count + 1, Search(rows.here, rows.total, moved, reached, low, high, active)

    # The point before the start is summed outside of the loop: two sums in one place XLA would fuse.
    near = start - FIRST_STEP
    of_near = total(near)
    end = jnp.full_like(near, family.end(entries))
    rows = Search(near, of_near, near, of_near, near, end, jnp.ones(near.shape, bool))
    return jax.lax.while_loop(unfinished, step, (jnp.int32(0), rows))[1]


def find_threshold(
    family: Family,
    eps: Float[Array, "..."],
    total: Total,
    entries: int,
    part: Float[Array, "*rows m"] | None = None,
    like: Float[Array, "*rows n"] | None = None,
) -> tuple[Float[Array, "*rows 1"], Float[Array, "*rows 1"]]:
    """The threshold of each row at which its weights sum to 1, and their sum there, from their sum at any.

    `part` are some logits of each row, of which the search starts at their own threshold: they sum to less than
    the whole, so that it is not beyond that of the row, and it is close if they are the largest.
    """
    rows = part if part is not None else like
    assert rows is not None
    threshold = jnp.full((*rows.shape[:-1], 1), family.start, rows.dtype)
    if part is not None:
        of_part = functools.partial(_sum_of_blocks, family, part[..., None, :], eps)
        threshold = _search(family, of_part, eps, threshold, entries).here
    found = _search(family, total, eps, threshold, entries)
    return found.here, jnp.where(found.total == 0, 1, found.total)


def _sum_of_blocks(
    family: Family, blocks: Float[Array, "*rows blocks m"], eps: Float[Array, "..."], threshold: Float[Array, "*rows 1"]
) -> Float[Array, "*rows 1"]:
    """Sum of the weights of rows that are cut into blocks."""
    # Kept apart, or XLA joins the two sums into one, which does not spread over the cores when rows are few.
    weights = family.weigh(blocks, threshold[..., None], eps[..., None])
    of_blocks = jax.lax.optimization_barrier(jnp.sum(weights, -1))
    return jnp.sum(of_blocks, -1, keepdims=True)


def _solve(family: Family, eps: Float[Array, "..."], x: Float[Array, "*rows n"]) -> Float[Array, "*rows n"]:
    """The weights of each row at the threshold at which they sum to 1.

    The few entries that matter are mostly the largest of their place in the blocks, so the search starts there.
    """
    *rows, n = x.shape
    blocks, part = x[..., None, :], None
    if n >= 2 * BLOCKS:
        padding = [(0, 0)] * len(rows) + [(0, -n % BLOCKS)]
        blocks = jnp.pad(x, padding, constant_values=-jnp.inf).reshape(*rows, BLOCKS, -1)
        part = jnp.max(blocks, -2)
    total = functools.partial(_sum_of_blocks, family, blocks, eps)
    threshold, reached = find_threshold(family, eps, total, n, part, x)
    # The search is free to forget NaN, which keeps it fast.
    bad = jnp.any(jnp.isnan(x), -1, keepdims=True)
    weights = family.weigh(x, threshold, eps) / jnp.where(bad, 1, reached)
    return jnp.where(bad & (x != -jnp.inf), jnp.nan, weights)


def _along_simplex(slopes: Float[Array, "*rows n"], change: Float[Array, "*rows n"]) -> Float[Array, "*rows n"]:
    """The change of the weights for a change of the logits: the threshold moves so that their sum stays."""
    shares = slopes / row_sum(slopes, -1)
    return slopes * (change - jnp.sum(shares * change, -1, keepdims=True))


@functools.cache
def excess(power: int) -> Family:
    """Weights max((x - τ) / power, 0)^power, with ε = 1 / power."""

    def weigh(x: Array, tau: Array, eps: Array) -> Array:
        return jnp.maximum(eps * (x - tau), 0) ** power

    def advance(before: Array, tau: Array, times: Array, eps: Array) -> Array:
        # The total to the power ε is a norm of the weights' bases, which is convex in τ and nearly straight.
        return tau + (tau - before) * times

    return Family(weigh, advance, lambda eps: jnp.asarray(False), -float(power), lambda entries: 0.0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
@functools.partial(jax.jit, static_argnums=0)
def _power_of_excess(power: int, x: Float[Array, "*rows n"]) -> Float[Array, "*rows n"]:
    """Weights max((x - τ) / power, 0)^power that sum to 1: sparsemax has power 1, entmax15 2."""
    return _solve(excess(power), jnp.full((1,) * x.ndim, 1 / power, x.dtype), x)


@_power_of_excess.defjvp
def _(power: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    weights = _power_of_excess(power, *primals)
    live = weights > 0
    slopes = jnp.where(live, jnp.where(live, weights, 1) ** (1 - 1 / power), 0)
    return weights, _along_simplex(slopes, *tangents)


def log1p(x: Array) -> Array:
    """log(1 + x) within 3 ulp; in float64 that of jax 0.10 is off by up to 120 on CPU.

    Source: Kahan's trick, Goldberg, "What every computer scientist should know about floating-point arithmetic", 1991,
    theorem 4.
    """
    if x.dtype != jnp.float64:
        return jnp.log1p(x)
    rounded = jax.lax.reduce_precision(1 + x, 11, 52)  # or XLA would simplify (1 + x) - 1 to x
    lost = rounded - 1
    itself = (lost == 0) | (lost == jnp.inf)
    return jnp.where(itself, x, jnp.log(rounded) * (x / jnp.where(itself, 1, lost)))


# With t = -log of the largest weight, exp(-εt) is its base; both ends are far beyond what can matter. Written
# without a branch, which XLA does not turn into vector instructions on CPU.
def _weigh_tsallis(x: Array, t: Array, eps: Array) -> Array:
    limit = 0.9 * math.log(jnp.finfo(x.dtype).max)
    excess = jnp.maximum(eps * jnp.exp(jnp.clip(eps * t, -limit, limit)) * x, -1)
    return jnp.exp(log1p(excess) / eps - t)


def _advance_tsallis(before: Array, t: Array, times: Array, eps: Array) -> Array:
    # Linear in the bases, exp(-εt); the total to the power ε is a norm of them, convex up to ε = 1.
    return t - log1p(-jnp.expm1(eps * (t - before)) * times) / eps


TSALLIS = Family(
    _weigh_tsallis, _advance_tsallis, lambda eps: jnp.abs(eps) > 1, 0.0, lambda entries: math.log(max(entries, 1))
)
"""Weights (1 + ε·(x - θ))^(1/ε), for any ε but 0, which `away_from_zero` replaces; the threshold stands for θ."""


@jax.custom_jvp
@jax.jit
def _tsallis(x: Float[Array, "*rows n"], eps: Float[Array, "..."]) -> Float[Array, "*rows n"]:
    """Weights of `TSALLIS` that sum to 1; at ε = 0 they are softmax."""
    return _solve(TSALLIS, away_from_zero(eps), x)


@_tsallis.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x, eps), (x_change, eps_change) = primals, tangents
    weights = _tsallis(x, eps)
    slopes, in_eps = derivatives(weights, away_from_zero(eps))
    moved = eps_change * (in_eps - slopes * jnp.sum(in_eps, -1, keepdims=True) / row_sum(slopes, -1))
    return weights, _along_simplex(slopes, x_change) + moved


def derivatives(
    weights: Float[Array, "*rows n"], eps: Float[Array, "..."]
) -> tuple[Float[Array, "*rows n"], Float[Array, "*rows n"]]:
    """Of weights (1 + ε·(x - θ))^(1/ε): in x, which is that in -θ, and in ε at a fixed θ."""
    live = weights > 0
    logs = jnp.log(jnp.where(live, weights, 1))
    base = eps * logs  # the log of 1 + ε(x - θ)
    # Above ε = 1 the slope of a tiny weight has no bound; this one keeps sums over the row finite.
    slopes = jnp.where(live, jnp.exp(jnp.minimum(logs - base, 60)), 0)
    # At a fixed θ, by a difference where that is exact and by its series where it cancels.
    small = jnp.abs(base) < 0.5
    series = -weights * logs**2 * _second_order(jnp.where(small, base, 0))
    return slopes, jnp.where(small, series, (weights - slopes - base * weights) / eps**2)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def weights_at(
    family: Family,
    threshold: Float[Array, "*rows 1"],
    eps: Float[Array, "..."],
    x: Float[Array, "*rows n"],
    moved: Float[Array, "*rows 1"],
) -> Float[Array, "*rows n"]:
    """Weights at a threshold that counts as a constant, NaN where x is; in derivatives alone, θ is more by `moved`."""
    return jnp.where(jnp.isnan(x), jnp.nan, family.weigh(x, threshold, eps))


@weights_at.defjvp
def _(family: Family, primals: Any, tangents: Any) -> tuple[Array, Array]:
    _, eps_change, x_change, moved = tangents
    weights = weights_at(family, *primals)
    slopes, in_eps = derivatives(weights, primals[1])
    return weights, slopes * (x_change - moved) + in_eps * eps_change


def away_from_zero(eps: Float[Array, "..."]) -> Float[Array, "..."]:
    """ε, but never so near to 0 that dividing by it fails; the weights there are those of ε = 0 to rounding."""
    tiny = jnp.finfo(eps.dtype).eps
    return jnp.where(jnp.abs(eps) < tiny, tiny, eps)


def _second_order(a: Float[Array, "..."]) -> Float[Array, "..."]:
    """(exp(-a) - 1 + a) / a² for |a| < 1/2, by its series."""
    value = jnp.zeros_like(a)
    for power in range(12, -1, -1):
        value = 1 / math.factorial(power + 2) - a * value
    return value


def whole_ranks(k: ArrayLike) -> Int[Array, "..."]:
    """The k of a search in int32. Raises TypeError for an array that is not of whole numbers."""
    if checks.is_array(k) and not jnp.issubdtype(jnp.result_type(k), jnp.integer):
        raise TypeError(f"k is {checks.shown(k)}; it must be whole: call .astype('int32') on it")
    most = jnp.iinfo(jnp.int32).max  # which no row is longer than
    return jnp.asarray(min(int(k), most) if isinstance(k, int | float) else k, jnp.int32)


@functools.partial(jax.jit, static_argnums=2)
def kth_largest(z: Float[Array, "*shape"], k: Int[Array, "..."], axis: Axis) -> Float[Array, "..."]:
    """The k-th largest of each row, or -inf where there is none, with the row's axis kept at size 1."""

    def count(threshold: Float[Array, "..."]) -> Int[Array, "..."]:
        return jnp.sum(z >= threshold, axis, keepdims=True, dtype=jnp.int32)

    ends = jnp.max(z, axis, keepdims=True, initial=-jnp.inf)
    return find_kth_largest(count, k, jnp.full_like(ends, -jnp.inf), jnp.full_like(ends, jnp.inf))


def find_kth_largest(
    count: Callable[[Float[Array, "*row"]], Int[Array, "*row"]],
    k: Int[Array, "..."],
    low: Float[Array, "*row"],
    high: Float[Array, "*row"],
) -> Float[Array, "*row"]:
    """The k-th largest between low and high of each row, from the count of entries that are not below a number.

    Halves an interval of the floating point numbers themselves, in their order, until it holds just one or the
    count fits. Where fewer than k entries are not below `low`, it is `low`.
    """
    dtype = low.dtype
    whole = jnp.int64 if dtype == jnp.float64 else jnp.int32

    def in_order(bits: Array) -> Array:
        """From the bits of a float to a whole number that grows with it, and back."""
        return bits ^ ((bits >> (jnp.iinfo(whole).bits - 1)) & jnp.iinfo(whole).max)

    def unfinished(state: tuple[Array, Array]) -> Array:
        low, high = state
        return jnp.any(low + 1 < high)

    def search(state: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = state
        middle = (low & high) + ((low ^ high) >> 1)
        counted = count(jax.lax.bitcast_convert_type(in_order(middle), dtype))
        return jnp.where(counted >= k, middle, low), jnp.where(
            counted > k, high, jnp.where(counted == k, middle + 1, middle)
        )

    least, most = (in_order(jax.lax.bitcast_convert_type(end, whole)) for end in (low, high))
    # One more than the most, so that the largest itself can be found.
    found, _ = jax.lax.while_loop(unfinished, search, (least, most + 1))
    return jax.lax.bitcast_convert_type(in_order(found), dtype)
