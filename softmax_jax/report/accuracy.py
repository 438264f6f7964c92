"""The evaluation as a chart and as a table for a terminal, beside the published rows."""

from collections.abc import Sequence

import altair as alt
import polars as pl
from rich.console import Console

from softmax_jax.measures.evaluation import Summary
from softmax_jax.measures.statistics import over_seeds
from softmax_jax.report import charts
from softmax_jax.report.tables import print_groups
from softmax_jax.tasks import published


def accuracy_chart(frame: pl.DataFrame, title: str) -> charts.Chart:
    """Accuracy by number of items: a line and a 95 % band per normalizer, the published rows dashed.

    The frame has the columns normalizer, n, seed and accuracy. A click on a name in the legend switches its line off
    and on again.
    """
    measured = over_seeds(frame, ["normalizer", "n"], "accuracy", 0.0, 100.0)
    lengths = sorted(set(measured["n"]))
    names, legend = list(dict.fromkeys(measured["normalizer"])), "normalizer at test time"
    references = [
        {"normalizer": f"{name}, published", "n": n, "value": accuracy, "low": accuracy, "high": accuracy}
        for name, row in published.ACCURACY.items()
        for n, accuracy in row.items()
        if n in lengths
    ]
    colours = charts.palette(names)
    dashed = {f"{name}, published": colours.get(name, charts.GREY) for name in published.ACCURACY if references}
    switch = charts.legend_switch("normalizer", [*names, *dashed])
    layers = charts.line_with_band(
        pl.concat([measured, pl.DataFrame(references, measured.schema)]),
        charts.length_axis(lengths),
        charts.percent_axis("accuracy (% of sets)"),
        charts.colour_by("normalizer", colours | dashed, legend),
        dash=charts.dash_by("normalizer", {name: name in dashed for name in colours | dashed}, legend),
        switch=switch,
    )
    seeds = frame["seed"].n_unique()
    subtitle = [f"mean of {seeds} seeds, 95 % band" if seeds > 1 else "one seed"]
    if "adaptive_refit" in names:
        subtitle.append(charts.FAIR)
    subtitle += charts.lying_on_another(measured, within=0.05)
    chart = alt.layer(*layers).add_params(switch)
    return chart.properties(width=640, height=360, title=charts.chart_title(title, *subtitle))


def print_evaluation(console: Console, summaries: Sequence[Summary]) -> None:
    """Prints accuracy, interval, loss and p of every normalizer by length, and the published rows under them."""
    lengths = sorted({summary.n for summary in summaries})
    cells = {(summary.normalizer, summary.n): summary for summary in summaries}
    groups = {}
    for name in dict.fromkeys(summary.normalizer for summary in summaries):
        measured = {n: cells[name, n] for n in lengths}
        rows = {
            "accuracy": {n: f"{cell.accuracy:.2f}" for n, cell in measured.items()},
            "±": {n: f"{cell.interval:.2f}" for n, cell in measured.items() if cell.interval is not None},
            "loss": {n: f"{cell.loss:.3f}" for n, cell in measured.items()},
            "p": {n: f"{cell.p_value:.1g}" for n, cell in measured.items() if cell.p_value is not None},
        }
        groups[name] = {kind: row for kind, row in rows.items() if row}
    for name, row in published.ACCURACY.items():
        ours = {n: cells[name, n].accuracy - row[n] for n in lengths if (name, n) in cells and n in row}
        groups[f"{name}, published"] = {
            "accuracy": {n: f"{row[n]:.1f}{'*' if n in published.UNCONFIRMED else ''}" for n in lengths if n in row},
            "difference": {n: f"{difference:+.1f}" for n, difference in ours.items()},
        }
    print_groups(console, "", groups, lengths)
    console.print(
        "accuracy: % of sets, mean over seeds, ± half the 95 % interval (t); loss: nats; p: paired t-test over seeds "
        "against softmax; published: arXiv 2410.01104, Table 1, * unconfirmed; difference: ours less published",
        style="dim",
    )
