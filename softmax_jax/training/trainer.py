"""The jit-compiled training loop: many seeds on many devices, data drawn there, one call per chunk of steps."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Key

from softmax_jax.runtime.devices import SEEDS, SETS, device_mesh, habits, mean_over_sets, own_sets
from softmax_jax.tasks.task import Task, dropout_key, parameter_key
from softmax_jax.training.config import Config
from softmax_jax.training.optimizers import build_optimizer, elementwise
from softmax_jax.training.packing import AS_IT_IS, packing

Parameters = Any
"""Nested dicts of a model's parameter arrays; with a leading seed axis where many are trained."""
DRAW, MEAN, UPDATE = "draw", "mean over devices", "update"
"""The parts of a training step beside its gradient, as a profile names them."""
DRAWN_BYTES = 2**20
"""Of batches that are drawn at once: a draw costs about the same for many, which must stay in cache until used."""


class TrainState(NamedTuple):
    """All that training carries from step to step; every leaf has a leading seed axis."""

    parameters: Parameters
    optimizer: optax.OptState
    seed: Int[Array, " seeds"]


class Metrics(NamedTuple):
    """Means over the steps of a chunk: `cross_entropy` is the task's loss without the penalty; accuracy in percent."""

    loss: Float[Array, " seeds"]
    cross_entropy: Float[Array, " seeds"]
    accuracy: Float[Array, " seeds"]
    first_bad_step: Int[Array, " seeds"]


@functools.cache
def build_model(task: Task, normalizer: str = "softmax") -> tuple[nnx.GraphDef, Callable[[Key[Array, ""]], Parameters]]:
    """The structure of a task's model, and a function from a key to its initial parameters."""

    def initialize(key: Key[Array, ""]) -> Parameters:
        return nnx.to_pure_dict(nnx.state(task.build(normalizer, nnx.Rngs(key)), nnx.Param))

    return nnx.split(nnx.eval_shape(lambda: task.build(normalizer, nnx.Rngs(0))))[0], initialize


def training_mesh(config: Config) -> Mesh:
    """The devices that train, as seeds × sets."""
    sets = config.task.sets if config.task.divides_batches else 1
    least = habits().least_sets if config.task.least_sets is None else config.task.least_sets
    return device_mesh(config.seeds + _spare_seeds(config), sets, least)


def _spare_seeds(config: Config) -> int:
    """Seeds to train besides, so that devices which may not divide batches share the seeds evenly."""
    return 0 if config.task.divides_batches else -config.seeds % min(jax.device_count(), config.seeds)


def state_sharding(config: Config) -> TrainState:
    """Where each leaf of the state of training lies: its seeds divided among the devices, where they divide evenly.

    In a sharded run the devices that share a seed divide its leaves, each along its longest axis that they divide.
    """
    mesh = training_mesh(config)
    parts = mesh.shape[SETS] if config.sharded else 1

    def of_leaf(leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        by_axis: list[str | None] = [None if _spare_seeds(config) else SEEDS] + [None] * (leaf.ndim - 1)
        even = [axis for axis in range(1, leaf.ndim) if parts > 1 and leaf.shape[axis] % parts == 0]
        if even:
            by_axis[max(even, key=lambda axis: leaf.shape[axis])] = SETS
        return NamedSharding(mesh, P(*by_axis))

    return jax.tree.map(of_leaf, jax.eval_shape(*_initialization(config)))


def initial_state(config: Config) -> TrainState:
    """Parameters and optimizer state of every seed before the first step."""
    initialize, seeds = _initialization(config)
    return jax.jit(initialize, out_shardings=state_sharding(config))(seeds)


def _initialization(config: Config) -> tuple[Callable[..., TrainState], Int[np.ndarray, " seeds"]]:
    """A function from seeds to their state before the first step, and the seeds."""
    _, initialize = build_model(config.task, config.normalizer)
    seeds = np.arange(config.first_seed, config.first_seed + config.seeds, dtype=np.int32)

    def one(seed: Int[Array, ""]) -> TrainState:
        parameters = initialize(parameter_key(seed))
        return TrainState(parameters, build_optimizer(config).init(parameters), seed)

    return jax.vmap(one), seeds


def padded_gradient(config: Config) -> Callable[..., Any]:
    """The task's loss of (parameters, batch, key of the dropout) and its gradient, on a batch with its padding.

    Beside the loss comes the accuracy in percent. Without a key there is no dropout.
    """
    structure, _ = build_model(config.task, config.normalizer)

    def loss(
        parameters: Parameters, batch: Any, dropout_key: Key[Array, ""] | None = None
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        rngs = None if dropout_key is None else nnx.Rngs(dropout=dropout_key)
        scores = config.task.scores(nnx.merge(structure, parameters), batch, rngs)
        return config.task.loss(scores, batch), config.task.accuracy(scores, batch)

    return jax.value_and_grad(loss, has_aux=True)


def trimmed_gradient(config: Config) -> Callable[..., Any]:
    """The same on the visible items alone, where the task can tell them apart; it is for one seed at a time."""
    return config.task.on_visible(padded_gradient(config))


def penalized(
    config: Config, parameters: Parameters, loss: Float[Array, ""], gradient: Parameters
) -> tuple[Float[Array, ""], Parameters]:
    """A loss of the task plus λ·Σw², and its gradient plus 2λ·w: no batch changes these, so no branch holds them."""
    squares = sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(parameters))
    with_slope = jax.tree.map(lambda slope, weight: slope + 2 * config.l2 * weight, gradient, parameters)
    return loss + config.l2 * squares, with_slope


def drawn_at_once(config: Config, steps: int) -> int:
    """How many of these steps have their batches drawn at once: as many as `DRAWN_BYTES` hold, in equal parts.

    >>> drawn_at_once(Config(), 500)
    10
    """
    batch = jax.eval_shape(config.task.training_batch, jnp.int32(0), jnp.int32(0))
    most = DRAWN_BYTES // sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(batch))
    return max(count for count in range(1, max(1, min(most, steps)) + 1) if steps % count == 0)


def train_steps(
    config: Config,
    value_and_gradient: Callable[..., Any],
    state: Any,
    *,
    first_step: Int[Array, ""],
    steps: int,
    parts: int = 1,
) -> tuple[TrainState, Metrics]:
    """Runs one seed for `steps` steps, its sets divided into `parts`: the others are on the devices beside this one."""
    optimizer = build_optimizer(config)
    # A sharded run divides each leaf along an axis of its own.
    pack, unpack = packing(state.parameters) if elementwise(config) and not config.sharded else AS_IT_IS

    def drawn(index: Int[Array, ""]) -> tuple[Any, Key[Array, ""]]:
        at = config.first_batch + index
        return own_sets(config.task.training_batch(state.seed, at), parts), dropout_key(state.seed, at)

    def step(packed: TrainState, batch_and_key: tuple[Any, Key[Array, ""]]) -> tuple[TrainState, Any]:
        parameters = packed.parameters
        (of_task, accuracy), gradient = value_and_gradient(unpack(parameters, state.parameters), *batch_and_key)
        # The scopes are names in a profile.
        with jax.named_scope(MEAN):
            gradient = mean_over_sets(pack(gradient), parts)
        # Optax raises floats to the integer step, which strict promotion forbids.
        with jax.named_scope(UPDATE), jax.numpy_dtype_promotion("standard"):
            loss, gradient = penalized(config, parameters, of_task, gradient)
            updates, optimizer_state = optimizer.update(gradient, packed.optimizer, parameters)
            parameters = optax.apply_updates(parameters, updates)
        return TrainState(parameters, optimizer_state, packed.seed), (loss, of_task, accuracy)

    def block(packed: TrainState, indices: Int[Array, " block"]) -> tuple[TrainState, Any]:
        with jax.named_scope(DRAW):
            batches_and_keys = jax.vmap(drawn)(indices)
        return jax.lax.scan(step, packed, batches_and_keys)

    indices = first_step + jnp.arange(steps, dtype=jnp.int32)
    packed, by_step = jax.lax.scan(block, pack(state), indices.reshape(-1, drawn_at_once(config, steps)))
    by_step = jax.tree.map(lambda of_blocks: of_blocks.reshape(-1), by_step)
    loss, cross_entropy, accuracy = mean_over_sets(by_step, parts)
    bad = ~jnp.isfinite(loss)
    first_bad_step = jnp.where(bad.any(), indices[jnp.argmax(bad)], -1)
    return unpack(packed, state), Metrics(loss.mean(), cross_entropy.mean(), accuracy.mean(), first_bad_step)


def chunk_trainer(config: Config) -> Callable[[TrainState, int, int], tuple[TrainState, Metrics]]:
    """A compiled function from (state, first step, number of steps) to the next state and its metrics.

    Seeds divide among the devices, and the sets of each batch among the devices that are left over. `habits` says
    whether a device trains its seeds one after the other or side by side.
    """
    if config.sharded:
        return _sharded_trainer(config)
    mesh, spare = training_mesh(config), _spare_seeds(config)
    one_at_a_time = habits().one_seed_at_a_time
    gradient = trimmed_gradient(config) if one_at_a_time else padded_gradient(config)

    @_compiled(config)
    def train_chunk(state: TrainState, first_step: ArrayLike, steps: int) -> tuple[TrainState, Metrics]:
        def on_device(state: TrainState) -> tuple[TrainState, Metrics]:
            chunk = {"first_step": jnp.asarray(first_step, jnp.int32), "steps": steps, "parts": mesh.shape[SETS]}
            one = functools.partial(train_steps, config, gradient, **chunk)
            return jax.lax.map(one, state) if one_at_a_time else jax.vmap(one)(state)

        on_devices = jax.shard_map(on_device, mesh=mesh, in_specs=P(SEEDS), out_specs=P(SEEDS), check_vma=False)
        if not spare:
            return on_devices(state)
        with_spare = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[:1].repeat(spare, 0)]), state)
        return jax.tree.map(lambda leaf: leaf[: config.seeds], on_devices(with_spare))

    return train_chunk


def _compiled(config: Config) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compiles a chunk of training so that the state stays where it lies."""
    sharding = state_sharding(config)
    return functools.partial(jax.jit, static_argnames="steps", out_shardings=(sharding, sharding.seed))


def _sharded_trainer(config: Config) -> Callable[[TrainState, int, int], tuple[TrainState, Metrics]]:
    """The same where the devices of a seed divide its parameters too: the compiler sees who needs what when.

    The program is that of one device. Batches are divided by their sets and the state as `state_sharding` says, so
    that a device gathers a layer's parameters while it needs them, and keeps its part of what comes of them.
    """
    mesh, gradient = training_mesh(config), padded_gradient(config)

    def of_divided(parameters: Parameters, batch: Any, dropout_key: Key[Array, ""]) -> Any:
        divided = jax.lax.with_sharding_constraint(batch, NamedSharding(mesh, P(SETS)))
        return gradient(parameters, divided, dropout_key)

    @_compiled(config)
    def train_chunk(state: TrainState, first_step: ArrayLike, steps: int) -> tuple[TrainState, Metrics]:
        chunk = {"first_step": jnp.asarray(first_step, jnp.int32), "steps": steps}
        one = functools.partial(train_steps, config, of_divided, **chunk)
        return jax.vmap(one, spmd_axis_name=SEEDS)(state)

    return train_chunk
