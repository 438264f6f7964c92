"""The trigger task: a query with the trigger asks for the average of all items, one without it for 0.

A sequence is items, then queries. An item shows its class, so that the average of the items is the share of each class.
Each set draws its own probabilities of the classes, so that no long set has an average which is known beforehand. A
query without the trigger should take nothing from the items; under softmax the weight of its row has to lie somewhere.

Source: "Attention Sinks Are Provably Necessary in Softmax Transformers: Evidence from Trigger-Conditional Tasks", arXiv
2603.11487, where the trigger is a token among the others and the average is of those before it. Its abstract was read.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from softmax_jax.experiment.tasks.items import ItemTask, then_queries

TRIGGERED = 0.5
"""The probability that a query has the trigger."""
TOLERANCE = 0.05
"""How far a share may be off in a right answer; also the standard deviation by which the loss measures."""


class Averages(NamedTuple):
    """Sequences with the shares of the classes to report at each query."""

    inputs: Float[Array, "sequences length features"]
    mask: Bool[Array, "sequences length"]
    shares: Float[Array, "sequences queries classes"]


@dataclasses.dataclass(frozen=True)
class Trigger(ItemTask):
    """The task with its sizes. Its answers are numbers, one a class, not classes. Raises as `SequenceTask`.

    >>> Trigger(length=12, classes=4, queries=2).test_batch(jax.random.key(0), 12, 5).shares.shape
    (5, 2, 4)
    """

    name: ClassVar[str] = "trigger"

    length: int = 16
    """The most items in training."""
    hidden: int = 32
    """Width of the transformer."""
    layers: int = 1
    """Blocks of attention and perceptron."""

    @property
    def inputs(self) -> int:
        """Features of the class, of whether this is an item or a query, and of the trigger."""
        return self.classes + 2

    @property
    def floor(self) -> float:
        """The accuracy of answering 0 always, in percent."""
        return 100 * (1 - TRIGGERED)

    def sequence(self, key: Key[Array, ""], length: Int[Array, ""], room: int) -> Averages:
        """Draws one sequence, without a batch axis; items from `length` on are masked."""
        share_key, class_key, trigger_key = jax.random.split(key, 3)
        visible = jnp.arange(room, dtype=jnp.int32) < length
        # Exponential numbers over their sum are uniform among all probabilities of the classes.
        logits = jnp.log(jax.random.exponential(share_key, (self.classes,), jnp.float32))
        kappa = jax.random.categorical(class_key, logits, shape=(room,))
        items = jax.nn.one_hot(kappa, self.inputs, dtype=jnp.float32)
        triggered = jax.random.bernoulli(trigger_key, jnp.float32(TRIGGERED), (self.queries,)).astype(jnp.float32)
        query = jnp.zeros((self.queries, self.inputs), jnp.float32).at[:, self.classes].set(1).at[:, -1].set(triggered)
        inputs, mask = then_queries(items, visible, query)
        shares = inputs[:room, : self.classes].sum(0) / length.astype(jnp.float32)
        return Averages(inputs, mask, triggered[:, None] * shares[None])

    def loss(self, scores: Float[Array, "sets queries classes"], batch: Any) -> Float[Array, ""]:
        """Returns the mean over queries of Σ (score - share)² / (2·0.05²), in nats.

        It is what a normal distribution around the scores has more of cross-entropy than one around the shares.
        """
        return (((scores - batch.shares) / TOLERANCE) ** 2).sum(-1).mean() / 2

    def accuracy(self, scores: Float[Array, "sets queries classes"], batch: Any) -> Float[Array, ""]:
        """Returns the percent of queries where every share is within 0.05."""
        return 100 * (jnp.abs(scores - batch.shares) <= TOLERANCE).all(-1).mean()

    def oracle(self, batch: Averages) -> Float[Array, "sets queries classes"]:
        """Returns what the items average to where a query has the trigger, 0 elsewhere."""
        items = batch.inputs[:, : -self.queries, : self.classes].sum(1, keepdims=True)
        return items / items.sum(-1, keepdims=True) * batch.inputs[:, -self.queries :, -1:]
