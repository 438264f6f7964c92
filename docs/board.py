"""Writes what the page of the board says of it, and its tables beside the data: python -m docs.board."""

import numpy as np
import polars as pl

from docs.claims import DATA, ROOT, board_cells, board_order
from softmax_jax.experiment.board.order import SIGNIFICANT, Order, frame_of_cells
from softmax_jax.experiment.board.protocol import COLUMNS, PROTOCOL, Job
from softmax_jax.experiment.commands.rank import costs_of, write_order
from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.report.board import about_tasks, sentences
from softmax_jax.experiment.report.tables import markdown_table, put_into
from softmax_jax.files import read_text, write_whole
from softmax_jax.normalizers.registry import METHODS

PAGE = ROOT / "docs" / "train_and_test.md"
TABLES = DATA / "board"
HEADS = (
    "a row has to find",
    "softmax, by length",
    "trained: most gained, most lost",
    "swapped in: most gained, most lost",
    "halves",
)
GROUPS = {"no task": (0, 0), "one or two": (1, 2), "three or more": (3, len(PROTOCOL.jobs))}
"""By their names the least and the most tasks on which a method of a group is shown to lose."""


def finding(order: Order) -> str:
    """Returns how many methods are shown to gain over softmax, and how many to lose, on any task."""
    gaining, losing = (order.places.filter(pl.col(name) > 0)["method"].n_unique() for name in ("gains", "losses"))
    others = order.scores["method"].n_unique() - 1
    return (
        f"**Of {others} methods {gaining or 'none'} {'is' if gaining < 2 else 'are'} shown to gain over softmax on any "
        f"of {len(PROTOCOL.jobs)} small tasks, trained with it or swapped in; {losing} are shown to lose.** "
        f"{' '.join(sentences(order)[:2])}"
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


def tasks_section(order: Order) -> str:
    """Returns the table of the tasks."""
    softmax = frame_of_cells(board_cells()).filter(method=BASELINE, column="trained")
    return markdown_table(HEADS, [row_of(order, softmax, job) for job in PROTOCOL.jobs])


def listed(methods: pl.DataFrame) -> str:
    """Returns the methods of some places by mean rank."""
    return ", ".join(f"`{method}`" for method in methods.sort("rank", maintain_order=True)["method"]) or "none"


def groups_section(order: Order) -> str:
    """Returns a table of all methods: who is shown to gain, and on how many tasks the others are shown to lose."""
    by_column = [order.places.filter(column=column) for column in COLUMNS]
    rows = [["gain on a task", *(listed(places.filter(pl.col("gains") > 0)) for places in by_column)]]
    for name, bounds in GROUPS.items():
        losing = (places.filter(pl.col("losses").is_between(*bounds)) for places in by_column)
        rows.append([f"lose on {name}", *map(listed, losing)])
    table = markdown_table(["shown to", "trained", "swapped in"], rows)
    unshown = order.scores.filter(pl.col("p") >= SIGNIFICANT).sort("gain")
    ends = (unshown.row(place, named=True) for place in (-1, 0))
    gain, loss = ("{gain:+.1f} ± {half:.1f} (`{method}` on `{task}`, {column})".format(**row) for row in ends)
    return f"{table}\n\nThe largest gain that is not shown is {gain}, the largest such loss {loss}. {cost()}"


def cost() -> str:
    """Returns how long a method takes, and softmax, which is measured beside it."""
    seconds = {method: spent for method, (_, spent) in costs_of(board_cells()).items()}
    return f"Softmax took {seconds[BASELINE]:.0f} CPU seconds, the median method {np.median([*seconds.values()]):.0f}."


def sections() -> dict[str, str]:
    """Returns what stands between the marks of the page."""
    order = board_order()
    missing = len(METHODS.keys() - set(order.scores["method"]))
    return {
        "finding": finding(order) + (f" {missing} more are not measured yet." if missing else ""),
        "tasks": tasks_section(order),
        "methods": groups_section(order),
        "unordered": about_tasks(order),
    }


if __name__ == "__main__":
    write_whole(PAGE, put_into(read_text(PAGE), sections()))
    write_order(TABLES, board_order())
    print(f"wrote {PAGE} and {TABLES}")
