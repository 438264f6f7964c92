"""The hidden signal: which of a few short patterns hides somewhere in a noisy sequence?

Every position holds noise from N(0, 0.3²) in each of its features. One pattern of a few steps is added at a random
place: its step t adds 2·(1 + 0.3·class) to feature (class·⌊features / classes⌋ + 3t) mod features. The answer is its
class. Each sequence is a pure function of key, split and index, so no data need be kept and no split can share a
sequence with another.

Source: the softmax / SSMax / Softpick notebook, whose train and test sets came from one key.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from softmax_jax.normalizers import checks
from softmax_jax.tasks.sequences import Batch

NOISE = 0.3
LONGEST = 2**14
SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Signal:
    """The task with its sizes; raises ValueError for sizes that make no task."""

    length: int = 32
    classes: int = 4
    signal_length: int = 3
    features: int = 64
    sequences: int = 800
    """Training sequences, each seen once an epoch."""
    batch: int = 32
    pooling: Literal["mean", "last"] = "mean"
    """What the answer is read from: the mean over the positions, or the last one alone."""
    causal: bool = False

    def __post_init__(self) -> None:
        for name, most in {"length": LONGEST, "features": 2**14, "sequences": 2**24, "batch": 2**16}.items():
            checks.whole(f"--{name}", getattr(self, name), 1, getattr(Signal, name), most)
        checks.whole("--signal-length", self.signal_length, 1, Signal.signal_length)
        if self.signal_length > self.length:
            raise ValueError(
                f"--signal-length is {self.signal_length}: it must be at least 1 and at most the length, {self.length}"
            )
        checks.whole("--classes", self.classes, 2, Signal.classes)
        if self.classes > self.features:
            raise ValueError(f"--classes is {self.classes}: there must be from 2 to {self.features}, the features")
        checks.one_of("--pooling", self.pooling, ("mean", "last"))
        checks.yes_or_no("--causal", self.causal)

    @property
    def steps_per_epoch(self) -> int:
        """Training batches in an epoch; sequences beyond the last whole batch wait for another order."""
        return max(self.sequences // self.batch, 1)

    def training_batch(self, key: Key[Array, ""], step: Int[Array, ""]) -> Batch:
        """The batch of a step; every epoch takes the training sequences in a new order."""
        epoch, within = step // self.steps_per_epoch, step % self.steps_per_epoch
        order = jax.random.permutation(jax.random.fold_in(jax.random.fold_in(key, len(SPLITS)), epoch), self.sequences)
        taken = jax.lax.dynamic_slice_in_dim(order, within * self.batch, min(self.batch, self.sequences))
        return self.examples(key, "train", taken, self.length)

    def validation_batch(self, key: Key[Array, ""], sequences: int) -> Batch:
        """Sequences for choices made while training."""
        return self.examples(key, "validation", jnp.arange(sequences), self.length)

    def test_batch(self, key: Key[Array, ""], length: int, index: Int[Array, ""], sequences: int) -> Batch:
        """The batch of that index of test sequences of a length."""
        return self.examples(key, "test", index * sequences + jnp.arange(sequences), length)

    def examples(
        self,
        key: Key[Array, ""],
        split: Literal["train", "validation", "test"],
        indices: Int[Array, " sequences"],
        length: int,
    ) -> Batch:
        """The sequences of these indices of a split. Raises unless they are at least as long as the signal.

        >>> batch = Signal().examples(jax.random.key(0), "train", jnp.arange(5), length=16)
        >>> batch.inputs.shape, batch.answer.shape
        ((5, 16, 64), (5,))
        """
        checks.random_key(key)
        checks.one_of("split", split, SPLITS)
        checks.whole("length", length, self.signal_length, self.length)
        split_key = jax.random.fold_in(key, SPLITS.index(split))
        inputs, answer = jax.vmap(lambda index: self._example(jax.random.fold_in(split_key, index), length))(indices)
        return Batch(inputs, None, answer)

    def _example(self, key: Key[Array, ""], length: int) -> tuple[Float[Array, "length features"], Int[Array, ""]]:
        noise_key, class_key, place_key = jax.random.split(key, 3)
        noise = NOISE * jax.random.normal(noise_key, (length, self.features))
        label = jax.random.randint(class_key, (), 0, self.classes)
        start = jax.random.randint(place_key, (), 0, length - self.signal_length + 1)
        steps = jnp.arange(self.signal_length)
        feature = (label * (self.features // self.classes) + 3 * steps) % self.features
        return noise.at[start + steps, feature].add(2 * (1 + 0.3 * label.astype(noise.dtype))), label

    def read(self, scores: Float[Array, "sequences length classes"]) -> Float[Array, "sequences classes"]:
        """The scores of each sequence."""
        return scores.mean(1) if self.pooling == "mean" else scores[:, -1]
