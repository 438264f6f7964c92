"""Trained or swapped: what the tests of both say, as tables, paired tests and a chart."""

import altair as alt
import numpy as np
import polars as pl

from softmax_jax.measures.statistics import corrected, half_width, over_seeds, paired_p_value
from softmax_jax.report import charts, markdown
from softmax_jax.report.colours import palette, reader_name

TABLES = ("accuracy", "lengths")
"""Marks of the page."""
OWN = "as trained"
CALIBRATED = {"temperature": ("theta",), "ssmax": ("s",)}
"""The normalizers that are calibrated, and the number of each head that is."""
TESTS = (OWN, "softmax", "ssmax", "asentmax", "adaptive", *(f"{name}, calibrated" for name in CALIBRATED))
SIGNIFICANT = 0.05


def by_seed(frame: pl.DataFrame) -> pl.DataFrame:
    """The mean accuracy of the sequences of each seed, in percent."""
    keys = ("task", "trained", "test", "n", "seed")
    return frame.group_by(keys, maintain_order=True).agg(pl.mean("accuracy"))


def compared(frame: pl.DataFrame) -> pl.DataFrame:
    """Each test beside the model as trained, on the same sequences: the difference in points, and p.

    p is of the paired t-test over the sequences of all seeds, which takes the trained models as given, corrected by
    Holm for all tests of the frame; 1 where no sequence differs.
    """
    keys = ["task", "trained", "n", "seed", "sequence"]
    own = frame.filter(test=OWN).select(*keys, own="accuracy")
    pairs = frame.filter(pl.col("test") != OWN).join(own, on=keys, maintain_order="left")
    groups = pairs.group_by("task", "trained", "test", "n", maintain_order=True)
    cells = groups.agg(difference=(pl.col("accuracy") - pl.col("own")))
    differences = [np.asarray(values) for values in cells["difference"].to_list()]
    p_values = [paired_p_value(values.tolist(), [0.0] * len(values)) for values in differences]
    means = [float(values.mean()) for values in differences]
    return cells.with_columns(
        pl.Series("difference", means), pl.Series("p_value", corrected(p_values), dtype=pl.Float64)
    )


def accuracy_table(frame: pl.DataFrame, tests: pl.DataFrame) -> str:
    """The accuracy beyond the lengths of training: a row for each training and length, a column for each test.

    Bold is what differs from the model as trained.
    """
    p_values = {tuple(row[:4]): row[-1] for row in tests.rows()}
    lengths = sorted(set(frame["n"]))
    beyond, rows = frame.filter(pl.col("n").is_in(lengths[1:] or lengths)), []
    for (task, trained, n), cells in beyond.group_by("task", "trained", "n", maintain_order=True):
        values = {str(test): of_test["accuracy"].to_list() for (test,), of_test in cells.group_by("test")}
        row = [str(task).replace("_", " "), reader_name(str(trained)), f"{n:,}"]
        for test in TESTS:
            shown = _with_interval(values[test]) if test in values else "–"
            p = p_values.get((task, trained, test, n))
            row.append(f"**{shown}**" if p is not None and p < SIGNIFICANT else shown)
        rows.append(row)
    return markdown.table(["task", "trained under", "items", *map(reader_name, TESTS)], rows)


def lengths_table(frame: pl.DataFrame) -> str:
    """The accuracy of every model as trained, by length."""
    lengths = sorted(set(frame["n"]))
    rows = []
    for (task, trained), cells in frame.filter(test=OWN).group_by("task", "trained", maintain_order=True):
        values = [cells.filter(n=n)["accuracy"].to_list() for n in lengths]
        rows.append([str(task).replace("_", " "), reader_name(str(trained)), *map(_with_interval, values)])
    return markdown.table(["task", "trained under", *(f"{n:,}" for n in lengths)], rows)


def _with_interval(values: list[float]) -> str:
    half = half_width(values)
    return f"{np.mean(values):.1f}" + (f" ± {half:.1f}" if half is not None else "")


def chart(frame: pl.DataFrame) -> charts.Chart:
    """Accuracy by length: a row for each task, a panel for each training, a line for each test."""
    frame = frame.rename({"test": "normalizer"})
    colours = palette([test for test in TESTS if test in set(frame["normalizer"])])
    colour = charts.colour_by("normalizer", colours, title="in the test", symbolLimit=0)
    x, y = charts.length_axis(sorted(set(frame["n"])), "items"), charts.percent_axis("accuracy (%)")
    rows = []
    for (task,), of_task in frame.group_by("task", maintain_order=True):
        panels = []
        for (trained,), of_model in of_task.group_by("trained", maintain_order=True):
            means = over_seeds(of_model, ["normalizer", "n"], "accuracy", 0.0, 100.0)
            title = charts.panel_title(f"{str(task).replace('_', ' ')}, trained under {reader_name(str(trained))}")
            panel = alt.layer(*charts.lines(means, x, y, colour))
            panels.append(panel.properties(width=220, height=200, title=title))
        rows.append(alt.hconcat(*panels))
    title = charts.chart_title(
        "Does the normalizer of the training decide, or that of the test?",
        f"{charts.mean_of(frame['seed'].n_unique(), ', 95 % band')}; trained on at most {frame['n'].min()} items",
    )
    return alt.vconcat(*rows).properties(title=title)
