"""Care for the places where a computation runs: explicit meshes, `shard_map`, debug flags, symbolic sizes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Shaped


def as_one(function: Callable[..., Any], *operands: Any, out: Any) -> Any:
    """function(*operands), computed as one operation where JAX looks at, or asks about, each.

    Under `jax.debug_nans` and `jax.debug_infs` it is compiled: within stands -inf for what is masked. Where an array
    lies on a mesh with explicit axes, XLA divides what is within, and `out` is the `PartitionSpec` of the result.
    Elsewhere it is called as it is.
    """
    leaves, structure = jax.tree.flatten(operands)
    arrays = {place: leaf for place, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}
    meshes = [jax.typeof(array).sharding.mesh for array in arrays.values()]
    mesh = next((mesh for mesh in meshes if mesh.explicit_axes), None)
    debugging = jax.debug_nans.value or jax.debug_infs.value
    if mesh is None and not debugging:
        return function(*operands)

    def of_arrays(arrays: dict[int, Array]) -> Any:
        # Plain numbers stay plain, as what is computed may hang on them.
        return function(*structure.unflatten([arrays.get(place, leaf) for place, leaf in enumerate(leaves)]))

    whole = jax.jit(of_arrays) if debugging else of_arrays
    if mesh is None:
        return whole(arrays)
    out = jax.tree.map(lambda spec: NamedSharding(mesh, spec), out, is_leaf=lambda x: isinstance(x, PartitionSpec))
    return jax.sharding.auto_axes(axes=mesh.explicit_axes, out_sharding=out)(whole)(arrays)


def spec_of(array: Any, without: int | tuple[int, ...] = ()) -> PartitionSpec:
    """How an array is divided over explicit axes of its mesh, with some of its own axes whole."""
    spec = jax.typeof(array).sharding.spec
    whole = {place % len(spec) for place in (without if isinstance(without, tuple) else (without,))}
    return PartitionSpec(*(None if place in whole else names for place, names in enumerate(spec)))


def varying(values: Shaped[Array, "*shape"], like: Any) -> Shaped[Array, "*shape"]:
    """The values, which count as different between the devices of a `shard_map` where `like`, of their shape, does.

    What a loop starts from must be so wherever a step is. No program computes it: XLA drops the choice.
    """
    return jnp.where(jnp.zeros_like(like, bool), values, values)


def is_known(size: Any) -> bool:
    """Returns True if a size is a number, False for a symbol of `jax.export`."""
    return isinstance(size, int)


def on_cpu() -> bool:
    """Returns True if CPU cores compute: one thing at a time fits a core's cache, where an accelerator takes many."""
    return jax.default_backend() == "cpu"
