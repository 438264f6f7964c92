"""Set complement: which class does no item of a set have?

A sequence is items in a random order, then a query. An item shows its class; every class but one is there, and the one
that is absent answers the query. No item answers it: the query has to see all items, of which a sharp row sees a few.

Source: the set complement task of "Learning What's Missing", arXiv 2510.08341, where any number of classes is absent
and the answer is a distribution over them. Here one is, so that an answer is right or wrong.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from softmax_jax.experiment.tasks.items import ItemTask, then_queries
from softmax_jax.experiment.tasks.sequences import Sequences


@dataclasses.dataclass(frozen=True)
class SetComplement(ItemTask):
    """The task with its sizes; a sequence has an item of each class but one at least. Raises as `SequenceTask`.

    >>> SetComplement(length=12, classes=4).test_batch(jax.random.key(0), 12, 5).inputs.shape
    (5, 13, 5)
    """

    name: ClassVar[str] = "set_complement"

    length: int = 16
    """The most items in training."""
    hidden: int = 32
    """Width of the transformer."""
    layers: int = 1
    """Blocks of attention and perceptron."""
    queries: int = 1
    """Queries in a sequence: one, as any other would ask the same."""

    @property
    def inputs(self) -> int:
        """Features of the class, and of whether this is an item or a query."""
        return self.classes + 1

    @property
    def least_items(self) -> int:
        """The fewest items of a sequence: one of each class but one."""
        return max(self.classes - 1, 2)

    def sequence(self, key: Key[Array, ""], length: Int[Array, ""], room: int) -> Sequences:
        """Draws one sequence, without a batch axis; items from `length` on are masked."""
        absent_key, class_key, order_key = jax.random.split(key, 3)
        place = jnp.arange(room, dtype=jnp.int32)
        visible, present = place < length, self.classes - 1
        absent = jax.random.randint(absent_key, (), 0, self.classes, jnp.int32)
        others = jax.random.randint(class_key, (room,), 0, present, jnp.int32)
        others = jnp.where(place < present, place, others)  # one of each, and any for the rest
        order = jnp.argsort(jnp.where(visible, jax.random.uniform(order_key, (room,), jnp.float32), 2))
        kappa = jnp.where(others < absent, others, others + 1)[order]  # the classes but the absent one
        marks = jnp.full(self.queries, self.classes)  # the number behind the classes marks a query
        items, queries = (jax.nn.one_hot(k, self.inputs, dtype=jnp.float32) for k in (kappa, marks))
        return Sequences(*then_queries(items, visible, queries), jnp.full(self.queries, absent))

    def oracle(self, batch: Sequences) -> Float[Array, "sets queries classes"]:
        """Returns the scores of counting: less for a class the more items have it."""
        counts = batch.inputs[:, : -self.queries, : self.classes].sum(1, keepdims=True)
        return -jnp.repeat(counts, self.queries, 1)
