"""One test set of any task under other weights: its scores, the rows of its attention, and what the measures say."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Key, Shaped

from softmax_jax.experiment.measures.references import REFERENCES
from softmax_jax.experiment.measures.table import BASELINE, Seen, values_of
from softmax_jax.experiment.tasks.task import Task
from softmax_jax.experiment.training.run import build_model
from softmax_jax.normalizers import maps
from softmax_jax.normalizers.normalizer import Normalizer, SoftCapped
from softmax_jax.normalizers.row import Axis, weigh
from softmax_jax.normalizers.scales import EntropyPolynomial
from softmax_jax.transforms.replacement import SiteLogits
from softmax_jax.transforms.swap import transform

ROWS = 64
"""Rows to look at of each softmax of a set; of more, that many are taken at equal distances."""


class HeadRows(NamedTuple):
    """Rows of attention of one set: those of all its softmaxes, one after the other."""

    logits: Float[Array, "rows items"]
    where: Bool[Array, "rows items"]
    """True at the visible items."""
    weights: Float[Array, "rows items"]


def attended(scores: Callable[[], Any], normalizer: Normalizer) -> tuple[Any, HeadRows]:
    """Returns the scores with the softmaxes of attention replaced by a normalizer, and the rows of these.

    Raises ValueError where `probe` does: for a model without a softmax, and for one that cannot be read.
    """
    output, records = transform(scores, {"*": normalizer}, empty="zeros", recorder=_head_rows)()
    sites = [jax.tree.map(lambda leaf: leaf.reshape(-1, leaf.shape[-1]), rows) for _, rows in records]
    items = max(rows.logits.shape[-1] for rows in sites)
    filled = [jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 0), (0, items - leaf.shape[-1]))), rows) for rows in sites]
    return output, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *filled)


def _head_rows(rows: SiteLogits, weights: Array) -> HeadRows:
    """Returns the rows of one softmax and their new weights."""
    where = jnp.ones(rows.logits.shape, bool) if rows.where is None else rows.where
    return HeadRows(*(_flat(array, rows.axis) for array in (rows.logits, where, weights)))


def _flat(array: Array, axis: Axis) -> Shaped[Array, "rows items"]:
    """Returns at most `ROWS` rows of an array, the last among them."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    moved = jnp.moveaxis(array, axes, range(-len(axes), 0))
    flat = moved.reshape(-1, math.prod(moved.shape[-len(axes) :]))
    step = -(-len(flat) // ROWS)
    return flat[(len(flat) - 1) % step :: step]


class Heads(NamedTuple):
    """Two facts about the attention of a task's model."""

    alone: bool
    """Says whether a set has one row of attention."""
    ranked: bool
    """Says whether the task gives each item of that row its priority."""


@functools.cache
def heads_of(task: Task, length: int) -> Heads:
    """Returns the facts about the attention of a task's model on sets of a length.

    Raises ValueError as `probe` does: for a model without a softmax, and for one that cannot be read.
    """
    structure, initialize = build_model(task, BASELINE)

    def rows_and_priorities(key: Key[Array, ""]) -> tuple[HeadRows, Any]:
        model, batch = nnx.merge(structure, initialize(key)), task.test_batch(key, length, 1)
        _, rows = attended(functools.partial(task.scores, model, batch, None), Normalizer(maps.softmax))
        return rows, task.priorities(batch)

    rows, rho = jax.eval_shape(rows_and_priorities, jax.random.key(0))
    return Heads(len(rows.logits) == 1, rho is not None and rho.shape == rows.logits.shape)


def in_passes(alone: bool, one_pass: Callable[[Any], Any], points: Any) -> Any:
    """Returns the results of a pass through the model for each of `points`, with a leading axis of these.

    If a row is `alone`, whatever comes before its weights does not depend on them and is computed once for all points.
    Otherwise a pass follows the other: what a layer sees depends on the weights of those before it, and all at once
    would take their memory.
    """
    return jax.vmap(one_pass)(points) if alone else jax.lax.map(one_pass, points)


def one_of(alone: bool, normalizers: Sequence[Normalizer], index: Array) -> Normalizer:
    """Returns the normalizer at a place that is known only when the program runs."""

    def weights(logits: Array, axis: Axis = -1, where: Any = None) -> Array:
        choices = [functools.partial(weigh, normalizer, logits, axis, where) for normalizer in normalizers]
        if alone:  # the same logits for all
            return jnp.stack([choice() for choice in choices])[index]
        return jax.lax.switch(index, choices)

    return Normalizer(weights)


@dataclasses.dataclass(frozen=True)
class SetMeasures:
    """The function from the models of a seed and a drawn set to the set's measures; equal ones share a program."""

    task: Task
    room: int
    """Items that the program has room for."""
    measures: tuple[str, ...]
    references: tuple[str, ...]

    def __call__(
        self, models: tuple[Any, Any], drawn: tuple[Any, Any], normalizers: Sequence[Normalizer | None]
    ) -> dict[str, Array]:
        """Returns the measures by name, with a leading axis over normalizers and references.

        `models` are those of `models_of`, `drawn` are the key and the length of the set. None among the normalizers
        stands for the model as it was trained, whose rows of attention are not seen: their measures are NaN.
        """
        batch = self.task.test_set(*drawn, self.room)
        under_softmax, as_trained = models
        replacing = [normalizer for normalizer in normalizers if normalizer is not None]
        rho: Any = self.task.priorities(batch)
        replacing += [Normalizer(functools.partial(REFERENCES[name], rho)) for name in self.references]
        values = self.under_each(replacing, under_softmax, batch, rho) if replacing else {}
        if None not in normalizers:
            return values
        whole = set_facts(self.task, self.task.scores(as_trained, batch, None), batch)
        trained = values_of(self.measures, whole)
        if not values:
            return {name: value[None] for name, value in trained.items()}
        place = list(normalizers).index(None)
        return {name: jnp.insert(values[name], place, trained.get(name, jnp.nan), 0) for name in values}

    def under_each(self, normalizers: Sequence[Normalizer], model: Any, batch: Any, rho: Any) -> dict[str, Array]:
        """Returns the measures under each normalizer in the place of the model's softmaxes."""
        heads = heads_of(self.task, self.task.test_lengths[0])

        def one_pass(index: Array) -> dict[str, Array]:
            normalizer = one_of(heads.alone, normalizers, index)
            scores, rows = attended(functools.partial(self.task.scores, model, batch, None), normalizer)
            facts = [row_facts(normalizer, rows) for normalizer in normalizers]
            beta, beyond = (jnp.stack(fact)[index] for fact in zip(*facts))
            known = {"beta": beta, "extrapolates": beyond, "rho": rho if heads.ranked else None}
            whole = set_facts(self.task, scores, batch)
            return values_of(self.measures, whole, whole._replace(**rows._asdict(), **known))

        return in_passes(heads.alone, one_pass, jnp.arange(len(normalizers), dtype=jnp.int32))


def set_facts(task: Task, scores: Array, batch: Any) -> Seen:
    """Returns what measures may see of one set as a whole."""
    answer = batch.answer[0] if hasattr(batch, "answer") else None
    return Seen(scores[0], answer, task.accuracy(scores, batch), task.loss(scores, batch))


def row_facts(normalizer: Normalizer, rows: HeadRows) -> tuple[Float[Array, " rows"], Bool[Array, " rows"]]:
    """Returns the inverse temperature of each row, NaN unless the map is softmax, and whether a fit extrapolates."""
    logits = rows.logits
    if isinstance(normalizer.map, SoftCapped):
        logits, normalizer = maps.soft_cap(logits, normalizer.map.cap), normalizer.map.of
    scale = normalizer.scale
    is_softmax = isinstance(normalizer.map, maps.Softmax) and normalizer.shift_invariant
    beta = jnp.ones((), jnp.float32) if scale is None else scale(logits, -1, rows.where)
    beyond = jnp.zeros((), bool)
    if isinstance(scale, EntropyPolynomial) and scale.entropy_range is not None:
        beyond = scale.extrapolates(logits, -1, rows.where)
    beta = jnp.where(is_softmax, beta, jnp.nan)
    return jnp.broadcast_to(beta, (len(logits), 1))[:, 0], jnp.broadcast_to(beyond, (len(logits), 1))[:, 0]
