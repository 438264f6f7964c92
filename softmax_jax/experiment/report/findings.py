"""The findings of an evaluation: its table and sentences on a terminal, and its files."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from softmax_jax.experiment.measures.families import copies
from softmax_jax.experiment.measures.runs import COLUMNS, lengths_to_show
from softmax_jax.experiment.measures.table import EVALUATION, KEYS, TESTS
from softmax_jax.experiment.report import accuracy, charts
from softmax_jax.experiment.report.chart_files import save_chart
from softmax_jax.experiment.report.charts import PUBLISHED, Chart
from softmax_jax.experiment.report.evaluated import Evaluated
from softmax_jax.experiment.report.print_layout import Paper
from softmax_jax.experiment.report.sentences import (
    CHANCE,
    accuracies,
    answers,
    count,
    extrapolation_warning,
    remarks,
    shortest,
)
from softmax_jax.experiment.report.tables import number_or_dash
from softmax_jax.files import versions, write_csv, write_json

GAIN = ", gain"
"""How the name of a row of gains ends."""


def measured_at(runs: Sequence[Evaluated]) -> list[int]:
    """Returns the lengths at which the runs were measured."""
    return sorted({n for run in runs for n in run.frame["n"]})


def accuracy_table(runs: Sequence[Evaluated], lengths: Sequence[int]) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the cells of each row by its name, which begins with that of the run if they are several, and notes.

    Each run begins with its baseline. Below the accuracies of every other normalizer are its gains over that, with a
    star where p is less than `CHANCE`, the other measures of every table, and the published cells that have a source.
    Normalizers whose weights equal those of the baseline are named in a note.
    """
    rows: dict[str, list[str]] = {}
    notes, seeds = [], runs[0].frame["seed"].n_unique()
    for run in runs:
        before = f"{run.name}: " if len(runs) > 1 else ""
        same = copies(run.frame, run.baseline)
        for name, cells in cells_of(run, lengths).items():
            if name not in same:
                rows |= {before + name + ending: row for ending, row in cells.items()}
        notes += [f"{before}same as {run.baseline}: {', '.join(same)}"] if same else []
    over_sets = runs[0].tests is not None
    half = " ± half its 95 % interval (t)" * (seeds > 1 and not over_sets)
    notes.append(f"accuracy: % of sets, {charts.mean_of(seeds)}{half}")
    captions = {name: f"{entry.caption}, {entry.unit}".rstrip(", ") for name, entry in EVALUATION.items()}
    captions |= {name: caption for name, (_, caption) in TESTS.items()}
    for name, _ in other_measures():
        if any(row.endswith(f", {name}") for row in rows):
            notes.append(f"{name}: {captions[name]}")
    gains = [row for name, row in rows.items() if name.endswith(GAIN)]
    if gains:
        over = runs[0].baseline if len(runs) == 1 else "the normalizer of the training"
        test = "p as below" if over_sets else "paired t-test, Holm over normalizers and lengths beyond training"
        notes.append(f"gain: points over {over}" + f", * p < {CHANCE} ({test})" * ("*" in str(gains)))
    published = [row for name, row in rows.items() if name.endswith(PUBLISHED)]
    return rows, [*notes, *[accuracy.published_note(published)] * bool(published)]


def cells_of(run: Evaluated, lengths: Sequence[int]) -> dict[str, dict[str, list[str]]]:
    """Returns the rows of each normalizer of a run, the baseline first, by the end of their names."""
    summary = {(row["normalizer"], row["n"]): row for row in run.summary.to_dicts()}
    by_normalizer = {}
    for name in sorted(run.normalizers, key=run.baseline.__ne__):
        at_lengths = [summary.get((name, n), {}) for n in lengths]
        rows = {"": [with_half(row, "accuracy", "interval", ".1f") for row in at_lengths]}
        rows[GAIN] = [with_half(row, "gain", "gain_interval", "+.1f") + star(row) for row in at_lengths]
        for measure, form in other_measures():
            rows[f", {measure}"] = [number_or_dash(row.get(measure), form) for row in at_lengths]
        if published := run.published.get(name):
            cells = accuracy.published_cells(name, published, [n for n in lengths if n not in accuracy.UNCONFIRMED])
            rows[PUBLISHED] = [cells.get(n, "–") for n in lengths]
        shown = (row for row in rows.items() if row[0] == "" or {*row[1]} != {"–"})
        by_normalizer[name] = dict(shown)
    return by_normalizer


def star(row: Mapping[str, Any]) -> str:
    """Returns a star for a gain beyond chance."""
    return "*" if (p := row.get("p_value")) is not None and p < CHANCE else ""


def other_measures() -> list[tuple[str, str]]:
    """Returns the measures that every table has beside the accuracy, each with its form."""
    shown = [(name, entry.form) for name, entry in EVALUATION.items() if entry.tables == "all" and name != "accuracy"]
    return shown + [(name, form) for name, (form, _) in TESTS.items()]


def with_half(row: Mapping[str, Any], value: str, half: str, form: str) -> str:
    """Returns a number of a row with half its interval, or a dash.

    >>> with_half({"gain": -0.04, "half": 0.12}, "gain", "half", "+.1f"), with_half({}, "gain", "half", ".1f")
    ('+0.0±0.1', '–')
    """
    if row.get(value) is None:
        return "–"
    return format(round(row[value], 1) + 0.0, form) + ("" if row[half] is None else f"±{row[half]:.1f}")


def frame_of(runs: Sequence[Evaluated]) -> pl.DataFrame:
    """Returns the rows of every run that were asked for, after the labels that tell the runs apart."""
    frames = [run.frame.select(pl.selectors.by_name(*KEYS, *EVALUATION, require_all=False)) for run in runs]
    labels = [[pl.lit(text).alias(column) for column, text in run.labels.items()] for run in runs]
    return pl.concat(frame.select(*columns, pl.all()) for columns, frame in zip(labels, frames))


def draw_runs(runs: Sequence[Evaluated]) -> Chart:
    """Draws the accuracies of runs under a title with the shortest length that was not trained, and the longest."""
    titles = []
    for run in runs:
        right, ends = accuracies(run), dict.fromkeys((shortest(run), max(run.frame["n"])))
        at_ends = (f"{right[n]:.1f} % right at {count(n)} items" for n in ends)
        titles.append(f"{run.name if len(runs) > 1 else run.baseline}: {', '.join(at_ends)}")
    task = runs[0].task
    seeds = charts.mean_of(runs[0].frame["seed"].n_unique(), ", 95 % band")
    trained = f"{task.name.replace('_', ' ')}, trained on at most {task.longest} items; {seeds}"
    frames = [run.frame.with_columns(pl.lit(run.name).alias("run")) if runs[1:] else run.frame for run in runs]
    published = {run.name if runs[1:] else "": run.published for run in runs}
    return accuracy.accuracy_chart(pl.concat(frames), "; ".join(titles), published, trained)


def write(
    output: Path, settings: Mapping[str, Any], runs: Sequence[Evaluated], paper: Paper | None = None
) -> list[Path]:
    """Writes the rows of an evaluation, its summary with its findings, and its chart; returns the files."""
    paths, rows = [output / "evaluation.csv", output / "evaluation.json"], frame_of(runs)
    write_csv(paths[0], rows.columns, rows.rows())
    summary = [dict(run.labels) | row for run in runs for row in run.summary.to_dicts()]
    sentences = {run.name: answers(run) for run in runs}
    write_json(paths[1], {"settings": settings, "versions": versions(), "summary": summary, "found": sentences})
    return paths + save_chart(draw_runs(runs), output / "accuracy", paper)


def show(console: Console, runs: Sequence[Evaluated], requested: Sequence[int] = (), full: bool = False) -> None:
    """Prints the accuracies at a few lengths, or in full every measure at every length, and the findings."""
    lengths = lengths_to_show(measured_at(runs), requested, COLUMNS)
    if full:
        for run in runs:
            accuracy.print_evaluation(console, run.summary, run.published, run.baseline)
    else:
        rows, notes = accuracy_table(runs, lengths)
        print_cells(console, {"items": list(map(str, lengths))} | rows)
        console.print("\n".join(notes), style="dim", highlight=False)
    for remark in remarks(dict.fromkeys(name for run in runs for name in run.normalizers)):
        console.print(remark, style="dim", highlight=False)
    for run in runs:
        before = f"{run.name}: " if len(runs) > 1 else ""
        for question, answer in answers(run).items():
            console.print(f"\n{before}{question}: {answer}", highlight=False)
        if "extrapolated" in run.full_frame.columns and (warning := extrapolation_warning(run.summary)):
            print(warning, file=sys.stderr)


def print_cells(console: Console, rows: Mapping[str, Sequence[str]]) -> None:
    """Prints rows of cells under each other, each after its name; a name that leaves them no room stands above them."""
    width = 1 + max(len(cell) for cells in rows.values() for cell in cells)
    ends = (GAIN, PUBLISHED, *(f", {measure}" for measure, _ in other_measures()))
    names = {row: f"  {row.split(', ')[-1]}" if row.endswith(ends) else row for row in rows}
    room = min(max(map(len, names.values())), console.width - width * len(rows["items"]))
    for row, cells in rows.items():
        name = names[row]
        if len(name) > room:
            console.print(name, highlight=False)
            name = ""
        console.print(name.ljust(room) + "".join(cell.rjust(width) for cell in cells), highlight=False)
