"""The evaluation as a chart and as a table for a terminal, beside the published rows."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from rich.console import Console

from softmax_jax.files import versions, write_csv, write_json
from softmax_jax.measures.evaluation import AS_TRAINED, summarize
from softmax_jax.measures.statistics import over_seeds, paired_p_value
from softmax_jax.measures.table import EVALUATION, KEYS
from softmax_jax.normalizers.registry import METHODS
from softmax_jax.report import charts
from softmax_jax.report.charts import BASELINE, PUBLISHED, Paper, normalizer_of, save_chart
from softmax_jax.report.tables import groups_of, print_groups, with_interval
from softmax_jax.tasks import name_of
from softmax_jax.tasks.task import Task
from softmax_jax.temperature import ALL_LENGTHS
from softmax_jax.training.progress import plain_console

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


def published_for(task: Task) -> Published:
    """Returns the accuracies published for a task; none for one of your own."""
    return ACCURACY if name_of(task) == "max_retrieval" else {}


def accuracy_chart(frame: pl.DataFrame, title: str, reference: Published = ACCURACY) -> charts.Chart:
    """Draws accuracy by number of items: a line and a 95 % band per normalizer, the published rows dashed.

    The frame has the columns normalizer, n, seed and accuracy.
    """
    measured = over_seeds(frame, ["normalizer", "n"], "accuracy", 0.0, 100.0)
    lengths = sorted(set(measured["n"]))
    references = [
        {"normalizer": name + PUBLISHED, "n": n, "value": accuracy, "low": accuracy, "high": accuracy}
        for name, row in reference.items()
        for n, accuracy in row.items()
        if n in lengths
    ]
    drawn = pl.concat([measured, pl.DataFrame(references, measured.schema)])
    dashes = {name: charts.DASHES if name.endswith(PUBLISHED) else [1, 0] for name in drawn["normalizer"]}
    seeds = charts.mean_of(frame["seed"].n_unique(), ", 95 % band")
    titles = charts.chart_title(title, seeds, *([charts.FAIR] if ALL_LENGTHS in dashes else []))
    x, y = charts.length_axis(lengths), charts.percent_axis("accuracy (% of sets)")
    dash = charts.dash_by("normalizer", dashes)
    return charts.named_lines(drawn, x, y, titles, dash=dash, width=600, height=360)


def print_evaluation(console: Console, summary: pl.DataFrame, reference: Published = ACCURACY) -> None:
    """Prints the measures for readers, the interval of the accuracy and p, and the published rows under them."""
    lengths = summary["n"].unique().sort().to_list()
    printed = {name: measure for name, measure in EVALUATION.items() if measure.printed}
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
        "over softmax with its own interval; p: paired t-test over seeds, corrected by Holm for the lengths of a "
        "normalizer, none where nothing differs; the inference is over trained models"
        + (f"; {SOURCE}; difference: ours less published" if reference else ""),
        style="dim",
    )
    if any(compared.values()):
        print(verdict(compared))
    for remark in remarks(groups):
        print(remark)


class Compared(NamedTuple):
    """A published accuracy beside ours."""

    n: int
    difference: float
    """Ours less the published, in points."""
    agrees: bool
    """Whether the 95 % interval of ours holds the published, or they lie less than `MARGIN` apart."""
    interval: float
    """Half of it; 0 for a single seed."""


def compare(summary: pl.DataFrame, row: Mapping[int, float]) -> list[Compared]:
    """The cells of a published row beside those of one normalizer, at the lengths of both."""
    ours = summary.filter(pl.col("n").is_in(list(row))).select("n", "accuracy", "interval").rows()
    apart = [(n, accuracy - row[n], interval or 0.0) for n, accuracy, interval in ours]
    return [Compared(n, off, abs(off) < max(MARGIN, interval), interval) for n, off, interval in apart]


def verdict(compared: Mapping[str, Sequence[Compared]]) -> str:
    """Says how many cells agree, those without a source apart, and how far each row is off."""
    cells = [cell for row in compared.values() for cell in row]
    squares = {name: [cell.difference**2 for cell in row] for name, row in compared.items() if row}
    apart = ", ".join(f"{name} {sum(row) / len(row):.1f}" for name, row in squares.items())
    widest = max(cell.interval for cell in cells)
    within = f"the interval of ours (± {widest:.1f} or less) holds it, or " if widest else ""  # one seed has none
    sourced, others = (
        [cell.agrees for cell in cells if (cell.n in UNCONFIRMED) == unconfirmed] for unconfirmed in (False, True)
    )
    beside = f", and {sum(others)} of {len(others)} without a source that could be read" if others else ""
    return (
        f"{sum(sourced)} of {len(sourced)} cells agree with the published{beside}: {within}it is less than {MARGIN} "
        f"points away; mean of the squared differences: {apart}"
    )


def mean_gain(frame: pl.DataFrame, row: Iterable[int], name: str = "adaptive") -> str | None:
    """Says what a normalizer gains over softmax in the mean of the published lengths: one number, so one test.

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


def moved_by_offset(names: Iterable[str]) -> list[str]:
    """Returns those that weigh a row otherwise once a constant is added to it, unless training was under one."""
    methods = {name: METHODS.get(normalizer_of(name)) for name in names}
    moved = [name for name, of in methods.items() if of and ("cap=" in name or not of.build().shift_invariant)]
    return [] if any(name.endswith(AS_TRAINED) for name in moved) else moved


def remarks(names: Iterable[str]) -> list[str]:
    """Says what one must know to compare these rows: which depend on an offset of the logits, and what fits saw."""
    found = []
    if moved := moved_by_offset(names := list(names)):
        problem = "a constant added to a row changes these weights, and training left it to chance"
        found.append(f"{', '.join(moved)}: {problem}, so what stands here says little of the method")
    if ALL_LENGTHS in names:
        found.append(f"{charts.FAIR}, so only the latter shows how far a fit generalises")
    return found


def published_cells(row: Mapping[int, float], lengths: Sequence[int]) -> dict[int, str]:
    """The published accuracies at these lengths, as far as there are any."""
    return {n: f"{row[n]:.1f}{'*' if n in UNCONFIRMED else ''}" for n in lengths if n in row}


def extrapolation_warning(summary: pl.DataFrame, most: float = 1.0) -> str | None:
    """One line on fits that are asked about entropies beyond their range in more than `most` percent of the rows."""
    beyond = summary.filter(pl.col("extrapolated") > most).group_by("normalizer", maintain_order=True)
    parts = [
        f"{name} in up to {share:.0f} % of rows at n = {', '.join(map(str, lengths))}"
        for name, share, lengths in beyond.agg(pl.max("extrapolated"), "n").rows()
    ]
    if not parts:
        return None
    return f"warning: entropies beyond the fitted range, where β stays as at its end: {'; '.join(parts)}"


MARGIN = 1.5
"""Points that an accuracy may be off and still agree."""
SOURCE = "published: arXiv 2410.01104, Table 1, second-hand, * unconfirmed"
NO_SETTINGS = ("cluster", "compiled", "rounding", "paper")
"""Options that change no number, and the precision, which stands under the settings of the model."""


def show_and_write(
    output: Path, options: Mapping[str, Any], frame: pl.DataFrame, task: Task, paper: Paper | None = None
) -> list[Path]:
    """Writes the rows of an evaluation, its summary and its chart, then prints the summary; returns the files."""
    summary = summarize(frame)
    reference = published_for(task)
    name = task.name.replace("_", " ").capitalize()
    title = f"How far does attention reach? {name}, trained on {task.longest} items"
    paths = [output / "evaluation.csv", output / "evaluation.json"]
    settings = settings_to_keep(options)
    columns = [name for name in frame.columns if name in (*KEYS, *EVALUATION)]
    write_csv(paths[0], columns, frame.select(columns).rows())
    write_json(paths[1], {"settings": settings, "versions": versions(), "summary": summary.to_dicts()})
    paths += save_chart(accuracy_chart(frame, title, reference), output / "accuracy", paper)
    print_evaluation(plain_console(), summary, reference)
    if gained := mean_gain(frame, reference.get(BASELINE, ())):
        print(gained)
    if "extrapolated" in frame.columns and (warning := extrapolation_warning(summary)):
        print(warning, file=sys.stderr)
    return paths


def settings_to_keep(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a file of results names."""
    kept = {name: value for name, value in options.items() if name not in NO_SETTINGS}
    return {name: str(value) if isinstance(value, Path) else value for name, value in kept.items()}
