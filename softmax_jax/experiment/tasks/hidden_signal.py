"""The hidden signal: which of a few short patterns hides somewhere in a noisy sequence?

Every position holds noise from N(0, 0.3²) in each of its features. One pattern of a few steps is added at a random
place: its step t adds 2·(1 + 0.3·class) to feature (class·⌊features / classes⌋ + 3t) mod features. The answer is its
class. Each sequence is a pure function of key, purpose and index, so no data need be kept and no test can share a
sequence with the training.

Source: the softmax / SSMax / Softpick notebook, whose train and test sets came from one key.
"""

import dataclasses
import enum
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from softmax_jax.experiment.tasks.sequences import LONGEST, Sequences, SequenceTask
from softmax_jax.experiment.tasks.task import sequence_key
from softmax_jax.refusal import Refusal

NOISE = 0.3


class Purpose(enum.IntEnum):
    """The numbers that are folded into the key of a seed."""

    TRAINING = 0
    ORDER = 3


@dataclasses.dataclass(frozen=True)
class Signal(SequenceTask):
    """The task with its sizes; raises Refusal for sizes that make no task.

    >>> Signal().training_batch(jnp.int32(0), jnp.int32(0)).inputs.shape
    (32, 32, 64)
    """

    name: ClassVar[str] = "signal"

    length: int = 32
    """Positions in a sequence."""
    classes: int = 4
    """Patterns to tell apart."""
    signal_length: int = 3
    """Steps of the pattern."""
    features: int = 64
    """Numbers at each position."""
    sequences: int = 800
    """Training sequences, each seen once an epoch."""
    pooling: Literal["mean", "last"] = "mean"
    """What the answer is read from: the mean over the positions, or the last one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.signal_length > self.length:
            rule = f"it must be at least 1 and at most the length, {self.length}"
            raise Refusal(f"--signal-length is {self.signal_length}: {rule}")
        if self.classes > self.features:
            raise Refusal(f"--classes is {self.classes}: there must be from 2 to {self.features}, the features")

    def bounds(self) -> dict[str, tuple[int, int]]:
        """Returns the least and the most of the sizes that may not be from 1 to 2¹⁴."""
        return super().bounds() | {"length": (2, LONGEST)}

    @property
    def test_bounds(self) -> tuple[int, int]:
        """The least and the greatest length of a test sequence: the pattern must have room."""
        least, most = super().test_bounds
        return max(least, self.signal_length), most

    @property
    def inputs(self) -> int:
        """Features at each position of a sequence."""
        return self.features

    @property
    def steps_per_epoch(self) -> int:
        """Training batches in an epoch; sequences beyond the last whole batch wait for another order."""
        return max(self.sequences // self.batch, 1)

    def training_batch(self, seed: Int[Array, ""], step: Int[Array, ""]) -> Sequences:
        """Returns the batch of a step; every epoch takes the training sequences in a new order."""
        key = sequence_key(seed)
        epoch, within = step // self.steps_per_epoch, step % self.steps_per_epoch
        order_key = jax.random.fold_in(jax.random.fold_in(key, Purpose.ORDER), epoch)
        order = jax.random.permutation(order_key, jnp.arange(self.sequences, dtype=jnp.int32))
        indices = jax.lax.dynamic_slice_in_dim(order, within * self.batch, min(self.batch, self.sequences))
        training_key = jax.random.fold_in(key, Purpose.TRAINING)
        return self._draw(jax.vmap(lambda index: jax.random.fold_in(training_key, index))(indices), self.length)

    def test_batch(self, key: Key[Array, ""], length: int, sets: int) -> Sequences:
        """Returns sequences of a length. Raises Refusal where the pattern has no room."""
        self.check_length("the lengths", length)
        return self._draw(jax.random.split(key, sets), length)

    def answers(self, scores: Float[Array, "sets length classes"]) -> Float[Array, "sets classes"]:
        """Returns the scores of each sequence."""
        return scores.mean(1) if self.pooling == "mean" else scores[:, -1]

    def _draw(self, keys: Key[Array, " sets"], length: int) -> Sequences:
        inputs, answer = jax.vmap(lambda key: self._sequence(key, length))(keys)
        return Sequences(inputs, None, answer)

    def _sequence(self, key: Key[Array, ""], length: int) -> tuple[Float[Array, "length features"], Int[Array, ""]]:
        noise_key, class_key, place_key = jax.random.split(key, 3)
        noise = NOISE * jax.random.normal(noise_key, (length, self.features), jnp.float32)
        label = jax.random.randint(class_key, (), 0, self.classes, jnp.int32)
        start = jax.random.randint(place_key, (), 0, length - self.signal_length + 1, jnp.int32)
        steps = jnp.arange(self.signal_length, dtype=jnp.int32)
        feature = (label * (self.features // self.classes) + 3 * steps) % self.features
        return noise.at[start + steps, feature].add(2 * (1 + 0.3 * label.astype(noise.dtype))), label
