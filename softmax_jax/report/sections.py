"""The questions that the page asks of a run, and the answers: sentences and charts, all made from what was measured."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from softmax_jax import dispersion
from softmax_jax.dispersion import Measured, Resolution
from softmax_jax.evaluation import CSV_COLUMNS, Row, Summary, summarize
from softmax_jax.refit import ALL_LENGTHS
from softmax_jax.report import page
from softmax_jax.report.charts import FAIR, accuracy_chart
from softmax_jax.report.page import Cell, Figure, Section
from softmax_jax.report.playground import NORMALIZERS, playground_chart
from softmax_jax.report.tables import number_or_dash
from softmax_jax.tasks import published
from softmax_jax.temperature import Rows, TemperatureFit

HALF = 50.0
"""Accuracy in percent at which a normalizer counts as lost."""


class Evaluated(NamedTuple):
    """One run under every normalizer, as `evaluate` measures it."""

    name: str
    longest_in_training: int
    rows: Sequence[Row]

    @property
    def summaries(self) -> list[Summary]:
        """Means over seeds."""
        return summarize(self.rows)


class Study(NamedTuple):
    """What is looked at more closely, of one run."""

    name: str
    measured: Measured
    resolution: Resolution
    searched: Mapping[int, Rows]
    """Rows with their best temperatures, by length."""
    fits: Mapping[str, TemperatureFit]


def percent(value: float) -> str:
    """A share in words.

    >>> percent(99.858), percent(7.0)
    ('99.9 %', '7.0 %')
    """
    return f"{value:.1f} %"


def count(value: float) -> str:
    """A number of items, by its magnitude where it is astronomic.

    >>> count(16384), count(1234.5), count(3.2e40)
    ('16,384', '1,234', '10^40')
    """
    return f"{value:,.0f}" if value < 1e7 else f"10^{np.log10(value):.0f}"


def listed(parts: Sequence[str]) -> str:
    """The parts as a sentence would name them.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def report_sections(runs: Sequence[Evaluated], study: Study) -> list[Section]:
    """All sections in order."""
    return [result_section(runs), accuracy_section(runs), playground_section()]


def result_section(runs: Sequence[Evaluated]) -> Section:
    """The result in a sentence, and the table of every run."""
    parts = []
    for index, run in enumerate(runs):
        parts += [f"<h3>{page.escape(run.name)}</h3>"] if len(runs) > 1 else []
        parts += result_tables(f"table-{index}", run)
    sentences = [headline(run, named=len(runs) > 1) for run in runs]
    return Section("result", "How well does attention find the largest of n items?", sentences, parts)


def headline(run: Evaluated, named: bool) -> str:
    """What the first normalizer gets wrong as sets grow, and what the best of the others wins back."""
    by_name = accuracies(run)
    first, *others = by_name
    lengths = list(by_name[first])
    start = max((n for n in lengths if n <= run.longest_in_training), default=lengths[0])
    sentence = (
        f"Trained on sets of at most {run.longest_in_training} items, attention with {first} finds the largest in "
        f"{percent(by_name[first][start])} of sets of {count(start)} and {percent(by_name[first][lengths[-1]])} of "
        f"sets of {count(lengths[-1])}"
    )
    if others:
        gain, n, best = max((by_name[name][n] - by_name[first][n], n, name) for name in others for n in lengths)
        sentence += (
            f"; of the normalizers swapped in at test time, {best} wins back most, {gain:.1f} points at {count(n)} "
            f"items, from {percent(by_name[first][n])} to {percent(by_name[best][n])}"
        )
    return f"{run.name}: {sentence}." if named else f"{sentence}."


def accuracies(run: Evaluated) -> dict[str, dict[int, float]]:
    """Mean accuracy in percent by normalizer and length."""
    found: dict[str, dict[int, float]] = {}
    for summary in run.summaries:
        found.setdefault(summary.normalizer, {})[summary.n] = summary.accuracy
    return {name: dict(sorted(by_length.items())) for name, by_length in found.items()}


def result_tables(name: str, run: Evaluated) -> list[str]:
    """Accuracy, loss and p of the evaluation, one table each, and the radio buttons that choose among them."""
    summaries = run.summaries
    lengths = sorted({summary.n for summary in summaries})
    cells = {(summary.normalizer, summary.n): summary for summary in summaries}
    names = list(dict.fromkeys(summary.normalizer for summary in summaries))
    seeds = len({row.seed for row in run.rows})
    measures = {
        "accuracy": (
            f"Accuracy in % of sets, mean of {seeds} seeds, ± half the 95 % interval (t); published: arXiv 2410.01104, "
            "Table 1, * unconfirmed",
            accuracy_cell,
        ),
        "loss": ("Cross-entropy in nats, mean over sets and seeds", loss_cell),
        "p": (f"P of the paired t-test over seeds against {names[0]}", p_cell),
    }
    parts = [page.choice_html("Show", {f"{name}-{measure}": measure for measure in measures})]
    for measure, (caption, cell) in measures.items():
        rows = [page.Row(which, [cell(cells[which, n]) for n in lengths]) for which in names]
        if measure == "accuracy":
            rows += [
                page.Row(f"{which}, published", [published_cell(row, n) for n in lengths], reference=True)
                for which, row in published.ACCURACY.items()
            ]
        columns = ["normalizer", *map(count, lengths)]
        table = f"{name}-{measure}"
        parts.append(page.table_html(caption, columns, rows, name=table, hidden=measure != "accuracy"))
    return parts


def accuracy_cell(summary: Summary) -> Cell:
    """Accuracy and its interval."""
    remark = "" if summary.interval is None else f"±{summary.interval:.2f}"
    return Cell(f"{summary.accuracy:.2f}", summary.accuracy, remark)


def loss_cell(summary: Summary) -> Cell:
    """Cross-entropy."""
    return Cell(f"{summary.loss:.3f}", summary.loss)


def p_cell(summary: Summary) -> Cell:
    """The p-value, if there is one."""
    return Cell(number_or_dash(summary.p_value, ".1g"), summary.p_value)


def published_cell(row: Mapping[int, float], n: int) -> Cell:
    """The published accuracy, if there is one."""
    if n not in row:
        return Cell("–")
    return Cell(f"{row[n]:.1f}", row[n], "*" if n in published.UNCONFIRMED else "")


def accuracy_section(runs: Sequence[Evaluated]) -> Section:
    """Accuracy by length, a chart for every run."""
    figures = []
    for index, run in enumerate(runs):
        seeds = len({row.seed for row in run.rows})
        name = "accuracy" if len(runs) == 1 else f"accuracy_{index + 1}"
        title = "How far does attention reach?"
        chart = accuracy_chart(run.summaries, seeds, title if len(runs) == 1 else f"{title} {run.name}")
        rows = [row[: len(CSV_COLUMNS)] for row in run.rows]
        figures.append(Figure(name, chart, CSV_COLUMNS, rows))
    sentences = [
        *(reach(run, named=len(runs) > 1) for run in runs),
        "Click a name in the legend, or press Enter on it, to see that normalizer alone; with Shift to add others. "
        "Dashed lines are the published accuracies of arXiv 2410.01104, from other models.",
    ]
    if any(ALL_LENGTHS in accuracies(run) for run in runs):
        sentences.append(f"{FAIR}: claims to generalise rest on that one.")
    return Section("accuracy", "How far does each normalizer reach?", sentences, figures)


def reach(run: Evaluated, named: bool) -> str:
    """Where the accuracy of each normalizer falls to a half."""
    falls, lasts = {}, []
    for name, by_length in accuracies(run).items():
        at = dispersion.crossing(list(by_length), list(by_length.values()), HALF)
        if at is not None:
            falls[name] = at
        elif list(by_length.values())[-1] > HALF:
            lasts.append(name)
    parts = [f"{name} at {count(n)} items" for name, n in sorted(falls.items(), key=lambda fall: fall[1])]
    clauses = [f"Half of the sets are answered wrong under {listed(parts)}"] if parts else []
    if lasts:
        clauses.append(
            f"{listed(lasts)} {'stays' if len(lasts) == 1 else 'stay'} above a half at every measured length"
        )
    sentence = "; ".join(clauses) or "No normalizer answers half of the sets at any measured length"
    return f"{run.name}: {sentence}." if named else f"{sentence}."


def playground_section() -> Section:
    """The chart to play with."""
    return Section(
        "playground",
        "What does each normalizer do to a row of logits?",
        [
            "Move the sliders: your browser weighs the row anew, by the same formulas as the package.",
            "One item is the best; its logit stands the gap above the middle of the others, which lie within ± noise "
            "of it. Raise n to see softmax disperse, sharpen it with θ or s, and raise the noise above the gap to see "
            "that no temperature helps once another logit is the largest: hardmax then picks the wrong item.",
            f"There are {len(NORMALIZERS)} normalizers to choose from. θ acts on temperature alone, s on ssmax and "
            "scalable_softpick; all others use the numbers they are registered with.",
        ],
        [Figure("playground", playground_chart())],
    )
