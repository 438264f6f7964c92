"""The evaluation of CLRS-Text: exact match of answers by algorithm, normalizer and length, and how it is shown."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl
from jaxtyping import Bool
from rich.console import Console
from scipy.stats import binomtest
from softmax_jax.experiment.report.chart_files import save_chart
from softmax_jax.experiment.report.print_layout import Paper

from softmax_jax.experiment.measures.evaluation import BASELINE, Plan, evaluate
from softmax_jax.experiment.measures.significance import corrected
from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.charts import palette
from softmax_jax.experiment.report.findings import Evaluated
from softmax_jax.experiment.report.tables import groups_of, print_groups
from softmax_jax.experiment.training.trainer import Parameters
from softmax_jax.files import versions, write_csv, write_json
from softmax_jax.normalizers.normalizer import Normalizer
from studies.clrs_text.task import TEST_SETS, ClrsText

EXACT = "exact_match"
COLUMNS = ("algorithm", "normalizer", "n", "seed", "accuracy")
"""Of evaluation.csv; the accuracy in percent."""
ROW = {"algorithm": pl.String, "normalizer": pl.String, "n": pl.Int64, "seed": pl.Int64, "right": pl.List(pl.Boolean)}


def lengths_of(task: ClrsText, asked: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The lengths to test each algorithm at: those asked for, or else its own.

    Raises ValueError for a length at which one has no instance.
    """
    of_one = {name: dataclasses.replace(task, algorithms=(name,)) for name in task.algorithms}
    found = {name: tuple(asked) or one.test_lengths for name, one in of_one.items()}
    for name, lengths in found.items():
        for length in lengths:
            of_one[name].check_length("--lengths", length)
    return found


def evaluate_answers(
    parameters: Parameters,
    normalizers: Mapping[str, Normalizer | None],
    *,
    task: ClrsText,
    lengths: Mapping[str, Sequence[int]],
    sets: int,
    seeds: Sequence[int],
    **options: Any,
) -> Iterator[pl.DataFrame]:
    """Yields, algorithm by algorithm and length by length, whether the answer to each set was right to its end.

    Each frame has the columns of `COLUMNS`, and `right`: the answer to each set.

    The answers are read after the right tokens before them, which says the same as greedy decoding: up to the first
    mistake both have seen the same. The options are those of `evaluate`.
    """
    for name in task.algorithms:
        one = dataclasses.replace(task, algorithms=(name,))
        asked = {"lengths": lengths[name], "sets": sets, "measures": (EXACT,), "seeds": seeds}
        for measured in evaluate(parameters, normalizers, task=one, **asked, **options):
            right = measured.values[EXACT] > 50
            rows = [
                (name, normalizer, measured.n, seed, right[index, :, at].tolist())
                for at, normalizer in enumerate(measured.normalizers)
                for index, seed in enumerate(seeds)
            ]
            frame = pl.DataFrame(rows, ROW, orient="row")
            yield frame.with_columns(accuracy=100 * pl.col("right").list.mean())


def planned(
    parameters: Parameters,
    normalizers: Mapping[str, Normalizer | None],
    *,
    task: ClrsText,
    lengths: Sequence[int],
    sets: int | None,
    **options: Any,
) -> Plan:
    """The evaluation of all algorithms: at their own lengths without `lengths`, on the usual sets without `sets`.

    The options are those of `evaluate`, and it raises the same.
    """
    of_one, sets = lengths_of(task, lengths), sets or TEST_SETS
    answers = evaluate_answers(parameters, normalizers, task=task, lengths=of_one, sets=sets, **options)
    return Plan(sets, [length for of_algorithm in of_one.values() for length in of_algorithm], answers)


def summarize_answers(answers: pl.DataFrame, baseline: str = BASELINE) -> pl.DataFrame:
    """Over all sets of all seeds: accuracy, Wilson's 95 % interval, and p against the baseline on the same sets.

    p is of McNemar's exact test, corrected by Holm for the tests of the frame; both take the trained models as given.
    """
    cells = answers.group_by("algorithm", "normalizer", "n", maintain_order=True).agg(pl.col("right").list.explode())
    found = {tuple(row[:3]): np.asarray(row[3], bool) for row in cells.rows()}
    p_values = [
        None if name == baseline else mcnemar(right, found.get((algorithm, baseline, n)))
        for (algorithm, name, n), right in found.items()
    ]
    rows = []
    for (key, right), p in zip(found.items(), corrected(p_values)):
        low, high = binomtest(int(right.sum()), right.size).proportion_ci(method="wilson")
        rows.append((*key, 100 * right.mean(), 100 * low, 100 * high, p))
    columns = {name: ROW[name] for name in COLUMNS[:3]} | dict.fromkeys(("accuracy", "low", "high", "p"), pl.Float64)
    return pl.DataFrame(rows, columns, orient="row")


def mcnemar(right: Bool[np.ndarray, " sets"], reference: Bool[np.ndarray, " sets"] | None) -> float | None:
    """Two-sided p of McNemar's exact test: whether one is right more often where only one of two is.

    Source: McNemar, "Note on the sampling error of the difference between correlated proportions", 1947.

    >>> mcnemar(np.array([True] * 6), np.array([False] * 6))
    0.03125
    """
    if reference is None:
        return None
    ours, theirs = int((right & ~reference).sum()), int((reference & ~right).sum())
    return float(binomtest(ours, ours + theirs).pvalue) if ours + theirs else 1.0


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


def write(
    output: Path, settings: Mapping[str, Any], runs: Sequence[Evaluated], paper: Paper | None = None
) -> list[Path]:
    """Writes the rows of the evaluation of a run, its summary and its chart; returns the files."""
    (run,) = runs
    summary = summarize_answers(run.everything)
    paths = [output / "evaluation.csv", output / "evaluation.json"]
    write_csv(paths[0], COLUMNS, run.everything.select(COLUMNS).rows())
    write_json(paths[1], {"settings": settings, "versions": versions(), "summary": summary.to_dicts()})
    title = f"How far do answers reach that were trained at up to {run.task.longest} numbers?"
    return paths + save_chart(answers_chart(summary, title), output / "accuracy", paper)


def show(console: Console, runs: Sequence[Evaluated], *_: Any) -> None:
    """Prints the tables of a run."""
    (run,) = runs
    print_answers(console, summarize_answers(run.everything))
