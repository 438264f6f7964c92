"""What the command lines share: the machine they run on, and how they say that something is wrong."""

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")


def parse(arguments: type[T], **options: Any) -> T:
    """`tyro.cli`, saying what is wrong in one line on stderr rather than in a box."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(arguments, **options)
    except SystemExit as stop:
        if stop.code:
            print(f"error: {unboxed(box.getvalue())} (--help shows every option)", file=sys.stderr)
        raise


def unboxed(box: str) -> str:
    r"""The text within a box that tyro drew, in one line, without its title and its pointer to --help.

    Where the output cannot show the lines of a box, hyphens stand for them.

    >>> unboxed("╭─ Value error ──╮\n│ Error parsing Arguments: --sets is 0 │\n╰──╯")
    '--sets is 0'
    >>> unboxed(" Value error\n ----- \n  Error parsing Arguments: --sets is 0 \n")
    '--sets is 0'
    """
    _title, *inside = [text for line in box.splitlines() if (text := line.strip("│╭╮╰╯ "))]
    joined = " ".join("|" if set(text) <= {"─", "-"} else text for text in inside)
    sections = [text for section in joined.split("|") if (text := section.strip()) and "For full helptext" not in text]
    return re.sub(r"^Error parsing (Arguments|config|cluster|Cluster): ", "", ". ".join(sections))


def one_device_per_core() -> None:
    """Makes every CPU core a device of its own; call it before JAX first touches a device.

    Seeds are independent, so a core each beats all cores at one matrix product. Other platforms are not affected,
    nor is anyone who chose their own XLA_FLAGS.
    """
    if "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        jax.config.update("jax_num_cpu_devices", len(usable))


@contextlib.contextmanager
def one_line_errors(console: Console) -> Iterator[None]:
    """Turns bad input into one line on stderr and exit status 2, Ctrl-C into 130."""
    try:
        yield
    except (ValueError, OSError) as error:
        console.print(f"error: {error}", style="red", soft_wrap=True, markup=False, highlight=False)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


@contextlib.contextmanager
def progress_bar(doing: str, total: float, first: str) -> Iterator[Callable[[float, str, str], None]]:
    """A bar on a terminal, plain lines in a log: call it with the amount done, what follows, and what the log says."""
    console = Console(stderr=True)
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(first, total=total)

        def advance(amount: float, following: str, line: str) -> None:
            bar.update(task, advance=amount, description=following)
            if not console.is_terminal:
                print(f"{doing} {line}", file=sys.stderr, flush=True)

        yield advance


def with_progress(results: Iterable[T], lengths: Sequence[int], doing: str) -> Iterator[T]:
    """Passes on the result of each length, with a bar on a terminal and a line per length in a log."""
    # An item costs about the same in any set, so items are the unit of the time left.
    with progress_bar(doing, sum(lengths), f"n = {lengths[0]}") as advance:
        for index, result in enumerate(results):
            following = f"n = {lengths[index + 1]}" if index + 1 < len(lengths) else "done"
            advance(lengths[index], following, f"n = {lengths[index]}")
            yield result
