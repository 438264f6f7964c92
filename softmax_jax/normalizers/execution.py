"""Care for the places where a computation runs: explicit meshes, `shard_map`, debug flags, symbolic sizes."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Shaped


def as_one(function: Callable[..., Any], operands: tuple[Any, ...], out: Any) -> Callable[[], Any]:
    """Returns function(*operands) to be called, as one operation where JAX would otherwise treat each step by itself.

    Two places need it: `compute_rows` of a row and attention. Elsewhere the call is that of the function.

    - Under `jax.debug_nans` and `jax.debug_infs` the function is compiled, because -inf stands for what is masked.
    - Where an array lies on a mesh with explicit axes, XLA divides the steps; `out` is the `PartitionSpec` of the
      result.
    """
    leaves, structure = jax.tree.flatten(operands)
    arrays = {place: leaf for place, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}
    meshes = [jax.typeof(array).sharding.mesh for array in arrays.values()]
    mesh = next((mesh for mesh in meshes if mesh.explicit_axes), None)
    debugging = jax.debug_nans.value or jax.debug_infs.value
    if mesh is None and not debugging:
        return functools.partial(function, *operands)

    def call_with(arrays: dict[int, Array]) -> Any:
        # Plain numbers stay plain, because the choice of a formula may depend on them.
        return function(*structure.unflatten([arrays.get(place, leaf) for place, leaf in enumerate(leaves)]))

    compute = jax.jit(call_with) if debugging else call_with
    if mesh is None:
        return functools.partial(compute, arrays)
    out = jax.tree.map(lambda spec: NamedSharding(mesh, spec), out, is_leaf=lambda x: isinstance(x, PartitionSpec))
    return functools.partial(jax.sharding.auto_axes(axes=mesh.explicit_axes, out_sharding=out)(compute), arrays)


def spec_of(array: Any, without: int | tuple[int, ...] = ()) -> PartitionSpec:
    """Returns how an array is divided over explicit axes of its mesh; its own axes in `without` are whole."""
    spec = jax.typeof(array).sharding.spec
    whole = {place % len(spec) for place in (without if isinstance(without, tuple) else (without,))}
    return PartitionSpec(*(None if place in whole else names for place, names in enumerate(spec)))


def varying(values: Shaped[Array, "*shape"], like: Any) -> Shaped[Array, "*shape"]:
    """Returns the values, marked as different between the devices of a `shard_map` where `like`, of their shape, is.

    The start of a loop must be marked as its steps are. This costs nothing: XLA drops the select.
    """
    return jnp.where(jnp.zeros_like(like, bool), values, values)


def is_known(size: Any) -> bool:
    """Returns True if a size is a number, False for a symbol of `jax.export`."""
    return isinstance(size, int)


def on_cpu() -> bool:
    """Returns True if CPU cores compute: one thing at a time fits a core's cache, where an accelerator takes many."""
    return jax.default_backend() == "cpu"
