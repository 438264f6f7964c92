"""One run under every normalizer that was asked for: its numbers, and those of the paper beside them."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from jaxtyping import Bool

from softmax_jax.experiment.measures.evaluation import Measured, frame_of
from softmax_jax.experiment.measures.families import Cell, judged_cells, moved_by_offset
from softmax_jax.experiment.measures.runs import AS_TRAINED, Loaded, has_published_recipe
from softmax_jax.experiment.measures.significance import over_sets
from softmax_jax.experiment.measures.summary import summarize
from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.report import accuracy
from softmax_jax.experiment.tasks import rounded_products
from softmax_jax.experiment.tasks.task import Task

OVER_SEEDS = ("interval", "gain_interval", "p_value", "p_max_t", "detectable")
"""Columns of a summary that take each seed as one sample."""


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """One run under every normalizer that was asked for."""

    name: str
    task: Task
    normalizers: tuple[str, ...]
    measured: Sequence[Measured]
    """By length, for a page; it may hold hardmax and the true item, too, which nobody asked for."""
    full_frame: pl.DataFrame
    """The frame of all that was measured."""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Columns that tell it from other runs, or from other parts of a task."""
    tests: pl.DataFrame | None = None
    """Tests over sets by normalizer and length, in the columns of `TESTS`; with them there are none over seeds."""
    published: accuracy.Published = dataclasses.field(default_factory=dict)
    """The accuracies published for models of this recipe: none for other recipes."""

    def requested(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Returns the rows of the normalizers that were asked for."""
        return frame.filter(pl.col("normalizer").is_in(self.normalizers))

    @property
    def frame(self) -> pl.DataFrame:
        """The rows of what was asked for."""
        return self.requested(self.full_frame)

    @property
    def baseline(self) -> str:
        """The normalizer that sentences are about: that of the training, or the first if that was not measured."""
        trained = [name for name in self.normalizers if name.endswith(AS_TRAINED)]
        return (trained or [BASELINE] * (BASELINE in self.normalizers) or list(self.normalizers))[0]

    @property
    def looked_into(self) -> str:
        """The normalizer whose attention a page shows; learned numbers have no entropy to show."""
        seen = self.frame.filter(pl.col("entropy").is_not_null())["normalizer"].unique(maintain_order=True).to_list()
        return next((name for name in (self.baseline, BASELINE) if name in seen), seen[0])

    @functools.cached_property
    def tested(self) -> list[Cell]:
        """The cells that are tested, as one family: beyond the lengths of training, and not decided by a bound."""
        floor, left_out = self.task.floor, moved_by_offset(self.normalizers)
        return judged_cells(self.frame, self.baseline, self.task.longest, floor, left_out=left_out)

    @functools.cached_property
    def summary(self) -> pl.DataFrame:
        """Means over seeds with intervals, and gains over the baseline, whose tests are of one family.

        With tests over sets these are the only ones: `p_value` is theirs, and there is nothing over seeds.
        """
        summary = summarize(self.frame, self.baseline, "all", self.tested)
        if self.tests is None:
            return summary
        joined = summary.with_columns(pl.lit(None, pl.Float64).alias(name) for name in OVER_SEEDS)
        joined = joined.join(self.tests, ["normalizer", "n"], "left", maintain_order="left")
        return joined.with_columns(p_value="p")

    @functools.cached_property
    def right(self) -> dict[Cell, Bool[np.ndarray, " sets"]]:
        """Says of each set of each seed whether it is answered right."""
        return {
            (name, measured.n): measured.values["accuracy"][:, :, place].ravel() > 50
            for measured in self.measured
            for place, name in enumerate(measured.normalizers)
        }

    @property
    def matmul(self) -> str:
        """The precision of the model's matrix products."""
        return getattr(self.task, "matmul", rounded_products.FLOAT32)


def evaluated(run: Loaded, measured: Sequence[Measured]) -> Evaluated:
    """Returns what was measured of a run, with the published rows if it has their recipe."""
    task, named = run.config.task, tuple(run.normalizers)
    published = accuracy.ACCURACY if has_published_recipe(run.config) and BASELINE in named else {}
    return Evaluated(run.name, task, named, measured, frame_of(measured), run.labels, published=published)


def with_tests(runs: Sequence[Evaluated]) -> list[Evaluated]:
    """Returns the runs with their tests over sets, corrected for all of them, where their task has such tests."""
    if not runs[0].task.tests_over_sets:
        return list(runs)
    right = {(run.name, *cell): answers for run in runs for cell, answers in run.right.items()}
    tested = {(run.name, *cell) for run in runs for cell in run.tested}
    rows = [
        {"run": part, "normalizer": name, "n": n, **test}
        for (part, name, n), test in over_sets(right, runs[0].baseline, tested).items()
    ]
    tests = pl.DataFrame(rows, schema_overrides={"p": pl.Float64})
    return [dataclasses.replace(run, tests=tests.filter(run=run.name).drop("run")) for run in runs]
