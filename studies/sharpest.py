"""Which constant temperature should a model be tested with? Chooses it on sets of the length of training only.

    python -m studies.sharpest --checkpoint checkpoints/paper

Weights only disperse as rows grow, so a lower temperature is never worse for that. It is worse where an imprecise key
gains from an average of several items, and that shows at the length of training already. Hence the rule: of θ = 1,
1/2, …, 1/256 and hardmax, the sharpest that answers at most one set in a thousand less than the best of them.

Ordinary sets of 16 items hardly tell these apart. With `--nearest-of 64` each set is drawn 64 times, and the draw is
kept whose two largest items are nearest, as they are in long sets.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from jaxtyping import Array, Key

from softmax_jax.experiment.commands.parse import TrustCode, within
from softmax_jax.experiment.measures.evaluation import evaluate, frame_of
from softmax_jax.experiment.measures.sets import Draw, key_of
from softmax_jax.experiment.measures.significance import over_seeds
from softmax_jax.experiment.report.tables import new_table
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval, sample_near_ties
from softmax_jax.experiment.tasks.retrieval_model import Batch
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.normalizers.registry import normalizer
from studies.common import SOFT_TO_SHARP, require_kind, start

TOLERANCE = 0.1
"""Percentage points of accuracy at the length of training to give up for the reach of a sharper row."""


def sharpest(accuracies: Mapping[str, float], tolerance: float = TOLERANCE) -> str:
    """Returns the sharpest normalizer within the tolerance of the most accurate; they come in order from soft to sharp.

    >>> sharpest({"softmax": 99.90, "temperature(0.5)": 99.85, "hardmax": 99.5})
    'temperature(0.5)'
    """
    least = max(accuracies.values()) - tolerance
    return [name for name, accuracy in accuracies.items() if accuracy >= least][-1]


@dataclasses.dataclass(frozen=True)
class NearTies(MaxRetrieval):
    """Max retrieval whose test sets are near ties too: of `nearest_of` draws of each the hardest to tell apart."""

    def test_batch(self, key: Key[Array, ""], length: int, sets: int) -> Batch:
        """Returns sets of `length` items, all of them visible."""
        return sample_near_ties(key, sets, length, self.nearest_of)


def at_training_length(
    checkpoint: Path, names: Sequence[str], measure: str, sets: int, nearest_of: int = 1
) -> pl.DataFrame:
    """Returns a measure of each seed of a run on sets of the length of training, under each of these normalizers.

    Each set is drawn `nearest_of` times from uniform ρ and the draw with the closest top two is kept. 1 turns this off.
    """
    config, parameters = load_checkpoint(checkpoint)
    task = require_kind(config.task, MaxRetrieval)
    if nearest_of > 1:
        settings: dict[str, Any] = dataclasses.asdict(task) | {"nearest_of": nearest_of}
        task = NearTies(**settings)
    options = {"seeds": config.all_seeds, "lengths": (task.longest,), "sets": sets, "key": key_of(Draw.SHARPEST)}
    named = {name: normalizer(name) for name in names}
    return frame_of(evaluate(parameters, named, task=task, measures=(measure,), **options))


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    checkpoint: Path = SHIPPED / "paper"
    """Directory of a run, or a Flax msgpack file."""
    trust_code: TrustCode = False
    sets: int = 2**17
    """Sets per seed, of the most items of a set in training."""
    nearest_of: int = 1
    """Draw each set N times and keep the draw with the closest top two. 1 turns this off."""

    def __post_init__(self) -> None:
        within("--sets", self.sets, 1, 2**20, 2**17)
        within("--nearest-of", self.nearest_of, 1, 2**10, 64)


def study(arguments: Arguments) -> None:
    """Measures, prints the table and the choice."""
    frame = at_training_length(arguments.checkpoint, SOFT_TO_SHARP, "accuracy", arguments.sets, arguments.nearest_of)
    accuracies = dict(over_seeds(frame, ["normalizer"], "accuracy").select("normalizer", "value").rows())
    best = max(accuracies.values())
    table = new_table("", "", "accuracy (%)", "below the best")
    for name, accuracy in accuracies.items():
        table.add_row(name, f"{accuracy:.4f}", f"{best - accuracy:.4f}")
    plain_console().print(table)
    items, seeds = frame["n"][0], frame["seed"].n_unique()
    ties = f", each the nearest tie of {arguments.nearest_of}" if arguments.nearest_of > 1 else ""
    count = f"{items} items, {arguments.sets * seeds:,} sets{ties}"
    print(f"{count}; the sharpest within {TOLERANCE:g} points of the best: {sharpest(accuracies)}")


if __name__ == "__main__":
    start(Arguments, __doc__, study)
