"""The summary of a frame: means over seeds with intervals, and gains over a baseline with their tests."""

from collections.abc import Collection
from typing import Literal

import numpy as np
import polars as pl

from softmax_jax.experiment.measures.families import Cell, copies
from softmax_jax.experiment.measures.significance import (
    corrected,
    detectable,
    half_width,
    max_t_p_values,
    paired_p_value,
)
from softmax_jax.experiment.measures.table import BASELINE, KEYS

RISK = 0.05
"""The risk of any false gain in a family of tests."""


def summarize(
    frame: pl.DataFrame,
    baseline: str = BASELINE,
    family: Literal["normalizer", "n", "all"] = "normalizer",
    tested: Collection[Cell] | None = None,
) -> pl.DataFrame:
    """Returns means over seeds, with Student's t interval of the accuracy, and the gain in accuracy over the baseline.

    `gain` is its mean over the seeds of both, `gain_interval` half its 95 % interval. `p_value` is of the paired t-test
    corrected by Holm for the tests of one family, `p_max_t` by flips of signs: a family has one "normalizer" at all
    lengths, one "n" under all normalizers, or "all". `detectable` is the gain that a test of such a family, at its
    share of `RISK`, would find in 80 % of the cases. Only `tested` cells are tested, by default all; never `copies` of
    the baseline, nor a cell whose accuracies differ from those of the baseline by the same number for all seeds.
    """
    measures = [name for name in frame.columns if name not in KEYS]
    groups = frame.group_by("normalizer", "n", maintain_order=True)
    accuracies = {(name, n): values for name, n, values in groups.agg("accuracy").rows()}
    columns: dict[str, list[float | None]] = {"interval": list(map(half_width, accuracies.values()))}
    columns |= {
        name: [None] * len(accuracies) for name in ("gain", "gain_interval", "p_value", "p_max_t", "detectable")
    }
    families: dict[str | int, dict[int, np.ndarray]] = {}
    same = {baseline, *copies(frame, baseline)}
    for place, ((name, n), values) in enumerate(accuracies.items()):
        reference = accuracies.get((baseline, n), [])
        if name == baseline or len(values) != len(reference):
            continue
        differences = np.subtract(values, reference)
        columns["gain"][place] = float(differences.mean())
        columns["gain_interval"][place] = half_width(differences.tolist())
        if name in same or (tested is not None and (name, n) not in tested):
            continue
        if differences.any() and (p := paired_p_value(values, reference)) is not None:
            columns["p_value"][place] = p
            families.setdefault({"n": n, "normalizer": name}.get(family, ""), {})[place] = differences
    for members in families.values():
        by_holm = corrected([columns["p_value"][place] for place in members])
        for place, holm, max_t in zip(members, by_holm, max_t_p_values(np.stack(list(members.values())))):
            columns["p_value"][place], columns["p_max_t"][place] = holm, max_t
            columns["detectable"][place] = detectable(members[place].tolist(), RISK / len(members))
    tests = pl.DataFrame(columns, dict.fromkeys(columns, pl.Float64))
    return groups.agg(pl.mean(*measures)).hstack(tests)
