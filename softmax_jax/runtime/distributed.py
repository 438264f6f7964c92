"""Several processes as one run: which of them this is, what they agree on, and how their parts come together.

All processes run the same program on the same arguments and call every function here in the same order. With one
process none of them touches the network.
"""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from softmax_jax.files import reason


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

    def __post_init__(self) -> None:
        """Raises ValueError for options that do not go together.

        >>> Cluster("10.0.0.1:1234", processes=2, process=2)
        Traceback (most recent call last):
        ValueError: --process is 2: with --processes 2 it must be from 0 to 1
        """
        given = {f"--{name}": value for name, value in dataclasses.asdict(self).items() if value is not None}
        if self.processes is not None and self.processes < 1:
            raise ValueError(f"--processes is {self.processes}: it must be at least 1")
        if given in ({}, {"--processes": 1}):
            return
        if self.coordinator is None or self.processes is None or self.process is None:
            said = " and ".join(f"{name} {value}" for name, value in given.items())
            raise ValueError(f"{said} alone: several processes need --coordinator, --processes and --process")
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 1 <= int(port) < 2**16:
            raise ValueError(f"--coordinator is {self.coordinator}: it must be HOST:PORT, as in 10.0.0.1:1234")
        if not 0 <= self.process < self.processes:
            rule = f"with --processes {self.processes} it must be from 0 to {self.processes - 1}"
            raise ValueError(f"--process is {self.process}: {rule}")


ALONE = Cluster()


def join(cluster: Cluster = ALONE) -> None:
    """Makes this process part of the run: as `cluster` says, or as JAX finds out from what started it.

    Where JAX finds nothing, or there is one process, it runs alone and does not touch the network. Call it before JAX
    first touches a device. Raises ValueError if the processes do not find each other.
    """
    if cluster.processes == 1 or jax.distributed.is_initialized():
        return
    # The service would take over SIGTERM, which ends a run at the end of a chunk here.
    jax.config.update("jax_enable_preemption_service", False)
    method = None if cluster == ALONE else "deactivate"
    try:
        jax.distributed.initialize(
            cluster.coordinator, cluster.processes, cluster.process, cluster_detection_method=method
        )
    except (ValueError, RuntimeError) as error:
        # JAX finds no cluster (a ValueError), or has computed before, as in a notebook.
        if cluster == ALONE and (isinstance(error, ValueError) or "must be called before" in str(error)):
            return
        how = "what started them" if cluster == ALONE else f"--coordinator {cluster.coordinator}"
        raise ValueError(
            f"the processes did not find each other by {how}: {reason(error)}. Name a reachable --coordinator "
            "HOST:PORT with --processes and --process, or run alone by --processes 1"
        ) from None


@contextlib.contextmanager
def joined(cluster: Cluster = ALONE) -> Iterator[None]:
    """`join` around a script's work. An error of this process alone ends it at once.

    An orderly exit waits for the other processes. ValueErrors are alike on all of them; anything else is not, and
    waiting for processes that wait for this one would take minutes.
    """
    join(cluster)
    try:
        yield
    except (KeyboardInterrupt, OSError, RuntimeError) as error:
        if jax.process_count() == 1:
            raise
        if isinstance(error, KeyboardInterrupt):
            leave(130)
        print(f"error: process {jax.process_index()} stops: {reason(error)}", file=sys.stderr)
        leave(2 if isinstance(error, OSError) else 1)


def leave(status: int) -> NoReturn:
    """Ends the process without waiting for anything but its words."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def is_leader() -> bool:
    """Whether this is the process that writes and prints: the first, or the only one."""
    return jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Whether the flag is set in any process; all of them wait here for each other.

    >>> any_process(False), any_process(True)
    (False, True)
    """
    return flag if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.asarray(flag)).any())


def agree(problem: str | None) -> None:
    """Raises ValueError with the problem, on every process if any of them has one."""
    if any_process(problem is not None):
        raise ValueError(problem or "another process cannot go on; its own error says why")


def placed(tree: Any, sharding: Any) -> Any:
    """The leaves divided among devices, of other processes too; each process brings the whole of every leaf.

    `sharding` is that of all leaves, or a tree with one for each.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)

    def place(leaf: Any, sharding: NamedSharding) -> jax.Array:
        dtype = jnp.result_type(leaf)  # a normalizer's number may be a plain one, which has no dtype
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(place(jax.random.key_data(leaf), sharding))
        whole = np.asarray(leaf, dtype)
        return jax.make_array_from_callback(whole.shape, sharding, whole.__getitem__)

    return jax.tree.map(place, tree, jax.tree.broadcast(sharding, tree))


def gathered(tree: Any) -> Any:
    """The leaves as whole numpy arrays, on every process."""

    def gather(leaf: Any) -> np.ndarray:
        return np.asarray(leaf if leaf.is_fully_addressable else multihost_utils.process_allgather(leaf, tiled=True))

    return jax.tree.map(gather, tree)
