"""Progress on a terminal or in a log while something long is computed."""

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

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


SILENCE = 8.0
"""Seconds after which a log is told what goes on."""


@contextlib.contextmanager
def not_silent(doing: str) -> Iterator[Callable[[str], None]]:
    """Says every `SILENCE` seconds what is being done, and for how long; yields what prints a line in between.

    A thread does that, since compiling and drawing hold the one that waits for them. A terminal shows a bar instead.
    """
    console, ended = Console(stderr=True), threading.Event()
    if console.is_terminal:
        with console.status(doing):
            yield lambda line: console.print(line, markup=False, highlight=False)
        return
    last, started = [time.monotonic()], time.monotonic()

    def say(line: str) -> None:
        last[0] = time.monotonic()
        print(line, file=sys.stderr, flush=True)

    def remind() -> None:
        while not ended.wait(SILENCE / 8):
            if time.monotonic() - last[0] >= SILENCE:
                say(f"{doing}, {time.monotonic() - started:.0f} s so far")

    reminder = threading.Thread(target=remind, daemon=True)
    reminder.start()
    try:
        yield say
    finally:
        ended.set()
        reminder.join()


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
        results: what is computed while it is iterated over.
        costs: the cost of each result, in any unit; lengths, where there are no names: an item costs about the same in
            any set.
        doing: the verb before each name, such as measuring.
        names: names of the results.
        said: returns a summary of a result, which ends its line; a terminal shows that line too.
        parts: moves the bar while a result is computed.
    """
    names = names or [f"n = {n}" for n in costs]
    console = Console(stderr=True)
    columns = (TextColumn(doing), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(Progress(*columns, console=console, transient=True, disable=not console.is_terminal))
        said_in_log = None if console.is_terminal else stack.enter_context(not_silent(doing))
        task = bar.add_task(f"{names[0]} (1 of {len(names)})", total=sum(costs))
        if parts:
            parts.advance = functools.partial(bar.advance, task)
        for place, (result, cost, name) in enumerate(zip(results, costs, names), 1):
            following = f"{names[place]} ({place + 1} of {len(names)})" if place < len(names) else "done"
            bar.update(task, advance=0 if parts else cost, description=following)
            line = f"{doing} {name} ({place} of {len(names)})" + (f": {said(result)}" if said else "")
            if said_in_log:
                said_in_log(line)
            elif said:
                bar.console.print(line, markup=False, highlight=False)
            yield result
