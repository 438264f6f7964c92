"""The evaluation of answers in words: a table for each algorithm, and its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl
from rich.console import Console

from softmax_jax.files import versions, write_csv, write_json
from softmax_jax.measures.answers import COLUMNS, accuracies, summarize_answers
from softmax_jax.report import charts
from softmax_jax.report.accuracy import settings_to_keep
from softmax_jax.report.colours import palette
from softmax_jax.report.drawing import Paper, save_chart
from softmax_jax.report.tables import groups_of, print_groups
from softmax_jax.runtime.command_line import plain_console
from softmax_jax.tasks.task import Task

NOTE = (
    "accuracy: % of answers right to their end; low, high: Wilson's 95 % interval over sets; p: McNemar's exact test "
    "against softmax on the same sets, corrected by Holm for all in the tables; both take the trained models as given"
)


def print_answers(console: Console, summary: pl.DataFrame) -> None:
    """Prints the accuracy by normalizer and length for each algorithm, with its interval and p."""
    shown = [(name, name, ".1f") for name in ("accuracy", "low", "high")] + [("p", "p", ".1g")]
    for (algorithm,), of_one in summary.group_by("algorithm", maintain_order=True):
        print_groups(console, str(algorithm), groups_of(of_one, shown), of_one["n"].unique().sort().to_list())
    console.print(NOTE, style="dim")


def answers_chart(summary: pl.DataFrame, title: str) -> charts.Chart:
    """Accuracy by length, a panel for each algorithm and a line for each normalizer, with Wilson's interval."""
    colour = charts.colour_by("normalizer", palette(summary["normalizer"]))
    x, y = charts.length_axis(sorted(set(summary["n"])), "length"), charts.percent_axis("right answers (%)")
    panels = [
        alt.layer(*charts.lines(of_one.rename({"accuracy": "value"}), x, y, colour)).properties(
            width=240, height=180, title=charts.panel_title(str(algorithm))
        )
        for (algorithm,), of_one in summary.group_by("algorithm", maintain_order=True)
    ]
    return alt.concat(*panels, columns=3).properties(title=charts.chart_title(title, "95 % intervals over sets"))


def show_and_write_answers(
    output: Path, options: Mapping[str, Any], answers: pl.DataFrame, task: Task, paper: Paper | None = None
) -> list[Path]:
    """Writes the rows of an evaluation, its summary and its chart, then prints the summary; returns the files."""
    summary = summarize_answers(answers)
    paths = [output / "evaluation.csv", output / "evaluation.json"]
    write_csv(paths[0], COLUMNS, accuracies(answers).rows())
    kept = {"settings": settings_to_keep(options), "versions": versions(), "summary": summary.to_dicts()}
    write_json(paths[1], kept)
    title = f"How far do answers reach that were trained at up to {task.longest} numbers?"
    paths += save_chart(answers_chart(summary, title), output / "accuracy", paper)
    print_answers(plain_console(), summary)
    return paths
