"""One run under every normalizer that was asked for: its numbers, and those of the paper beside them."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import polars as pl

from softmax_jax.experiment.measures.evaluation import Measured
from softmax_jax.experiment.measures.runs import AS_TRAINED
from softmax_jax.experiment.measures.summary import summarize
from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.report import accuracy
from softmax_jax.experiment.tasks import rounded_products
from softmax_jax.experiment.tasks.task import Task


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """One run under every normalizer that was asked for."""

    name: str
    task: Task
    normalizers: tuple[str, ...]
    measured: Sequence[Measured]
    """By length, for a page; it may hold hardmax and the true item, too, which nobody asked for."""
    everything: pl.DataFrame
    """The frame of all that was measured."""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Columns that tell it from other runs, or from other parts of a task."""
    tests: pl.DataFrame | None = None
    """Tests over sets by normalizer and length, in the columns of `TESTS`."""

    def requested(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Returns the rows of the normalizers that were asked for."""
        return frame.filter(pl.col("normalizer").is_in(self.normalizers))

    @property
    def frame(self) -> pl.DataFrame:
        """The rows of what was asked for."""
        return self.requested(self.everything)

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
    def summary(self) -> pl.DataFrame:
        """Means over seeds with intervals, and gains over the baseline."""
        summary = summarize(self.frame, self.baseline)
        return summary if self.tests is None else summary.join(self.tests, ["normalizer", "n"], maintain_order="left")

    @property
    def published(self) -> accuracy.Published:
        """The accuracies published for models like these: none unless they were trained under softmax."""
        return accuracy.published_for(self.task) if self.baseline == BASELINE else {}

    @property
    def compared(self) -> dict[str, list[accuracy.Compared]]:
        """The published rows beside ours, at the lengths of both."""
        summary = self.summary if self.published else pl.DataFrame()
        rows = {name: accuracy.compare(summary.filter(normalizer=name), row) for name, row in self.published.items()}
        return {name: cells for name, cells in rows.items() if cells}

    @property
    def cells(self) -> pl.DataFrame:
        """The published cells beside ours, with the ceiling of the products' precision."""
        return accuracy.cells_frame(self.published, self.compared, self.matmul)

    @property
    def matmul(self) -> str:
        """The precision of the model's matrix products."""
        return getattr(self.task, "matmul", rounded_products.FLOAT32)
