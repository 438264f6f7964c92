"""What the tasks of the shoot-out have in common."""

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Key


class Batch(NamedTuple):
    """Sequences with the class to name for each, or for each of the queries at their end."""

    inputs: Float[Array, "sequences length features"]
    mask: Bool[Array, "sequences length"] | None
    """True at the visible positions; None if all are."""
    answer: Int[Array, "sequences *queries"]


@runtime_checkable
class Task(Protocol):
    """Data of one task; every batch is a pure function of its arguments."""

    @property
    def features(self) -> int:
        """Numbers at each position of a sequence."""
        ...

    @property
    def classes(self) -> int:
        """Classes to choose from."""
        ...

    @property
    def causal(self) -> bool:
        """Whether a position sees no later one."""
        ...

    @property
    def length(self) -> int:
        """The longest sequence, or the most items, in training."""
        ...

    @property
    def steps_per_epoch(self) -> int:
        """Training batches in an epoch."""
        ...

    def training_batch(self, key: Key[Array, ""], step: Int[Array, ""]) -> Batch:
        """The batch of one training step of the model with this key."""
        ...

    def test_batch(self, key: Key[Array, ""], length: int, index: Int[Array, ""], sequences: int) -> Batch:
        """A batch of test sequences of a given length, which no training step of this key has seen."""
        ...

    def read(self, scores: Float[Array, "sequences length classes"]) -> Float[Array, "sequences *queries classes"]:
        """The scores of the answers from those at every position."""
        ...
