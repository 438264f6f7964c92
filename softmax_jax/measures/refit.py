"""Refits the adaptive temperature to trained max-retrieval models, beside the best that any temperature could do."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import polars as pl
from jaxtyping import Array, Float, Key

from softmax_jax.measures.evaluation import check_seeds, evaluate, task_of
from softmax_jax.measures.fits import ALL_LENGTHS, TRAIN_LENGTHS
from softmax_jax.measures.sets import on_fresh_sets
from softmax_jax.measures.table import KEYS
from softmax_jax.normalizers.maps import softmax
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.normalizers.scales import EntropyInterpolation
from softmax_jax.runtime.pipeline import two_at_a_time
from softmax_jax.tasks.max_retrieval import Batch, MaxRetrievalModel
from softmax_jax.tasks.task import Task
from softmax_jax.temperature import Rows, TemperatureFit, curves, fitting, optimum
from softmax_jax.training.trainer import Parameters

SHORT = 16
SHORT_FACTOR = 64
"""Sets of up to `SHORT` items are cheap and few of their rows are flat: they are drawn this many times as often."""


def sets_of(items: int, sets: int) -> int:
    """Sets to draw at a length."""
    return sets * SHORT_FACTOR if items <= SHORT else sets


def search_sets(model: MaxRetrievalModel, batch: Batch) -> Rows:
    """The search on one batch of sets: the loss is the cross-entropy of the answer, an error is another answer."""
    hidden, logits = model.encode(batch.items, batch.query)

    def scores(attended: Float[Array, "sets width"]) -> Float[Array, "sets classes"]:
        return model.read_pooled(attended, jnp.ones(len(attended), attended.dtype))

    return optimum.search(
        logits,
        hidden,
        lambda attended: optax.softmax_cross_entropy_with_integer_labels(scores(attended), batch.answer),
        error=lambda attended: (scores(attended).argmax(-1) != batch.answer).astype(attended.dtype),
        where=batch.mask,
        pool=model.pool,
    )


def search_lengths(
    parameters: Parameters,
    *,
    seeds: Sequence[int],
    lengths: Sequence[int],
    sets: int,
    keys: Sequence[Key[Array, ""]],
    task: Task | None = None,
) -> Iterator[list[Rows]]:
    """Yields, length by length, the numpy rows of shape (seeds, sets) for the sets that each key draws."""
    task = task_of(parameters, task)
    check_seeds(parameters, seeds)

    def rows(items: int) -> list[Rows]:
        each = {"seeds": seeds, "items": items, "sets": sets_of(items, sets)}
        return [on_fresh_sets(search_sets, task, parameters, key=key, **each) for key in keys]

    yield from two_at_a_time(rows, lengths)


def fit_both(
    rows: Mapping[int, Rows], fresh: Mapping[int, Rows], longest_in_training: int, **options: Any
) -> tuple[dict[str, TemperatureFit], str | None]:
    """The fit to all lengths, and the one to lengths that training saw, or else why there is none.

    `rows` are fitted to and `fresh` held out; the options are those of `fitting.fit`.
    """
    fits = {ALL_LENGTHS: fitting.fit(rows, fresh, **options)}
    seen, held_out = ({n: at[n] for n in at if n <= longest_in_training} for at in (rows, fresh))
    try:
        return fits | {TRAIN_LENGTHS: fitting.fit(seen, held_out, **options)}, None
    except ValueError as error:
        return fits, f"no fit to the lengths of training (at most {longest_in_training} items): {error}"


def contenders(rows: Mapping[int, Rows], fits: Mapping[str, TemperatureFit]) -> dict[str, Normalizer]:
    """The normalizers to compare: the published temperature, those fitted, and what bounds them on either side."""
    return {
        "softmax": normalizer("softmax"),
        "adaptive": normalizer("adaptive"),
        **{name: Normalizer(softmax, fit.scale) for name, fit in fits.items()},
        "best rising β(H)": isotonic_normalizer(rows),
        "hardmax": normalizer("hardmax"),
    }


def isotonic_normalizer(rows: Mapping[int, Rows]) -> Normalizer:
    """Softmax at the best temperature that any function of the entropy, rising with it, gives."""
    by_copies = curves.points(optimum.join(rows.values()), "bins")
    everyone = np.ones(len(next(iter(rows.values())).entropy))
    rising = curves.isotonic_points(by_copies(everyone))
    knots = (jnp.asarray(numbers, jnp.float32) for numbers in (rising.entropy, rising.beta))
    return Normalizer(softmax, EntropyInterpolation(*knots))


def compare(
    parameters: Parameters,
    normalizers: Mapping[str, Normalizer],
    rows: Mapping[int, Rows],
    fresh_rows: Mapping[int, Rows],
    *,
    seeds: Sequence[int],
    sets: int,
    key: Key[Array, ""],
    task: Task | None = None,
) -> Iterator[pl.DataFrame]:
    """Yields, length by length, accuracy and loss of every normalizer and of the oracles on the sets that `key` draws.

    `rows` chose the oracles' temperatures and come from other sets; `fresh_rows` are those of `key`.
    """
    drawn = {n: sets_of(n, sets) for n in rows}
    asked = {"seeds": seeds, "lengths": tuple(rows), "sets": drawn, "measures": ("accuracy", "loss"), "key": key}
    for measured in evaluate(parameters, normalizers, task=task_of(parameters, task), **asked):
        n = measured.n
        yield pl.concat([measured.frame(), oracles(n, rows[n], fresh_rows[n], seeds)])


BEST_FOR_LENGTH = "best θ for each n"
BEST_FOR_SET = "best θ for each set"


def oracles(n: int, rows: Rows, fresh: Rows, seeds: Sequence[int]) -> pl.DataFrame:
    """What temperatures reach that know more than a row's entropy: its length, or even its answer."""
    smooth = curves.smooth_errors(rows.errors.mean((0, 1)))
    for_loss, for_accuracy = int(rows.losses.mean((0, 1)).argmin()), int(smooth.argmin())
    reached = []
    for index, seed in enumerate(seeds):
        losses, errors = fresh.losses[index], fresh.errors[index]
        values = {
            BEST_FOR_LENGTH: (errors[:, for_accuracy], losses[:, for_loss]),
            BEST_FOR_SET: (errors.min(-1), losses.min(-1)),
        }
        for name, (error, loss) in values.items():
            reached.append((name, n, seed, 100 * float(1 - error.mean()), float(loss.mean())))
    return pl.DataFrame(reached, [*KEYS, "accuracy", "loss"], orient="row")
