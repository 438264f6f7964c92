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
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers.masking import row_sum

Weigh = Callable[[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]], Float[Array, "..."]]
"""From logits, and a threshold and an ε that broadcast against them, to weights."""

Advance = Callable[[Float[Array, "*row"], Float[Array, "*row"], Float[Array, "*row"], Array], Float[Array, "*row"]]
"""From two thresholds, a multiple of their distance, and ε, to the threshold that far beyond the second."""

Total = Callable[[Float[Array, "*row"]], Float[Array, "*row"]]
"""From thresholds to the sums of the weights there."""


class Family(NamedTuple):
    """Weights that are functions of a logit, a threshold and ε, with what the search for the threshold must know.

    Where `halve` is True, the total may not be convex.
    """

    weigh: Weigh
    derivatives: Callable[[Float[Array, "..."], Float[Array, "..."]], tuple[Array, Array | None]]
    """From weights and ε: of the weights in the logit, and in ε at a fixed threshold, None where ε is a constant."""
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

    A row worked through, sparsemax (ε = 1) of the logits 0, -0.5 and -0.75, whose total is Σ max(x - τ, 0):

        before   total   here   total   secant
        -1.0156  1.797   -1     1.75    -1 + 0.0156 · 0.75 / 0.0469 = -0.75
        -1       1.75    -0.75  1       reached: the threshold is -0.75, the weights are 0.75, 0.25 and 0
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
    solution = _search(family, total, eps, threshold, entries)
    return solution.here, jnp.where(solution.total == 0, 1, solution.total)


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

    def derivatives(weights: Array, eps: Array) -> tuple[Array, None]:
        live = weights > 0
        return jnp.where(live, jnp.where(live, weights, 1) ** (1 - 1 / power), 0), None

    return Family(weigh, derivatives, advance, lambda eps: jnp.asarray(False), -float(power), lambda entries: 0.0)


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
    _weigh_tsallis,
    _derivatives_tsallis,
    _advance_tsallis,
    lambda eps: jnp.abs(eps) > 1,
    0.0,
    lambda entries: math.log(max(entries, 1)),
)
"""Weights (1 + ε·(x - θ))^(1/ε), for any ε but 0, which `away_from_zero` replaces; the threshold stands for θ."""


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
