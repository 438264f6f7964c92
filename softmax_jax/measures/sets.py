"""Fresh sets for every seed, on every device: which are drawn, in which batches, and how a program runs over them."""

import enum
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxtyping import Array, Int, Key

from softmax_jax.tasks.max_retrieval import CLASSES, TEST_KEY, Batch
from softmax_jax.tasks.task import Task
from softmax_jax.training.distributed import SEEDS, SETS, device_mesh, placed
from softmax_jax.training.trainer import Parameters, build_model

NOTEBOOK_LENGTHS = tuple(2**power for power in range(1, 13))
NOTEBOOK_SEEDS = range(11, 22)
NOTEBOOK_SETS = 32


class FreshSets(NamedTuple):
    """Sets to draw. Every set keeps its first `lengths` items visible, of the items that the program has room for."""

    keys: Key[Array, "*sets"]
    lengths: Int[Array, "*sets"]


def fresh_batches(
    task: Task,
    seeds: Sequence[int],
    items: int,
    sets: int,
    key: Key[Array, ""] | None = None,
    room: int | None = None,
) -> FreshSets:
    """`sets` sets of each seed, grouped into batches: shape (seeds, batches, sets per batch).

    Batches divide evenly among the devices of a seed, and are of a size for sets of `room` items, or else of `items`. A
    set depends on the key, its seed, `items` and its index alone, not on how sets are grouped.
    """
    of_device = sets // device_mesh(len(seeds), sets).shape[SETS]
    per_batch = math.gcd(of_device, task.at_once(room or items))
    keys = jax.vmap(lambda seed: task.test_keys(seed, items, sets, key))(jnp.asarray(seeds, jnp.int32))
    keys = keys.reshape(len(seeds), sets // per_batch, per_batch)
    return FreshSets(keys, jnp.full(keys.shape, items, jnp.int32))


@enum.unique
class Draw(enum.IntEnum):
    """What a numbered draw of sets is for. 0 is the task's own, that of every table."""

    TABLES = 0
    FIT = 1
    COMPARISON_OF_FITS = 2
    REPORT = 3
    SHARPEST = 4


def key_of(draw: int) -> Key[Array, ""]:
    """The key of a numbered draw, for `test_keys`; away from those of training."""
    return jax.random.key(TEST_KEY + draw)


def numbered_key(number: int) -> Key[Array, ""] | None:
    """The same as a command line may ask for it: None for 0, which leaves the key to the task."""
    return key_of(number) if number else None


@functools.cache
def draw_with_room(task: Task, room: int) -> Callable[[FreshSets], Any]:
    """Draws sets with room for so many items; one function object each, so that the compiled code is found again."""
    return lambda sets: task.draw(*sets, room)


def as_given(batch: Any) -> Any:
    """The batch itself, for what is drawn before or later."""
    return batch


def notebook_batches(seeds: Sequence[int], items: int) -> Batch:
    """The evaluation stream of the published recreation: eleven keys of 32 sets, the same for every seed.

    Its random bits are those of JAX's old threefry layout, so accuracies compare to tables published from it.
    """

    def one(seed: int) -> Batch:
        _, key = jax.random.split(jax.random.key(seed))
        _, rho_key, kappa_key, query_key = jax.random.split(key, 4)
        rho = jax.random.uniform(rho_key, (NOTEBOOK_SETS, items, 1), jnp.float32)
        kappa = jax.random.randint(kappa_key, (NOTEBOOK_SETS, items), 0, CLASSES, jnp.int32)
        query = jax.random.uniform(query_key, (NOTEBOOK_SETS, 1, 1), jnp.float32)[:, 0]
        features = jnp.concatenate([rho, jax.nn.one_hot(kappa, CLASSES, dtype=rho.dtype)], -1)
        answer = jnp.take_along_axis(kappa, rho.argmax(1), 1)[:, 0]
        return Batch(features, query, jnp.ones(kappa.shape, bool), answer)

    with jax.threefry_partitionable(False):
        batches = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[one(seed) for seed in NOTEBOOK_SEEDS])
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(seeds), *leaf.shape)), batches)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("structure", "draw", "prepare"))
def for_each_seed(
    compute: Callable[..., Any],
    parameters: Parameters,
    batches: Any,
    *everywhere: Any,
    structure: nnx.GraphDef,
    draw: Callable[[Any], Any],
    prepare: Callable[[Any], Any] = as_given,
) -> Any:
    """`compute(model, *everywhere, batch)` on every batch of every seed: leaves with leading axes (seeds, batches).

    Seeds are divided among the devices, and batches among those left over; no device waits for another. The
    arguments are those that `on_devices` returns. `prepare` is applied to the model of a seed before its batches.
    """

    def on_device(parameters: Parameters, batches: Any, everywhere: Any) -> Any:
        def one_seed(of_seed: tuple[Parameters, Any]) -> Any:
            model = prepare(nnx.merge(structure, of_seed[0]))
            return jax.lax.map(lambda batch: compute(model, *everywhere, draw(batch)), of_seed[1])

        return jax.lax.map(one_seed, (parameters, batches))

    by_batch = P(SEEDS, SETS)
    spread = jax.shard_map(
        on_device, mesh=_mesh_of(batches), in_specs=(P(SEEDS), by_batch, P()), out_specs=by_batch, check_vma=False
    )
    return spread(parameters, batches, everywhere)


def _mesh_of(batches: Any) -> jax.sharding.Mesh:
    return device_mesh(*jax.tree.leaves(batches)[0].shape[:2])


def on_devices(parameters: Parameters, batches: Any, everywhere: Any = ()) -> tuple[Parameters, Any, Any]:
    """Parameters of every seed, its batches, and what all seeds share, each where `for_each_seed` needs them."""
    mesh = _mesh_of(batches)
    specs = (P(SEEDS), P(SEEDS, SETS), P())
    return tuple(
        placed(tree, NamedSharding(mesh, spec)) for tree, spec in zip((parameters, batches, everywhere), specs)
    )


def on_fresh_sets(
    compute: Callable[..., Any],
    task: Task,
    parameters: Parameters,
    *everywhere: Any,
    key: Key[Array, ""],
    seeds: Sequence[int],
    items: int,
    sets: int,
) -> Any:
    """`compute(model, *everywhere, batch)` on fresh sets of each seed, without padding; leaves by seed and set."""
    batches = fresh_batches(task, seeds, items, sets, key)
    arguments = on_devices(parameters, batches, everywhere)
    computed = for_each_seed(
        compute, *arguments[:2], *arguments[2], structure=build_model(task)[0], draw=draw_with_room(task, items)
    )
    return set_by_set(computed)


def set_by_set(tree: Any) -> Any:
    """Numpy arrays of leading axes (seeds, sets), of leaves (seeds, batches, sets per batch, ...)."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(len(leaf), -1, *leaf.shape[3:]), tree)
