"""Reads exponentials: their logits, factor and shift, and the masks that hide some."""

from collections.abc import Callable
from typing import Any, NamedTuple

from softmax_jax.transforms.layouts import Step, axes_along
from softmax_jax.transforms.program import IDENTITIES, LAYOUTS, VIEWS, Node, Value, constant, unwrap

LOW_LOGIT = -100.0
"""A constant at most this, chosen by a predicate, hides a logit."""
RECOMPUTED = frozenset({"exp", "exp2", "pow", "sub", "mul", "div", "max", "reduce_max", "neg"})
RECOMPUTED |= {"slice", "dot_general", "add", "select_n", "integer_pow", "sqrt", "rsqrt", "tanh"}
"""The primitives, beside those that move numbers, that a program may repeat: exp(q k) over the sum of exp(q k)."""


class Mask(NamedTuple):
    """A value that hides entries of an array."""

    predicate: Value
    visible_if: bool
    """True if the predicate is True, or not 0, at the visible entries."""
    steps: tuple[Step, ...] = ()
    """The steps from the masked array to the logits."""


class Exponents(NamedTuple):
    """The exponent of exponentials: factor × (logits - shift)."""

    logits: Value | float
    factor: float
    shift: Value | None
    """The maximum that was subtracted."""


def unwrap_views(value: Value) -> tuple[Value, tuple[Step, ...]]:
    """Returns the value that a value is a view of, masked or not, and the steps from there."""
    steps: list[Step] = []
    while node := value.producer:
        masked = read_node_mask(node)
        if masked is None and node.name not in VIEWS:
            break
        operand = masked[0] if masked else node.inputs[0]
        steps.append(Step(node, node.inputs.index(operand), node.outputs.index(value)))
        value = operand
    return value, tuple(steps[::-1])


def read_node_mask(node: Node) -> tuple[Value, Mask] | None:
    """Returns the operand that an equation sets to 0 where a mask says so, and the mask."""
    # select_n(p, a, b) is b where p is True, else a: with b = 0, p hides, and with a = 0, p shows.
    if node.name == "select_n" and len(node.inputs) == 3:
        predicate, *cases = node.inputs
        visible = [case for case in cases if constant(case) != 0]
        return (visible[0], Mask(predicate, visible[0] is cases[1])) if len(visible) == 1 else None
    if node.name == "mul":
        number, mask = sorted(node.inputs, key=is_mask)
        return (number, Mask(mask, True)) if is_mask(mask) and not is_mask(number) else None
    return None


def is_mask(value: Value) -> bool:
    """Says whether a value is a mask, perhaps laid out or turned into numbers."""
    return unwrap(value, LAYOUTS).dtype == bool


def _from_maximum(value: Value) -> bool:
    """Says whether a value is the maximum of rows, or of these and something else, laid out to be subtracted."""
    node = unwrap(value, LAYOUTS).producer
    if node is None or node.name not in ("reduce_max", "max", "select_n"):
        return False
    return node.name == "reduce_max" or any(map(_from_maximum, node.inputs[-2:]))


def same_computation(left: Value | None, right: Value | None, depth: int = 8) -> bool:
    """Says whether two values are the same, or the same few steps from the same: a program may compute one twice."""
    if left is right or left is None or right is None:
        return left is right
    left_node, right_node = left.producer, right.producer
    if left_node is None or right_node is None:
        return left.number is not None and left.number == right.number
    return (
        depth > 0
        and left_node.name == right_node.name
        and left_node.name in LAYOUTS | RECOMPUTED
        and left_node.params == right_node.params
        and all(same_computation(x, y, depth - 1) for x, y in zip(left_node.inputs, right_node.inputs))
    )


def same_up_to_layout(left: Value | None, right: Value | None) -> bool:
    """Says whether two values are the same, perhaps laid out otherwise."""
    return same_computation(left and unwrap(left, LAYOUTS), right and unwrap(right, LAYOUTS))


def read_exponents(
    exponentials: Value, axes: tuple[int, ...], is_shift: Callable[[Value], bool] = lambda value: False
) -> Exponents | None:
    """Returns logits, factor and shift of exponentials; the shift is the same along axes, or as `is_shift` says.

    Without axes it reads one exponential that is added to a sum, such as exp(0.3 - m), whose logit is a number.
    """
    # From b^x = e^(x log b) the factor starts at log b, and a product or quotient by a constant on the way multiplies
    # it: exp2((z - m) / 0.7 · 2) = e^(log 2 · 2 / 0.7 · (z - m)). At `sub` what remains is z - m.
    assert exponentials.producer
    value = exponent = exponentials.producer.inputs[-1]
    factor = base = exponentials.producer.base
    assert base is not None
    assert factor is not None
    while node := value.producer:
        # exp(-m) = exp(0 - m) is the extra logit 0 of softmax1.
        if node.name == "neg" and not axes and _from_maximum(node.inputs[0]):
            return Exponents(0.0, factor, node.inputs[0])
        if node.name == "sub" and is_shift(node.inputs[1]):
            return Exponents(node.inputs[0], factor, node.inputs[1])
        if node.name == "sub" and _from_maximum(node.inputs[1]):
            logits, shift = node.inputs
            start, steps = unwrap_views(shift)
            if set(axes_along(steps, shift.shape, range(len(start.shape)))) & set(axes):
                break  # not the same along the axes
            number = constant(logits)
            if number is not None and (not axes or logits.shape != exponent.shape):
                return None if axes else Exponents(number, factor, shift)
            if logits.shape == exponent.shape or not axes:
                return Exponents(logits, factor, shift)
        numbers = [constant(operand) for operand in node.inputs]
        if node.name in IDENTITIES:
            value = node.inputs[0]
        elif node.name == "mul" and len(known := [n for n in numbers if n is not None]) == 1:
            value, factor = node.inputs[numbers.index(None)], factor * known[0]
        elif node.name == "div" and numbers[1]:
            value, factor = node.inputs[0], factor / numbers[1]
        else:
            break
    return Exponents(exponent, base, None)


def low_number_masks(logits: Value | float) -> list[Mask]:
    """Returns the mask that replaces some logits by a low number, if any."""
    node = unwrap(logits).producer if isinstance(logits, Value) else None
    if node is None or node.name != "select_n" or len(node.inputs) != 3:
        return []
    low = [(number := constant(case)) is not None and number <= LOW_LOGIT for case in node.inputs[1:]]
    return [Mask(node.inputs[0], visible_if=not position) for position, is_low in enumerate(low) if is_low]


def hides_same(left: Mask, right: Mask) -> bool:
    """Says whether two masks hide the same entries: of one predicate, perhaps turned into numbers and back."""
    left_source, left_layout = _unwrap_predicate(left.predicate)
    right_source, right_layout = _unwrap_predicate(right.predicate)
    same_layout = left.visible_if == right.visible_if and left_layout == right_layout
    return same_layout and same_computation(left_source, right_source)


def _unwrap_predicate(value: Value) -> tuple[Value, list[Any]]:
    """Returns the source of a mask, and how it was laid out since; `ne(m, 0)` turns numbers into a predicate."""
    layout: list[Any] = []
    while node := value.producer:
        to_predicate = node.name == "ne" and constant(node.inputs[1]) == 0
        if node.name not in LAYOUTS and not to_predicate:
            break
        # where(m, z, -inf) states the broadcast of m to the shape of z; m · e broadcasts m by itself.
        same_rank = len(node.inputs[0].shape) == len(value.shape)
        if node.name in LAYOUTS - IDENTITIES and not (node.name == "broadcast_in_dim" and same_rank):
            layout.append((node.name, node.params))
        value = node.inputs[0]
    return value, layout
