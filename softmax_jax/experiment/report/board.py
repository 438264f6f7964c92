"""The board for readers: its table, its sentences, its picture."""

from collections.abc import Mapping, Sequence

import altair as alt
import polars as pl
from rich.table import Table

from softmax_jax.experiment.board.order import ORDERS, SIGNIFICANT, Order
from softmax_jax.experiment.board.protocol import COLUMNS
from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.tables import new_table

SHORT = {
    "transformer_max_retrieval": "max",
    "multi_query": "query",
    "sort": "sort",
    "copy": "copy",
    "set_complement": "absent",
    "trigger": "trigger",
    "signal": "signal",
}
"""The tasks in a word, for the heads of columns; another has its name."""
STEP = 34
"""Pixels of a cell of the picture, across."""


def board_table(order: Order, costs: Mapping[str, tuple[int, float]], named: Sequence[str] = ()) -> Table:
    """Returns a row for each method: mean ranks, gains over softmax by task, parameters and CPU seconds.

    Arguments:
        order: The order of the methods.
        costs: Parameters of a model, and CPU seconds of all cells, by method.
        named: Methods to show in bold.
    """
    tasks: list[str] = order.tasks["task"].unique(maintain_order=True).to_list()
    heads = [SHORT.get(task, task) for task in tasks]
    table = new_table("", "method", *COLUMNS, *heads, "parameters", "CPU s")
    gains = {
        tuple(place): gain_cell(gain, p_value)
        for *place, gain, p_value in order.scores.select("method", "task", "column", "gain", "p").rows()
    }
    places = {
        (method, column): f"{rank:.1f} ({low:.0f}–{high:.0f})"
        for method, column, rank, low, high, *_ in order.places.rows()
    }
    for method in methods_by_place(order):
        cells = ("/".join(gains.get((method, task, column), "–") for column in COLUMNS) for task in tasks)
        numbers, seconds = costs[method]
        row = (method, *(places.get((method, column), "–") for column in COLUMNS), *cells)
        table.add_row(*row, f"{numbers:,}", f"{seconds:.0f}", style="bold" if method in named else None)
    return table


def gain_cell(gain: float, p_value: float | None) -> str:
    """Returns a gain in points, with a star where it is shown.

    >>> gain_cell(3.2, 0.01), gain_cell(-0.2, None)
    ('+3*', '0')
    """
    rounded = f"{gain:+.0f}".replace("-0", "0").replace("+0", "0")
    return rounded + "*" * (p_value is not None and p_value < SIGNIFICANT)


def methods_by_place(order: Order) -> list[str]:
    """Returns the methods by their mean rank as trained, or as swapped in where no task of the others orders."""
    places = order.places
    if places.is_empty():
        return order.scores["method"].unique(maintain_order=True).to_list()
    return places.filter(column=places["column"][0]).sort("rank", maintain_order=True)["method"].to_list()


def sentences(order: Order, named: Sequence[str] = ()) -> list[str]:
    """Returns what the board says of the named methods, or of all if none are named; the last is of the tasks."""
    said = [sentence for method in named for sentence in about(order, method)]
    return [*(said or about_all(order)), about_tasks(order)]


def about(order: Order, method: str) -> list[str]:
    """Returns the place of a method, and what it is shown to gain and to lose."""
    count = order.scores["method"].n_unique()
    columns = order.places["column"].unique(maintain_order=True)
    found = "; ".join(place_of(order, column, method) for column in columns)
    place = f"Of {count} methods {method} has {found or 'no place, as no task orders'}."
    shown = order.scores.filter(pl.col("p") < SIGNIFICANT, method=method)
    parts = []
    for verb, kept in (("gain", shown.filter(pl.col("gain") > 0)), ("lose", shown.filter(pl.col("gain") < 0))):
        cells = kept.select("task", "column", "gain", "half").rows()
        listed = ", ".join(f"{task} {column} ({gain:+.1f} ± {half:.1f})" for task, column, gain, half in cells)
        parts.append(f"to {verb} on {listed or 'none'}")
    return [place, f"Against {BASELINE} it is shown {' and '.join(parts)}: {how_tested(order)}."]


def place_of(order: Order, column: str, method: str) -> str:
    """Returns the place of a method in one column, how many share it, its neighbours and its mean rank."""
    ranked = order.places.filter(column=column).sort("rank", maintain_order=True)
    rank = ranked.filter(method=method)["rank"].item()
    ahead, behind = (ranked.filter(side)["method"] for side in (pl.col("rank") < rank, pl.col("rank") > rank))
    others = len(ranked) - len(ahead) - len(behind) - 1
    sides = {"after": ahead[-1:], "before": behind[:1]}
    parts = [f"shared with {others} more"] * (others > 0)
    parts += [f"{side} {name}" for side, names in sides.items() for name in names]
    return f"place {len(ahead) + 1} {column}, {', '.join(parts)} ({mean_rank_of(order, column, method)})"


def mean_rank_of(order: Order, column: str, method: str) -> str:
    """Returns the mean rank of a method in one column, its interval, and of how many tasks it is."""
    ((rank, low, high),) = order.places.filter(column=column, method=method).select("rank", "low", "high").rows()
    tasks = order.tasks.filter(column=column, orders=True).height
    return f"mean rank {rank:.1f} on {tasks} task{'s' * (tasks > 1)}, {low:.0f} to {high:.0f}"


def how_tested(order: Order) -> str:
    """Returns how the p-values were made."""
    return f"p < {SIGNIFICANT}, paired over seeds, Holm over {order.scores['p'].count()} tests"


def about_all(order: Order) -> list[str]:
    """Returns the best method of each column, and how many cells are shown to differ from softmax."""
    best = []
    for column in order.places["column"].unique(maintain_order=True):
        methods = order.places.filter(pl.col("rank") == pl.min("rank").over("column"), column=column)["method"]
        verb = "are" if len(methods) > 1 else "is"
        best.append(f"{column}, {', '.join(methods)} {verb} first ({mean_rank_of(order, column, methods[0])})")
    shown = order.scores.filter(pl.col("p") < SIGNIFICANT)
    gains, losses = (shown.filter(side).height for side in (pl.col("gain") > 0, pl.col("gain") < 0))
    counted = f"{gains} cells are shown to gain over {BASELINE} and {losses} to lose"
    return [f"Of {order.scores['method'].n_unique()} methods: {'; '.join(best)}.", f"{counted}: {how_tested(order)}."]


def about_tasks(order: Order) -> str:
    """Says which tasks do not order."""
    unordered = order.tasks.filter(~pl.col("orders")).select("task", "column", "agreement").rows()
    if not unordered:
        return f"Every task orders: its two halves of the seeds rank alike (Spearman ≥ {ORDERS})."
    listed = ", ".join(f"{task} {column} ({agreement:.2f})" for task, column, agreement in unordered)
    return f"Ranks leave out what does not order, where the two halves of the seeds agree below {ORDERS}: {listed}."


def board_chart(order: Order) -> charts.Chart:
    """Returns a heat map of the gains over softmax: a row for each method, a column for each task, two panels."""
    scores = order.scores.with_columns(
        text=pl.struct("gain", "p").map_elements(lambda cell: gain_cell(cell["gain"], cell["p"]), pl.String),
        task=pl.col("task").replace(SHORT),
    )
    y = alt.Y("method:N", title=None, sort=methods_by_place(order), axis=alt.Axis(labelLimit=160))
    scale = alt.Scale(scheme="redblue", domain=[-50, 50], clamp=True)
    panels = []
    for column in COLUMNS:
        base = alt.Chart(charts.data(scores.filter(column=column).select("method", "task", "gain", "text"))).encode(
            x=alt.X("task:N", title=None, sort=None, axis=alt.Axis(orient="top", labelAngle=-45)), y=y
        )
        cells = base.mark_rect().encode(color=alt.Color("gain:Q", scale=scale, legend=None))
        dark = alt.condition("abs(datum.gain) > 35", alt.value("white"), alt.value("black"))
        layers = alt.layer(cells, base.mark_text(fontSize=11).encode(text="text:N", color=dark))
        title = charts.panel_title({"trained": "trained with it", "swapped": "swapped in after softmax"}[column])
        panels.append(layers.properties(title=title, width=alt.Step(STEP), height=alt.Step(17)))
    shown = order.scores.filter(pl.col("p") < SIGNIFICANT)
    counts = [(shown.filter(column=column)["gain"] * side > 0).sum() for column in COLUMNS for side in (1, -1)]
    title = charts.chart_title(
        "Trained with it {} cells gain over softmax and {} lose; swapped in {} gain and {} lose".format(*counts),
        "points of accuracy over softmax, mean over the lengths that count; * is shown",
        f"({how_tested(order)})",
    )
    return alt.hconcat(*panels).properties(title=title)
