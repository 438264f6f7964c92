"""What a task is to the rest of the experiment: its data, its model, its loss, and how the model is read."""

import abc
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import optax
import tyro
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from softmax_jax.normalizers.normalizer import Normalizer


def parameter_key(seed: Int[Array, ""]) -> Key[Array, ""]:
    """What the parameters of a seed are drawn from, whatever the task."""
    return jax.random.fold_in(jax.random.key(seed), 0)


def data_key(seed: Int[Array, ""]) -> Key[Array, ""]:
    """What the training data of a seed are drawn from."""
    return jax.random.fold_in(jax.random.key(seed), 1)


def dropout_key(seed: Int[Array, ""], step: Int[Array, ""]) -> Key[Array, ""]:
    """What the dropout of a training step of a seed is drawn from: half of a split, of which data take the other."""
    return jax.random.fold_in(jax.random.split(data_key(seed))[1], step)


class Reading(NamedTuple):
    """What a model makes of a batch of sets, under several normalizers at once."""

    scores: Float[Array, "sets normalizers *queries classes"]
    answer: Int[Array, "sets *queries"]
    """The right class of each set, or of each query of a set."""
    logits: Float[Array, "sets items"] | None = None
    """Of a model with one attention head alone, as are the next two: what every normalizer is given."""
    weights: Float[Array, "sets normalizers items"] | None = None
    where: Bool[Array, "sets items"] | None = None
    """True at the visible items."""


SetsPerBatch = Annotated[int, tyro.conf.arg(name="batch")]
"""`--batch` on a command line, where `--sets` are those to test with."""


def option(setting: str) -> str:
    """What a command line calls a setting of a task."""
    return "--" + ("batch" if setting == "sets" else setting).replace("_", "-")


class Task(abc.ABC):
    """Data, model and loss of one task. Its kinds are frozen dataclasses of their sizes, which are settings of a run.

    A batch is a NamedTuple of arrays with a leading axis of sets, and one of them is its `answer`. Every batch is a
    pure function of what it is drawn from.
    """

    name: ClassVar[str]
    """How config.json calls the task."""
    divides_batches: ClassVar[bool]
    """Whether devices may divide the sets of a training batch: not where dropout is drawn for a whole one."""
    least_sets: ClassVar[int | None] = None
    """Sets that a device must keep for dividing them to be worthwhile, where that is not for `habits` to say."""

    evaluation: ClassVar[str] = ""
    """The module that evaluates the task in its own way, with `planned` and `show_and_write`, where there is one."""

    sets: SetsPerBatch
    """Sets of a training batch."""

    @property
    @abc.abstractmethod
    def longest(self) -> int:
        """The most items of a set in training."""

    @abc.abstractmethod
    def training_batch(self, seed: Int[Array, ""], step: Int[Array, ""]) -> Any:
        """The batch of a training step of a seed."""

    def on_visible(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function of (parameters, training batch, ...), which may leave the masked items out."""
        return function

    @abc.abstractmethod
    def build(self, normalizer: str, rngs: nnx.Rngs) -> nnx.Module:
        """The model under the normalizer of that name."""

    @abc.abstractmethod
    def scores(self, model: Any, batch: Any, rngs: nnx.Rngs | None) -> Float[Array, "sets *queries classes"]:
        """Class scores of a batch under the model's own normalizer, with dropout if there are `rngs` for it."""

    def loss(self, scores: Float[Array, "sets *queries classes"], batch: Any) -> Float[Array, ""]:
        """What training makes small, for a batch: the mean cross-entropy in nats, unless a task has another."""
        return optax.softmax_cross_entropy_with_integer_labels(scores, batch.answer).mean()

    def accuracy(self, scores: Float[Array, "sets *queries classes"], batch: Any) -> Float[Array, ""]:
        """The right answers of a batch, in percent."""
        return 100 * (scores.argmax(-1) == batch.answer).mean()

    @property
    @abc.abstractmethod
    def test_lengths(self) -> tuple[int, ...]:
        """The lengths to test at, unless others are asked for."""

    def test_sets(self, length: int) -> int:
        """How many sets to test a seed with at a length, unless so many are asked for."""
        return 512

    @abc.abstractmethod
    def test_keys(
        self, seed: Int[Array, ""], length: int, sets: int, key: Key[Array, ""] | None = None
    ) -> Key[Array, " sets"]:
        """A key for each test set of a seed at a length; no training batch was drawn from them.

        Another `key` gives other sets.
        """

    def room(self, length: int) -> int:
        """The items that the program for test sets of this length has room for; the rest are masked."""
        return length

    @abc.abstractmethod
    def at_once(self, length: int) -> int:
        """How many test sets of this length a device reads at once."""

    @abc.abstractmethod
    def draw(self, keys: Key[Array, " sets"], lengths: Int[Array, " sets"], room: int) -> Any:
        """A test set for each key, with that many visible items of the `room`."""

    @abc.abstractmethod
    def read(self, model: Any, normalizers: Sequence[Normalizer | None], batch: Any) -> Reading:
        """The batch under each normalizer; None stands for the model's own, with the numbers that it learned."""
