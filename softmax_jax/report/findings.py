"""What was found of runs: in sentences, in a table for a terminal, in charts and in files."""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import polars as pl
from rich.console import Console

from softmax_jax.files import versions, write_csv, write_json
from softmax_jax.measures import dispersion
from softmax_jax.measures.dispersion import HARDMAX
from softmax_jax.measures.evaluation import AS_TRAINED, BASELINE, TRUE_ITEM, Measured, named_normalizers, summarize
from softmax_jax.measures.statistics import over_seeds
from softmax_jax.measures.table import EVALUATION, KEYS
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.report import accuracy, charts
from softmax_jax.report.charts import PUBLISHED, Chart, Paper, save_chart
from softmax_jax.tasks import precision
from softmax_jax.tasks.task import Task
from softmax_jax.training.config import Config, changed
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.training.trainer import Parameters

CHANCE = 0.05
"""P below which a gain is named."""
HALF = 50.0
"""Accuracy in percent at which to ask why."""
COLUMNS = 6
"""Lengths that a table shows side by side."""
SHORTEST = 16
"""Of a task's own lengths, the least to show unless others are asked for."""
GAIN = ", gain"
"""How the name of a row of gains ends."""
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
CALLED = {SHIPPED.resolve() / "paper": "our replication"}


class Loaded(NamedTuple):
    """A run with the normalizers to show of it."""

    name: str
    path: Path
    config: Config
    parameters: Parameters
    normalizers: dict[str, Normalizer | None]


def load_runs(paths: Sequence[Path], specs: Sequence[str], **changes: Any) -> list[Loaded]:
    """Loads runs, with changed settings, before anything is measured, as one may be damaged or missing.

    Raises ValueError for that, and unless all are of one task.
    """
    runs = []
    for name, path in zip(names_of(paths), paths):
        config, parameters = load_checkpoint(path)
        config = changed(config, **changes)
        runs.append(
            Loaded(name, path, config, parameters, named_normalizers(specs, path, parameters, config.normalizer))
        )
    tasks = list(dict.fromkeys(run.config.task.name for run in runs))
    if len(tasks) > 1:
        raise ValueError(f"the runs are of {' and '.join(tasks)}: they must be of one task, so leave one out")
    return runs


def names_of(paths: Sequence[Path]) -> list[str]:
    """Returns names for the runs: those of their directories, or whole paths where those are the same."""
    short = [CALLED.get(path.resolve(), path.resolve().name) for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


class Evaluated(NamedTuple):
    """One run under every normalizer that was asked for."""

    name: str
    task: Task
    normalizers: tuple[str, ...]
    measured: Sequence[Measured]
    """By length, for a page; hardmax and the true item alone may be measured beyond what was asked for."""
    everything: pl.DataFrame
    """The frame of all that was measured."""

    def asked(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Returns the rows of the normalizers that were asked for."""
        return frame.filter(pl.col("normalizer").is_in(self.normalizers))

    @property
    def frame(self) -> pl.DataFrame:
        """The frame of what was asked for."""
        return self.asked(self.everything)

    @property
    def baseline(self) -> str:
        """The normalizer that sentences are about: that of the training, or the first if that was not measured."""
        trained = [name for name in self.normalizers if name.endswith(AS_TRAINED)]
        return (trained or [BASELINE] * (BASELINE in self.normalizers) or list(self.normalizers))[0]

    @property
    def looked_into(self) -> str:
        """The normalizer whose rows of attention a page looks into: those under learned numbers are not seen."""
        seen = self.frame.filter(pl.col("entropy").is_not_null())["normalizer"].unique(maintain_order=True).to_list()
        return next((name for name in (self.baseline, BASELINE) if name in seen), seen[0])

    @property
    def summary(self) -> pl.DataFrame:
        """Means over seeds with intervals, and gains over the baseline."""
        return summarize(self.frame, self.baseline)

    @property
    def published(self) -> accuracy.Published:
        """The accuracies published for models like these: none unless softmax was in their training."""
        return accuracy.published_for(self.task) if self.baseline == BASELINE else {}

    @property
    def compared(self) -> dict[str, list[accuracy.Compared]]:
        """The published rows beside ours, as far as there are lengths of both."""
        summary = self.summary if self.published else pl.DataFrame()
        rows = {name: accuracy.compare(summary.filter(normalizer=name), row) for name, row in self.published.items()}
        return {name: cells for name, cells in rows.items() if cells}


def count(value: float | int) -> str:
    """Returns a number of items, by its magnitude where it is astronomic.

    >>> count(16384), count(1234.4), count(2e40)
    ('16,384', '1,234', '10⁴⁰')
    """
    return f"{value:,.0f}" if value < 1e7 else "10" + f"{math.log10(value):.0f}".translate(RAISED)


def said(run: Evaluated) -> dict[str, str]:
    """Says what falls as sets grow, why, what helps, and whether it is the paper's, each in a sentence."""
    facts = {"What falls": falls(run)}
    if {HARDMAX, TRUE_ITEM} <= set(run.everything["normalizer"]):
        facts["Why"] = why(run)
    if helped := helps(run):
        facts["What helps"] = helped
    return facts | ({"The paper": f"{accuracy.verdict(cells)}."} if (cells := run.compared) else {})


def falls(run: Evaluated) -> str:
    """Says the accuracy in training and at the longest length."""
    by_length, longest, start = accuracies(run), run.task.longest, shortest(run)
    lengths = sorted(by_length)
    return (
        f"Trained on sets of at most {longest} items, attention with {run.baseline.removesuffix(AS_TRAINED)} answers "
        f"{by_length[start]:.1f} % of the sets of {count(start)} items right, and {by_length[lengths[-1]]:.1f} % of "
        f"those of {count(lengths[-1])}."
    )


def shortest(run: Evaluated) -> int:
    """Returns the length to compare others with: the longest that training saw, or the shortest."""
    lengths = run.frame["n"].unique().sort().to_list()
    return max((n for n in lengths if n <= run.task.longest), default=lengths[0])


def why(run: Evaluated) -> str:
    """Says which cause loses how many sets, at the length where about half are lost, and how many rounding hides."""
    by_length = accuracies(run)
    n = min(by_length, key=lambda n: abs(by_length[n] - HALF))
    lost = dispersion.losses(run.everything).filter(normalizer=run.baseline, n=n)
    spread, key, value = lost.select(pl.mean("dispersion", "key", "value")).row(0)
    dispersed = f"loses {spread:.1f} % to dispersion: the true item has the largest logit, but others share its weight"
    not_dispersed = "loses nothing to dispersion: all weight on the largest logit would do no better"
    causes = (
        f"At {count(n)} items it answers {by_length[n]:.1f} % right, and {dispersed if spread > 0 else not_dispersed}. "
        f"It loses {key + min(spread, 0):.1f} % to the key, which gives another item the largest logit, and "
        f"{max(value, 0):.1f} % to the value."
    )
    matmul = getattr(run.task, "matmul", precision.FLOAT32)
    if matmul not in precision.SPACING:
        return causes
    return (
        f"{causes} Its matrix products are rounded to {matmul}: items whose ρ lie within "
        f"{precision.SPACING[matmul]:.1g} of each other tie, which no normalizer can mend."
    )


def helps(run: Evaluated) -> str | None:
    """Says the largest gain of another normalizer that is beyond chance, of those whose weights depend on no offset.

    Of one seed, which gives no test, the largest gain; None where there is nothing to compare.
    """
    others = set(run.normalizers) - {run.baseline, *accuracy.moved_by_offset(run.normalizers)}
    all_gains = run.summary.filter(pl.col("normalizer").is_in(others))
    gains = all_gains.filter(pl.col("gain") > 0)
    tested = run.frame["seed"].n_unique() > 1
    if tested:
        gains = gains.filter(pl.col("p_value") < CHANCE)
    if gains.is_empty():
        least = f"; one of {all_gains['detectable'].max():.1f} points would most likely have shown" if tested else ""
        nothing = f"No normalizer swapped in at test time is shown to win anything back (p < {CHANCE}{least})."
        return nothing if others else None
    best = gains.row(gains["gain"].arg_max() or 0, named=True)
    return (
        f"Of the normalizers swapped in at test time, {best['normalizer']} wins back most: {best['gain']:.1f} points "
        f"at {count(best['n'])} items, from {best['accuracy'] - best['gain']:.1f} % to {best['accuracy']:.1f} % "
        f"({'p = {:.1g}'.format(best['p_value']) if tested else 'one seed, so no test'})."
    )


def accuracies(run: Evaluated) -> dict[int, float]:
    """Returns the mean accuracy of the baseline in percent by length."""
    means = over_seeds(run.frame.filter(normalizer=run.baseline), ["n"], "accuracy")
    return dict(means.select("n", "value").rows())


def few(lengths: Sequence[int]) -> list[int]:
    """Returns at most `COLUMNS` of these lengths, evenly, with the first and the last.

    >>> few([16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384])
    [16, 64, 256, 1024, 4096, 16384]
    """
    places = np.linspace(0, len(lengths) - 1, min(len(lengths), COLUMNS)).round()
    return [lengths[int(place)] for place in places]


def lengths_of(runs: Sequence[Evaluated], asked: Sequence[int] = ()) -> list[int]:
    """Returns the lengths that a table shows: of those asked for, or else of the task's own without the shortest."""
    lengths = sorted({n for run in runs for n in run.frame["n"]})
    return few([n for n in lengths if n in asked or n >= SHORTEST] or lengths)


def table_rows(run: Evaluated, lengths: Sequence[int]) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the cells of each row by its name, and the normalizers that equal the baseline in every cell.

    The baseline comes first. Under each other normalizer stands its gain over that, with a star where p is less than
    `CHANCE`; under those that were published, the cells that have a source.
    """
    found = {(row["normalizer"], row["n"]): row for row in run.summary.to_dicts()}
    rows: dict[str, list[str]] = {}
    same = []
    for name in [run.baseline, *(name for name in run.normalizers if name != run.baseline)]:
        of_lengths = [found.get((name, n), {}) for n in lengths]
        cells = [with_half(row.get("accuracy"), row.get("interval"), ".1f") for row in of_lengths]
        marks = ["*" * (row.get("p_value") is not None and row["p_value"] < CHANCE) for row in of_lengths]
        gains = [
            with_half(row.get("gain"), row.get("gain_interval"), "+.1f") + mark for row, mark in zip(of_lengths, marks)
        ]
        if rows and cells == rows[run.baseline] and {"+0.0", "+0.0±0.0"}.issuperset(gains):
            same.append(name)
            continue
        rows[name] = cells
        if {*gains} != {"–"}:
            rows[name + GAIN] = gains
        if published := {n: row for n, row in run.published.get(name, {}).items() if n not in accuracy.UNCONFIRMED}:
            rows[name + PUBLISHED] = [f"{published[n]:.1f}" if n in published else "–" for n in lengths]
    return rows, same


def with_half(value: float | None, half: float | None, form: str) -> str:
    """Returns a number with half its interval, as far as there are such.

    >>> with_half(-0.04, 0.12, "+.1f"), with_half(98.52, None, ".1f"), with_half(None, None, ".1f")
    ('+0.0±0.1', '98.5', '–')
    """
    if value is None:
        return "–"
    return format(round(value, 1) + 0.0, form) + ("" if half is None else f"±{half:.1f}")


def frame_of(runs: Sequence[Evaluated]) -> pl.DataFrame:
    """Returns what was asked for of every run; of several, which run it is stands in the first column."""
    frames = [run.frame.select(pl.selectors.by_name(*KEYS, *EVALUATION, require_all=False)) for run in runs]
    if len(runs) == 1:
        return frames[0]
    return pl.concat(frame.select(pl.lit(run.name).alias("run"), pl.all()) for run, frame in zip(runs, frames))


def accuracy_chart(runs: Sequence[Evaluated]) -> Chart:
    """Draws accuracy by number of items: a line for each normalizer, and a panel for each of several runs."""
    first, end = runs[0], max(n for run in runs for n in run.frame["n"])
    if len(runs) > 1:
        reached = (f"{run.name} {accuracies(run).get(end, math.nan):.1f} %" for run in runs)
        title = f"Right at {count(end)} items: {', '.join(reached)}"
    else:
        right = (f"{accuracies(first)[n]:.1f} % right at {count(n)} items" for n in (shortest(first), end))
        title = f"{first.baseline}: {', '.join(right)}"
    seeds = charts.mean_of(first.frame["seed"].n_unique(), ", 95 % band")
    trained = f"{first.task.name.replace('_', ' ')}, trained on at most {first.task.longest} items; {seeds}"
    beside = [name for run in runs for name in run.normalizers]
    panels = [accuracy.accuracy_chart(run.frame, run.name, {}, beside) for run in runs]
    chart = alt.concat(*panels, columns=2) if len(panels) > 1 else panels[0]
    return chart.properties(title=charts.chart_title(title, trained))


def write(
    output: Path, settings: Mapping[str, Any], runs: Sequence[Evaluated], paper: Paper | None = None
) -> list[Path]:
    """Writes the rows of an evaluation, its summary with what it found, and its charts; returns the files."""
    paths, rows = [output / "evaluation.csv", output / "evaluation.json"], frame_of(runs)
    write_csv(paths[0], rows.columns, rows.rows())
    several = [{"run": run.name} if len(runs) > 1 else {} for run in runs]
    summary = [of_run | row for run, of_run in zip(runs, several) for row in run.summary.to_dicts()]
    answers = {run.name: said(run) | mean_gains(run) for run in runs}
    write_json(paths[1], {"settings": settings, "versions": versions(), "summary": summary, "found": answers})
    drawn = {"accuracy": accuracy_chart(runs)}
    if len(runs) == 1 and runs[0].compared:
        drawn["published"] = accuracy.difference_chart(accuracy.cells_frame(runs[0].compared))
    for name, chart in drawn.items():
        paths += save_chart(chart, output / name, paper)
    return paths


def mean_gains(run: Evaluated) -> dict[str, str]:
    """Says what the published method gains in the mean of the published lengths, where both were measured."""
    gained = accuracy.mean_gain(run.frame, run.published.get(BASELINE, ()))
    return {"Mean gain": gained} if gained else {}


def show(console: Console, runs: Sequence[Evaluated], asked: Sequence[int] = (), full: bool = False) -> None:
    """Prints the table, in full or a few lengths of it, and what was found."""
    if full:
        for run in runs:
            accuracy.print_evaluation(console, run.summary, run.published, run.baseline)
    else:
        print_table(console, runs, lengths_of(runs, asked))
    for remark in accuracy.remarks(dict.fromkeys(name for run in runs for name in run.normalizers)):
        console.print(remark, highlight=False)
    for run in runs:
        console.print()
        for question, answer in (said(run) | (mean_gains(run) if full else {})).items():
            console.print(f"{run.name + ': ' if len(runs) > 1 else ''}{question}: {answer}", highlight=False)
        if "extrapolated" in run.everything.columns and (warning := accuracy.extrapolation_warning(run.summary)):
            print(warning, file=sys.stderr)


def print_table(console: Console, runs: Sequence[Evaluated], lengths: Sequence[int]) -> None:
    """Prints accuracies with half their intervals, and gains, at a few lengths."""
    rows: list[tuple[str, Sequence[str]]] = [("items", list(map(str, lengths)))]
    for run in runs:
        of_run, same = table_rows(run, lengths)
        rows += [(f"{run.name}:", [])] if len(runs) > 1 else []
        for name, cells in of_run.items():
            kind = name.rpartition(", ")[2]
            rows.append((f"  {kind}" if name.endswith((GAIN, PUBLISHED)) else name, cells))
        rows += [(f"same as {run.baseline}: {', '.join(same)}", [])] if same else []
    tables.print_cells(console, rows)
    kinds, seeds = dict(rows), runs[0].frame["seed"].n_unique()
    notes = [f"accuracy: % of sets, {charts.mean_of(seeds)}" + " ± half its 95 % interval" * (seeds > 1)]
    if "  gain" in kinds:
        over = runs[0].baseline if len(runs) == 1 else "the normalizer of the training"
        test = f", * p < {CHANCE} (paired t-test over seeds, Holm for the lengths)" * (seeds > 1)
        notes.append(f"gain: points over {over}{test}")
    if "  published" in kinds:
        notes.append(accuracy.SOURCE.partition(", *")[0])
    console.print("; ".join(notes), style="dim", highlight=False)
