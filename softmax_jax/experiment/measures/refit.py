"""Refits the adaptive temperature to trained models, beside the best that any temperature could do."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Array, Float, Key

from softmax_jax import temperature
from softmax_jax.experiment.measures.evaluation import Evaluation, check_seeds, task_of
from softmax_jax.experiment.measures.one_set import HeadRows, Heads, attended, heads_of, in_passes
from softmax_jax.experiment.measures.over_sets import as_they_compile, models_of, on_every_set, set_by_set
from softmax_jax.experiment.measures.sets import set_keys
from softmax_jax.experiment.measures.table import KEYS
from softmax_jax.experiment.tasks.task import Task
from softmax_jax.experiment.training.run import Parameters
from softmax_jax.normalizers.arithmetic import place_of_largest
from softmax_jax.normalizers.calculus import weight_entropy
from softmax_jax.normalizers.maps import softmax
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.normalizers.row import weigh
from softmax_jax.normalizers.scales import Scale
from softmax_jax.refusal import Refusal
from softmax_jax.temperature import Rows, TemperatureFit, names_of, search_at, target_beta

SETS = 64
MOST_SETS = 2**14
SHORT = 16
SHORT_FACTOR = 64
"""Sets of up to `SHORT` items are cheap and few of their rows are flat: they are drawn this many times as often."""


def sets_of_long(task: Task, length: int, sets: int | None = None) -> int:
    """Returns how many sets to draw at a length above `SHORT`: `SETS` without a number, at most those of a test."""
    return min(SETS, task.test_sets(length)) if sets is None else sets


def sets_of(task: Task, length: int, sets: int | None = None) -> int:
    """Returns how many sets to draw at a length, `SHORT_FACTOR` times as many of short ones."""
    return sets_of_long(task, length, sets) * (SHORT_FACTOR if length <= SHORT else 1)


def beta_of_true_item(task: Task, batch: Any, rows: HeadRows) -> Float[Array, " rows"]:
    """Returns the β of the largest weight of the item with the largest priority, for a task that ranks its items."""
    rho: Any = task.priorities(batch)
    best = place_of_largest(jnp.where(rows.where, rho, -jnp.inf))
    return target_beta(rows.logits, best, where=rows.where)


@functools.cache
def searching(task: Task, length: int, heads: Heads) -> Callable[..., Rows]:
    """Returns the search on one set, drawn from a key, as a function of its models.

    All rows of attention of a set share one temperature, so the rows that it returns are sets: the entropy is the mean
    over the rows of the set that see anything. One function object for the same arguments, so that compiled programs
    are found again.
    """

    def search_set(models: Any, key: Key[Array, ""], _: Any) -> Rows:
        batch = task.test_batch(key, length, 1)
        scores = functools.partial(task.scores, models[0], batch, None)

        def losses_and_errors(log_theta: Float[Array, ""]) -> tuple[Array, Array]:
            sharper = Normalizer(lambda logits, axis, where: weigh(softmax, logits * jnp.exp(-log_theta), axis, where))
            reached, _ = attended(scores, sharper)
            return task.loss(reached, batch), 1 - task.accuracy(reached, batch) / 100

        def at(log_theta: Float[Array, "1 k"]) -> tuple[Array, Array]:
            losses, errors = in_passes(heads.alone, losses_and_errors, log_theta[0])
            return losses[None], errors[None]

        _, rows = attended(scores, Normalizer(softmax))
        target = beta_of_true_item(task, batch, rows) if heads.ranked else None
        visible = rows.where.any(-1)
        total = jnp.sum(jnp.where(visible, weight_entropy(rows.weights), 0))
        mean = total / jnp.maximum(jnp.sum(visible, dtype=jnp.float32), 1)
        return jax.tree.map(lambda leaf: leaf[0], search_at(at, mean[None].astype(jnp.float32), target))

    return search_set


def search_lengths(
    parameters: Parameters,
    *,
    seeds: Sequence[int],
    lengths: Sequence[int],
    sets: int | None,
    keys: Sequence[Key[Array, ""]],
    task: Task | None = None,
) -> Iterator[list[Rows]]:
    """Yields, length by length, the numpy rows of shape (seeds, sets) for the sets that each key draws.

    `parameters` are those of max retrieval unless a task is named. Without `sets` they are as `sets_of` says.
    """
    task = task or task_of(parameters)
    check_seeds(parameters, seeds)
    heads = heads_of(task, task.test_lengths[0])

    counts = {length: sets_of(task, length, sets) for length in lengths}
    items = sum(length * count for length, count in counts.items())
    models = models_of(task, parameters, items=items)

    def calls(length: int) -> list[tuple[Any, ...]]:
        drawn = [set_keys(seeds, length, counts[length], key) for key in keys]
        compute = searching(task, length, heads)
        return [(compute, models, key_sets, task.at_once(length)) for key_sets in drawn]

    for length_calls in as_they_compile(map(calls, lengths)):
        yield [set_by_set(on_every_set(*call)) for call in length_calls]


def fit_both(
    rows: Mapping[int, Rows],
    fresh: Mapping[int, Rows],
    longest_in_training: int,
    criterion: str = "bins",
    **options: Any,
) -> tuple[dict[str, TemperatureFit], str | None]:
    """Returns the fit to all lengths, and the one to lengths that training saw, or else why there is none.

    `rows` are fitted to and `fresh` held out; the options are those of `temperature.fit`.
    """
    to_all, to_training = names_of(criterion)
    fits = {to_all: temperature.fit(rows, fresh, criterion=criterion, **options)}
    training, held_out = (training_rows(by_length, longest_in_training) for by_length in (rows, fresh))
    try:
        return fits | {to_training: temperature.fit(training, held_out, criterion=criterion, **options)}, None
    except Refusal as error:
        return fits, f"no fit to the lengths of training (at most {longest_in_training} items): {error}"


def compare(
    parameters: Parameters,
    rows: Mapping[int, Rows],
    fresh: Mapping[int, Rows],
    longest_in_training: int,
    *,
    seeds: Sequence[int],
    sets: int | None,
    key: Key[Array, ""],
    task: Task | None = None,
    **options: Any,
) -> Iterator[pl.DataFrame]:
    """Yields, by half of the seeds and by length, accuracy and loss of contenders and oracles on sets that `key` draws.

    What is fitted or chosen for one half of the seeds is so on `rows` of the other half, which come from other sets
    too; `fresh` are those of `key`. A single seed is fitted to itself. The options are those of `temperature.fit`.
    """
    halves = np.array_split(np.arange(len(seeds)), min(len(seeds), 2))
    chosen_on = [rows_of_seeds(rows, others) for others in reversed(halves)]
    scales = [fitted_scales(other_rows, longest_in_training, **options) for other_rows in chosen_on]
    in_all = set.intersection(*map(set, scales))
    task = task or task_of(parameters)
    drawn = {n: sets_of(task, n, sets) for n in rows}
    for half, other_rows, half_scales in zip(halves, chosen_on, scales):
        named = {name: normalizer(name) for name in ("softmax", "adaptive")}
        named |= {name: Normalizer(softmax, scale) for name, scale in half_scales.items() if name in in_all}
        named["hardmax"] = normalizer("hardmax")
        half_parameters = jax.tree.map(lambda leaf, half=half: np.asarray(leaf)[half], parameters)
        half_seeds = [seeds[int(index)] for index in half]
        fields: dict[str, Any] = {"sets": drawn, "measures": ("accuracy", "loss"), "key": key}
        training = training_rows(other_rows, longest_in_training)
        for_all = {BEST_OF_ALL: weighed_alike(other_rows)}
        for_all |= {BEST_OF_TRAINING: temperature.join(training.values())} if training else {}
        for measured in Evaluation(task, half_parameters, named, half_seeds, **fields).over(tuple(rows)):
            n = measured.n
            choices = {BEST_FOR_LENGTH: other_rows[n]} | for_all
            yield pl.concat([measured.frame(), oracles(n, choices, rows_of_seeds(fresh, half)[n], half_seeds)])


def fitted_scales(
    rows: Mapping[int, Rows], longest_in_training: int, criterion: str = "bins", **options: Any
) -> dict[str, Scale]:
    """Returns the scales of both fits, but for one that has too few rows."""
    scales = {}
    for name, fitted_to in zip(names_of(criterion), (rows, training_rows(rows, longest_in_training))):
        with contextlib.suppress(Refusal):
            scales[name] = temperature.fit_polynomial(fitted_to, criterion, **options).scale
    return scales


def training_rows(rows: Mapping[int, Rows], longest: int) -> dict[int, Rows]:
    """Returns the rows of lengths that training saw."""
    return {n: length_rows for n, length_rows in rows.items() if n <= longest}


def rows_of_seeds(rows: Mapping[int, Rows], seeds: np.ndarray) -> dict[int, Rows]:
    """Returns the rows of some seeds, which are given by their places."""
    return {n: Rows(*(column[seeds] for column in length_rows)) for n, length_rows in rows.items()}


def weighed_alike(rows: Mapping[int, Rows]) -> Rows:
    """Returns one row for each length, the mean of its rows, so that every length counts alike."""
    return Rows(*(np.stack([column.mean((0, 1)) for column in columns])[None] for columns in zip(*rows.values())))


BEST_FOR_LENGTH = "best θ for each n"
BEST_OF_TRAINING = "best θ of training lengths"
"""One constant θ chosen on the training lengths: the baseline that needs no curve."""
BEST_OF_ALL = "best θ of all lengths"
"""One constant θ for all lengths: what a curve that saw them all must beat."""
BEST_FOR_SET = "best θ for each set"


def oracles(n: int, choices: Mapping[str, Rows], fresh: Rows, seeds: Sequence[int]) -> pl.DataFrame:
    """Returns what the best constant temperatures of the rows reach, and what temperatures do that know each answer."""
    reached = []
    for name, rows in choices.items():
        smooth = temperature.smooth_errors(rows.errors.mean((0, 1)))
        for_loss, for_accuracy = int(rows.losses.mean((0, 1)).argmin()), int(smooth.argmin())
        reached.append((name, fresh.errors[..., for_accuracy], fresh.losses[..., for_loss]))
    reached.append((BEST_FOR_SET, fresh.errors.min(-1), fresh.losses.min(-1)))
    by_seed = [
        (name, n, seed, 100 * float(1 - errors[index].mean()), float(losses[index].mean()))
        for name, errors, losses in reached
        for index, seed in enumerate(seeds)
    ]
    return pl.DataFrame(by_seed, [*KEYS, "accuracy", "loss"], orient="row")
