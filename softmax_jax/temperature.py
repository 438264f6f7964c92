"""The best temperature of rows of attention logits, the polynomial of β in a row's entropy fitted to it, and its file.

Nothing here knows a task: `search` takes the logits and values of any attention head and the user's own loss.

- `search(logits, values, loss)`: the best temperature of each row, and its loss at every temperature of a grid
- `points(rows, criterion)`: the inverse temperatures that a criterion calls best, by entropy
- `fit(rows, held_out, seeds=...)`: the polynomial through these points, with all that says how far to trust it
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # whose parts load when they are first used, as some take seconds
from jaxtyping import Array, Bool, Float, Int

from softmax_jax.files import versions, write_json
from softmax_jax.normalizers import checks
from softmax_jax.normalizers.fit_file import LARGEST_BETA, are_finite_numbers, check_polynomial, read_fit, signed
from softmax_jax.normalizers.maps import softmax
from softmax_jax.normalizers.row import entropy
from softmax_jax.normalizers.scales import EntropyPolynomial
from softmax_jax.refusal import Refusal

THETA_RANGE = (1 / LARGEST_BETA, 8.0)
GRID_SIZE = 49
LOG_THETA = np.linspace(math.log(THETA_RANGE[0]), math.log(THETA_RANGE[1]), GRID_SIZE)
"""The grid of log θ, from the sharpest to the flattest."""
SPACING = float(LOG_THETA[1] - LOG_THETA[0])
# 48 cells of log 8 - log(1/64) = 6.24 are 0.13 wide, and those of the second grid h = 0.016. A parabola through three
# points of that misses the bottom by h² f / 6, with f = d³L / d²L: 4e-5 at f = 1.
FINE = np.linspace(-SPACING, SPACING, 17)
"""The second grid, around the best point of the first."""
TIE = 1e-6
"""Losses within this many nats of the best are as good: float32 tells them no further apart."""
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
FEW_SEEDS = 8
"""Below this number of seeds the quantiles of a bootstrap are too narrow; a t interval takes their place."""
HALVINGS = 30
"""Of the range of log β: 6.24 / 2^30 is 6e-9, finer than float32 tells apart."""
BAND_POINTS = 61
Criterion = Literal["inputs", "bins", "accuracy", "target"]
CRITERIA: tuple[Criterion, ...] = get_args(Criterion)

AnyArray = Any
"""The search returns arrays of JAX; the fit works on arrays of numpy."""


class Rows(NamedTuple):
    """Results of the search for each row of logits; losses and entropies in nats, errors from 0 to 1."""

    entropy: Float[AnyArray, "*rows"]
    theta: Float[AnyArray, "*rows"]
    border: Bool[AnyArray, "*rows"]
    curvature: Float[AnyArray, "*rows"]
    losses: Float[AnyArray, "*rows grid"]
    errors: Float[AnyArray, "*rows grid"]
    target: Float[AnyArray, "*rows"]
    """β of the largest weight of the true item, by `target_beta`; NaN in a row without one."""


Measure = Callable[[Float[Array, "rows size"]], Float[Array, " rows"]]
AtTemperatures = Callable[[Float[Array, "rows k"]], tuple[Float[Array, "rows k"], Float[Array, "rows k"]]]
"""From log θ to the losses and the errors there, k temperatures for each row."""


def search(
    logits: Float[Array, "rows n"],
    values: Float[Array, "rows n size"],
    loss: Measure,
    *,
    error: Measure | None = None,
    where: Bool[Array, "rows n"] | None = None,
    target: Int[Array, " rows"] | None = None,
    pool: Callable[[Array, Array], Array] = functools.partial(jnp.einsum, "rkn,rns->rks"),  # noqa: B008
) -> Rows:
    r"""Finds the temperature that minimises the loss of each row, and the loss at every temperature of a grid.

    $$\theta^* = \arg\min_{1/64 \le \theta \le 8} \operatorname{loss}\big(\textstyle\sum_j
      \operatorname{softmax}(z/\theta)_j\, v_j\big)$$

    Arguments:
        logits, values: Rows of n logits, and a vector for each logit.
        loss: From the attended values of all rows to one number per row, in nats, most often a cross-entropy. It closes
            over what else the loss of a row depends on: an answer, other heads.
        error: The same for errors, 0 or 1. None takes the loss.
        where: True at the visible logits.
        target: The place of the true item in each row, for the criterion of that name.
        pool: Sums the values under weights of shape (rows, temperatures, n), for a model with a precision of its own.

    Returns:
        The `Rows` that `search_at` returns and describes.

    Raises:
        ValueError: For values that do not fit the logits, and for a loss or error that is not one number per row.

    Example:
        Two rows, of which the second prefers a flat row.

        >>> z, v = jnp.array([[2.0, 1.0, 0.0]] * 2), jnp.eye(3)[None].repeat(2, 0)
        >>> targets = jnp.array([[0.8, 0.15, 0.05], [0.4, 0.3, 0.3]])
        >>> rows = search(z, v, lambda attended: -(targets * jnp.log(attended + 1e-9)).sum(-1))
        >>> [f"{theta:.0f}" for theta in rows.theta], rows.border.tolist()
        (['1', '7'], [False, False])
    """
    if values.ndim != 3 or values.shape[:2] != logits.shape:
        raise Refusal(
            f"values have shape {values.shape}; they must be (rows, n, size) with the logits' {logits.shape} in front: "
            "give one vector for each logit"
        )
    measures = (loss, loss if error is None else error)
    for name, measure in zip(("loss", "error"), measures):
        _check_measure(name, measure, values)

    def at(log_theta: Float[Array, "rows k"]) -> Any:
        scaled = logits[:, None, :] * jnp.exp(-log_theta)[:, :, None]
        attended = pool(softmax(scaled, where=None if where is None else where[:, None, :]), values)
        return tuple(jax.vmap(measure, in_axes=1, out_axes=1)(attended) for measure in measures)

    best = None if target is None else target_beta(logits, target, where=where)
    return search_at(at, entropy(logits, where=where)[:, 0], best)


def _check_measure(name: str, measure: Measure, values: Float[Array, "rows n size"]) -> None:
    """Raises ValueError unless a loss or an error gives one number for each row."""
    like = jax.ShapeDtypeStruct((values.shape[0], values.shape[2]), jnp.result_type(values))
    shape = jnp.shape(jax.eval_shape(measure, like))
    if shape != like.shape[:1]:
        raise Refusal(
            f"{name} gives shape {shape} for {like.shape[0]} rows; it must be one number per row: drop mean()"
        )


def target_beta(
    logits: Float[Array, "rows n"], target: Int[Array, " rows"], *, where: Bool[Array, "rows n"] | None = None
) -> Float[Array, " rows"]:
    r"""Finds the inverse temperature at which the true item of each row has the largest weight.

    $$\frac{d}{d\beta} \log \operatorname{softmax}(\beta z)_t = z_t - \mathbb{E}_\beta[z] = 0, \qquad
      \mathbb{E}_\beta[z] = \textstyle\sum_i \operatorname{softmax}(\beta z)_i\, z_i$$

    `target` is the place of the true item. NaN where its logit is the largest, as its weight only grows with β; where
    it is not above the mean, as its weight only falls; and for a maximum outside 1/8 ≤ β ≤ 64.

    The true item is the second of three, then the first, whose weight only grows:

    >>> betas = target_beta(jnp.array([[1.0, 0.6, 0.0], [1.0, 0.6, 0.0]]), jnp.array([1, 0]))
    >>> [f"{beta:.3f}" for beta in betas]
    ['0.405', 'nan']
    """
    visible = jnp.ones(logits.shape, bool) if where is None else where
    z = jnp.where(visible, logits, 0).astype(jnp.float32)
    true = jnp.take_along_axis(z, target[:, None], 1)
    # The mean under the weights rises with β, from the mean of the logits to the largest of them, as its derivative is
    # their variance: d/dβ Σ p z = Σ p (z - E[z]) z. So it meets z_t once if z_t lies between the two, and halving finds
    # it. Of z - z_t it is the β where the mean is 0: z = (1, 0.6, 0) and t = 2 give (0.4, 0, -0.6), and at β = 0.405
    # weights of 1.176, 1 and 0.784 to one another, for which 0.4 · 1.176 = 0.6 · 0.784.
    # Of the true item itself exactly 0: a compiler that computes z and z_t in two ways would leave a rest.
    others = visible & (jnp.arange(z.shape[1], dtype=target.dtype)[None, :] != target[:, None])
    z = jnp.where(others, z - true, 0)

    def mean(log_beta: Float[Array, "rows 1"]) -> Float[Array, " rows"]:
        return jnp.sum(softmax(jnp.exp(log_beta) * z, where=visible) * z, 1)

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        below = (mean(middle) < 0)[:, None]
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    flattest, sharpest = (jnp.full_like(true, -log_theta) for log_theta in (LOG_THETA[-1], LOG_THETA[0]))
    inside = (mean(flattest) < 0) & (mean(sharpest) > 0)
    low, high = jax.lax.fori_loop(0, HALVINGS, halve, (flattest, sharpest))
    return jnp.where(inside, jnp.exp((low + high)[:, 0] / 2), jnp.nan)


def search_at(at: AtTemperatures, entropy: Float[Array, " rows"], target: Float[Array, " rows"] | None = None) -> Rows:
    """Finds the temperature of the least loss for rows of these entropies, from their losses at given temperatures.

    `target` is what `target_beta` gives for them, where they have a true item. A grid of log θ finds the valley, a
    finer one around its best point the bottom, and a parabola through the lowest three points of that the minimum, to
    1e-3 in log θ. `border` is True where an end of the range is as good as the best to 1e-6 nats, so that no optimum is
    known. `curvature` is the second derivative of the loss in log θ at the best point of the first grid.
    """
    grid, fine = (jnp.asarray(numbers, entropy.dtype) for numbers in (LOG_THETA, FINE))
    losses, errors = at(jnp.broadcast_to(grid, (len(entropy), GRID_SIZE)))
    around = jnp.clip(jnp.argmin(losses, 1), 1, GRID_SIZE - 2)
    near = grid[around][:, None] + fine[None, :]
    at_near, _ = at(near)
    lowest = jnp.clip(jnp.argmin(at_near, 1), 1, len(FINE) - 2)
    (left, middle, right), (before, best, after) = _neighbours(at_near, lowest), _neighbours(losses, around)
    # The parabola through (-h, l), (0, m) and (h, r) is m + (r - l) x / 2h + (l - 2m + r) x² / 2h². Its bottom lies at
    # h (l - r) / 2 (l - 2m + r), and its second derivative is (l - 2m + r) / h². (x - 1/2)² is 9/4, 1/4 and 1/4 at
    # -1, 0 and 1: a bend of 2, and a bottom at 2 / (2 · 2) = 1/2.
    bend = jnp.maximum(left - 2 * middle + right, jnp.finfo(entropy.dtype).tiny)
    step = (fine[1] - fine[0]) * jnp.clip((left - right) / (2 * bend), -1, 1)
    ends = jnp.minimum(losses[:, 0], losses[:, -1])
    return Rows(
        entropy=entropy,
        theta=jnp.exp(jnp.take_along_axis(near, lowest[:, None], 1)[:, 0] + step),
        border=ends <= jnp.minimum(losses.min(1), at_near.min(1)) + TIE,
        curvature=jnp.maximum((before - 2 * best + after) / SPACING**2, 0),
        losses=losses,
        errors=errors,
        target=jnp.full_like(entropy, jnp.nan) if target is None else target,
    )


def _neighbours(curves: Float[Array, "rows k"], place: Array) -> Float[Array, "3 rows"]:
    """Returns each curve at the point before a place, at the place, and at the point after it."""
    return jnp.take_along_axis(curves, place[:, None] + jnp.array([[-1, 0, 1]]), 1).T


def join(rows: Iterable[Rows]) -> Rows:
    """Returns the rows of several lengths as one, each of shape (seeds, rows)."""
    return Rows(*(np.concatenate(columns, 1) for columns in zip(*rows)))


class Points(NamedTuple):
    """The best inverse temperatures by a criterion, at entropies in nats, with a weight for each.

    The weight is the curvature in β of the summed loss. Near its best β* a loss is L* + w (β - β*)² / 2, so weighted
    least squares through the points is, to second order, the polynomial of the least loss.
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


def points(rows: Rows, criterion: str) -> Callable[[np.ndarray], Points]:
    """Returns the points by a criterion, as a function of how often each seed counts; `rows` are (seeds, rows).

    - `inputs`: the temperature of the least loss of each row by itself.
    - `bins`: that of the least mean loss of all rows of like entropy.
    - `accuracy`: that of the fewest errors of all rows of like entropy.
    - `target`: that of the largest weight of the true item of each row in which another has more. It is said to be the
      paper's.

    On rows whose answers are drawn from softmax(β z) for a β of 1.6 to 2.7,
    `bins` gives 0.98 to 1.0 of it from 1 to 2.5 nats. The others are biased: `inputs` gives 0.37 to 0.39, because
    rows that want to be sharper without end have no say; `accuracy` 0.3 to 0.8, because a flatter row often has the
    same answer; `target` 0 to 1.04, because it hears only rows whose answer is not the likeliest
    (`tests/test_criteria.py`). Rows no higher than the threshold have no say, as the adaptive method gives them β =
    1 by rule. Raises ValueError for a criterion of another name.
    """
    checks.one_of("the criterion", criterion, CRITERIA)
    if criterion in ("inputs", "target"):
        return functools.partial(points_of_rows, rows, criterion)
    return functools.partial(points_of_bins, pool(rows, criterion))


def have_a_say(rows: Rows, criterion: str) -> Bool[np.ndarray, "*rows"]:
    """Returns True for the rows that count by a criterion.

    By `inputs` those whose optimum lies inside the range of temperatures: the loss of another row falls on and on, has
    no curvature, and so no weight in least squares. By `target` those with a β of the largest weight of their true
    item.
    """
    above = rows.entropy > THRESHOLD
    if criterion == "inputs":
        return above & ~rows.border & (rows.curvature > 0)
    return above & np.isfinite(rows.target) if criterion == "target" else above


def points_of_rows(rows: Rows, criterion: str, copies: np.ndarray) -> Points:
    """Returns a point for every row that counts; each seed counts `copies` times."""
    inside = have_a_say(rows, criterion)
    entropies = rows.entropy[inside].astype(np.float64)
    weight = np.broadcast_to(copies[:, None], inside.shape)[inside]
    if criterion == "target":
        beta = rows.target[inside].astype(np.float64)
    else:
        # With β = e^(-x) at x = log θ, dx = -dβ / β. At the minimum dL/dx is 0, so d²L/dβ² = (d²L/dx²) / β²: a
        # curvature of 2 in log θ is 1/2 in β at β = 2.
        beta = 1 / rows.theta[inside].astype(np.float64)
        weight = weight * rows.curvature[inside] / beta**2
    return Points(entropies, beta, weight, (float(entropies.min(initial=np.inf)), float(entropies.max(initial=0))))


def pool(rows: Rows, criterion: str) -> Bins:
    """Sums the criterion's curves by seed and entropy bin; `rows` have the shape (seeds, rows)."""
    bins = np.floor((rows.entropy - THRESHOLD) / BIN_WIDTH).astype(int)
    member = bins[..., None] == np.arange(max(bins.max() + 1, 1))
    lowest = np.where(member, rows.entropy[..., None], np.inf).min((0, 1))
    highest = np.where(member, rows.entropy[..., None], 0).max((0, 1))
    member = member.astype(np.float32)
    curves = np.einsum("srb,srg->sbg", member, rows.errors if criterion == "accuracy" else rows.losses)
    curves = smooth_errors(curves) if criterion == "accuracy" else curves
    return Bins(member.sum(1), np.einsum("srb,sr->sb", member, rows.entropy), lowest, highest, curves)


def smooth_errors(curves: np.ndarray) -> np.ndarray:
    """Returns errors smoothed along the grid: they are steps, and a sum of few of them has its minimum anywhere."""
    return scipy.ndimage.gaussian_filter1d(curves, ERROR_SMOOTHING, axis=-1, mode="nearest")


def points_of_bins(bins: Bins, copies: np.ndarray) -> Points:
    """Returns a point at the minimum of the summed curve of every group of bins; each seed counts `copies` times.

    A bin with few rows, or with its minimum on the border of the range, joins the bin above, so that every row counts;
    at the end it joins the one below.
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
    # The weight is the curvature over β², as in `points_of_rows`, and 1/β² = θ².
    return Points(entropies, np.exp(-log_theta), curvature * np.exp(2 * log_theta), span)


def valley(curve: np.ndarray) -> tuple[float, float]:
    """Returns the log θ at which a curve on the grid is lowest, by the parabola of `search_at`, and its curvature."""
    best = int(np.clip(curve.argmin(), 1, GRID_SIZE - 2))
    left, middle, right = curve[best - 1 : best + 2].astype(np.float64)
    bend = max(left - 2 * middle + right, TIE)
    return LOG_THETA[best] + SPACING * float(np.clip((left - right) / (2 * bend), -1, 1)), bend / SPACING**2


Curve = Callable[[np.ndarray], np.ndarray]
"""From entropies to inverse temperatures."""


def polynomial(points: Points, degree: int) -> np.ndarray:
    """Returns the coefficients, highest power first, of the weighted least-squares polynomial of β in H.

    Raises ValueError if there are too few points for the degree.
    """
    if not len(points.entropy):
        raise Refusal(
            f"no rows have a best temperature between {THETA_RANGE[0]:.3g} and {THETA_RANGE[1]:g} (by bins: no "
            f"{LEAST_ROWS} rows above {THRESHOLD:.2g} nats): use more sets or lengths, or another criterion"
        )
    if len(np.unique(points.entropy)) <= degree:
        raise Refusal(
            f"{len(points.entropy)} points with an optimum inside the range are too few for degree {degree}: "
            "use more sets or lengths, a lower degree, or another criterion"
        )
    # numpy minimises Σ (w (β - p(H)))² and Points holds the w² of that. It fits on the range mapped to [-1, 1], where
    # powers are far from collinear: from 1 to 2 nats H³ and H⁴ correlate by 0.997, on [-1, 1] x³ and x⁴ by 0.
    polynomial = np.polynomial.Polynomial.fit(points.entropy, points.beta, degree, w=np.sqrt(points.weight))
    coefficients = polynomial.convert().coef
    return np.pad(coefficients, (0, degree + 1 - len(coefficients)))[::-1]


def clamped(coefficients: Sequence[float] | np.ndarray, entropy_range: Sequence[float]) -> Curve:
    """Returns the polynomial of these coefficients, highest power first, its entropies clamped to the range."""
    low, high = entropy_range
    return lambda entropy: np.polyval(coefficients, np.clip(entropy, low, high))


def ruled(curve: Curve) -> Curve:
    """Returns the curve by the rules of `EntropyPolynomial`: β ≥ 1, and β = 1 for entropies up to the threshold."""
    return lambda entropy: np.where(entropy > THRESHOLD, np.maximum(curve(entropy), 1), 1)


def r_squared(curve: Curve, points: Points) -> float | None:
    """Returns the share of the points' weighted variance in β that the curve explains.

    1 is best; below 0 a constant does better. None for points that do not vary: fewer than two, or of the same β.
    """
    if len(points.beta) < 2 or np.ptp(points.beta) == 0:
        return None
    mean = np.average(points.beta, weights=points.weight)
    residual = np.average((points.beta - curve(points.entropy)) ** 2, weights=points.weight)
    return float(1 - residual / np.average((points.beta - mean) ** 2, weights=points.weight))


@dataclasses.dataclass(frozen=True)
class TemperatureFit:
    """A polynomial of β in H, and how far it may be trusted; numbers by length are shares in percent."""

    coefficients: list[float]
    """Highest power first."""
    entropy_range: list[float]
    """Lowest and highest entropy of the rows behind the fit, in nats; H is clamped to it."""
    beta_at_ends: list[float]
    """β at both ends of the range, which shows a reader coefficients in the wrong order."""
    criterion: str
    lengths: list[int]
    seeds: list[int]
    intervals: list[list[float]] | None
    """95 % interval of each coefficient, by bootstrap over seeds; None for a single seed."""
    band: dict[str, list[float]] | None
    """95 % band of the polynomial itself: `low` and `high` at each `entropy`."""
    r_squared: float | None
    """Of points from held-out sets; None where these do not vary."""
    coverage: dict[str, float]
    """Held-out rows, by length, within the range or no higher than the threshold, where β = 1 by rule."""
    border: dict[str, float]
    """Rows, by length, whose own best temperature is on the border of the search."""
    versions: dict[str, str]
    checkpoint_sha256: str
    used: dict[str, float] = dataclasses.field(default_factory=dict)
    """Rows, by length, that count by the criterion; empty in files of earlier versions."""

    @property
    def scale(self) -> EntropyPolynomial:
        """The scale with this polynomial."""
        return EntropyPolynomial(tuple(self.coefficients), entropy_range=tuple(self.entropy_range))

    def curve(self, entropy: np.ndarray) -> np.ndarray:
        """Returns β by the polynomial, the entropies clamped to its range."""
        return clamped(self.coefficients, self.entropy_range)(entropy)

    def save(self, path: Path | str) -> None:
        """Writes the fit as JSON, whole or not at all. Raises ValueError for one that no reader would accept."""
        content = dataclasses.asdict(self)
        check_polynomial(f"the fit by {self.criterion!r}", content)
        write_json(Path(path), signed(content))

    @classmethod
    def load(cls, path: Path | str) -> "TemperatureFit":
        """Returns the fit that `save` wrote. Raises ValueError for a file that is missing or no such fit."""
        content = read_fit(Path(path))
        try:
            fit = cls(**content)
            band = {**(fit.band or {})}
        except TypeError as error:
            raise Refusal(f"{path} is no whole temperature fit: {error}; run fit_temperature.py anew") from None
        lists = {"lengths": fit.lengths, "seeds": fit.seeds, "beta_at_ends": fit.beta_at_ends, **band}
        wrong = [name for name, values in lists.items() if not are_finite_numbers(values)]
        if wrong or len({len(values) for values in band.values()}) > 1 or not band.keys() <= {"entropy", "low", "high"}:
            name = wrong[0] if wrong else "band"
            raise Refusal(f"{path} is no whole temperature fit: {name} must be lists of numbers, of equal length")
        return fit


class Polynomial(NamedTuple):
    """A polynomial of β in H, and the points that it was fitted to."""

    coefficients: np.ndarray
    entropy_range: tuple[float, float]
    by_copies: Callable[[np.ndarray], Points]
    """From the number of copies of each seed to the points."""

    @property
    def scale(self) -> EntropyPolynomial:
        """The scale with this polynomial."""
        return EntropyPolynomial(tuple(self.coefficients.tolist()), entropy_range=self.entropy_range)

    @property
    def curve(self) -> Curve:
        """The polynomial, constant outside the range."""
        return clamped(self.coefficients, self.entropy_range)


def fit_polynomial(rows: Mapping[int, Rows], criterion: str = "bins", degree: int = 4) -> Polynomial:
    """Fits by weighted least squares through the points of a criterion; rows have the shape (seeds, rows), by length.

    The degree is lowered until there are `POINTS_PER_COEFFICIENT` points for each coefficient, as rows of short sets
    span so few entropies that a quartic through their points would be noise. Raises ValueError for an unknown
    criterion, for no rows and for too few points.
    """
    if not rows:
        raise Refusal("there are no rows to fit to: give lengths within the limit")
    joined = join(rows.values())
    by_copies = points(joined, criterion)
    best = by_copies(np.ones(len(joined.entropy)))
    degree = min(degree, max(len(best.beta) // POINTS_PER_COEFFICIENT - 1, 0))
    return Polynomial(polynomial(best, degree), best.entropy_range, by_copies)


def fit(
    rows: Mapping[int, Rows],
    held_out: Mapping[int, Rows],
    *,
    seeds: Sequence[int],
    criterion: str = "bins",
    degree: int = 4,
    checkpoint_sha256: str = "",
) -> TemperatureFit:
    """Fits a polynomial to rows as `fit_polynomial` does, and measures it on other rows.

    Arguments:
        rows, held_out: By length, the `Rows` of the search to fit to and to measure on, of shape (seeds, rows).
        seeds: The numbers of the seeds.
        criterion: One of `CRITERIA`, which `points` describes.
        degree: The highest that the polynomial may have.
        checkpoint_sha256: The digest of the parameters that gave the rows, to be kept with the fit.

    Returns:
        A `TemperatureFit`, whose `save` writes it and whose `scale` is that of a normalizer.

    Raises:
        ValueError: As `fit_polynomial` does, for rows of other seeds, and for a polynomial with |β| above 64.

    Example:
        `examples/refit.py` fits one to a model of its own.
    """
    if not (rows and held_out):
        raise Refusal("there are no rows to fit to, or none to measure the fit on: give lengths within the limit")
    counts = {len(columns.entropy) for columns in (*rows.values(), *held_out.values())}
    if counts != {len(seeds)}:
        raise Refusal(f"rows are of {sorted(counts)} seeds and not of {len(seeds)}: give the shape (seeds, rows)")
    polynomial = fit_polynomial(rows, criterion, degree)
    coefficients, (low, high), by_copies = polynomial
    check_steepness(polynomial, criterion)

    def covered(entropy: np.ndarray) -> np.ndarray:
        return (entropy <= THRESHOLD) | (low <= entropy) & (entropy <= high)

    intervals, band = bootstrap(by_copies, len(coefficients) - 1, len(seeds), np.linspace(low, high, BAND_POINTS))
    return TemperatureFit(
        coefficients=coefficients.tolist(),
        entropy_range=[low, high],
        beta_at_ends=polynomial.curve(np.array([low, high])).tolist(),
        criterion=criterion,
        lengths=list(rows),
        seeds=list(seeds),
        intervals=intervals,
        band=band,
        r_squared=r_squared(polynomial.curve, points(join(held_out.values()), criterion)(np.ones(len(seeds)))),
        coverage={str(n): 100 * float(covered(columns.entropy).mean()) for n, columns in held_out.items()},
        border={str(n): 100 * float(columns.border.mean()) for n, columns in rows.items()},
        versions=versions(),
        checkpoint_sha256=checkpoint_sha256,
        used={str(n): 100 * float(have_a_say(columns, criterion).mean()) for n, columns in rows.items()},
    )


def check_steepness(polynomial: Polynomial, criterion: str) -> None:
    """Raises Refusal for a polynomial that no reader would accept, as too few rows give it."""
    entropies = np.linspace(*polynomial.entropy_range, 1001)
    betas = polynomial.curve(entropies)
    worst = int(np.abs(betas).argmax())
    if not abs(betas[worst]) <= LARGEST_BETA:
        raise Refusal(
            f"the fit by the criterion {criterion} reaches β = {betas[worst]:.4g} at H = {entropies[worst]:.3g} nats, "
            f"and |β| is at most {LARGEST_BETA:g}: so few rows give no curve of degree "
            f"{len(polynomial.coefficients) - 1}; "
            "give more --sets, more --lengths, a lower --degree, or another --criterion"
        )


def bootstrap(
    by_copies: Callable[[np.ndarray], Points], degree: int, seeds: int, entropies: np.ndarray
) -> tuple[list[list[float]] | None, dict[str, list[float]] | None]:
    """Returns 95 % intervals of the coefficients and the band of the polynomial, by bootstrap over seeds.

    Intervals are quantiles of the draws, and below `FEW_SEEDS` seeds t intervals with the deviation of the draws. None
    for a single seed.
    """
    if seeds < 2:
        return None, None
    draws = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), size=BOOTSTRAP_DRAWS)
    best, *fits = (polynomial(by_copies(copies.astype(float)), degree) for copies in [np.ones(seeds), *draws])

    def interval(best: np.ndarray, drawn: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        if seeds >= FEW_SEEDS:
            return tuple(np.quantile(drawn, (0.025, 0.975), axis=0))
        # The mean of S numbers has the variance s² / S with s² = Σ (x - x̄)² / (S - 1). Draws with replacement have
        # Σ (x - x̄)² / S in its place, so their means vary by (S - 1) / S of that. 1, 2 and 6 have s² = 7 and a mean of
        # variance 7/3; their draws vary by 14/9 = 2/3 · 7/3.
        deviation = np.std(drawn, axis=0) * math.sqrt(seeds / (seeds - 1))
        return best - (half := scipy.special.stdtrit(seeds - 1, 0.975) * deviation), best + half

    low, high = interval(np.polyval(best, entropies), [np.polyval(fit, entropies) for fit in fits])
    band = {"entropy": entropies.tolist(), "low": low.tolist(), "high": high.tolist()}
    return np.transpose(interval(best, fits)).tolist(), band


ALL_LENGTHS, TRAIN_LENGTHS = "adaptive_refit", "adaptive_refit_train"
TARGET, TARGET_TRAIN = "adaptive_target", "adaptive_target_train"


def names_of(criterion: str) -> tuple[str, str]:
    """Returns the names of the fits by a criterion: to all lengths, and to those of training only."""
    return (TARGET, TARGET_TRAIN) if criterion == "target" else (ALL_LENGTHS, TRAIN_LENGTHS)


def checkpoint_sha256(parameters: Any) -> str:
    """Returns a digest of names, shapes and numbers, the same for the same parameters in any file format."""
    digest = hashlib.sha256()
    for path, leaf in sorted(jax.tree.leaves_with_path(parameters), key=lambda pair: jax.tree_util.keystr(pair[0])):
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
