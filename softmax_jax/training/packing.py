"""The state of training with each tree of parameters as one vector.

An optimizer that treats every number alone takes as many operations for a vector as for each leaf of a tree, and
devices that share a seed exchange a vector as it is.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.flatten_util import ravel_pytree

Pack = Callable[[Any], Any]
"""From a state to the same with vectors in it."""
Unpack = Callable[[Any, Any], Any]
"""From that, and the state as it was or its shapes, to a state as it was."""

AS_IT_IS: tuple[Pack, Unpack] = (lambda state: state, lambda packed, like: packed)
"""Functions that change nothing, for an optimizer that must see the leaves."""


def packing(parameters: Any) -> tuple[Pack, Unpack]:
    """Functions that pack and unpack all that is shaped as these parameters, wherever it is in a tree.

    >>> parameters = {"bias": jax.numpy.zeros(2), "kernel": jax.numpy.ones((2, 2))}
    >>> pack, unpack = packing(parameters)
    >>> packed = pack((parameters, 7))
    >>> packed
    (Array([0., 0., 1., 1., 1., 1.], dtype=float32), 7)
    >>> unpack(packed, (parameters, 7))[0]["kernel"].shape
    (2, 2)
    """
    structure = jax.tree.structure(parameters)
    _, as_tree = ravel_pytree(parameters)

    def is_tree(node: Any) -> bool:
        return jax.tree.structure(node) == structure

    def pack(tree: Any) -> Any:
        return jax.tree.map(lambda node: ravel_pytree(node)[0] if is_tree(node) else node, tree, is_leaf=is_tree)

    def unpack(packed: Any, like: Any) -> Any:
        return jax.tree.map(
            lambda node, vector: as_tree(vector) if is_tree(node) else vector, like, packed, is_leaf=is_tree
        )

    return pack, unpack
