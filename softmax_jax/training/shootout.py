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
from jaxtyping import Array, Float, Int, Key

from softmax_jax.normalizers.checks import require, whole
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.runtime.devices import seed_sharding, spread_over_seeds
from softmax_jax.runtime.pipeline import two_at_a_time
from softmax_jax.tasks.sequences import Batch, Task
from softmax_jax.tasks.transformer import Transformer
from softmax_jax.training.trainer import Parameters

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

MOST = {"hidden": 2**14, "heads": 2**14, "layers": 2**10, "epochs": 2**20}
"""The largest sizes of a recipe."""


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
        for name, most in MOST.items():
            whole(f"--{name}", getattr(self, name), 1, getattr(Recipe, name), most)
        if self.hidden % self.heads:
            nearest = self.heads * max(round(self.hidden / self.heads), 1)
            raise ValueError(
                f"--hidden is {self.hidden}: it must be a multiple of --heads, {self.heads}, such as {nearest}"
            )
        require("dropout", self.dropout, "of at least 0 and below 1, such as 0.05", lambda rate: 0 <= rate < 1)
        require(
            "learning_rate", self.learning_rate, "above 0 and at most 1000, such as 0.0003", lambda r: 0 < r <= 1000
        )


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


class Keys(NamedTuple):
    """What a seed draws its numbers from."""

    parameters: Key[Array, ""]
    data: Key[Array, ""]
    dropout: Key[Array, ""]


def keys_of(seed: Int[Array, ""]) -> Keys:
    """The keys of a seed: the same for every normalizer."""
    key = jax.random.key(seed)
    return Keys(jax.random.fold_in(key, 0), *jax.random.split(jax.random.fold_in(key, 1)))


def shared_evenly(seeds: Sequence[int]) -> Int[Array, " seeds"]:
    """The seeds, and as many more as the devices need for equal shares."""
    excess = -len(seeds) % min(jax.device_count(), len(seeds))
    return jnp.asarray([*seeds, *(max(seeds) + 1 + index for index in range(excess))], jnp.int32)


class Draws:
    """Data of every seed, drawn once for all normalizers; every leaf has a leading seed axis."""

    def __init__(self, task: Task, seeds: Int[Array, " seeds"]):
        self.task = task
        self.seeds = jax.device_put(seeds, seed_sharding(len(seeds)))

    @functools.partial(jax.jit, static_argnums=0)
    def training(self, epoch: Int[Array, ""]) -> Batch:
        """All batches of an epoch: leaves of shape (seeds, steps, ...)."""
        steps = epoch * self.task.steps_per_epoch + jnp.arange(self.task.steps_per_epoch)
        return self._of_each_seed(lambda key: jax.lax.map(lambda step: self.task.training_batch(key, step), steps))

    @functools.partial(jax.jit, static_argnums=(0, 1, 3))
    def test(self, length: int, index: Int[Array, ""], sequences: int) -> Batch:
        """One batch of test sequences of a length."""
        return self._of_each_seed(lambda key: self.task.test_batch(key, length, index, sequences))

    def _of_each_seed(self, draw: Callable[[Key[Array, ""]], Batch]) -> Batch:
        return spread_over_seeds(lambda seeds: jax.lax.map(lambda seed: draw(keys_of(seed).data), seeds), self.seeds)


class Contender:
    """One normalizer with the model built around it."""

    def __init__(self, name: str, task: Task, recipe: Recipe):
        self.name, self.task, self.recipe = name, task, recipe
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

    def initial_state(self, seeds: Int[Array, " seeds"]) -> State:
        """Every seed before its first step."""

        def one(seed: Int[Array, ""]) -> State:
            model = self._build(nnx.Rngs(keys_of(seed).parameters))
            parameters = nnx.to_pure_dict(nnx.state(model, nnx.Param))
            return State(parameters, self.optimizer.init(parameters), seed)

        # Not jitted: compiling this for every normalizer would take longer.
        states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(one, seeds))
        return jax.device_put(states, seed_sharding(len(seeds)))

    def loss(
        self, parameters: Parameters, batch: Batch, dropout_key: Key[Array, ""] | None
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Mean cross-entropy in nats, and accuracy in percent; with dropout if there is a key for it."""
        rngs = None if dropout_key is None else nnx.Rngs(dropout=dropout_key)
        model = nnx.merge(self.structure, parameters)
        scores = self.task.read(model(batch.inputs, batch.mask, rngs))
        loss = optax.softmax_cross_entropy_with_integer_labels(scores, batch.answer).mean()
        return loss, 100 * (scores.argmax(-1) == batch.answer).mean()

    def epoch(self, state: State, batches: Batch, epoch: Int[Array, ""]) -> tuple[State, Float[Array, " seeds"]]:
        """Trains every seed on its batches of an epoch; returns the next state, and the mean loss of each seed."""

        def step(carry: tuple[Parameters, optax.OptState], batch_and_key: tuple[Batch, Key[Array, ""]]) -> Any:
            parameters, optimizer = carry
            (loss, _), gradient = jax.value_and_grad(self.loss, has_aux=True)(parameters, *batch_and_key)
            # Optax raises floats to the integer step, which strict promotion forbids.
            with jax.numpy_dtype_promotion("standard"):
                updates, optimizer = self.optimizer.update(gradient, optimizer, parameters)
            return (optax.apply_updates(parameters, updates), optimizer), loss

        def one(arguments: tuple[State, Batch]) -> tuple[State, Float[Array, ""]]:
            state, own_batches = arguments
            steps = epoch * self.task.steps_per_epoch + jnp.arange(self.task.steps_per_epoch)
            keys = jax.vmap(functools.partial(jax.random.fold_in, keys_of(state.seed).dropout))(steps)
            (parameters, optimizer), losses = jax.lax.scan(step, state[:2], (own_batches, keys))
            return State(parameters, optimizer, state.seed), losses.mean()

        return spread_over_seeds(lambda *arguments: jax.lax.map(one, arguments), state, batches)

    def compiled_epoch(self, state: State, batches: Batch) -> Callable[..., Any]:
        """`epoch` compiled for states and batches like these; it takes over the state it is given."""
        return jax.jit(self.epoch, donate_argnums=0).lower(state, batches, jnp.int32(0)).compile()

    def test(self, parameters: Parameters, batch: Batch) -> tuple[Float[Array, " seeds"], Float[Array, " seeds"]]:
        """Loss and accuracy of every seed on its batch."""
        return spread_over_seeds(
            lambda *arguments: jax.lax.map(lambda own: self.loss(own[0], own[1], None), arguments), parameters, batch
        )

    def learned(self, parameters: Parameters) -> dict[str, np.ndarray]:
        """The numbers of the normalizer as trained, of shape (seeds, layers, heads)."""
        blocks = [parameters["blocks"][index]["attention"] for index in range(self.recipe.layers)] if self.learn else []
        return {name: np.stack([np.asarray(block[name])[..., 0, 0] for block in blocks], 1) for name in self.learn}


def batches_of(sequences: int, length: int) -> tuple[int, int]:
    """Sequences in a batch, fewer where they are long, and the batches that so many sequences take."""
    batch = min(max(2**22 // length**2, 1), 50, sequences)
    return batch, -(-sequences // batch)


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
    """Trains all normalizers side by side, epoch by epoch on the same data, then tests them.

    Yields after every epoch of each, and all outcomes at the end. `tests_at` says how many sequences a batch and how
    many batches to test with at a length. All is compiled before the first clock starts, so that no training is timed
    beside a compiler.
    """
    trained = shared_evenly(seeds)
    draws = Draws(task, trained)
    contenders = [Contender(name, task, recipe) for name in names]
    states = [contender.initial_state(trained) for contender in contenders]
    losses: list[list[np.ndarray]] = [[] for _ in contenders]
    seconds = [0.0] * len(contenders)
    batches = draws.training(jnp.int32(0))
    compiled = list(two_at_a_time(lambda pair: pair[0].compiled_epoch(pair[1], batches), zip(contenders, states)))
    for epoch in range(recipe.epochs):
        batches = jax.block_until_ready(draws.training(jnp.int32(epoch)))
        for index, contender in enumerate(contenders):
            start = time.perf_counter()
            states[index], loss = jax.block_until_ready(compiled[index](states[index], batches, jnp.int32(epoch)))
            seconds[index] += time.perf_counter() - start
            losses[index].append(np.asarray(loss, np.float64)[: len(seeds)])
            yield EpochDone(contender.name, epoch, float(losses[index][-1].mean()))
    parameters = [state.parameters for state in states]
    tests = [score_all(contenders, parameters, draws, seeds, length, *tests_at(length)) for length in test_lengths]
    for index, contender in enumerate(contenders):
        learned = {name: values[: len(seeds)] for name, values in contender.learned(parameters[index]).items()}
        scores = [score for of_length in tests for score in of_length[index]]
        yield Outcome(contender.name, tuple(seeds), np.stack(losses[index], 1), scores, learned, seconds[index])


def score_all(
    contenders: Sequence[Contender],
    parameters: Sequence[Parameters],
    draws: Draws,
    seeds: Sequence[int],
    length: int,
    sequences: int,
    batches: int,
) -> list[list[Score]]:
    """The scores of every contender at a length: means over batches that all of them are given."""
    test = [jax.jit(contender.test) for contender in contenders]
    found = np.empty((batches, len(contenders), 2, len(seeds)))
    for batch_index in range(batches):
        batch = draws.test(length, jnp.int32(batch_index), sequences)
        for index, own in enumerate(parameters):
            found[batch_index, index] = np.stack(test[index](own, batch))[:, : len(seeds)]
    return [
        [Score(length, seed, accuracy, loss) for seed, loss, accuracy in zip(seeds, *means.tolist())]
        for means in found.mean(0)
    ]
