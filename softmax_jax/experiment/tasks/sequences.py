"""The common part of the tasks on sequences: a small transformer whose attention takes any normalizer."""

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple, get_type_hints

import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from softmax_jax.experiment.tasks.task import Task, option
from softmax_jax.experiment.tasks.transformer import Transformer
from softmax_jax.normalizers import checks
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import method_of
from softmax_jax.refusal import Refusal

LONGEST = 2**14


class Sequences(NamedTuple):
    """Sequences with the class to name for each, or for each of the queries at their end."""

    inputs: Float[Array, "sequences length features"]
    mask: Bool[Array, "sequences length"] | None
    """True at the visible positions; None if all are."""
    answer: Int[Array, "sequences *queries"]


@dataclasses.dataclass(frozen=True)
class SequenceTask(Task):
    """The transformer and its sizes; a task derived from it says what the sequences are and where answers are read."""

    test_multiples: ClassVar[tuple[int, ...]] = (1,)
    """Multiples of the length of training to test at."""

    length: int = 64
    """Positions in a sequence, or the most items in training."""
    classes: int = 10
    """Classes to choose from."""
    batch: int = 32
    """Sequences per batch."""
    hidden: int = 64
    """Width of the transformer."""
    heads: int = 4
    """Attention heads in each of its layers."""
    layers: int = 2
    """Blocks of attention and perceptron."""
    dropout: float = 0.05
    """Share of the numbers that training drops after each part of a block."""
    causal: bool = False
    """Let no position see a later one."""

    def __post_init__(self) -> None:
        types = get_type_hints(type(self))
        for name in (field.name for field in dataclasses.fields(self)):
            if types[name] is int:
                (least, most), default = self.bounds().get(name, (1, LONGEST)), getattr(type(self), name)
                checks.whole(option(name), getattr(self, name), least, default, most)
        if self.hidden % self.heads:
            nearest = self.heads * max(round(self.hidden / self.heads), 1)
            rule = f"it must be a multiple of --heads, {self.heads}, such as {nearest}"
            raise Refusal(f"--hidden is {self.hidden}: {rule}")
        checks.require("--dropout", self.dropout, "of at least 0 and below 1, such as 0.05", lambda rate: 0 <= rate < 1)

    def bounds(self) -> dict[str, tuple[int, int]]:
        """Returns the least and the most of the sizes that may not be from 1 to 2¹⁴."""
        return {"classes": (2, 2**14), "sequences": (1, 2**24)}

    @property
    @abc.abstractmethod
    def inputs(self) -> int:
        """Features at each position of a sequence."""

    @abc.abstractmethod
    def answers(self, scores: Float[Array, "sets length classes"]) -> Float[Array, "sets *queries classes"]:
        """Returns the scores of the answers from those at every position."""

    @property
    def longest(self) -> int:
        """The most items of a set in training."""
        return self.length

    @property
    def test_lengths(self) -> tuple[int, ...]:
        """The length of training, and its multiples."""
        return tuple(sorted({min(multiple * self.length, LONGEST) for multiple in self.test_multiples}))

    def build(self, normalizer: str, rngs: nnx.Rngs) -> Transformer:
        """Returns the transformer, with the numbers that the normalizer learns among its parameters."""
        sizes = {"hidden": self.hidden, "heads": self.heads, "layers": self.layers}
        options: dict[str, Any] = {"dropout": self.dropout, "causal": self.causal, "rngs": rngs}
        return Transformer(self.inputs, self.classes, *attention_of(normalizer), **sizes, **options)

    def scores(self, model: Transformer, batch: Any, rngs: nnx.Rngs | None) -> Float[Array, "sets *queries classes"]:
        """Returns class scores of the answers under the model's own normalizer, with dropout if there are `rngs`."""
        return self.answers(model(batch.inputs, batch.mask, rngs))

    def learned(self, parameters: Any, normalizer: str) -> dict[str, Float[np.ndarray, "seeds layers heads"]]:
        """Returns the trained numbers of the normalizer, from parameters with a leading seed axis."""
        blocks = [parameters["blocks"][index].get("attention", {}) for index in range(self.layers)]
        return {
            name: np.stack([np.asarray(block[name])[..., 0, 0] for block in blocks], 1)
            for name in attention_of(normalizer).learn
        }


class Attention(NamedTuple):
    """How a model attends: what `NnxAttention` is given."""

    normalizer: Normalizer
    learn: tuple[str, ...]
    """The numbers that train with the model, one per head and layer."""
    of_query: tuple[str, ...]
    """The numbers among them that are linear in the query."""


def attention_of(normalizer: str) -> Attention:
    """Returns how a model attends under the normalizer of this name: all numbers of its method train, as published."""
    method, numbers = method_of(normalizer)
    return Attention(method.build(**numbers), method.learned, method.of_query)
