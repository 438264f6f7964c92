"""Findings about runs: in sentences, in a table for a terminal, in charts and in files."""

import dataclasses
import functools
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl
from rich.console import Console

from softmax_jax.experiment.measures import dispersion
from softmax_jax.experiment.measures.dispersion import HARDMAX
from softmax_jax.experiment.measures.evaluation import Measured
from softmax_jax.experiment.measures.references import TRUE_ITEM
from softmax_jax.experiment.measures.runs import AS_TRAINED, COLUMNS, lengths_to_show
from softmax_jax.experiment.measures.significance import over_seeds
from softmax_jax.experiment.measures.summary import summarize
from softmax_jax.experiment.measures.table import BASELINE, EVALUATION, KEYS, TESTS
from softmax_jax.experiment.report import Paper, accuracy, charts
from softmax_jax.experiment.report.charts import PUBLISHED, Chart, save_chart
from softmax_jax.experiment.report.tables import number_or_dash
from softmax_jax.experiment.tasks import rounded_products
from softmax_jax.experiment.tasks.task import Task
from softmax_jax.files import versions, write_csv, write_json

CHANCE = 0.05
"""P below which a gain is named."""
HALF = 50.0
"""Accuracy in percent at which to ask why."""
GAIN = ", gain"
"""How the name of a row of gains ends."""
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """One run under every normalizer that was asked for."""

    name: str
    task: Task
    normalizers: tuple[str, ...]
    measured: Sequence[Measured]
    """By length, for a page; hardmax and the true item alone may be measured beyond what was asked for."""
    everything: pl.DataFrame
    """The frame of all that was measured."""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Columns that tell it from other runs, or from other parts of a task."""
    tests: pl.DataFrame | None = None
    """Tests over sets by normalizer and length, in the columns of `TESTS`."""

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

    @functools.cached_property
    def summary(self) -> pl.DataFrame:
        """Means over seeds with intervals, and gains over the baseline."""
        summary = summarize(self.frame, self.baseline)
        return summary if self.tests is None else summary.join(self.tests, ["normalizer", "n"], maintain_order="left")

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

    @property
    def cells(self) -> pl.DataFrame:
        """The published cells beside ours, with the ceiling of the products' precision."""
        return accuracy.cells_frame(self.published, self.compared, self.matmul)

    @property
    def matmul(self) -> str:
        """The precision of the model's matrix products."""
        return getattr(self.task, "matmul", rounded_products.FLOAT32)


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
    return facts | ({"The paper": f"{accuracy.verdict(cells)}. {accuracy.RULE}"} if (cells := run.compared) else {})


def falls(run: Evaluated) -> str:
    """Says the accuracy in training and at the longest length."""
    by_length, start = accuracies(run), shortest(run)
    last = max(by_length)
    beyond = f", and {by_length[last]:.1f} % of those of {count(last)}" if last != start else ""
    return (
        f"Trained on sets of at most {run.task.longest} items, attention with {run.baseline.removesuffix(AS_TRAINED)} "
        f"answers {by_length[start]:.1f} % of the sets of {count(start)} items right{beyond}."
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
    would = f"answers {spread:.1f} points more: so much" if spread > 0 else "does no better: nothing"
    misread = f", and the value, which is misread under any weights, {value:.1f}" if round(value, 1) > 0 else ""
    causes = (
        f"At {count(n)} items it answers {by_length[n]:.1f} % of the sets right. All weight on the largest logit "
        f"(hardmax) {would} is lost to dispersion. The key, which gives another item the largest logit, loses "
        f"{key + min(spread, 0):.1f} points{misread}."
    )
    if run.matmul not in rounded_products.SPACING:
        return causes
    return (
        f"{causes} Its matrix products are rounded to {run.matmul}: items whose ρ lie within "
        f"{rounded_products.SPACING[run.matmul]:.1g} of each other tie, which no normalizer can mend."
    )


def helps(run: Evaluated) -> str | None:
    """Says the largest gain of another normalizer that is beyond chance, of those whose weights depend on no offset.

    Of one seed, which gives no test, the largest gain; None where there is nothing to compare.
    """
    others = set(run.normalizers) - {run.baseline, *accuracy.moved_by_offset(run.normalizers)}
    if not others:
        return None
    all_gains = run.summary.filter(pl.col("normalizer").is_in(others))
    gains = all_gains.filter(pl.col("gain") > 0)
    tested = run.frame["seed"].n_unique() > 1
    if tested:
        gains = gains.filter(pl.col("p_value") < CHANCE)
    if gains.is_empty():
        least = all_gains["detectable"].max()
        seen = f" A gain of {least:.1f} points at one length would have been found in 4 of 5 tests." if least else ""
        return f"No normalizer swapped in at test time is shown to win anything back (p < {CHANCE}).{seen * tested}"
    best = gains.row(gains["gain"].arg_max() or 0, named=True)
    sharpest: Any = run.everything.filter(normalizer=HARDMAX, n=best["n"])["accuracy"].mean()
    beyond = ""
    if sharpest is not None and best["accuracy"] > sharpest:
        beyond = f" Hardmax answers {sharpest:.1f} %: its one item is wrong in some sets where an average is right."
    return (
        f"Of the normalizers swapped in at test time, {best['normalizer']} wins back most: {best['gain']:.1f} points "
        f"at {count(best['n'])} items, from {best['accuracy'] - best['gain']:.1f} % to {best['accuracy']:.1f} % "
        f"({'p = {:.1g}'.format(best['p_value']) if tested else 'one seed, so no test'}).{beyond}"
    )


def accuracies(run: Evaluated) -> dict[int, float]:
    """Returns the mean accuracy of the baseline in percent by length."""
    means = over_seeds(run.frame.filter(normalizer=run.baseline), ["n"], "accuracy")
    return dict(means.select("n", "value").rows())


def measured_at(runs: Sequence[Evaluated]) -> list[int]:
    """Returns the lengths at which the runs were measured."""
    return sorted({n for run in runs for n in run.frame["n"]})


def accuracy_table(runs: Sequence[Evaluated], lengths: Sequence[int]) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the cells of each row by its name, of several runs after that of the run, and what they mean.

    Each run begins with its baseline. Under every other normalizer stands its gain over that, with a star where p is
    less than `CHANCE`, and the other measures of every table; under a published one, the cells that have a source. What
    equals the baseline is named below.
    """
    rows: dict[str, list[str]] = {}
    notes, seeds, others = [], runs[0].frame["seed"].n_unique(), other_measures()
    for run in runs:
        before = f"{run.name}: " if len(runs) > 1 else ""
        found = {(row["normalizer"], row["n"]): row for row in run.summary.to_dicts()}
        same = []
        for name in sorted(run.normalizers, key=run.baseline.__ne__):
            of_lengths = [found.get((name, n), {}) for n in lengths]
            cells = [with_half(row, "accuracy", "interval", ".1f") for row in of_lengths]
            gains = [with_half(row, "gain", "gain_interval", "+.1f") for row in of_lengths]
            significant = [(1.0 if (p := row.get("p_value")) is None else p) < CHANCE for row in of_lengths]
            more = {measure: [number_or_dash(row.get(measure), form) for row in of_lengths] for measure, form in others}
            alike = cells == rows.get(before + run.baseline) and {*gains} <= {"+0.0", "+0.0±0.0"}
            alike &= all(found == rows.get(f"{before}{run.baseline}, {one}", found) for one, found in more.items())
            if alike and not any(significant):
                same.append(name)
                continue
            rows[before + name] = cells
            if {*gains} != {"–"}:
                rows[before + name + GAIN] = [gain + "*" * beyond for gain, beyond in zip(gains, significant)]
            rows |= {f"{before}{name}, {one}": found for one, found in more.items() if {*found} != {"–"}}
            if row := run.published.get(name):
                known = [n in row and n not in accuracy.UNCONFIRMED for n in lengths]
                rows[before + name + PUBLISHED] = [f"{row[n]:.1f}" if has else "–" for n, has in zip(lengths, known)]
        notes += [f"{before}same as {run.baseline}: {', '.join(same)}"] if same else []
    notes.append(f"accuracy: % of sets, {charts.mean_of(seeds)}" + " ± half its 95 % interval (t)" * (seeds > 1))
    printed = {measure for row in rows for measure, _ in others if row.endswith(f", {measure}")}
    notes += [
        f"{one}: {EVALUATION[one].caption}, {EVALUATION[one].unit}".rstrip(", ") for one in EVALUATION if one in printed
    ]
    notes += [f"{name}: {caption}" for name, (_, caption) in TESTS.items() if name in printed]
    over = runs[0].baseline if len(runs) == 1 else "the normalizer of the training"
    if any(name.endswith(GAIN) for name in rows):
        notes.append(f"gain: points over {over}, * p < {CHANCE} (paired t-test, Holm over the lengths)")
    return rows, [*notes, *[accuracy.SOURCE.partition(", *")[0]] * any(name.endswith(PUBLISHED) for name in rows)]


def other_measures() -> list[tuple[str, str]]:
    """Returns the measures that every table has beside the accuracy, each with its form."""
    shown = [(one, entry.form) for one, entry in EVALUATION.items() if entry.tables == "all" and one != "accuracy"]
    return shown + [(name, form) for name, (form, _) in TESTS.items()]


def with_half(row: Mapping[str, Any], value: str, half: str, form: str) -> str:
    """Returns a number of a row with half its interval, as far as there are such.

    >>> with_half({"gain": -0.04, "half": 0.12}, "gain", "half", "+.1f"), with_half({}, "gain", "half", ".1f")
    ('+0.0±0.1', '–')
    """
    if row.get(value) is None:
        return "–"
    return format(round(row[value], 1) + 0.0, form) + ("" if row[half] is None else f"±{row[half]:.1f}")


def frame_of(runs: Sequence[Evaluated]) -> pl.DataFrame:
    """Returns what was asked for of every run, after the labels that tell the runs apart."""
    frames = [run.frame.select(pl.selectors.by_name(*KEYS, *EVALUATION, require_all=False)) for run in runs]
    labels = [[pl.lit(text).alias(column) for column, text in run.labels.items()] for run in runs]
    return pl.concat(frame.select(*columns, pl.all()) for columns, frame in zip(labels, frames))


def accuracy_chart(runs: Sequence[Evaluated], asked: Sequence[int] = ()) -> Chart:
    """Draws accuracy by number of items: a line for each normalizer, and a panel for each of several runs.

    The lengths are those of `lengths_to_show`.
    """
    lengths = lengths_to_show(measured_at(runs), asked)
    first, several = runs[0], len(runs) > 1
    titles = []
    for run in runs:
        right, ends = accuracies(run), (shortest(run), max(run.frame["n"]))
        of_ends = (f"{right[n]:.1f} % right at {count(n)} items" for n in ends)
        titles.append(f"{run.name if several else run.baseline}: {', '.join(of_ends)}")
    seeds = charts.mean_of(first.frame["seed"].n_unique(), ", 95 % band")
    trained = f"{first.task.name.replace('_', ' ')}, trained on at most {first.task.longest} items; {seeds}"
    drawn = [accuracy.accuracy_chart(run.frame.filter(pl.col("n").is_in(lengths)), "", {}) for run in runs]
    chart: Any = drawn[0]
    if several:
        panels = [panel.properties(title=charts.panel_title(run.name)) for panel, run in zip(drawn, runs)]
        chart = alt.vconcat(*panels).resolve_scale(color="independent", strokeDash="independent")
    return chart.properties(title=charts.chart_title("; ".join(titles), trained))


def write(
    output: Path, settings: Mapping[str, Any], runs: Sequence[Evaluated], paper: Paper | None = None
) -> list[Path]:
    """Writes the rows of an evaluation, its summary with what it found, and its charts; returns the files."""
    paths, rows = [output / "evaluation.csv", output / "evaluation.json"], frame_of(runs)
    write_csv(paths[0], rows.columns, rows.rows())
    summary = [dict(run.labels) | row for run in runs for row in run.summary.to_dicts()]
    answers = {run.name: said(run) | mean_gains(run) for run in runs}
    write_json(paths[1], {"settings": settings, "versions": versions(), "summary": summary, "found": answers})
    drawn = {"accuracy": accuracy_chart(runs, settings["lengths"])}
    if len(runs) == 1 and runs[0].compared:
        drawn["published"] = accuracy.difference_chart(runs[0].cells)
    for name, chart in drawn.items():
        paths += save_chart(chart, output / name, paper)
    return paths


def mean_gains(run: Evaluated) -> dict[str, str]:
    """Says what the published method gains in the mean of the published lengths, where both were measured."""
    gained = accuracy.mean_gain(run.frame, run.published.get(BASELINE, ()))
    return {"Mean gain": gained} if gained else {}


def show(console: Console, runs: Sequence[Evaluated], asked: Sequence[int] = (), full: bool = False) -> None:
    """Prints the accuracies at a few lengths, or in full every measure at every length, and what was found."""
    lengths = lengths_to_show(measured_at(runs), asked, COLUMNS)
    rows, notes = accuracy_table(runs, lengths)
    if not full:
        print_cells(console, {"items": list(map(str, lengths))} | rows)
        console.print("\n".join(notes), style="dim", highlight=False)
    for run in runs if full else ():
        accuracy.print_evaluation(console, run.summary, run.published, run.baseline)
    for remark in accuracy.remarks(dict.fromkeys(name for run in runs for name in run.normalizers)):
        console.print(remark, style="dim", highlight=False)
    for run in runs:
        before = f"{run.name}: " if len(runs) > 1 else ""
        for question, answer in (said(run) | (mean_gains(run) if full else {})).items():
            console.print(f"\n{before}{question}: {answer}", highlight=False)
        if "extrapolated" in run.everything.columns and (warning := accuracy.extrapolation_warning(run.summary)):
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
