"""Accuracies beside the published ones: the chart, and the table of every measure."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import altair as alt
import polars as pl
from rich.console import Console

from softmax_jax.experiment.measures.ceiling import accuracy_of_ties, significant_bits
from softmax_jax.experiment.measures.significance import over_seeds
from softmax_jax.experiment.measures.table import BASELINE, EVALUATION
from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.charts import PUBLISHED
from softmax_jax.experiment.report.tables import groups_of, print_groups
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

CHOSEN_BY = (16, 64, 256, 1024, 4096)
"""Lengths whose published accuracies under softmax chose the recipe of `paper`, on sets of another key."""
SOURCE = "published: arXiv 2410.01104, Table 1, second-hand"
MARKS = {"*": "no source that could be read", "†": "chose the recipe"}
"""What the marks of published cells mean."""
BITS = significant_bits("bfloat16")
NO_MODEL = f"no model: rounded to {BITS} bits, ties at random"
"""The name of `accuracy_of_ties` beside models whose products are rounded so."""
CROSS = "M-1,-1L1,1M-1,1L1,-1"


def accuracy_chart(
    frame: pl.DataFrame, title: str, published: Mapping[str, Published] = MappingProxyType({}), subtitle: str = ""
) -> charts.Chart:
    """Draws accuracy by number of items: a line and a 95 % band per normalizer.

    Curves that coincide are one line with all their names.

    Arguments:
        frame: Columns normalizer, n, seed and accuracy; with a column run, each run has a panel
        title: A statement
        published: Accuracies published for a run, by its name, "" without a column run: drawn as crosses, with the
            reference without a model
        subtitle: What to know to read the chart, by default the number of seeds
    """
    if "run" in frame.columns:
        runs = frame.group_by("run", maintain_order=True)
        panels = [accuracy_panel(rows, published.get(run, {}), charts.panel_title(run)) for (run,), rows in runs]
        drawn: Any = alt.vconcat(*panels).resolve_scale(color="independent", strokeDash="independent")
    else:
        drawn = accuracy_panel(frame, published.get("", {}), charts.panel_title(""))
    notes = [charts.mean_of(frame["seed"].n_unique(), ", 95 % band"), charts.FAIR]
    notes = [subtitle] if subtitle else notes[: 1 + (ALL_LENGTHS in set(frame["normalizer"]))]
    if any(published.values()):
        notes.append(f"crosses: {SOURCE}; faint: {MARKS['*']}; dashes: a reference that nothing is fitted to")
    return drawn.properties(title=charts.chart_title(title, *notes))


def accuracy_panel(frame: pl.DataFrame, published: Published, title: alt.TitleParams) -> charts.Chart:
    """Draws the lines and bands of one run, and beside published rows what rounding does without a model."""
    measured = over_seeds(frame, ["normalizer", "n"], "accuracy", 0.0, 100.0)
    lengths = sorted(set(measured["n"]))
    joint = joint_names(measured)
    measured = measured.filter(pl.col("normalizer").is_in(list(joint)))
    colours = {joint.get(name, name): colour for name, colour in charts.palette(measured["normalizer"]).items()}
    drawn = measured.with_columns(pl.col("normalizer").replace(joint))
    x, y = charts.length_axis(lengths), charts.percent_axis("accuracy (% of sets)")
    under = []
    if published:
        ties = [(NO_MODEL, n, value, value, value) for n in lengths for value in (accuracy_of_ties(BITS, n),)]
        drawn = pl.concat([drawn, pl.DataFrame(ties, drawn.schema, orient="row")])
        colours[NO_MODEL] = charts.GREY
        under = [
            crosses(name, row, lengths, x, y) for name, row in published.items() if name in set(frame["normalizer"])
        ]
    dash = charts.dash_by("normalizer", {name: charts.DASHES if name == NO_MODEL else [1, 0] for name in colours})
    return charts.named_lines(drawn, x, y, title, colours=colours, dash=dash, under=under, width=600, height=360)


def crosses(name: str, row: Mapping[int, float], lengths: Sequence[int], x: alt.X, y: alt.Y) -> alt.Chart:
    """Draws the published cells of a normalizer at these lengths in its colour, those without a source faint."""
    cells = [
        {"published": name, "n": n, "value": row[n], "opacity": 0.4 if n in UNCONFIRMED else 1.0}
        for n in lengths
        if n in row
    ]
    (colour,) = charts.palette([name]).values()
    marks = alt.Chart(alt.Data(values=cells)).mark_point(shape=CROSS, size=90, strokeWidth=2, color=colour)
    return marks.encode(
        x=x, y=y, opacity=alt.Opacity("opacity:Q", scale=None), tooltip=["published:N", "n:Q", "value:Q"]
    )


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


def print_evaluation(
    console: Console, summary: pl.DataFrame, published: Published = MappingProxyType({}), baseline: str = BASELINE
) -> None:
    """Prints every measure for readers at every length, and the published rows; gains are over the baseline."""
    lengths = summary["n"].unique().sort().to_list()
    printed = {name: measure for name, measure in EVALUATION.items() if measure.tables != "none" and name in summary}
    (accuracy, *others) = [(name, name, measure.form) for name, measure in printed.items()]
    gains = [("gain", "gain", "+.2f"), ("±gain", "gain_interval", ".2f"), ("p", "p_value", ".1g")]
    groups = groups_of(summary, [accuracy, ("±", "interval", ".2f"), *others, *gains])
    for name, row in published.items():
        ours = summary.filter(pl.col("n").is_in(list(row)), normalizer=name).select("n", "accuracy").rows()
        difference = {n: f"{accuracy - row[n]:+.1f}" for n, accuracy in ours}
        groups[name + PUBLISHED] = {"accuracy": published_cells(name, row, lengths), "difference": difference}
    print_groups(console, "", groups, lengths)
    units = "; ".join(f"{name}: {m.unit}" for name, m in printed.items() if name != "accuracy" and m.unit)
    console.print(
        f"accuracy: % of sets, mean over seeds, ± half the 95 % interval (t); {units}; gain: points over {baseline}, "
        "with its own interval; p: paired t-test over seeds, corrected by Holm for all that are tested; each seed is "
        "one sample" + (f"; {published_note(groups)}; difference: ours less published" if published else ""),
        style="dim",
    )


def published_cells(name: str, row: Mapping[int, float], lengths: Sequence[int]) -> dict[int, str]:
    """Returns the published accuracies of a normalizer at these lengths, with the marks of `MARKS`.

    >>> published_cells("softmax", ACCURACY["softmax"], (2, 16, 32))
    {16: '98.6†', 32: '97.1*'}
    """
    chosen = CHOSEN_BY if name == BASELINE else ()
    return {n: f"{row[n]:.1f}{'*' * (n in UNCONFIRMED)}{'†' * (n in chosen)}" for n in lengths if n in row}


def published_note(cells: object) -> str:
    """Returns the source of the published cells, and what the marks in them mean."""
    return "; ".join([SOURCE, *(f"{mark} {meaning}" for mark, meaning in MARKS.items() if mark in str(cells))])
