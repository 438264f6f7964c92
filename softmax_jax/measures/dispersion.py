"""How attention disperses as sets grow, and what that costs: measured on trained seeds, beside what theory allows.

- `measure_sets(parameters, normalizers, *, seeds, lengths, sets, key)`: one pass over fresh sets, from which come
  - `evaluation_rows(measured)`: what `evaluate` yields of the same sets
  - `dispersion_rows(measured)`: entropy, largest weight, rank of the true item, logit spread, and the bounds
  - `forced_rows(rows, threshold)`: the n at which the largest weight falls below a threshold, measured and forced
  - `gap_rows(measured)`: how often the largest logit and the answer are wrong, by the gap between the two best items
  - `loss_rows(measured)`: the accuracy lost to the value, to the key and to dispersion
  - `attention_maps(measured, seed, sets)`: weights of the items with the largest ρ
- `resolution(parameters, *, query, points)`: the logit of an item by its ρ and class

`parameters` have a leading axis over `seeds`, as `evaluate` takes them. Rows are named tuples, ready for a CSV file.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Key

from softmax_jax import theory
from softmax_jax.measures.evaluation import (
    KEY,
    Row,
    check_measured,
    check_parameters,
    extrapolated_share,
    on_fresh_sets,
    set_by_set,
)
from softmax_jax.normalizers import checks, maps
from softmax_jax.normalizers.calculus import weight_entropy
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.runtime.pipeline import two_at_a_time
from softmax_jax.tasks.max_retrieval import CLASSES, Batch, MaxRetrieval, MaxRetrievalModel
from softmax_jax.training.trainer import Parameters, build_model

AnyArray = Any
"""JAX arrays in compiled code, numpy arrays out of it."""
REPORT_LENGTHS = tuple(2**power for power in range(4, 15))
ITEMS_PER_LENGTH = 2**18
"""Items to draw for a seed and length, so that long sets cost no more than short ones."""
LEAST_SETS = 32
TOP = 16
"""Items of a set to keep the weights of."""
GAP_EDGES = 10.0 ** np.arange(-6, 0.5, 0.5)
"""Edges of the bins of the gap in ρ between the two best items: two to a factor of ten."""


class Sets(NamedTuple):
    """What one pass sees of every set; leading axes (seeds, sets), 0 or 1 where it is a matter of yes or no."""

    right: Float[AnyArray, "*sets normalizers"]
    """Whether the answer is right."""
    right_hardmax: Float[AnyArray, "*sets"]
    """The same with all weight on the largest logit."""
    right_value: Float[AnyArray, "*sets"]
    """The same with all weight on the true item, the one with the largest ρ."""
    loss: Float[AnyArray, "*sets normalizers"]
    """Cross-entropy in nats."""
    entropy: Float[AnyArray, "*sets normalizers"]
    """Of the weights, in nats."""
    max_weight: Float[AnyArray, "*sets normalizers"]
    true_weight: Float[AnyArray, "*sets normalizers"]
    """Weight of the true item."""
    rank: Float[AnyArray, "*sets normalizers"]
    """Rank of that weight, 1 for the largest; equal weights share their mean rank."""
    extrapolated: Float[AnyArray, "*sets normalizers"]
    """Percent, as in `evaluation.Measures`."""
    beta: Float[AnyArray, "*sets normalizers"]
    """Inverse temperature of the row; NaN unless the map is softmax."""
    spreads: Float[AnyArray, "*sets counts"]
    """From the largest logit to the k-th largest, for the k of `nearest_counts`."""
    found: Float[AnyArray, "*sets"]
    """Whether the true item has the largest logit."""
    top_rho: Float[AnyArray, "*sets top"]
    """The largest ρ, in descending order."""
    top_weights: Float[AnyArray, "*sets normalizers top"]
    """Weights of the items with the largest ρ."""


class Measured(NamedTuple):
    """The sets of every length."""

    normalizers: tuple[str, ...]
    seeds: tuple[int, ...]
    by_length: dict[int, Sets]


class DispersionRow(NamedTuple):
    """Means over the sets of a seed; entropies in nats. Bounds are None unless the map is softmax.

    Each bound is the mean over sets of the bound of each set at its own spread and β, so it holds for the mean.
    """

    normalizer: str
    n: int
    seed: int
    entropy: float
    max_weight: float
    rank: float
    true_weight: float
    spread: float
    largest_spread: float
    beta: float | None
    largest_reach: float | None
    """The largest βδ of a set."""
    entropy_lower: float | None
    entropy_upper: float | None
    max_weight_lower: float | None
    max_weight_upper: float | None
    """From the spread of the whole row."""
    max_weight_upper_nearest: float | None
    """From the spreads of the largest 2, 4, 8, … logits."""


class ForcedRow(NamedTuple):
    """The n at which the largest weight falls to a threshold, over seeds and sets; None where no measured n does."""

    normalizer: str
    threshold: float
    measured: float | None
    nearest: float | None
    """By the bound from the nearest logits."""
    spread: float | None
    """By the bound from the largest measured spread; None where β depends on the row."""


class GapRow(NamedTuple):
    """Errors, in percent, in the sets whose two best items lie within a bin of gaps in ρ."""

    normalizer: str
    n: int
    seed: int
    gap_low: float
    gap_high: float
    sets: int
    missed: float
    """Another item than the true one has the largest logit; the same for every normalizer."""
    wrong: float
    """The answer is another class."""


class LossRow(NamedTuple):
    """Where accuracy goes, in percent of sets; accuracy + value + key + dispersion = 100."""

    normalizer: str
    n: int
    seed: int
    accuracy: float
    value: float
    """Lost even with all weight on the true item."""
    key: float
    """Lost on top of that with all weight on the largest logit."""
    dispersion: float
    """Lost on top of that by this normalizer; negative where it does better than hardmax."""


class AttentionMaps(NamedTuple):
    """Weights of the items with the largest ρ: sets by the ρ of their best item, items from the best down."""

    normalizers: tuple[str, ...]
    lengths: tuple[int, ...]
    seed: int
    weights: Float[np.ndarray, "normalizers lengths sets items"]
    rho: Float[np.ndarray, "lengths sets items"]


class Resolution(NamedTuple):
    """The logit of an item by its ρ and class, alone with a fixed query; every field but the grids by seed."""

    rho: Float[np.ndarray, " points"]
    logits: Float[np.ndarray, "seeds classes points"]
    near_rho: Float[np.ndarray, " points"]
    near_logits: Float[np.ndarray, "seeds classes points"]
    slope: Float[np.ndarray, " seeds"]
    """Growth of the logit per unit of ρ at ρ = 1, mean over classes: softmax at β = 1 tells apart about 1/slope."""
    offset: Float[np.ndarray, " seeds"]
    """Standard deviation over classes of the logit at ρ = 1: the key tells apart about offset/slope in ρ."""


def sets_at(items: int, sets: int) -> int:
    """Sets to draw at a length: all of them, or fewer of long ones. Raises for numbers below 1.

    >>> [sets_at(items, 512) for items in (16, 2048, 16384)]
    [512, 128, 32]
    """
    checks.whole("items", items, 1, 16)
    checks.whole("sets", sets, 1, 512)
    return min(sets, max(LEAST_SETS, ITEMS_PER_LENGTH // items))


def nearest_counts(items: int) -> list[int]:
    """How many of the largest logits to take the spread of: 2, 4, 8, … and all of them.

    >>> nearest_counts(10)
    [2, 4, 8, 10]
    """
    checks.whole("items", items, 1, 16)
    return sorted({min(2**power, items) for power in range(1, (items - 1).bit_length() + 1)} | {items})


def betas(normalizer: Normalizer, logits: Float[Array, "sets items"], where: Any) -> Float[Array, " sets"]:
    """The inverse temperature of each row where the map is softmax, NaN where it is another."""
    beta = jnp.ones(()) if normalizer.scale is None else normalizer.scale(logits, -1, where)
    is_softmax = isinstance(normalizer.map, maps.Softmax) and normalizer.shift_invariant
    return jnp.broadcast_to(beta if is_softmax else jnp.nan, (len(logits), 1))[:, 0]


def look(model: MaxRetrievalModel, normalizers: Sequence[Normalizer], batch: Batch) -> Sets:
    """One batch of sets without padding, under each normalizer."""
    hidden, logits = model.encode(batch.items, batch.query)
    rho = batch.items[..., 0]
    top_rho, top = jax.lax.top_k(rho, min(TOP, rho.shape[1]))
    weights = jnp.stack([normalizer(logits, where=batch.mask) for normalizer in normalizers], 1)
    top_weights = jnp.take_along_axis(weights, top[:, None], 2)
    own = top_weights[..., :1]
    extremes = jnp.stack(
        [maps.hardmax(logits, where=batch.mask), jax.nn.one_hot(top[:, 0], rho.shape[1], dtype=rho.dtype)], 1
    )
    scores = model.read(hidden, jnp.concatenate([weights, extremes], 1))
    answer = jnp.broadcast_to(batch.answer[:, None], scores.shape[:2])
    right = (scores.argmax(-1) == answer).astype(rho.dtype)
    ordered = -jnp.sort(-logits)
    return Sets(
        right=right[:, :-2],
        right_hardmax=right[:, -2],
        right_value=right[:, -1],
        loss=optax.softmax_cross_entropy_with_integer_labels(scores[:, :-2], answer[:, :-2]),
        entropy=weight_entropy(weights),
        max_weight=jnp.abs(weights).max(-1),
        true_weight=own[..., 0],
        rank=(weights > own).sum(-1, dtype=rho.dtype) + ((weights == own).sum(-1, dtype=rho.dtype) + 1) / 2,
        extrapolated=jnp.stack([_extrapolated(normalizer, logits, batch.mask) for normalizer in normalizers], 1),
        beta=jnp.stack([betas(normalizer, logits, batch.mask) for normalizer in normalizers], 1),
        spreads=ordered[:, :1] - ordered[:, jnp.array(nearest_counts(rho.shape[1])) - 1],
        found=(logits.argmax(-1) == top[:, 0]).astype(rho.dtype),
        top_rho=top_rho,
        top_weights=top_weights,
    )


def _extrapolated(normalizer: Normalizer, logits: Float[Array, "sets items"], where: Any) -> Float[Array, " sets"]:
    return jax.vmap(lambda row, visible: extrapolated_share(normalizer, row[None], visible[None]))(logits, where)


def measure_sets(
    parameters: Parameters,
    normalizers: Mapping[str, Normalizer],
    *,
    seeds: Sequence[int],
    lengths: Sequence[int] = REPORT_LENGTHS,
    sets: int = 512,
    key: Key[Array, ""] | None = None,
    watch: Callable[[Iterable[Sets]], Iterable[Sets]] = iter,
) -> Measured:
    """Looks at fresh sets of every length and seed, the first of those that `evaluate` draws from the same key.

    Up to `sets` for each seed and length, fewer of long ones. Compiles once a length. The sets of the lengths pass
    through `watch` one by one, so that a progress bar may count them. Raises ValueError for sets of
    one item, which have no second best.
    """
    check_measured(parameters, normalizers, seeds, lengths, sets, key, fewest=2)
    checks.function("watch", watch, "iter")
    key = jax.random.key(KEY) if key is None else key
    everywhere = tuple(normalizers.values())

    def at(items: int) -> Sets:
        drawn = sets_at(items, sets)
        return set_by_set(on_fresh_sets(look, parameters, everywhere, key=key, seeds=seeds, items=items, sets=drawn))

    return Measured(tuple(normalizers), tuple(seeds), dict(zip(lengths, watch(two_at_a_time(at, lengths)))))


def evaluation_rows(measured: Measured) -> list[Row]:
    """A row per normalizer, length and seed, as `evaluate` yields them."""
    found = []
    for n, sets in measured.by_length.items():
        measures = (100 * sets.right, sets.loss, sets.entropy, sets.max_weight, sets.extrapolated)
        table = np.stack([measure.mean(1, dtype=np.float64) for measure in measures], -1)
        for index, name in enumerate(measured.normalizers):
            for at, seed in enumerate(measured.seeds):
                found.append(Row(name, n, seed, *table[at, index].tolist()))
    return found


def dispersion_rows(measured: Measured) -> list[DispersionRow]:
    """A row per normalizer, length and seed."""
    return [
        DispersionRow(name, n, seed, *_dispersion(n, Sets(*(column[at] for column in sets)), index))
        for index, name in enumerate(measured.normalizers)
        for n, sets in measured.by_length.items()
        for at, seed in enumerate(measured.seeds)
    ]


def _dispersion(n: int, sets: Sets, index: int) -> tuple[Any, ...]:
    """The numbers of a row, from the sets of one seed under the normalizer of that index."""
    columns = (column[:, index] for column in (sets.entropy, sets.max_weight, sets.rank, sets.true_weight))
    spread, beta = sets.spreads[:, -1], sets.beta[:, index]
    measured = (*(float(column.mean()) for column in columns), float(spread.mean()), float(spread.max()))
    if np.isnan(beta).any():
        return (*measured, *[None] * 7)
    nearest = theory.largest_weight_from_nearest(nearest_counts(n), sets.spreads, beta)
    entropy, largest = theory.entropy_bounds(n, spread, beta), theory.largest_weight_bounds(n, spread, beta)
    # One weight of at most α leaves an entropy of at least -log α.
    lowest = np.maximum(entropy.lower, -np.log(nearest))
    bounds = (lowest, entropy.upper, largest.lower, largest.upper, nearest)
    return (*measured, float(beta.mean()), float((beta * spread).max()), *(float(np.mean(b)) for b in bounds))


def forced_rows(rows: Sequence[DispersionRow], threshold: float = 0.5) -> list[ForcedRow]:
    """A row per normalizer, from those of `dispersion_rows`."""
    checks.require("threshold", threshold, "between 0 and 1, such as 0.5", lambda weight: 0 < weight < 1)
    found = []
    for name in dict.fromkeys(row.normalizer for row in rows):
        own = [row for row in rows if row.normalizer == name]
        lengths = sorted({row.n for row in own})
        by_length = [[row for row in own if row.n == n] for n in lengths]
        measured = crossing(lengths, [mean_of("max_weight", some) for some in by_length], threshold)
        nearest = spread = None
        if own[0].beta is not None:
            nearest = crossing(lengths, [mean_of("max_weight_upper_nearest", some) for some in by_length], threshold)
            if len({row.beta for row in own}) == 1:
                reach = max(row.largest_reach or 0.0 for row in own)
                spread = float(theory.length_forced_below(threshold, reach))
        found.append(ForcedRow(name, threshold, measured, nearest, spread))
    return found


def mean_of(field: str, rows: Sequence[Any]) -> float:
    """The mean of one field."""
    return float(np.mean([getattr(row, field) for row in rows]))


def crossing(lengths: Sequence[int], values: Sequence[float], threshold: float) -> float | None:
    """The n at which values falls to the threshold for good, linear between the values in log n; None if it does not.

    >>> crossing([4, 16, 64], [0.9, 0.6, 0.4], 0.5)
    32.0
    """
    if len(lengths) != len(values):
        raise ValueError(
            f"lengths has {len(lengths)} numbers and values {len(values)}; they must pair up: give as many"
        )
    checks.finite("threshold", threshold)
    above = np.flatnonzero(np.asarray(values) > threshold)
    if len(above) == 0 or above[-1] + 1 == len(values):
        return None
    at = above[-1]
    share = (values[at] - threshold) / (values[at] - values[at + 1])
    return float(lengths[at] * (lengths[at + 1] / lengths[at]) ** share)


def gap_rows(measured: Measured) -> list[GapRow]:
    """A row per normalizer, length, seed and bin of `GAP_EDGES` with a set in it; smaller gaps count to the first."""
    found = []
    for n, sets in measured.by_length.items():
        gap = sets.top_rho[..., 0] - sets.top_rho[..., 1]
        bins = np.clip(np.searchsorted(GAP_EDGES, gap, side="right") - 1, 0, len(GAP_EDGES) - 2)
        for at, seed in enumerate(measured.seeds):
            for place in np.unique(bins[at]):
                inside = bins[at] == place
                low, high = GAP_EDGES[place : place + 2].tolist()
                missed = 100 - 100 * float(sets.found[at, inside].mean())
                for name, right in zip(measured.normalizers, sets.right[at, inside].mean(0).tolist()):
                    found.append(GapRow(name, n, seed, low, high, int(inside.sum()), missed, 100 - 100 * right))
    return found


def loss_rows(measured: Measured) -> list[LossRow]:
    """A row per normalizer, length and seed."""
    found = []
    for index, name in enumerate(measured.normalizers):
        for n, sets in measured.by_length.items():
            for at, seed in enumerate(measured.seeds):
                right = (sets.right[at, :, index], sets.right_hardmax[at], sets.right_value[at])
                own, hardmax, value = (100 * float(answers.mean()) for answers in right)
                found.append(LossRow(name, n, seed, own, 100 - value, value - hardmax, hardmax - own))
    return found


def attention_maps(measured: Measured, seed: int | None = None, sets: int = 32) -> AttentionMaps:
    """Weights of the items with the largest ρ in the first sets of one seed, the first seed by default.

    At the measured lengths of at least `TOP` items. Raises ValueError for a seed that was not measured, and if no
    length is long enough.
    """
    checks.whole("sets", sets, 1, 32)
    seed = measured.seeds[0] if seed is None else seed
    if seed not in measured.seeds:
        raise ValueError(f"seed is {seed!r}: it must be one of {', '.join(map(str, measured.seeds))}")
    lengths = [n for n in measured.by_length if n >= TOP]
    if not lengths:
        raise ValueError(f"the longest of the measured sets has {max(measured.by_length)} items: measure {TOP} or more")
    at = measured.seeds.index(seed)
    sets = min(sets, *(measured.by_length[n].top_rho.shape[1] for n in lengths))
    rho = np.stack([measured.by_length[n].top_rho[at, :sets] for n in lengths])
    weights = np.stack([measured.by_length[n].top_weights[at, :sets] for n in lengths])
    order = np.argsort(rho[..., 0], axis=1)[..., None]
    weights = np.take_along_axis(weights, order[..., None], 1)
    return AttentionMaps(
        measured.normalizers, tuple(lengths), seed, np.moveaxis(weights, 2, 0), np.take_along_axis(rho, order, 1)
    )


def resolution(parameters: Parameters, *, query: float = 0.5, points: int = 101) -> Resolution:
    """Logits of single items over a grid of ρ, once over its whole range and once where classes begin to differ."""
    check_parameters(parameters, range(len(jax.tree.leaves(parameters)[0])) if jax.tree.leaves(parameters) else (0,))
    checks.finite("query", query)
    checks.whole("points", points, 2, 101, 2**20)
    structure, _ = build_model(MaxRetrieval(width=parameters["item_in"]["kernel"].shape[-1]))
    asked = jnp.full((1, 1), query)

    def logits_at(own: Parameters, rho: Float[Array, ""]) -> Float[Array, " classes"]:
        items = jnp.concatenate([jnp.full((CLASSES, 1), rho), jnp.eye(CLASSES)], 1)
        return nnx.merge(structure, own).encode(items[None], asked).logits[0]

    @jax.jit
    def on_grid(rho: Float[Array, " points"]) -> Float[Array, "seeds classes points"]:
        return jax.vmap(lambda own: jax.vmap(lambda one: logits_at(own, one), out_axes=1)(rho))(parameters)

    @jax.jit
    def at_end() -> tuple[Float[Array, "seeds classes"], Float[Array, "seeds classes"]]:
        one = jnp.ones(())
        return jax.vmap(lambda own: jax.jvp(lambda rho: logits_at(own, rho), (one,), (one,)))(parameters)

    end, slopes = (np.asarray(found, np.float64) for found in at_end())
    slope, offset = slopes.mean(1), end.std(1)
    width = float(np.clip(8 * np.median(offset / np.abs(slope)), 1e-5, 1.0))
    whole, near = np.linspace(0, 1, points), np.linspace(1 - width, 1, points)
    found = (np.asarray(on_grid(jnp.asarray(grid, jnp.float32))) for grid in (whole, near))
    logits, near_logits = found
    return Resolution(whole, logits, near, near_logits, slope, offset)
