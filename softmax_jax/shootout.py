"""Trains the same transformer under several normalizers, all seeds of one at once, and tests it at any length."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int, Key

from softmax_jax.normalizers.registry import normalizer
from softmax_jax.pipeline import two_at_a_time
from softmax_jax.tasks.sequences import Batch, Task
from softmax_jax.tasks.transformer import Transformer
from softmax_jax.training import Parameters, seed_sharding, spread_over_seeds

LEARNED: Mapping[str, tuple[str, ...]] = {
    "ssmax": ("s",),
    "clipped_ssmax": ("s",),
    "scalable_softpick": ("s",),
    "sink_softmax": ("sink",),
    "entmax": ("alpha",),
    "asentmax": ("weight", "power"),
    "as_stieltjes": ("weight", "power"),
}
"""The numbers that train with the model, one per head and layer, by the method's name; others keep theirs."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The model and how it is trained, the same for every normalizer."""

    hidden: int = 64
    heads: int = 4
    layers: int = 2
    dropout: float = 0.05
    learning_rate: float = 3e-4
    epochs: int = 15

    def __post_init__(self) -> None:
        for name in ("hidden", "heads", "layers", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} is {getattr(self, name)}: it must be at least 1")
        if self.hidden % self.heads:
            raise ValueError(f"--hidden is {self.hidden}: it must be a multiple of --heads, {self.heads}")


class State(NamedTuple):
    """All that training carries from step to step; every leaf has a leading seed axis."""

    parameters: Parameters
    optimizer: optax.OptState
    seed: Int[Array, " seeds"]


class Score(NamedTuple):
    """Accuracy in percent and cross-entropy in nats of one seed at one length."""

    length: int
    seed: int
    accuracy: float
    loss: float


class Outcome(NamedTuple):
    """What one normalizer came to."""

    normalizer: str
    seeds: tuple[int, ...]
    losses: Float[np.ndarray, "seeds epochs"]
    """Mean training loss of each epoch, in nats, with dropout."""
    tests: list[Score]
    learned: dict[str, Float[np.ndarray, "seeds layers heads"]]
    seconds: float
    """Time of the training of all seeds together, without compiling."""


class Contender:
    """One normalizer with the model built around it, and its training compiled."""

    def __init__(self, name: str, task: Task, recipe: Recipe, seeds: Sequence[int]):
        self.name, self.task, self.recipe, self.seeds = name, task, recipe, tuple(seeds)
        # A number of seeds that the devices share evenly: those in excess are trained, and dropped.
        excess = -len(seeds) % min(jax.device_count(), len(seeds))
        self.trained = jnp.asarray([*seeds, *(max(seeds) + 1 + index for index in range(excess))], jnp.int32)
        self.learn = LEARNED.get(name.split("(")[0], ())
        self.structure = nnx.split(nnx.eval_shape(lambda: self._build(nnx.Rngs(0))))[0]
        self.optimizer = optax.adam(recipe.learning_rate)

    def _build(self, rngs: nnx.Rngs) -> Transformer:
        sizes = {name: getattr(self.recipe, name) for name in ("hidden", "heads", "layers", "dropout")}
        return Transformer(
            *(self.task.features, self.task.classes, normalizer(self.name), self.learn),
            **sizes,
            causal=self.task.causal,
            rngs=rngs,
        )

    @functools.cached_property
    def sharding(self) -> NamedSharding:
        """Seeds divided among the devices."""
        return seed_sharding(len(self.trained))

    def initial_state(self) -> State:
        """Every seed before its first step."""

        def one(seed: Int[Array, ""]) -> State:
            rngs = nnx.Rngs(jax.random.fold_in(jax.random.key(seed), 0))
            parameters = nnx.to_pure_dict(nnx.state(self._build(rngs), nnx.Param))
            return State(parameters, self.optimizer.init(parameters), seed)

        # Not jitted: compiling this for every normalizer would take longer.
        states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(one, self.trained))
        return jax.device_put(states, self.sharding)

    def loss(
        self, parameters: Parameters, batch: Batch, dropout_key: Key[Array, ""] | None
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Mean cross-entropy in nats, and accuracy in percent; with dropout if there is a key for it."""
        rngs = None if dropout_key is None else nnx.Rngs(dropout=dropout_key)
        model = nnx.merge(self.structure, parameters)
        scores = self.task.read(model(batch.inputs, batch.mask, rngs), batch.mask)
        loss = optax.softmax_cross_entropy_with_integer_labels(scores, batch.answer).mean()
        return loss, 100 * (scores.argmax(-1) == batch.answer).mean()

    def compiled_epoch(self) -> Callable[[State, Int[Array, ""]], tuple[State, Float[Array, " seeds"]]]:
        """One epoch of every seed: from a state and the epoch to the next state and the mean loss."""

        def step(carry: tuple[Parameters, optax.OptState], step: Int[Array, ""], seed: Int[Array, ""]) -> Any:
            parameters, optimizer = carry
            data_key, dropout_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1))
            batch = self.task.training_batch(data_key, step)
            own_key = jax.random.fold_in(dropout_key, step)
            (loss, _), gradient = jax.value_and_grad(self.loss, has_aux=True)(parameters, batch, own_key)
            # Optax raises floats to the integer step, which strict promotion forbids.
            with jax.numpy_dtype_promotion("standard"):
                updates, optimizer = self.optimizer.update(gradient, optimizer, parameters)
            return (optax.apply_updates(parameters, updates), optimizer), loss

        def one(arguments: tuple[State, Int[Array, ""]]) -> tuple[State, Float[Array, ""]]:
            state, epoch = arguments
            steps = epoch * self.task.steps_per_epoch + jnp.arange(self.task.steps_per_epoch)
            carry = (state.parameters, state.optimizer)
            (parameters, optimizer), losses = jax.lax.scan(lambda c, s: step(c, s, state.seed), carry, steps)
            return State(parameters, optimizer, state.seed), losses.mean()

        @functools.partial(jax.jit, donate_argnums=0)
        def epoch_of_all(state: State, epoch: Int[Array, ""]) -> tuple[State, Float[Array, " seeds"]]:
            epochs = jnp.broadcast_to(epoch, state.seed.shape)
            return spread_over_seeds(lambda *arguments: jax.lax.map(one, arguments), state, epochs)

        state = jax.eval_shape(self.initial_state)
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self.sharding), state)
        return epoch_of_all.lower(shapes, jax.ShapeDtypeStruct((), jnp.int32)).compile()

    def test(self, state: State, length: int, sequences: int, batches: int) -> list[Score]:
        """Accuracy and loss of every seed on `batches` batches of new sequences of a length."""

        def one(arguments: tuple[Parameters, Int[Array, ""]]) -> tuple[Array, Array]:
            parameters, seed = arguments
            data_key, _ = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1))

            def batch(index: Int[Array, ""]) -> tuple[Array, Array]:
                return self.loss(parameters, self.task.test_batch(data_key, length, index, sequences), None)

            losses, accuracies = jax.lax.map(batch, jnp.arange(batches))
            return losses.mean(), accuracies.mean()

        @jax.jit
        def all_seeds(parameters: Parameters, seeds: Int[Array, " seeds"]) -> tuple[Array, Array]:
            return spread_over_seeds(lambda *arguments: jax.lax.map(one, arguments), parameters, seeds)

        losses, accuracies = all_seeds(state.parameters, state.seed)
        return [
            Score(length, seed, float(accuracy), float(loss))
            for seed, accuracy, loss in zip(self.seeds, accuracies, losses)
        ]

    def learned(self, parameters: Parameters) -> dict[str, np.ndarray]:
        """The numbers of the normalizer as trained, of shape (seeds, layers, heads)."""
        blocks = [parameters["blocks"][index]["attention"] for index in range(self.recipe.layers)] if self.learn else []
        return {
            name: np.stack([np.asarray(block[name])[: len(self.seeds), :, 0, 0] for block in blocks], 1)
            for name in self.learn
        }


class EpochDone(NamedTuple):
    """Said after every epoch of a normalizer."""

    normalizer: str
    epoch: int
    loss: float


def compete(
    names: Sequence[str],
    task: Task,
    recipe: Recipe,
    seeds: Sequence[int],
    test_lengths: Sequence[int],
    tests_at: Callable[[int], tuple[int, int]],
) -> Iterator[EpochDone | Outcome]:
    """Trains one normalizer after the other, then tests all; yields after every epoch, and the outcome of each.

    `tests_at` says how many sequences a batch and how many batches to test with at a length. All is compiled before
    the first clock starts, so that no training is timed beside a compiler.
    """
    contenders = [Contender(name, task, recipe, seeds) for name in names]
    prepared = list(two_at_a_time(lambda one: (one.initial_state(), one.compiled_epoch()), contenders))
    trained = []
    for contender, (state, epoch_of_all) in zip(contenders, prepared):
        losses, seconds = [], 0.0
        for epoch in range(recipe.epochs):
            start = time.perf_counter()
            state, loss = jax.block_until_ready(epoch_of_all(state, jnp.int32(epoch)))
            seconds += time.perf_counter() - start
            losses.append(np.asarray(loss, np.float64)[: len(seeds)])
            yield EpochDone(contender.name, epoch, float(losses[-1].mean()))
        trained.append((state, np.stack(losses, 1), seconds))
    pairs = [(index, length) for index in range(len(names)) for length in test_lengths]

    def test(pair: tuple[int, int]) -> list[Score]:
        index, length = pair
        return contenders[index].test(trained[index][0], length, *tests_at(length))

    tested = dict(zip(pairs, two_at_a_time(test, pairs)))
    for index, (contender, (state, losses, seconds)) in enumerate(zip(contenders, trained)):
        tests = [test for length in test_lengths for test in tested[index, length]]
        learned = contender.learned(state.parameters)
        yield Outcome(contender.name, contender.seeds, losses, tests, learned, seconds)
