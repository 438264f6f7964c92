"""Refits the adaptive temperature, β as a polynomial of a row's entropy, to trained models."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import polars as pl

from softmax_jax.experiment import program
from softmax_jax.experiment.commands import process
from softmax_jax.experiment.commands.output import (
    RESULTS,
    check_directory,
    counted,
    given_options,
    picture_among,
    results_of,
    trust_option,
    typed_path,
    write_settings,
)
from softmax_jax.experiment.commands.parse import (
    PaperOption,
    Quick,
    TrustCode,
    UnlessGiven,
    each_within,
    parse,
    within,
)
from softmax_jax.experiment.measures import refit
from softmax_jax.experiment.measures.one_set import heads_of
from softmax_jax.experiment.measures.runs import numbered
from softmax_jax.experiment.measures.sets import Draw, key_of
from softmax_jax.experiment.report import temperature as report
from softmax_jax.experiment.training.progress import plain_console, with_progress
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.files import typed
from softmax_jax.normalizers.fit_file import LARGEST_DEGREE
from softmax_jax.refusal import Refusal
from softmax_jax.temperature import Criterion, TemperatureFit, checkpoint_sha256

QUICK = {"lengths": (8, 16, 64, 256, 1024)}
"""The options of a quick look. It has as many sets as a whole fit, as compiling takes most of its time."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    checkpoint: Path = SHIPPED / "paper"
    """Directory of a run, or a Flax msgpack file of the published recreation's parameters."""
    lengths: UnlessGiven[tuple[int, ...]] = ()
    """Items per set: lengths to fit to and to compare at, those of the task unless given. A second fit sees only the
    lengths of training."""
    sets: UnlessGiven[int | None] = None
    """Sets per seed and length to fit to, and as many fresh ones to compare on; 64 times as many up to 16 items. 64
    unless given, or as many as the task tests with."""
    degree: int = 4
    """Degree of the polynomial."""
    criterion: Criterion = "bins"
    """Which temperature counts as best. inputs: that of the least loss of each row by itself. bins: that of the
    least mean loss of all rows of like entropy. accuracy: that of the fewest errors among them. target: that of the
    largest weight of the true item, in rows where another has more; said to be the paper's."""
    trust_code: TrustCode = False
    output: UnlessGiven[Path | None] = None
    """Directory for the two fits, the comparison and the charts; results/fit/TIME by default. Name the checkpoint's
    for evaluate.py to find the fits there."""
    full: bool = False
    """Print every table: coefficients with intervals, rows by length, β by entropy, losses, shares and tests."""
    paper: PaperOption = None
    quick: Quick = False

    def __post_init__(self) -> None:
        each_within("--lengths", self.lengths or (16,), 2, 2**20, 16)  # one item has no temperature
        within("--sets", 64 if self.sets is None else self.sets, 1, refit.MOST_SETS, 64)
        within("--degree", self.degree, 1, LARGEST_DEGREE, 4)


def fit(arguments: Arguments) -> None:
    """Searches, fits, compares, prints, writes."""
    start = time.perf_counter()
    for directory in (arguments.output, arguments.output / "temperature") if arguments.output else (RESULTS / "fit",):
        check_directory("--output", directory)
    config, parameters = load_checkpoint(arguments.checkpoint)
    (part, task), *others = config.task.parts().items()
    if others:
        print(f"fitting to the {task.grouped_by} {part} only: {counted(len(others), 'other')} left out")
    seeds = config.all_seeds
    lengths = sorted(arguments.lengths or task.test_lengths)
    if arguments.criterion == "target" and not heads_of(task, task.test_lengths[0]).ranked:
        choices = "inputs, bins or accuracy"
        raise Refusal(f"--criterion is target: the task {task.name} has no true item; choose {choices}")
    keys = [key_of(Draw.FIT), key_of(Draw.COMPARISON_OF_FITS)]
    models = {"seeds": seeds, "sets": arguments.sets, "task": task}
    searched = refit.search_lengths(parameters, lengths=lengths, keys=keys, **models)
    pairs = list(with_progress(searched, lengths, "searching", numbered(lengths)))
    rows, fresh = (dict(zip(lengths, key_rows)) for key_rows in zip(*pairs))
    method, longest = {"criterion": arguments.criterion, "degree": arguments.degree}, task.longest
    digest, console = checkpoint_sha256(parameters), plain_console()
    fits, problem = refit.fit_both(rows, fresh, longest, checkpoint_sha256=digest, seeds=seeds, **method)
    if problem:
        print(problem)
    frames = refit.compare(parameters, rows, fresh, longest, key=keys[1], **models, **method)
    compared_lengths = [*lengths] * min(len(seeds), 2)
    compared = pl.concat(with_progress(frames, compared_lengths, "comparing", numbered(compared_lengths)))
    for name in fits.keys() - set(compared["normalizer"]):
        print(f"{name} is not compared: half of the seeds have too few rows for such a fit; give more --sets")
    with results_of("fit", arguments.output) as output:
        settings = write_settings(output / "temperature", arguments)  # before charts, whose drawing may fail
        paths = [*report.write_study(output, rows, fits, compared, arguments.paper), settings]
    print(f"fitted {counted(len(seeds), 'seed')} in {time.perf_counter() - start:.0f} s\n")
    sets = refit.sets_of_long(task, max(lengths), arguments.sets)
    console.print(*report.answers(fits, rows, compared, arguments.degree, sets), "\n", highlight=False)
    if arguments.full:
        report.print_fits(console, fits)
        report.print_published(console, fits)
        report.print_comparison(console, compared)
    else:
        report.print_accuracies(console, compared)
    print(f"Fits: {', '.join(map(typed_path, paths[: len(fits)]))}")
    print(f"Temperature by entropy: {picture_among(paths)}")
    print(f"Next: {next_step(arguments, next(iter(fits.values())), paths[0], sets)}{trust_option(config)}")


def next_step(arguments: Arguments, fit: TemperatureFit, path: Path, sets: int) -> str:
    """Returns the command to go on with: a test of the run under its fit.

    A fit that is softmax is not worth a test: then it is the same on four times the sets, or after these a report.
    """
    if not report.is_softmax(fit):
        return evaluation_of(arguments.checkpoint, path)
    if sets > refit.SETS:
        return f"{program('report')} {typed_path(arguments.checkpoint)}"
    changes: dict[str, Any] = {"sets": 4 * sets, "trust_code": False}
    changes |= {name: () for name, value in QUICK.items() if arguments.quick and getattr(arguments, name) == value}
    return f"{program('fit')} {given_options(dataclasses.replace(arguments, **changes))}"


def evaluation_of(checkpoint: Path, fit: Path) -> str:
    """Returns the command that tests a run under a fit."""
    text = repr(str(fit)) if any(mark in str(fit) for mark in "'\"(),") else str(fit)
    fitted = typed(f"adaptive(fit={text})")
    return f"{program('evaluate')} --checkpoint {typed_path(checkpoint)} --normalizers softmax {fitted}"


def main() -> None:
    """Runs the command line."""
    example = f"{program('fit')} --checkpoint runs/x"
    with process.command():
        fit(parse(Arguments, description=__doc__, example=example, quick=QUICK))
