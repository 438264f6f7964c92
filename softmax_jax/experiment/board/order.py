"""The order of the board: scores by seed, paired against softmax, ranks with intervals, and which tasks order."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from softmax_jax.experiment.board.protocol import COLUMNS
from softmax_jax.experiment.measures.significance import corrected, half_width, paired_p_value
from softmax_jax.experiment.measures.table import BASELINE

END = 2.0
"""Points from the floor of a task, and from 100 %, within which a cell lies at that end."""
SIGNIFICANT = 0.05
ORDERS = 0.9
"""The least rank correlation of one half of the seeds with the other on a task that orders methods."""
DRAWS = 2000
"""Draws of seeds, with replacement, for the intervals of ranks, which are too narrow where seeds are few."""
PLACE = ("task", "column")


@dataclasses.dataclass(frozen=True)
class Order:
    """The order of methods."""

    scores: pl.DataFrame
    """By method, task and column: the score in percent, the gain over softmax in points with half its 95 % interval
    and p, the rank (1 is best) and its 95 % interval, `low` to `high`."""
    tasks: pl.DataFrame
    """By task and column: the lengths that count, the agreement of two halves of the seeds, and whether it orders."""
    places: pl.DataFrame
    """By method and column: the mean rank over the tasks that order, with its interval, and on how many of all tasks
    the method is shown to gain and to lose."""


def frame_of_cells(cells: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Returns the accuracies of cells: a row per method, task, column, length and seed."""
    rows = [
        (cell["method"], cell["task"], column, int(n), seed, accuracy)
        for cell in cells
        for column in COLUMNS
        for n, by_seed in cell[column]["accuracy"].items()
        for seed, accuracy in enumerate(by_seed)
    ]
    names = {"method": pl.String, "task": pl.String, "column": pl.String, "n": pl.Int64, "seed": pl.Int64}
    return pl.DataFrame(rows, names | {"accuracy": pl.Float64}, orient="row")


def put_to_ends(frame: pl.DataFrame, floors: Mapping[str, float]) -> pl.DataFrame:
    """Returns the rows that count. The seeds of a cell at the floor or the ceiling all get the accuracy of that end.

    So two cells at one end do not differ. A length at which no two cells differ is left out.
    """
    floor = pl.col("task").replace_strict(floors, return_dtype=pl.Float64)
    mean = pl.mean("accuracy").over("method", *PLACE, "n")
    held = pl.when(mean >= 100 - END).then(100.0).when(mean <= floor + END).then(floor).otherwise("accuracy")
    differs = pl.col("accuracy").n_unique().over(*PLACE, "n") > 1
    return frame.with_columns(accuracy=held).filter(differs)


def order_methods(frame: pl.DataFrame, floors: Mapping[str, float]) -> Order:
    """Returns the order of the methods that have a cell on every task of the frame.

    Arguments:
        frame: Accuracies, as `frame_of_cells` returns them; softmax must be among the methods.
        floors: The floor of each task in percent.

    Returns:
        Scores, tasks and places. The score of a seed is the mean over the lengths that count. p is of the paired t-test
        over seeds, corrected by Holm for all methods, tasks and columns.
    """
    whole = pl.col("task").n_unique().over("method") == frame["task"].n_unique()
    counted = put_to_ends(frame.filter(whole), floors)
    methods = frame.filter(whole)["method"].unique(maintain_order=True).to_list()
    grids = {place: grid_of(rows, methods) for place, rows in counted.group_by(PLACE, maintain_order=True)}
    rows, tasks, ranks = [], [], {}
    for (task, column), grid in grids.items():
        ranks[task, column] = found = drawn_ranks(grid)
        low, high = np.quantile(found, (0.025, 0.975), axis=0)
        softmax = grid[methods.index(BASELINE)]
        for place, (method, scores) in enumerate(zip(methods, grid)):
            gains = (scores - softmax).tolist()
            p_value = None if method == BASELINE else paired_p_value(scores.tolist(), softmax.tolist())
            numbers = scores.mean(), np.mean(gains), half_width(gains), p_value, ranks_of(grid.mean(1))[place]
            rows.append((method, task, column, *map(as_float, numbers), float(low[place]), float(high[place])))
        lengths = counted.filter(task=task, column=column)["n"].n_unique()
        halves = [ranks_of(grid[:, half::2].mean(1)) for half in (0, 1)]
        agreement = float(np.corrcoef(halves)[0, 1]) if min(map(np.ptp, halves)) else 0.0
        tasks.append((task, column, lengths, agreement, agreement >= ORDERS))
    names = ("score", "gain", "half", "p", "rank", "low", "high")
    scores = pl.DataFrame(rows, ["method", *PLACE, *names], orient="row", infer_schema_length=None)
    scores = scores.with_columns(p=pl.Series(corrected(scores["p"].to_list()), dtype=pl.Float64))
    table = pl.DataFrame(tasks, [*PLACE, "lengths", "agreement", "orders"], orient="row")
    return Order(scores, table, places_of(scores, table, ranks, methods))


def as_float(number: Any) -> float | None:
    """Returns a number as Python has it."""
    return None if number is None else float(number)


def grid_of(rows: pl.DataFrame, methods: list[str]) -> Float[np.ndarray, "methods seeds"]:
    """Returns the score of each method and seed on one task and column: the mean over the lengths."""
    means = rows.group_by("method", "seed").agg(pl.mean("accuracy")).pivot("seed", index="method", values="accuracy")
    by_method = dict(zip(means["method"], means.drop("method").select(sorted(means.columns[1:], key=int)).to_numpy()))
    return np.array([by_method[method] for method in methods])


def ranks_of(scores: Float[np.ndarray, "... methods"]) -> Float[np.ndarray, "... methods"]:
    """Returns ranks from 1 for the highest score; equal scores share the mean of their ranks.

    >>> ranks_of(np.array([50.0, 90.0, 50.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    others, own = scores[..., None, :], scores[..., :, None]
    return 0.5 + (others > own).sum(-1) + (others == own).sum(-1) / 2


def drawn_ranks(grid: Float[np.ndarray, "methods seeds"]) -> Float[np.ndarray, "draws methods"]:
    """Returns the ranks of the methods by the seeds of each draw, which are the same for all methods and tasks."""
    seeds = np.random.default_rng(0).integers(grid.shape[1], size=(DRAWS, grid.shape[1]))
    return ranks_of(grid[:, seeds].mean(2).T)


def places_of(
    scores: pl.DataFrame, tasks: pl.DataFrame, ranks: Mapping[Any, np.ndarray], methods: list[str]
) -> pl.DataFrame:
    """Returns the `places` of an order from the ranks of every draw by task and column."""
    shown = scores.with_columns(shown=(pl.col("p") < SIGNIFICANT).fill_null(False))
    rows = []
    for column in COLUMNS:
        orders = tasks.filter(column=column, orders=True)["task"].to_list()
        if not orders:
            continue
        mean = np.mean([ranks[task, column] for task in orders], 0)
        low, high = np.quantile(mean, (0.025, 0.975), axis=0)
        for place, method in enumerate(methods):
            own = shown.filter(method=method, column=column)
            rank = own.filter(pl.col("task").is_in(orders))["rank"].mean()
            differences = own.filter("shown")["gain"].to_numpy()
            counts = int((differences > 0).sum()), int((differences < 0).sum())
            rows.append((method, column, rank, float(low[place]), float(high[place]), *counts))
    return pl.DataFrame(rows, ["method", "column", "rank", "low", "high", "gains", "losses"], orient="row")
