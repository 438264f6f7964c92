"""One test set of any task under other weights: its scores, and the rows of its attention as `probe` finds them."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers.masking import Axis
from softmax_jax.normalizers.normalizer import Normalizer
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


def _flat(array: Array, axis: Axis) -> Float[Array, "rows items"]:
    """Returns at most `ROWS` rows of an array, the last among them."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    moved = jnp.moveaxis(array, axes, range(-len(axes), 0))
    flat = moved.reshape(-1, math.prod(moved.shape[-len(axes) :]))
    step = -(-len(flat) // ROWS)
    return flat[step - 1 :: step]


def under_each(weighers: list[Weigh], scores: Callable[[], Any], look: Callable[[Any, HeadRows, Array], Any]) -> Any:
    """Returns what `look` makes of scores, rows and index under each way to weigh, with a leading axis of these.

    A set with one row is weighed in all ways at once, so whatever comes before the weights is computed once. A set
    with more takes a pass for each, one after the other: what a layer sees depends on the weights before it.
    """

    def pass_with(choose: Callable[..., Array]) -> Callable[[Array], Any]:
        def one(index: Array) -> Any:
            output, rows = attended(scores, lambda *row: choose(index, *row))
            return look(output, rows, index)

        return one

    def all_at_once(index: Array, logits: Array, axis: Axis, where: Any) -> Array:
        return jnp.stack([weigh(logits, axis, where) for weigh in weighers])[index]

    def one_of_them(index: Array, logits: Array, axis: Axis, where: Any) -> Array:
        return jax.lax.switch(index, [lambda weigh=weigh: weigh(logits, axis, where) for weigh in weighers])

    indices = jnp.arange(len(weighers), dtype=jnp.int32)
    _, shapes = jax.eval_shape(lambda: attended(scores, weighers[0]))
    if len(shapes.logits) == 1:
        return jax.vmap(pass_with(all_at_once))(indices)
    return jax.lax.map(pass_with(one_of_them), indices)
