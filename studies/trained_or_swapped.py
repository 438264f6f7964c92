"""What does another normalizer cost after a sharper training, and does one number a head repair it? On two tasks.

    python -m studies.trained_or_swapped

Takes 95 minutes on 2 cores; `--quick` five.

A model is trained under softmax, under SSMax, which learns s for each head, and under ASEntmax, whose numbers are
linear in the query. Each is tested as trained, and with another normalizer swapped into both layers by `swap`; and
with one number for each head learned on sequences of training lengths, by `calibrate`, while the parameters stay.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import polars as pl
from flax import nnx
from jaxtyping import Array, Float, Key
from rich.console import Console

from softmax_jax.experiment.commands.output import check_directory
from softmax_jax.experiment.configs import load_preset
from softmax_jax.experiment.measures.frames import read_csv
from softmax_jax.experiment.measures.over_sets import on_every_set, set_by_set
from softmax_jax.experiment.measures.sets import set_keys
from softmax_jax.experiment.measures.significance import corrected, half_width, paired_p_value
from softmax_jax.experiment.tasks.sequences import Sequences, SequenceTask
from softmax_jax.experiment.training.config import Config, changed
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.experiment.training.run import Parameters, build_model
from softmax_jax.experiment.training.run_directory import load_checkpoint
from softmax_jax.experiment.training.train import train
from softmax_jax.files import write_csv
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.transforms.calibrate import calibrate
from softmax_jax.transforms.swap import Normalizers, swap
from studies.common import Options, start

TASKS = ("multi_query", "sort")
TRAINED = ("softmax", "ssmax", "asentmax")
PLAIN = Normalizer(jax.nn.softmax)
"""Plain softmax, which `swap` finds where the model would otherwise use the normalizer of its training."""
CALIBRATION_STEPS = 60
CALIBRATION_RATE = 0.05

Row = tuple[str, str, str, int, int, int, float]
COLUMNS = ("task", "trained", "test", "n", "seed", "sequence", "accuracy")
"""The accuracy in percent of the queries of one sequence."""
OWN = "as trained"
CALIBRATED = {"temperature": ("theta",), "ssmax": ("s",)}
"""The normalizers that are calibrated, and the number of each head that is."""
TESTS = (OWN, "softmax", "ssmax", "asentmax", "adaptive", *(f"{name}, calibrated" for name in CALIBRATED))
BETWEEN = (20.0, 99.0)
"""Percent right as trained, mean over trainings, of the lengths that count: above twice chance, below the ceiling."""
TESTED = {
    "task": pl.String,
    "trained": pl.String,
    "test": pl.String,
    "n": pl.Int64,
    "difference": pl.Float64,
    "interval": pl.Float64,
    "p_value": pl.Float64,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(Options):
    """Options of the command line."""

    quick: bool = False
    """A look in five minutes: one seed of half the steps on one task, up to 256 items."""
    long: bool = False
    """Test at 4,096 items too."""
    workdir: Path = Path("runs") / "trained_or_swapped"
    """Directory for the runs, which are continued where they were stopped; what is finished is kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_directory("--workdir", self.workdir)

    def config(self, task: str, trained: str) -> Config:
        """Returns the recipe of a model: that of the preset, half as long."""
        steps, seeds = (750, 1) if self.quick else (1_500, 3)
        return changed(load_preset(task), steps=steps, seeds=seeds, normalizer=trained, chunk=50)

    def lengths(self, task: SequenceTask) -> tuple[int, ...]:
        """Returns the length of training and multiples of it."""
        multiples = (1, 4) if self.quick else (1, 4, 16, 64) if self.long else (1, 4, 16)
        return tuple(multiple * task.length for multiple in multiples)


def swapped_in(task: SequenceTask) -> dict[str, Normalizer]:
    """Returns the normalizers to swap in; SSMax with β = 1 for the longest rows of training."""
    return {
        "softmax": PLAIN,
        "ssmax": normalizer("ssmax", s=1 / math.log(task.length)),
        "asentmax": normalizer("asentmax"),
        "adaptive": normalizer("adaptive"),
    }


def scores_of(model: Any, task: SequenceTask, as_trained: bool = False) -> Callable[..., Any]:
    """Returns the scores of the answers as a function for `swap`, under softmax or under what the model learned."""
    return lambda inputs, mask: task.answers(model(inputs, mask, normalizer=None if as_trained else PLAIN))


@functools.cache
def reader(task: SequenceTask, n: int, as_trained: bool) -> Callable[[Any, Key[Array, ""], Normalizers], Array]:
    """Returns the accuracy on a fresh sequence, as a function of model and key.

    One function object for the same arguments, so that compiled programs are found again.
    """

    def read(model: Any, key: Key[Array, ""], normalizers: Normalizers) -> Float[Array, ""]:
        batch, scores = task.test_batch(key, n, 1), scores_of(model, task, as_trained)
        scores = scores if as_trained else swap(scores, normalizers)
        return task.accuracy(scores(batch.inputs, batch.mask), batch)

    return read


def accuracies(
    config: Config, parameters: Parameters, seed: int, n: int, normalizers: Normalizers | None
) -> list[float]:
    """Returns the accuracies in percent on fresh sequences of one seed, whose parameters have a leading axis of 1.

    The normalizers None are those of training.
    """
    task = as_sequences(config)
    drawn = set_keys([seed], n, task.test_sets(n))
    compute = reader(task, n, normalizers is None)
    model = nnx.merge(build_model(task, config.normalizer)[0], parameters)
    set_accuracies = on_every_set(compute, model, drawn, task.at_once(n), normalizers or {})
    return set_by_set(set_accuracies)[0].tolist()


def as_sequences(config: Config) -> SequenceTask:
    """Returns the task of a run, which must be one on sequences."""
    assert isinstance(config.task, SequenceTask)
    return config.task


def calibrated(config: Config, parameters: Parameters, seed: int, name: str) -> dict[int, Normalizer]:
    """Returns a normalizer for each layer with one number per head, learned on what training would see next."""
    task = as_sequences(config)
    structure, learn = build_model(task, config.normalizer)[0], CALIBRATED[name]
    start = swapped_in(task).get(name) or normalizer(name)
    scores = scores_of(nnx.merge(structure, jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), parameters)), task)

    def loss(scores: Callable[..., Any], batch: Sequences) -> Float[Array, ""]:
        answer_scores = scores(batch.inputs, batch.mask)
        return optax.softmax_cross_entropy_with_integer_labels(answer_scores, batch.answer).mean()

    draw = jax.jit(lambda step: task.training_batch(jnp.int32(seed), step))
    batches = (draw(jnp.int32(config.steps + step)) for step in range(CALIBRATION_STEPS))
    options: dict[str, Any] = {"learn": learn, "loss": loss, "batches": batches}
    return calibrate(scores, start, optimizer=optax.adam(CALIBRATION_RATE), **options)


def measure_model(config: Config, checkpoint: Path, lengths: Sequence[int], console: Console) -> Iterator[Row]:
    """Yields the rows of all tests of one training; the models are those of the checkpoint."""
    _, parameters = load_checkpoint(checkpoint)
    task = as_sequences(config)
    others = {name: normalizer for name, normalizer in swapped_in(task).items() if name != config.normalizer}
    for index, seed in enumerate(config.all_seeds):
        seed_parameters = jax.tree.map(lambda leaf, index=index: np.asarray(leaf)[index : index + 1], parameters)
        tests: dict[str, Normalizers | None] = {OWN: None, **others}
        tests |= {f"{name}, calibrated": calibrated(config, seed_parameters, seed, name) for name in CALIBRATED}
        for n in lengths:
            for test, normalizers in tests.items():
                set_accuracies = accuracies(config, seed_parameters, seed, n, normalizers)
                for sequence, accuracy in enumerate(set_accuracies):
                    yield task.name, config.normalizer, test, n, seed, sequence, accuracy
            console.print(f"{task.name}, trained under {config.normalizer}: seed {seed}, {n} items", highlight=False)


def measured(arguments: Arguments, console: Console) -> pl.DataFrame:
    """Trains and tests what is missing; returns the accuracy of every sequence."""
    frames = []
    for task in TASKS[:1] if arguments.quick else TASKS:
        for trained in TRAINED:
            config = arguments.config(task, trained)
            lengths = arguments.lengths(as_sequences(config))
            directory = arguments.workdir / f"{task}_{trained}{'_quick' if arguments.quick else ''}"
            tested = directory / f"tested_to_{lengths[-1]}.csv"
            if not tested.exists():
                train(config, directory, console)
                write_csv(tested, COLUMNS, list(measure_model(config, directory, lengths, console)))
            frames.append(read_csv(tested, *COLUMNS))
    return pl.concat(frames)


def by_seed(frame: pl.DataFrame) -> pl.DataFrame:
    """Returns the mean accuracy of the sequences of each seed, in percent."""
    keys = ("task", "trained", "test", "n", "seed")
    return frame.group_by(keys, maintain_order=True).agg(pl.mean("accuracy"))


def compared(seeds: pl.DataFrame) -> pl.DataFrame:
    """Returns the difference in points of each test from the model as trained, half its 95 % interval, and p.

    Each trained model is one sample. p is of the paired t-test over models, corrected by Holm for the tests at lengths
    that the models as trained neither solve nor lose (`BETWEEN`); null at the other lengths.
    """
    keys = ["task", "trained", "n", "seed"]
    own = seeds.filter(test=OWN).select(*keys, own="accuracy")
    solved = own.group_by("task", "n").agg(pl.mean("own"))
    between = set(solved.filter(pl.col("own").is_between(*BETWEEN)).select("task", "n").rows())
    pairs = seeds.filter(pl.col("test") != OWN).join(own, on=keys, maintain_order="left")
    groups = pairs.group_by("task", "trained", "test", "n", maintain_order=True)
    rows = []
    for (task, trained, test, n), cell in groups:
        accuracies, own_accuracies = cell["accuracy"].to_list(), cell["own"].to_list()
        differences = np.subtract(accuracies, own_accuracies)
        p_value = paired_p_value(accuracies, own_accuracies) if (task, n) in between else None
        rows.append((task, trained, test, n, differences.mean(), half_width(differences.tolist()), p_value))
    frame = pl.DataFrame(rows, TESTED, orient="row")
    return frame.with_columns(p_value=pl.Series(corrected(frame["p_value"].to_list()), dtype=pl.Float64))


def study(arguments: Arguments) -> None:
    """Trains, tests, writes."""
    seeds = by_seed(measured(arguments, plain_console()))
    arguments.write("trained_or_swapped", {"accuracy": seeds, "tests": compared(seeds)}, {})


if __name__ == "__main__":
    start(Arguments, __doc__, study)
