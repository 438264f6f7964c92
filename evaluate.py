"""Evaluates trained max-retrieval models under any normalizer, from 2 to 16,384 items."""

import csv
import dataclasses
import io
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from softmax_jax.command_line import one_device_per_core, one_line_errors, parse
from softmax_jax.evaluation import (
    DEFAULT_NORMALIZERS,
    LENGTHS,
    NOTEBOOK_LENGTHS,
    Row,
    Summary,
    evaluate,
    summarize,
)
from softmax_jax.files import versions, write_json, write_whole
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.report.charts import accuracy_chart, save_chart
from softmax_jax.report.tables import print_evaluation
from softmax_jax.run_directory import load_parameters
from softmax_jax.tasks.flax_msgpack import from_bytes
from softmax_jax.training import Parameters

SHIPPED = Path(__file__).parent / "checkpoints" / "paper"


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    normalizers: tuple[str, ...] = DEFAULT_NORMALIZERS
    """Names, with numbers where wanted: softmax "ssmax(s=0.43)" "temperature(0.2)"."""
    lengths: tuple[int, ...] = ()
    """Items per set; 2, 4, … 16384 by default (4096 under the notebook protocol)."""
    sets: int = 512
    """Sets per seed and length."""
    checkpoint: Path = SHIPPED
    """Directory of a run, or a Flax msgpack file of the published recreation's parameters."""
    output: Path = Path("evaluation")
    """Directory for evaluation.csv, evaluation.json and the chart."""
    protocol: Literal["fresh", "notebook"] = "fresh"
    """fresh: new sets for every seed and length. notebook: the published recreation's stream of sets, whose
    accuracies compare with tables made from it (11 keys of 32 sets; --sets does not apply)."""

    def __post_init__(self) -> None:
        for length in self.lengths:
            if not 1 <= length <= 2**20:
                raise ValueError(f"--lengths has {length}: a set has between 1 and {2**20} items")
        if self.sets < 1:
            raise ValueError(f"--sets is {self.sets}: it must be at least 1")
        if not self.normalizers or len(set(self.normalizers)) < len(self.normalizers):
            raise ValueError(f"--normalizers is {' '.join(self.normalizers)!r}: name at least one, each once")


def main() -> None:
    """Loads, measures, prints, writes."""
    arguments = parse(Arguments, description=__doc__)
    one_device_per_core()
    with one_line_errors(Console(stderr=True)):
        named = {spec: normalizer(spec) for spec in arguments.normalizers}
        seeds, parameters = load(arguments.checkpoint)
        arguments.output.mkdir(parents=True, exist_ok=True)
        lengths = arguments.lengths or (NOTEBOOK_LENGTHS if arguments.protocol == "notebook" else LENGTHS)
        rows = []
        start = time.perf_counter()
        measured = evaluate(
            parameters, named, seeds=seeds, lengths=lengths, sets=arguments.sets, protocol=arguments.protocol
        )
        for some in with_progress(measured, lengths):
            rows.extend(some)
        seconds = time.perf_counter() - start
        summaries = summarize(rows)
        print_evaluation(Console(), summaries)
        paths = write(arguments, seeds, rows, summaries)
    print(f"evaluated {len(seeds)} seeds in {seconds:.0f} s; wrote {', '.join(map(str, paths))}")


def load(checkpoint: Path) -> tuple[list[int], Parameters]:
    """Seeds and parameters, with a leading seed axis, from a run or from a msgpack file."""
    if checkpoint.is_file():
        parameters = from_bytes(checkpoint.read_bytes())
        return [0], jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], parameters)
    config, parameters = load_parameters(checkpoint)
    return list(range(config.first_seed, config.first_seed + config.seeds)), parameters


def with_progress(measured: Iterable[list[Row]], lengths: Sequence[int]) -> Iterator[list[Row]]:
    """Passes the results on, with a bar on a terminal and a line per length in a log."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        # An item costs about the same in any set, so items are the unit of the time left.
        task = bar.add_task(f"n = {lengths[0]}", total=sum(lengths))
        for index, rows in enumerate(measured):
            following = f"n = {lengths[index + 1]}" if index + 1 < len(lengths) else "done"
            bar.update(task, advance=lengths[index], description=following)
            if not console.is_terminal:
                print(f"measured n = {lengths[index]}", file=sys.stderr, flush=True)
            yield rows


def write(arguments: Arguments, seeds: list[int], rows: list[Row], summaries: list[Summary]) -> list[Path]:
    """Writes the rows, the summary and the chart."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(rows)
    settings = dataclasses.asdict(arguments) | {"seeds": seeds}
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    summary = [summary._asdict() for summary in summaries]
    write_whole(arguments.output / "evaluation.csv", table.getvalue())
    write_json(arguments.output / "evaluation.json", {"settings": settings, "versions": versions(), "summary": summary})
    chart = accuracy_chart(summaries, len(seeds), "How far does attention reach? Max retrieval, trained on 16 items")
    paths = [arguments.output / "evaluation.csv", arguments.output / "evaluation.json"]
    return paths + save_chart(chart, arguments.output / "accuracy")


if __name__ == "__main__":
    main()
