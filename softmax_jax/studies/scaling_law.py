r"""How far attention reaches by compute and width: a law for the error at n items, fitted with its uncertainty.

Near ρ = 1 the largest of n items leads by a gap that is distributed exponentially with mean 1/n. The key takes another
class for larger by as much as some difference in ρ. If that is distributed exponentially too, with mean δ, the gap is
the longer of the two with probability 1 / (1 + nδ), so that of K classes

$$\text{accuracy}(n) = \frac{1}{K} + \left(1 - \frac{1}{K}\right) \frac{1}{1 + n \delta}, \qquad
\delta = \delta_0\, C^{-a}\, w^{-b},$$

with C the multiply-adds of the whole training and w the width of the model.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.optimize

from softmax_jax.tasks.max_retrieval import CLASSES

Numbers = int | float | Sequence[float] | np.ndarray

COMPUTE, WIDTH = 1e12, 128.0
"""Units of compute and width, so that δ₀ is the δ of a model near the middle of those fitted."""


class Point(NamedTuple):
    """One measured accuracy, in percent, of one seed."""

    compute: int | float
    """Multiply-adds of the training."""
    width: int | float
    n: int
    seed: int
    accuracy: float


class Law(NamedTuple):
    """ln δ₀, a and b, with draws of them from a bootstrap over trained models."""

    numbers: tuple[float, float, float]
    draws: np.ndarray
    """Shape (draws, 3)."""

    def interval(self) -> np.ndarray:
        """The 95 % intervals of the three numbers: shape (3, 2)."""
        return np.percentile(self.draws, (2.5, 97.5), axis=0).T

    def predict(self, compute: int | float, width: int | float, n: int) -> tuple[float, float, float]:
        """The accuracy to expect, in percent, and the ends of its 95 % interval."""
        low, high = np.percentile([accuracy(draw, compute, width, n) for draw in self.draws], (2.5, 97.5))
        return float(accuracy(self.numbers, compute, width, n)), float(low), float(high)


def accuracy(numbers: Numbers, compute: Numbers, width: Numbers, n: Numbers) -> np.ndarray:
    """The law, in percent.

    >>> float(accuracy((float(np.log(1e-5)), 1.0, 0.0), 1e12, 128, 10_000).round(2))
    91.82
    """
    log_delta, by_compute, by_width = np.asarray(numbers, np.float64)
    compute, width, n = (np.asarray(values, np.float64) for values in (compute, width, n))
    delta = np.exp(log_delta - by_compute * np.log(compute / COMPUTE) - by_width * np.log(width / WIDTH))
    return np.asarray(100 * (1 / CLASSES + (1 - 1 / CLASSES) / (1 + n * delta)))


def fit(points: Sequence[Point], draws: int = 200) -> Law:
    """The law of least squares in the accuracy, every point alike, with a bootstrap over trained models.

    Raises ValueError where compute and width do not vary independently.
    """
    compute, width, n, seeds, measured = (np.asarray(column, np.float64) for column in zip(*points))
    design = np.stack([np.ones_like(n), np.log(compute), np.log(width)], 1)
    if np.linalg.matrix_rank(design - design.mean(0) * np.array([0, 1, 1])) < 3:
        raise ValueError("points lie on a line: vary compute and width independently of each other")

    def least_squares(chosen: np.ndarray, start: Numbers) -> np.ndarray:
        def residuals(numbers: np.ndarray) -> np.ndarray:
            return accuracy(numbers, compute[chosen], width[chosen], n[chosen]) - measured[chosen]

        return scipy.optimize.least_squares(residuals, start).x

    everything = np.arange(len(points))
    best = least_squares(everything, (np.log(1 / np.median(n)), 0.5, 0.5))
    # Trained models are what is independent, not the accuracies of one at several lengths.
    _, model = np.unique(np.stack([compute, width, seeds]), axis=1, return_inverse=True)
    members = [np.flatnonzero(model == index) for index in range(model.max() + 1)]
    random = np.random.default_rng(0)
    resampled = [
        np.concatenate([members[index] for index in random.integers(len(members), size=len(members))])
        for _ in range(draws)
    ]
    again = np.array([least_squares(chosen, best) for chosen in resampled])
    return Law((float(best[0]), float(best[1]), float(best[2])), again)
