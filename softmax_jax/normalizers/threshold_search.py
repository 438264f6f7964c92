"""Searches for the threshold of a row at which its weights sum to 1.

A map with a threshold weighs an entry by a function w(x, θ) of its distance x ≤ 0 to the largest logit and of one
number θ of the row, at which the weights sum to 1. For sparsemax w = max(x - θ, 0). The sum falls as θ grows, so a
safeguarded secant finds θ from one sum over the row in each step. (Newton's method would need a second sum, which XLA
on CPUs fuses with the first into a loop five times as slow.) No row is sorted, and no step is unrolled: `solve` has
the derivative of the solution, in both modes.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers.arithmetic import as_pivot, subtract_pivot, times_row
from softmax_jax.normalizers.execution import is_known, varying
from softmax_jax.normalizers.layout import Layout, Segments

FIRST_STEP = 1 / 64
"""Distance of the first two thresholds of a search."""
TOLERANCE, ROUNDING = 4, 64
"""In units of the last place of 1: how far a total may miss 1, and how far rounding may move it in a long row."""
MAX_STEPS = 64
"""Bound on the steps of one search: the secant takes about 6, and halving an interval exhausts float32 after 30."""
BLOCKS = 16
"""Parts into which a row is cut, to be summed and to find its largest entries."""

Total = Callable[[Float[Array, "*row"]], Float[Array, "*row"]]
"""From thresholds to the sums of the weights there."""


class Family(NamedTuple):
    """Weights w(x, θ, ε) that fall with the threshold θ, with what the search must know. ε is one number per row."""

    weigh: Callable[[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]], Float[Array, "..."]]
    derivatives: Callable[[Float[Array, "..."], Float[Array, "..."]], tuple[Array, Array | None]]
    """From weights and ε: ∂w/∂x, and ∂w/∂ε at a fixed threshold, None where ε is a constant."""
    advance: Callable[[Float[Array, "*row"], Float[Array, "*row"], Float[Array, "*row"], Array], Float[Array, "*row"]]
    """From two thresholds, a multiple of their distance, and ε, to the threshold that far beyond the second."""
    start: float
    """No threshold is below."""
    end: Callable[[int], float]
    """No threshold of a row with this number of entries is above."""


# The weights and their derivative.


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
@functools.partial(jax.jit, static_argnums=0)  # outside of jit JAX would compile the loop of the search at every call
def solve(
    family: Family, z: Float[Array, "*rows n"], eps: Float[Array, "..."], layout: Layout
) -> Float[Array, "*rows n"]:
    """Returns the weights of each row at the threshold at which they sum to 1; at ε = 0 their limit.

    Rows lie along the last axis, or are segments.
    """
    eps = _away_from_zero(eps)
    x = subtract_pivot(z, as_pivot(layout.largest(z)))
    x = jnp.where(z == -jnp.inf, -jnp.inf, x)
    sum_of_row = layout.total(x)
    threshold, total = _find_threshold(family, eps, x, sum_of_row, layout)
    weights = family.weigh(x, layout.spread(threshold), eps) / layout.spread(jnp.where(total == 0, 1, total))
    return jnp.where(jnp.isnan(layout.spread(sum_of_row)) & (x != -jnp.inf), jnp.nan, weights)


@solve.defjvp
def _(family: Family, primals: Any, tangents: Any) -> tuple[Array, Array]:
    # The implicit function theorem. With s_i = ∂w_i/∂x_i = -∂w_i/∂θ and e_i = ∂w_i/∂ε at a fixed θ,
    #     dw_i = s_i (dz_i - dθ) + e_i dε    and    0 = Σ dw_i,    so    dθ = (Σ s_j dz_j + dε Σ e_j) / Σ s_j.
    # Sparsemax has s = 1 where w > 0. The logits (1, 0.5, -1) have the weights (0.75, 0.25, 0), so s = (1, 1, 0): for
    # dz = (1, 0, 0) the threshold moves by 1/2 and the weights by (1/2, -1/2, 0).
    # The pivot that x subtracts from z moves θ with it, and cancels.
    (_, eps, layout), (z_change, eps_change, _) = primals, tangents
    weights = solve(family, *primals)
    slopes, eps_slopes = family.derivatives(weights, _away_from_zero(eps))
    # The transpose, which backward passes take, is slopes * (change - mean): only the slopes are kept for it.
    change = slopes * z_change
    change -= times_row(slopes / layout.divisor(slopes), layout.sum(change))
    if eps_slopes is None:
        return weights, change
    moved = eps_slopes - slopes * layout.sum(eps_slopes) / layout.divisor(slopes)
    return weights, change + eps_change * moved


def _away_from_zero(eps: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns ε, moved away from 0 as far as dividing by it needs; its weights are those of ε = 0 to rounding."""
    # (1 + εx)^(1/ε) = e^(x - εx²/2 + …): at ε = 1.2e-7 and x = -1 the factor is e^(-6e-8), half a unit in the last
    # place of 1.
    tiny = jnp.finfo(eps.dtype).eps
    return jnp.where(jnp.abs(eps) < tiny, tiny, eps)


# The search.


def _find_threshold(
    family: Family,
    eps: Float[Array, "..."],
    x: Float[Array, "*rows n"],
    sum_of_row: Float[Array, "*row"],
    layout: Layout,
) -> tuple[Float[Array, "*row"], Float[Array, "*row"]]:
    """Returns the threshold of each row at which its weights sum to 1, and their sum there."""
    if isinstance(layout, Segments):

        def total(threshold: Array) -> Array:
            return layout.total(family.weigh(x, layout.spread(threshold), eps))

        start = jnp.full_like(sum_of_row, family.start)
        search = _search(family, total, total, eps, start, x.shape[0])
        return search.here, search.total
    # The search of the whole row starts from the threshold of a part of it, found in a sixteenth of the time: the
    # largest entry of each place of the blocks, and the others at their mean. The weights are convex in x, so by
    # Jensen's inequality (n - m) w(mean) ≤ Σ w(x_i) over the others: the part sums to no more than the row, and
    # its threshold is not beyond that of the row. Sparsemax of (0, -0.2, -0.4, -0.8) by the largest two and the mean
    # -0.6 of the others: the part has θ = -0.6, where the row sums to 0.6 + 0.4 + 0.2 = 1.2; the row has θ = -1.6/3.
    n, blocks = x.shape[-1], cut(x)
    whole = part = functools.partial(_sum_of_blocks, family, blocks, eps)
    start = jnp.full((*x.shape[:-1], 1), family.start, x.dtype)
    if blocks.shape[-2] > 1:
        largest = jnp.max(blocks, -2)
        # A little lower than the mean, by more than rounding can raise it.
        others, factor = n - largest.shape[-1], 1 + 64 * jnp.finfo(x.dtype).eps
        mean = factor * (sum_of_row - jnp.sum(largest, -1, keepdims=True)) / others
        mean = jnp.where(sum_of_row == -jnp.inf, -jnp.inf, mean)

        def part(threshold: Array) -> Array:
            weights = family.weigh(largest, threshold, eps)
            return jnp.sum(weights, -1, keepdims=True) + others * family.weigh(mean, threshold, eps)

        start = _search(family, part, part, eps, start, n).here
    search = _search(family, whole, part, eps, start, n)
    return search.here, search.total


class Search(NamedTuple):
    """State of the search for a threshold: two thresholds with their totals, and bounds of the solution, per row."""

    before: Float[Array, "*row"]
    total_before: Float[Array, "*row"]
    here: Float[Array, "*row"]
    total: Float[Array, "*row"]
    low: Float[Array, "*row"]
    high: Float[Array, "*row"]
    slow: Bool[Array, "*row"]
    active: Bool[Array, "*row"]


def _search(
    family: Family, total: Total, guide: Total, eps: Float[Array, "..."], start: Float[Array, "*row"], entries: int
) -> Search:
    """Finds the threshold from `start` on at which a falling total is 1; `start` where the total is less there.

    Arguments:
        family: The weights, whose `advance` and `end` the search uses.
        total: The falling total.
        guide: A total that rises about as much towards lower thresholds: it gives the first slope.
        eps: ε of each row.
        start: A threshold that is not above the solution.
        entries: Length of the row.

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
        # With f = (total^ε - 1) / ε the secant's root is here + (here - before) · f(here) / (f(before) - f(here)).
        f, f_before = (jnp.expm1(eps * jnp.log(value)) / eps for value in (rows.total, rows.total_before))
        fall = f_before - f
        secant = family.advance(rows.before, rows.here, f / jnp.where(fall == 0, 1, fall), eps)
        # However short, a step is one float towards the solution, and goes with where it starts in derivatives.
        here, towards = jax.lax.stop_gradient((rows.here, jnp.where(rows.total > 1, rows.high, rows.low)))
        nearest = rows.here + (jnp.nextafter(here, towards) - here)
        secant = jnp.where(rows.total > 1, jnp.maximum(secant, nearest), jnp.minimum(secant, nearest))
        within = (secant > rows.low) & (secant < rows.high) & ~rows.slow
        threshold = jnp.where(within, secant, rows.low + (rows.high - rows.low) / 2)
        active = rows.active & (threshold > rows.low) & (threshold < rows.high)
        threshold = jnp.where(active, threshold, rows.here)
        new_total = total(threshold)
        miss, miss_before = jnp.abs(new_total - 1), jnp.abs(rows.total - 1)
        slow = miss > miss_before / 2
        low, high = jnp.where(new_total > 1, threshold, rows.low), jnp.where(new_total < 1, threshold, rows.high)
        # A small miss that no longer halves is rounding: in a row of 65,536 entries a total moves by 64 units or so.
        active &= (miss > tolerance) & ~(slow & (miss < rounding))
        return count + 1, Search(rows.here, rows.total, threshold, new_total, low, high, slow, active)

    start_total, start_guide = total(start), guide(start)
    rise = guide(start - FIRST_STEP) / jnp.where(start_guide == 0, 1, start_guide)
    start, rise = varying(start, start_total), varying(rise, start_total)
    end = jnp.full_like(start, family.end(entries))
    # A total below 1 at the start has no solution beyond.
    active = (start_total - 1 > tolerance) & (start_total < jnp.inf)
    slow = jnp.zeros_like(start, bool)
    rows = Search(start - FIRST_STEP, start_total * rise, start, start_total, start, end, slow, active)
    return jax.lax.while_loop(unfinished, step, (jnp.int32(0), rows))[1]


def _sum_of_blocks(
    family: Family, blocks: Float[Array, "*rows blocks m"], eps: Float[Array, "..."], threshold: Float[Array, "*rows 1"]
) -> Float[Array, "*rows 1"]:
    """Returns the sum of the weights of rows that are cut into blocks."""
    # Barrier: XLA would hoist the terms in ε out of the loop and materialise them at row size.
    threshold, eps = jax.lax.optimization_barrier((threshold, jnp.broadcast_to(eps, threshold.shape)))
    weights = family.weigh(blocks, threshold[..., None], eps[..., None])
    # Barrier: XLA would join the two sums into one, which does not spread over the cores when rows are few.
    block_sums = jax.lax.optimization_barrier(jnp.sum(weights, -1))
    return jnp.sum(block_sums, -1, keepdims=True)


def cut(x: Float[Array, "*rows n"]) -> Float[Array, "*rows blocks m"]:
    """Returns rows in `BLOCKS` blocks, the last one filled up with -inf; in one block if they are short, or may be."""
    *rows, n = x.shape
    if not is_known(n) or n < 2 * BLOCKS:
        return x[..., None, :]
    padding = [(0, 0)] * len(rows) + [(0, -n % BLOCKS)]
    return jnp.pad(x, padding, constant_values=-jnp.inf).reshape(*rows, BLOCKS, -(-n // BLOCKS))
