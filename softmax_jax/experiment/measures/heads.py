"""One test set of any task under other weights: its scores, and the rows of its attention as `probe` finds them."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.row import Axis
from softmax_jax.transforms.probe import probe

ROWS = 64
"""Rows to look at of each softmax of a set; of more, that many are taken at equal distances."""


class HeadRows(NamedTuple):
    """Rows of attention of one set: those of all its softmaxes, one after the other."""

    logits: Float[Array, "rows items"]
    where: Bool[Array, "rows items"]
    """True at the visible items."""
    weights: Float[Array, "rows items"]


Weigh = Callable[[Float[Array, "*shape"], Axis, Bool[Array, "*shape"] | None], Float[Array, "*shape"]]
"""From logits, the axis of their rows and their mask to weights."""
Look = Callable[[Any, HeadRows, Any], Any]
"""From scores, the rows of attention, and what tells the passes apart."""


def attended(scores: Callable[[], Any], weigh: Weigh) -> tuple[Any, HeadRows]:
    """Returns the scores with the softmaxes of attention weighed by `weigh`, and the rows of these.

    Raises ValueError where `probe` does: for a model without a softmax, and for one that cannot be read.
    """
    seen = []

    def weighed(logits: Array, axis: Axis = -1, where: Any = None) -> Array:
        seen[:] = logits, jnp.ones(logits.shape, bool) if where is None else where, axis
        return weigh(logits, axis, where)

    def rows(weights: Array) -> HeadRows:  # called next, with the weights of the logits that were seen last
        logits, where, axis = seen
        return HeadRows(*(_flat(array, axis) for array in (logits, where, weights)))

    output, sites = probe(scores, Normalizer(weighed), also=rows, empty="zeros")()
    of_sites = [jax.tree.map(lambda leaf: leaf.reshape(-1, leaf.shape[-1]), site.also) for site in sites]
    items = max(site.logits.shape[-1] for site in of_sites)
    filled = [
        jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 0), (0, items - leaf.shape[-1]))), site) for site in of_sites
    ]
    return output, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *filled)


def _flat(array: Array, axis: Axis) -> Shaped[Array, "rows items"]:
    """Returns at most `ROWS` rows of an array, the last among them."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    moved = jnp.moveaxis(array, axes, range(-len(axes), 0))
    flat = moved.reshape(-1, math.prod(moved.shape[-len(axes) :]))
    step = -(-len(flat) // ROWS)
    return flat[(len(flat) - 1) % step :: step]


def in_passes(alone: bool, weigher: Callable[[Any], Weigh], points: Any, scores: Callable[[], Any], look: Look) -> Any:
    """Returns what `look` makes of scores, rows and point for each of `points`, with a leading axis of these.

    `weigher` gives the way to weigh at a point. If a row is `alone`, whatever comes before its weights does not depend
    on them and is computed once for all points. Otherwise a pass follows the other: what a layer sees depends on the
    weights of those before it, and all at once would take their memory.
    """

    def one(point: Any) -> Any:
        return look(*attended(scores, weigher(point)), point)

    return jax.vmap(one)(points) if alone else jax.lax.map(one, points)


def under_each(alone: bool, weighers: Sequence[Weigh], scores: Callable[[], Any], look: Look) -> Any:
    """Returns what `look` makes of scores, rows and index under each way to weigh, with a leading axis of these."""

    def one_of_them(index: Array) -> Weigh:
        def weigh(logits: Array, axis: Axis, where: Any) -> Array:
            if alone:  # the same logits for all
                return jnp.stack([weigh(logits, axis, where) for weigh in weighers])[index]
            return jax.lax.switch(index, [lambda weigh=weigh: weigh(logits, axis, where) for weigh in weighers])

        return weigh

    return in_passes(alone, one_of_them, jnp.arange(len(weighers), dtype=jnp.int32), scores, look)
