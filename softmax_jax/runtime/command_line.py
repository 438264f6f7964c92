"""What the command lines share: the machine they run on, and how they say that something is wrong."""

import contextlib
import dataclasses
import datetime
import itertools
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import jax
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tyro import _errors as refusals  # where tyro hands out what is wrong as data; its other way is a drawn box

from softmax_jax.files import link_whole, print_to_the_end, reason
from softmax_jax.normalizers.checks import did_you_mean
from softmax_jax.normalizers.registry import ANY, trust

T = TypeVar("T")
UnlessGiven = Annotated[T, tyro.conf.arg(help_behavior_hint="")]
"""The type of an option that is empty unless given; its description says what happens then."""
TrustCode = Annotated[
    bool,
    tyro.conf.arg(
        help="Import a module that a run's config.json names, which runs its code. One that this command line names "
        "itself, as in my_module:relu, needs no such leave."
    ),
]
"""What commands that load a run take as --trust-code."""
RESULTS = Path("results")
"""Where commands write what they found, unless told otherwise."""
WHOLE, REAL = "a whole number, written as in 128", "a number, written as in 0.001"


def parse(arguments: type[T], **options: Any) -> T:
    """`tyro.cli`, with what is wrong in one line on stderr and exit status 2."""
    print_to_the_end()
    given = sys.argv[1:] if options.get("args") is None else options["args"]
    with one_line_refusals(given, option_names(arguments)):
        asked = tyro.cli(arguments, **options)
    trust(*given, *(word.partition("=")[2] for word in given))
    if getattr(asked, "trust_code", False):
        trust(ANY)
    return asked


def parse_preset(summaries: Mapping[str, str], arguments: Callable[[str], T], description: str) -> T:
    """`parse` of the options behind the first word, which names a preset: one that --help lists, or one of your own.

    `arguments` gives those of a preset, which the options change. No other preset is looked at.
    """
    name, *others = sys.argv[1:] or ["nothing"]
    if name in ("-h", "--help"):
        print_to_the_end()
        listed = (f"  {preset:<28}{summary}" for preset, summary in summaries.items())
        print(f"usage: {Path(sys.argv[0]).name} PRESET [OPTIONS]", "", description, "", *listed, sep="\n")
        print("", "PRESET --help lists the options of one.", sep="\n")
        raise SystemExit(0)
    with one_line_refusals(others, ()):
        if name not in summaries and ":" not in name:
            known = f"it must be a preset, one of {', '.join(summaries)}; one of your own is written my_module:CONFIG"
            raise ValueError(f"the first argument is {name}: {did_you_mean(name, summaries)}{known}")
        default = arguments(name)
    program = f"{Path(sys.argv[0]).name} {name}"
    return parse(
        type(default), default=default, args=others, prog=program, description=summaries.get(name, description)
    )


@contextlib.contextmanager
def one_line_refusals(given: Sequence[str], known: Sequence[str]) -> Iterator[None]:
    """Lets tyro refuse a command line in one line; refuses an option that is given twice."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # where my_module of my_module:relu is looked for last

    def refuse(failure: refusals.ParseErrorEvent) -> None:
        if problem := in_words(failure, given, known):
            raise ValueError(problem)

    try:
        not_twice(given)
        with refusals.on_parse_error(refuse):
            yield
    except ValueError as error:
        print(f"error: {' '.join(str(error).split())} (--help shows every option)", file=sys.stderr)
        raise SystemExit(2) from None


def in_words(failure: refusals.ParseErrorEvent, given: Sequence[str], known: Sequence[str]) -> str | None:
    """What tyro found wrong: the value, the rule and the remedy. None for what this project has no words for."""
    match failure:
        case refusals.UnrecognizedArgs(tokens=[token, *_]) if token.startswith("-"):
            return f"{token} is no option: {did_you_mean(token, known)}it must be one of those that --help lists"
        case refusals.UnrecognizedArgs(tokens=[token, *_]):
            return f"{token} belongs to no option: values must follow the name of one, as in --name value"
        case refusals.MissingArgs(missing_arguments=[first, *_]):
            return f"{first.arg.display_name()} is not given: it must be named"
        case refusals.BadValue(argument=option):
            return f"{option.display_name()} has no value: it must be followed by one"
        case refusals.InvalidChoice(argument=option, value=value, choices=choices):
            one_of = f"it must be one of {', '.join(repr(one) for one in choices if one != 'None')}"
            return f"{option.display_name()} is {value!r}: {did_you_mean(value, choices)}{one_of}"
        case refusals.InstantiationFailure(argument=None, message=message):
            return message
        case refusals.InstantiationFailure(argument=option) if option is not None:
            name, kind = option.display_name(), option.lowered.metavar or ""
            rule = WHOLE if "INT" in kind else REAL
            rule = f"names, each with {rule}" if "STR" in kind else rule
            return f"{name} is {value_of(name, given)!r}: it must be {rule}"
    return None


def value_of(option: str, given: Sequence[str]) -> str:
    """What follows an option on a command line.

    >>> value_of("--lengths", ["--sets=3", "--lengths", "4", "x", "--heads", "2"])
    '4 x'
    """
    words = [part for text in given for part in (text.split("=", 1) if text.startswith("--") else [text])]
    after = [word.replace("_", "-") for word in words].index(option) + 1
    return " ".join(itertools.takewhile(lambda word: not word.startswith("--"), words[after:]))


def option_names(arguments: type) -> list[str]:
    """The options that a dataclass of arguments stands for, those of the dataclasses in it included."""
    kinds = get_type_hints(arguments)
    fields = [field.name for field in dataclasses.fields(arguments)]
    inner = [name for field in fields if dataclasses.is_dataclass(kinds[field]) for name in option_names(kinds[field])]
    return [f"--{field.replace('_', '-')}" for field in fields] + inner


def not_twice(given: Sequence[str]) -> None:
    """Raises ValueError if an option is given twice, or together with the one that says no to it.

    >>> not_twice(["--sets", "1", "--lengths", "2", "--sets=3"])
    Traceback (most recent call last):
    ValueError: --sets is given twice, with or without --no: it must be given once, so leave one out
    """
    names = [word.split("=")[0].replace("_", "-") for word in given if re.match(r"--[a-zA-Z]", word)]
    for name, times in Counter(name.replace("--no-", "--") for name in names).items():
        if times > 1:
            raise ValueError(f"{name} is given twice, with or without --no: it must be given once, so leave one out")


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


def each_within(option: str, values: Sequence[int], least: int, most: int, example: int) -> None:
    """Raises ValueError unless there are numbers, such as lengths, all different and between two others."""
    each_once(option, values)
    for value in values:
        if not least <= value <= most:
            raise ValueError(f"{option} has {value}: each must be from {least} to {most}, such as {example}")


def typed(command: str, file: str) -> str:
    """How to type another command, as this one was: by its name behind `softmax-jax`, or by its file."""
    return f"softmax-jax {command}" if sys.argv[0].startswith("softmax-jax") else f"python {file}"


def counted(number: int, what: str) -> str:
    """A number of things in words.

    >>> counted(1, "seed"), counted(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{number} {what}{'s' * (number != 1)}"


def check_directory(option: str, path: Path) -> None:
    """Raises ValueError unless files can be written to a directory of that name, which need not be there yet.

    Called before anything is computed, so that nothing is computed in vain.
    """
    there = path.absolute()
    try:
        while not there.exists():
            there = there.parent
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:  # no directory, no permission, too long a name, a full disk
        problem = f"it must be a directory to write to, and {there} is none: {reason(error)}"
        raise ValueError(f"{option} is {path}: {problem}; name another") from None


@contextlib.contextmanager
def results_of(command: str, asked: Path | None) -> Iterator[Path]:
    """The directory to write to: the one asked for, or else results/COMMAND/TIME, a new one.

    Once all is written, the link `latest` beside it leads there. A new one that nothing was written to goes again.
    """
    if asked:
        yield asked
        return
    home = RESULTS / command
    while True:
        directory = home / f"{datetime.datetime.now():%Y-%m-%dT%H-%M-%S}"
        with contextlib.suppress(FileExistsError):  # another process has this second
            directory.mkdir(parents=True)
            break
        time.sleep(0.1)
    try:
        yield directory
        with contextlib.suppress(OSError):  # a file system without links
            link_whole(home / "latest", directory.name)
    finally:
        for path in (directory, home, RESULTS):
            with contextlib.suppress(OSError):  # it holds something
                path.rmdir()


def one_device_per_core() -> None:
    """Makes every CPU core a device of its own; call it before JAX first touches a device.

    Seeds are independent, so a core each beats all cores at one matrix product. Other platforms are not affected,
    nor is anyone who chose their own XLA_FLAGS.
    """
    if "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        jax.config.update("jax_num_cpu_devices", len(usable))


def print_error(said: str) -> None:
    """One line on stderr, in red on a terminal."""
    plain_console(stderr=True).print(f"error: {said}", style="red", soft_wrap=True, highlight=False)


def plain_console(**options: Any) -> Console:
    """A console that prints text as it is: brackets and colons in a name or a path are no markup."""
    return Console(markup=False, emoji=False, **options)


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns bad input into one line on stderr and exit status 2, Ctrl-C into 130."""
    try:
        yield
    except (ValueError, OSError, MemoryError, RuntimeError, AssertionError) as error:
        said = " ".join(str(error).split())
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in said:
            said = f"this takes more memory than there is ({said[:200]}): ask for less at once, as fewer sets or seeds"
        elif isinstance(error, RuntimeError | AssertionError) and not (said := device_problem()):
            raise
        print_error(said)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def device_problem() -> str:
    """Returns why there is no device to compute on, or nothing. JAX tells by an error of any of these kinds."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError):
        platforms = jax.config.values["jax_platforms"]
        return (
            f"JAX_PLATFORMS is {platforms!r}, and JAX finds no such device here: leave it out, or install a JAX for it"
        )
    return ""


def with_progress(
    results: Iterable[T],
    costs: Sequence[int],
    doing: str,
    names: Sequence[str] = (),
    said: Callable[[T], str] | None = None,
) -> Iterator[T]:
    """Passes on each result, with a bar on a terminal and a line per result in a log, which ends in what is `said`.

    What is said of a result stands on a terminal too. Without names the costs are lengths: an item costs about the same
    in any set, so items are the unit of time left.
    """
    names = names or [f"n = {n}" for n in costs]
    console = Console(stderr=True)
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(names[0], total=sum(costs))
        for result, cost, name, following in zip(results, costs, names, [*names[1:], "done"]):
            bar.update(task, advance=cost, description=following)
            line = f"{doing} {name}" + (f": {said(result)}" if said else "")
            if not console.is_terminal:
                print(line, file=sys.stderr, flush=True)
            elif said:
                bar.console.print(line, markup=False, highlight=False)
            yield result
