"""How attention disperses as sets grow, and what that costs: frames made from what `evaluation.evaluate` measures.

The columns of each are in the docstring of `softmax_jax.experiment.measures`.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from flax import nnx
from jaxtyping import Array, Float

from softmax_jax import theory
from softmax_jax.experiment.measures.evaluation import Measured, task_of
from softmax_jax.experiment.measures.one_set import attended
from softmax_jax.experiment.measures.references import TRUE_ITEM
from softmax_jax.experiment.measures.table import KEYS, TOP
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.run import Parameters, build_model
from softmax_jax.normalizers.maps import softmax
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.refusal import Refusal

HARDMAX = "hardmax"
ITEMS_PER_LENGTH = 2**18
"""Items to draw for a seed and length, so that long sets cost no more than short ones."""
LEAST_SETS = 32
SHOWN_SETS = 32
"""Sets in a map of attention."""
THRESHOLD = 0.5
"""The largest weight below which attention no longer picks an item."""
DISPERSION = (
    *("entropy", "max_weight", "rank", "true_weight", "spread", "critical_beta", "beta", "largest_reach"),
    *("entropy_lower", "entropy_upper", "max_weight_lower", "max_weight_upper", "max_weight_upper_nearest"),
)


class AttentionMaps(NamedTuple):
    """Weights of the items with the largest ρ: sets by the ρ of their best item, items from the best down."""

    normalizers: tuple[str, ...]
    lengths: tuple[int, ...]
    seed: int
    weights: Float[np.ndarray, "normalizers lengths sets items"]
    rho: Float[np.ndarray, "lengths sets items"]


def sets_at(items: int, sets: int) -> int:
    """Returns the number of sets to draw at a length: fewer of long ones.

    >>> [sets_at(items, 512) for items in (16, 2048, 16384)]
    [512, 128, 32]
    """
    return min(sets, max(LEAST_SETS, ITEMS_PER_LENGTH // items))


def dispersion(frame: pl.DataFrame) -> pl.DataFrame:
    """Returns the measures of dispersion, one normalizer after the other, with the bounds that theory sets them."""
    columns = [name for name in (*KEYS, *DISPERSION) if name in frame.columns]
    return pl.concat(frame.select(columns).partition_by("normalizer", maintain_order=True))


def forced(frame: pl.DataFrame) -> dict[str, float | None]:
    """Returns the n at which the largest weight of one normalizer falls to `THRESHOLD`, over seeds and sets.

    `measured`; `nearest`, by the bound from the nearest logits; both None where no measured n does. `spread`, by the
    bound from the largest measured spread, None where β depends on the row.
    """
    means = frame.group_by("n").agg(pl.mean("max_weight", "max_weight_upper_nearest")).sort("n")
    lengths, weights, bounds = (column.to_list() for column in means.get_columns())
    falls_at = {"measured": crossing(lengths, weights, THRESHOLD), "nearest": None, "spread": None}
    if None not in bounds:
        falls_at["nearest"] = crossing(lengths, bounds, THRESHOLD)
        if frame["beta"].n_unique() == 1:
            reach = frame["largest_reach"].to_numpy().max()
            falls_at["spread"] = float(theory.length_forced_below(THRESHOLD, reach))
    return falls_at


def crossing(lengths: Sequence[int], values: Sequence[float], threshold: float) -> float | None:
    """Returns the n at which values fall to the threshold for good, linear between them in log n; None if they do not.

    >>> crossing([4, 16, 64], [0.9, 0.6, 0.4], 0.5)
    32.0
    """
    above = np.flatnonzero(np.asarray(values) > threshold)
    if len(above) == 0 or above[-1] + 1 == len(values):
        return None
    at = above[-1]
    share = (values[at] - threshold) / (values[at] - values[at + 1])
    return float(lengths[at] * (lengths[at + 1] / lengths[at]) ** share)


def losses(frame: pl.DataFrame) -> pl.DataFrame:
    """Splits the sets by what answers or costs them, in percent; accuracy + value + key + dispersion = 100.

    `value` is lost even with all weight on the true item; `key`, on top of that, with all weight on the largest logit;
    `dispersion`, on top of that, by the normalizer, and is negative where it does better than hardmax. The frame must
    hold `HARDMAX` and `TRUE_ITEM` among its normalizers.
    """
    for name, column in ((HARDMAX, "hardmax"), (TRUE_ITEM, "true_item")):
        accuracies = frame.filter(normalizer=name).select("n", "seed", pl.col("accuracy").alias(column))
        frame = frame.join(accuracies, ["n", "seed"], maintain_order="left")
    lost = frame.filter(pl.col("normalizer") != TRUE_ITEM).select(
        *KEYS,
        "accuracy",
        value=100 - pl.col("true_item"),
        key=pl.col("true_item") - pl.col("hardmax"),
        dispersion=pl.col("hardmax") - pl.col("accuracy"),
    )
    return pl.concat(lost.partition_by("normalizer", maintain_order=True))


def attention_maps(measured: Sequence[Measured], normalizers: Sequence[str] | None = None) -> AttentionMaps:
    """Returns the weights of the items with the largest ρ in the first `SHOWN_SETS` sets of the first seed.

    Of these normalizers, all by default, at the lengths of at least `TOP` items. Raises ValueError if none is as long.
    """
    long = [length for length in measured if length.n >= TOP]
    if not long:
        raise Refusal(f"the longest of the measured sets has {measured[-1].n} items: measure {TOP} or more")
    normalizers = tuple(normalizers or long[0].normalizers)
    places = [long[0].normalizers.index(name) for name in normalizers]
    sets = min(SHOWN_SETS, *(length.sets for length in long))
    rho = np.stack([length.values["top_rho"][0, :sets, 0] for length in long])
    weights = np.stack([length.values["top_weights"][0, :sets][:, places] for length in long])
    order = np.argsort(rho[..., 0], axis=1)[..., None]
    weights = np.moveaxis(np.take_along_axis(weights, order[..., None], 1), 2, 0)
    lengths = tuple(length.n for length in long)
    return AttentionMaps(normalizers, lengths, long[0].seeds[0], weights, np.take_along_axis(rho, order, 1))


class Resolution(NamedTuple):
    """The logit of an item near ρ = 1 by its ρ and class, alone with a fixed query; every field but ρ by seed."""

    rho: Float[np.ndarray, " points"]
    logits: Float[np.ndarray, "seeds classes points"]
    slope: Float[np.ndarray, " seeds"]
    """Growth of the logit per unit of ρ at ρ = 1, mean over classes: softmax at β = 1 tells apart about 1/slope."""
    offset: Float[np.ndarray, " seeds"]
    """Standard deviation over classes of the logit at ρ = 1, in nats: the key tells apart about offset/slope in ρ."""
    bias: Float[np.ndarray, "seeds classes"]
    """What the key adds to ρ for items of a class, less the mean of all: the logit at ρ = 1 over the slope."""


def resolution(parameters: Parameters, *, points: int = 101, task: MaxRetrieval | None = None) -> Resolution:
    """Measures logits of single items over a grid of ρ, near its top, where classes begin to differ.

    The task is max retrieval in float32 unless another is given.
    """
    task = task or task_of(parameters)
    structure, _ = build_model(task)

    def logits_at(seed_parameters: Parameters, rho: Float[Array, ""]) -> Float[Array, " classes"]:
        scores = functools.partial(task.scores, nnx.merge(structure, seed_parameters), task.items_alone(rho), None)
        return attended(scores, Normalizer(softmax))[1].logits[:, 0]

    at_end = (jax.jit(jax.vmap(function, (0, None))) for function in (logits_at, jax.jacrev(logits_at, 1)))
    on_grid = jax.jit(jax.vmap(jax.vmap(logits_at, (None, 0), 1), (0, None)))
    end, slopes = (np.asarray(function(parameters, jnp.ones((), jnp.float32)), np.float64) for function in at_end)
    slope, offset = slopes.mean(1), end.std(1)
    width = float(np.clip(8 * np.median(offset / np.abs(slope)), 1e-5, 1.0))
    rho = np.linspace(1 - width, 1, points)
    logits = np.asarray(on_grid(parameters, jnp.asarray(rho, jnp.float32)))
    return Resolution(rho, logits, slope, offset, (end - end.mean(1, keepdims=True)) / slope[:, None])
