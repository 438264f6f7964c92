"""Searches for the threshold of a row: the one at which its weights sum to 1, and the one that its k largest reach.

A map with a threshold weighs an entry by a function w(x, θ) of its distance x ≤ 0 to the largest logit and of one
number θ of the row, at which the weights sum to 1. For sparsemax w = max(x - θ, 0). The sum falls as θ grows, so a
safeguarded secant finds θ from one sum over the row in each step. (Newton's method would need a second sum, which XLA
on CPUs fuses with the first into a loop five times as slow.) No row is sorted, and no step is unrolled: `solve` has
the derivative of the solution, in both modes.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.arithmetic import as_pivot, subtract_pivot, times_row
from softmax_jax.normalizers.execution import is_known, varying
from softmax_jax.normalizers.layout import LAST, Layout, Segments
from softmax_jax.refusal import WrongType

FIRST_STEP = 1 / 64
"""Distance of the first two thresholds of a search."""
TOLERANCE, ROUNDING = 4, 64
"""In units of the last place of 1: how far a total may miss 1, and how far rounding may move it in a long row."""
MAX_STEPS = 64
"""Bound on the steps of one search: the secant takes about 6, and halving an interval exhausts float32 after 30."""
MOST_ENTRIES = 2**40
"""More than a row has whose length is a symbol of `jax.export`."""
BLOCKS = 16
"""Parts into which a row is cut, to be summed and to find its largest entries."""
POWERS = 1, 2, 4
"""Those of `excess` and `tail`, which products and square roots give: a logarithm takes several times as long."""

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


# Families of weights.


@functools.cache
def excess(power: int) -> Family:
    """Returns the family of weights max((x - τ) / power, 0)^power, with ε = 1 / power."""

    def weigh(x: Array, tau: Array, eps: Array) -> Array:
        # Not max(x - τ, 0): XLA on CPUs would write out a 0 for each entry, as it does with any number for all rows.
        return (eps * (jnp.maximum(x, tau) - tau)) ** power

    def advance(before: Array, tau: Array, times: Array, eps: Array) -> Array:
        # The total to the power ε is a norm of the weights' bases, which is convex in τ and nearly straight: of two
        # equal entries at power 2 it is √2 (x - τ) / 2, a line, and the first secant meets its root.
        return tau + (tau - before) * times

    def derivatives(weights: Array, eps: Array) -> tuple[Array, None]:
        # w = u^power with u = (x - τ) / power, so dw/dx = u^(power - 1) = w^(1 - ε): of w = 0.25 at power 2 it is 0.5.
        return _times_power(1, weights, 4 - 4 // power), None

    # At τ = -power the largest entry, x = 0, has the weight 1; at τ = 0 no entry has any.
    return Family(weigh, derivatives, advance, -float(power), lambda entries: 0.0)


def _times_power(times: ArrayLike, weights: Float[Array, "*rows n"], quarters: int) -> Float[Array, "*rows n"]:
    """Returns times · w^(quarters/4), and 0 where w = 0."""
    # By products and square roots: 7 quarters are 1 + 1/2 + 1/4, and 16^(7/4) = 16 · 4 · 2 = 128.
    live = weights > 0
    base = jnp.where(live, weights, 1)
    root, value = jnp.sqrt(base), base ** (quarters // 4)
    value = value * root if quarters & 2 else value
    value = value * jnp.sqrt(root) if quarters & 1 else value
    return jnp.where(live, times * value, 0)


def log1p(x: Array) -> Array:
    """Returns log(1 + x) within 3 ulp; in float64 that of jax 0.10 is off by up to 120 on CPU.

    Source: Kahan's trick, Goldberg, "What every computer scientist should know about floating-point arithmetic", 1991,
    theorem 4.
    """
    if x.dtype != jnp.float64:
        return jnp.log1p(x)
    # 1 + x is rounded to r, so log r is the logarithm of another number, 1 + l with l = r - 1 exactly. log(1 + t) / t
    # changes so slowly that its value at l serves for x: log(1 + x) = log(r) · x / l. In three digits x = 0.0126 has
    # r = 1.01, l = 0.01, and 0.00995 · 1.26 = 0.01254 where log(1.0126) = 0.01252; log r itself is off by a fifth.
    rounded = jax.lax.reduce_precision(1 + x, 11, 52)  # or XLA would simplify (1 + x) - 1 to x
    lost = rounded - 1
    itself = (lost == 0) | (lost == jnp.inf)
    return jnp.where(itself, x, jnp.log(rounded) * (x / jnp.where(itself, 1, lost)))


# The entmax family has w = b^(1/ε) with the base b = 1 + ε(x - θ), cut at 0, where ε = α - 1. Its search is for
# t = -log of the largest weight, that of x = 0, so that e^(-εt) = 1 - εθ is the largest base, and
#     b = e^(-εt) + εx = e^(-εt) (1 + ε e^(εt) x),    w = e^(-t) (1 + ε e^(εt) x)^(1/ε).
# As ε → 0 this becomes e^(x - t): softmax, with t the log-sum-exp. Stieltjes has b = λ - x and ε = -1/q, so that
# e^(-εt) = λ and b = e^(-εt) (1 - e^(εt) x): the same with the rate -1 in the place of ε.
# t is at least 0, where the largest weight is 1, and at most log n, where each weight is at most 1/n.
# Sparsemax (ε = 1) of (1, 0.5, -1): the largest weight is 3/4, so e^t = 4/3, and x = -0.5 has 3/4 (1 - 2/3) = 1/4.
def _weigh_tsallis(x: Array, t: Array, eps: Array, rate: ArrayLike) -> Array:
    # Both ends of the clip are far beyond what can matter. Without a branch, which XLA on CPUs would not vectorise.
    limit = 0.9 * math.log(jnp.finfo(x.dtype).max)
    t, floor = jax.lax.optimization_barrier((t, jnp.full_like(t, -1)))  # as in `_sum_of_blocks`
    shortfall = jnp.maximum(rate * jnp.exp(jnp.clip(eps * t, -limit, limit)) * x, floor)
    return jnp.exp(log1p(shortfall) * (1 / eps) - t)


def _advance_tsallis(before: Array, t: Array, times: Array, eps: Array) -> Array:
    # Linear in the largest bases B = e^(-εt): B' = B + times (B - B_before) = B (1 + times (1 - e^(ε(t - before)))),
    # whose -log over ε is t'. The total to the power ε is a norm of the bases, which is convex in B up to ε = 1.
    return t - log1p(-jnp.expm1(eps * (t - before)) * times) / eps


def _derivatives_tsallis(
    weights: Float[Array, "*rows n"], eps: Float[Array, "..."]
) -> tuple[Float[Array, "*rows n"], Float[Array, "*rows n"]]:
    """Returns the derivatives of weights (1 + ε·(x - θ))^(1/ε): in x, equal to that in -θ, and in ε at a fixed θ."""
    # In x: b^(1/ε - 1) = w^(1 - ε). In ε, with a = log b = ε log w:
    #     d(a/ε)/dε = (x - θ) / (εb) - a / ε² = ((1 - e^(-a)) - a) / ε²,    as x - θ = (b - 1) / ε,
    # so dw/dε = (w - w e^(-a) - a w) / ε², where w e^(-a) is the slope in x. Of w = 1/4 at ε = 1: a = -log 4, the slope
    # is 1, and dw/dε = 0.25 - 1 + 0.3466 = -0.4034. At ε = 0 it tends to -w log²(w) / 2.
    live = weights > 0
    logs = jnp.log(jnp.where(live, weights, 1))
    log_base = eps * logs
    # Above ε = 1 the slope of a tiny weight has no bound; this one keeps sums over the row finite.
    slopes = jnp.where(live, jnp.exp(jnp.minimum(logs - log_base, 60)), 0)
    # The difference cancels for small a, where its series -a²/2 + a³/6 - … is exact.
    small = jnp.abs(log_base) < 0.5
    series = -weights * logs**2 * _second_order(jnp.where(small, log_base, 0))
    return slopes, jnp.where(small, series, (weights - slopes - log_base * weights) / eps**2)


def _derivatives_stieltjes(
    weights: Float[Array, "*rows n"], eps: Float[Array, "..."]
) -> tuple[Float[Array, "*rows n"], Float[Array, "*rows n"]]:
    """Returns the derivatives of weights (λ - x)^(1/ε): in x, equal to that in -λ, and in ε at a fixed λ."""
    # In x: -b^(1/ε - 1) / ε = w^(1 - ε) / -ε. In ε: d(log(b) / ε)/dε = -log(b) / ε² = log(w) / -ε. At q = 1 (ε = -1)
    # and λ - x = 4, so w = 1/4: the slope is w² = 1/16, and dw/dε = log(1/4) / 4 = -0.3466.
    live = weights > 0
    logs = jnp.log(jnp.where(live, weights, 1))
    return jnp.where(live, jnp.exp((1 - eps) * logs) / -eps, 0), weights * logs / -eps


def _second_order(a: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns (exp(-a) - 1 + a) / a² for |a| < 1/2, by its series 1/2 - a/6 + a²/24 - …."""
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
    """Returns the family of weights (λ - x)^-power, `STIELTJES` at a whole power, with ε = -1 / power."""

    def weigh(x: Array, t: Array, eps: Array) -> Array:
        return (1 / (jnp.exp(-eps * t) - x)) ** power

    def derivatives(weights: Array, eps: Array) -> tuple[Array, None]:
        # dw/dx = power · (λ - x)^(-power - 1) = w^(1 + 1/power) / -ε: of w = 1/4 at power 2, 2 · (1/2)³ = 1/4.
        return _times_power(-1 / eps, weights, 4 + 4 // power), None

    return STIELTJES._replace(weigh=weigh, derivatives=derivatives)


# The search for the k-th largest entry.


def as_ranks(k: ArrayLike) -> Int[Array, "..."]:
    """Returns the k of a search in int32. Raises TypeError for an array that is not of whole numbers."""
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
def kth_largest(z: Float[Array, "*rows n"], k: Int[Array, "..."], layout: Layout = LAST) -> Float[Array, "*row"]:
    """Returns a threshold that exactly the k largest of each row (and ties) reach; -inf if the row has no more than k.

    Rows lie along the last axis, or are segments.
    `jax.lax.top_k` takes 70 times as long for k = 32 (1024 rows of 4,096, on 2 AVX2 cores) and no k that is traced.
    """
    # Halves an interval of the floating-point numbers themselves, in their order, until it holds just one or the count
    # of what reaches it fits. It starts at the k-th largest of a part, the largest entry of each place of the blocks,
    # which is not above that of the row, and close.
    # The 2nd largest of (3, 1, 2), if floats were whole numbers: 1 is reached by three entries and 3 by one; halfway
    # between, 2 is reached by two: done.
    in_segments = isinstance(layout, Segments)
    blocks = z[None] if in_segments else cut(z)
    places = jnp.max(blocks, -2, initial=-jnp.inf)
    high = layout.top(places)
    short = in_segments or blocks.shape[-2] == 1
    low = jnp.full_like(high, -jnp.inf) if short else kth_largest(places, k, layout)
    dtype = z.dtype
    integer = jnp.int64 if dtype == jnp.float64 else jnp.int32

    def count(threshold: Array) -> Array:
        if in_segments:
            return layout.total(z >= layout.spread(threshold))
        # Along the blocks first, which XLA on CPU fuses with the comparison: this takes a quarter of the time.
        place_counts = jnp.sum(blocks >= threshold[..., None], -2, dtype=jnp.int32)
        return jnp.sum(jax.lax.optimization_barrier(place_counts), -1, keepdims=True, dtype=jnp.int32)

    def reorder(bits: Array) -> Array:
        # The bits of a float grow with its size, so those below 0, whose sign bit makes them negative, are in reverse:
        # all bits but the sign are flipped there. Applied twice it gives the bits back. -1.0 has the bits 0xBF800000
        # and becomes 0xC07FFFFF; -2.0 has 0xC0000000 and becomes 0xBFFFFFFF, which is less.
        return bits ^ ((bits >> (jnp.iinfo(integer).bits - 1)) & jnp.iinfo(integer).max)

    def unfinished(state: tuple[Array, Array]) -> Array:
        low, high = state
        return jnp.any(low + 1 < high)

    def halve(state: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = state
        middle = (low & high) + ((low ^ high) >> 1)  # their mean, without overflow: 5 and 7 have 5 + (2 >> 1) = 6
        middle_count = count(jax.lax.bitcast_convert_type(reorder(middle), dtype))
        above = jnp.where(middle_count > k, high, jnp.where(middle_count == k, middle + 1, middle))
        return jnp.where(middle_count >= k, middle, low), above

    lowest = jnp.full_like(low, -jnp.inf)
    low = jnp.maximum(low, jnp.finfo(dtype).min)
    none, least, most = (reorder(jax.lax.bitcast_convert_type(end, integer)) for end in (lowest, low, high))
    # The k-th largest of a part may be above after all, where a compiler computed it from logits rounded otherwise.
    low_count = count(low)
    # One more than the end, so that this itself can be found.
    start = jnp.where(low_count < k, none, least), jnp.where(low_count > k, most, least) + 1
    kth, _ = jax.lax.while_loop(unfinished, halve, start)
    return jax.lax.bitcast_convert_type(reorder(kth), dtype)
