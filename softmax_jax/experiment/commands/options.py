"""The common parts of the command lines: options, devices, places to write to, and errors in one line."""

import atexit
import contextlib
import dataclasses
import datetime
import gc
import io
import os
import re
import sys
import tempfile
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import jax
import tyro

from softmax_jax.experiment.commands import ended_by_reader, print_any_letter, program
from softmax_jax.experiment.configs import PRESETS, is_file
from softmax_jax.experiment.report import Paper
from softmax_jax.experiment.tasks import name_of
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.files import not_written, reason, typed, versions, write_json
from softmax_jax.normalizers.checks import did_you_mean
from softmax_jax.normalizers.user_modules import ANY, OF_A_MODULE, trust
from softmax_jax.refusal import NotFiniteError, Refusal

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
PaperOption = Annotated[
    Paper | None,
    tyro.conf.arg(
        help="Write every chart for print too, into the directory paper: PDF and SVG as wide as one column (3.25 "
        "inches) or two (6.75), in a serif font, with names for readers, and the title as text for a caption."
    ),
]
"""What commands that draw take as --paper."""
Quick = Annotated[
    bool,
    tyro.conf.arg(help="Take a look in about a minute: fewer sets, seeds or steps, unless an option says how many."),
]
"""What commands that take minutes take as --quick."""
RESULTS = Path("results")
"""Where commands write what they found, unless told otherwise."""


def parse(arguments: type[T], args: Sequence[str] | None = None, example: str = "", **options: Any) -> T:
    """Calls `tyro.cli`, whose help starts with the example. What is wrong goes to stderr in one line, with status 2.

    A `~` behind an equals sign is the home of the user, as the shell makes it behind a blank.
    """
    print_any_letter()
    given_words = sys.argv[1:] if args is None else args
    words = [re.sub(r"^(--[\w-]+=)~(?=/|$)", rf"\1{Path.home()}", word) for word in given_words]
    names = [word.split("=")[0].replace("_", "-") for word in words if re.match(r"--[a-zA-Z]", word)]
    for name, times in Counter(name.replace("--no-", "--") for name in names).items():
        if times > 1:
            refuse(f"{name} is given twice, with or without --no: it must be given once, so leave one out")
    box, helps = io.StringIO(), not {"-h", "--help"}.isdisjoint(words)
    if helps and example:
        print(f"example: {example}\n")
    try:
        with contextlib.redirect_stderr(box), _wide_terminal(not helps):
            parsed = tyro.cli(arguments, args=words, **options)
    except SystemExit as end:
        if end.code:
            refuse(_reworded(box.getvalue(), words))
        raise
    sys.stderr.write(box.getvalue())  # of modules that were imported
    trust(*words, *(word.partition("=")[2] for word in words))
    if getattr(parsed, "trust_code", False):
        trust(ANY)
    return parsed


@contextlib.contextmanager
def _wide_terminal(wide: bool) -> Iterator[None]:
    """Lets tyro break no line, which it does within words, too."""
    before = os.environ.get("COLUMNS")
    if wide:
        os.environ["COLUMNS"] = "100000"
    try:
        yield
    finally:
        os.environ.pop("COLUMNS", None)
        if before is not None:
            os.environ["COLUMNS"] = before


def _reworded(box: str, words: Sequence[str]) -> str:
    """Returns what tyro prints in its box as one line with the option, the rule and the remedy."""
    lines = (re.sub("[─│╭╮╰╯]|-{5,}", "", line).strip() for line in box.splitlines())
    _, _, text = "\n".join(lines).strip().partition("\n")
    problem, _, help_text = text.strip().partition("\n\n")
    if match := re.match(r"Unrecognized options: ([^ ,]*)", problem):
        if not match[1].startswith("-"):
            return f"{match[1]} belongs to no option: values must follow the name of one, as in --name value"
        nearest = re.search(r"meant:\s+(--[\w-]+)", help_text)
        return f"{match[1]} is no option" + (f": did you mean {nearest[1]!r}?" if nearest else "")
    if match := re.match(r"Missing value for argument '(.*?)'", problem):
        return f"{match[1]} has no value: it must be followed by one"
    if match := re.match(r"invalid choice '(.*)' for argument '(.*)'. Expected one of \((.*?),?\)\.", problem):
        value, option, choices = match.groups()
        near = did_you_mean(value, re.findall("'(.*?)'", choices))
        return f"{option} is {value!r}: {near}it must be one of {choices}"
    if match := re.match(r"Error parsing (--[\w-]+): (.*)", problem):
        option = match[1]
        given = re.search(rf"{option.replace('-', '[-_]')}[ =](.*?)(?: --|$)", " ".join(words))
        kind = help_text.partition(option)[2].partition("\n")[0]
        rule = "a whole number, written as in 128" if "INT" in kind else "a number, written as in 0.001"
        rule = f"names, each with {rule}" if "STR" in kind else rule
        return f"{option} is {given[1] if given else ''!r}: it must be {rule}"
    return re.sub(r"^Error parsing \w+: ", "", problem)


def parse_preset(summaries: Mapping[str, str], arguments: Callable[[str], T], description: str) -> T:
    """Calls `parse` on the options behind the first word, which names a preset: a listed one, or one of your own.

    `arguments` gives those of a preset, which the options change. No other preset is looked at.
    """
    name, *others = sys.argv[1:] or ["nothing"]
    script = Path(sys.argv[0]).name
    if name in ("-h", "--help"):
        listed = (f"  {preset:<28}{summary}" for preset, summary in summaries.items())
        print(f"example: {program('train')} quick --workdir runs/x", "", sep="\n")
        print(f"usage: {script} PRESET [OPTIONS]", "", description, "", *listed, sep="\n")
        print("", "PRESET --help lists the options of one.", sep="\n")
        raise SystemExit(0)
    try:
        if name not in PRESETS and ":" not in name and not is_file(name):
            known = f"it must be a preset, one of {', '.join(summaries)}"
            own = "one of your own is written path/to/mine.py or my_module:CONFIG"
            raise Refusal(f"the first argument is {name}: {did_you_mean(name, summaries)}{known}; {own}")
        default = arguments(name)
    except Refusal as error:
        refuse(str(error))
    options = {"prog": f"{script} {name}", "description": summaries.get(name, description)}
    example = f"{program('train')} {name} --steps 2000 --workdir runs/x"
    return parse(type(default), others, example, default=default, **options)


def refuse(problem: str) -> NoReturn:
    """Ends a command line that cannot be read, in one line on stderr and with status 2."""
    print(f"error: {' '.join(problem.split())} (--help shows every option)", file=sys.stderr)
    raise SystemExit(2)


def each_once(option: str, values: Sequence[Any]) -> None:
    """Raises ValueError unless there are values, all different."""
    twice = [value for value, times in Counter(values).items() if times > 1]
    if twice:
        raise Refusal(f"{option} has {twice[0]} twice: it must have each once, so leave one out")
    if not values:
        raise Refusal(f"{option} is '': name at least one, each once")


def normalizer_names(values: Sequence[str]) -> None:
    """Raises ValueError unless these are names to evaluate under: each once, or `all` by itself."""
    each_once("--normalizers", values)
    if "all" in values and len(values) > 1:
        raise Refusal(f"--normalizers is {' '.join(values)!r}: all must stand by itself, so leave the others out")


def within(option: str, value: int | float, least: int | float, most: int | float, example: object) -> None:
    """Raises ValueError unless a number lies between two others."""
    if not least <= value <= most:
        raise Refusal(f"{option} is {value}: it must be at least {least} and at most {most}, such as {example}")


def each_within(option: str, values: Sequence[int], least: int, most: int, example: int) -> None:
    """Raises ValueError unless there are numbers, such as lengths, all different and between two others."""
    each_once(option, values)
    for value in values:
        if not least <= value <= most:
            raise Refusal(f"{option} has {value}: each must be from {least} to {most}, such as {example}")


def counted(number: int, what: str) -> str:
    """Returns a number of things in words.

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
        raise Refusal(f"{option} is {path}: {problem}; name another") from None


@contextlib.contextmanager
def results_of(command: str, output: Path | None) -> Iterator[Path]:
    """Yields the directory to write to: the one that is given, or else results/COMMAND/TIME, a new one.

    Once all is written, the link `latest` beside it leads there. A new one that nothing was written to goes again.
    """
    if output:
        yield output
        return
    home = RESULTS / command
    while True:
        directory = home / f"{datetime.datetime.now():%Y-%m-%dT%H-%M-%S}"
        try:
            directory.mkdir(parents=True)
            break
        except OSError as error:
            if not directory.exists():
                raise not_written(directory, error) from error
            time.sleep(0.1)  # another process has this second
    try:
        yield directory
        with contextlib.suppress(OSError):  # a file system without links
            (home / "latest").unlink(missing_ok=True)
            (home / "latest").symlink_to(directory.name)
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


@dataclasses.dataclass(frozen=True)
class CompiledPrograms:
    """Options for compiled programs."""

    compilation_cache: Path | None = None
    """Directory that keeps compiled programs from run to run; softmax_jax in the user's cache directory by default."""
    no_compilation_cache: tyro.conf.FlagCreatePairsOff[bool] = False
    """Keep no compiled program and use none that was kept."""

    def keep(self) -> None:
        """Keeps compiled programs and reads back those of earlier processes; call it before anything is compiled.

        A directory that JAX's own settings name, such as `JAX_COMPILATION_CACHE_DIR`, goes before the default. One
        that cannot be written means no cache, which costs the time to compile and is nothing to warn of.
        """
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        chosen = self.compilation_cache or jax.config.values["jax_compilation_cache_dir"] or Path(base, "softmax_jax")
        jax.config.update("jax_enable_compilation_cache", not self.no_compilation_cache)
        jax.config.update("jax_compilation_cache_dir", str(chosen))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")


KEPT = CompiledPrograms()


@ended_by_reader()
def run(
    arguments: type[T],
    description: str | None,
    command: Callable[[T], None],
    example: str = "",
    quick: Mapping[str, Any] = types.MappingProxyType({}),
    **more: Any,
) -> None:
    """Parses the command line and calls the command with it, a device per core; bad input ends in one line.

    What is `quick` takes the place of options that are left out where --quick is given.
    """
    atexit.register(gc.freeze)  # or the interpreter looks through every object once more at its end, for 0.8 s
    asked: Any = parse(arguments, example=example, description=description, **more)
    one_device_per_core()
    if getattr(asked, "quick", False):
        less = {name: value for name, value in quick.items() if getattr(asked, name) == getattr(arguments, name)}
        print("a quick look, not a result to cite:", ", ".join(f"{name} {value}" for name, value in less.items()))
        asked = dataclasses.replace(asked, **less)
    with one_line_errors():
        command(asked)


def shown(path: Path) -> str:
    """Returns a path as one would type it here, quoted where a shell asks for that."""
    return typed(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def trusted(*configs: Config) -> str:
    """Returns the option that a command line takes to load runs which name modules of somebody's own, if these do.

    >>> trusted(Config()), trusted(Config(normalizer="my_module:relu"))
    ('', ' --trust-code')
    """
    named = [text for config in configs for text in (config.normalizer, name_of(config.task))]
    return " --trust-code" * any(map(OF_A_MODULE.fullmatch, named))


def settings(asked: Any) -> dict[str, Any]:
    """Returns the options that a file of results names, as JSON has them."""
    kept = {name: value for name, value in dataclasses.asdict(asked).items() if name not in NO_SETTINGS}
    return jax.tree.map(lambda leaf: str(leaf) if isinstance(leaf, Path) else leaf, kept)


def write_settings(output: Path, asked: Any) -> Path:
    """Writes settings.json with the options and what computed; returns where."""
    path = output / "settings.json"
    write_json(path, {"settings": settings(asked), "versions": versions()})
    return path


NO_SETTINGS = ("cluster", "compiled", "rounding", "paper")
"""Options that change no number, and the precision, which stands under the settings of the model."""


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends bad input in one line on stderr with status 2, a loss that is not finite with 1, a stopped run with 130."""
    try:
        yield
    except NotFiniteError as error:
        problem, status = str(error), 1
    except Refusal as refusal:
        problem, status = " ".join(str(refusal).split()), 2
    except (MemoryError, RuntimeError, AssertionError) as error:
        if not (problem := memory_problem(error) or device_problem()):
            raise
        status = 2
    except KeyboardInterrupt as interruption:
        print(*interruption.args, end="\n" * bool(interruption.args), file=sys.stderr)
        raise SystemExit(130) from None
    else:
        return
    plain_console(stderr=True).print(f"error: {problem}", style="red", soft_wrap=True, highlight=False)
    raise SystemExit(status)


def memory_problem(error: BaseException) -> str:
    """Returns that there was too little memory, where the error says so, or nothing."""
    words = " ".join(str(error).split())[:200]
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in words:
        return f"this takes more memory than there is ({words}): ask for fewer sets or seeds at once"
    return ""


def device_problem() -> str:
    """Returns why there is no device to compute on, or nothing. JAX tells by an error of any of these kinds."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError):
        platforms = jax.config.values["jax_platforms"]
        return f"JAX_PLATFORMS is {platforms!r}, and JAX finds no such device here: leave it out, or install one"
    return ""
