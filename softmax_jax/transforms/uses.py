"""What a program does with the weights of a softmax: attention is what sums values under them."""

import math
from typing import Literal, NamedTuple

from softmax_jax.normalizers import checks
from softmax_jax.transforms.graph import Graph, Node, Value

Use = Literal["attention", "log", "choice", "output", "other", "kernel", "blocks"]
"""Attention: the weights enter a product that sums over their axis. Log: of a likelihood. Choice: the largest are
chosen, as a router or a sampler does. Output: the function returns them, as a classifier does. Kernel and blocks are
what cannot be read: a compiled kernel, and a row that comes in blocks."""

CHOICES = frozenset({"argmax", "argmin", "top_k", "sort", "approx_top_k", "cumsum"})


class Tracked(NamedTuple):
    """A value that holds weights, and the axis along which they sum to one."""

    value: Value
    axis: int
    spread: bool = False
    """Whether an axis was added, along which each weight stands many times."""


def use_of(weights: Value, axes: tuple[int, ...], graph: Graph) -> Use:
    """What is done with weights first of all that counts: attention, then a choice, then what else."""
    uses = {use for axis in axes for use in _uses(Tracked(weights, axis), graph)}
    for use in ("attention", "choice", "log", "output"):
        if use in uses:
            return use
    return "other"


def _uses(start: Tracked, graph: Graph) -> set[Use]:
    uses: set[Use] = set()
    seen: set[Value] = set()
    waiting = [start]
    while waiting:
        tracked = waiting.pop()
        if tracked.value in seen:
            continue
        seen.add(tracked.value)
        if tracked.value in graph.root.outputs:
            uses.add("output")
        for node, position in tracked.value.users:
            if sums_over(node, position, tracked):
                uses.add("attention")
            elif node.name in CHOICES:
                uses.add("choice")
            elif node.name == "log":
                uses.add("log")
            elif (after := _followed(node, tracked)) is not None:
                waiting.append(after)
    return uses


def sums_over(node: Node, position: int, tracked: Tracked) -> bool:
    """Whether an equation weighs values: a product that contracts the axis, or the sum of one written out."""
    if node.name == "dot_general":
        contracted, _ = node.params["dimension_numbers"]
        return tracked.axis in contracted[position]
    return node.name == "reduce_sum" and tracked.spread and tracked.axis in node.params["axes"]


def _followed(node: Node, tracked: Tracked) -> Tracked | None:
    """Where the weights are in the result of an equation, if they are still weights of the same rows."""
    if not node.outputs:
        return None
    result, axis, shape = node.outputs[0], tracked.axis, tracked.value.shape
    match node.name:
        case "transpose":
            moved = [int(place) for place in node.params["permutation"]].index(axis)
        case "broadcast_in_dim":
            moved = int(node.params["broadcast_dimensions"][axis])
        case "squeeze":
            moved = axis - sum(1 for gone in node.params["dimensions"] if gone < axis)
        case "reshape":
            moved = _reshaped(shape, result.shape, axis)
        case "slice" | "dynamic_slice" | "pad" | "concatenate" | "dynamic_update_slice":
            moved = axis
        case _:
            moved = axis if _elementwise(node, result.shape) else None
    if moved is None or moved >= len(result.shape):
        return None
    spread = tracked.spread or math.prod(result.shape) > math.prod(shape)
    return Tracked(result, moved, spread)


def _elementwise(node: Node, shape: tuple[int, ...]) -> bool:
    operands = (operand.shape for operand in node.inputs)
    return (
        not node.frames
        and node.name != "dot_general"
        and all(operand == () or checks.broadcasts(operand, shape) for operand in operands)
    )


def _reshaped(before: tuple[int, ...], after: tuple[int, ...], axis: int) -> int | None:
    """Where an axis is after a reshape that leaves it whole."""
    inside = math.prod(before[axis + 1 :])
    places = [place for place, size in enumerate(after) if size == before[axis]]
    return next((place for place in places if math.prod(after[place + 1 :]) == inside), None)
