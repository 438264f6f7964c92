"""Numbers of a normalizer for each turn of a scan over layers.

A model that stacks the parameters of its layers runs them in one `scan`. A turn is a layer, and a softmax in the body
is one site for all layers. Numbers that have the turns as their first axis are sliced as the parameters are.

A scan runs over layers if both what it carries and what it slices reach the logits:

    layers              carries x, slices parameters        both reach the logits
    blocks of queries   slices queries, carries nothing     one scan further out may run over layers
    written tokens      carries a cache, slices no floats   one scan further in may run over layers
    time steps          carries a state, slices inputs      both reach the logits: taken for layers

What a scan slices, parameters or inputs, no program says. So a recurrent decoder may have numbers for each time step,
and `calibrate` learns numbers for each turn only if it is asked to.

Worked example, 4 layers and logits of shape (2, 3, 6, 6) for batch, heads, queries, keys:

    s (4, 3, 1, 1)      as many axes as the logits: layer t gets s[t], of shape (3, 1, 1), one number per head
    s (4, 2, 3, 1, 1)   one more: layer t gets s[t], of shape (2, 3, 1, 1), one number per head and batch entry
    s (3, 1, 1)         fewer: all layers get s

So numbers per batch entry, alike for all layers, have the shape (1, 2, 3, 1, 1).
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from softmax_jax.normalizers.parameters import number_names
from softmax_jax.refusal import Refusal
from softmax_jax.transforms.bodies import scan_sizes
from softmax_jax.transforms.find import Softmax
from softmax_jax.transforms.program import Node, Value, walk


def find_scan(softmax: Softmax) -> Node | None:
    """Returns the innermost scan over layers that a softmax lies in."""
    for frame in softmax.node.frame.enclosing():
        scan = frame.caller
        if scan and scan.name == "scan":
            # The inputs of the body that change with the turn: what it carries, then a slice of each sequence.
            carried = scan_sizes(scan.params)[1]
            if all(_reaches(inputs, softmax.logits) for inputs in (frame.inputs[:carried], frame.inputs[carried:])):
                return scan
    return None


def _reaches(inputs: Iterable[Value], logits: Value) -> bool:
    """Says whether logits are computed from one of these inputs that is of floating point."""

    def follow(value: Value) -> list[Value]:
        return [*value.aliases, *(result for node, _ in value.users for result in node.outputs)]

    floating = [value for value in inputs if value.dtype is not None and jnp.issubdtype(value.dtype, jnp.floating)]
    return logits in set(walk(floating, follow))


class NumbersByTurn:
    """The numbers of a normalizer, some of which a scan slices.

    Raises ValueError for numbers whose first axis is not that of the turns.
    """

    def __init__(self, normalizer: Any, turns: int | None, rank: int) -> None:
        self.leaves, self.structure = jax.tree.flatten(normalizer)
        self.sliced: dict[Value, Any] = {}
        """The numbers of each turn, by what stands for those of one."""
        for position, (name, leaf) in enumerate(zip(number_names(normalizer), self.leaves)):
            if turns is None or jnp.ndim(leaf) < rank:
                continue
            first, *others = leaf.shape
            if first not in (1, turns):
                raise Refusal(
                    f"{name} has shape {leaf.shape} for logits of {rank} axes; of {rank} or more the first must be the "
                    f"{turns} turns: give {(turns, *others)}, or {(1, *others)} for all turns alike"
                )
            # A first axis of size 1 is for all turns alike. Of 4, s[t] is put in when the scan is at turn t: until then
            # a value without an equation stands for it, as it does for the slices of the model's own sequences.
            self.leaves[position] = leaf[0]
            if first > 1:
                self.leaves[position] = slot = Value(tuple(others), leaf.dtype)
                self.sliced[slot] = leaf

    def at_turn(self, values: dict[Value, Any]) -> Any:
        """Returns the normalizer with the numbers of a turn, which are among the values."""
        leaves = [values[leaf] if isinstance(leaf, Value) else leaf for leaf in self.leaves]
        return self.structure.unflatten(leaves)
