"""`Run`: a training, built once from its settings and given to the trainer, to its directory and to all who need it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import Array, Int, Key

from softmax_jax.experiment.tasks.task import Task, parameter_key
from softmax_jax.experiment.training.config import Config, read_config
from softmax_jax.experiment.training.distributed import SEEDS, device_mesh
from softmax_jax.experiment.training.optimizers import build_optimizer, build_schedule
from softmax_jax.refusal import Refusal

Parameters = Any
"""Nested dicts of a model's parameter arrays; with a leading seed axis where many are trained."""


class TrainState(NamedTuple):
    """All that training carries from step to step; every leaf has a leading seed axis."""

    parameters: Parameters
    optimizer: optax.OptState
    seed: Int[Array, " seeds"]


@functools.cache
def build_model(task: Task, normalizer: str = "softmax") -> tuple[nnx.GraphDef, Callable[[Key[Array, ""]], Parameters]]:
    """Returns the structure of a task's model, and a function from a key to its initial parameters."""

    def initialize(key: Key[Array, ""]) -> Parameters:
        return nnx.to_pure_dict(nnx.state(task.build(normalizer, nnx.Rngs(key)), nnx.Param))

    return nnx.split(nnx.eval_shape(lambda: task.build(normalizer, nnx.Rngs(0))))[0], initialize


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """The parts of a training; `build_run` makes them."""

    config: Config
    structure: nnx.GraphDef
    """The model without its parameters."""
    schedule: optax.Schedule
    optimizer: optax.GradientTransformation
    mesh: Mesh
    """The devices that train, as seeds × sets."""
    initialize: Callable[[Int[np.ndarray, " seeds"]], TrainState]
    """The compiled function from the seeds to their state before the first step."""
    shapes: TrainState
    """Names, shapes and types of all that training carries."""

    @property
    def task(self) -> Task:
        """The task of the settings."""
        return self.config.task

    @property
    def sharding(self) -> NamedSharding:
        """The places of the state: its seeds divided among the devices, where they divide evenly."""
        return state_sharding(self.mesh, self.config.seeds)

    def initial_state(self) -> TrainState:
        """Returns random parameters and the optimizer's state of every seed, before the first step."""
        return self.initialize(np.asarray(self.config.all_seeds, np.int32))


def build_run(config: Config) -> Run:
    """Builds a run from its settings; writes nothing.

    Raises Refusal for an unknown normalizer, for an optimizer or a schedule that optax cannot build, and for seeds and
    sets that do not divide among the processes.
    """
    structure, initialize = build_model(config.task, config.normalizer)
    schedule = build_schedule(config)
    optimizer = build_optimizer(config, schedule)
    mesh = training_mesh(config)

    def initial_state(seed: Int[Array, ""]) -> TrainState:
        parameters = initialize(parameter_key(seed))
        return TrainState(parameters, optimizer.init(parameters), seed)

    compiled = jax.jit(jax.vmap(initial_state), out_shardings=state_sharding(mesh, config.seeds))
    shapes = compiled.eval_shape(jax.ShapeDtypeStruct((config.seeds,), np.int32))
    return Run(config, structure, schedule, optimizer, mesh, compiled, shapes)


def training_mesh(config: Config) -> Mesh:
    """Returns the devices that train, as seeds × sets. Seeds are padded where no device can help with another's."""
    if config.task.least_sets is None:
        return device_mesh(config.seeds + -config.seeds % min(jax.device_count(), config.seeds))
    return device_mesh(config.seeds, config.task.batch, config.task.least_sets)


def state_sharding(mesh: Mesh, seeds: int) -> NamedSharding:
    """Returns the sharding of arrays with a leading axis of seeds."""
    return NamedSharding(mesh, P() if seeds % mesh.shape[SEEDS] else P(SEEDS))


def resolve_start(config: Config) -> Config:
    """Returns the settings with the batches to leave out, where the models start from those of another run.

    Raises Refusal, in one line, unless that run is there, with these seeds and parameters.
    """
    if not config.start_from:
        return config
    start = read_config(config.start_from)
    if absent := sorted(set(config.all_seeds) - set(start.all_seeds)):
        raise Refusal(
            f"--start-from is {config.start_from}, which has no seed {absent[0]}: its seeds are {start.first_seed} to "
            f"{start.all_seeds[-1]}; choose --first-seed and --seeds among them"
        )
    shapes, start_shapes = (parameter_shapes(task, start.normalizer) for task in (config.task, start.task))
    if shapes != start_shapes:
        raise Refusal(
            f"--start-from is {config.start_from}, whose models have other parameters: give this run the task and the "
            "sizes in its config.json"
        )
    return config if config.first_batch else dataclasses.replace(config, first_batch=start.first_batch + start.steps)


def parameter_shapes(task: Task, normalizer: str) -> Parameters:
    """Returns names, shapes and types of the parameters of one model."""
    return jax.eval_shape(build_model(task, normalizer)[1], jax.random.key(0))
