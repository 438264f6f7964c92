"""What a program does with the weights of a softmax: attention is what sums values under them."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from softmax_jax.normalizers import checks
from softmax_jax.transforms.graph import Graph, Node, Value
from softmax_jax.transforms.paths import MOVED, SAME, constant

Use = Literal["attention", "choice", "log", "expectation", "output", "other", "kernel", "blocks", "segments", "unread"]
"""Attention: the weights enter a product that sums vectors over their axis. Choice: the largest are chosen, as a router
or a sampler does, even if vectors are summed under those. Log: of a likelihood. Expectation: a product sums numbers
under them. Output: the function returns them, as a classifier does. Kernel, blocks, segments and unread are what cannot
be read: a compiled kernel, rows that come in blocks, rows of their own lengths, and what else divides by a sum of
exponentials."""

CHOICES = frozenset({"argmax", "argmin", "top_k", "sort", "approx_top_k", "cumsum"})
INDEX = {"top_k": 1, "approx_top_k": 1, "sort": 1, "argmax": 0, "argmin": 0}
"""Which result of a choice has indices."""


class Tracked(NamedTuple):
    """A value that holds weights, and the axis along which they sum to one."""

    value: Value
    axis: int
    spread: bool = False
    """Whether an axis was added, along which each weight stands many times."""
    mixed: bool = False
    """Whether weights of several rows were summed."""


def use_of(weights: Value, axes: tuple[int, ...], logits: Value, graph: Graph) -> Use:
    """What is done with weights first of all that counts: attention, then a choice, then what else."""
    uses: dict[Use, list[Any]] = {}
    for axis in axes:
        for use, node in _uses(Tracked(weights, axis), graph):
            uses.setdefault(use, []).append(node)
    choices = [*uses.get("choice", ()), *_chosen_from(logits)]
    if "attention" in uses and choices:
        chosen = _made_of([one for node in choices for one in node.outputs[INDEX.get(node.name, 9) :]])
        if all(chosen.intersection(node.inputs) for node in uses["attention"]):
            return "choice"  # what was chosen meets the weights again
    for use in ("attention", "choice", "log", "expectation", "output"):
        if use in uses:
            return use
    return "other"


def _uses(start: Tracked, graph: Graph) -> Iterator[tuple[Use, Node | None]]:
    """Returns each use of weights, and the equation that uses them so."""
    seen: set[Value] = set()
    waiting = [start]
    while waiting:
        tracked = waiting.pop()
        if tracked.value in seen:
            continue
        seen.add(tracked.value)
        waiting += _also(tracked)
        if tracked.value in graph.root.outputs and not tracked.mixed:
            yield "output", None
        for node, position in tracked.value.users:
            if use := _used(node, position, tracked):
                yield use, node
            elif moved := _followed(node, position, tracked):
                axis, spread = moved
                mixed = tracked.mixed or node.name in ("dot_general", "reduce_sum")
                waiting += [Tracked(one, axis, spread, mixed) for one in node.outputs]


def _also(tracked: Tracked) -> Iterator[Tracked]:
    """Returns the weights within and outside of bodies: a loop takes or gives one turn of an axis before all others."""
    for other in tracked.value.also:
        axis = tracked.axis + len(other.shape) - len(tracked.value.shape)
        if axis >= 0 and other.shape[axis] == tracked.value.shape[tracked.axis]:
            yield tracked._replace(value=other, axis=axis)


def _used(node: Node, position: int, tracked: Tracked) -> Use | None:
    """Returns what an equation does with weights: attention is a product over their axis, or the sum of one."""
    if node.name == "dot_general":
        contracted, batch = node.params["dimension_numbers"]
        if tracked.axis not in contracted[position]:
            return None
        gone = len(contracted[1 - position]) + len(batch[1 - position])
        return "attention" if len(node.inputs[1 - position].shape) > gone else "expectation"
    if node.name == "reduce_sum" and tracked.axis in node.params["axes"]:
        return "attention" if tracked.spread else "expectation"
    return "choice" if node.name in CHOICES else "log" if node.name == "log" else None


def _chosen_from(logits: Value) -> list[Node]:
    """Returns the choices, if any, whose largest numbers the logits are."""
    while node := logits.producer:
        if node.name in CHOICES:
            return [node]
        if node.name == "gather":  # along indices that were chosen
            return _choices_behind(node.inputs[1])
        rest = [one for one in node.inputs if constant(one) is None and one.shape == logits.shape]
        if node.name not in MOVED | {"slice"} and (node.name not in ("mul", "div", "add", "sub", "max") or not rest):
            break
        logits = rest[0] if rest else node.inputs[0]
    return []


def _choices_behind(indices: Value) -> list[Node]:
    found, seen, waiting = [], {indices}, [indices]
    while waiting:
        node = waiting.pop().producer
        if node and node.name in CHOICES:
            found.append(node)
        elif node and node.name in MOVED | {"slice", "concatenate", "add", "lt", "select_n", "iota"}:
            waiting += [one for one in node.inputs if one not in seen]
            seen.update(node.inputs)
    return found


def _made_of(values: Iterable[Value]) -> set[Value]:
    """Returns these values and all that is computed from them."""
    made: set[Value] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value not in made:
            made.add(value)
            waiting += [*value.also, *(one for node, _ in value.users for one in node.outputs)]
    return made


def _followed(node: Node, position: int, tracked: Tracked) -> tuple[int, bool] | None:
    """Returns the axis of weights in the results of an equation, if they are still weights of the same rows.

    Beside it, whether each weight stands there many times.
    """
    if not node.outputs:
        return None
    shape, axis, before = node.outputs[0].shape, tracked.axis, tracked.value.shape
    match node.name:
        case "transpose":
            moved = [int(place) for place in node.params["permutation"]].index(axis)
        case "broadcast_in_dim":
            moved = int(node.params["broadcast_dimensions"][axis])
        case "squeeze":
            moved = axis - sum(1 for gone in node.params["dimensions"] if gone < axis)
        case "reduce_sum":
            moved = axis - sum(1 for gone in node.params["axes"] if gone < axis)
        case "reshape":
            moved = _reshaped(before, shape, axis)
        case "dot_general":
            moved = _multiplied(node, position, axis)
        case "slice" | "split" | "dynamic_slice" | "pad" | "concatenate" | "dynamic_update_slice":
            moved = axis
        case _:
            moved = axis if _elementwise(node, shape) else None
    if moved is None or moved >= len(shape):
        return None
    return moved, tracked.spread or math.prod(shape) > math.prod(before)


def _multiplied(product: Node, position: int, axis: int) -> int:
    """Returns where an axis that a product does not contract is in its result."""
    contracted, batch = product.params["dimension_numbers"]
    if axis in batch[position]:
        return list(batch[position]).index(axis)
    gone = {*contracted[position], *batch[position]}
    free = [place for place in range(len(product.inputs[position].shape)) if place not in gone]
    first = len(product.inputs[0].shape) - len(contracted[0]) if position else len(batch[0])
    return first + free.index(axis)


def _elementwise(node: Node, shape: tuple[int, ...]) -> bool:
    operands = (operand.shape for operand in node.inputs)
    entry_by_entry = all(operand == () or checks.broadcasts(operand, shape) for operand in operands)
    return (not node.frames or node.name in SAME) and entry_by_entry


def _reshaped(before: tuple[int, ...], after: tuple[int, ...], axis: int) -> int | None:
    """Where an axis is after a reshape that leaves it whole."""
    inside = math.prod(before[axis + 1 :])
    places = [place for place, size in enumerate(after) if size == before[axis]]
    return next((place for place in places if math.prod(after[place + 1 :]) == inside), None)
