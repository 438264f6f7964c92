"""Writes the sentences and the table of the board that ships into their page: python -m docs.board."""

import numpy as np
import polars as pl

from docs.claims import ROOT, board_cells, board_order
from softmax_jax.experiment.board.order import SIGNIFICANT, Order, frame_of_cells
from softmax_jax.experiment.board.protocol import COLUMNS, PROTOCOL, Job
from softmax_jax.experiment.commands.rank import costs_of
from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.report.board import sentences
from softmax_jax.experiment.report.tables import markdown_table, put_into
from softmax_jax.files import read_text, write_whole
from softmax_jax.normalizers.registry import METHODS

PAGE = ROOT / "docs" / "train_and_test.md"
HEADS = (
    "a row has to find",
    "softmax, by length",
    "trained: most gained, most lost",
    "swapped in: most gained, most lost",
    "halves",
)


def ends_of(order: Order, job: Job, column: str) -> str:
    """Returns the method that is shown to gain most over softmax on a task, and the one that is shown to lose most."""
    shown = order.scores.filter(pl.col("p") < SIGNIFICANT, task=job.name, column=column).sort("gain", descending=True)
    rows = [shown.row(place, named=True) for place in (0, -1) if len(shown)]
    kept = [row for row, side in zip(rows, (1, -1)) if row["gain"] * side > 0]
    return ", ".join(f"`{row['method']}` {row['gain']:+.1f} ± {row['half']:.1f}" for row in kept) or "none is shown"


def row_of(order: Order, softmax: pl.DataFrame, job: Job) -> list[str]:
    """Returns the row of a task: what it needs, softmax by length, who gains and who loses, and how halves agree."""
    by_length = softmax.filter(task=job.name).group_by("n").agg(pl.mean("accuracy")).sort("n").rows()
    accuracies = ", ".join(f"{accuracy:.0f} at {n:,}" for n, accuracy in by_length)
    halves = order.tasks.filter(task=job.name)["agreement"].to_list()
    both = " and ".join(f"{agreement:.2f}" for agreement in halves) or "–"
    return [f"{job.need} (`{job.name}`)", accuracies, *(ends_of(order, job, column) for column in COLUMNS), both]


def board_section() -> str:
    """Returns what the page says of the board: how many methods it has, its sentences, and a row for each task."""
    order, cells = board_order(), board_cells()
    softmax = frame_of_cells(cells).filter(method=BASELINE, column="trained")
    missing = len(METHODS.keys() - set(order.scores["method"]))
    left = f" {missing} more are not measured yet." if missing else ""
    seconds = np.median([seconds for _, seconds in costs_of(cells).values()])
    cost = f"The median method took {seconds:.0f} CPU seconds, beside other work."
    table = markdown_table(HEADS, [row_of(order, softmax, job) for job in PROTOCOL.jobs])
    return f"{' '.join([*sentences(order), cost])}{left}\n\n{table}"


if __name__ == "__main__":
    write_whole(PAGE, put_into(read_text(PAGE), {"board": board_section()}))
    print(f"wrote {PAGE}")
