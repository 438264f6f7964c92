"""The jit-compiled training loop: many seeds on many devices, data drawn there, one call per chunk of steps."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Key

from softmax_jax.experiment.tasks.task import Task, dropout_key, parameter_key
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.distributed import SEEDS, SETS, device_mesh
from softmax_jax.experiment.training.optimizers import build_optimizer
from softmax_jax.normalizers.execution import on_cpu

Parameters = Any
"""Nested dicts of a model's parameter arrays; with a leading seed axis where many are trained."""
LEAST_SETS = 32
"""Sets of a batch that a CPU core keeps: a set costs it about 10 µs, the all-reduce of the paper's model some 100."""


DRAWN_BYTES, DRAWN_BYTES_OF_AN_ACCELERATOR = 2**20, 2**26
"""Of batches that are drawn at once: a draw costs about the same for many. A CPU must keep them in cache until used."""


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
    """Returns the structure of a task's model, and a function from a key to its initial parameters."""

    def initialize(key: Key[Array, ""]) -> Parameters:
        return nnx.to_pure_dict(nnx.state(task.build(normalizer, nnx.Rngs(key)), nnx.Param))

    return nnx.split(nnx.eval_shape(lambda: task.build(normalizer, nnx.Rngs(0))))[0], initialize


def training_mesh(config: Config) -> Mesh:
    """Returns the devices that train, as seeds × sets. Seeds are padded where no device can help with another's."""
    task = config.task
    if not task.divides_batches:
        return device_mesh(config.seeds + -config.seeds % min(jax.device_count(), config.seeds))
    least_sets = task.least_sets or (LEAST_SETS if on_cpu() else 1)
    return device_mesh(config.seeds, task.sets, least_sets)


def state_sharding(config: Config) -> NamedSharding:
    """Returns where the state of training lies: its seeds divided among the devices, where they divide evenly."""
    mesh = training_mesh(config)
    return NamedSharding(mesh, P() if config.seeds % mesh.shape[SEEDS] else P(SEEDS))


def initial_state(config: Config) -> TrainState:
    """Returns parameters and optimizer state of every seed before the first step."""
    _, initialize = build_model(config.task, config.normalizer)

    def one(seed: Int[Array, ""]) -> TrainState:
        parameters = initialize(parameter_key(seed))
        return TrainState(parameters, build_optimizer(config).init(parameters), seed)

    seeds = np.asarray(config.all_seeds, np.int32)
    return jax.jit(jax.vmap(one), out_shardings=state_sharding(config))(seeds)


def padded_gradient(config: Config) -> Callable[..., Any]:
    """Returns the task's loss of (parameters, batch, key of the dropout) and its gradient, on a batch with its padding.

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


def penalized(
    config: Config, parameters: Parameters, loss: Float[Array, ""], gradient: Parameters
) -> tuple[Float[Array, ""], Parameters]:
    """Adds λ·Σw² to a loss and 2λ·w to its gradient: no batch changes these, so no branch holds them."""
    # Rows first, behind a barrier that keeps XLA from joining both sums: joined they run on one multiprocessor for each
    # seed, and take a quarter of a step on an H100.
    rows = (jnp.sum(jnp.square(jnp.atleast_1d(leaf)), -1) for leaf in jax.tree.leaves(parameters))
    squares = sum(jnp.sum(jax.lax.optimization_barrier(row_sums)) for row_sums in rows)
    with_slope = jax.tree.map(lambda slope, weight: slope + 2 * config.l2 * weight, gradient, parameters)
    return loss + config.l2 * squares, with_slope


def own_sets(batch: Any, parts: int) -> Any:
    """Returns this device's part of a batch that every device of a seed has drawn whole; call it under the mesh.

    Drawing is cheap beside a training step, and a part of the same draw is the same to the bit.
    """
    if parts == 1:
        return batch

    def part(leaf: jax.Array) -> jax.Array:
        size = leaf.shape[0] // parts
        return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index(SETS) * size, size)

    return jax.tree.map(part, batch)


def mean_over_sets(tree: Any, parts: int) -> Any:
    """Returns the mean over the devices that share a seed, on each of them; call it under the mesh."""
    if parts == 1:
        return tree
    # All leaves as one vector: devices wait for each other once, not once a leaf.
    vector, as_tree = ravel_pytree(tree)
    return as_tree(jax.lax.pmean(vector, SETS))


def drawn_at_once(config: Config, steps: int) -> int:
    """Returns how many of these steps have their batches drawn at once: as many as `DRAWN_BYTES` hold, in equal parts.

    >>> drawn_at_once(Config(), 500)
    10
    """
    batch = jax.eval_shape(config.task.training_batch, jnp.int32(0), jnp.int32(0))
    room = DRAWN_BYTES if on_cpu() else DRAWN_BYTES_OF_AN_ACCELERATOR
    most = room // sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(batch))
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

    def drawn(index: Int[Array, ""]) -> tuple[Any, Key[Array, ""]]:
        at = config.first_batch + index
        return own_sets(config.task.training_batch(state.seed, at), parts), dropout_key(state.seed, at)

    def step(state: TrainState, batch_and_key: tuple[Any, Key[Array, ""]]) -> tuple[TrainState, Any]:
        parameters = state.parameters
        (loss, accuracy), gradient = value_and_gradient(parameters, *batch_and_key)
        gradient = mean_over_sets(gradient, parts)
        # Optax raises floats to the integer step, which strict promotion forbids.
        with jax.numpy_dtype_promotion("standard"):
            with_penalty, gradient = penalized(config, parameters, loss, gradient)
            updates, optimizer_state = optimizer.update(gradient, state.optimizer, parameters)
            parameters = optax.apply_updates(parameters, updates)
        return TrainState(parameters, optimizer_state, state.seed), (with_penalty, loss, accuracy)

    def block(state: TrainState, indices: Int[Array, " block"]) -> tuple[TrainState, Any]:
        return jax.lax.scan(step, state, jax.vmap(drawn)(indices))

    indices = first_step + jnp.arange(steps, dtype=jnp.int32)
    state, by_step = jax.lax.scan(block, state, indices.reshape(-1, drawn_at_once(config, steps)))
    by_step = jax.tree.map(lambda of_blocks: of_blocks.reshape(-1), by_step)
    loss, cross_entropy, accuracy = mean_over_sets(by_step, parts)
    bad = ~jnp.isfinite(loss)
    first_bad_step = jnp.where(bad.any(), indices[jnp.argmax(bad)], -1)
    return state, Metrics(loss.mean(), cross_entropy.mean(), accuracy.mean(), first_bad_step)


def chunk_trainer(config: Config) -> jax.stages.Wrapped:
    """Returns a jit-compiled function from (state, first step, number of steps) to the next state and its metrics.

    Seeds divide among the devices, and the sets of each batch among the devices that are left over. A CPU core trains
    its seeds one after the other, each on its visible items; an accelerator trains them side by side.
    """
    mesh = training_mesh(config)
    spare = -config.seeds % mesh.shape[SEEDS]
    gradient = padded_gradient(config)
    if on_cpu():
        gradient = config.task.on_visible(gradient)

    def train_chunk(state: TrainState, first_step: ArrayLike, steps: int) -> tuple[TrainState, Metrics]:
        def on_device(state: TrainState) -> tuple[TrainState, Metrics]:
            chunk = {"first_step": jnp.asarray(first_step, jnp.int32), "steps": steps, "parts": mesh.shape[SETS]}
            one = functools.partial(train_steps, config, gradient, **chunk)
            return jax.lax.map(one, state) if on_cpu() else jax.vmap(one)(state)

        on_devices = jax.shard_map(on_device, mesh=mesh, in_specs=P(SEEDS), out_specs=P(SEEDS), check_vma=False)
        if not spare:
            return on_devices(state)
        padded = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[:spare]]), state)
        return jax.tree.map(lambda leaf: leaf[: config.seeds], on_devices(padded))

    return jax.jit(train_chunk, static_argnames="steps", out_shardings=state_sharding(config))
