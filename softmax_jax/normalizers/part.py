"""The part of a row that decides it: the largest entries of each place, when the row is cut into blocks.

A search for a threshold or for the k-th largest looks at the part alone, a quarter of the row or less. What is left
out is not larger than the least of the part at its place, which mostly says that it cannot matter: then no search
looks at the whole row. Where it does not, that search goes on from what the part gave.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers.surroundings import is_known

Found = TypeVar("Found", bound=Any)

BLOCKS = 16
"""Parts into which a row is cut, to be summed and to find its largest entries."""

KEPT = 4
"""Entries kept of each place. Of rows of 4,096 normal logits about 1 in 100,000 has more of entmax15 in one place."""


class Part(NamedTuple):
    """Some entries of each row, and what is known of the others."""

    largest: Float[Array, "*rows kept m"]
    """The largest of each place. What is left out is not larger than the least of them there."""
    others: int = 0
    mean: Float[Array, "*rows 1"] | None = None
    """Of the others, or a little less; -inf if one of them is."""

    def bound(self) -> Float[Array, "*rows 1"]:
        """No entry that is left out is larger."""
        return jnp.max(jnp.min(self.largest, -2), -1, keepdims=True)

    def maximum(self) -> Float[Array, "*rows 1"]:
        """The largest entry of each row."""
        return jnp.max(self.largest, (-2, -1), initial=-jnp.inf)[..., None]


def cut(x: Float[Array, "*rows n"]) -> Float[Array, "*rows blocks m"]:
    """Rows in `BLOCKS` blocks, the last one filled up with -inf; in one block if they are short, or may be."""
    *rows, n = x.shape
    if not is_known(n) or n < 2 * BLOCKS:
        return x[..., None, :]
    padding = [(0, 0)] * len(rows) + [(0, -n % BLOCKS)]
    return jnp.pad(x, padding, constant_values=-jnp.inf).reshape(*rows, BLOCKS, -(-n // BLOCKS))


def largest_of_places(blocks: Float[Array, "*rows blocks m"]) -> Part:
    """The `KEPT` largest entries of each place; NaN counts as +inf.

    Each block is inserted into those before, place by place: elementwise operations, which XLA fuses to one loop over
    the row. They are written as choices, because a maximum that keeps NaN takes three times as long on CPUs.
    """
    kept: list[Array] = []
    for block in range(blocks.shape[-2]):
        entry = jax.lax.index_in_dim(blocks, block, -2, keepdims=False)
        entry = jax.lax.select(entry == entry, entry, jnp.full_like(entry, jnp.inf))
        for rank, other in enumerate(kept):
            above = entry > other
            kept[rank] = jax.lax.select(above, entry, other)
            entry = jax.lax.select(above, other, entry)
        if len(kept) < KEPT:
            kept.append(entry)
    # Kept apart, or XLA computes all of it anew for whatever reads it.
    return Part(jax.lax.optimization_barrier(jnp.stack(kept, -2)))


def largest_and_mean(x: Float[Array, "*rows n"], blocks: Float[Array, "*rows blocks m"]) -> Part:
    """The largest entry of each place, and the mean of the others, of rows with no entry above 0 and their blocks.

    A convex function of the entries sums to no more over the mean, as often as there are others. In a row with NaN
    the mean is NaN.
    """
    largest = jnp.max(blocks, -2, keepdims=True)
    others = x.shape[-1] - largest.shape[-1]
    total, of_largest = jnp.sum(x, -1, keepdims=True), jnp.sum(largest, -1)
    less = 1 + 64 * jnp.finfo(x.dtype).eps  # beyond what rounding makes of the sums
    return Part(largest, others, jnp.where(total == -jnp.inf, total, less * (total - of_largest) / others))


def unless_all(sure: Bool[Array, "*rows 1"], search: Callable[[Found], Found], found: Found) -> Found:
    """What was found, if that is sure of all rows, or else what the search makes of it.

    A loop that runs once or not at all, because of a `cond` both branches run under `vmap`.
    """

    def once(state: tuple[Array, Found]) -> tuple[Array, Found]:
        return jnp.ones_like(sure), search(state[1])

    return jax.lax.while_loop(lambda state: ~jnp.all(state[0]), once, (sure, found))[1]
