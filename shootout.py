"""Trains one small transformer under several normalizers, with nothing else changed, and compares them."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console

from softmax_jax.files import check_output, versions, write_csv, write_json
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.report import looks, shootout as report
from softmax_jax.report.charts import Chart, save_chart
from softmax_jax.runtime.command_line import (
    check_directory,
    each_once,
    normalizer_names,
    one_device_per_core,
    one_line_errors,
    parse,
    progress_bar,
    within,
)
from softmax_jax.tasks.published import SPARSE_ATTENTION
from softmax_jax.tasks.retrieval import Retrieval
from softmax_jax.tasks.sequences import Task
from softmax_jax.tasks.signal import Signal
from softmax_jax.training.shootout import Outcome, Recipe, batches_of, compete

DEFAULT_NORMALIZERS = ("softmax", "ssmax", "softpick", "shifted_softmax", "signed_l1")
"""By the papers' formulas, and the notebook's two."""
TEST_SEQUENCES = 200
LONGEST = 2**14


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    normalizers: tuple[str, ...] = DEFAULT_NORMALIZERS
    """Names, with numbers where wanted: softmax "entmax(alpha=1.2)"; or "all" of them."""
    task: Literal["signal", "max-retrieval", "sort", "copy", "multi-query"] = "signal"
    """signal: classify sequences by a hidden pattern. The others: name the class of one item among many."""
    seeds: int = 5
    """Models per normalizer, trained together."""
    length: int | None = None
    """Positions in a sequence (32), or the most items in training (64)."""
    epochs: int | None = None
    """15 for the signal (25 steps each), 30 for the others (100 steps each)."""
    hidden: int = 64
    """Width of the transformer."""
    heads: int = 4
    """Attention heads in each of its two layers."""
    classes: int | None = None
    """Patterns to tell apart (4), or classes of items (10)."""
    signal_length: int | None = None
    """Steps of the pattern (3); of the signal alone."""
    pooling: Literal["mean", "last"] | None = None
    """What the answer is read from (the mean over positions); of the signal alone."""
    causal: bool = False
    """Let no position see a later one."""
    test_lengths: tuple[int, ...] = ()
    """Lengths to test at; the length of training, and for the others than signal also 4, 16 and 64 times it."""
    output: Path = Path("shootout")
    """Directory for the tables and charts."""

    def __post_init__(self) -> None:
        normalizer_names(self.normalizers)
        within("--seeds", self.seeds, 1, 2**10, 5)
        check_directory("--output", self.output)
        for name in ("signal_length", "pooling"):
            if self.task != "signal" and getattr(self, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"{option} is {getattr(self, name)}: --task {self.task} has none, so it must be left out"
                )
        task = self.build_task()
        least = task.signal_length if isinstance(task, Signal) else 2
        for length in self.test_lengths:
            if not least <= length <= LONGEST:
                raise ValueError(
                    f"--test-lengths has {length}: they must be from {least} to {LONGEST}, such as {max(least, 128)}"
                )
        if self.test_lengths:
            each_once("--test-lengths", self.test_lengths)
        self.recipe()

    def build_task(self) -> Task:
        """The task that is asked for."""
        shared = {name: value for name in ("length", "classes") if (value := getattr(self, name)) is not None}
        if self.task != "signal":
            return Retrieval(self.task, causal=self.causal, **shared)
        pattern = Signal.signal_length if self.signal_length is None else self.signal_length
        return Signal(signal_length=pattern, pooling=self.pooling or Signal.pooling, causal=self.causal, **shared)

    def recipe(self) -> Recipe:
        """The model and its training."""
        signal = self.task == "signal"
        epochs = (15 if signal else 30) if self.epochs is None else self.epochs
        rate = Recipe.learning_rate if signal else 1e-3
        return Recipe(hidden=self.hidden, heads=self.heads, epochs=epochs, learning_rate=rate)

    def tested_lengths(self, task: Task) -> tuple[int, ...]:
        """The length of training and all others to test at, in order."""
        further = self.test_lengths or (
            () if self.task == "signal" else (4 * task.length, 16 * task.length, 64 * task.length)
        )
        return tuple(sorted({task.length, *(length for length in further if length <= LONGEST)}))

    def tests_at(self, length: int) -> tuple[int, int]:
        """Sequences in a batch and batches: of the retrieval tasks, fewer sequences where they are long."""
        if self.task == "signal":
            return batches_of(TEST_SEQUENCES, length)
        fewest = 16 if self.task == "max-retrieval" else 4
        return batches_of(min(TEST_SEQUENCES, max(2**26 // length**2, fewest)), length)


def main() -> None:
    """Looks at the normalizers, trains under each, prints, writes."""
    arguments = parse(Arguments, description=__doc__)
    one_device_per_core()
    with one_line_errors(Console(stderr=True)):
        check_output(arguments.output)
        start, task = time.perf_counter(), arguments.build_task()
        specs = tuple(METHODS) if arguments.normalizers == ("all",) else arguments.normalizers
        named = {spec: normalizer(spec) for spec in specs}
        console = Console(width=max(Console().width, 120))
        swept = looks.sweep(named)
        looks.print_looks(console, named, swept)
        outcomes = train_and_test(arguments, task, specs)
        console.print(report.results_table(outcomes, task.length))
        lengths = arguments.tested_lengths(task)
        if len(lengths) > 1:
            console.print(report.lengths_table(outcomes))
        if arguments.task in SPARSE_ATTENTION:
            console.print(report.published_table(arguments.task))
        charts = looks.look_charts(named, swept) | report.outcome_charts(outcomes, task.length)
        paths = write(arguments, task, charts, outcomes)
    print(f"trained {len(specs)} × {arguments.seeds} models in {time.perf_counter() - start:.0f} s; wrote {paths}")


def train_and_test(arguments: Arguments, task: Task, specs: Sequence[str]) -> list[Outcome]:
    """The outcome of every normalizer, with progress."""
    recipe = arguments.recipe()
    rounds = compete(specs, task, recipe, range(arguments.seeds), arguments.tested_lengths(task), arguments.tests_at)
    outcomes = []
    with progress_bar("training", len(specs) * recipe.epochs, "compiling") as advance:
        for done in rounds:
            if isinstance(done, Outcome):
                outcomes.append(done)
            else:
                said = f"{done.normalizer}, epoch {done.epoch + 1} of {recipe.epochs}, loss {done.loss:.4f}"
                advance(1, said, said)
    return outcomes


def write(arguments: Arguments, task: Task, charts: dict[str, Chart], outcomes: Sequence[Outcome]) -> str:
    """Writes the tables and charts; says where."""
    output, length = arguments.output, task.length
    at_training = [
        (o.normalizer, t.seed, t.accuracy, t.loss, o.losses[index, -1], o.seconds / len(o.seeds))
        for o in outcomes
        for index, t in enumerate(test for test in o.tests if test.length == length)
    ]
    columns = ("normalizer", "seed", "test_accuracy", "test_loss", "train_loss", "seconds")
    write_csv(output / "shootout.csv", columns, at_training)
    write_csv(
        output / "losses.csv",
        ("normalizer", "seed", "epoch", "loss"),
        (
            (o.normalizer, seed, epoch + 1, loss)
            for o in outcomes
            for seed, losses in zip(o.seeds, o.losses)
            for epoch, loss in enumerate(losses)
        ),
    )
    write_csv(
        output / "lengths.csv",
        ("normalizer", "seed", "length", "accuracy", "loss"),
        ((o.normalizer, t.seed, t.length, t.accuracy, t.loss) for o in outcomes for t in o.tests),
    )
    learned = {o.normalizer: {name: values.tolist() for name, values in o.learned.items()} for o in outcomes}
    settings = {"command": dataclasses.asdict(arguments) | {"output": str(output)}}
    settings |= {"task": dataclasses.asdict(task), "recipe": dataclasses.asdict(arguments.recipe())}  # pyright: ignore[reportArgumentType]
    write_json(output / "shootout.json", settings | {"versions": versions(), "learned": learned})
    for name, chart in charts.items():
        save_chart(chart, output / name)
    return f"{output}/shootout.csv, losses.csv, lengths.csv, shootout.json and the charts beside them"


if __name__ == "__main__":
    main()
