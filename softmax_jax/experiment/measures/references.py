"""References beside the normalizers: weights that know which item is the true one, which has the largest priority ρ.

Each is a function of ρ, -inf at places without an item, and then of what a normalizer is called with.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from softmax_jax.normalizers import maps
from softmax_jax.normalizers.arithmetic import place_of_largest

TRUE_ITEM = "the true item alone"
"""The name of a reference: all weight on the item of the largest priority."""
TRUE_KEY = "softmax under a true key"
"""The name of a reference: softmax after the item of the largest priority took the largest logit of its row."""


def true_item_alone(rho: Float[Array, "sets items"], logits: Array, axis: int = -1, where: Any = None) -> Array:
    """Gives all weight to the item with the largest ρ."""
    return jax.nn.one_hot(place_of_largest(rho), rho.shape[-1], dtype=logits.dtype).reshape(logits.shape)


def under_true_key(rho: Float[Array, "sets items"], logits: Array, axis: int = -1, where: Any = None) -> Array:
    """Returns the softmax of the same logits in another order: the largest belongs to the item with the largest ρ."""
    rows, visible, items = logits.reshape(rho.shape), rho > -jnp.inf, jnp.arange(rho.shape[-1])[None]
    first, true = (place_of_largest(row)[:, None] for row in (jnp.where(visible, rows, -jnp.inf), rho))
    first_logit, true_logit = (jnp.take_along_axis(rows, place, -1) for place in (first, true))
    rows = jnp.where(items == true, first_logit, jnp.where(items == first, true_logit, rows))
    return maps.softmax(rows, -1, visible).reshape(logits.shape)


REFERENCES = {TRUE_ITEM: true_item_alone, TRUE_KEY: under_true_key}
