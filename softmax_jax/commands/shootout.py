"""Trains one small transformer under several normalizers, with nothing else changed, and compares them."""

import dataclasses
import time
from pathlib import Path
from typing import Any, Literal

import tyro

from softmax_jax.configs import load_preset
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.report import looks
from softmax_jax.report.drawing import PaperOption, save_chart
from softmax_jax.runtime.command_line import (
    RESULTS,
    UnlessGiven,
    check_directory,
    normalizer_names,
    one_device_per_core,
    parse,
    plain_console,
    results_of,
)
from softmax_jax.studies import shootout_report as report
from softmax_jax.studies.shootout import Changes, compete, write_outcomes
from softmax_jax.training.config import Config
from softmax_jax.training.run import one_line_ends


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    changes: tyro.conf.OmitArgPrefixes[Changes]
    normalizers: tuple[str, ...] = ("softmax", "ssmax", "softpick", "shifted_softmax", "signed_l1")
    """Names, with numbers where wanted: softmax "ssmax(s=0.43)"; your own as my_module:relu; or "all" of them."""
    task: Literal["signal", "max-retrieval", "sort", "copy", "multi-query"] = "signal"
    """signal: classify sequences by a hidden pattern. The others: name the class of one item among many."""
    test_lengths: UnlessGiven[tuple[int, ...]] = ()
    """Lengths to test at; the length of training, and for the others than signal also 4, 16 and 64 times it."""
    workdir: UnlessGiven[Path | None] = None
    """Directory for the runs, which are continued where they were stopped; runs/shootout/TASK by default."""
    output: UnlessGiven[Path | None] = None
    """Directory for the tables and charts; results/shootout/TIME by default."""
    paper: PaperOption = None

    def __post_init__(self) -> None:
        normalizer_names(self.normalizers)
        check_directory("--workdir", self.runs)
        check_directory("--output", self.output or RESULTS)
        self.config()

    @property
    def runs(self) -> Path:
        """Where the runs are."""
        return self.workdir or Path("runs") / "shootout" / self.task

    def config(self) -> Config:
        """The preset of the task with what is asked for in its place."""
        preset = "transformer_max_retrieval" if self.task == "max-retrieval" else self.task.replace("-", "_")
        return self.changes.made_to(load_preset(preset))


def main() -> None:
    """Looks at the normalizers, trains under each, prints, writes."""
    arguments = parse(Arguments, default=Arguments(Changes()), description=__doc__)
    one_device_per_core()
    with one_line_ends():
        config = arguments.config()
        start, console = time.perf_counter(), plain_console(width=max(plain_console().width, 120))
        names = tuple(METHODS) if "all" in arguments.normalizers else arguments.normalizers
        named = {name: normalizer(name) for name in names}
        swept = looks.sweep(named)
        looks.print_looks(console, named, swept)
        outcomes = compete(config, names, arguments.test_lengths, arguments.runs, console)
        command: dict[str, Any] = dataclasses.asdict(arguments) | {"workdir": str(arguments.runs)}
        charts = looks.look_charts(named, swept) | report.outcome_charts(outcomes, config.task.longest)
        with results_of("shootout", arguments.output) as output:
            command |= command.pop("changes") | {"output": str(output)}
            paths = write_outcomes(output, command, config, outcomes)
            for name, chart in charts.items():
                save_chart(chart, output / name, arguments.paper)
        report.print_outcomes(console, config, outcomes)
    took = f"trained {len(names)} × {config.seeds} models in {time.perf_counter() - start:.0f} s"
    print(f"{took}; wrote {', '.join(map(str, paths))} and the charts beside them")
