"""Curves of β by entropy: the points that a criterion calls best, and the forms that are fitted through them."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.scales import EntropyPolynomial
from softmax_jax.temperature.optimum import GRID_SIZE, LOG_THETA, SPACING, TIE, Rows

Criterion = Literal["inputs", "bins", "accuracy"]
CRITERIA: tuple[Criterion, ...] = get_args(Criterion)
THRESHOLD = float(np.asarray(EntropyPolynomial.threshold))
"""Rows of at most this entropy, in nats, keep β = 1 under the adaptive method."""
BIN_WIDTH = 0.05
"""Width in nats of the entropy bins of the criteria that pool rows."""
ERROR_SMOOTHING = 2
"""Width, in cells of the grid, of the Gaussian that smooths errors, which are steps."""
LEAST_ROWS = 200
"""A bin with fewer rows joins the next."""


class Points(NamedTuple):
    """What a criterion calls best: inverse temperatures at entropies (nats), and how much each of them is worth.

    The worth is the curvature in β of the summed loss, so that least squares through the points is, to second
    order, the polynomial of the least loss.
    """

    entropy: np.ndarray
    beta: np.ndarray
    weight: np.ndarray
    entropy_range: tuple[float, float]
    """Lowest and highest entropy of the rows behind the points."""


class Bins(NamedTuple):
    """Sums over the rows of each seed in each entropy bin."""

    rows: np.ndarray  # (seeds, bins)
    entropy: np.ndarray  # (seeds, bins)
    lowest: np.ndarray  # (bins,)
    highest: np.ndarray  # (bins,)
    curves: np.ndarray  # (seeds, bins, grid): of losses or errors


def pool(rows: Rows, criterion: str) -> Bins:
    """Sums the criterion's curves by seed and entropy bin; `rows` have the shape (seeds, rows)."""
    bins = np.floor((rows.entropy - THRESHOLD) / BIN_WIDTH).astype(int)
    member = bins[..., None] == np.arange(max(bins.max() + 1, 1))
    lowest, highest = (
        extreme(np.where(member, rows.entropy[..., None], fill), (0, 1))
        for extreme, fill in ((np.min, np.inf), (np.max, 0))
    )
    member = member.astype(np.float32)
    curves = np.einsum("srb,srg->sbg", member, rows.errors if criterion == "accuracy" else rows.losses)
    if criterion == "accuracy":
        curves = smooth_errors(curves)
    return Bins(member.sum(1), np.einsum("srb,sr->sb", member, rows.entropy), lowest, highest, curves)


def smooth_errors(curves: np.ndarray) -> np.ndarray:
    """Smooths errors along the grid: they are steps, and a sum of few of them has its minimum anywhere."""
    from scipy.ndimage import gaussian_filter1d

    return gaussian_filter1d(curves, ERROR_SMOOTHING, axis=-1, mode="nearest")


def points_of_bins(bins: Bins, copies: np.ndarray) -> Points:
    """A point at the minimum of the summed curve of every group of bins. `copies` says how often each seed counts.

    A bin with few rows, or with its minimum on the border of the range, joins the bin above, so that every row has
    a say; at the end it joins the one below.
    """
    rows, sums, curves = copies @ bins.rows, copies @ bins.entropy, np.tensordot(copies, bins.curves, 1)
    groups: list[list[int]] = []
    pending: list[int] = []
    for index in np.flatnonzero(rows):
        pending.append(int(index))
        best = curves[pending].sum(0).argmin()
        if rows[pending].sum() >= LEAST_ROWS and 0 < best < GRID_SIZE - 1:
            groups, pending = [*groups, pending], []
    if not groups:
        return Points(np.empty(0), np.empty(0), np.empty(0), (math.inf, 0.0))
    groups[-1] += pending
    minima = [(sums[group].sum() / rows[group].sum(), *valley(curves[group].sum(0))) for group in groups]
    entropies, log_theta, curvature = map(np.array, zip(*minima))
    used = np.concatenate(groups)
    span = (float(bins.lowest[used].min()), float(bins.highest[used].max()))
    return Points(entropies, np.exp(-log_theta), curvature * np.exp(2 * log_theta), span)


def valley(curve: np.ndarray) -> tuple[float, float]:
    """Where in log θ a curve on the grid is lowest, by a parabola through its lowest points, and its curvature."""
    best = int(np.clip(curve.argmin(), 1, GRID_SIZE - 2))
    left, middle, right = curve[best - 1 : best + 2].astype(np.float64)
    bend = max(left - 2 * middle + right, TIE)
    return LOG_THETA[best] + SPACING * float(np.clip((left - right) / (2 * bend), -1, 1)), bend / SPACING**2


def points_of_inputs(rows: Rows, copies: np.ndarray) -> Points:
    """A point for every row whose optimum lies inside the range of temperatures.

    A row with its optimum on the border says only that its loss falls on and on. It has no curvature, so it has
    no weight in least squares and is left out. `copies` says how often each seed counts.
    """
    inside = ~rows.border & (rows.curvature > 0) & (rows.entropy > THRESHOLD)
    beta = 1 / rows.theta[inside].astype(np.float64)
    curvature = (rows.curvature * copies[:, None])[inside]
    entropies = rows.entropy[inside].astype(np.float64)
    span = (float(entropies.min(initial=np.inf)), float(entropies.max(initial=0)))
    return Points(entropies, beta, curvature / beta**2, span)


def points(rows: Rows, criterion: str) -> Callable[[np.ndarray], Points]:
    """The points by a criterion, as a function of how often each seed counts; `rows` have the shape (seeds, rows).

    - `inputs`: the temperature of the least loss of each row by itself.
    - `bins`: that of the least mean loss of all rows of like entropy.
    - `accuracy`: that of the fewest errors of all rows of like entropy.

    Rows no higher than the threshold have no say, as the adaptive method gives them β = 1 by rule. Raises
    ValueError for a criterion of another name.
    """
    checks.one_of("the criterion", criterion, CRITERIA)
    if criterion == "inputs":
        return lambda copies: points_of_inputs(rows, copies)
    bins = pool(rows, criterion)
    return lambda copies: points_of_bins(bins, copies)


Curve = Callable[[np.ndarray], np.ndarray]
"""From entropies to inverse temperatures."""


def polynomial(points: Points, degree: int) -> np.ndarray:
    """Coefficients, highest power first, of the weighted least-squares polynomial of β in H.

    Raises ValueError if there are too few points for the degree.
    """
    if len(np.unique(points.entropy)) <= degree:
        raise ValueError(
            f"{len(points.entropy)} points with an optimum inside the range are too few for degree {degree}: "
            "use more sets or lengths, a lower degree, or another criterion"
        )
    # Fitted on the range mapped to [-1, 1], where powers are far from collinear.
    fitted = np.polynomial.Polynomial.fit(points.entropy, points.beta, degree, w=np.sqrt(points.weight))
    coefficients = fitted.convert().coef
    return np.pad(coefficients, (0, degree + 1 - len(coefficients)))[::-1]


def polynomial_curve(points: Points, degree: int) -> Curve:
    """The polynomial, constant outside the entropies of its points."""
    return clamped(polynomial(points, degree), points.entropy_range)


def clamped(coefficients: Sequence[float] | np.ndarray, entropy_range: Sequence[float]) -> Curve:
    """The polynomial of these coefficients, highest power first, its entropies clamped to the range."""
    low, high = entropy_range
    return lambda entropy: np.polyval(coefficients, np.clip(entropy, low, high))


def ruled(curve: Curve) -> Curve:
    """The curve by the rules of `EntropyPolynomial`: β ≥ 1, and β = 1 for entropies up to the threshold."""
    return lambda entropy: np.where(entropy > THRESHOLD, np.maximum(curve(entropy), 1), 1)


def isotonic_points(points: Points) -> Points:
    """The points moved as little as weighted least squares allows for β never to fall with H."""
    from scipy.optimize import isotonic_regression

    order = np.argsort(points.entropy)
    entropies, beta, weight = (column[order] for column in points[:3])
    rising = isotonic_regression(beta, weights=weight).x
    return Points(entropies, rising, weight, points.entropy_range)


def isotonic_curve(points: Points) -> Curve:
    """The best function of the entropy that never falls, linear between the points."""
    rising = isotonic_points(points)
    return lambda entropy: np.interp(entropy, rising.entropy, rising.beta)


def spline_curve(points: Points, knots: int = 6) -> Curve:
    """A monotone cubic through knots of the isotonic points, at equal shares of the rows' weight."""
    from scipy.interpolate import PchipInterpolator

    rising = isotonic_points(points)
    share = np.cumsum(rising.weight) / rising.weight.sum()
    at = np.unique(np.interp(np.linspace(0, 1, knots), share, rising.entropy))
    if len(at) < 2:
        return isotonic_curve(points)
    spline = PchipInterpolator(at, np.interp(at, rising.entropy, rising.beta))
    return lambda entropy: spline(np.clip(entropy, at[0], at[-1]))


def apply_curve(curve: Curve, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Loss and error of each row at the temperature that the `ruled` curve gives it, interpolated on the grid."""
    beta = ruled(curve)(rows.entropy)
    position = np.clip((-np.log(beta) - LOG_THETA[0]) / SPACING, 0, GRID_SIZE - 1)
    below = np.minimum(position.astype(int), GRID_SIZE - 2)[..., None]
    share = (position[..., None] - below)[..., 0]

    def at(curves: np.ndarray) -> np.ndarray:
        low, high = (np.take_along_axis(curves, index, -1)[..., 0] for index in (below, below + 1))
        return (1 - share) * low + share * high

    return at(rows.losses), at(rows.errors)


def r_squared(curve: Curve, points: Points) -> float | None:
    """Share of the points' weighted variance in β that the curve explains: 1 at best, below 0 if a mean does better.

    None for fewer than two points, which have no variance.
    """
    if len(points.beta) < 2:
        return None
    mean = np.average(points.beta, weights=points.weight)
    residual = np.average((points.beta - curve(points.entropy)) ** 2, weights=points.weight)
    return float(1 - residual / np.average((points.beta - mean) ** 2, weights=points.weight))
