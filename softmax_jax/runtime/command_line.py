"""What the command lines share: the machine they run on, and how they say that something is wrong."""

import contextlib
import io
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from softmax_jax.normalizers.checks import did_you_mean

T = TypeVar("T")


def parse(arguments: type[T], **options: Any) -> T:
    """`tyro.cli`, saying what is wrong in one line on stderr rather than in a box; refuses options given twice."""
    given = sys.argv[1:] if options.get("args") is None else options["args"]
    box = io.StringIO()
    try:
        if problem := given_twice(given):
            box.write(f"Value error\n{problem}")
            raise SystemExit(2)
        unbroken = contextlib.nullcontext() if {"-h", "--help"} & set(given) else lines_of(2**16)
        with contextlib.redirect_stderr(box), unbroken:
            return tyro.cli(arguments, **options)
    except SystemExit as stop:
        if stop.code:
            print(f"error: {unboxed(box.getvalue())} (--help shows every option)", file=sys.stderr)
        raise


@contextlib.contextmanager
def lines_of(columns: int) -> Iterator[None]:
    """Lets whoever asks for the width of the terminal find this many columns."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(columns)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def unboxed(box: str) -> str:
    r"""The text within a box that tyro drew, in one line, without its title and its pointer to --help.

    Where the output cannot show the lines of a box, hyphens stand for them.

    >>> unboxed("╭─ Value error ──╮\n│ Error parsing Arguments: --sets is 0 │\n╰──╯")
    '--sets is 0'
    >>> unboxed(" Value error\n ----- \n  Error parsing Arguments: --sets is 0 \n")
    '--sets is 0'
    """
    _title, *inside = [text for line in box.splitlines() if (text := line.strip("│╭╮╰╯ "))]
    joined = " ".join("\0" if set(text) <= {"─", "-"} else text for text in inside)
    sections = [text for section in joined.split("\0") if (text := section.strip()) and "For full helptext" not in text]
    return plain(re.sub(r"^Error parsing (Arguments|config|cluster|Cluster): ", "", ". ".join(sections)))


WHOLE, REAL = "a whole number, written as in 128", "a number, written as in 0.001"
PHRASES: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"Error parsing (--[\w-]+): invalid literal for int\(\) with base 10: ('.*?')\.", lambda m: _must_be(m, WHOLE)),
    (r"Error parsing (--[\w-]+): could not convert string to float: ('.*?')\.", lambda m: _must_be(m, REAL)),
    (
        r"Error parsing (--[\w-]+): Could not find valid parse for arguments: \[(.*?)\]\..*?(INT)?\b",
        lambda m: _must_be(m, WHOLE if " [INT" in m.string else REAL),
    ),
    (
        r"Error parsing (--[\w-]+): no type matching (?:\{None\}\|)?(\w+) could be instantiated from \[(.*?)\]\. ",
        lambda m: f"{m[1]} is {m[3]}: it must be {WHOLE if m[2] == 'INT' else REAL}",
    ),
    (
        r"Error parsing (--[\w-]+): Failed to parse key-value pairs!.*?(\bas in `.*?`)?(?=[.;]|$)",
        lambda m: f"{m[1]} must be names, each with a number after it, {_as_in(m)}",
    ),
    (
        r"invalid choice ('.*?') for argument '(--[\w-]+)'\. Expected one of \((.*?)\)",
        lambda m: (
            f"{m[2]} is {m[1]}: {did_you_mean(m[1].strip(chr(39)), re.findall(chr(39) + '(.*?)' + chr(39), m[3]))}"
            f"it must be one of {m[3]}"
        ),
    ),
    (r"Missing value for argument '(.*?)'\. Expected.*", lambda m: f"{m[1]} has no value: it must be followed by one"),
    (
        r"Unrecognized options: (\S+?)(?:, .*?)?\. Perhaps you meant: (--[\w-]+).*",
        lambda m: f"{m[1]} is no option: did you mean {m[2]}?",
    ),
    (
        r"Unrecognized options: (-\S+?)(?:, .*)?$",
        lambda m: f"{m[1]} is no option: it must be one of those that --help lists",
    ),
    (
        r"Unrecognized options: (.*)$",
        lambda m: f"{m[1]} belongs to no option: values must follow the name of one, as in --name value",
    ),
    (
        r"Required options were not provided: (\S+).*",
        lambda m: f"{m[1]} is not given: it must be named",
    ),
)
"""What tyro says, and how to say it with the value, the rule and the remedy."""


def plain(problem: str) -> str:
    """What tyro found wrong, in the words of this project.

    >>> plain("invalid choice 'frsh' for argument '--protocol'. Expected one of ('fresh', 'notebook').")
    "--protocol is 'frsh': did you mean 'fresh'? it must be one of 'fresh', 'notebook'"
    >>> plain("Error parsing --sets: invalid literal for int() with base 10: 'many'. Argument helptext: --sets INT")
    "--sets is 'many': it must be a whole number, written as in 128"
    """
    for pattern, say in PHRASES:
        if found := re.match(pattern, problem):
            return say(found)
    return problem


def _must_be(found: re.Match[str], rule: str) -> str:
    return f"{found[1]} is {found[2]}: it must be {rule}"


def _as_in(found: re.Match[str]) -> str:
    example = re.search(r"as in `.*?`", found.string)
    return example[0] if example else "as in `name 0.1`"


def given_twice(arguments: Sequence[str]) -> str | None:
    """What is wrong if an option is given twice, or together with the one that says no to it.

    >>> given_twice(["--sets", "1", "--lengths", "2", "--sets=3"])
    '--sets is given twice: it must be given once, so leave one out'
    >>> given_twice(["--compilation-cache", "here", "--no-compilation-cache"])
    '--compilation-cache and --no-compilation-cache contradict each other: only one must be given, so leave one out'
    """
    named = [text.split("=")[0].replace("_", "-") for text in arguments if re.match(r"--[a-zA-Z]", text)]
    for name, times in Counter(named).items():
        if times > 1:
            return f"{name} is given twice: it must be given once, so leave one out"
        if (no := f"--no-{name[2:]}") in named:
            return f"{name} and {no} contradict each other: only one must be given, so leave one out"
    return None


def each_once(option: str, values: Sequence[Any]) -> None:
    """Raises ValueError unless there are values, all different."""
    twice = [value for value, times in Counter(values).items() if times > 1]
    if twice:
        raise ValueError(f"{option} has {twice[0]} twice: it must have each once, so leave one out")
    if not values:
        raise ValueError(f"{option} is '': name at least one, each once")


def normalizer_names(values: Sequence[str]) -> None:
    """Raises ValueError unless these are names to evaluate under: each once, or `all` by itself."""
    each_once("--normalizers", values)
    if "all" in values and len(values) > 1:
        raise ValueError(f"--normalizers is {' '.join(values)!r}: all must stand by itself, so leave the others out")


def within(option: str, value: int | float, least: int | float, most: int | float, example: object) -> None:
    """Raises ValueError unless a number lies between two others."""
    if not least <= value <= most:
        raise ValueError(f"{option} is {value}: it must be at least {least} and at most {most}, such as {example}")


def check_directory(option: str, path: Path) -> None:
    """Raises ValueError unless files can be written to a directory of that name, which need not be there yet."""
    there = path.absolute()
    try:
        while not there.exists():
            there = there.parent
        reason = None if there.is_dir() else f"{there} is a file"
    except OSError as error:  # too long a name, or one with a zero byte
        reason = error.strerror
    if reason is None and not os.access(there, os.W_OK | os.X_OK):
        reason = f"{there} cannot be written to"
    if reason:
        raise ValueError(f"{option} is {path}: it must be a directory to write to, and {reason}; name another")


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
    except (ValueError, OSError, MemoryError, jax.errors.JaxRuntimeError) as error:
        said = " ".join(str(error).split())
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in said:
            said = f"this takes more memory than there is ({said[:200]}): ask for less at once, as fewer sets or seeds"
        elif isinstance(error, jax.errors.JaxRuntimeError):
            raise
        console.print(f"error: {said}", style="red", soft_wrap=True, markup=False, highlight=False)
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
