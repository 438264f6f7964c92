"""Where the axes of an array go: through reshapes, transposes, broadcasts, slices and products.

An axis of a result is a list of parts. A part is `index // stride % size` of an axis of the array where the walk
began, so an axis that a reshape splits and another joins again is known as what it was.
"""

import math
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from softmax_jax.transforms.graph import Node, Value
from softmax_jax.transforms.paths import LAID, unmasked


class Part(NamedTuple):
    """A part of an axis: `index // stride % size` of its origin."""

    origin: Any
    """The number of the axis at the start; a `Cut`; or an object of its own for an axis that came later."""
    stride: int
    size: int


class Cut(NamedTuple):
    """What a slice or a reversal leaves of an axis."""

    parts: "tuple[Part, ...]"
    kept: tuple[int, ...]
    """Start, limit and stride."""


Layout = tuple[tuple[Part, ...], ...]
"""The parts of each axis; an axis of size 1 has none."""


class Step(NamedTuple):
    """One equation on a way: the operand that is followed, and the result."""

    node: Node
    position: int
    result: int


def layout_of(shape: Iterable[int]) -> Layout:
    """Returns the layout of an array where a walk begins."""
    return tuple(_axis(axis, size) for axis, size in enumerate(shape))


def _axis(origin: Any, size: int) -> tuple[Part, ...]:
    return (Part(origin, 1, size),) if size != 1 else ()


def chain(value: Value) -> tuple[Value, list[Step]]:
    """Returns the value that a value was laid out or masked from, and the steps from there."""
    steps = []
    while node := value.producer:
        operand = node.inputs[0] if node.name in LAID else unmasked(node)
        if operand is None:
            break
        steps.append(Step(node, node.inputs.index(operand), node.outputs.index(value)))
        value = operand
    return value, steps[::-1]


def after(layout: Layout | None, steps: Iterable[Step]) -> Layout | None:
    """Returns the layout at the end of steps; None where an axis is neither split nor joined evenly."""
    for step in steps:
        if layout is None:
            break
        layout = _moved(step, layout)
    return layout


def _moved(step: Step, layout: Layout) -> Layout | None:
    node, params = step.node, step.node.params
    before, shape = node.inputs[step.position].shape, node.outputs[step.result].shape
    match node.name:
        case "transpose":
            return tuple(layout[int(axis)] for axis in params["permutation"])
        case "squeeze":
            gone = {int(axis) for axis in params["dimensions"]}
            return tuple(parts for axis, parts in enumerate(layout) if axis not in gone)
        case "reshape":
            return _reshaped(layout, shape)
        case "broadcast_in_dim":
            moved = [_axis(object(), size) for size in shape]
            for axis, place in enumerate(params["broadcast_dimensions"]):
                if before[axis] == shape[int(place)]:
                    moved[int(place)] = layout[axis]
            return tuple(moved)
        case "slice":
            strides = params["strides"] or (1,) * len(shape)
            kept = list(zip(params["start_indices"], params["limit_indices"], strides))
        case "split":
            start = sum(params["sizes"][: step.result])
            kept = [(0, size, 1) for size in before]
            kept[params["axis"]] = (start, start + params["sizes"][step.result], 1)
        case "rev":
            kept = [
                (size - 1, -1, -1) if axis in params["dimensions"] else (0, size, 1) for axis, size in enumerate(before)
            ]
        case _:  # entry by entry
            return tuple(p if one == size else _axis(object(), size) for p, one, size in zip(layout, before, shape))
    whole = [cut == (0, size, 1) for cut, size in zip(kept, before)]
    cuts = zip(layout, kept, whole, shape)
    return tuple(parts if same else _axis(Cut(_joined(parts), cut), size) for parts, cut, same, size in cuts)


def _reshaped(layout: Layout, shape: Iterable[int]) -> Layout | None:
    parts = [part for axis in layout for part in axis][::-1]
    result = []
    for size in shape:
        axis = []
        while size > 1:
            part = parts.pop()
            taken = math.gcd(part.size, size)
            if taken not in (part.size, size):
                return None
            rest = part.size // taken
            axis.append(Part(part.origin, part.stride * rest, taken))
            if rest > 1:
                parts.append(Part(part.origin, part.stride, rest))
            size //= taken
        result.append(tuple(axis))
    return tuple(result)


def _joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Joins neighbours that are parts of one axis."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last and last.origin == part.origin and last.stride == part.stride * part.size:
            joined[-1] = Part(part.origin, part.stride, last.size * part.size)
        else:
            joined.append(part)
    return tuple(joined)


def _origins(part: Part) -> set[int]:
    """Returns the axes at the start that a part is of."""
    if isinstance(part.origin, Cut):
        return {axis for one in part.origin.parts for axis in _origins(one)}
    return {part.origin} if isinstance(part.origin, int) else set()


def along(layout: Layout, axes: Collection[int]) -> tuple[int, ...]:
    """Returns the axes of a layout that hold parts of these axes of the start."""
    return tuple(place for place, parts in enumerate(layout) if any(_origins(part) & set(axes) for part in parts))


def rows_agree(layout: Layout | None, divisor: Layout | None, axes: Collection[int]) -> bool:
    """Whether each entry of an array meets the divisor of its own row; rows lie along all axes but these."""
    if layout is None or divisor is None:
        return False
    divisor = divisor or ((),) * len(layout)  # one number for all
    rows = ([_joined(part for part in axis if _origins(part) - set(axes)) for axis in one] for one in (layout, divisor))
    return next(rows) == next(rows)


def multiplied(product: Node, position: int, layout: Layout | None, axes: Collection[int]) -> Layout | None:
    """Returns the layout of a product that contracts these axes of one operand, all of them and no other."""
    if layout is None:
        return None
    contracted, batch = product.params["dimension_numbers"]
    if not contracted[position] or {int(axis) for axis in contracted[position] if layout[axis]} != {
        *along(layout, axes)
    }:
        return None
    if any(_origins(part) - set(axes) or not _origins(part) for axis in contracted[position] for part in layout[axis]):
        return None
    free: list[list[tuple[Part, ...]]] = []
    for side, operand in enumerate(product.inputs):
        gone = {*contracted[side], *batch[side]}
        kept = [axis for axis in range(len(operand.shape)) if axis not in gone]
        free.append([layout[a] if side == position else _axis(object(), operand.shape[a]) for a in kept])
    return (*(layout[axis] for axis in batch[position]), *free[0], *free[1])
