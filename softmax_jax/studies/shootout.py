"""The shoot-out: runs that differ in the normalizer alone, each trained in a directory of its own and then tested."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Float
from rich.console import Console

from softmax_jax.files import read_bytes, versions, write_csv, write_json
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


class Outcomes(NamedTuple):
    """What the normalizers came to."""

    tests: pl.DataFrame
    """A row for each normalizer, length and seed: n, accuracy in percent and loss in nats."""
    losses: pl.DataFrame
    """A row for each normalizer, seed and epoch: the mean training loss in nats, with dropout."""
    learned: dict[str, dict[str, Float[np.ndarray, "seeds layers heads"]]]
    """By normalizer, the numbers that it learned."""
    seconds: dict[str, float]
    """By normalizer, the time of the training of all seeds together, without compiling."""


def compete(
    config: Config, normalizers: Sequence[str], lengths: Sequence[int], directory: Path | str, console: Console
) -> Outcomes:
    """Trains these settings under each normalizer, or what its run in the directory lacks, and tests them alike.

    Tests are at the length of training, and at these lengths or else those of the task. Raises as `run` does.
    """
    task = config.task
    assert isinstance(task, SequenceTask)
    sets = {length: task.test_sets(length) for length in sorted({task.longest, *(lengths or task.test_lengths)})}
    for length in sets:  # or it would be refused after the training
        task.test_keys(jnp.int32(0), length, 1)
    tests, losses, learned, seconds = [], [], {}, {}
    for name in normalizers:
        workdir = Path(directory) / directory_name(name)
        console.print(f"{name}: {workdir}", soft_wrap=True)
        run(changed(config, normalizer=name), workdir, console)
        _, parameters = load_checkpoint(workdir)
        options: dict[str, Any] = {"task": task, "trained_under": name, "measures": ("accuracy", "loss")}
        measured = evaluate(parameters, {name: None}, seeds=config.all_seeds, lengths=tuple(sets), sets=sets, **options)
        tests.append(frame_of(measured))
        metrics = pl.read_ndjson(read_bytes(workdir / "metrics.jsonl")).with_columns(
            normalizer=pl.lit(name), epoch=pl.col("step") // config.chunk
        )
        losses.append(metrics.sort("seed", "epoch").select("normalizer", "seed", "epoch", "loss"))
        learned[name] = task.learned(parameters, name)
        seconds[name] = float((config.chunk / metrics.filter(seed=config.first_seed)["steps_per_second"]).sum())
    return Outcomes(pl.concat(tests), pl.concat(losses), learned, seconds)


def directory_name(run: str) -> str:
    """What to call the directory of a run.

    >>> directory_name("entmax(alpha=1.5)")
    'entmax-alpha-1.5'
    """
    return re.sub(r"[^a-z0-9.]+", "-", run.lower()).strip("-")


def write_outcomes(output: Path, command: dict[str, Any], config: Config, outcomes: Outcomes) -> list[Path]:
    """Writes shootout.csv, losses.csv, lengths.csv and shootout.json; returns where."""
    epochs = config.steps // config.chunk
    last = outcomes.losses.filter(epoch=epochs).select("normalizer", "seed", train_loss="loss")
    at_training = outcomes.tests.filter(n=config.task.longest).join(last, ["normalizer", "seed"], maintain_order="left")
    seconds = pl.col("normalizer").replace_strict(outcomes.seconds) / config.seeds
    tables = {
        "shootout": at_training.select(
            "normalizer", "seed", test_accuracy="accuracy", test_loss="loss", train_loss="train_loss", seconds=seconds
        ),
        "losses": outcomes.losses,
        "lengths": outcomes.tests.select("normalizer", "seed", length="n", accuracy="accuracy", loss="loss"),
    }
    for name, table in tables.items():
        write_csv(output / f"{name}.csv", table.columns, table.rows())
    task: Any = config.task
    settings = {
        "command": command,
        "task": dataclasses.asdict(task),
        "recipe": settings_of(config) | {"epochs": epochs},
        "versions": versions(),
        "learned": jax.tree.map(np.ndarray.tolist, outcomes.learned),
    }
    write_json(output / "shootout.json", settings)
    return [*(output / f"{name}.csv" for name in tables), output / "shootout.json"]
