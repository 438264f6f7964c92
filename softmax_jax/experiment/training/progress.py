"""Progress on a terminal or in a log while something long is computed."""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")


def plain_console(**options: Any) -> Console:
    """Returns a console that prints text as it is: brackets and colons in a name or a path are no markup."""
    return Console(markup=False, emoji=False, **options)


class Parts:
    """Receives the share of a result's cost that a computation has done; moves a bar by it, if there is one."""

    def __init__(self) -> None:
        self.advance: Callable[[float], None] | None = None

    def done(self, cost: float) -> None:
        """Moves the bar."""
        if self.advance:
            self.advance(cost)


def with_progress(
    results: Iterable[T],
    costs: Sequence[int],
    doing: str,
    names: Sequence[str] = (),
    said: Callable[[T], str] | None = None,
    parts: Parts | None = None,
) -> Iterator[T]:
    """Yields each result, with a bar on a terminal and a line per result in a log.

    Arguments:
        results: What is computed while it is iterated over.
        costs: The cost of each result, in any unit; lengths, where there are no names: an item costs about the same in
            any set.
        doing: The verb before each name, such as measuring.
        names: Names of the results.
        said: Returns a summary of a result, which ends its line; a terminal shows that line too.
        parts: Moves the bar while a result is computed.
    """
    names = names or [f"n = {n}" for n in costs]
    console = Console(stderr=True)
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(names[0], total=sum(costs))
        if parts:
            parts.advance = functools.partial(bar.advance, task)
        for result, cost, name, following in zip(results, costs, names, [*names[1:], "done"]):
            bar.update(task, advance=0 if parts else cost, description=following)
            line = f"{doing} {name}" + (f": {said(result)}" if said else "")
            if not console.is_terminal:
                print(line, file=sys.stderr, flush=True)
            elif said:
                bar.console.print(line, markup=False, highlight=False)
            yield result
