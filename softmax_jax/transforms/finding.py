r"""Finds the softmaxes of a program by what they compute.

$$w_i = \frac{e^{z_i - m}}{\sum_j e^{z_j - m}}$$

A softmax is a sum of exponentials that divides them. It is found at the sum: the exponentials lie before it, and what
is made of it tells the form. The weights may be a quotient, a product with the reciprocal, `exp(z - logsumexp)`, or
never formed, where what they weigh is divided after the product. The maximum m is not needed.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal

from softmax_jax.normalizers import checks
from softmax_jax.transforms.graph import Frame, Graph, Node, Value
from softmax_jax.transforms.paths import (
    MOVED,
    SAME,
    ahead,
    alike,
    back,
    constant,
    from_maximum,
    keeps_divisor,
    mask_of,
    unmasked,
)

Form = Literal["weights", "log", "divided"]


Found = tuple[Form, Node, int, Node | None, int]
"""Form, equation, where its numerator is; what weighs the values, and where the exponentials are among its operands."""


@dataclasses.dataclass(eq=False)
class Softmax:
    """A softmax in a graph."""

    form: Form
    """Whether weights come out, their logarithms, or what they weigh."""
    node: Node
    """The equation to replace: the one with the weights or their logarithms; the division after the product."""
    exponentials: Value
    logits: Value
    factor: float
    """The model's logits are `logits` times this."""
    axes: tuple[int, ...]
    masks: tuple[tuple[Value, bool], ...]
    """What hides exponentials, rather than logits, and whether it is True or False where they are visible."""
    product: Node | None
    """What weighs the values, where the division comes after it."""
    weights_at: int
    """The operand of the product that holds the exponentials."""
    numerator_at: int
    """The operand of `node` that is divided."""

    @property
    def weigher(self) -> Node:
        """The equation where the weights are needed."""
        return self.product or self.node


def softmaxes(graph: Graph) -> list[Softmax]:
    """All softmaxes whose logits can be read, in the order of the program."""
    sums = [node for node in graph.nodes if node.name == "reduce_sum"]
    found = {softmax.node: softmax for node in reversed(sums) for softmax in _over(node)}
    order = {node: place for place, node in enumerate(graph.nodes)}
    readable = [softmax for softmax in found.values() if _readable(softmax)]
    return sorted(readable, key=lambda softmax: order[softmax.node])


def in_blocks(graph: Graph, found: list[Softmax]) -> list[Node]:
    """Sums of exponentials that also weigh values, but divide nothing here: rows that come in blocks, or on devices."""
    read = {softmax.exponentials for softmax in found}
    return [node for node in graph.nodes if node.name == "reduce_sum" and _weighs(node) not in (None, *read)]


def _weighs(total: Node) -> Value | None:
    """The exponentials of a sum, if a product contracts them along the same axes."""
    exponentials = exponential_of(total.inputs[0])
    if exponentials is None:
        return None
    users = ahead(total.outputs[0], MOVED, lambda *_: False)
    across_devices = any(node.name.startswith("psum") for node, _ in users)

    def passes(node: Node, position: int) -> bool:
        return unmasked(node) is not None or (across_devices and node.name == "div" and position == 0)

    for node, position in ahead(exponentials, SAME, passes):
        if node.name == "dot_general":
            contracted = node.params["dimension_numbers"][0][position]
            if set(map(int, total.params["axes"])) <= set(map(int, contracted)):
                return exponentials
    return None


def _readable(softmax: Softmax) -> bool:
    """Whether its logits can be had where it stands, and each mask of its exponentials, entry by entry."""
    needed = [softmax.logits, *(mask for mask, _ in softmax.masks)]
    fits = all(checks.broadcasts(mask.shape, softmax.logits.shape) for mask, _ in softmax.masks)
    return fits and all(at_hand(value, softmax.weigher.frame) for value in needed)


def at_hand(value: Value, frame: Frame) -> bool:
    """Whether a value can be had where a body is executed: it comes from there, or from the program around it."""
    if value.producer is None:
        return True
    home = value.producer.frame.home()
    around = list(frame.around())
    while home not in around and home.caller and value in home.outputs:
        home = home.caller.frame.home()
    return home in around


def _over(total: Node) -> Iterator[Softmax]:
    """Those that divide by this sum."""
    exponentials = exponential_of(total.inputs[0])
    if exponentials is None:
        return
    axes = tuple(int(axis) for axis in total.params["axes"])
    for node, position in ahead(total.outputs[0], MOVED, keeps_divisor):
        for form, last, numerator, product, place in _forms(node, position, exponentials):
            divided = product.inputs[place] if product else last.inputs[numerator]
            masks = dict.fromkeys((*_masks(total.inputs[0]), *_masks(divided)))
            logits, factor = _logits(exponentials)
            yield Softmax(form, last, exponentials, logits, factor, axes, tuple(masks), product, place, numerator)


def exponential_of(value: Value) -> Value | None:
    """The exponentials that a value is, but for its type and a mask."""
    first = back(value, SAME, unmasked)
    return first if first.producer and first.producer.name in ("exp", "exp2") else None


def _masks(value: Value) -> Iterator[tuple[Value, bool]]:
    """What hides some of the exponentials that a value is made of."""
    while (node := value.producer) and node.name not in ("exp", "exp2"):
        operand = node.inputs[0] if node.name in MOVED else unmasked(node)
        if operand is None:
            break
        if node.name not in MOVED:
            yield mask_of(node)
        value = operand


def _forms(node: Node, position: int, exponentials: Value) -> Iterator[Found]:
    """What an equation makes of the sum, if it makes a softmax."""
    if node.name == "div" and position == 1:
        if constant(node.inputs[0]) == 1:
            yield from _reciprocal(node, exponentials)
        else:
            yield from _quotient(node, 0, exponentials)
    elif node.name == "integer_pow" and node.params["y"] == -1:
        yield from _reciprocal(node, exponentials)
    elif node.name == "log":
        yield from _logarithm(node, exponentials)


def _quotient(node: Node, numerator: int, exponentials: Value) -> Iterator[Found]:
    if alike(exponential_of(node.inputs[numerator]), exponentials):
        yield "weights", node, numerator, None, 0
        return
    product = back(node.inputs[numerator], MOVED).producer
    if product and product.name == "dot_general":
        for place, operand in enumerate(product.inputs):
            if alike(exponential_of(operand), exponentials) and product.params["dimension_numbers"][0][place]:
                yield "divided", node, numerator, product, place


def _reciprocal(node: Node, exponentials: Value) -> Iterator[Found]:
    for other, position in ahead(node.outputs[0], MOVED, lambda *_: False):
        if other.name == "mul":
            yield from _quotient(other, 1 - position, exponentials)


def _logarithm(node: Node, exponentials: Value) -> Iterator[Found]:
    def adds_maximum(node: Node, position: int) -> bool:
        return node.name == "add" and from_maximum(node.inputs[1 - position])

    assert exponentials.producer
    sources = {back(exponentials.producer.inputs[0]), back(_logits(exponentials)[0])}
    for other, position in ahead(node.outputs[0], MOVED, adds_maximum):
        if other.name == "sub" and position == 1 and back(other.inputs[0]) in sources:
            exps = [user for user, _ in ahead(other.outputs[0], SAME, lambda *_: False) if user.name == "exp"]
            for exp in exps:
                yield "weights", exp, 0, None, 0
            if not exps:
                yield "log", other, 0, None, 0


def _logits(exponentials: Value) -> tuple[Value, float]:
    """The logits of exponentials, before a maximum was subtracted, and what multiplies them."""
    assert exponentials.producer
    value = exponent = exponentials.producer.inputs[0]
    factor = base = math.log(2) if exponentials.producer.name == "exp2" else 1.0
    while node := value.producer:
        if node.name == "sub" and from_maximum(node.inputs[1]) and node.inputs[0].shape == exponent.shape:
            return node.inputs[0], factor
        numbers = [constant(operand) for operand in node.inputs]
        if node.name in SAME:
            value = node.inputs[0]
        elif node.name == "mul" and len(known := [n for n in numbers if n is not None]) == 1:
            value, factor = node.inputs[numbers.index(None)], factor * known[0]
        elif node.name == "div" and numbers[1]:
            value, factor = node.inputs[0], factor / numbers[1]
        else:
            break
    return exponent, base
