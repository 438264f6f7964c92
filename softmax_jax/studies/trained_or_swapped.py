"""Is it the normalizer of the training that decides, or that of the test? In a small transformer, on two tasks.

A model is trained under softmax, under SSMax, which learns s for each head, and under ASEntmax, whose numbers are
linear in the query. Each is tested as trained, and with another normalizer swapped into both layers by `swap`; and
with one number for each head learned on sequences of training lengths, by `calibrate`, while the parameters stay.

    python -m softmax_jax.studies.trained_or_swapped
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import polars as pl
from flax import nnx
from jaxtyping import Array, Float
from rich.console import Console

from softmax_jax.configs import load_preset
from softmax_jax.files import read_bytes, read_text, write_csv, write_whole
from softmax_jax.measures.sets import draw_with_room, for_each_seed, fresh_batches, on_devices, set_by_set
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.report.drawing import PaperOption, save_chart
from softmax_jax.report.markdown import put_into
from softmax_jax.runtime import command_line
from softmax_jax.runtime.compilation_cache import keep_compiled_programs
from softmax_jax.studies import trained_or_swapped_report as report
from softmax_jax.studies.trained_or_swapped_report import CALIBRATED, OWN
from softmax_jax.tasks.sequences import Sequences, SequenceTask
from softmax_jax.training.config import Config, changed
from softmax_jax.training.run import one_line_ends, run
from softmax_jax.training.run_directory import load_checkpoint
from softmax_jax.training.trainer import Parameters, build_model
from softmax_jax.transforms.calibrate import calibrate
from softmax_jax.transforms.swap import Normalizers, swap

TASKS = ("multi_query", "sort")
TRAINED = ("softmax", "ssmax", "asentmax")
PLAIN = Normalizer(jax.nn.softmax)
"""What `swap` finds in a model, where the model itself would put what it was trained under."""
CALIBRATION_STEPS = 60
CALIBRATION_RATE = 0.05

Row = tuple[str, str, str, int, int, int, float]
COLUMNS = ("task", "trained", "test", "n", "seed", "sequence", "accuracy")
"""The accuracy in percent of the queries of one sequence."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    quick: bool = False
    """A look in five minutes: one seed of half the steps on one task, up to 256 items."""
    long: bool = False
    """Test at 4,096 items too."""
    workdir: Path = Path("runs") / "trained_or_swapped"
    """Directory for the runs, which are continued where they were stopped; what is finished is kept."""
    output: command_line.UnlessGiven[Path | None] = None
    """Directory for the tables and the chart; results/trained_or_swapped/TIME by default."""
    page: Path | None = None
    """A Markdown page to put the tables into, between its marks."""
    paper: PaperOption = None

    def __post_init__(self) -> None:
        command_line.check_directory("--workdir", self.workdir)
        command_line.check_directory("--output", self.output or command_line.RESULTS)
        if self.page:
            put_into(read_text(self.page), dict.fromkeys(report.TABLES, ""))  # which has a place for each, or raises

    @property
    def tasks(self) -> tuple[str, ...]:
        """The presets of the tasks."""
        return TASKS[:1] if self.quick else TASKS

    def config(self, task: str, trained: str) -> Config:
        """The recipe of a model: that of the preset, half as long."""
        steps, seeds = (750, 1) if self.quick else (1_500, 3)
        return changed(load_preset(task), steps=steps, seeds=seeds, normalizer=trained, chunk=50)

    def lengths(self, task: SequenceTask) -> tuple[int, ...]:
        """That of training and its multiples."""
        multiples = (1, 4) if self.quick else (1, 4, 16, 64) if self.long else (1, 4, 16)
        return tuple(multiple * task.length for multiple in multiples)


def swapped_in(task: SequenceTask) -> dict[str, Normalizer]:
    """What takes the place of the normalizer of training; SSMax with β = 1 for the longest rows of training."""
    return {
        "softmax": PLAIN,
        "ssmax": normalizer("ssmax", s=1 / math.log(task.length)),
        "asentmax": normalizer("asentmax"),
        "adaptive": normalizer("adaptive"),
    }


def scores_of(model: Any, task: SequenceTask, own: bool = False) -> Callable[..., Any]:
    """The scores of the answers as a function for `swap`, under softmax; or under what the model learned."""
    return lambda inputs, mask: task.answers(model(inputs, mask, normalizer=None if own else PLAIN))


@functools.cache
def reader(task: SequenceTask, own: bool) -> Callable[[Any, Any, Sequences], Float[Array, " sequences"]]:
    """The accuracy of each sequence; one function object each, so that the compiled code is found again."""

    def read(model: Any, normalizers: Normalizers, batch: Sequences) -> Float[Array, " sequences"]:
        scores = scores_of(model, task, own)
        scores = scores if own else swap(scores, normalizers)
        return 100 * jnp.mean(scores(batch.inputs, batch.mask).argmax(-1) == batch.answer, -1, dtype=jnp.float32)

    return read


def accuracies(
    config: Config, parameters: Parameters, seed: int, n: int, normalizers: Normalizers | None
) -> list[float]:
    """Of fresh sequences, in percent, for one seed, whose parameters have a leading axis of 1; None: as trained."""
    task = as_sequences(config)
    batches = fresh_batches(task, [seed], n, task.test_sets(n))
    arguments = on_devices(parameters, batches, {} if normalizers is None else normalizers)
    options: dict[str, Any] = {"structure": build_model(task, config.normalizer)[0], "draw": draw_with_room(task, n)}
    return set_by_set(for_each_seed(reader(task, normalizers is None), *arguments, **options))[0].tolist()


def as_sequences(config: Config) -> SequenceTask:
    """The task of a run, known to be one on sequences."""
    assert isinstance(config.task, SequenceTask)
    return config.task


def calibrated(config: Config, parameters: Parameters, seed: int, name: str) -> dict[int, Normalizer]:
    """A normalizer for each layer with one number per head, learned on sequences that training would have seen next."""
    task = as_sequences(config)
    structure, learn = build_model(task, config.normalizer)[0], CALIBRATED[name]
    start = swapped_in(task).get(name) or normalizer(name)
    scores = scores_of(nnx.merge(structure, jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), parameters)), task)

    def loss(scores: Callable[..., Any], batch: Sequences) -> Float[Array, ""]:
        found = scores(batch.inputs, batch.mask)
        return optax.softmax_cross_entropy_with_integer_labels(found, batch.answer).mean()

    draw = jax.jit(lambda step: task.training_batch(jnp.int32(seed), step))
    batches = (draw(jnp.int32(config.steps + step)) for step in range(CALIBRATION_STEPS))
    options: dict[str, Any] = {"learn": learn, "loss": loss, "batches": batches}
    return calibrate(scores, start, optimizer=optax.adam(CALIBRATION_RATE), **options)


def of_model(config: Config, checkpoint: Path, lengths: Sequence[int], console: Console) -> Iterator[Row]:
    """The rows of all tests of one training; the models are those of the checkpoint."""
    _, parameters = load_checkpoint(checkpoint)
    task = as_sequences(config)
    others = {name: one for name, one in swapped_in(task).items() if name != config.normalizer}
    for index, seed in enumerate(config.all_seeds):
        own = jax.tree.map(lambda leaf, index=index: leaf[index : index + 1], parameters)
        tests: dict[str, Normalizers | None] = {OWN: None, **others}
        tests |= {f"{name}, calibrated": calibrated(config, own, seed, name) for name in CALIBRATED}
        for n in lengths:
            for test, normalizers in tests.items():
                found = accuracies(config, own, seed, n, normalizers)
                for sequence, accuracy in enumerate(found):
                    yield task.name, config.normalizer, test, n, seed, sequence, accuracy
            console.print(f"{task.name}, trained under {config.normalizer}: seed {seed}, {n} items", highlight=False)


def measured(asked: Arguments, console: Console) -> pl.DataFrame:
    """Trains and tests what is not there yet; the accuracy of every sequence."""
    frames = []
    for task in asked.tasks:
        for trained in TRAINED:
            config = asked.config(task, trained)
            lengths = asked.lengths(as_sequences(config))
            directory = asked.workdir / f"{task}_{trained}{'_quick' if asked.quick else ''}"
            tested = directory / f"tested_to_{lengths[-1]}.csv"
            if not tested.exists():
                run(config, directory, console)
                write_csv(tested, COLUMNS, list(of_model(config, directory, lengths, console)))
            frames.append(pl.read_csv(read_bytes(tested)))
    return pl.concat(frames)


def main() -> None:
    """Trains, tests, draws, writes."""
    asked = command_line.parse(Arguments, description=__doc__)
    command_line.one_device_per_core()
    with one_line_ends():
        keep_compiled_programs()
        frame = measured(asked, command_line.plain_console())
        by_seed, tests = report.by_seed(frame), report.compared(frame)
        tables = {"accuracy": report.accuracy_table(by_seed, tests), "lengths": report.lengths_table(by_seed)}
        with command_line.results_of("trained_or_swapped", asked.output) as output:
            write_csv(output / "accuracy.csv", by_seed.columns, by_seed.rows())
            write_csv(output / "tests.csv", tests.columns, tests.rows())
            save_chart(report.chart(by_seed), output / "trained_or_swapped", asked.paper)
            write_whole(output / "tables.md", "\n\n".join(tables.values()) + "\n")
        if asked.page:
            write_whole(asked.page, put_into(read_text(asked.page), tables))
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
