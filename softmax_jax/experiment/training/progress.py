"""Progress on a terminal or in a log while something long is computed."""

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

T = TypeVar("T")


def plain_console(**options: Any) -> Console:
    """Returns a console that prints text as it is: brackets and colons in a name or a path are no markup."""
    return Console(markup=False, emoji=False, **options)


SILENCE = 9.0
"""Seconds after which a log says that work goes on."""


class Log:
    """A log that is not silent for long: while it is open, it says every `SILENCE` seconds what is being done."""

    def __init__(self, print_line: Callable[[str], None], doing: str):
        self._print_line, self._heard = print_line, threading.Event()
        self._thread = threading.Thread(target=self._remind, daemon=True)
        self._open = True
        self.begin(doing)

    def begin(self, doing: str) -> None:
        """Names what is done from now on."""
        self._doing, self._start = doing, time.monotonic()

    def print(self, line: str) -> None:
        """Prints a line."""
        self._print_line(line)
        self._heard.set()

    def _remind(self) -> None:
        while self._open:
            if self._heard.wait(SILENCE):
                self._heard.clear()
            else:
                self._print_line(f"{self._doing}: {time.monotonic() - self._start:.0f} s so far")

    def __enter__(self) -> "Log":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._open = False
        self._heard.set()
        self._thread.join()


class Parts:
    """Receives the share of a result's cost that a computation has done; moves a bar by it, if there is one."""

    def __init__(self) -> None:
        self.advance: Callable[[float], None] | None = None

    def done(self, cost: float) -> None:
        """Moves the bar."""
        if self.advance:
            self.advance(cost)


LEAST_SHARE = 0.5
"""The share of the cost from which on a bar says the time left."""


class Time(ProgressColumn):
    """Shows the time so far, and the time left once `LEAST_SHARE` of the cost is done.

    The first results take their time to compile, whatever they cost, so what is left cannot be told from them.
    """

    def render(self, task: Task) -> Text:
        """Returns the times of a task in whole seconds."""
        so_far = task.elapsed or 0.0
        share = task.completed / task.total if task.total else 0.0
        if share < LEAST_SHARE:
            return Text(f"{so_far:.0f} s so far")
        return Text(f"{so_far:.0f} s so far, about {so_far * (1 - share) / share:.0f} s left")


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
    printing = functools.partial(print, file=sys.stderr, flush=True)
    with (
        Progress(*columns, Time(), console=console, transient=True, disable=not console.is_terminal) as bar,
        contextlib.nullcontext() if console.is_terminal else Log(printing, f"{doing} {names[0]}") as log,
    ):
        task = bar.add_task(names[0], total=sum(costs))
        if parts:
            parts.advance = functools.partial(bar.advance, task)
        for result, cost, name, following in zip(results, costs, names, [*names[1:], "done"]):
            bar.update(task, advance=0 if parts else cost, description=following)
            line = f"{doing} {name}" + (f": {said(result)}" if said else "")
            if log:
                log.print(line)
                log.begin(f"{doing} {following}")
            elif said:
                bar.console.print(line, markup=False, highlight=False)
            yield result
