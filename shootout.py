"""Trains one small transformer under several normalizers, with nothing else changed, and compares them."""

import dataclasses
import time
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console

from configs import load_presets
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.report import looks
from softmax_jax.report.drawing import PaperOption, save_chart
from softmax_jax.runtime.command_line import check_directory, normalizer_names, one_device_per_core, parse
from softmax_jax.studies import shootout_report as report
from softmax_jax.studies.shootout import Changes, compete, write_outcomes
from softmax_jax.training.config import Config
from softmax_jax.training.run import one_line_ends


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    changes: tyro.conf.OmitArgPrefixes[Changes]
    normalizers: tuple[str, ...] = ("softmax", "ssmax", "softpick", "shifted_softmax", "signed_l1")
    """Names, with numbers where wanted: softmax "entmax(alpha=1.2)"; or "all" of them."""
    task: Literal["signal", "max-retrieval", "sort", "copy", "multi-query"] = "signal"
    """signal: classify sequences by a hidden pattern. The others: name the class of one item among many."""
    test_lengths: tuple[int, ...] = ()
    """Lengths to test at; the length of training, and for the others than signal also 4, 16 and 64 times it."""
    output: Path = Path("shootout")
    """Directory for the tables and charts, and for the runs: one that was stopped is continued."""
    paper: PaperOption = None

    def __post_init__(self) -> None:
        normalizer_names(self.normalizers)
        check_directory("--output", self.output)
        self.config()

    def config(self) -> Config:
        """The preset of the task with what is asked for in its place."""
        preset = "transformer_max_retrieval" if self.task == "max-retrieval" else self.task.replace("-", "_")
        return self.changes.made_to(load_presets()[preset][1])


def main() -> None:
    """Looks at the normalizers, trains under each, prints, writes."""
    arguments = parse(Arguments, default=Arguments(Changes()), description=__doc__)
    one_device_per_core()
    with one_line_ends(Console(stderr=True)):
        output, config = arguments.output, arguments.config()
        start, console = time.perf_counter(), Console(width=max(Console().width, 120))
        names = tuple(METHODS) if "all" in arguments.normalizers else arguments.normalizers
        named = {name: normalizer(name) for name in names}
        swept = looks.sweep(named)
        looks.print_looks(console, named, swept)
        outcomes = compete(config, names, arguments.test_lengths, output / "runs", console)
        report.print_outcomes(console, config, outcomes)
        command: dict[str, Any] = dataclasses.asdict(arguments) | {"output": str(output)}
        paths = write_outcomes(output, command.pop("changes") | command, config, outcomes)
        charts = looks.look_charts(named, swept) | report.outcome_charts(outcomes, config.task.longest)
        for name, chart in charts.items():
            save_chart(chart, output / name, arguments.paper)
    took = f"trained {len(names)} × {config.seeds} models in {time.perf_counter() - start:.0f} s"
    print(f"{took}; wrote {', '.join(map(str, paths))} and the charts beside them")


if __name__ == "__main__":
    main()
