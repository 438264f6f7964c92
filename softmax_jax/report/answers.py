"""The evaluation of answers in words: a table for each algorithm, and its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from softmax_jax.files import versions, write_csv, write_json
from softmax_jax.measures.answers import COLUMNS, accuracies, summarize_answers
from softmax_jax.report.accuracy import settings_to_keep
from softmax_jax.report.tables import groups_of, print_groups
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


def show_and_write_answers(output: Path, options: Mapping[str, Any], answers: pl.DataFrame, task: Task) -> list[Path]:
    """Prints the evaluation, and writes its rows and its summary with the settings; returns the files."""
    summary = summarize_answers(answers)
    print_answers(Console(), summary)
    paths = [output / "evaluation.csv", output / "evaluation.json"]
    write_csv(paths[0], COLUMNS, accuracies(answers).rows())
    kept = {"settings": settings_to_keep(options), "versions": versions(), "summary": summary.to_dicts()}
    write_json(paths[1], kept)
    return paths
