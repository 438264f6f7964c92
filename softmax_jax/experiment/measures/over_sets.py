"""Computes a function of a model and a test set for every set of every seed, on all devices."""

import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P

from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.tasks.task import Task
from softmax_jax.experiment.training.distributed import SEEDS, SETS, device_mesh, placed
from softmax_jax.experiment.training.run import Parameters, build_model

Argument = TypeVar("Argument")
Result = TypeVar("Result")


@functools.cache
def models_of(task: Task, trained_under: str | None = None, items: int = 0) -> Callable[[Parameters], tuple[Any, Any]]:
    """Returns a function from the parameters of a seed to its model under softmax, and the one as it was trained.

    The first is the fastest for this number of items of test sets, the second None unless `trained_under` names a
    normalizer. One function object for the same arguments, so that compiled programs are found again.
    """
    structure, initialize = build_model(task, BASELINE)
    expected = jax.eval_shape(initialize, jax.random.key(0))

    def models(parameters: Parameters) -> tuple[Any, Any]:
        under_softmax = task.for_testing(nnx.merge(structure, _without_learned(expected, parameters)), items)
        if trained_under is None:
            return under_softmax, None
        return under_softmax, nnx.merge(build_model(task, trained_under)[0], parameters)

    return models


def _without_learned(expected: Any, parameters: Any) -> Any:
    """Returns the parameters without the numbers that a normalizer learned."""
    if not isinstance(expected, dict):
        return parameters
    return {name: _without_learned(expected[name], parameters[name]) for name in expected}


def on_every_set(
    compute: Callable[..., Any],
    models: Callable[[Parameters], Any],
    parameters: Parameters,
    drawn: Any,
    at_once: int,
    shared: Any = (),
) -> Any:
    """Returns `compute(models, set, shared)` of every set of every seed.

    Seeds are divided among the devices, and batches of sets among those left over; no device waits for another.

    Arguments:
        compute: The function of one set; equal functions share a compiled program.
        models: The function from the parameters of a seed to what `compute` is given as its models.
        parameters: Those of all seeds, with a leading axis of these.
        drawn: What `compute` is given of each set, with leading axes (seeds, sets).
        at_once: The most sets in a batch, which a device computes together.
        shared: What `compute` is given for every set alike.

    Returns:
        The results, whose leaves have leading axes (seeds, batches, sets of a batch); see `set_by_set`.
    """
    seeds, sets = jax.tree.leaves(drawn)[0].shape[:2]
    sets_of_device = sets // device_mesh(seeds, sets).shape[SETS]
    per_batch = max(size for size in range(1, min(at_once, sets_of_device) + 1) if sets_of_device % size == 0)
    batches = jax.tree.map(lambda leaf: leaf.reshape(seeds, sets // per_batch, per_batch, *leaf.shape[2:]), drawn)
    mesh = device_mesh(seeds, sets // per_batch)
    specs = (P(SEEDS), P(SEEDS, SETS), P())
    shardings = (NamedSharding(mesh, spec) for spec in specs)
    arguments = [placed(tree, sharding) for tree, sharding in zip((parameters, batches, shared), shardings)]
    return _on_devices(*arguments, compute=compute, models=models, mesh=mesh)


@functools.partial(jax.jit, static_argnames=("compute", "models", "mesh"))
def _on_devices(
    parameters: Parameters,
    batches: Any,
    shared: Any,
    *,
    compute: Callable[..., Any],
    models: Callable[[Parameters], Any],
    mesh: jax.sharding.Mesh,
) -> Any:
    def on_device(parameters: Parameters, batches: Any, shared: Any) -> Any:
        def seed_results(seed: tuple[Parameters, Any]) -> Any:
            seed_models = models(seed[0])
            return jax.lax.map(jax.vmap(lambda drawn: compute(seed_models, drawn, shared)), seed[1])

        return jax.lax.map(seed_results, (parameters, batches))

    specs = (P(SEEDS), P(SEEDS, SETS), P())
    spread = jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=P(SEEDS, SETS), check_vma=False)
    return spread(parameters, batches, shared)


def set_by_set(tree: Any) -> Any:
    """Returns numpy arrays with leading axes (seeds, sets) from leaves of (seeds, batches, sets of a batch, ...)."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(len(leaf), -1, *leaf.shape[3:]), tree)


def two_at_a_time(function: Callable[[Argument], Result], arguments: Iterable[Argument]) -> Iterator[Result]:
    """Yields the results in order, always with the next call under way.

    XLA compiles on one core: this lets it compile for the next argument while the computation of one runs.
    """
    pool = ThreadPoolExecutor(2)
    try:
        yield from pool.map(function, arguments)
    finally:
        pool.shutdown(cancel_futures=True)
