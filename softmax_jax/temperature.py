"""The best temperature of a row of attention logits, and polynomials of the row's entropy fitted to it.

Nothing here knows a task: `search` takes the logits and values of any attention head and the user's own loss.
The steps are search (rows) → `points` (what a criterion calls best at which entropy) → `fit`.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import scipy.interpolate
import scipy.ndimage
import scipy.optimize
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.fit_file import LARGEST_BETA, check_polynomial, read_fit, signed
from softmax_jax.normalizers.maps import softmax
from softmax_jax.normalizers.rows import entropy
from softmax_jax.normalizers.scales import EntropyPolynomial
from softmax_jax.runtime.files import versions, write_json

THETA_RANGE = (1 / LARGEST_BETA, 8.0)
GRID_SIZE = 49
LOG_THETA = np.linspace(math.log(THETA_RANGE[0]), math.log(THETA_RANGE[1]), GRID_SIZE)
"""The coarse grid of log θ, from the sharpest to the flattest."""
SPACING = float(LOG_THETA[1] - LOG_THETA[0])
GOLDEN = (math.sqrt(5) - 1) / 2
GOLDEN_STEPS = math.ceil(math.log(1e-3 / (2 * SPACING)) / math.log(GOLDEN))
"""Golden-section steps from two grid cells to 1e-3 in log θ."""
TIE = 1e-6
"""Losses within this many nats of the best are as good: float32 tells them no further apart."""

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
POINTS_PER_COEFFICIENT = 3
BOOTSTRAP_DRAWS = 1000
BAND_POINTS = 61


AnyArray = Any
"""The search returns JAX arrays; the fit works on them as numpy arrays."""


class Rows(NamedTuple):
    """What the search finds about each row of logits; losses and entropies in nats, errors 0 or 1."""

    entropy: Float[AnyArray, "*rows"]
    theta: Float[AnyArray, "*rows"]
    border: Bool[AnyArray, "*rows"]
    curvature: Float[AnyArray, "*rows"]
    losses: Float[AnyArray, "*rows grid"]
    errors: Float[AnyArray, "*rows grid"]


Measure = Callable[[Float[Array, "rows size"]], Float[Array, " rows"]]


def search(
    logits: Float[Array, "rows n"],
    values: Float[Array, "rows n size"],
    loss: Measure,
    *,
    error: Measure | None = None,
    where: Bool[Array, "rows n"] | None = None,
) -> Rows:
    r"""Finds the temperature that minimises the loss of each row, and the loss at every temperature of a grid.

    $$\theta^* = \arg\min_{1/64 \le \theta \le 8} \operatorname{loss}\big(\textstyle\sum_j
      \operatorname{softmax}(z/\theta)_j\, v_j\big)$$

    `loss` takes the attended values of all rows and returns one number per row, in nats (cross-entropy, most
    often); `error`, if given, likewise 0 or 1. What else a row's loss depends on (a target, other heads) is
    closed over. A grid of log θ finds the valley and golden section its bottom, to 1e-3 in log θ. `border` says
    that an end of the range is as good as the best to 1e-6 nats, so that no optimum is known; `curvature` is the
    second derivative of the loss in log θ at the best point of the grid.

    Two rows, of which the second prefers a flat row:

    >>> z, v = jnp.array([[2.0, 1.0, 0.0]] * 2), jnp.eye(3)[None].repeat(2, 0)
    >>> wanted = jnp.array([[0.8, 0.15, 0.05], [0.4, 0.3, 0.3]])
    >>> found = search(z, v, lambda attended: -(wanted * jnp.log(attended + 1e-9)).sum(-1))
    >>> [f"{theta:.1f}" for theta in found.theta], found.border.tolist()
    (['0.7', '6.7'], [False, False])
    """
    _check_rows(logits, values, where)
    measures = (loss, loss if error is None else error)
    for name, measure in zip(("loss", "error"), measures):
        _check_measure(name, measure, values)

    def at(log_theta: Float[Array, "rows k"], *wanted: Measure) -> list[Float[Array, "rows k"]]:
        scaled = logits[:, None, :] * jnp.exp(-log_theta)[:, :, None]
        weights = softmax(scaled, where=None if where is None else where[:, None, :])
        attended = jnp.einsum("rkn,rns->rks", weights, values)
        return [jax.vmap(measure, in_axes=1, out_axes=1)(attended) for measure in wanted]

    grid = jnp.asarray(LOG_THETA, logits.dtype)
    losses, errors = at(jnp.broadcast_to(grid, (len(logits), GRID_SIZE)), *measures)
    lowest = jnp.argmin(losses, 1)
    best, least = golden_section(lambda log_theta: at(log_theta, loss)[0], grid[lowest], grid[0], grid[-1])
    ends = jnp.minimum(losses[:, 0], losses[:, -1])
    around = jnp.clip(lowest, 1, GRID_SIZE - 2)[:, None] + jnp.array([[-1, 0, 1]])
    left, middle, right = jnp.take_along_axis(losses, around, 1).T
    return Rows(
        entropy=entropy(logits, where=where)[:, 0],
        theta=jnp.exp(best),
        border=ends <= jnp.minimum(losses.min(1), least) + TIE,
        curvature=jnp.maximum((left - 2 * middle + right) / SPACING**2, 0),
        losses=losses,
        errors=errors,
    )


def _check_rows(logits: Any, values: Any, where: Any) -> None:
    """Raises unless values and mask fit the logits."""
    checks.floats("logits", logits)
    checks.floats("values", values)
    checks.mask(where, jnp.shape(logits))
    if logits.ndim != 2 or not logits.size:
        raise ValueError(f"logits have shape {logits.shape}; they must be (rows, n), at least 1 of each: add an axis")
    if values.ndim != 3 or values.shape[:2] != logits.shape:
        raise ValueError(
            f"values have shape {values.shape}; they must be (rows, n, size) with the logits' {logits.shape} in front: "
            "give one vector for each logit"
        )


def _check_measure(name: str, measure: Any, values: Any) -> None:
    """Raises unless a loss or an error gives one number for each row."""
    checks.function(name, measure, "one from attended values to one number per row")
    like = jax.ShapeDtypeStruct((values.shape[0], values.shape[2]), jnp.result_type(values))
    shape = jnp.shape(jax.eval_shape(measure, like))
    if shape != like.shape[:1]:
        raise ValueError(
            f"{name} gives shape {shape} for {like.shape[0]} rows; it must be one number per row: drop mean()"
        )


def golden_section(
    function: Callable[[Float[Array, "rows 2"]], Float[Array, "rows 2"]],
    middle: Float[Array, " rows"],
    lowest: Float[Array, ""],
    highest: Float[Array, ""],
) -> tuple[Float[Array, " rows"], Float[Array, " rows"]]:
    """Where each row has its minimum, within one grid cell of `middle` on either side, and how low it is there.

    Both inner points are evaluated anew in every step: that is cheap beside the grid, and compiles once.
    """

    def step(_: Any, state: tuple[Float[Array, " rows"], ...]) -> Any:
        low, high, _ = state
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        at_left, at_right = function(jnp.stack([left, right], 1)).T
        falls = at_left < at_right
        return jnp.where(falls, low, left), jnp.where(falls, right, high), jnp.minimum(at_left, at_right)

    bracket = jnp.maximum(middle - SPACING, lowest), jnp.minimum(middle + SPACING, highest)
    low, high, least = jax.lax.fori_loop(0, GOLDEN_STEPS, step, (*bracket, jnp.full_like(middle, jnp.inf)))
    return (low + high) / 2, least


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
    return scipy.ndimage.gaussian_filter1d(curves, ERROR_SMOOTHING, axis=-1, mode="nearest")


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
    found = [(sums[group].sum() / rows[group].sum(), *valley(curves[group].sum(0))) for group in groups]
    entropies, log_theta, curvature = map(np.array, zip(*found))
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
    checks.whole("degree", degree, 0, 4, 20)
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
    order = np.argsort(points.entropy)
    entropies, beta, weight = (column[order] for column in points[:3])
    rising = scipy.optimize.isotonic_regression(beta, weights=weight).x
    return Points(entropies, rising, weight, points.entropy_range)


def isotonic_curve(points: Points) -> Curve:
    """The best function of the entropy that never falls, linear between the points."""
    rising = isotonic_points(points)
    return lambda entropy: np.interp(entropy, rising.entropy, rising.beta)


def spline_curve(points: Points, knots: int = 6) -> Curve:
    """A monotone cubic through knots of the isotonic points, at equal shares of the rows' weight."""
    rising = isotonic_points(points)
    share = np.cumsum(rising.weight) / rising.weight.sum()
    at = np.unique(np.interp(np.linspace(0, 1, knots), share, rising.entropy))
    if len(at) < 2:
        return isotonic_curve(points)
    spline = scipy.interpolate.PchipInterpolator(at, np.interp(at, rising.entropy, rising.beta))
    return lambda entropy: spline(np.clip(entropy, at[0], at[-1]))


def apply_curve(curve: Curve, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Loss and error of each row at the temperature that the `ruled` curve gives it, interpolated on the grid."""
    beta = ruled(curve)(rows.entropy)
    position = np.clip((-np.log(beta) - LOG_THETA[0]) / SPACING, 0, GRID_SIZE - 1)
    below = np.minimum(position.astype(int), GRID_SIZE - 2)[..., None]
    share = (position[..., None] - below)[..., 0]

    def at(curves: AnyArray) -> np.ndarray:
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


@dataclasses.dataclass(frozen=True)
class TemperatureFit:
    """A polynomial of β in H with all that says how far it may be trusted; numbers by length are shares in percent."""

    coefficients: list[float]
    """Highest power first."""
    entropy_range: list[float]
    """Lowest and highest entropy of the rows behind the fit, in nats; H is clamped to it."""
    beta_at_ends: list[float]
    """β at both ends of the range, by which a reader finds coefficients in the wrong order."""
    criterion: str
    lengths: list[int]
    seeds: list[int]
    intervals: list[list[float]] | None
    """95 % interval of each coefficient, by bootstrap over seeds; None for a single seed."""
    band: dict[str, list[float]] | None
    """95 % band of the polynomial itself: `low` and `high` at each `entropy`."""
    r_squared: float | None
    """Of points from held-out sets; None if those are fewer than two."""
    coverage: dict[str, float]
    """Rows, by length, within the range or no higher than the threshold, where β = 1 by rule."""
    border: dict[str, float]
    """Rows, by length, whose own best temperature is on the border of the search."""
    versions: dict[str, str]
    checkpoint_sha256: str

    @property
    def scale(self) -> EntropyPolynomial:
        """The scale that the fit stands for."""
        return EntropyPolynomial(tuple(self.coefficients), entropy_range=tuple(self.entropy_range))

    def curve(self, entropy: np.ndarray) -> np.ndarray:
        """The polynomial, its entropies clamped to the range."""
        return clamped(self.coefficients, self.entropy_range)(entropy)

    def save(self, path: Path) -> None:
        """Writes the fit as JSON, whole or not at all. Raises ValueError if no reader would accept it."""
        content = dataclasses.asdict(self)
        check_polynomial(f"the fit by {self.criterion!r}", content)
        write_json(path, signed(content))

    @classmethod
    def load(cls, path: Path) -> "TemperatureFit":
        """The fit that `save` wrote. Raises ValueError for a file that is missing or no such fit."""
        try:
            return cls(**read_fit(path))
        except TypeError as error:
            raise ValueError(f"{path} is no whole temperature fit: {error}; run fit_temperature.py anew") from None


def join(rows: Iterable[Rows]) -> Rows:
    """Rows of several lengths as one, each of shape (seeds, rows)."""
    return Rows(*(np.concatenate(columns, 1) for columns in zip(*rows)))


def fit(
    rows: Mapping[int, Rows],
    held_out: Mapping[int, Rows],
    *,
    seeds: Sequence[int],
    criterion: str = "bins",
    degree: int = 4,
    checkpoint_sha256: str = "",
) -> TemperatureFit:
    """Fits a polynomial to rows of shape (seeds, rows) by length, and measures it on held-out rows.

    Weighted least squares through the points of the criterion, for which see `points`. The degree is lowered until
    there are `POINTS_PER_COEFFICIENT` points for each coefficient, because rows of short sets span so few entropies
    that a quartic through their points would be noise. Raises ValueError for an unknown criterion and for too few
    points.
    """
    if not rows:
        raise ValueError("there are no rows to fit to: give lengths within the limit")
    if not held_out:
        raise ValueError("held_out is empty: it must have rows of at least one length to measure the fit on")
    checks.whole("degree", degree, 0, 4, 20)
    for some in (*rows.values(), *held_out.values()):
        if len(some.entropy) != len(seeds):
            raise ValueError(
                f"seeds are {len(seeds)} and the rows of {len(some.entropy)}; they must be as many: rows have the "
                "shape (seeds, rows)"
            )
    by_copies = points(join(rows.values()), criterion)
    found = by_copies(np.ones(len(seeds)))
    degree = min(degree, max(len(found.beta) // POINTS_PER_COEFFICIENT - 1, 0))
    coefficients = polynomial(found, degree)
    low, high = found.entropy_range
    curve = clamped(coefficients, found.entropy_range)
    covered = {
        n: (some.entropy <= THRESHOLD) | (low <= some.entropy) & (some.entropy <= high) for n, some in rows.items()
    }
    intervals, band = bootstrap(by_copies, degree, len(seeds), np.linspace(low, high, BAND_POINTS))
    return TemperatureFit(
        coefficients=coefficients.tolist(),
        entropy_range=[low, high],
        beta_at_ends=curve(np.array([low, high])).tolist(),
        criterion=criterion,
        lengths=list(rows),
        seeds=list(seeds),
        intervals=intervals,
        band=band,
        r_squared=r_squared(curve, points(join(held_out.values()), criterion)(np.ones(len(seeds)))),
        coverage={str(n): 100 * float(some.mean()) for n, some in covered.items()},
        border={str(n): 100 * float(some.border.mean()) for n, some in rows.items()},
        versions=versions(),
        checkpoint_sha256=checkpoint_sha256,
    )


def bootstrap(
    by_copies: Callable[[np.ndarray], Points], degree: int, seeds: int, entropies: np.ndarray
) -> tuple[list[list[float]] | None, dict[str, list[float]] | None]:
    """95 % intervals of the coefficients and band of the polynomial over seeds drawn with replacement; None for one."""
    if seeds < 2:
        return None, None
    draws = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), size=BOOTSTRAP_DRAWS)
    fits = np.array([polynomial(by_copies(copies.astype(float)), degree) for copies in draws])
    low, high = np.quantile([np.polyval(fit, entropies) for fit in fits], (0.025, 0.975), axis=0)
    band = {"entropy": entropies.tolist(), "low": low.tolist(), "high": high.tolist()}
    return np.quantile(fits, (0.025, 0.975), axis=0).T.tolist(), band


class Candidate(NamedTuple):
    """A form of the curve, judged on seeds that it was not fitted to: R² of β, loss in nats, accuracy in percent."""

    name: str
    r_squared: float | None
    loss: float
    accuracy: float


CANDIDATES: Mapping[str, Callable[[Points], Curve]] = {
    f"degree {degree}": functools.partial(polynomial_curve, degree=degree) for degree in range(1, 7)
} | {"monotone spline": spline_curve}


def cross_validate(rows: Rows, criterion: str, folds: int = 5) -> list[Candidate]:
    """Judges every form of the curve on the seeds left out of its fit, fold by fold, over rows above the threshold.

    Forms with more coefficients than a fold has points are left out; a single seed leaves none out, so none is judged.
    """
    checks.whole("folds", folds, 2, 5)
    seeds = len(rows.entropy)
    parts = np.array_split(np.arange(seeds), min(folds, seeds)) if seeds > 1 else []
    splits = [split(rows, part, criterion) for part in parts]
    judged = []
    for name, form in CANDIDATES.items() if splits else ():
        with contextlib.suppress(ValueError):
            scores, losses, accuracies = zip(*(judge(form, some) for some in splits))
            known = [score for score in scores if score is not None]
            mean = float(np.mean(known)) if known else None
            judged.append(Candidate(name, mean, float(np.mean(losses)), float(np.mean(accuracies))))
    return judged


class Split(NamedTuple):
    """One fold: the points to fit to, and the rows and points of the seeds left out."""

    inside: Points
    outside: Rows
    truth: Points


def split(rows: Rows, left_out: np.ndarray, criterion: str) -> Split:
    """Leaves the seeds of these positions out."""
    outside = Rows(*(column[left_out] for column in rows))
    inside = Rows(*(np.delete(column, left_out, 0) for column in rows))
    inside_points, truth = (points(some, criterion)(np.ones(len(some.entropy))) for some in (inside, outside))
    return Split(inside_points, outside, truth)


def judge(form: Callable[[Points], Curve], fold: Split) -> tuple[float | None, float, float]:
    """R², loss and accuracy on the seeds left out of the curve fitted to all the others."""
    curve = form(fold.inside)
    flat = fold.outside.entropy > THRESHOLD
    losses, errors = (values[flat] for values in apply_curve(curve, fold.outside))
    return r_squared(curve, fold.truth), float(losses.mean()), 100 * float(1 - errors.mean())
