"""Chooses the constant temperature to test with, on sets of the length of training alone.

    python -m softmax_jax.studies.sharpest --checkpoint checkpoints/paper

Weights only disperse as rows grow, so a lower temperature is never worse for that. It is worse where an imprecise key
gains from an average of several items, and that shows at the length of training already. Hence the rule: of θ = 1,
1/2, …, 1/256 and hardmax, the sharpest that answers at most one set in a thousand less than the best of them.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from softmax_jax.measures.evaluation import evaluate, frame_of, task_of
from softmax_jax.measures.sets import Draw, key_of
from softmax_jax.measures.statistics import over_seeds
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.report.tables import new_table
from softmax_jax.runtime.command_line import one_device_per_core, one_line_errors, parse, within
from softmax_jax.runtime.compilation_cache import keep_compiled_programs
from softmax_jax.studies.ablation import SOFT_TO_SHARP
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint

TOLERANCE = 0.1
"""Percentage points of accuracy at the length of training to give for the reach of a sharper row."""


def sharpest(accuracies: Mapping[str, float], tolerance: float = TOLERANCE) -> str:
    """The last, of normalizers in order from soft to sharp, that is within the tolerance of the most accurate.

    >>> sharpest({"softmax": 99.90, "temperature(0.5)": 99.85, "hardmax": 99.5})
    'temperature(0.5)'
    """
    least = max(accuracies.values()) - tolerance
    return [name for name, accuracy in accuracies.items() if accuracy >= least][-1]


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    checkpoint: Path = SHIPPED / "paper"
    """Directory of a run, or a Flax msgpack file."""
    sets: int = 2**17
    """Sets per seed, of the most items of a set in training."""

    def __post_init__(self) -> None:
        within("--sets", self.sets, 1, 2**20, 2**17)


def main() -> None:
    """Measures, prints the table and the choice."""
    arguments = parse(Arguments, description=__doc__)
    one_device_per_core()
    with one_line_errors(Console(stderr=True)):
        config, parameters = load_checkpoint(arguments.checkpoint)
        seeds = config.all_seeds
        keep_compiled_programs()
        items = config.task.longest
        named = {name: normalizer(name) for name in SOFT_TO_SHARP}
        key = key_of(Draw.SHARPEST)
        of = {"seeds": seeds, "lengths": (items,), "sets": arguments.sets, "key": key, "measures": ("accuracy",)}
        frame = frame_of(evaluate(parameters, named, task=task_of(parameters, config.task), **of))
    accuracies = dict(over_seeds(frame, ["normalizer"], "accuracy").select("normalizer", "value").rows())
    best = max(accuracies.values())
    table = new_table("", "", "accuracy (%)", "below the best")
    for name, accuracy in accuracies.items():
        table.add_row(name, f"{accuracy:.4f}", f"{best - accuracy:.4f}")
    Console().print(table)
    count = f"{items} items, {arguments.sets * len(seeds):,} sets"
    print(f"{count}; the sharpest within {TOLERANCE:g} points of the best: {sharpest(accuracies)}")


if __name__ == "__main__":
    main()
