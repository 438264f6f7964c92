"""The shoot-out: runs that differ in the normalizer alone, each trained in a directory of its own and then tested."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Float
from rich.console import Console

from softmax_jax.files import versions, write_csv, write_json
from softmax_jax.measures.evaluation import evaluate, frame_of
from softmax_jax.tasks.sequences import SequenceTask
from softmax_jax.training.config import Config, changed, settings_of
from softmax_jax.training.run import run
from softmax_jax.training.run_directory import load_checkpoint


@dataclasses.dataclass(frozen=True)
class Changes:
    """What may differ from the preset of a task; what is left out is as the preset has it."""

    seeds: int = 5
    """Models per normalizer, trained together."""
    length: int | None = None
    """Positions in a sequence (32), or the most items in training (64)."""
    epochs: int | None = None
    """15 for the signal (25 steps each), 30 for the others (100 steps each)."""
    hidden: int | None = None
    """Width of the transformer (64)."""
    heads: int | None = None
    """Attention heads in each of its two layers (4)."""
    classes: int | None = None
    """Patterns to tell apart (4), or classes of items (10)."""
    signal_length: int | None = None
    """Steps of the pattern (3); of the signal alone."""
    pooling: Literal["mean", "last"] | None = None
    """What the answer is read from (the mean over positions); of the signal alone."""
    causal: bool = False
    """Let no position see a later one."""

    def made_to(self, preset: Config) -> Config:
        """The preset with these changes. Raises ValueError for those that it cannot take."""
        settings = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        if "epochs" in settings:
            settings["steps"] = settings.pop("epochs") * preset.chunk
        return changed(preset, **settings)


class Outcome(NamedTuple):
    """What one normalizer came to."""

    normalizer: str
    tests: pl.DataFrame
    """A row for each length and seed: normalizer, n, seed, accuracy in percent and loss in nats."""
    losses: pl.DataFrame
    """A row for each seed and epoch: normalizer, seed, epoch and the mean training loss in nats, with dropout."""
    learned: dict[str, Float[np.ndarray, "seeds layers heads"]]
    seconds: float
    """Time of the training of all seeds together, without compiling."""


def compete(
    config: Config, normalizers: Sequence[str], lengths: Sequence[int], directory: Path, console: Console
) -> list[Outcome]:
    """Trains these settings under each normalizer, or what its run in the directory lacks, and tests them alike.

    Tests are at the length of training, and at these lengths or else those of the task. Raises as `run` does.
    """
    tested = sorted({config.task.longest, *(lengths or config.task.test_lengths)})
    for length in tested:  # or it would be refused after the training
        config.task.test_keys(jnp.int32(0), length, 1)
    outcomes = []
    for name in normalizers:
        workdir = directory / re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
        console.print(f"{name}: {workdir}", soft_wrap=True)
        outcomes.append(outcome(changed(config, normalizer=name), tested, workdir, console))
    return outcomes


def outcome(config: Config, lengths: Sequence[int], workdir: Path, console: Console) -> Outcome:
    """One run from its beginning, or from where it stopped, to its tests."""
    run(config, workdir, console)
    task, name = config.task, config.normalizer
    assert isinstance(task, SequenceTask)
    _, parameters = load_checkpoint(workdir)
    options: dict[str, Any] = {"task": task, "trained_under": name, "measures": ("accuracy", "loss")}
    sets = {length: task.test_sets(length) for length in lengths}
    tests = evaluate(parameters, {name: None}, seeds=config.all_seeds, lengths=lengths, sets=sets, **options)
    metrics = pl.read_ndjson(workdir / "metrics.jsonl").with_columns(
        normalizer=pl.lit(name),
        epoch=pl.col("step") // config.chunk,
        seconds=config.chunk / pl.col("steps_per_second"),
    )
    losses = metrics.sort("seed", "epoch").select("normalizer", "seed", "epoch", "loss")
    seconds = float(metrics.filter(seed=config.first_seed)["seconds"].sum())
    return Outcome(name, frame_of(tests), losses, task.learned(parameters, name), seconds)


def write_outcomes(output: Path, command: dict[str, Any], config: Config, outcomes: Sequence[Outcome]) -> list[Path]:
    """Writes shootout.csv, losses.csv, lengths.csv and shootout.json; returns where."""
    losses, tests = (pl.concat(getattr(one, name) for one in outcomes) for name in ("losses", "tests"))
    seconds = pl.DataFrame({"normalizer": one.normalizer, "seconds": one.seconds / config.seeds} for one in outcomes)
    last = losses.filter(epoch=config.steps // config.chunk).select("normalizer", "seed", train_loss="loss")
    at_training = tests.filter(n=config.task.longest).join(last, ["normalizer", "seed"], maintain_order="left")
    tables = {
        "shootout": at_training.join(seconds, "normalizer", maintain_order="left").select(
            "normalizer", "seed", test_accuracy="accuracy", test_loss="loss", train_loss="train_loss", seconds="seconds"
        ),
        "losses": losses,
        "lengths": tests.select("normalizer", "seed", length="n", accuracy="accuracy", loss="loss"),
    }
    for name, table in tables.items():
        write_csv(output / f"{name}.csv", table.columns, table.rows())
    task: Any = config.task
    settings = {
        "command": command,
        "task": dataclasses.asdict(task),
        "recipe": settings_of(config) | {"epochs": config.steps // config.chunk},
        "versions": versions(),
        "learned": {
            one.normalizer: {name: values.tolist() for name, values in one.learned.items()} for one in outcomes
        },
    }
    write_json(output / "shootout.json", settings)
    return [*(output / f"{name}.csv" for name in tables), output / "shootout.json"]
