"""The floor of a computation on this machine: the time that its multiply-adds take as large matrix products."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from benchmarks.costs import step_multiply_adds
from benchmarks.timing import timed
from softmax_jax.commands.options import one_device_per_core
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.training.distributed import SEEDS, device_mesh

PRODUCTS = 32
"""In a turn, on each device: enough that the first milliseconds of a core that has waited do not count."""


def mean_multiply_adds(task: MaxRetrieval) -> float:
    """Multiply-adds of a step, on average over the lengths that a batch may have."""
    return step_multiply_adds((task.min_items + task.max_items) / 2, task.sets, task.width)


def products_alone(multiply_adds: float, size: int = 1024) -> Callable[[], float]:
    """Seconds of so many multiply-adds at the rate of large products on all devices at once, a core each on CPUs.

    All at once, because cores may share their arithmetic units, so that two of them are hardly faster than one.
    """
    one_device_per_core()
    devices = jax.device_count()

    def multiply(squares: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, PRODUCTS, lambda _, square: square @ squares, squares)

    mesh, over_seeds = device_mesh(devices), PartitionSpec(SEEDS)
    spread = jax.jit(jax.shard_map(multiply, mesh=mesh, in_specs=over_seeds, out_specs=over_seeds, check_vma=False))
    squares = jnp.full((devices, size, size), 1 / size)
    return timed(lambda: spread(squares), devices * PRODUCTS * size**3 / multiply_adds)
