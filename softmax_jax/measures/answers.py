"""Exact match of answers by algorithm, normalizer and length, with what is sure about it."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from jaxtyping import Bool

from softmax_jax.measures.evaluation import BASELINE, evaluate
from softmax_jax.measures.sets import NOTEBOOK_LENGTHS
from softmax_jax.measures.statistics import corrected
from softmax_jax.measures.table import EVALUATION
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.tasks.clrs_text import TEST_SETS, ClrsText
from softmax_jax.tasks.task import Task
from softmax_jax.training.trainer import Parameters

SETS = 512
"""Of each seed and length, unless the task or the caller says otherwise."""
EXACT = "exact_match"
COLUMNS = ("algorithm", "normalizer", "n", "seed", "accuracy")
"""Of evaluation.csv; the accuracy in percent."""
ROW = {"algorithm": pl.String, "normalizer": pl.String, "n": pl.Int64, "seed": pl.Int64, "right": pl.List(pl.Boolean)}


def lengths_of(task: ClrsText, asked: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The lengths to test each algorithm at: those asked for, or else its own.

    Raises ValueError for a length at which one has no instance, or that is beyond the positions of training.
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
            yield pl.DataFrame(rows, ROW, orient="row")


class Plan(NamedTuple):
    """An evaluation that yields a frame at each length, in this order."""

    sets: int
    lengths: list[int]
    frames: Iterator[pl.DataFrame]


def planned(
    parameters: Parameters,
    normalizers: Mapping[str, Normalizer | None],
    *,
    task: Task,
    lengths: Sequence[int],
    sets: int | None,
    protocol: str,
    **options: Any,
) -> Plan:
    """The evaluation of any task: of answers if it has them, or else of the table of measures.

    Without `lengths` they are the task's own, without `sets` the usual. The options are those of `evaluate`, and it
    raises the same.
    """
    options |= {"task": task, "protocol": protocol}
    if isinstance(task, ClrsText):
        of_one, sets = lengths_of(task, lengths), sets or TEST_SETS
        answers = evaluate_answers(parameters, normalizers, lengths=of_one, sets=sets, **options)
        return Plan(sets, [length for of_algorithm in of_one.values() for length in of_algorithm], answers)
    asked = list(lengths or (NOTEBOOK_LENGTHS if protocol == "notebook" else task.test_lengths))
    options |= {"lengths": asked, "sets": sets or SETS, "measures": (*EVALUATION, "extrapolated")}
    measured = evaluate(parameters, normalizers, **options)
    return Plan(sets or SETS, asked, (of_length.frame() for of_length in measured))


def accuracies(answers: pl.DataFrame) -> pl.DataFrame:
    """The accuracy in percent, a row per algorithm, normalizer, length and seed."""
    return answers.with_columns(accuracy=100 * pl.col("right").list.mean()).select(COLUMNS)


def summarize_answers(answers: pl.DataFrame, baseline: str = BASELINE) -> pl.DataFrame:
    """Over all sets of all seeds: accuracy, Wilson's 95 % interval, and p against the baseline on the same sets.

    p is of McNemar's exact test, corrected by Holm for the tests of the frame; both take the trained models as given.
    """
    from scipy.stats import binomtest  # here, for it takes a second to load, and most tasks have no answers

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
    from scipy.stats import binomtest

    if reference is None:
        return None
    ours, theirs = int((right & ~reference).sum()), int((reference & ~right).sum())
    return float(binomtest(ours, ours + theirs).pvalue) if ours + theirs else 1.0
