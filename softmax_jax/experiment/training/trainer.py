"""The jit-compiled training loop: many seeds on many devices, data drawn there, one call per chunk of steps."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Key

from softmax_jax.experiment.tasks.task import Task, dropout_key
from softmax_jax.experiment.training.distributed import SEEDS, SETS
from softmax_jax.experiment.training.run import Parameters, Run, TrainState
from softmax_jax.normalizers.execution import on_cpu

DRAWN_BYTES, DRAWN_BYTES_OF_AN_ACCELERATOR = 2**20, 2**26
"""The most bytes of batches that are drawn at once: a draw costs about the same for many, and a CPU must keep them in
cache until they are used."""


class Metrics(NamedTuple):
    """Means over the steps of a chunk: `cross_entropy` is the task's loss without the penalty; accuracy in percent."""

    loss: Float[Array, " seeds"]
    cross_entropy: Float[Array, " seeds"]
    accuracy: Float[Array, " seeds"]
    first_bad_step: Int[Array, " seeds"]


def padded_gradient(run: Run) -> Callable[..., Any]:
    """Returns the task's loss of (parameters, batch, key of the dropout) and its gradient, on a batch with its padding.

    Beside the loss comes the accuracy in percent. Without a key there is no dropout.
    """
    task = run.task

    def loss(
        parameters: Parameters, batch: Any, dropout_key: Key[Array, ""] | None = None
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        rngs = None if dropout_key is None else nnx.Rngs(dropout=dropout_key)
        scores = task.scores(nnx.merge(run.structure, parameters), batch, rngs)
        return task.loss(scores, batch), task.accuracy(scores, batch)

    return jax.value_and_grad(loss, has_aux=True)


def add_penalty(
    l2: float, parameters: Parameters, loss: Float[Array, ""], gradient: Parameters
) -> tuple[Float[Array, ""], Parameters]:
    """Returns the loss plus λ·Σw² and the gradient plus 2λ·w, for λ = `l2`.

    They stand outside of `padded_gradient`, as they are the same for every batch, so no branch need hold them.
    """
    # Rows first, behind a barrier that keeps XLA from joining both sums: joined they run on one multiprocessor for each
    # seed, and take a quarter of a step on an H100.
    rows = (jnp.sum(jnp.square(jnp.atleast_1d(leaf)), -1) for leaf in jax.tree.leaves(parameters))
    squares = sum(jnp.sum(jax.lax.optimization_barrier(row_sums)) for row_sums in rows)
    with_slope = jax.tree.map(lambda slope, weight: slope + 2 * l2 * weight, gradient, parameters)
    return loss + l2 * squares, with_slope


def part_of_batch(batch: Any, parts: int) -> Any:
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


def batches_at_once(task: Task, steps: int) -> int:
    """Returns for how many of these steps to draw batches at once: as many as `DRAWN_BYTES` hold, in equal parts.

    >>> from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
    >>> batches_at_once(MaxRetrieval(), 500)
    10
    """
    batch = jax.eval_shape(task.training_batch, jnp.int32(0), jnp.int32(0))
    room = DRAWN_BYTES if on_cpu() else DRAWN_BYTES_OF_AN_ACCELERATOR
    most = room // sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(batch))
    return max(count for count in range(1, max(1, min(most, steps)) + 1) if steps % count == 0)


def train_steps(
    run: Run,
    value_and_gradient: Callable[..., Any],
    state: Any,
    *,
    first_step: Int[Array, ""],
    steps: int,
    parts: int = 1,
) -> tuple[TrainState, Metrics]:
    """Trains one seed.

    Arguments:
        run: Settings, task and optimizer.
        value_and_gradient: The loss and its gradient, as `padded_gradient` returns them.
        state: The state of the seed, without a seed axis.
        first_step: The number of the first step.
        steps: How many steps to train.
        parts: Into how many parts the sets of a batch are divided; the other parts are on the devices beside this one.

    Returns:
        The state after the last step, and means over all steps.
    """
    config, task = run.config, run.task

    def draw(index: Int[Array, ""]) -> tuple[Any, Key[Array, ""]]:
        place = config.first_batch + index
        return part_of_batch(task.training_batch(state.seed, place), parts), dropout_key(state.seed, place)

    def step(state: TrainState, batch_and_key: tuple[Any, Key[Array, ""]]) -> tuple[TrainState, Any]:
        parameters = state.parameters
        (loss, accuracy), gradient = value_and_gradient(parameters, *batch_and_key)
        gradient = mean_over_sets(gradient, parts)
        # Optax raises floats to the integer step, which strict promotion forbids.
        with jax.numpy_dtype_promotion("standard"):
            with_penalty, gradient = add_penalty(config.l2, parameters, loss, gradient)
            updates, optimizer_state = run.optimizer.update(gradient, state.optimizer, parameters)
            parameters = optax.apply_updates(parameters, updates)
        return TrainState(parameters, optimizer_state, state.seed), (with_penalty, loss, accuracy)

    def block(state: TrainState, indices: Int[Array, " block"]) -> tuple[TrainState, Any]:
        return jax.lax.scan(step, state, jax.vmap(draw)(indices))

    indices = first_step + jnp.arange(steps, dtype=jnp.int32)
    state, by_block = jax.lax.scan(block, state, indices.reshape(-1, batches_at_once(task, steps)))
    by_step = jax.tree.map(lambda values: values.reshape(-1), by_block)
    loss, cross_entropy, accuracy = mean_over_sets(by_step, parts)
    bad = ~jnp.isfinite(loss)
    first_bad_step = jnp.where(bad.any(), indices[jnp.argmax(bad)], -1)
    return state, Metrics(loss.mean(), cross_entropy.mean(), accuracy.mean(), first_bad_step)


def chunk_trainer(run: Run) -> jax.stages.Wrapped:
    """Returns a jit-compiled function from (state, first step, number of steps) to the next state and its metrics.

    Seeds divide among the devices, and the sets of each batch among the devices that are left over. A CPU core trains
    its seeds one after the other, each on its visible items; an accelerator trains them side by side.
    """
    seeds, mesh = run.config.seeds, run.mesh
    spare = -seeds % mesh.shape[SEEDS]
    gradient = padded_gradient(run)
    if on_cpu():
        gradient = run.task.on_visible(gradient)

    def train_chunk(state: TrainState, first_step: ArrayLike, steps: int) -> tuple[TrainState, Metrics]:
        def on_device(state: TrainState) -> tuple[TrainState, Metrics]:
            chunk = {"first_step": jnp.asarray(first_step, jnp.int32), "steps": steps, "parts": mesh.shape[SETS]}
            train_seed = functools.partial(train_steps, run, gradient, **chunk)
            return jax.lax.map(train_seed, state) if on_cpu() else jax.vmap(train_seed)(state)

        on_devices = jax.shard_map(on_device, mesh=mesh, in_specs=P(SEEDS), out_specs=P(SEEDS), check_vma=False)
        if not spare:
            return on_devices(state)
        padded = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[:spare]]), state)
        return jax.tree.map(lambda leaf: leaf[:seeds], on_devices(padded))

    return jax.jit(train_chunk, static_argnames="steps", out_shardings=run.sharding)
