"""Devices and processes: which of them computes what, and how their parts come together.

All devices form one mesh of seeds × sets. Seeds never need each other, so they are divided first. Devices that are left
over divide the sets of a batch, which costs one all-reduce of a seed's gradient per training step and nothing in an
evaluation. What a seed draws depends on its number, the step and the place of a set in its batch, never on the mesh.

All processes run the same program on the same arguments and call every function here in the same order.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding

from softmax_jax.files import problem
from softmax_jax.refusal import Refusal

SEEDS, SETS = "seeds", "sets"
"""The axes of the mesh."""


def shares(seeds: int, sets: int, devices: int, processes: int = 1, least_sets: int = 1) -> tuple[int, int]:
    """Returns the number of equal parts of the seeds and of the sets: parts of seeds × parts of sets ≤ devices.

    As many devices work as can, equally many of each process. Of equal choices the seeds are divided more, as only
    divided sets communicate. A part has at least `least_sets` sets, unless a process would be left without
    work; raises Refusal if one is nevertheless.

    >>> shares(10, 128, 2), shares(10, 128, 8), shares(3, 128, 8), shares(1, 100, 8)
    ((2, 1), (2, 4), (1, 8), (1, 5))
    >>> shares(10, 128, 64), shares(10, 128, 64, least_sets=32)
    ((2, 32), (10, 4))
    """
    choices = [
        (by_seed, by_set)
        for by_seed in range(1, min(seeds, devices) + 1)
        for by_set in range(1, min(sets, devices // by_seed) + 1)
        if seeds % by_seed == 0 and sets % by_set == 0 and by_seed * by_set % processes == 0
    ]
    if not choices:
        raise Refusal(
            f"{seeds} seeds of {sets} sets do not divide evenly among {processes} processes: "
            "let a multiple of the processes divide seeds × sets"
        )

    def value(parts: tuple[int, int]) -> tuple[bool, int, int]:
        by_seed, by_set = parts
        return by_set == 1 or sets // by_set >= least_sets, by_seed * by_set, by_seed

    return max(choices, key=value)


def device_mesh(seeds: int, sets: int = 1, least_sets: int = 1) -> Mesh:
    """Returns the mesh with axes ("seeds", "sets") for this many seeds, with this many sets each.

    The devices that share a seed are neighbours: of one process where they can be, since only they communicate.
    """
    processes = range(jax.process_count())
    by_process = [[device for device in jax.devices() if device.process_index == process] for process in processes]
    usable = min(map(len, by_process)) * len(by_process)
    by_seed, by_set = shares(seeds, sets, usable, len(by_process), least_sets)
    each = by_seed * by_set // len(by_process)
    chosen = np.array([devices[:each] for devices in by_process]).reshape(by_seed, by_set)
    return Mesh(chosen, (SEEDS, SETS), axis_types=(AxisType.Auto,) * 2)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Which of several processes this is. Leave it out to run alone, or where JAX finds what started the processes:
    SLURM, Open MPI, Kubernetes or a Cloud TPU.
    """

    coordinator: str | None = None
    """HOST:PORT of process 0, the same for all; goes with --processes and --process."""
    processes: int | None = None
    """How many processes work together; 1 by itself runs alone whatever the environment says."""
    process: int | None = None
    """Which of them this is, from 0."""


ALONE = Cluster()


def join(cluster: Cluster = ALONE) -> None:
    """Joins this process to the others: as `cluster` says, or as JAX finds out from what started it.

    Where JAX finds nothing, or there is one process, it runs alone and does not touch the network. Call it before JAX
    first touches a device. Raises Refusal if the processes do not find each other.
    """
    if cluster.processes == 1 or jax.distributed.is_initialized():
        return
    # The service would take over SIGTERM, which ends a run after its chunk here.
    jax.config.update("jax_enable_preemption_service", False)
    method = None if cluster == ALONE else "deactivate"
    try:
        jax.distributed.initialize(
            cluster.coordinator, cluster.processes, cluster.process, cluster_detection_method=method
        )
    except (ValueError, RuntimeError) as error:
        # JAX finds no cluster, or has computed before, as in a notebook.
        if cluster == ALONE and re.search("should be defined|must be called before", str(error)):
            return
        raise Refusal(
            f"the processes did not find each other: {problem(error)}. Name a reachable --coordinator HOST:PORT with "
            "--processes and --process, or run alone by --processes 1"
        ) from None


def is_leader() -> bool:
    """Returns True in the process that writes and prints: the first, or the only one."""
    return jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Returns True if the flag is set in any process; all of them wait here for each other.

    >>> any_process(False), any_process(True)
    (False, True)
    """
    return flag if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.asarray(flag)).any())


def agree(problem: str | None) -> None:
    """Raises Refusal with the problem, on every process if any of them has one."""
    if any_process(problem is not None):
        raise Refusal(problem or "another process cannot go on; its own error says why")


def placed(tree: Any, sharding: Any) -> Any:
    """Returns the leaves divided among devices, of other processes too; each process brings the whole of every leaf.

    `sharding` is that of all leaves, or a tree with one for each.
    """

    def place(leaf: Any, sharding: NamedSharding) -> jax.Array:
        if isinstance(leaf, jax.Array) and isinstance(leaf.sharding, NamedSharding):
            return jax.device_put(leaf, sharding)
        return on_host(lambda whole: jax.make_array_from_callback(whole.shape, sharding, whole.__getitem__), leaf)

    return jax.tree.map(place, tree, jax.tree.broadcast(sharding, tree))


def on_host(function: Callable[[np.ndarray], Any], leaf: Any) -> Any:
    """Returns the function of an array on the host, where no shape takes a program of its own to be cut or divided.

    Keys are there as the words that they consist of, in a last axis, and keys again in the result.
    """
    dtype = jnp.result_type(leaf)  # a normalizer's number may be a plain one, which has no dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        words = on_host(function, jax.random.key_data(leaf))
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
    return function(np.asarray(leaf, dtype))


def gathered(tree: Any) -> Any:
    """Returns the leaves as whole numpy arrays, on every process."""

    def gather(leaf: Any) -> np.ndarray:
        return np.asarray(leaf if leaf.is_fully_addressable else multihost_utils.process_allgather(leaf, tiled=True))

    return jax.tree.map(gather, tree)
