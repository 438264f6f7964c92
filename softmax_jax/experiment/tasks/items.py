"""What tasks on a sequence of items share: how many items it has, and the queries at its end."""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from softmax_jax.experiment.tasks.sequences import LONGEST, SequenceTask
from softmax_jax.experiment.tasks.task import sequence_key

TRAINING = 0
"""What the key of a seed is folded with before its training sequences are drawn."""


@dataclasses.dataclass(frozen=True)
class ItemTask(SequenceTask):
    """Sequences of items, then queries; in training they have from `least_items` to `length` items.

    Raises as `SequenceTask`.
    """

    test_multiples: ClassVar[tuple[int, ...]] = (1, 4, 16, 64)

    queries: int = 16
    """Queries in a sequence."""

    @property
    def least_items(self) -> int:
        """The fewest items of a sequence."""
        return 2

    def bounds(self) -> dict[str, tuple[int, int]]:
        """Returns the least and the most of the sizes that may not be from 1 to 2¹⁴."""
        return super().bounds() | {"length": self.test_bounds}

    @property
    def test_bounds(self) -> tuple[int, int]:
        """The fewest items that make a sequence, and the most that have positions."""
        return self.least_items, LONGEST

    @abc.abstractmethod
    def sequence(self, key: Key[Array, ""], length: Int[Array, ""], room: int) -> Any:
        """Draws one sequence, without a batch axis; items from `length` on are masked."""

    def training_batch(self, seed: Int[Array, ""], step: Int[Array, ""]) -> Any:
        """Returns the batch of a step: new sequences each time, of any length up to the longest."""
        key = jax.random.fold_in(jax.random.fold_in(sequence_key(seed), TRAINING), step)
        key, length_key = jax.random.split(key)
        lengths = jax.random.randint(length_key, (self.batch,), self.least_items, self.length + 1, jnp.int32)
        return self._draw(jax.random.split(key, self.batch), lengths, self.length)

    def test_batch(self, key: Key[Array, ""], length: int, sets: int) -> Any:
        """Returns sequences of `length` items. Raises Refusal for more items than positions."""
        self.check_length("the lengths", length)
        return self._draw(jax.random.split(key, sets), jnp.full(sets, length, jnp.int32), length)

    def _draw(self, keys: Key[Array, " sets"], lengths: Int[Array, " sets"], room: int) -> Any:
        """Draws a sequence for each key, of its length among room for more."""
        return jax.vmap(lambda key, length: self.sequence(key, length, room))(keys, lengths)

    def answers(self, scores: Float[Array, "sets length classes"]) -> Float[Array, "sets queries classes"]:
        """Returns the scores at the queries."""
        return scores[:, -self.queries :]


def then_queries(
    items: Float[Array, "items features"], visible: Bool[Array, " items"], queries: Float[Array, "queries features"]
) -> tuple[Float[Array, "length features"], Bool[Array, " length"]]:
    """Returns items, 0 where they are masked, with the queries after them, and the mask of both."""
    mask = jnp.concatenate([visible, jnp.ones(len(queries), bool)])
    return jnp.concatenate([jnp.where(visible[:, None], items, 0), queries]), mask
