"""Computes a function of a model and a test set for every set of every seed, on all devices."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P

from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.tasks.task import Task
from softmax_jax.experiment.training.distributed import SEEDS, SETS, device_mesh, placed
from softmax_jax.experiment.training.run import Parameters, build_model

SPECS = P(SEEDS), P(SEEDS, SETS), P()
"""How models, batches of sets and what all share are divided."""


def models_of(task: Task, parameters: Parameters, trained_under: str | None = None, items: int = 0) -> tuple[Any, Any]:
    """Returns the models of all seeds under softmax, and those as they were trained, with a leading axis of the seeds.

    The first are the fastest for this number of items of test sets of a seed, the second None unless `trained_under`
    names a normalizer.
    """
    models = _built(parameters, task=task, trained_under=trained_under, items=items)
    if jax.process_count() > 1:
        return models
    # Divided here, once, or each computation would copy them.
    return placed(models, NamedSharding(device_mesh(len(jax.tree.leaves(parameters)[0])), P(SEEDS)))


@functools.partial(jax.jit, static_argnames=("task", "trained_under", "items"))
def _built(parameters: Parameters, *, task: Task, trained_under: str | None, items: int) -> tuple[Any, Any]:
    structure, initialize = build_model(task, BASELINE)
    expected = jax.eval_shape(initialize, jax.random.key(0))

    def models(parameters: Parameters) -> tuple[Any, Any]:
        under_softmax = task.for_testing(nnx.merge(structure, _without_learned(expected, parameters)), items)
        if trained_under is None:
            return under_softmax, None
        return under_softmax, nnx.merge(build_model(task, trained_under)[0], parameters)

    return jax.lax.map(models, parameters)


def _without_learned(expected: Any, parameters: Any) -> Any:
    """Returns the parameters without the numbers that a normalizer learned."""
    if not isinstance(expected, dict):
        return parameters
    return {name: _without_learned(expected[name], parameters[name]) for name in expected}


def on_every_set(compute: Callable[..., Any], models: Any, drawn: Any, at_once: int, shared: Any = ()) -> Any:
    """Returns `compute(model, set, shared)` of every set of every seed.

    Seeds are divided among the devices, and batches of sets among those left over; no device waits for another.

    Arguments:
        compute: The function of one set; equal functions share a compiled program.
        models: What `compute` is given as its model, such as `models_of`, with a leading axis of the seeds.
        drawn: What `compute` is given of each set, with leading axes (seeds, sets).
        at_once: The most sets in a batch, which a device computes together.
        shared: What `compute` is given for every set alike.

    Returns:
        The results, whose leaves have leading axes (seeds, batches, sets of a batch); see `set_by_set`.
    """
    arguments, settings = _divided(models, drawn, at_once, shared)
    return _on_devices(*arguments, compute=compute, **settings)


def as_they_compile(lengths: Iterable[Sequence[tuple[Any, ...]]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Yields the arguments of calls of `on_every_set`, those of a length together, once their program is compiled.

    XLA compiles on one core: another thread compiles for the next lengths while the caller computes one.
    """
    pool = ThreadPoolExecutor(1)
    try:
        yield from pool.map(_compiled, lengths)
    finally:
        pool.shutdown(cancel_futures=True)


def _compiled(calls: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
    compute, *rest = calls[0]
    arguments, settings = _divided(*rest)
    _on_devices.lower(*arguments, compute=compute, **settings).compile()
    return calls


def _divided(models: Any, drawn: Any, at_once: int, shared: Any = ()) -> tuple[list[Any], dict[str, Any]]:
    """Returns the models, the sets and what is shared, on the devices of a mesh; the mesh, and the sets of a batch."""
    seeds, sets = jax.tree.leaves(drawn)[0].shape[:2]
    sets_of_device = sets // device_mesh(seeds, sets).shape[SETS]
    per_batch = max(size for size in range(1, min(at_once, sets_of_device) + 1) if sets_of_device % size == 0)
    mesh = device_mesh(seeds, sets // per_batch)
    shardings = (NamedSharding(mesh, spec) for spec in SPECS)
    arguments = [placed(tree, sharding) for tree, sharding in zip((models, drawn, shared), shardings)]
    return arguments, {"mesh": mesh, "per_batch": per_batch}


@functools.partial(jax.jit, static_argnames=("compute", "mesh", "per_batch"))
def _on_devices(
    models: Any, drawn: Any, shared: Any, *, compute: Callable[..., Any], mesh: jax.sharding.Mesh, per_batch: int
) -> Any:
    def on_device(models: Any, drawn: Any, shared: Any) -> Any:
        def seed_results(seed: tuple[Any, Any]) -> Any:
            return jax.lax.map(jax.vmap(lambda of_set: compute(seed[0], of_set, shared)), seed[1])

        batches = jax.tree.map(lambda leaf: leaf.reshape(len(leaf), -1, per_batch, *leaf.shape[2:]), drawn)
        return jax.lax.map(seed_results, (models, batches))

    spread = jax.shard_map(on_device, mesh=mesh, in_specs=SPECS, out_specs=P(SEEDS, SETS), check_vma=False)
    return spread(models, drawn, shared)


def set_by_set(tree: Any) -> Any:
    """Returns numpy arrays with leading axes (seeds, sets) from leaves of (seeds, batches, sets of a batch, ...)."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(len(leaf), -1, *leaf.shape[3:]), tree)
