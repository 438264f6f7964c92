"""Recipes that differ from one base in one thing each, and where each of them loses accuracy.

- `recipes(base)`: what is varied, in groups
- `losses(frame)`: the accuracy lost to dispersion, to the key, to both at once, and to value and readout
"""

from typing import Any, NamedTuple

import polars as pl

from softmax_jax.measures.evaluation import TRUE_ITEM, TRUE_KEY
from softmax_jax.normalizers.registry import METHODS
from softmax_jax.tasks import products
from softmax_jax.training.config import Config, changed

TEMPERATURES = tuple(f"temperature({2.0**-power:g})" for power in range(1, 9))
"""Softmax at constant θ, to choose the best of besides softmax (θ = 1) and hardmax (θ → 0)."""
SOFT_TO_SHARP = ("softmax", *TEMPERATURES, "hardmax")
BASE = "base"
PAIRS = "normalizer in training"
PRECISION = "precision"
"""A study of its own, with a page of its own; varied only if asked for."""


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
    frame: pl.DataFrame
    """Normalizer, n, seed and accuracy; the references are among the normalizers."""


def recipes(base: Config) -> list[Recipe]:
    """The base, and for each thing that is varied the base with it changed, unless that is the base again.

    Longer training, another width and another batch change the compute, all others leave it nearly alone.
    """
    rate, steps = base.learning_rate, base.steps
    adamw, one_cycle = {"optimizer": "adamw", "l2": 0.0}, {"schedule": "cosine_onecycle_schedule"}
    constant = {"schedule": "constant_schedule", "learning_rate": rate / 3}
    groups: dict[str, dict[str, dict[str, Any]]] = {
        "penalty": {
            **{f"λ = {l2:g}": {"l2": l2} for l2 in (1e-4, 5e-4, 1e-3)},
            **{f"AdamW, decay {d:g}": adamw | {"optimizer_options": {"weight_decay": d}} for d in (1e-4, 1e-2)},
        },
        "schedule": {
            f"constant {rate / 3:g}": constant,
            f"cosine from {rate / 3:g}": constant | {"schedule": "cosine_decay_schedule"},
            **{f"one cycle to {peak:g}": one_cycle | {"learning_rate": peak} for peak in (1 / 3 * rate, 3 * rate)},
        },
        "schedule and penalty": {
            f"constant {rate / 3:g}, λ = 0.001": constant | {"l2": 1e-3},
            f"cosine from {rate / 3:g}, λ = 0.001": constant | {"schedule": "cosine_decay_schedule", "l2": 1e-3},
        },
        "steps": {f"{steps // part:,} steps": {"steps": steps // part} for part in (8, 4, 2)},
        "sets in a batch": {f"{sets} sets": {"sets": sets} for sets in (base.task.sets // 4, 4 * base.task.sets)},
        "width": {f"width {width}": {"width": width} for width in (32, 64, 256)},
        "items in training": {
            "5 to 16 items": {"min_items": 5},
            "2 to 16 items": {"min_items": 2},
            "8 items": {"min_items": 8, "max_items": 8},
            "2 items": {"min_items": 2, "max_items": 2},
        },
        "ties": {f"nearest of {count}": {"nearest_of": count} for count in (4, 16, 64)},
        PRECISION: {
            f"{matmul}, {rounded}{'' if falling else ', constant'}": {"matmul": matmul, "rounded": rounded}
            | ({} if falling else constant)
            for matmul in products.PRECISIONS
            for rounded in (products.PLACES if matmul != products.FLOAT32 else products.PLACES[-1:])
            for falling in (True, False)
        },
        PAIRS: {name: {"normalizer": name} for name in METHODS if name != base.normalizer},
    }
    varied = [
        Recipe(group, name, changed(base, **changes))
        for group, variants in groups.items()
        for name, changes in variants.items()
    ]
    return [Recipe(BASE, BASE, base), *(recipe for recipe in varied if recipe.config != base)]


LOSSES = ("accuracy", "dispersion", "key", "both", "value")
ACCURACIES = {"normalizer": pl.String, "n": pl.Int64, "seed": pl.Int64, "accuracy": pl.Float64}


def losses(frame: pl.DataFrame) -> pl.DataFrame:
    """Where the accuracy of softmax goes, for each length and seed, in percent of sets; the five add up to 100.

    `dispersion` is regained by the best constant temperature alone, `key` by a key alone that gives the true item the
    largest logit of its row, `both` by the two together and by neither alone, `value` by no weights at all. A share
    may be negative by chance, and `both` where either remedy would do. The temperature of a seed is the `best` of the
    other seeds, so nothing is chosen on the sets that it is tested on. Needs two seeds.
    """
    wide = frame.pivot("normalizer", index=["n", "seed"], values="accuracy").sort("n", "seed")
    rows = []
    for (n,), at_length in wide.group_by("n", maintain_order=True):
        sharpened = at_length.select(SOFT_TO_SHARP).to_numpy()
        best_of_others = (sharpened.sum(0) - sharpened).argmax(1)
        for own, best, one in zip(sharpened, best_of_others, at_length.to_dicts()):
            softmax, true_item = one["softmax"], one[TRUE_ITEM]
            dispersion, key = own[best] - softmax, one[TRUE_KEY] - softmax
            both = true_item - softmax - dispersion - key
            rows.append((n, one["seed"], softmax, dispersion, key, both, 100 - true_item, SOFT_TO_SHARP[best]))
    return pl.DataFrame(rows, ("n", "seed", *LOSSES, "best"), orient="row")
