"""Weights that are functions of one number of their row, the threshold, at which they sum to 1, and the search for it.

A safeguarded secant iteration finds the threshold from one sum over the row per step, so a row may come in blocks;
Newton's would take a few steps less but a second sum in each, which XLA on CPU fuses with the first into a loop five
times as slow. Gradients are those of the solution, by the implicit function theorem; nothing is unrolled, and both
modes work. The search is jitted, because outside of jit JAX would compile its loop anew at every call.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers.masking import row_sum
from softmax_jax.normalizers.part import Part, cut, largest_and_mean, largest_of_places, unless_all
from softmax_jax.normalizers.surroundings import is_known, varying

Weigh = Callable[[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]], Float[Array, "..."]]
"""From logits, and a threshold and an ε that broadcast against them, to weights."""

Advance = Callable[[Float[Array, "*row"], Float[Array, "*row"], Float[Array, "*row"], Array], Float[Array, "*row"]]
"""From two thresholds, a multiple of their distance, and ε, to the threshold that far beyond the second."""

Total = Callable[[Float[Array, "*row"]], Float[Array, "*row"]]
"""From thresholds to the sums of the weights there."""


class Family(NamedTuple):
    """Weights that are functions of a logit, a threshold and ε, with what the search for the threshold must know."""

    weigh: Weigh
    derivatives: Callable[[Float[Array, "..."], Float[Array, "..."]], tuple[Array, Array | None]]
    """From weights and ε: of the weights in the logit, and in ε at a fixed threshold, None where ε is a constant."""
    advance: Advance
    start: float
    """No threshold is below."""
    end: Callable[[int], float]
    """No threshold of a row of so many entries is above."""
    zeros: bool
    """Whether weights below the threshold are 0."""


FIRST_STEP = 1 / 64
"""Distance of the first two thresholds of a search."""

TOLERANCE, ROUNDING = 4, 64
"""In units of the last place of 1: what a total may miss 1 by, and what rounding may make of it in a long row."""

MAX_STEPS = 64
"""Bound on the steps of one search: the secant's takes about 6, and halving an interval exhausts float32 after 30."""

MOST_ENTRIES = 2**40
"""More than a row has whose length is a symbol of `jax.export`."""


class Search(NamedTuple):
    """State of the search for a threshold, all per row."""

    before: Float[Array, "*row"]
    total_before: Float[Array, "*row"]
    here: Float[Array, "*row"]
    total: Float[Array, "*row"]
    low: Float[Array, "*row"]
    high: Float[Array, "*row"]
    slow: Bool[Array, "*row"]
    active: Bool[Array, "*row"]


def _search(
    family: Family,
    total: Total,
    eps: Float[Array, "..."],
    start: Float[Array, "*row"],
    rise: Float[Array, "*row"],
    entries: int,
) -> Search:
    """Finds the threshold from start on at which a falling total is 1; start where the total is less there.

    `rise` is about the factor by which the total is more at `FIRST_STEP` before the start: it is the first slope.
    The secant through two points on the near side of the solution never passes it where (total^ε - 1) / ε is
    convex in what `advance` is linear in. Where that does not hold, a step may lead out of the interval known to hold
    the solution, or fail to halve the miss: the next one then goes to the middle of the interval instead.

    A row worked through, sparsemax (ε = 1) of the logits 0, -0.5 and -0.75, whose total is Σ max(x - τ, 0):

        before   total   here   total   secant
        -1.0156  1.797   -1     1.75    -1 + 0.0156 · 0.75 / 0.0469 = -0.75
        -1       1.75    -0.75  1       reached: the threshold is -0.75, the weights are 0.75, 0.25 and 0
    """
    tolerance, rounding = TOLERANCE * jnp.finfo(start.dtype).eps, ROUNDING * jnp.finfo(start.dtype).eps

    def unfinished(state: tuple[Array, Search]) -> Array:
        count, rows = state
        return (count < MAX_STEPS) & jnp.any(rows.active)

    def step(state: tuple[Array, Search]) -> tuple[Array, Search]:
        count, rows = state
        left, left_before = (jnp.expm1(eps * jnp.log(value)) / eps for value in (rows.total, rows.total_before))
        fall = left_before - left
        secant = family.advance(rows.before, rows.here, left / jnp.where(fall == 0, 1, fall), eps)
        # However short, a step is one float towards the solution, and goes with where it starts in derivatives.
        here, towards = jax.lax.stop_gradient((rows.here, jnp.where(rows.total > 1, rows.high, rows.low)))
        nearest = rows.here + (jnp.nextafter(here, towards) - here)
        secant = jnp.where(rows.total > 1, jnp.maximum(secant, nearest), jnp.minimum(secant, nearest))
        within = (secant > rows.low) & (secant < rows.high) & ~rows.slow
        moved = jnp.where(within, secant, rows.low + (rows.high - rows.low) / 2)
        active = rows.active & (moved > rows.low) & (moved < rows.high)
        moved = jnp.where(active, moved, rows.here)
        reached = total(moved)
        miss, miss_before = jnp.abs(reached - 1), jnp.abs(rows.total - 1)
        slow = miss > miss_before / 2
        low, high = jnp.where(reached > 1, moved, rows.low), jnp.where(reached < 1, moved, rows.high)
        # Where a small miss stays what it is, rounding has the last word.
        active &= (miss > tolerance) & ~(slow & (miss < rounding))
        return count + 1, Search(rows.here, rows.total, moved, reached, low, high, slow, active)

    of_start = total(start)
    start, rise = varying(start, of_start), varying(rise, of_start)
    end = jnp.full_like(start, family.end(entries))
    # A total below 1 at the start has no solution beyond.
    rows = Search(
        start - FIRST_STEP,
        of_start * rise,
        start,
        of_start,
        start,
        end,
        jnp.zeros_like(start, bool),
        (of_start - 1 > tolerance) & (of_start < jnp.inf),
    )
    return jax.lax.while_loop(unfinished, step, (jnp.int32(0), rows))[1]


def _rise(total: Total, at: Float[Array, "*row"]) -> Float[Array, "*row"]:
    """The factor by which a total is more at `FIRST_STEP` before a threshold."""
    here = total(at)
    return total(at - FIRST_STEP) / jnp.where(here == 0, 1, here)


def find_threshold(
    family: Family, eps: Float[Array, "..."], part: Part, total: Total | None, entries: int
) -> tuple[Float[Array, "*rows 1"], Float[Array, "*rows 1"]]:
    """The threshold of each row at which its weights sum to 1, and their sum there, 1 for none, from their sum at any.

    It is not before that of a part of the row, which sums to less; with a `total` of None the part is all. It is that
    of the part if the least entry of each place has the weight 0 there, as then has all that is no larger. Only where
    this is not known of some row, a search of whole rows goes on from there.
    """

    def of_part(threshold: Array) -> Array:
        others = 0 if part.mean is None else part.others * family.weigh(part.mean, threshold, eps)
        return _sum_of_blocks(family, part.largest, eps, threshold) + others

    start = jnp.full((*part.largest.shape[:-2], 1), family.start, part.largest.dtype)
    found = _search(family, of_part, eps, start, _rise(of_part, start), entries)
    threshold, reached = found.here, found.total
    if total is not None:
        sure = family.weigh(part.bound(), threshold, eps) == 0

        def search_all(found: tuple[Array, Array]) -> tuple[Array, Array]:
            start, _ = found
            rows = _search(family, total, eps, start, _rise(of_part, start), entries)
            return rows.here, rows.total

        threshold, reached = unless_all(sure, search_all, (threshold, reached))
    return threshold, jnp.where(reached == 0, 1, reached)


def _sum_of_blocks(
    family: Family, blocks: Float[Array, "*rows blocks m"], eps: Float[Array, "..."], threshold: Float[Array, "*rows 1"]
) -> Float[Array, "*rows 1"]:
    """Sum of the weights of rows that are cut into blocks."""
    # Tied together, or XLA takes what is made of ε alone out of the search and writes it out, as large as the row.
    threshold, eps = jax.lax.optimization_barrier((threshold, jnp.broadcast_to(eps, threshold.shape)))
    # Kept apart, or XLA joins the two sums into one, which does not spread over the cores when rows are few.
    weights = family.weigh(blocks, threshold[..., None], eps[..., None])
    of_blocks = jax.lax.optimization_barrier(jnp.sum(weights, -1))
    return jnp.sum(of_blocks, -1, keepdims=True)


def _solve(family: Family, eps: Float[Array, "..."], x: Float[Array, "*rows n"]) -> Float[Array, "*rows n"]:
    """The weights of each row at the threshold at which they sum to 1."""
    blocks = cut(x)
    whole = blocks.shape[-2] == 1
    part = largest_of_places(blocks) if family.zeros or whole else largest_and_mean(x, blocks)
    # NaN counts as +inf among the largest, where x has none, and is in the mean.
    bad = part.maximum() == jnp.inf if part.mean is None else jnp.isnan(part.mean)
    total = None if whole else functools.partial(_sum_of_blocks, family, blocks, eps)
    threshold, reached = find_threshold(family, eps, part, total, x.shape[-1])
    weights = family.weigh(x, threshold, eps) / reached
    return jnp.where(bad & (x != -jnp.inf), jnp.nan, weights)


def _along_simplex(slopes: Float[Array, "*rows n"], change: Float[Array, "*rows n"]) -> Float[Array, "*rows n"]:
    """The change of the weights for a change of the logits: the threshold moves so that their sum stays."""
    # The transpose, which backward passes take, is slopes * (change - mean): nothing but the slopes is kept for it.
    change = slopes * change
    # Kept apart, or XLA on CPUs joins the sum with the matrix product that the change comes from in attention.
    total = jax.lax.optimization_barrier(jnp.sum(change, -1, keepdims=True))
    return change - slopes / row_sum(slopes, -1) * total


POWERS = 1, 2, 4
"""Those of `excess` and `tail`, which products and square roots give: a logarithm takes several times as long."""


@functools.cache
def excess(power: int) -> Family:
    """Weights max((x - τ) / power, 0)^power, with ε = 1 / power."""

    def weigh(x: Array, tau: Array, eps: Array) -> Array:
        # Not max(x - τ, 0): XLA on CPUs would write out a 0 for each entry, as it does with what is one for all rows.
        return (eps * (jnp.maximum(x, tau) - tau)) ** power

    def advance(before: Array, tau: Array, times: Array, eps: Array) -> Array:
        # The total to the power ε is a norm of the weights' bases, which is convex in τ and nearly straight.
        return tau + (tau - before) * times

    def derivatives(weights: Array, eps: Array) -> tuple[Array, None]:
        return _slopes(weights, 4 - 4 // power, 1), None

    return Family(weigh, derivatives, advance, -float(power), lambda entries: 0.0, zeros=True)


def _slopes(weights: Float[Array, "*rows n"], quarters: int, times: ArrayLike) -> Float[Array, "*rows n"]:
    """Weights to the power of so many quarters, times a number; 0 where they are."""
    live = weights > 0
    base = jnp.where(live, weights, 1)
    root, value = jnp.sqrt(base), base ** (quarters // 4)
    value = value * root if quarters & 2 else value
    value = value * jnp.sqrt(root) if quarters & 1 else value
    return jnp.where(live, times * value, 0)


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
def _weigh_tsallis(x: Array, t: Array, eps: Array, rate: ArrayLike) -> Array:
    limit = 0.9 * math.log(jnp.finfo(x.dtype).max)
    t, floor = jax.lax.optimization_barrier((t, jnp.full_like(t, -1)))  # as in `_sum_of_blocks`
    excess = jnp.maximum(rate * jnp.exp(jnp.clip(eps * t, -limit, limit)) * x, floor)
    return jnp.exp(log1p(excess) * (1 / eps) - t)


def _advance_tsallis(before: Array, t: Array, times: Array, eps: Array) -> Array:
    # Linear in the bases, exp(-εt); the total to the power ε is a norm of them, convex up to ε = 1.
    return t - log1p(-jnp.expm1(eps * (t - before)) * times) / eps


def _derivatives_tsallis(
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


def _derivatives_stieltjes(
    weights: Float[Array, "*rows n"], eps: Float[Array, "..."]
) -> tuple[Float[Array, "*rows n"], Float[Array, "*rows n"]]:
    """Of weights (λ - x)^(1/ε): in x, which is that in -λ, and in ε at a fixed λ."""
    live = weights > 0
    logs = jnp.log(jnp.where(live, weights, 1))
    return jnp.where(live, jnp.exp((1 - eps) * logs) / -eps, 0), weights * logs / -eps


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


TSALLIS = Family(
    lambda x, t, eps: _weigh_tsallis(x, t, eps, eps),
    _derivatives_tsallis,
    _advance_tsallis,
    0.0,
    lambda entries: math.log(max(entries, 1) if is_known(entries) else MOST_ENTRIES) + 1,
    True,
)
"""Weights (1 + ε·(x - θ))^(1/ε), for any ε but 0, which `away_from_zero` replaces; the threshold stands for θ."""

STIELTJES = TSALLIS._replace(
    weigh=lambda x, t, eps: _weigh_tsallis(x, t, eps, -1.0), derivatives=_derivatives_stieltjes, zeros=False
)
"""Weights (λ - x)^(1/ε) for ε below 0, which are those of `TSALLIS` for x over -ε; the threshold stands for λ."""


@functools.cache
def tail(power: int) -> Family:
    """Those of `STIELTJES`, (λ - x)^-power, with ε = -1 / power."""

    def weigh(x: Array, t: Array, eps: Array) -> Array:
        return (1 / (jnp.exp(-eps * t) - x)) ** power

    def derivatives(weights: Array, eps: Array) -> tuple[Array, None]:
        return _slopes(weights, 4 + 4 // power, -1 / eps), None

    return STIELTJES._replace(weigh=weigh, derivatives=derivatives)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
@functools.partial(jax.jit, static_argnums=0)
def solved(family: Family, x: Float[Array, "*rows n"], eps: Float[Array, "..."]) -> Float[Array, "*rows n"]:
    """The weights of each row at the threshold at which they sum to 1; at ε = 0 those that they tend to."""
    return _solve(family, away_from_zero(eps), x)


@solved.defjvp
def _(family: Family, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (_, eps), (x_change, eps_change) = primals, tangents
    weights = solved(family, *primals)
    slopes, in_eps = family.derivatives(weights, away_from_zero(eps))
    change = _along_simplex(slopes, x_change)
    if in_eps is None:
        return weights, change
    moved = in_eps - slopes * jnp.sum(in_eps, -1, keepdims=True) / row_sum(slopes, -1)
    return weights, change + eps_change * moved


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def weights_at(
    family: Family,
    threshold: Float[Array, "*rows 1"],
    eps: Float[Array, "..."],
    x: Float[Array, "*rows n"],
    moved: Float[Array, "*rows 1"],
) -> Float[Array, "*rows n"]:
    """Weights at a threshold that counts as a constant, NaN where x is; in derivatives alone, θ is more by `moved`."""
    return jnp.where(jnp.isnan(x), jnp.nan, family.weigh(x, threshold, away_from_zero(eps)))


@weights_at.defjvp
def _(family: Family, primals: Any, tangents: Any) -> tuple[Array, Array]:
    _, eps_change, x_change, moved = tangents
    weights = weights_at(family, *primals)
    slopes, in_eps = family.derivatives(weights, away_from_zero(primals[1]))
    change = slopes * (x_change - moved)
    return weights, change if in_eps is None else change + in_eps * eps_change
