"""Shows what a trained model's attention does as sets grow: one page that opens anywhere, with its charts and data."""

import dataclasses
import time
from pathlib import Path
from typing import Annotated

import tyro

from softmax_jax.experiment import program
from softmax_jax.experiment.commands import process
from softmax_jax.experiment.commands.output import (
    RESULTS,
    check_directory,
    counted,
    fit_command,
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
    each_once,
    each_within,
    normalizer_names,
    parse,
    within,
)
from softmax_jax.experiment.measures.runs import DEFAULT_NORMALIZERS, Loaded, load_runs
from softmax_jax.experiment.measures.table import TOP
from softmax_jax.experiment.report.page import write_page
from softmax_jax.experiment.report.sections import sections_of
from softmax_jax.experiment.report.sentences import answers
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.experiment.training.run_directory import SHIPPED
from softmax_jax.refusal import Refusal


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = (SHIPPED / "paper", SHIPPED / "frontier")
    """Directories of runs, or Flax msgpack files. Of several the accuracies are compared; the first is looked into."""
    trust_code: TrustCode = False
    output: UnlessGiven[Path | None] = None
    """Directory for index.html, and every chart as PNG and SVG with its data as CSV; results/report/TIME by default."""
    normalizers: tuple[str, ...] = DEFAULT_NORMALIZERS
    """Names, with numbers where wanted: softmax "ssmax(s=0.43)"; your own as my_module:relu; or "all" of them."""
    lengths: UnlessGiven[tuple[int, ...]] = ()
    """Items per set: those of the task unless given, of max retrieval 16, 32, … 16384."""
    sets: int = 256
    """Sets per seed and length, fewer of more than 1024 items: the first of those that `evaluate` draws."""
    paper: PaperOption = None
    quick: Quick = False

    def __post_init__(self) -> None:
        each_within("--lengths", self.lengths or (16,), 2, 2**20, 16)
        if self.lengths and max(self.lengths) < TOP:
            given = " ".join(map(str, self.lengths))
            raise Refusal(f"--lengths is {given!r}: it must have one of at least {TOP} items, such as 1024")
        within("--sets", self.sets, 1, 2**20, 256)
        normalizer_names(self.normalizers)
        each_once("RUNS", self.runs)
        check_directory("--output", self.output or RESULTS / "report")


def report(arguments: Arguments) -> None:
    """Measures, draws, writes, and says what was found and where it is."""
    start, remark = time.perf_counter(), " A quick look, of few sets." * arguments.quick
    runs = load_runs(arguments.runs, arguments.normalizers)
    with results_of("report", arguments.output) as output:
        sections, first = sections_of(runs, arguments.lengths, arguments.sets)
        settings = write_settings(output, arguments)  # before charts, whose drawing may fail
        note = f"Made from {', '.join(run.name for run in runs)} in {time.perf_counter() - start:.0f} s.{remark}"
        page, *paths = write_page(output, "How far attention reaches", sections, note, arguments.paper)
    console = plain_console()
    for question, answer in answers(first).items():
        console.print(f"{first.name}: {question}: {answer}\n", highlight=False)
    files, seconds = counted(len([*paths, settings]), "file"), time.perf_counter() - start
    print(f"Page: {typed_path(page)}, with {files} beside it, in {seconds:.0f} s; it opens in any browser, offline")
    print(f"Next: {next_step(runs[0])}")


def next_step(run: Loaded) -> str:
    """Returns the command to go on with: a fit to the run, if it has none, or else every measure of it in numbers."""
    if fit := fit_command(run):
        return fit
    place, trusted = typed_path(run.path), trust_option(run.config)
    return f"{program('evaluate')} --checkpoint {place} --full{trusted}  # every measure at every length, with tests"


def main() -> None:
    """Runs the command line."""
    example, quick = f"{program('report')} runs/x runs/y", {"lengths": (16, 64, 256, 1024), "sets": 32}
    with process.command():
        report(parse(Arguments, description=__doc__, example=example, quick=quick))
