"""The jit-compiled training loop: many seeds on many devices, data drawn there, one call per chunk of steps."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Key

from softmax_jax.normalizers.checks import did_you_mean
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.runtime.devices import SEEDS, SETS, device_mesh, habits, mean_over_sets, own_sets
from softmax_jax.tasks import max_retrieval
from softmax_jax.training.config import Config

Parameters = Any
"""Nested dicts of a model's parameter arrays; with a leading seed axis where many are trained."""


class TrainState(NamedTuple):
    """All that training carries from step to step; every leaf has a leading seed axis."""

    parameters: Parameters
    optimizer: optax.OptState
    seed: Int[Array, " seeds"]


class Metrics(NamedTuple):
    """Means over the steps of a chunk; accuracy in percent."""

    loss: Float[Array, " seeds"]
    cross_entropy: Float[Array, " seeds"]
    accuracy: Float[Array, " seeds"]
    first_bad_step: Int[Array, " seeds"]


def build_schedule(config: Config) -> optax.Schedule:
    """The learning rate by step. Raises ValueError for a schedule that optax lacks or that lacks a number."""
    factory = getattr(optax.schedules, config.schedule, None)
    if factory is None or "schedule" not in config.schedule:
        known = [name for name in dir(optax.schedules) if name.endswith("_schedule")]
        near = did_you_mean(config.schedule, known)
        raise ValueError(f"--schedule is {config.schedule}: {near}it must be one of optax, {', '.join(known)}")
    peak, length = float(config.learning_rate), config.steps
    values = {"value": peak, "init_value": peak, "peak_value": peak, "decay_steps": length, "transition_steps": length}
    parameters = inspect.signature(factory).parameters
    arguments = {name: value for name, value in values.items() if name in parameters} | config.schedule_options
    return _call(factory, arguments, "--schedule-options")


def build_optimizer(config: Config) -> optax.GradientTransformation:
    """The optimizer at its schedule. Raises ValueError for one that optax lacks or for an unknown option."""
    factory = getattr(optax, config.optimizer, None)
    if not callable(factory) or "learning_rate" not in inspect.signature(factory).parameters:
        known = [name for name in dir(optax) if "learning_rate" in _parameters(getattr(optax, name))]
        near = did_you_mean(config.optimizer, known)
        rule = "it must be one of optax that takes a learning rate, as adam"
        raise ValueError(f"--optimizer is {config.optimizer}: {near}{rule}")
    if "learning_rate" in config.optimizer_options:
        number = config.optimizer_options["learning_rate"]
        raise ValueError(f"--optimizer-options has learning_rate {number}: it must be given as --learning-rate")
    arguments = {"learning_rate": build_schedule(config)} | config.optimizer_options
    optimizer = _call(factory, arguments, "--optimizer-options")
    _check_steps(config, optimizer)
    return optimizer


def _parameters(factory: Any) -> Mapping[str, Any]:
    """The parameters of a function of optax; none of what is no function."""
    return inspect.signature(factory).parameters if inspect.isfunction(factory) else {}


@functools.lru_cache(maxsize=8)
def _steps(optimizer: optax.GradientTransformation) -> str | None:
    """What goes wrong in a step of this optimizer as the loop takes it; nothing is computed."""

    def step(parameters: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.update(parameters, optimizer.init(parameters), parameters)[0]

    like = {"kernel": jax.ShapeDtypeStruct((2, 2), jnp.float32), "bias": jax.ShapeDtypeStruct((2,), jnp.float32)}
    try:
        jax.eval_shape(step, like)
    except Exception as error:  # of many types, as optimizers ask for arguments that the loop does not have
        return " ".join(str(error).split())[:200] or type(error).__name__
    return None


def _check_steps(config: Config, optimizer: optax.GradientTransformation) -> None:
    """Raises ValueError for an optimizer that cannot take a step in this loop, or not with its options."""
    if problem := _steps(optimizer):
        raise ValueError(
            f"--optimizer is {config.optimizer}: with its options it must take a step from a gradient alone, and says: "
            f"{problem}; choose another, as adam"
        )


def _call(factory: Callable[..., Any], arguments: dict[str, Any], option: str) -> Any:
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        taken = inspect.signature(factory).parameters
        near = "".join(did_you_mean(name, taken) for name in arguments if name not in taken)
        raise ValueError(f"{option}: {error}; {near}{factory.__name__} takes {', '.join(taken)}") from None
    try:
        return factory(**arguments)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{option}: {factory.__name__} says {' '.join(str(error).split())}; give others") from None


@functools.cache
def build_model(width: int) -> tuple[nnx.GraphDef, Callable[[Key[Array, ""]], Parameters]]:
    """The structure of the model, and a function from a key to its initial parameters."""

    def initialize(key: Key[Array, ""]) -> Parameters:
        return nnx.to_pure_dict(nnx.state(max_retrieval.MaxRetrievalModel(width, rngs=nnx.Rngs(key)), nnx.Param))

    structure = nnx.split(nnx.eval_shape(lambda: max_retrieval.MaxRetrievalModel(width, rngs=nnx.Rngs(0))))[0]
    return structure, initialize


def training_mesh(config: Config) -> Mesh:
    """The devices that train, as seeds × sets."""
    return device_mesh(config.seeds, config.sets, habits().least_sets)


def initial_state(config: Config) -> TrainState:
    """Parameters and optimizer state of every seed before the first step."""
    _, initialize = build_model(config.width)
    seeds = np.arange(config.first_seed, config.first_seed + config.seeds, dtype=np.int32)

    def one(seed: Int[Array, ""]) -> TrainState:
        parameters = initialize(jax.random.fold_in(jax.random.key(seed), 0))
        return TrainState(parameters, build_optimizer(config).init(parameters), seed)

    return jax.jit(jax.vmap(one), out_shardings=NamedSharding(training_mesh(config), P(SEEDS)))(seeds)


def training_batch(config: Config, seed: Int[Array, ""], step: Int[Array, ""]) -> max_retrieval.Batch:
    """The batch of a step: a pure function of seed and step, so that a resumed run sees the same data."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), step // config.steps_per_batch)
    length_key, data_key = jax.random.split(key)
    length = jax.random.randint(length_key, (1,), config.min_items, config.max_items + 1)
    if config.nearest_of == 1:
        return max_retrieval.sample(data_key, config.sets, config.max_items, length)
    return max_retrieval.sample_near_ties(data_key, config.sets, config.max_items, config.nearest_of, length)


def loss_function(
    parameters: Parameters, batch: max_retrieval.Batch, *, structure: nnx.GraphDef, l2: float, normalizer: Normalizer
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
    """Cross-entropy plus λ·Σw², in nats; with the cross-entropy alone and the accuracy in percent."""
    scores = nnx.merge(structure, parameters)(batch, normalizer).scores
    cross_entropy = optax.softmax_cross_entropy_with_integer_labels(scores, batch.answer).mean()
    accuracy = 100 * (scores.argmax(-1) == batch.answer).mean()
    squares = sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(parameters))
    return cross_entropy + l2 * squares, (cross_entropy, accuracy)


def padded_gradient(config: Config) -> Callable[..., Any]:
    """The loss and its gradient on a batch as it comes, padding and all."""
    structure, _ = build_model(config.width)
    settings = {"structure": structure, "l2": config.l2, "normalizer": normalizer(config.normalizer)}
    return jax.value_and_grad(functools.partial(loss_function, **settings), has_aux=True)


def trimmed_gradient(config: Config) -> Callable[..., Any]:
    """The same on the visible items alone: a compiled branch for every length that a batch may have.

    All sets of a training batch have the same length, so nothing visible is cut off. At the paper's lengths
    this leaves two thirds of the work; under vmap every branch would run, so it is for one seed at a time.
    """
    gradient = padded_gradient(config)

    def trim(items: int, parameters: Parameters, batch: max_retrieval.Batch) -> Any:
        return gradient(parameters, batch._replace(items=batch.items[:, :items], mask=batch.mask[:, :items]))

    lengths = range(config.min_items, config.max_items + 1)
    branches = [functools.partial(trim, items) for items in lengths]

    def value_and_gradient(parameters: Parameters, batch: max_retrieval.Batch) -> Any:
        return jax.lax.switch(batch.mask[0].sum() - config.min_items, branches, parameters, batch)

    return value_and_gradient


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

    def step(state: TrainState, index: Int[Array, ""]) -> tuple[TrainState, Any]:
        batch = own_sets(training_batch(config, state.seed, index), parts)
        (loss, (cross_entropy, accuracy)), gradient = value_and_gradient(state.parameters, batch)
        # Every part has the whole penalty in its loss, so the mean has it once.
        gradient = mean_over_sets(gradient, parts)
        # Optax raises floats to the integer step, which strict promotion forbids.
        with jax.numpy_dtype_promotion("standard"):
            updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        return TrainState(parameters, optimizer_state, state.seed), (loss, cross_entropy, accuracy)

    indices = first_step + jnp.arange(steps)
    state, by_step = jax.lax.scan(step, state, indices)
    loss, cross_entropy, accuracy = mean_over_sets(by_step, parts)
    bad = ~jnp.isfinite(loss)
    first_bad_step = jnp.where(bad.any(), indices[jnp.argmax(bad)], -1)
    return state, Metrics(loss.mean(), cross_entropy.mean(), accuracy.mean(), first_bad_step)


def chunk_trainer(config: Config) -> Callable[[TrainState, int, int], tuple[TrainState, Metrics]]:
    """A compiled function from (state, first step, number of steps) to the next state and its metrics.

    Seeds divide among the devices, and the sets of each batch among the devices that are left over. `habits` says
    whether a device trains its seeds one after the other or side by side.
    """
    mesh = training_mesh(config)
    one_at_a_time = habits().one_seed_at_a_time
    gradient = trimmed_gradient(config) if one_at_a_time else padded_gradient(config)

    @functools.partial(jax.jit, static_argnames="steps")
    def train_chunk(state: TrainState, first_step: ArrayLike, steps: int) -> tuple[TrainState, Metrics]:
        def on_device(state: TrainState) -> tuple[TrainState, Metrics]:
            chunk = {"first_step": jnp.asarray(first_step), "steps": steps, "parts": mesh.shape[SETS]}
            one = functools.partial(train_steps, config, gradient, **chunk)
            return jax.lax.map(one, state) if one_at_a_time else jax.vmap(one)(state)

        return jax.shard_map(on_device, mesh=mesh, in_specs=P(SEEDS), out_specs=P(SEEDS), check_vma=False)(state)

    return train_chunk
