"""The recipes that the ablation trains: a base, and for each thing that is varied the base with it changed."""

from typing import Any, NamedTuple

import polars as pl

from softmax_jax.experiment.configs import load_preset, preset_summaries
from softmax_jax.experiment.tasks import rounded_products as products
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.config import Config, changed
from softmax_jax.experiment.training.run_directory import SHIPPED

BASE = "base"
PRECISION = "precision"
"""A study of its own, with a page of its own; varied only if asked for."""
SHIPPED_MODELS = "as shipped"


class Recipe(NamedTuple):
    """One run of the ablation."""

    group: str
    """What is varied."""
    name: str
    """To what; `BASE` is in every group and named so."""
    config: Config

    def frame(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Returns a frame of this recipe with its group and name."""
        return frame.select(pl.lit(self.group).alias("group"), pl.lit(self.name).alias("recipe"), pl.all())


def recipes(base: Config) -> list[Recipe]:
    """Returns the base, and for each thing that is varied the base with it changed, unless that is the base again.

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
        "sets in a batch": {f"{sets} sets": {"batch": sets} for sets in (base.task.batch // 4, 4 * base.task.batch)},
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
    }
    varied = [
        Recipe(group, name, changed(base, **changes))
        for group, variants in groups.items()
        for name, changes in variants.items()
    ]
    return [Recipe(BASE, BASE, base), *(recipe for recipe in varied if recipe.config != base)]


def shipped() -> list[Recipe]:
    """Returns the recipes of the trained models of max retrieval that come with the repository."""
    presets = {name: load_preset(name) for name in preset_summaries() if (SHIPPED / name).is_dir()}
    return [Recipe(SHIPPED_MODELS, *preset) for preset in presets.items() if preset[1].task.name == MaxRetrieval.name]
