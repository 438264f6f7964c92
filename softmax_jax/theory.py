r"""Bounds on the weights of a row from the spread of its logits, before any weight is computed.

A row of n visible logits whose largest and smallest lie δ apart has, under softmax at inverse temperature β, weights
within a factor e^(βδ) of each other. All bounds here follow from that alone, and all but the loose ones are attained.
They are for softmax over any scale: β is then that of the row.

- `weight_bounds(n, spread, beta)`, `loose_weight_bounds(n, spread, beta)`: of any weight
- `largest_weight_bounds(n, spread, beta)`, `largest_weight_from_nearest(counts, spreads, beta)`: of the largest
- `entropy_bounds(n, spread, beta)`: of the entropy, in nats
- `length_forced_below(threshold, spread, beta)`: the n from which the largest weight cannot exceed a threshold
- `spread_from_norms(query_kernel, key_kernel, query, item, scale)`: the spread that kernels and norms allow

How sharp a row must be follows from how many logits crowd below its largest:

- `gap_counting(logits, where)`: how many logits lie within each gap of the largest
- `critical_beta(logits, where)`, `critical_count(logits, where)`: the β above which the largest stands out from every
  such crowd, and the size of the crowd that asks for it
- `largest_weight_near_critical(ratio, n, count)`: what β over critical β says of the largest weight

Sources: Veličković et al., "softmax is not enough", arXiv 2410.01104, section 3; for gap-counting and its critical β
Hayase and Karakida, "Critical attention scaling", arXiv 2605.12697. The bounds of the entropy, from the nearest logits
and near the critical β follow here.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # whose parts load when they are first used, as some take seconds
from jax.typing import ArrayLike
from jaxtyping import Float

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.row import ADD, is_low, read_mask
from softmax_jax.refusal import Refusal

Reals = ArrayLike | Sequence[int | float]
"""One number or many; functions of several broadcast them, and return float64."""
Logits = ArrayLike | Sequence[Any]
"""Rows of logits along the last axis."""


FIRST_TERMS = 1000
"""Terms of a sum of powers to add one by one."""


class Bounds(NamedTuple):
    """The lowest and highest value that a quantity can take."""

    lower: Any
    upper: Any


def weight_bounds(n: Reals, spread: Reals, beta: Reals = 1.0) -> Bounds:
    r"""Returns the range of the weights of a row of `n` logits within `spread` of each other.

    $$\frac{1}{1 + (n-1)\,e^{\beta\delta}} \le \alpha_k \le \frac{1}{1 + (n-1)\,e^{-\beta\delta}}$$

    The lower end is attained by one logit δ below all others, the upper by one δ above all others. Raises ValueError
    for n < 1 and for a negative spread or β.

    >>> lower, upper = weight_bounds(100, 5.0)
    >>> f"{lower:.6f} {upper:.3f}"
    '0.000068 0.600'
    """
    length, reach = _checked(n, spread, beta)
    # 1/α_k = Σ_j e^(β(z_j - z_k)) is 1 and n - 1 terms from e^(-βδ) to e^(βδ). expit(x) = 1 / (1 + e^(-x)) at
    # x = ±βδ - log(n - 1) never forms the e^(βδ) that may overflow: 1 / (1 + 99 e^(-5)) = expit(5 - log 99) = 0.600.
    with np.errstate(divide="ignore"):
        others = np.log(length - 1)
    return Bounds(scipy.special.expit(-reach - others), scipy.special.expit(reach - others))


def loose_weight_bounds(n: Reals, spread: Reals, beta: Reals = 1.0) -> Bounds:
    r"""Returns looser bounds, which show at a glance that every weight falls as 1/n while the spread stays.

    $$\frac{1}{n}\,e^{-\beta\delta} \le \alpha_k \le \frac{1}{n}\,e^{\beta\delta}$$

    Infinite where the exponential overflows. Raises as `weight_bounds` does.

    >>> [float(bound.round(4)) for bound in loose_weight_bounds(100, 1.0)]
    [0.0037, 0.0272]
    """
    length, reach = _checked(n, spread, beta)
    with np.errstate(over="ignore"):
        return Bounds(np.exp(-reach) / length, np.exp(reach) / length)


def largest_weight_bounds(n: Reals, spread: Reals, beta: Reals = 1.0) -> Bounds:
    r"""Returns the range of the largest weight: at least 1/n, as of equal weights, at most what `weight_bounds` allows.

    $$\frac{1}{n} \le \alpha_{\max} \le \frac{1}{1 + (n-1)\,e^{-\beta\delta}}$$

    Raises as `weight_bounds` does.

    >>> largest_weight_bounds([10, 1000], 5.0).upper.round(3).tolist()
    [0.943, 0.129]
    """
    length, _ = _checked(n, spread, beta)
    return Bounds(1 / length, weight_bounds(n, spread, beta).upper)


def largest_weight_from_nearest(counts: Reals, spreads: Reals, beta: Reals = 1.0) -> Any:
    r"""Returns the most that the largest weight can be, from how closely the logits nearest to the top are packed.

    $$\alpha_{\max} \le \min_k \frac{1}{1 + (k-1)\,e^{-\beta\delta_k}}$$

    `spreads` holds, along its last axis, the distance δₖ from the largest logit to the k-th largest, for each k in
    `counts`. The bound is never above that from the whole spread if k = n is among the counts, and far below where a
    long row crowds at the top. Raises as `weight_bounds` does.

    A row of 1000 logits evenly spaced over 100 nats:

    >>> upper = largest_weight_from_nearest([2, 10, 100, 1000], [0.1, 0.9, 9.9, 100.0])
    >>> f"{upper:.3f}, where the whole spread says {largest_weight_bounds(1000, 100.0).upper:.3f}"
    '0.215, where the whole spread says 1.000'
    """
    length, spread, factor = _numbers(counts=counts, spreads=spreads, beta=beta)
    _require(length, length >= 1, "counts", "a row must have at least 1 logit, so give 1 or more")
    if length.ndim != 1 or not length.size or spread.ndim < 1 or spread.shape[-1] not in (1, length.size):
        raise Refusal(
            f"counts has shape {length.shape} and spreads {spread.shape}; the last axis of spreads must be that of "
            "counts: give one spread for each count"
        )
    _require(spread, spread >= 0, "spreads", "it must be at least 0: the largest logit less the k-th largest")
    # Leaving logits out of 1/α = Σ_j e^(-β(z_max - z_j)) can only raise α, so the bound from the k largest holds for
    # every k, and so does the least of these bounds: 1 / (1 + 9 e^(-0.9)) = 0.215 from ten logits within 0.9.
    return weight_bounds(length, spread, factor[..., None]).upper.min(-1)


def entropy_bounds(n: Reals, spread: Reals, beta: Reals = 1.0) -> Bounds:
    r"""Returns the range of the entropy in nats, from that of k logits at the top and all others δ below to log n.

    $$\min_{1 \le k < n} \log\big(k + (n-k)e^{-d}\big) + \frac{d\,(n-k)\,e^{-d}}{k + (n-k)e^{-d}}
      \;\le\; H \;\le\; \log n, \qquad d = \beta\delta$$

    It is never below -log of the bound of the largest weight. Spreads below 1e-6 count as 1e-6, which costs less than
    1e-12. Raises as `weight_bounds` does.

    >>> entropy_bounds([2, 100, 10_000], 5.0).lower.round(3).tolist()
    [0.04, 2.19, 6.793]
    """
    length, reach = _checked(n, spread, beta)
    # The entropy is concave, so over the polytope of weights within a factor e^d of each other it is least at a corner.
    # At a corner every weight is the smallest or e^d times it: a weight in between could be moved both ways, the others
    # shrinking or growing together. With k large ones, c = e^(-d) and S = k + (n - k) c, the weights are 1/S and c/S,
    # so H(k) = log S + d (n - k) c / S. For a real k, as S' = 1 - c and S + (n - k)(1 - c) = n,
    #     H'(k) = (1 - c) / S - d c (S + (n - k)(1 - c)) / S² = ((1 - c) S - d c n) / S²,
    # which is below 0 up to S = d c n / (1 - c), that is k = n c (d / (1 - c) - 1) / (1 - c), and above 0 from there.
    # The least over whole k lies beside it: n = 100 and d = 5 turn at k = 2.74, where H(2) = 2.219 and H(3) = 2.190.
    d = np.maximum(reach, 1e-6)
    low = np.exp(-d)
    share = -np.expm1(-d)  # 1 - e^(-d)
    turn = np.floor(length * (d / share - 1) * low / share)

    def with_large(k: Any) -> Any:
        k = np.clip(k, 1, np.maximum(length - 1, 1))
        total = k + (length - k) * low
        return np.log(total) + d * (length - k) * low / total

    return Bounds(np.minimum(with_large(turn), with_large(turn + 1)), np.log(length))


def length_forced_below(threshold: Reals, spread: Reals, beta: Reals = 1.0) -> Any:
    r"""Returns the least n at which no row of that spread can have a weight above the threshold.

    $$n = 1 + \left\lceil e^{\beta\delta}\,\frac{1 - t}{t} \right\rceil$$

    A whole number as float64, since it may be astronomic; infinite where it overflows. Raises ValueError unless
    0 < threshold < 1, and as `weight_bounds` does.

    >>> length_forced_below(0.5, 5.0), length_forced_below(0.5, 150.0) > 1e65
    (np.float64(150.0), np.True_)
    """
    (t,) = _numbers(threshold=threshold)
    _require(t, (t > 0) & (t < 1), "threshold", "it must lie between 0 and 1, such as 0.5")
    _, reach = _checked(1, spread, beta)
    # 1 / (1 + (n - 1) e^(-d)) ≤ t means n - 1 ≥ e^d (1 - t) / t: at t = 1/2 and d = 5, n - 1 ≥ 148.4.
    with np.errstate(over="ignore"):
        return 1 + np.ceil(np.exp(reach) * (1 - t) / t)


def spread_from_norms(
    query_kernel: Reals,
    key_kernel: Reals,
    query: Reals,
    item: Reals,
    scale: float = 1.0,
) -> Any:
    r"""Returns the widest spread that a head can give, from the largest singular values of its kernels.

    $$\delta \le 2\,\text{scale}\;\sigma_{\max}(Q)\,\sigma_{\max}(K)\,\lVert y \rVert\,\max_i \lVert x_i \rVert$$

    A bias of the query counts as one more input that is always 1. A bias of the keys shifts the row as a whole and
    spreads nothing.

    Arguments:
        query_kernel, key_kernel: Q and K of one head, of shape (inputs, size).
        query: The norm ‖y‖ of what asks.
        item: The largest norm ‖xᵢ‖ of what is asked.
        scale: The factor of the logits, most often 1/√size.

    Returns:
        The bound of δ, in float64.

    Raises:
        ValueError: For kernels that are no finite matrices, and for negative norms.

    Example:
        >>> float(spread_from_norms(np.diag([3.0, 1.0]), np.diag([1.0, 2.0]), query=1.0, item=0.5))
        6.0
    """
    kernels = _numbers(query_kernel=query_kernel, key_kernel=key_kernel)
    for name, kernel in zip(("query_kernel", "key_kernel"), kernels):
        if kernel.ndim != 2 or not kernel.size:
            raise Refusal(f"{name} has shape {kernel.shape}; it must be (inputs, size): give the matrix of one head")
        _require(kernel, np.isfinite(kernel), name, "its numbers must be finite, so leave out what diverged")
    for name, number in zip(("query", "item", "scale"), _numbers(query=query, item=item, scale=scale)):
        _require(number, number >= 0, name, "a norm or factor must be at least 0, such as 1.0")
    # Two logits differ by scale · yᵀQ Kᵀ(x_i - x_j), and ‖x_i - x_j‖ ≤ 2 max ‖x‖.
    largest = [np.linalg.norm(np.asarray(kernel, np.float64), 2) for kernel in (query_kernel, key_kernel)]
    return 2 * scale * largest[0] * largest[1] * np.asarray(query, np.float64) * np.asarray(item, np.float64)


class GapCounts(NamedTuple):
    """How the largest logits of rows crowd: the k-th largest lies `gaps[..., k - 1]` below the largest."""

    counts: Float[np.ndarray, " n"]
    """1, 2, … n."""
    gaps: Float[np.ndarray, "*rows n"]
    """In nats, from 0 upwards; inf beyond the visible entries."""


def gap_counting(logits: Logits, where: Logits | None = None) -> GapCounts:
    r"""Returns the gap-counting function of each row: N(δ) logits lie within δ of the largest.

    $$N(\delta) = \#\{j : z_{\max} - z_j \le \delta\}$$

    The result holds where it steps: the gap of the k-th largest logit for each k, along the last axis, from 0 on. N(δ)
    of one row is `np.searchsorted(gaps, delta, side="right")`. Hidden entries, by the mask or a low number added to
    them, come last, with a gap of inf; so a row with nothing visible has gaps of inf only.
    `largest_weight_from_nearest` takes both fields unchanged, for β > 0. Raises ValueError for a visible NaN or +inf.

    >>> counts, gaps = gap_counting([3.0, 1.0, 2.5, 9.0], where=[True, True, True, False])
    >>> counts.tolist(), gaps.tolist()
    ([1.0, 2.0, 3.0, 4.0], [0.0, 0.5, 2.0, inf])
    >>> int(np.searchsorted(gaps, 1.0, side="right"))  # logits within 1 nat of the largest
    2

    Source: Hayase and Karakida, arXiv 2605.12697.
    """
    checks.plain("logits", logits)
    rows = np.atleast_1d(np.asarray(logits, np.float64))
    visible = read_mask(where, rows.shape, ADD)
    rows = rows if visible is None else np.where(visible, rows, -np.inf)
    _require(rows, rows < np.inf, "logits", "a visible logit must be below inf and no NaN, so hide it by where=")
    ordered = -np.sort(-rows, -1)
    largest = np.where(ordered > -np.inf, ordered, 0)[..., :1]
    visible = (ordered > -np.inf) & ~is_low(ordered, largest)
    gaps = np.where(visible, largest - ordered, np.inf)
    return GapCounts(np.arange(1.0, rows.shape[-1] + 1), gaps)


def critical_beta(logits: Logits, where: Logits | None = None) -> Any:
    r"""Returns the critical inverse temperature of each row, by how its largest logits crowd.

    $$\beta_c = \max_{k \ge 2} \frac{\log k}{\delta_k}$$

    δₖ is the gap from the largest logit to the k-th largest, as in `gap_counting`. Above β_c the k-th largest weight is
    less than 1/k of the largest, whatever k is, and below it the k largest of some crowd are each more than that:
    `largest_weight_near_critical` says what follows. At β = 1, as a model computes it, a row is sharp only if its β_c
    is below 1.

    Logits that are multiplied by a number have a β_c divided by it; a shift changes nothing. It is inf where the two
    largest are equal, and 0 for a row with one visible entry or none, which no β spreads. Raises as `gap_counting`.

    Where a logit lies 2 above three others, the k to look at is 4:

    >>> critical_beta([[2.0, 0.0, 0.0, 0.0], [2.0, 2.0, 0.0, 0.0]]).round(3).tolist()
    [0.693, inf]

    Source: Hayase and Karakida, arXiv 2605.12697.
    """
    return _slopes(logits, where).max(-1)


def critical_count(logits: Logits, where: Logits | None = None) -> Any:
    """Returns the k at which `critical_beta` is attained: how many of the largest logits make up that crowd.

    As float64; the largest such k, and 1 for a row with one visible entry or none.

    >>> critical_count([[2.0, 0.0, 0.0, 0.0], [2.0, 1.9, -4.0, -5.0]]).tolist()
    [4.0, 2.0]
    """
    slopes = _slopes(logits, where)
    last = slopes.shape[-1] - np.argmax(slopes[..., ::-1], -1)
    return np.where(slopes.max(-1) > 0, last, 1).astype(np.float64)


def largest_weight_near_critical(ratio: Reals, n: Reals, count: Reals = 2) -> Bounds:
    r"""Returns the range of the largest weight at r times the critical β of a row, whatever its β_c and δₖ are.

    $$\frac{1}{\zeta(r)} \;<\; \frac{1}{\sum_{k=1}^{n} k^{-r}} \;\le\; \alpha_{\max}
      \;\le\; \frac{1}{1 + (k_* - 1)\,k_*^{-r}}, \qquad r = \beta / \beta_c$$

    `count` is k*, the k at which β_c is attained: `critical_count` of the row. A row with δₖ = log k / β_c for every k
    attains the lower end, and one whose k* - 1 others all lie at log k* / β_c, with k* = n, the upper.

    So above the critical β, at r > 1, the largest weight is at least 1/ζ(r) however long the row is: 0.608 at twice
    β_c. Below, at r < 1, it goes to 0 as k*^(r-1) or faster when the crowd grows. An n of inf gives 1/ζ(r), or 0 for
    r ≤ 1. The row must have a β_c above 0 and below inf. Raises ValueError for r < 0, for n < 2 or not whole, and for
    k* below 2, above n or not whole.

    >>> lower, upper = largest_weight_near_critical([0.5, 1.0, 2.0], n=10_000, count=10_000)
    >>> lower.round(3).tolist(), upper.round(3).tolist()
    ([0.005, 0.102, 0.608], [0.01, 0.5, 1.0])
    >>> largest_weight_near_critical(2.0, np.inf).lower.round(3)
    np.float64(0.608)
    """
    r, length, crowd = _numbers(ratio=ratio, n=n, count=count)
    _require(r, r >= 0, "ratio", "it must be at least 0: β over the critical β")
    rule = "a row must have a whole number of logits, at least 2, to have a critical β"
    _require(length, (length >= 2) & (np.isinf(length) | (length == np.floor(length))), "n", rule)
    r, length, crowd = np.broadcast_arrays(r, length, crowd)
    within = (crowd >= 2) & (crowd <= length) & (np.isinf(crowd) | (crowd == np.floor(crowd)))
    _require(crowd, within, "count", "it must be a whole number from 2 to n: the critical_count of the row")
    # At β the largest weight is 1 / Σ_k e^(-β δ_k). By the definition of β_c each gap δ_k is at least log k / β_c, so
    # e^(-β δ_k) ≤ k^(-r): the lower end. The k* - 1 logits after the largest have gaps of at most log k* / β_c, so each
    # adds at least k*^(-r) to the sum: the upper end. Gaps 0, log 2, log 3 have β_c = 1 and k* = 3, and at r = 2 a
    # largest weight of 1 / (1 + 1/4 + 1/9) = 0.735, between 0.735 and 1 / (1 + 2/9) = 0.818.
    return Bounds(1 / np.vectorize(_sum_of_powers, otypes=[float])(length, r), 1 / (1 + (crowd - 1) * crowd**-r))


def _sum_of_powers(n: float, r: float) -> float:
    """Returns Σ k^(-r) over k from 1 to n: first terms one by one, the others by the formula of Euler and Maclaurin."""
    if np.isinf(n):
        return float(scipy.special.zeta(r)) if r > 1 else np.inf
    m = min(n, FIRST_TERMS)
    # For f(x) = x^(-r) the terms after the first m sum to ∫ f from m to n + (f(n) - f(m)) / 2 + (f'(n) - f'(m)) / 12,
    # but for about r³ m^(-r-3) / 720, which is below 1e-11 of the sum at m = 1000. With t = log(n / m) the integral is
    # m^(1-r) t (e^x - 1) / x at x = (1 - r) t, which keeps its digits at r = 1 too, where it is t.
    first, t = np.sum(np.arange(1.0, m + 1) ** -r), np.log(n / m)
    integral = m ** (1 - r) * t * scipy.special.exprel((1 - r) * t)
    return float(first + integral + (n**-r - m**-r) / 2 - r * (n ** (-r - 1) - m ** (-r - 1)) / 12)


def _slopes(logits: Logits, where: Logits | None) -> Any:
    """Returns the slopes log k / δₖ of each row; 0 for k = 1 and beyond the visible entries."""
    counts, gaps = gap_counting(logits, where)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(counts > 1, np.log(counts) / gaps, 0)


def _checked(n: Reals, spread: Reals, beta: Reals) -> tuple[Any, Any]:
    """Returns the length and βδ in float64. Raises Refusal unless they can be those of a row."""
    length, width, factor = _numbers(n=n, spread=spread, beta=beta)
    _require(length, length >= 1, "n", "a row must have at least 1 logit, so give 1 or more")
    _require(width, width >= 0, "spread", "it must be at least 0: the largest logit less the smallest")
    _require(factor, factor >= 0, "beta", "it must be at least 0, such as 1.0")
    return length, factor * width


def _numbers(**numbers: Any) -> list[Any]:
    """Returns the numbers in float64. Raises TypeError for masked arrays."""
    for name, value in numbers.items():
        checks.plain(name, value)
    return [np.asarray(value, np.float64) for value in numbers.values()]


def _require(numbers: Any, holds: Any, name: str, rule: str) -> None:
    if not np.all(holds):
        raise Refusal(f"{name} is {numbers[~np.asarray(holds)].flat[0]:g}: {rule}")
