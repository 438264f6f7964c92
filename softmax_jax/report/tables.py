"""The evaluation as a table for a terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from softmax_jax.measures.evaluation import Summary
from softmax_jax.tasks import published

GAP = 2
KIND_WIDTH = len("difference") + GAP
CELL_WIDTH = len("100.00") + GAP


def print_evaluation(console: Console, summaries: Sequence[Summary]) -> None:
    """Prints accuracy, interval, loss and p of every normalizer by length, and the published rows under them.

    As many lengths side by side as fit the console; the others in further tables below.
    """
    lengths = sorted({summary.n for summary in summaries})
    names = {summary.normalizer for summary in summaries} | published.ACCURACY.keys()
    label_width = max(map(len, names)) + GAP + KIND_WIDTH
    per_table = max(1, (console.width - 1 - label_width) // CELL_WIDTH)
    for start in range(0, len(lengths), per_table):
        console.print(evaluation_table(summaries, lengths[start : start + per_table]))
    console.print(
        "accuracy: % of sets, mean over seeds, ± half the 95 % interval (t); loss: nats; p: paired t-test over seeds "
        "against softmax; published: arXiv 2410.01104, Table 1, * unconfirmed; difference: ours less published",
        style="dim",
    )


def evaluation_table(summaries: Sequence[Summary], lengths: Sequence[int]) -> Table:
    """The table of the given lengths."""
    cells = {(summary.normalizer, summary.n): summary for summary in summaries}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("items", no_wrap=True)
    table.add_column("", no_wrap=True)
    for n in lengths:
        table.add_column(f"{n}", justify="right", no_wrap=True, min_width=CELL_WIDTH - GAP)
    for name in dict.fromkeys(summary.normalizer for summary in summaries):
        row = [cells[name, n] for n in lengths]
        table.add_row(name, "accuracy", *[f"{cell.accuracy:.2f}" for cell in row], style="bold")
        if any(cell.interval is not None for cell in row):
            table.add_row("", "±", *[number_or_dash(cell.interval, ".2f") for cell in row])
        table.add_row("", "loss", *[f"{cell.loss:.3f}" for cell in row])
        if any(cell.p_value is not None for cell in row):
            table.add_row("", "p", *[number_or_dash(cell.p_value, ".1g") for cell in row])
        table.add_section()
    for name, row in published.ACCURACY.items():
        table.add_row(name, "published", *[_published(row, n) for n in lengths])
        if ours := [cells[name, n] for n in lengths if (name, n) in cells]:
            table.add_row("", "difference", *[_difference(cell, row) for cell in ours], style="dim")
    return table


def number_or_dash(value: float | None, form: str) -> str:
    """The number in this form, or a dash where there is none."""
    return "–" if value is None else format(value, form)


def _published(row: dict[int, float], n: int) -> str:
    return "–" if n not in row else f"{row[n]:.1f}{'*' if n in published.UNCONFIRMED else ''}"


def _difference(cell: Summary, row: dict[int, float]) -> str:
    return "–" if cell.n not in row else f"{cell.accuracy - row[cell.n]:+.1f}"
