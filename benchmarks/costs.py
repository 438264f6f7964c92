r"""What training costs, as formulas, and the time that so many multiply-adds take alone: the floor of a computation.

With width $w$, $n$ items per set and $S$ sets per batch, a step of one seed takes
$S\,(n\,(3w^2 + 28w) + 18w^2 + 38w)$ multiply-adds. Divided over $d$ devices each takes a $d$-th of them.

A decoder of $L$ layers and width $h$, over $R$ rows of $t$ tokens of which $a$ have answers behind them, takes
$3\,(L\,R\,t\,(12h^2 + 2th) + avh + 2vfh)$ with $v$ tokens to choose from, each known by $f$ features.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from benchmarks.timing import timed
from softmax_jax.experiment.commands.process import one_device_per_core
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.retrieval_model import CLASSES, FEATURES
from softmax_jax.experiment.training.distributed import SEEDS, device_mesh
from studies.clrs_text.task import ClrsText

PRODUCTS = 32
"""In a turn, on each device: enough that the first milliseconds of a core that has waited do not count."""


def item_multiply_adds(width: int, normalizers: int = 1) -> int:
    """Multiply-adds that one more item costs forward: two layers, its logit, and its place in every weighted sum.

    >>> item_multiply_adds(width=128)
    18048
    """
    return FEATURES * width + width**2 + (1 + normalizers) * width


def step_multiply_adds(items: int | float, sets: int, width: int) -> int | float:
    """Multiply-adds of the matrix products in one training step of one seed, forward and backward.

    The backward pass takes twice the forward one, less what would be the gradient of the data. The biases of key and
    value enter by products. The penalty Σw², a sum over the parameters, is left out.

    >>> step_multiply_adds(items=16, sets=128, width=128)
    146374656
    """
    forward = items * item_multiply_adds(width) + 6 * width**2 + (1 + 2 + CLASSES) * width
    data_products = items * FEATURES * width + width
    return sets * (3 * forward - data_products)


def decoder_multiply_adds(task: ClrsText) -> int:
    """Multiply-adds of the matrix products in one training step of one decoder, forward and backward.

    Those of the optimizer are left out.

    >>> round(decoder_multiply_adds(ClrsText()) / 1e9, 1)
    12.1
    >>> task = ClrsText(hidden=768, heads=12, layers=14, batch=32)  # of the preset clrs_text_100m
    >>> round(2 * decoder_multiply_adds(task) * 20_000 / 1e18, 2)  # exaflop
    0.8
    """
    rows, width = task.packed.slots.shape
    tokens, answers = task.batch * rows * width, task.batch * len(task.packed.answers)
    choices, features = task.vocabulary.features().shape
    layer_products = task.layers * tokens * (12 * task.hidden**2 + 2 * width * task.hidden)
    return 3 * (layer_products + (answers + 2 * features) * choices * task.hidden)


def mean_multiply_adds(task: MaxRetrieval) -> float:
    """Multiply-adds of a step, on average over the lengths that a batch may have."""
    return step_multiply_adds((task.min_items + task.max_items) / 2, task.batch, task.width)


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
