"""Chooses the constant temperature to test with, on sets of the lengths of training alone.

    python -m softmax_jax.sharpest --checkpoint checkpoints/paper

Weights only disperse as rows grow, so a lower temperature is never worse for that. It is worse where it gives one
item all that several should share, and that shows at the lengths of training already. Hence the rule: of θ = 1, 1/2,
…, 1/256 and hardmax, the sharpest that answers no fewer sets than the best of them, as far as an exact paired test
can tell (McNemar, one-sided, p ≥ 0.05).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Float
from rich import box
from rich.console import Console
from rich.table import Table

from softmax_jax.ablation import SOFT_TO_SHARP
from softmax_jax.command_line import one_device_per_core, one_line_errors, parse, within
from softmax_jax.compilation_cache import keep_compiled_programs
from softmax_jax.evaluation import check_measured, on_fresh_sets
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.run_directory import load_checkpoint, longest_in_training
from softmax_jax.tasks.max_retrieval import Batch, MaxRetrieval
from softmax_jax.training import Parameters

SHIPPED = Path(__file__).parents[1] / "checkpoints" / "paper"
CHOICE_KEY = 2**31 + 4
"""Away from the keys of training, evaluate.py, fit_temperature.py and report.py."""
SIGNIFICANT = 0.05


class Candidate(NamedTuple):
    """A temperature beside the most accurate of all, on the same sets."""

    name: str
    accuracy: float
    """Percent of sets."""
    lost: int
    """Sets that the most accurate answers and this one does not."""
    gained: int
    """The other way round."""
    p: float
    """Of losing so many more than it gains by chance."""


def paired_answers(
    model: MaxRetrieval, normalizers: Sequence[Normalizer], batch: Batch
) -> tuple[Float[Array, " normalizers"], Float[Array, "normalizers normalizers"]]:
    """Sets that each normalizer answers rightly, and those of them that the column's does not."""
    hidden, logits = model.encode(batch.items, batch.query)
    weights = jnp.stack([one(logits, where=batch.mask) for one in normalizers], 1)
    right = (model.read(hidden, weights).argmax(-1) == batch.answer[:, None]).astype(jnp.float32)
    return right.sum(0), right.T @ (1 - right)


def compare(
    parameters: Parameters, normalizers: Mapping[str, Normalizer], *, seeds: Sequence[int], items: int, sets: int
) -> list[Candidate]:
    """Each normalizer beside the most accurate of them, on `sets` fresh sets of `items` items for each seed.

    `parameters` have a leading axis over `seeds`. Raises ValueError or TypeError as `evaluate` does.
    """
    key = jax.random.key(CHOICE_KEY)
    check_measured(parameters, normalizers, seeds, (items,), sets, key)
    arguments = paired_answers, parameters, tuple(normalizers.values())
    counts = on_fresh_sets(*arguments, key=key, seeds=seeds, items=items, sets=sets)
    right, alone = (np.asarray(count, np.int64).sum((0, 1)) for count in counts)
    best = int(right.argmax())
    return [
        Candidate(name, 100 * right[place] / (sets * len(seeds)), *beside(alone, best, place))
        for place, name in enumerate(normalizers)
    ]


def beside(alone: np.ndarray, best: int, place: int) -> tuple[int, int, float]:
    """Sets lost and gained against the best, and the p of the exact test."""
    lost, gained = int(alone[best, place]), int(alone[place, best])
    if not lost + gained:
        return 0, 0, 1.0
    return lost, gained, float(scipy.stats.binomtest(lost, lost + gained, alternative="greater").pvalue)


def sharpest(candidates: Sequence[Candidate]) -> str:
    """The last, of candidates in order from soft to sharp, that is not significantly worse than the best.

    >>> sharpest([Candidate("softmax", 99.9, 0, 0, 1.0), Candidate("hardmax", 99.0, 9, 0, 0.002)])
    'softmax'
    """
    return [candidate.name for candidate in candidates if candidate.p >= SIGNIFICANT][-1]


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    checkpoint: Path = SHIPPED
    """Directory of a run, or a Flax msgpack file."""
    sets: int = 2**17
    """Sets per seed, of the most items of a set in training."""

    def __post_init__(self) -> None:
        within("--sets", self.sets, 1, 2**24, 2**17)


def main() -> None:
    """Measures, prints the table and the choice."""
    arguments = parse(Arguments, description=__doc__)
    one_device_per_core()
    with one_line_errors(Console(stderr=True)):
        seeds, parameters = load_checkpoint(arguments.checkpoint)
        keep_compiled_programs()
        items = longest_in_training(arguments.checkpoint)
        named = {name: normalizer(name) for name in SOFT_TO_SHARP}
        found = compare(parameters, named, seeds=seeds, items=items, sets=arguments.sets)
    table = Table("", "accuracy (%)", "lost", "gained", "p", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, accuracy, lost, gained, p in found:
        table.add_row(name, f"{accuracy:.4f}", f"{lost:,}", f"{gained:,}", f"{p:.2g}")
    Console().print(table)
    print(f"{items} items, {arguments.sets * len(seeds):,} sets; the sharpest that loses nothing: {sharpest(found)}")


if __name__ == "__main__":
    main()
