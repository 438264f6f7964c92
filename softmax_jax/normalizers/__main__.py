"""Prints the table of every registered method: python -m softmax_jax.normalizers [--markdown]."""

import dataclasses

from rich import box
from rich.console import Console
from rich.table import Table

from softmax_jax.normalizers.facts import COLUMNS, table
from softmax_jax.normalizers.page import markdown
from softmax_jax.runtime.command_line import parse


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    markdown: bool = False
    """Print the page docs/normalizers.md instead."""


def main() -> None:
    """Prints the table for a terminal, or the page."""
    if parse(Arguments, description=__doc__).markdown:
        print(markdown(), end="")
        return
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in COLUMNS:
        shown.add_column(column, overflow="fold")
    for row in table():
        shown.add_row(*row)
    Console().print(shown)


if __name__ == "__main__":
    main()
