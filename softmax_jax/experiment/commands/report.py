"""Shows what a trained model's attention does as sets grow: one page that opens anywhere, with its charts and data."""

import dataclasses
import time
from pathlib import Path
from typing import Annotated

import tyro

from softmax_jax.experiment.commands import options, program
from softmax_jax.experiment.measures.runs import DEFAULT_NORMALIZERS
from softmax_jax.experiment.measures.table import TOP
from softmax_jax.experiment.report.page import sections_of, write_page
from softmax_jax.experiment.training.run_directory import SHIPPED
from softmax_jax.refusal import Refusal


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = (SHIPPED / "paper", SHIPPED / "frontier")
    """Directories of runs, or Flax msgpack files. Of several the accuracies are compared; the first is looked into."""
    trust_code: options.TrustCode = False
    output: options.UnlessGiven[Path | None] = None
    """Directory for index.html, and every chart as PNG and SVG with its data as CSV; results/report/TIME by default."""
    normalizers: tuple[str, ...] = DEFAULT_NORMALIZERS
    """Names, with numbers where wanted: softmax "ssmax(s=0.43)"; your own as my_module:relu; or "all" of them."""
    lengths: options.UnlessGiven[tuple[int, ...]] = ()
    """Items per set: those of the task unless given, of max retrieval 16, 32, … 16384."""
    sets: int = 256
    """Sets per seed and length, fewer of more than 1024 items."""
    paper: options.PaperOption = None
    quick: options.Quick = False

    def __post_init__(self) -> None:
        options.each_within("--lengths", self.lengths or (16,), 2, 2**20, 16)
        if self.lengths and max(self.lengths) < TOP:
            given = " ".join(map(str, self.lengths))
            raise Refusal(f"--lengths is {given!r}: it must have one of at least {TOP} items, such as 1024")
        options.within("--sets", self.sets, 1, 2**20, 256)
        options.normalizer_names(self.normalizers)
        options.each_once("RUNS", self.runs)
        options.check_directory("--output", self.output or options.RESULTS / "report")


def report(asked: Arguments) -> None:
    """Measures, draws, writes."""
    start, remark = time.perf_counter(), " A quick look, of few sets." * asked.quick
    with options.results_of("report", asked.output) as output:
        sections, note = sections_of(asked.runs, asked.normalizers, asked.lengths, asked.sets)
        settings = options.write_settings(output, asked)  # before charts, whose drawing may fail
        paths = write_page(output, "How far attention reaches", sections, note + remark, asked.paper)
        paths.append(settings)
    print(f"wrote {', '.join(map(str, paths))} in {time.perf_counter() - start:.0f} s")


def main() -> None:
    """Runs the command line."""
    example, quick = f"{program('report')} runs/x runs/y", {"lengths": (16, 64, 256, 1024), "sets": 32}
    options.run(Arguments, __doc__, report, example, quick)
