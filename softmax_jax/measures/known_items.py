"""Items of max retrieval that rounding makes alike: a table holds what the encoder makes of each.

An item is ρ and its class, and the first product rounds ρ to bfloat16. A ρ drawn from 0 to 1 in steps of 2⁻²³ then is
one of 2,946 numbers, and the item one of 29,460, whereas an evaluation draws millions of a seed. What is looked up is
the same to the bit.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from softmax_jax.tasks import priorities, products
from softmax_jax.tasks.max_retrieval import CLASSES, MaxRetrieval, MaxRetrievalModel
from softmax_jax.tasks.task import Task

ROUNDED_TO = "bfloat16"
LEAST, ONE = (int(np.asarray(rho, jnp.bfloat16).view(np.uint16)) for rho in (2.0**-23, 1.0))
"""The least ρ above 0 that is drawn, and the largest, as the bits of a bfloat16: these count upwards with ρ."""
ENTRIES = (ONE - LEAST + 2) * CLASSES


def entry_of(items: Float[Array, "*items features"]) -> Int[Array, "*items"]:
    """The place in the table of each item. That of a masked one, whose features are 0, is 0.

    >>> entry_of(every_item()).tolist() == list(range(ENTRIES))
    True
    """
    bits = jax.lax.bitcast_convert_type(items[..., 0].astype(jnp.bfloat16), jnp.uint16).astype(jnp.int32)
    kappa = sum((k * items[..., 1 + k] for k in range(1, CLASSES)), jnp.zeros((), items.dtype))  # faster than argmax
    return jnp.maximum(bits - LEAST + 1, 0) * CLASSES + kappa.astype(jnp.int32)


def every_item() -> Float[Array, "entries features"]:
    """The items that differ after rounding, in the order of `entry_of`: ρ is 0, or from 2⁻²³ to 1."""
    bits = jnp.arange(LEAST, ONE + 1).astype(jnp.uint16)
    above = jax.lax.bitcast_convert_type(bits, jnp.bfloat16).astype(jnp.float32)
    rho, classes = jnp.concatenate([jnp.zeros(1, jnp.float32), above]), jnp.eye(CLASSES, dtype=jnp.float32)
    return jnp.concatenate([jnp.repeat(rho, CLASSES)[:, None], jnp.tile(classes, (len(rho), 1))], 1)


class KnownItems(MaxRetrievalModel):
    """The same model, which finds its hidden items in a table and computes no more of them.

    >>> model = MaxRetrievalModel(width=8, precisions=["bfloat16"] * 3, rngs=nnx.Rngs(0))
    >>> KnownItems(model).hidden(every_item()[None, :3]).shape
    (1, 3, 8)
    """

    def __init__(self, model: MaxRetrievalModel):
        for name, value in vars(model).items():
            if not name.startswith("_"):
                setattr(self, name, value)
        table = model.hidden(every_item()[None])[0]
        if model.over_items.args == (ROUNDED_TO,):
            # Both products that read hidden items round them first, so half the bytes say the same. As whole numbers,
            # since XLA would keep bfloat16 itself in float32.
            table = jax.lax.bitcast_convert_type(table.astype(ROUNDED_TO), jnp.uint16)
        self.table = nnx.Variable(table)

    def hidden(self, items: Float[Array, "sets items features"]) -> Float[Array, "sets items width"]:
        """What the encoder makes of each item, but for masked ones: of those, what it makes of the first entry."""
        found = self.table[...].at[entry_of(items)].get(mode="promise_in_bounds")
        if found.dtype == jnp.uint16:
            found = jax.lax.bitcast_convert_type(found, ROUNDED_TO)
        return found.astype(items.dtype)


def pays(task: Task, items: int) -> bool:
    """Whether to read so many items by a table: there are fewer entries, and the device does not round by itself."""
    rounded = type(task) is MaxRetrieval and task.matmul == ROUNDED_TO and task.priority == priorities.UNIFORM
    return rounded and jax.default_backend() not in products.HARDWARE and items > ENTRIES
