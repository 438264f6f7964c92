"""Recipes that differ from one base in one thing each, and where each of them loses accuracy.

- `recipes(base)`: what is varied, in groups
- `accuracies(parameters, normalizers, *, seeds, lengths, sets)`: under each normalizer, and with the true item alone
- `losses(rows)`: the accuracy lost to dispersion, to the key, and to value and readout
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from softmax_jax.measures.evaluation import KEY, on_fresh_sets
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.runtime.pipeline import two_at_a_time
from softmax_jax.tasks.max_retrieval import Batch, MaxRetrievalModel
from softmax_jax.training.config import Config, changed
from softmax_jax.training.trainer import Parameters

TRUE_ITEM = "the true item alone"
TEMPERATURES = tuple(2.0**-power for power in range(1, 9))
"""Constant θ to choose the best of, besides softmax (θ = 1) and hardmax (θ → 0)."""
BASE = "base"
WIDTHS, PARTS = (32, 64, 256), (8, 4, 2)
"""Other widths than the base's, and parts of its steps."""


class Recipe(NamedTuple):
    """One run of the ablation."""

    group: str
    """What is varied."""
    name: str
    """To what; `BASE` is in every group and named so."""
    config: Config


class Outcome(NamedTuple):
    """What was measured of a recipe."""

    recipe: Recipe
    rows: Sequence["AccuracyRow"]


def recipes(base: Config) -> list[Recipe]:
    """The base, and for each thing that is varied the base with it changed.

    Longer training, another width and another batch change the compute, all others leave it nearly alone.
    """
    rate, steps = base.learning_rate, base.steps
    constant = {"schedule": "constant_schedule", "learning_rate": rate / 3}
    groups: dict[str, dict[str, dict[str, Any]]] = {
        "penalty": {
            **{f"λ = {l2:g}": {"l2": l2} for l2 in (1e-4, 5e-4, 1e-3)},
            **{f"AdamW, decay {decay:g}": decayed(decay) for decay in (1e-4, 1e-2)},
        },
        "schedule": {
            f"constant {rate / 3:g}": constant,
            f"cosine from {rate / 3:g}": constant | {"schedule": "cosine_decay_schedule"},
            **{f"one cycle to {factor * rate:g}": {"learning_rate": factor * rate} for factor in (1 / 3, 3)},
        },
        "schedule and penalty": {
            f"constant {rate / 3:g}, λ = 0.001": constant | {"l2": 1e-3},
            f"cosine from {rate / 3:g}, λ = 0.001": constant | {"schedule": "cosine_decay_schedule", "l2": 1e-3},
        },
        "steps": {f"{steps // part:,} steps": {"steps": steps // part} for part in PARTS},
        "sets in a batch": {f"{sets} sets": {"sets": sets} for sets in (base.task.sets // 4, 4 * base.task.sets)},
        "width": {f"width {width}": {"width": width} for width in WIDTHS},
        "items in training": {
            "5 to 16 items": {"min_items": 5},
            "2 to 16 items": {"min_items": 2},
            "8 items": {"min_items": 8, "max_items": 8},
            "2 items": {"min_items": 2, "max_items": 2},
        },
        "ties": {f"nearest of {count}": {"nearest_of": count} for count in (4, 16, 64)},
        "normalizer in training": {name: {"normalizer": name} for name in METHODS if name != base.normalizer},
    }
    return [Recipe(BASE, BASE, base)] + [
        Recipe(group, name, changed(base, **changes))
        for group, variants in groups.items()
        for name, changes in variants.items()
    ]


SCALING, UNSEEN = "steps × width", "unseen"


def scaling_recipes(base: Config) -> list[Recipe]:
    """The further runs that a law of compute and width needs, and one to test it on: four times the steps."""
    further = {
        f"width {width}, {base.steps // part:,} steps": {"width": width, "steps": base.steps // part}
        for width in WIDTHS
        for part in PARTS
    }
    grid = [Recipe(SCALING, name, changed(base, **changes)) for name, changes in further.items()]
    return [*grid, Recipe(UNSEEN, f"{4 * base.steps:,} steps", changed(base, steps=4 * base.steps))]


def decayed(decay: float) -> dict[str, Any]:
    """AdamW with this decay, decoupled from the loss."""
    return {"optimizer": "adamw", "optimizer_options": {"weight_decay": decay}}


class AccuracyRow(NamedTuple):
    """Accuracy in percent of sets, of one seed at one length."""

    normalizer: str
    n: int
    seed: int
    accuracy: float


def normalizers_to_test() -> dict[str, Normalizer]:
    """Every registered normalizer at its defaults, and softmax at each of `TEMPERATURES`."""
    return {spec: normalizer(spec) for spec in (*METHODS, *map(at_temperature, TEMPERATURES))}


def at_temperature(theta: float) -> str:
    """The name of softmax at a constant temperature.

    >>> at_temperature(0.25)
    'temperature(0.25)'
    """
    return f"temperature({theta:g})"


SOFT_TO_SHARP = ("softmax", *map(at_temperature, TEMPERATURES), "hardmax")
"""The constant temperatures, from 1 to 0, as normalizers."""


def right_answers(
    model: MaxRetrievalModel, normalizers: Sequence[Normalizer], batch: Batch
) -> Float[Array, " normalizers_and_1"]:
    """Percent of right answers under each normalizer, and last with all weight on the item of the largest ρ."""
    hidden, logits = model.encode(batch.items, batch.query)
    best = jnp.where(batch.mask, batch.items[..., 0], -1).argmax(-1)
    weights = [normalizer(logits, where=batch.mask) for normalizer in normalizers]
    weights.append(jax.nn.one_hot(best, logits.shape[1], dtype=logits.dtype))
    answers = model.read(hidden, jnp.stack(weights, 1)).argmax(-1)
    return 100 * (answers == batch.answer[:, None]).mean(0)


def accuracies(
    parameters: Parameters,
    normalizers: Mapping[str, Normalizer],
    *,
    seeds: Sequence[int],
    lengths: Sequence[int],
    sets: int,
) -> Iterator[list[AccuracyRow]]:
    """Yields, length by length, a row per seed and normalizer, `TRUE_ITEM` among them, on fresh sets.

    `parameters` have a leading axis over `seeds`. All normalizers see the same sets, those that `evaluate` draws.
    """
    key, everywhere = jax.random.key(KEY), tuple(normalizers.values())

    def at(items: int) -> np.ndarray:
        right = on_fresh_sets(right_answers, parameters, everywhere, key=key, seeds=seeds, items=items, sets=sets)
        return np.asarray(right).mean(1, dtype=np.float64)

    for items, right in zip(lengths, two_at_a_time(at, lengths)):
        yield [
            AccuracyRow(name, items, seed, float(value))
            for seed, of_seed in zip(seeds, right)
            for name, value in zip((*normalizers, TRUE_ITEM), of_seed)
        ]


class Losses(NamedTuple):
    """Where the accuracy of softmax goes at one length: percent of sets, means over seeds; they add up to 100."""

    n: int
    accuracy: float
    dispersion: float
    """Regained by the best constant temperature."""
    key: float
    """Lost even then, but not with all weight on the true item."""
    value: float
    """Lost even with all weight on the true item: by value and readout."""
    best: str
    """The best constant temperature, as a normalizer; hardmax is that of 0."""


def losses(rows: Sequence[AccuracyRow]) -> list[Losses]:
    """The losses at each length, from the rows of one recipe.

    The best temperature is one for all seeds; it is chosen on the same sets, which flatters it by less than the
    interval of its accuracy.
    """
    found = []
    for n in sorted({row.n for row in rows}):
        means = {
            name: float(np.mean([row.accuracy for row in rows if row.n == n and row.normalizer == name]))
            for name in (*SOFT_TO_SHARP, TRUE_ITEM)
        }
        softmax, true_item = means["softmax"], means.pop(TRUE_ITEM)
        best = max(means, key=means.__getitem__)
        found.append(Losses(n, softmax, means[best] - softmax, true_item - means[best], 100 - true_item, best))
    return found
