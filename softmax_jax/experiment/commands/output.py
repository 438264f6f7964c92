"""The output of a command: its directory of results, the settings in it, and what is printed to go on with."""

import codecs
import contextlib
import dataclasses
import datetime
import difflib
import io
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from softmax_jax.experiment import program
from softmax_jax.files import not_written, reason, typed, versions, write_json
from softmax_jax.normalizers.registry import imported_for
from softmax_jax.normalizers.user_modules import named_module
from softmax_jax.refusal import Refusal

if TYPE_CHECKING:
    from softmax_jax.experiment.measures.runs import Loaded
    from softmax_jax.experiment.training.config import Config

RESULTS = Path("results")
"""The directory of results, unless an option names another."""
NO_SETTINGS = ("cluster", "compiled", "rounding", "paper")
"""Options that change no number, and the precision, which stands under the settings of the model."""


def check_directory(option: str, path: Path) -> None:
    """Raises Refusal unless files can be written to a directory of that name, which need not exist yet.

    Called before anything is computed, so that nothing is computed in vain.
    """
    nearest = path.absolute()
    try:
        while not nearest.exists():
            nearest = nearest.parent
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:  # no directory, no permission, too long a name, a full disk
        place = "this" if nearest == path.absolute() else typed_path(nearest)
        problem = "is a file" if isinstance(error, NotADirectoryError) else f"is not: {reason(error)}"
        raise Refusal(
            f"{option} is {path}: it must be a directory to write to, and {place} {problem}; name another"
        ) from None


@contextlib.contextmanager
def results_of(command: str, output: Path | None) -> Iterator[Path]:
    """Yields the directory to write to: the given one, or else results/COMMAND/TIME, a new one.

    Once all is written, the link `latest` beside it leads there. A new directory that stayed empty is removed.
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


def recorded_options(arguments: Any) -> dict[str, Any]:
    """Returns the options that a file of results names, as JSON has them."""
    recorded = {name: value for name, value in dataclasses.asdict(arguments).items() if name not in NO_SETTINGS}
    return jax.tree.map(lambda leaf: str(leaf) if isinstance(leaf, Path) else leaf, recorded)


def write_settings(output: Path, arguments: Any) -> Path:
    """Writes settings.json with the options and the versions of what computed; returns its path."""
    path = output / "settings.json"
    write_json(path, {"settings": recorded_options(arguments), "versions": versions()})
    return path


def typed_path(path: Path) -> str:
    """Returns a path as one would type it here, quoted where a shell asks for that."""
    return typed(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def picture_among(files: Sequence[Path]) -> str:
    """Names the first picture among files, and the others that lie in its directory.

    >>> picture_among([Path("fit.json"), Path("charts/data.csv"), Path("charts/entropy.png")])
    'charts/entropy.png, with data.csv beside it'
    """
    picture = min(files, key=lambda file: file.suffix != ".png")
    others = [str(file.relative_to(picture.parent)) for file in files if file.is_relative_to(picture.parent)]
    return f"{typed_path(picture)}, with {', '.join(name for name in others if name != picture.name)} beside it"


def given_options(arguments: Any) -> str:
    """Returns the options whose values differ from the defaults, as one would type them.

    >>> from softmax_jax.experiment.commands.fit import Arguments
    >>> given_options(Arguments(Path("my runs/x"), lengths=(4, 16), quick=True))
    "--checkpoint 'my runs/x' --lengths 4 16 --quick"
    """
    words = []
    for field in dataclasses.fields(arguments):
        value = getattr(arguments, field.name)
        if value != field.default:
            values = value if isinstance(value, tuple) else () if value is True else (value,)
            words += ["--" + field.name.replace("_", "-"), *(typed_path(Path(str(each))) for each in values)]
    return " ".join(words)


def trust_option(*configs: "Config") -> str:
    """Returns the option that a command line takes to load runs which name modules of one's own, if these do.

    >>> from softmax_jax.experiment.training.config import Config
    >>> trust_option(Config()), trust_option(Config(normalizer="my_module:relu"))
    ('', ' --trust-code')
    """
    from softmax_jax.experiment.tasks import name_of  # here, as it loads flax, which no list of commands needs

    modules = [m for config in configs for m in (imported_for(config.normalizer), named_module(name_of(config.task)))]
    return " --trust-code" * any(modules)


def fit_command(run: "Loaded") -> str | None:
    """Returns the command that fits a temperature to a run, into its directory; None if one lies there or cannot."""
    from softmax_jax.experiment.measures.runs import fits_beside  # here, as it loads flax

    if not run.path.is_dir() or run.labels or fits_beside(run.path, run.parameters):
        return None
    place = f"--checkpoint {typed_path(run.path)} --output {typed_path(run.path)}{trust_option(run.config)}"
    return f"{program('fit')} {place}  # fits a temperature to these models, in a few minutes"


def counted(number: int, noun: str) -> str:
    """Returns a number of things in words.

    >>> counted(1, "seed"), counted(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Returns a refusal of a name, with the nearest of those that are known.

    >>> unknown("option", "--lenghts", ["--lengths", "--sets"]), unknown("command", "x", ["train"])
    ('Unknown option --lenghts. Did you mean --lengths?', 'Unknown command x.')
    """
    nearest = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f"Unknown {kind} {name}." + (f" Did you mean {nearest[0]}?" if nearest else "")


def print_any_letter() -> None:
    """Lets letters be printed that the locale lacks: as UTF-8 where it knows ASCII only, else as a question mark.

    Python does the first itself, unless PYTHONUTF8=0 forbids it.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        coding = codecs.lookup(stream.encoding).name
        if coding == "ascii":
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
        elif coding != "utf-8":
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def ended_by_reader() -> Iterator[None]:
    """Ends the process quietly if the reader of its output, such as `head`, reads no further."""
    print_any_letter()
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.pipe()[1], sys.stdout.fileno())  # for what Python still writes at the end
        raise SystemExit(141) from None  # the status that a shell gives other commands that end so
