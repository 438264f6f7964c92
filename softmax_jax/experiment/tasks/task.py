"""`Task`: the data, the model and the loss of one task, as training and evaluation see them."""

import abc
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from softmax_jax.normalizers import checks
from softmax_jax.refusal import Refusal


def parameter_key(seed: Int[Array, ""]) -> Key[Array, ""]:
    """Returns the key of the initial parameters of a seed, the same for every task."""
    return jax.random.fold_in(jax.random.key(seed), 0)


def data_key(seed: Int[Array, ""]) -> Key[Array, ""]:
    """Returns the key of the training data of a seed."""
    return jax.random.fold_in(jax.random.key(seed), 1)


def sequence_key(seed: Int[Array, ""]) -> Key[Array, ""]:
    """Returns the key of the training sequences of a seed: half of a split, whose other half is for dropout."""
    return jax.random.split(data_key(seed))[0]


def dropout_key(seed: Int[Array, ""], step: Int[Array, ""]) -> Key[Array, ""]:
    """Returns the key of the dropout in a training step of a seed."""
    return jax.random.fold_in(jax.random.split(data_key(seed))[1], step)


def option(setting: str) -> str:
    """Returns what a command line calls a setting of a task."""
    return "--" + setting.replace("_", "-")


Shapes = tuple[tuple[int, ...], ...]
"""The shapes of the arrays of one set."""


class Task(abc.ABC):
    """Data, model and loss of one task. A task is a frozen dataclass whose fields are settings of a run.

    Five members make a task: `name`, `build`, `training_batch`, `test_batch` and `scores`. A batch is any pytree of
    arrays with a leading axis of sets; where it has an attribute `answer` with the right classes, the default `loss`
    and `accuracy` compare the scores with it. Batches are pure functions of their arguments. All other members have a
    default: what to test, what an item is worth, and how to compute faster.
    """

    name: ClassVar[str]
    """How config.json calls the task."""
    batch: int
    """Sets of a training batch."""

    @abc.abstractmethod
    def build(self, normalizer: str, rngs: nnx.Rngs) -> nnx.Module:
        """Returns the model under the normalizer of that name."""

    @abc.abstractmethod
    def training_batch(self, seed: Int[Array, ""], step: Int[Array, ""]) -> Any:
        """Returns the batch of a training step of a seed."""

    @abc.abstractmethod
    def test_batch(self, key: Key[Array, ""], length: int, sets: int) -> Any:
        """Draws test sets of a length. An evaluation asks for one set at a time, each from a key of its own."""

    @abc.abstractmethod
    def scores(self, model: Any, batch: Any, rngs: nnx.Rngs | None) -> Float[Array, "sets *queries classes"]:
        """Returns the class scores of a batch under the model's own normalizer, with dropout if there are `rngs`."""

    def loss(self, scores: Float[Array, "sets *queries classes"], batch: Any) -> Float[Array, ""]:
        """Returns what training minimises: the mean cross-entropy in nats, unless a task has another."""
        return optax.softmax_cross_entropy_with_integer_labels(scores, batch.answer).mean()

    def accuracy(self, scores: Float[Array, "sets *queries classes"], batch: Any) -> Float[Array, ""]:
        """Returns the share of right answers in percent."""
        return 100 * (scores.argmax(-1) == batch.answer).mean()

    @property
    def floor(self) -> float:
        """The accuracy of the best answer that reads nothing, in percent: that of guessing one of the `classes`."""
        classes = getattr(self, "classes", None)
        return 100 / classes if classes else 0.0

    @property
    def longest(self) -> int:
        """The most items of a set in training, beyond which a test is of longer ones.

        By default the length at which a test set has the shape of one of the training batch. Raises Refusal where no
        length has: such a task must say it.
        """
        return _length_of_training(self)

    @property
    def test_lengths(self) -> tuple[int, ...]:
        """The lengths to test at, unless others are asked for."""
        return (16, 32, 64, 128, 256, 512, 1024)

    def test_sets(self, length: int) -> int:
        """Returns the number of sets to test a seed with, unless another is asked for: fewer of long ones."""
        return min(512, max(8, 2**27 // length**2))

    def priorities(self, batch: Any) -> Float[Array, "sets items"] | None:
        """Returns a number for each item, the largest for the one that answers; None for a task without such."""
        return None

    @property
    def least_sets(self) -> int | None:
        """The fewest sets of a training batch that a device takes where devices divide it.

        None keeps batches whole, as a task must whose dropout is drawn for a whole one.
        """
        return None

    def on_visible(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the same function of (parameters, training batch, ...), which may leave masked items out."""
        return function

    def at_once(self, length: int) -> int:
        """Returns how many test sets of a length to read at once, by their memory."""
        return max(1, min(64, 2**22 // length**2))

    grouped_by: ClassVar[str] = ""
    """The column of an evaluation that names the parts of the task, where it has parts."""
    columns: ClassVar[tuple[str, ...]] = ()
    """The measures of an evaluation, by their names in `measures.table`, where a task has a choice of its own."""
    tests_over_sets: ClassVar[bool] = False
    """Says whether intervals and tests are over the sets, which are right or wrong, rather than over the seeds."""
    measures_every_length: ClassVar[bool] = False
    """Says whether an evaluation measures all test lengths by default, rather than a few."""

    def parts(self) -> Mapping[str, "Task"]:
        """Returns the tasks that are tested one by one, by name: by default only the task itself."""
        return {"": self}

    @property
    def test_bounds(self) -> tuple[int, int]:
        """The least and the greatest length of a test set. One item leaves a softmax nothing to weigh."""
        return 2, 2**20

    def check_length(self, option: str, length: int) -> None:
        """Raises ValueError for a length, given by an option, at which the task has no test sets."""
        least, most = self.test_bounds
        checks.whole(f"each of {option}", length, least, min(max(16, least), most), most)

    def for_testing(self, model: Any, items: int) -> Any:
        """Returns an equivalent model that is faster for this many items of test sets."""
        return model

    @property
    def shared(self) -> tuple[int, ...]:
        """Lengths up to which one program reads all test sets, where `test_set` can hide items; none by default."""
        return ()

    def test_set(self, key: Key[Array, ""], length: Int[Array, ""], room: int) -> Any:
        """Returns a test set of a length among room for more items. Without `shared` the room is the length."""
        return self.test_batch(key, room, 1)


@functools.cache
def _length_of_training(task: Task) -> int:
    """Returns the length at which a test set has the shapes of one of the training batch, from shapes alone."""
    training = _set_shapes(lambda: task.training_batch(jnp.int32(0), jnp.int32(0)))

    def test(length: int) -> Shapes:
        return _set_shapes(lambda: task.test_batch(jax.random.key(0), length, 1))

    # The axes of a test set grow with its length n by equal steps. One of 17 at n = 16 and of 33 at n = 32 is n + 1, so
    # a training set with 9 there has n = 16 + (9 - 17) * (32 - 16) / (33 - 17) = 8 items.
    low = min(task.test_lengths)
    high = max(2 * low, *task.test_lengths)
    sizes = zip(*(itertools.chain(*shapes) for shapes in (training, test(low), test(high))))
    lengths = {
        low + (trained - small) * (high - low) // (large - small) for trained, small, large in sizes if large > small
    }
    if len(lengths) == 1 and (length := lengths.pop()) > 0 and test(length) == training:
        return length
    raise Refusal(
        f"the task {task.name} trains on sets whose length is not known, as no test set has their shape: let it have "
        "`longest`, the most items of a set in training"
    )


def _set_shapes(draw: Callable[[], Any]) -> Shapes:
    """Returns the shapes of the arrays of one set of a batch, which is not drawn."""
    return tuple(leaf.shape[1:] for leaf in jax.tree.leaves(jax.eval_shape(draw)))
