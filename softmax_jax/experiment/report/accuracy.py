"""Accuracies beside the published ones: charts, the table of every measure, and what agrees."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import polars as pl
from rich.console import Console

from softmax_jax.experiment.measures.agreement import MARGIN
from softmax_jax.experiment.measures.ceiling import expected_ceiling
from softmax_jax.experiment.measures.significance import over_seeds, paired_p_value
from softmax_jax.experiment.measures.table import BASELINE, EVALUATION
from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.charts import PUBLISHED
from softmax_jax.experiment.report.tables import groups_of, print_groups, with_interval
from softmax_jax.experiment.tasks import name_of
from softmax_jax.experiment.tasks.rounded_products import BITS
from softmax_jax.experiment.tasks.task import Task
from softmax_jax.temperature import ALL_LENGTHS

Published = Mapping[str, Mapping[int, float]]
"""Accuracies to compare with, in percent, by normalizer and n."""
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
UNCONFIRMED = (32, 128, 8192)
ACCURACY: dict[str, dict[int, float]] = {
    "softmax": dict(zip(LENGTHS, (98.6, 97.1, 94.3, 89.7, 81.3, 70.1, 53.8, 35.7, 22.6, 15.7, 12.4))),
    "adaptive": dict(zip(LENGTHS, (98.6, 97.1, 94.5, 89.9, 82.1, 72.5, 57.7, 39.4, 24.9, 17.5, 14.0))),
}
"""Published accuracies of max retrieval, in percent: the mean of ten seeds, trained on at most 16 items.

Source: Veličković et al., arXiv 2410.01104, Table 1, second-hand: as others quote it. The columns in `UNCONFIRMED`
could not be confirmed.
"""

RULE = f"A cell agrees if our 95 % interval holds the published number, or the two differ by less than {MARGIN} points."
SOURCE = "published: arXiv 2410.01104, Table 1, second-hand, * unconfirmed"


def published_for(task: Task) -> Published:
    """Returns the accuracies published for a task: none but for max retrieval."""
    return ACCURACY if name_of(task) == "max_retrieval" else {}


def accuracy_chart(
    frame: pl.DataFrame, title: str, reference: Published = ACCURACY, subtitle: str = ""
) -> charts.Chart:
    """Draws accuracy by number of items: a line and a 95 % band per normalizer, the published rows dashed.

    Curves that coincide are one line with all their names.

    Arguments:
        frame: Columns normalizer, n, seed and accuracy; with a column run, each run has a panel
        title: A statement
        reference: Published accuracies
        subtitle: What to know to read the chart, by default the number of seeds
    """
    if "run" in frame.columns:
        runs = frame.group_by("run", maintain_order=True)
        panels = [accuracy_panel(rows, reference, charts.panel_title(str(run))) for (run,), rows in runs]
        drawn: Any = alt.vconcat(*panels).resolve_scale(color="independent", strokeDash="independent")
    else:
        drawn = accuracy_panel(frame, reference, charts.panel_title(""))
    notes = [charts.mean_of(frame["seed"].n_unique(), ", 95 % band"), charts.FAIR]
    notes = [subtitle] if subtitle else notes[: 1 + (ALL_LENGTHS in set(frame["normalizer"]))]
    return drawn.properties(title=charts.chart_title(title, *notes))


def accuracy_panel(frame: pl.DataFrame, reference: Published, title: alt.TitleParams) -> charts.Chart:
    """Draws the lines and bands of one run."""
    measured = over_seeds(frame, ["normalizer", "n"], "accuracy", 0.0, 100.0)
    lengths = sorted(set(measured["n"]))
    references = [
        {"normalizer": name + PUBLISHED, "n": n, "value": accuracy, "low": accuracy, "high": accuracy}
        for name, row in reference.items()
        for n, accuracy in row.items()
        if n in lengths
    ]
    joint = joint_names(measured)
    measured = measured.filter(pl.col("normalizer").is_in(list(joint)))
    drawn = pl.concat([measured, pl.DataFrame(references, measured.schema)])
    colours = {joint.get(name, name): colour for name, colour in charts.palette(drawn["normalizer"]).items()}
    dashes = {name: charts.DASHES if name.endswith(PUBLISHED) else [1, 0] for name in colours}
    x, y = charts.length_axis(lengths), charts.percent_axis("accuracy (% of sets)")
    drawn, dash = drawn.with_columns(pl.col("normalizer").replace(joint)), charts.dash_by("normalizer", dashes)
    return charts.named_lines(drawn, x, y, title, colours=colours, dash=dash, width=600, height=360)


def joint_names(means: pl.DataFrame) -> dict[str, str]:
    """Returns the names of those whose means are the same to a tenth at every length, by the first of them.

    >>> rows = [("softmax", 4, 98.02), ("ssmax", 4, 98.3), ("softpick", 4, 98.04)]
    >>> joint_names(pl.DataFrame(rows, ["normalizer", "n", "value"], orient="row"))
    {'softmax': 'softmax, softpick', 'ssmax': 'ssmax'}
    """
    curves: dict[tuple[tuple[int | float, ...], ...], list[str]] = {}
    by_name = means.group_by("normalizer", maintain_order=True).agg("n", pl.col("value").round(1))
    for name, *curve in by_name.rows():
        curves.setdefault(tuple(map(tuple, curve)), []).append(name)
    return {names[0]: ", ".join(names) for names in curves.values()}


def cells_frame(published: Published, compared: Mapping[str, Sequence["Compared"]], precision: str) -> pl.DataFrame:
    """Returns a row for each published cell beside ours: its difference with the interval, and whether they agree.

    `above` is how far the ceiling of a precision lies over the published; null where none is known.
    """
    cells = []
    for name, row in compared.items():
        for cell in row:
            above = expected_ceiling(precision, cell.n) - published[name][cell.n] if precision in BITS else None
            cells.append({"normalizer": name, **cell._asdict(), "above": above, "sourced": cell.n not in UNCONFIRMED})
    return pl.DataFrame(cells, schema_overrides={"above": pl.Float64})


def difference_chart(cells: pl.DataFrame) -> charts.Chart:
    """Draws ours less the published with 95 % intervals, cell by cell, over the band in which cells agree anyway.

    The frame is that of `cells_frame`.
    """
    value, half, sourced = pl.col("difference"), pl.col("interval"), cells.filter("sourced")["agrees"]
    ceiling = cells["above"].is_not_null().any()
    title = charts.chart_title(
        f"{sourced.sum()} of {len(sourced)} accuracies agree with the published",
        f"they lie less than {MARGIN} points apart (grey), or the 95 % interval of ours holds the published",
        "published: second-hand; faint: quoted without a source that could be read",
        *(["strokes above: the ceiling of rounding, which no attention can pass"] if ceiling else []),
    )
    x = alt.X("n:O", title="items in the set", axis=alt.Axis(labelAngle=0, labelExpr=charts.SHORT))
    y = alt.Y("low:Q", title="ours less the published (points)")
    drawn = alt.Chart(charts.data(cells.with_columns(low=value - half, high=value + half))).encode(
        x=x,
        xOffset=alt.XOffset("normalizer:N", sort=None),
        color=charts.colour_by("normalizer", charts.palette(cells["normalizer"]), orient="top"),
        opacity=alt.condition(alt.datum.sourced, alt.value(1.0), alt.value(0.4)),
    )
    tooltip = ["normalizer:N", "n:O", alt.Tooltip("difference:Q", format="+.2f"), "agrees:N"]
    band = alt.Chart(alt.Data(values=[{"low": -MARGIN, "high": MARGIN}])).mark_rect(color=charts.GREY, opacity=0.2)
    layers = [
        band.encode(y=y, y2="high:Q"),
        drawn.mark_rule(strokeWidth=2).encode(y=y, y2="high:Q"),
        *([drawn.mark_tick(thickness=2, size=14).encode(y="above:Q")] if ceiling else []),
        drawn.mark_point(filled=True, size=70).encode(y="difference:Q", tooltip=tooltip),
    ]
    return alt.layer(*layers).properties(width=600, height=300, title=title)


def print_evaluation(
    console: Console, summary: pl.DataFrame, reference: Published = ACCURACY, baseline: str = BASELINE
) -> None:
    """Prints every measure for readers at every length, and the published rows; gains are over the baseline."""
    lengths = summary["n"].unique().sort().to_list()
    printed = {name: measure for name, measure in EVALUATION.items() if measure.tables != "none" and name in summary}
    (accuracy, *others) = [(name, name, measure.form) for name, measure in printed.items()]
    gains = [("gain", "gain", "+.2f"), ("±gain", "gain_interval", ".2f"), ("p", "p_value", ".1g")]
    groups = groups_of(summary, [accuracy, ("±", "interval", ".2f"), *others, *gains])
    compared = {name: compare(summary.filter(normalizer=name), row) for name, row in reference.items()}
    for name, row in reference.items():
        cells = {
            "difference": {cell.n: f"{cell.difference:+.1f}" for cell in compared[name]},
            "agrees": {cell.n: "yes" if cell.agrees else "no" for cell in compared[name]},
        }
        groups[name + PUBLISHED] = {"accuracy": published_cells(row, lengths)} | (cells if compared[name] else {})
    print_groups(console, "", groups, lengths)
    units = "; ".join(f"{name}: {m.unit}" for name, m in printed.items() if name != "accuracy" and m.unit)
    console.print(
        f"accuracy: % of sets, mean over seeds, ± half the 95 % interval (t); {units}; gain: points "
        f"over {baseline} with its own interval; p: paired t-test over seeds, corrected by Holm for the lengths of a "
        "normalizer, none where nothing differs; each seed is one sample"
        + (f"; {SOURCE}; difference: ours less published" if reference else ""),
        style="dim",
    )


class Compared(NamedTuple):
    """A published accuracy beside ours."""

    n: int
    difference: float
    """Ours less the published, in points."""
    agrees: bool
    """Says whether the 95 % interval of ours holds the published, or they lie less than `MARGIN` apart."""
    interval: float
    """Half of that interval; 0 for a single seed."""


def compare(summary: pl.DataFrame, row: Mapping[int, float]) -> list[Compared]:
    """Compares a published row with the summary of one normalizer, at the lengths of both."""
    ours = summary.filter(pl.col("n").is_in(list(row))).select("n", "accuracy", "interval").rows()
    apart = [(n, accuracy - row[n], interval or 0.0) for n, accuracy, interval in ours]
    return [Compared(n, off, abs(off) < max(MARGIN, interval), interval) for n, off, interval in apart]


def verdict(compared: Mapping[str, Sequence[Compared]]) -> str:
    """Says how many cells agree, counts those without a source apart, and says how far each row is off."""
    cells = [cell for row in compared.values() for cell in row]
    squares = {name: [cell.difference**2 for cell in row] for name, row in compared.items() if row}
    apart = ", ".join(f"{name} {sum(row) / len(row):.1f}" for name, row in squares.items())
    sourced, others = (
        [cell.agrees for cell in cells if (cell.n in UNCONFIRMED) == unconfirmed] for unconfirmed in (False, True)
    )
    unread = f", and {sum(others)} of {len(others)} without a source that could be read" if others else ""
    return f"{sum(sourced)} of {len(sourced)} cells agree with the published{unread}; mean squared difference: {apart}"


def mean_gain(frame: pl.DataFrame, row: Iterable[int], name: str = "adaptive") -> str | None:
    """Says what a normalizer gains over softmax in the mean of the published lengths, by one test.

    None where the frame has no such lengths, or not both normalizers.
    """
    shown = frame.filter(pl.col("normalizer").is_in([BASELINE, name]), pl.col("n").is_in(list(row)))
    means = shown.group_by("normalizer", "seed", maintain_order=True).agg(pl.mean("accuracy"))
    ours, baseline = (means.filter(normalizer=which)["accuracy"].to_list() for which in (name, BASELINE))
    p = paired_p_value(ours, baseline)
    if p is None:
        return None
    gains = np.subtract(ours, baseline).tolist()
    return (
        f"{name} gains {with_interval(gains, '.2f')} points over {BASELINE} in the mean of {shown['n'].n_unique()} "
        f"lengths, from {shown['n'].min()} to {shown['n'].max()} items: p = {p:.1g}, "
        f"{sum(gain > 0 for gain in gains)} of {len(gains)} seeds gain"
    )


def published_cells(row: Mapping[int, float], lengths: Sequence[int]) -> dict[int, str]:
    """Returns the published accuracies at these lengths; those without a source have a star."""
    return {n: f"{row[n]:.1f}{'*' if n in UNCONFIRMED else ''}" for n in lengths if n in row}
