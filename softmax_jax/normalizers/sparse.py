"""Maps with a threshold: sparsemax, the entmax family, Stieltjes and top-k, none of which sorts its row.

All but top-k weigh an entry by a function w(x, θ) of its distance x to the largest logit and of one number θ of the
row, the threshold, at which the weights sum to 1. For sparsemax w = max(x - θ, 0). The sum falls as θ grows, so a
safeguarded secant finds θ from one sum over the row in each step. (Newton's method would need a second sum, which XLA
on CPUs fuses with the first into a loop five times as slow.)

Gradients are those of the solution, by the implicit function theorem. With s_i = ∂w_i/∂x_i = -∂w_i/∂θ, the condition
Σ w_i = 1 gives dθ = Σ s_j dz_j / Σ s_j, and so

    dw_i = s_i (dz_i - dθ).

Sparsemax has s_i = 1 where w_i > 0. The logits 1, 0.5 and -1 have the weights 0.75, 0.25 and 0: there the change
(1, 0, 0) moves θ by 1/2 and the weights by (1/2, -1/2, 0). Nothing is unrolled, and both modes of differentiation work.
"""

import abc
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.execution import is_known, varying
from softmax_jax.normalizers.maps import DISPERSES, Map, softmax
from softmax_jax.normalizers.masking import Axis, below, reaches, row_sum, settled, times_row
from softmax_jax.normalizers.parameters import number
from softmax_jax.normalizers.row import Row
from softmax_jax.refusal import WrongType

LINEAR, SQUARED = "→ min(δ, 1)", "→ min(δ/2, 1)²"

Total = Callable[[Float[Array, "*row"]], Float[Array, "*row"]]
"""From thresholds to the sums of the weights there."""


class Family(NamedTuple):
    """Weights w(x, θ, ε) that fall with the threshold θ, with what the search for it must know. ε tells them apart."""

    weigh: Callable[[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]], Float[Array, "..."]]
    derivatives: Callable[[Float[Array, "..."], Float[Array, "..."]], tuple[Array, Array | None]]
    """From weights and ε: ∂w/∂x, and ∂w/∂ε at a fixed threshold, None where ε is a constant."""
    advance: Callable[[Float[Array, "*row"], Float[Array, "*row"], Float[Array, "*row"], Array], Float[Array, "*row"]]
    """From two thresholds, a multiple of their distance, and ε, to the threshold that far beyond the second."""
    start: float
    """No threshold is below."""
    end: Callable[[int], float]
    """No threshold of a row with this number of entries is above."""


class Threshold(Map):
    """A map whose weights belong to a `Family`, at the threshold at which they sum to 1."""

    shift_invariant = True

    @abc.abstractmethod
    def family(self, row: Row) -> tuple[Family, Float[Array, "..."]]:
        """Returns the family that the weights belong to, and its ε."""

    def weights(self, row: Row) -> Float[Array, "*shape"]:
        family, eps = self.family(row)
        z, eps = (_axis_last(array, row.axis) for array in (row.logits, eps))
        return _axis_back(solve(family, z, eps), row.logits.shape, row.axis)


def _axis_last(array: Shaped[Array, "*shape"], axis: Axis) -> Shaped[Array, "*rows n"]:
    """The array with the axes of the row joined into one at the end."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    moved = jnp.moveaxis(array, axes, tuple(range(-len(axes), 0)))
    rows = moved.ndim - len(axes)
    return moved.reshape(*moved.shape[:rows], math.prod(moved.shape[rows:]))


def _axis_back(rows: Float[Array, "*rows n"], shape: tuple[int, ...], axis: Axis) -> Float[Array, "*shape"]:
    """Undoes `_axis_last` of an array of this shape."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    last = tuple(range(-len(axes), 0))
    moved = jnp.moveaxis(jnp.empty(shape, bool), axes, last).shape
    return jnp.moveaxis(rows.reshape(moved), last, axes)


class Sparsemax(Threshold):
    r"""The point of the probability simplex nearest to the logits: small weights are exactly 0.

    $$w_i = \max(z_i - \tau, 0), \qquad \tau \text{ such that } \sum_j w_j = 1$$

    Equal to `entmax` at `alpha` = 2.

    When to use it. Where few entries matter and the others should get exactly 0. A lead of 1 takes the whole row,
    however long.

    Source: Martins & Astudillo, "From Softmax to Sparsemax", ICML 2016.

    >>> sparsemax(jnp.array([1.0, 0.5, -1.0]))
    Array([0.75, 0.25, 0.  ], dtype=float32)
    """

    exact_zeros = True
    ignores_low = True
    formula = "max(z - τ, 0)"
    largest_weight = LINEAR
    source = "Martins & Astudillo, ICML 2016"

    def family(self, row: Row) -> tuple[Family, Array]:
        return excess(1), row.number(1.0)


class Entmax15(Threshold):
    r"""Halfway between softmax and sparsemax: smooth, with small weights exactly 0.

    $$w_i = \max(z_i / 2 - \tau, 0)^2, \qquad \tau \text{ such that } \sum_j w_j = 1$$

    Equal to `entmax` at `alpha` = 1.5.

    When to use it. Where zeros are wanted and sparsemax is too blunt: weights leave 0 smoothly, and a lead of 2 takes
    the row.

    Source: Peters, Niculae, Martins, "Sparse Sequence-to-Sequence Models", ACL 2019.

    >>> entmax15(jnp.array([1.0, 1.0, -3.0]))
    Array([0.5, 0.5, 0. ], dtype=float32)
    """

    exact_zeros = True
    ignores_low = True
    formula = "max(z/2 - τ, 0)²"
    largest_weight = SQUARED
    source = "Peters et al., ACL 2019"

    def family(self, row: Row) -> tuple[Family, Array]:
        return excess(2), row.number(0.5)


class Entmax(Threshold):
    r"""The family from softmax (α → 1) over sparsemax (α = 2) to hardmax (α → ∞): sparser as α grows.

    $$w_i = \max((\alpha - 1) z_i - \tau, 0)^{1 / (\alpha - 1)}, \qquad \tau \text{ such that } \sum_j w_j = 1$$

    `alpha` > 1 is a number, or an array that broadcasts against the logits with the row's axis at size 1, as in
    (heads, 1, 1). Weights and gradients, that in `alpha` too, keep their digits down to `alpha` = 1, which an
    array may hold and which is softmax. Above 2 a weight near 0 changes steeply with its logit, and so is only
    as good as the digits of the logits.

    When to use it. Where sparsity should be learned, for each head if wanted: α = 1 is softmax, 2 sparsemax, larger
    tends to hardmax. A plain 1.25, 1.5 or 2 takes half the time of other numbers and arrays.

    Raises ValueError for a plain number that is not above 1, or above 1e6.

    Source: Peters, Niculae, Martins, "Sparse Sequence-to-Sequence Models", ACL 2019; gradient in α: Correia,
    Niculae, Martins, "Adaptively Sparse Transformers", EMNLP 2019.

    >>> entmax(jnp.array([1.0, 1.0, -3.0]), alpha=1.3)
    Array([0.5, 0.5, 0. ], dtype=float32)
    """

    exact_zeros = True
    formula = "max((α-1)·z - τ, 0)^(1/(α-1))"
    largest_weight = "→ min((α-1)·δ, 1)^(1/(α-1))"
    source = "Peters et al., ACL 2019"

    alpha: ArrayLike = number(
        default=1.5, rule="above 1 and at most 1e6, such as 1.5", holds=lambda alpha: 1 < alpha <= 1e6, learn=True
    )

    def family(self, row: Row) -> tuple[Family, Array]:
        power = 1 / (self.alpha - 1) if isinstance(self.alpha, float) else None
        family = excess(int(power)) if power in POWERS else TSALLIS
        return family, row.number(self.alpha) - 1


class Stieltjes(Threshold):
    r"""Weights with a tail: they fall off as a power of the distance to the largest logit, and are never 0.

    $$w_i = (\lambda - z_i)^{-q}, \qquad \lambda > \max_j z_j \text{ such that } \sum_j w_j = 1$$

    `q` > 0 is a number, or an array that broadcasts against the logits with the row's axis at size 1. A logit
    of -inf gets 0.

    When to use it. Where no entry should be lost to sight: weights fall as a power of the distance to the top, not
    exponentially. Without a scale the tail disperses.

    Raises ValueError for a plain number below 1e-6 or above 1e6.

    Source: AS-Stieltjes, which is this map with `q` = 4 at a scale that grows with the length of the row.

    >>> stieltjes(jnp.array([3.0, 3.0, 3.0, -jnp.inf, 3.0]))
    Array([0.25, 0.25, 0.25, 0.  , 0.25], dtype=float32)
    """

    formula = "(λ - z)^(-q)"
    largest_weight = DISPERSES
    source = "AS-Stieltjes without its scale"

    q: ArrayLike = number(default=4.0, rule="above 0, from 1e-6 to 1e6, such as 4.0", holds=lambda q: 1e-6 <= q <= 1e6)

    def family(self, row: Row) -> tuple[Family, Array]:
        family = tail(int(self.q)) if isinstance(self.q, float) and self.q in POWERS else STIELTJES
        return family, -1 / row.number(self.q)


class TopKSoftmax(Map):
    r"""Softmax over the k largest visible logits; the others get exactly 0.

    $$w_i = \frac{[z_i \ge z_{(k)}]\, e^{z_i}}{\sum_j [z_j \ge z_{(k)}]\, e^{z_j}}, \qquad
      z_{(k)} \text{ the k-th largest}$$

    Every logit that ties with the k-th largest is kept, so more than k may be; a row with fewer than k is kept
    whole. `k` ≥ 1 is a whole number, or an array of them that broadcasts against the logits with the row's axis
    at size 1; it may be traced.

    When to use it. Where at most k entries matter. Entries below the k largest change nothing, however many.

    Raises ValueError for a plain number that is not whole or below 1.

    >>> top_k_softmax(jnp.array([2.0, 1.0, 2.0, 1.5]), k=2)
    Array([0.5, 0. , 0.5, 0. ], dtype=float32)
    """

    shift_invariant = True
    exact_zeros = True
    ignores_low = True
    formula = "softmax over the k largest"
    largest_weight = "≥ 1/k if none tie, else Θ(1/n)"
    source = "folklore"

    k: ArrayLike = number(
        default=8, rule="that is whole and at least 1, such as 8", holds=lambda k: k >= 1 and k == int(k)
    )

    def weights(self, row: Row) -> Float[Array, "*shape"]:
        rank = whole_ranks(self.k)
        rank = rank.reshape((1,) * (row.logits.ndim - rank.ndim) + rank.shape)
        z, rank = (_axis_last(array, row.axis) for array in (row.logits, rank))
        kept = jnp.where(reaches(z, kth_largest(jax.lax.stop_gradient(z), rank)), z, -jnp.inf)
        return _axis_back(softmax.weights(Row(kept, -1)), row.logits.shape, row.axis)


# The search for a threshold.

FIRST_STEP = 1 / 64
"""Distance of the first two thresholds of a search."""
TOLERANCE, ROUNDING = 4, 64
"""In units of the last place of 1: what a total may miss 1 by, and what rounding may make of it in a long row."""
MAX_STEPS = 64
"""Bound on the steps of one search: the secant's takes about 6, and halving an interval exhausts float32 after 30."""
MOST_ENTRIES = 2**40
"""More than a row has whose length is a symbol of `jax.export`."""
BLOCKS = 16
"""Parts into which a row is cut, to be summed and to find its largest entries."""


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


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
@functools.partial(jax.jit, static_argnums=0)  # outside of jit JAX would compile the loop of the search at every call
def solve(family: Family, z: Float[Array, "*rows n"], eps: Float[Array, "..."]) -> Float[Array, "*rows n"]:
    """The weights of each row at the threshold at which they sum to 1; at ε = 0 those that they tend to."""
    eps = _away_from_zero(eps)
    x = below(z, settled(jnp.max(z, -1, keepdims=True, initial=-jnp.inf)))
    x = jnp.where(z == -jnp.inf, -jnp.inf, x)
    sum_of_row = jnp.sum(x, -1, keepdims=True)
    threshold, reached = _find_threshold(family, eps, x, sum_of_row)
    weights = family.weigh(x, threshold, eps) / jnp.where(reached == 0, 1, reached)
    return jnp.where(jnp.isnan(sum_of_row) & (x != -jnp.inf), jnp.nan, weights)


@solve.defjvp
def _(family: Family, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (_, eps), (z_change, eps_change) = primals, tangents
    weights = solve(family, *primals)
    slopes, in_eps = family.derivatives(weights, _away_from_zero(eps))
    # The transpose, which backward passes take, is slopes * (change - mean): nothing but the slopes is kept for it.
    change = slopes * z_change
    change -= times_row(slopes / row_sum(slopes, -1), jnp.sum(change, -1, keepdims=True))
    if in_eps is None:
        return weights, change
    moved = in_eps - slopes * jnp.sum(in_eps, -1, keepdims=True) / row_sum(slopes, -1)
    return weights, change + eps_change * moved


def _find_threshold(
    family: Family, eps: Float[Array, "..."], x: Float[Array, "*rows n"], sum_of_row: Float[Array, "*rows 1"]
) -> tuple[Float[Array, "*rows 1"], Float[Array, "*rows 1"]]:
    """The threshold of each row at which its weights sum to 1, and their sum there.

    The search of the whole row starts from the threshold of a part of it, found in a sixteenth of the time: the largest
    entry of each place of the blocks, and the others at their mean. The weights are convex in x, so those of the part
    sum to no more (Jensen's inequality), and its threshold is not beyond that of the row.
    """
    n, blocks = x.shape[-1], cut(x)
    whole = part = functools.partial(_sum_of_blocks, family, blocks, eps)
    start = jnp.full((*x.shape[:-1], 1), family.start, x.dtype)
    if blocks.shape[-2] > 1:
        largest = jnp.max(blocks, -2)
        others, less = n - largest.shape[-1], 1 + 64 * jnp.finfo(x.dtype).eps  # beyond what rounding makes of the sums
        mean = less * (sum_of_row - jnp.sum(largest, -1, keepdims=True)) / others
        mean = jnp.where(sum_of_row == -jnp.inf, -jnp.inf, mean)

        def part(threshold: Array) -> Array:
            weights = family.weigh(largest, threshold, eps)
            return jnp.sum(weights, -1, keepdims=True) + others * family.weigh(mean, threshold, eps)

        start = _search(family, part, part, eps, start, n).here
    found = _search(family, whole, part, eps, start, n)
    return found.here, found.total


def _search(
    family: Family, total: Total, guide: Total, eps: Float[Array, "..."], start: Float[Array, "*row"], entries: int
) -> Search:
    """Finds the threshold from start on at which a falling total is 1; start where the total is less there.

    `guide` is a total that rises about as much towards lower thresholds: it gives the first slope.
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

    of_start, of_guide = total(start), guide(start)
    rise = guide(start - FIRST_STEP) / jnp.where(of_guide == 0, 1, of_guide)
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


def cut(x: Float[Array, "*rows n"]) -> Float[Array, "*rows blocks m"]:
    """Rows in `BLOCKS` blocks, the last one filled up with -inf; in one block if they are short, or may be."""
    *rows, n = x.shape
    if not is_known(n) or n < 2 * BLOCKS:
        return x[..., None, :]
    padding = [(0, 0)] * len(rows) + [(0, -n % BLOCKS)]
    return jnp.pad(x, padding, constant_values=-jnp.inf).reshape(*rows, BLOCKS, -(-n // BLOCKS))


# Families of weights.

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

    return Family(weigh, derivatives, advance, -float(power), lambda entries: 0.0)


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
    """Returns the derivatives of weights (1 + ε·(x - θ))^(1/ε): in x, equal to that in -θ, and in ε at a fixed θ."""
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
    """Returns the derivatives of weights (λ - x)^(1/ε): in x, equal to that in -λ, and in ε at a fixed λ."""
    live = weights > 0
    logs = jnp.log(jnp.where(live, weights, 1))
    return jnp.where(live, jnp.exp((1 - eps) * logs) / -eps, 0), weights * logs / -eps


def _away_from_zero(eps: Float[Array, "..."]) -> Float[Array, "..."]:
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
)
"""Weights (1 + ε·(x - θ))^(1/ε), for any ε but 0, which `_away_from_zero` replaces; the threshold stands for θ."""

STIELTJES = TSALLIS._replace(
    weigh=lambda x, t, eps: _weigh_tsallis(x, t, eps, -1.0), derivatives=_derivatives_stieltjes
)
"""Weights (λ - x)^(1/ε) for ε below 0, which are those of `TSALLIS` for x over -ε; the threshold stands for λ."""


@functools.cache
def tail(power: int) -> Family:
    """The weights of `STIELTJES` at a whole power, (λ - x)^-power, with ε = -1 / power."""

    def weigh(x: Array, t: Array, eps: Array) -> Array:
        return (1 / (jnp.exp(-eps * t) - x)) ** power

    def derivatives(weights: Array, eps: Array) -> tuple[Array, None]:
        return _slopes(weights, 4 + 4 // power, -1 / eps), None

    return STIELTJES._replace(weigh=weigh, derivatives=derivatives)


# The search for the k-th largest entry.


def whole_ranks(k: ArrayLike) -> Int[Array, "..."]:
    """The k of a search in int32. Raises TypeError for an array that is not of whole numbers."""
    if checks.is_array(k) and not jnp.issubdtype(jnp.result_type(k), jnp.integer):
        raise WrongType(f"k is {checks.shown(k)}; it must be whole: call .astype('int32') on it")
    most = jnp.iinfo(jnp.int32).max  # which no row is longer than
    if isinstance(k, int | float):
        k = min(int(k), most)
    elif not checks.is_jax(k):
        k = np.minimum(k, np.int64(most))
    elif jnp.iinfo(jnp.result_type(k)).max > most:
        k = jnp.minimum(k, most)
    return jnp.asarray(k, jnp.int32)


@jax.jit
def kth_largest(z: Float[Array, "*rows n"], k: Int[Array, "..."]) -> Float[Array, "*rows 1"]:
    """A number that the k largest of each row reach, with what ties with the last, and no others; -inf if all do.

    Halves an interval of the floating-point numbers themselves, in their order, until it holds just one or the count of
    what reaches it fits. It starts at the k-th largest of a part, the largest entry of each place of the blocks, which
    is not above that of the row, and close. `jax.lax.top_k` takes 70 times as long for k = 32 (1024 rows of 4,096, on 2
    AVX2 cores) and no k that is traced.

    A row worked through, the 2nd largest of 3, 1 and 2, among the numbers that whole numbers stand for: 1 is reached by
    three and 3 by one entry. Halfway between, 2 is reached by two: done.
    """
    blocks = cut(z)
    places = jnp.max(blocks, -2, initial=-jnp.inf)
    high = jnp.max(places, -1, keepdims=True, initial=-jnp.inf)
    low = jnp.full_like(high, -jnp.inf) if blocks.shape[-2] == 1 else kth_largest(places, k)
    dtype = z.dtype
    whole = jnp.int64 if dtype == jnp.float64 else jnp.int32

    def count(threshold: Array) -> Array:
        # Along the blocks first, which XLA on CPU fuses with the comparison: this takes a quarter of the time.
        of_places = jnp.sum(blocks >= threshold[..., None], -2, dtype=jnp.int32)
        return jnp.sum(jax.lax.optimization_barrier(of_places), -1, keepdims=True, dtype=jnp.int32)

    def in_order(bits: Array) -> Array:
        """Turns the bits of a float into a whole number that grows with it, and back."""
        return bits ^ ((bits >> (jnp.iinfo(whole).bits - 1)) & jnp.iinfo(whole).max)

    def unfinished(state: tuple[Array, Array]) -> Array:
        low, high = state
        return jnp.any(low + 1 < high)

    def halve(state: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = state
        middle = (low & high) + ((low ^ high) >> 1)  # their mean, without overflow
        counted = count(jax.lax.bitcast_convert_type(in_order(middle), dtype))
        above = jnp.where(counted > k, high, jnp.where(counted == k, middle + 1, middle))
        return jnp.where(counted >= k, middle, low), above

    lowest = jnp.full_like(low, -jnp.inf)
    low = jnp.maximum(low, jnp.finfo(dtype).min)
    none, least, most = (in_order(jax.lax.bitcast_convert_type(end, whole)) for end in (lowest, low, high))
    # The k-th largest of a part may be above after all, where a compiler computed it from logits rounded otherwise.
    counted = count(low)
    # One more than the end, so that this itself can be found.
    start = jnp.where(counted < k, none, least), jnp.where(counted > k, most, least) + 1
    kth, _ = jax.lax.while_loop(unfinished, halve, start)
    return jax.lax.bitcast_convert_type(in_order(kth), dtype)


sparsemax = Sparsemax()
entmax15 = Entmax15()
entmax = Entmax()
stieltjes = Stieltjes()
top_k_softmax = TopKSoftmax()
