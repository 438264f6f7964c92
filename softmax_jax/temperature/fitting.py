"""The polynomial of β in the entropy, fitted to rows with all that says how far it may be trusted, and its file."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from softmax_jax.files import versions, write_json
from softmax_jax.normalizers.fit_file import are_finite_numbers, check_polynomial, read_fit, signed
from softmax_jax.normalizers.scales import EntropyPolynomial
from softmax_jax.temperature.curves import (
    THRESHOLD,
    Curve,
    Points,
    apply_curve,
    clamped,
    points,
    polynomial,
    polynomial_curve,
    r_squared,
    spline_curve,
)
from softmax_jax.temperature.optimum import Rows, join

POINTS_PER_COEFFICIENT = 3
BOOTSTRAP_DRAWS = 1000
BAND_POINTS = 61


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

    def save(self, path: Path | str) -> None:
        """Writes the fit as JSON, whole or not at all. Raises ValueError if no reader would accept it."""
        content = dataclasses.asdict(self)
        check_polynomial(f"the fit by {self.criterion!r}", content)
        write_json(Path(path), signed(content))

    @classmethod
    def load(cls, path: Path | str) -> "TemperatureFit":
        """The fit that `save` wrote. Raises ValueError for a file that is missing or no such fit."""
        content = read_fit(Path(path))
        try:
            fit = cls(**content)
            band = {**(fit.band or {})}
        except TypeError as error:
            raise ValueError(f"{path} is no whole temperature fit: {error}; run fit_temperature.py anew") from None
        lists = {"lengths": fit.lengths, "seeds": fit.seeds, "beta_at_ends": fit.beta_at_ends, **band}
        wrong = [name for name, values in lists.items() if not are_finite_numbers(values)]
        if wrong or len({len(values) for values in band.values()}) > 1 or not band.keys() <= {"entropy", "low", "high"}:
            named = wrong[0] if wrong else "band"
            raise ValueError(f"{path} is no whole temperature fit: {named} must be lists of numbers, of equal length")
        return fit


class Polynomial(NamedTuple):
    """A polynomial of β in H, and what it was fitted to."""

    coefficients: np.ndarray
    entropy_range: tuple[float, float]
    by_copies: Callable[[np.ndarray], Points]
    """The points of so many copies of each seed."""

    @property
    def scale(self) -> EntropyPolynomial:
        """The scale that it stands for."""
        return EntropyPolynomial(tuple(self.coefficients.tolist()), entropy_range=self.entropy_range)


def fit_polynomial(rows: Mapping[int, Rows], criterion: str = "bins", degree: int = 4) -> Polynomial:
    """Weighted least squares through the points of a criterion, for which see `points`, of rows of shape (seeds, rows).

    The degree is lowered until there are `POINTS_PER_COEFFICIENT` points for each coefficient, because rows of short
    sets span so few entropies that a quartic through their points would be noise. Raises ValueError for an unknown
    criterion and for too few points.
    """
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
    """Fits a polynomial to rows of shape (seeds, rows) by length as `fit_polynomial` does; measures it on other rows.

    Raises ValueError as that does, and for rows of other seeds.
    """
    if not (rows and held_out):
        raise ValueError("there are no rows to fit to, or none to measure the fit on: give lengths within the limit")
    counts = {len(of_length.entropy) for of_length in (*rows.values(), *held_out.values())}
    if counts != {len(seeds)}:
        raise ValueError(f"rows are of {sorted(counts)} seeds and not of {len(seeds)}: give the shape (seeds, rows)")
    coefficients, (low, high), by_copies = fit_polynomial(rows, criterion, degree)
    curve = clamped(coefficients, (low, high))
    covered = {n: (row.entropy <= THRESHOLD) | (low <= row.entropy) & (row.entropy <= high) for n, row in rows.items()}
    intervals, band = bootstrap(by_copies, len(coefficients) - 1, len(seeds), np.linspace(low, high, BAND_POINTS))
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
        coverage={str(n): 100 * float(inside.mean()) for n, inside in covered.items()},
        border={str(n): 100 * float(row.border.mean()) for n, row in rows.items()},
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
    seeds = len(rows.entropy)
    if seeds == 1:
        return []
    splits = []
    for left_out in np.array_split(np.arange(seeds), min(folds, seeds)):
        outside = Rows(*(column[left_out] for column in rows))
        inside = Rows(*(np.delete(column, left_out, 0) for column in rows))
        fitted_to, truth = (points(side, criterion)(np.ones(len(side.entropy))) for side in (inside, outside))
        splits.append((fitted_to, outside, truth))
    judged = []
    for name, form in CANDIDATES.items():
        with contextlib.suppress(ValueError):
            scores, losses, accuracies = zip(*(judge(form(inside), *left_out) for inside, *left_out in splits))
            known = [score for score in scores if score is not None]
            mean = float(np.mean(known)) if known else None
            judged.append(Candidate(name, mean, float(np.mean(losses)), float(np.mean(accuracies))))
    return judged


def judge(curve: Curve, rows: Rows, truth: Points) -> tuple[float | None, float, float]:
    """R² of a curve at these points; its loss and accuracy on these rows above the threshold."""
    flat = rows.entropy > THRESHOLD
    losses, errors = (values[flat] for values in apply_curve(curve, rows))
    return r_squared(curve, truth), float(losses.mean()), 100 * float(1 - errors.mean())
