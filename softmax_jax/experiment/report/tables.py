"""Tables for a terminal, with as many lengths side by side as fit, and tables in Markdown pages."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from softmax_jax.experiment.measures.significance import half_width
from softmax_jax.refusal import Refusal

Cells = Mapping[int, str]
"""The cells of a row by length; a length left out shows a dash."""
GAP = 2


def new_table(title: str, *columns: str, names: int = 1) -> Table:
    """An empty table whose first columns, as many as `names`, hold text, and whose others hold numbers."""
    table = Table(
        title=Text(title, no_wrap=True, overflow="ignore") if title else None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, GAP - 1, 0, 0),
    )
    for index, column in enumerate(columns):
        if index < names:
            table.add_column(column, no_wrap=index == 0, overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    return table


def print_groups(
    console: Console, title: str, groups: Mapping[str, Mapping[str, Cells]], lengths: Sequence[int]
) -> None:
    """Prints rows for each name, each with what it holds in a second column: as many lengths as fit, others below."""
    kinds = [kind for group in groups.values() for kind in group]
    cells = [cell for group in groups.values() for row in group.values() for cell in row.values()]
    cell_width = GAP + max(map(len, [*map(str, lengths), *cells]))
    label_width = GAP + max(map(len, groups)) + GAP + max(map(len, kinds))
    fitting = max(1, (console.width - GAP - label_width) // cell_width)
    for start in range(0, len(lengths), fitting):
        side_by_side = lengths[start : start + fitting]
        table = new_table("" if start else title, "items", "", *map(str, side_by_side), names=2)
        for name, group in groups.items():
            for index, (kind, row) in enumerate(group.items()):
                style = "bold" if index == 0 and len(group) > 1 else None
                table.add_row("" if index else name, kind, *[row.get(n, "–") for n in side_by_side], style=style)
            if len(group) > 1:
                table.add_section()
        console.print(table)


def groups_of(frame: pl.DataFrame, columns: Sequence[tuple[str, str, str]]) -> dict[str, dict[str, dict[int, str]]]:
    """Columns of a frame, each with its label and its form, as the rows of `print_groups`; nulls are left out."""
    groups: dict[str, dict[str, dict[int, str]]] = {}
    for row in frame.to_dicts():
        group = groups.setdefault(row["normalizer"], {})
        for label, column, form in columns:
            if row[column] is not None:
                group.setdefault(label, {})[row["n"]] = format(row[column], form)
    return groups


def with_interval(values: Sequence[float], form: str = ".1f", sign: str = " ± ") -> str:
    """The mean of the seeds with half its 95 % interval, which one seed has not.

    >>> with_interval([50.0, 52.0]), with_interval([50.0])
    ('51.0 ± 12.7', '50.0')
    """
    half = half_width(values)
    return format(np.mean(values), form) + ("" if half is None else f"{sign}{format(half, form.removeprefix('+'))}")


def number_or_dash(value: float | None, form: str) -> str:
    """The number in this form, or a dash where there is none."""
    return "–" if value is None else format(value, form)


def put_into(page: str, tables: Mapping[str, str]) -> str:
    r"""The page with each table between its marks, `<!-- NAME -->` and `<!-- /NAME -->`.

    Raises ValueError if a mark is missing.

    >>> put_into("A\n<!-- a -->\nold\n<!-- /a -->\nB", {"a": "new"})
    'A\n<!-- a -->\nnew\n<!-- /a -->\nB'
    """
    for name, table in tables.items():
        before, begin, rest = page.partition(f"<!-- {name} -->")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        if not begin or not end:
            raise Refusal(f"the page has no place for {name}: put <!-- {name} --> and <!-- /{name} --> into it")
        page = f"{before}{begin}\n{table}\n{end}{after}"
    return page


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""A table in Markdown.

    >>> markdown_table(["name", "value"], [["a", "1"]])
    '| name | value |\n|---|---|\n| a | 1 |'
    """
    head, *body = ("| " + " | ".join(cells) + " |" for cells in (columns, *rows))
    return "\n".join([head, "|---" * len(columns) + "|", *body])
