"""How near two measured rows of accuracies lie to two published ones, and how near rows that replicate nothing lie."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from softmax_jax.experiment.measures.ceiling import accuracy_of_ties, significant_bits
from softmax_jax.experiment.measures.significance import half_width

MARGIN = 1.5
"""Points of accuracy, within which two cells count as equivalent, or as in agreement."""

Rows = Float[np.ndarray, "seeds lengths"]
"""Accuracies in percent: a seed each, or the one row of something that has no seeds."""


class Agreement(NamedTuple):
    """Two rows, the baseline's and a method's, beside the published ones. All differences are in points of accuracy."""

    seeds: int
    baseline: float
    """Root mean square difference of the means over seeds from the published baseline."""
    method: float
    """The same of the method."""
    gain: float
    """Of the method over the baseline, in the mean of the lengths."""
    gain_interval: float
    """Half its 95 % interval over seeds (Student's t); 0 where there is one row."""
    published_gain: float
    equivalent: int
    """Cells of both rows whose 90 % interval over seeds lies within `MARGIN` of the published: two one-sided tests."""
    cells: int


def agreement(baseline: Rows, method: Rows, published: tuple[Sequence[float], Sequence[float]]) -> Agreement:
    """Returns how near a baseline and a method, at the same lengths, lie to the published rows of both."""
    gains = (method - baseline).mean(1)
    differences = [rows - np.asarray(row) for rows, row in zip((baseline, method), published)]
    equivalent = sum(
        abs(cell.mean()) + (half_width(cell.tolist(), level=0.9) or 0.0) < MARGIN
        for rows in differences
        for cell in rows.T
    )
    baseline_distance, method_distance = (float(np.sqrt((rows.mean(0) ** 2).mean())) for rows in differences)
    interval = half_width(gains.tolist()) or 0.0
    published_gain = float(np.mean(np.subtract(published[1], published[0])))
    cells = baseline.shape[1] + method.shape[1]
    return Agreement(
        len(gains), baseline_distance, method_distance, float(gains.mean()), interval, published_gain, equivalent, cells
    )


def with_nulls(
    rows: Mapping[str, Rows], lengths: Sequence[int], published: tuple[Sequence[float], Sequence[float]]
) -> dict[str, Agreement]:
    """Returns the agreement of softmax and the adaptive temperature, then that of rows which replicate nothing.

    `rows` has "softmax", "adaptive" and, if it was measured, "ssmax". A test that also says yes to a null says nothing
    of the method. The nulls are softmax as the adaptive row, SSMax as that row, and no model (`accuracy_of_ties`).
    """
    softmax = rows["softmax"]
    ties = np.array([[accuracy_of_ties(significant_bits("bfloat16"), length) for length in lengths]])
    pairs = {"the models": (softmax, rows["adaptive"]), "softmax twice": (softmax, softmax)}
    if "ssmax" in rows:
        pairs["SSMax for the adaptive row"] = (softmax, rows["ssmax"])
    return {name: agreement(*pair, published) for name, pair in (pairs | {"no model": (ties, ties)}).items()}
