"""Sets of max retrieval too long to encode as a whole: read block by block, with the same numbers."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from softmax_jax.measures.sets import FreshSets
from softmax_jax.tasks import priorities
from softmax_jax.tasks.max_retrieval import BLOCK, MaxRetrievalModel, features, set_block, set_query
from softmax_jax.tasks.task import Reading

LONGEST_WHOLE = 2**14
"""Longer sets are never encoded as a whole."""


def read_by_blocks(
    model: MaxRetrievalModel,
    normalizers_of: Callable[[Float[Array, "sets items"]], Sequence[Any]],
    one: FreshSets,
    room: int,
    priority: str = priorities.UNIFORM,
) -> tuple[Reading, Float[Array, "sets items"]]:
    """The reading of one set and its ρ, -inf where masked; a block of the set at most is encoded at once.

    All logits are kept, at four bytes an item, so that every normalizer sees its whole row. A second pass sums the
    hidden items under the weights, and encodes again only those that some normalizer gives a weight that float32
    can tell from 0 beside the others. `normalizers_of` gives the normalizers from the ρ.
    """
    (key,), (length,) = one
    query = set_query(key)

    def encode(rho: Array, kappa: Array, mask: Array) -> Any:
        return model.encode(features(rho[None], kappa[None], mask[None], priority), query[None])

    def draw(_: None, index: Array) -> tuple[None, tuple[Array, ...]]:
        rho, kappa, inside = set_block(key, index, room, priority)
        mask = inside & (index * BLOCK + jnp.arange(rho.size, dtype=jnp.int32) < length)
        return None, (rho, kappa.astype(jnp.int8), mask, encode(rho, kappa, mask).logits[0])

    _, drawn = jax.lax.scan(draw, None, jnp.arange(-(-room // BLOCK), dtype=jnp.int32))
    rho, kappa, mask, logits = (leaf.reshape(-1) for leaf in drawn)
    visible_rho = jnp.where(mask, priorities.QUANTILES[priority](rho), -jnp.inf)
    weights = jnp.stack([normalizer(logits, where=mask) for normalizer in normalizers_of(visible_rho[None])])
    sizes = jnp.abs(weights)
    least = sizes.sum(-1, keepdims=True) * (jnp.finfo(sizes.dtype).eps / room)
    places = jnp.nonzero((sizes > least).any(0), size=rho.size, fill_value=rho.size)[0]
    size = min(room, BLOCK)

    def add_block(state: tuple[Array, Array]) -> tuple[Array, Array]:
        start, pooled = state
        chosen = jax.lax.dynamic_slice_in_dim(places, start, size)
        items = [leaf.at[chosen].get(mode="fill", fill_value=0) for leaf in (rho, kappa.astype(jnp.int32), mask)]
        hidden = encode(*items).hidden
        of_chosen = weights.at[:, chosen].get(mode="fill", fill_value=0)
        return start + size, pooled + model.pool(of_chosen[None], hidden)[0]

    def unfinished(state: tuple[Array, Array]) -> Array:
        start, _ = state
        return (start < rho.size) & (places[start] < rho.size)

    start = jnp.int32(0), jnp.zeros((len(weights), model.item_out.out_features), jnp.float32)
    _, pooled = jax.lax.while_loop(unfinished, add_block, start)
    scores = model.read_pooled(pooled, weights.sum(-1))
    answer = kappa[visible_rho.argmax()].astype(jnp.int32)
    return Reading(scores[None], answer[None], logits[None], weights[None], mask[None]), visible_rho[None]
