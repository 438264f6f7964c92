"""The numbers of a normalizer that are learned: their names, where they start, and the normalizer with others."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.normalizer import Normalizer


def number_names(normalizer: Normalizer) -> list[str]:
    """Returns the name of each leaf: where it lies in the map or scale."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(normalizer)]
    return [jax.tree_util.keystr(path[1:], simple=True, separator="_") for path in paths]


def initial_numbers(
    normalizer: Normalizer, learn: tuple[str, ...], shape: tuple[int, ...] | None, of_query: tuple[str, ...] = ()
) -> dict[str, Float[Array, "..."]]:
    """The numbers to learn by name, in float32, of this shape if one is given; those in `of_query` too.

    Raises ValueError for a name that is not one, TypeError for a name in the place of a tuple of them.

    >>> from softmax_jax import normalizer
    >>> initial_numbers(normalizer("ssmax(s=0.5)"), ("s",), (2, 1, 1))["s"].ravel()
    Array([0.5, 0.5], dtype=float32)
    """
    names = number_names(normalizer)
    known = [name for name in names if names.count(name) == 1]
    for what, given in {"learn": learn, "of_query": of_query}.items():
        if isinstance(given, str):
            raise TypeError(f"{what} is {given!r}; it must be a tuple of names, such as ({given!r},)")
    wanted = tuple(dict.fromkeys((*learn, *of_query)))
    for name in wanted:
        if name not in known:
            near = checks.did_you_mean(name, known)
            raise ValueError(
                f"cannot learn {name!r}: {near}the numbers of this normalizer are {', '.join(known) or 'none'}"
            )
    leaves = dict(zip(names, jax.tree.leaves(normalizer)))
    numbers = {name: jnp.asarray(leaves[name], jnp.float32) for name in wanted}
    return numbers if shape is None else {name: jnp.broadcast_to(n, shape) for name, n in numbers.items()}


def with_numbers(normalizer: Normalizer, numbers: Mapping[str, ArrayLike]) -> Normalizer:
    """The normalizer with these numbers in the place of its own."""
    leaves, tree = jax.tree.flatten(normalizer)
    return tree.unflatten([numbers.get(name, leaf) for name, leaf in zip(number_names(normalizer), leaves)])
