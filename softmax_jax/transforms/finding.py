r"""Finds the softmaxes of a program by what they compute.

$$w_i = \frac{e^{z_i - m}}{\sum_j e^{z_j - m}}$$

A softmax is a sum of exponentials that divides them. It is found at the sum: the exponentials lie before it, and what
is made of it tells the form. The weights may be a quotient, a product with the reciprocal, `exp(z - logsumexp)`, or
never formed, where what they weigh is divided after the product. The maximum m is not needed. On its way a sum may
take one more exponential, that of an extra logit. Exponentials and sum may be laid out otherwise before they meet;
every entry must still meet the sum of its own row.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

from softmax_jax.normalizers import checks
from softmax_jax.transforms.graph import Frame, Graph, Node, Value
from softmax_jax.transforms.layout import Layout, Step, after, along, chain, layout_of, multiplied, rows_agree
from softmax_jax.transforms.paths import (
    LAID,
    MOVED,
    SAME,
    SMALL,
    ahead,
    alike,
    back,
    constant,
    from_maximum,
    inverts,
    keeps_divisor,
    mask_of,
    unmasked,
)

Form = Literal["weights", "log", "divided"]
Mask = tuple[Value, bool]
"""What hides some entries, and whether it is True or False where they are visible."""


class Exponents(NamedTuple):
    """What exponentials are taken of: factor × (logits − shift)."""

    logits: Value | float
    factor: float
    shift: Value | None
    """The maximum that was subtracted."""


class Extra(NamedTuple):
    """One more logit of every row, whose exponential is added to the sum."""

    logit: Value | float
    factor: float
    steps: tuple[Step, ...]
    """How its exponential was laid out."""
    shape: tuple[int, ...]
    """That of the sum."""


class Found(NamedTuple):
    """Where a sum divides its exponentials."""

    form: Form
    node: Node
    numerator: int
    """The operand of the node that is divided."""
    extra: Extra | None
    steps: tuple[Step, ...] = ()
    """How the exponentials were laid out before that, or before the product."""
    layout: Layout = ()
    """That of the weights then."""
    product: Node | None = None
    weights_at: int = 0


@dataclasses.dataclass(eq=False)
class Softmax:
    """A softmax in a graph."""

    form: Form
    """Whether weights come out, their logarithms, or what they weigh."""
    node: Node
    """The equation to replace: the one with the weights or their logarithms; the division after the product."""
    exponentials: Value
    exponents: Exponents
    axes: tuple[int, ...]
    """Of the sum."""
    out_axes: tuple[int, ...]
    """Where these axes are in the result of `node`, if it has weights."""
    summed: Value
    """The exponentials as they are summed, with masks."""
    masks: tuple[Mask, ...]
    """What hides exponentials, rather than logits."""
    extra: Extra | None
    steps: tuple[Step, ...]
    """How the exponentials are laid out, and masked once more, on the way to `node` or `product`."""
    product: Node | None
    """What weighs the values, where the division comes after it."""
    weights_at: int
    """The operand of the product that holds the exponentials."""
    numerator_at: int
    """The operand of `node` that is divided."""

    @property
    def logits(self) -> Value:
        """The logits, but for a factor."""
        assert isinstance(self.exponents.logits, Value)
        return self.exponents.logits

    @property
    def weigher(self) -> Node:
        """The equation where the weights are needed."""
        return self.product or self.node

    @property
    def plain(self) -> bool:
        """Whether the weights of the model come out of `node` as they are."""
        return not (self.product or self.extra or any(step.node.name not in SAME for step in self.steps))

    def needed(self) -> list[Value]:
        """Returns the values that a replacement looks up."""
        shift = self.exponents.shift
        values = [self.logits, *(mask for mask, _ in self.masks), *_others(self.steps)]
        if not self.plain:
            values += [self.summed, *((shift,) if shift and self.extra else ())]
        if self.extra:
            values += [*_others(self.extra.steps), *(one for one in (self.extra.logit,) if isinstance(one, Value))]
        return values


def _others(steps: tuple[Step, ...]) -> list[Value]:
    """Returns the operands of steps besides those that are followed."""
    return [one for step in steps for place, one in enumerate(step.node.inputs) if place != step.position]


def softmaxes(graph: Graph) -> list[Softmax]:
    """Returns all softmaxes whose logits can be read, in the order of the program."""
    sums = [node for node in graph.nodes if node.name == "reduce_sum"]
    found = {softmax.node: softmax for node in reversed(sums) for softmax in _over(node) if _readable(softmax)}
    order = {node: place for place, node in enumerate(graph.nodes)}
    return sorted(found.values(), key=lambda softmax: order[softmax.node])


def _readable(softmax: Softmax) -> bool:
    """Whether its logits can be had where it stands, and each mask of its exponentials, entry by entry."""
    fits = all(checks.broadcasts(mask.shape, softmax.logits.shape) for mask, _ in softmax.masks)
    one_axis = softmax.extra is None or len(softmax.axes) == 1
    return fits and one_axis and all(at_hand(value, softmax.weigher.frame) for value in softmax.needed())


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
    """Returns the softmaxes that divide by a sum."""
    exponentials = exponential_of(total.inputs[0])
    if exponentials is None:
        return
    axes = tuple(int(axis) for axis in total.params["axes"])
    exponents = _exponents(exponentials, axes)
    if exponents is None:
        return
    masks = tuple(dict.fromkeys(_masks(total.inputs[0])))
    for one in _Sum(exponentials, exponents, axes).found(total.outputs[0]):
        # A mask that the sum does not have is applied to the weights; one that it has is in the logits by then.
        steps = tuple(step for step in one.steps if not _repeats(step, masks))
        out = along(one.layout, axes)
        ways = one.extra, steps, one.product, one.weights_at, one.numerator
        yield Softmax(one.form, one.node, exponentials, exponents, axes, out, total.inputs[0], masks, *ways)


def _repeats(step: Step, masks: tuple[Mask, ...]) -> bool:
    if step.node.name in LAID:
        return False
    mask, visible_if = mask_of(step.node)
    return any(visible_if == other and alike(mask, one) for one, other in masks)


def exponential_of(value: Value) -> Value | None:
    """Returns the exponentials that a value is, but for its type and a mask."""
    first = back(value, SAME, unmasked)
    return first if first.producer and first.producer.name in ("exp", "exp2") else None


def _masks(value: Value) -> Iterator[Mask]:
    """Returns what hides some of the exponentials that a value is made of."""
    while (node := value.producer) and node.name not in ("exp", "exp2"):
        operand = node.inputs[0] if node.name in MOVED else unmasked(node)
        if operand is None:
            break
        if node.name not in MOVED:
            yield mask_of(node)
        value = operand


class _Divisor(NamedTuple):
    """A sum on its way."""

    value: Value
    layout: Layout
    extra: Extra | None = None
    stage: Literal["sum", "log", "lifted log", "reciprocal"] = "sum"


class _Sum(NamedTuple):
    """A sum of exponentials."""

    exponentials: Value
    exponents: Exponents
    axes: tuple[int, ...]

    @property
    def whole(self) -> Layout:
        return layout_of(self.exponentials.shape)

    def found(self, total: Value) -> Iterator[Found]:
        """Returns where it divides."""
        layout = tuple(parts for axis, parts in enumerate(self.whole) if axis not in self.axes)
        for node, position, divisor in self.onward(_Divisor(total, layout)):
            if node.name in ("div", "integer_pow", "pow") and inverts(node):
                if node.name != "div" or constant(node.inputs[0]) == 1:
                    yield from self.reciprocal(divisor._replace(value=node.outputs[0], stage="reciprocal"))
            elif node.name == "div" and position == 1:
                yield from self.quotient(node, 0, divisor)
            elif node.name == "log":
                yield from self.logarithm(divisor._replace(value=node.outputs[0], stage="log"))

    def onward(self, start: _Divisor) -> Iterator[tuple[Node, int, _Divisor]]:
        """Returns what takes the sum and at which position: moved, kept from 0, or with an extra logit."""
        seen: set[Value] = set()
        waiting = [start]
        while waiting:
            one = waiting.pop()
            if one.value in seen:
                continue
            seen.add(one.value)
            for node, position in one.value.users:
                yield node, position, one
                waiting += self.next(node, position, one)

    def next(self, node: Node, position: int, one: _Divisor) -> Iterator[_Divisor]:
        """Returns the sum in the result of an equation."""
        if node.name in LAID and position == 0:
            for place, result in enumerate(node.outputs):
                layout = after(one.layout, [Step(node, 0, place)])
                if layout is not None:
                    yield one._replace(value=result, layout=layout)
            return
        if not node.outputs or node.outputs[0].shape != one.value.shape:
            return
        result = one._replace(value=node.outputs[0])
        shift = self.exponents.shift
        match one.stage, node.name:
            case "sum", _ if keeps_divisor(node, position):
                yield result
            case "log", "add" if shift and _same_number(node.inputs[1 - position], shift):
                yield result._replace(stage="lifted log")
            case "sum", "add" if one.extra is None and self.keeps_rows(one):
                if extra := self.extra(node.inputs[1 - position], one.value.shape):
                    yield result._replace(extra=extra)
            case (("log" | "lifted log"), "max") if one.extra is None and self.keeps_rows(one):
                if (total := _logaddexp(node)) and (one.stage == "lifted log" or not shift):
                    extra = Extra(node.inputs[1 - position], 1, (), one.value.shape)
                    yield result._replace(value=total, extra=extra)
            case _:
                pass

    def keeps_rows(self, one: _Divisor) -> bool:
        """Whether a sum is laid out as it was summed, with or without an axis of size 1 in place of those summed."""
        rows = [parts for axis, parts in enumerate(self.whole) if axis not in self.axes]
        kept = [() if axis in self.axes else parts for axis, parts in enumerate(self.whole)]
        return list(one.layout) in (rows, kept)

    def extra(self, other: Value, shape: tuple[int, ...]) -> Extra | None:
        """Returns the logit whose exponential a value is."""
        shift = self.exponents.shift
        number = constant(other)
        if number is not None:
            return Extra(math.log(number), 1, (), shape) if number > SMALL and shift is None else None
        start, steps = chain(other)
        if any(step.node.name not in MOVED for step in steps):
            return None
        assert self.exponentials.producer
        if start.producer is None or start.producer.name != self.exponentials.producer.name:
            return None
        found = _exponents(start, ())
        same = found and _same_number(found.shift, shift)
        return Extra(found.logits, found.factor, tuple(steps), shape) if found and same else None

    def quotient(self, node: Node, numerator: int, divisor: _Divisor) -> Iterator[Found]:
        start, steps = chain(node.inputs[numerator])
        if node.outputs[0].shape != node.inputs[numerator].shape:
            return
        if alike(start, self.exponentials):
            layout = after(self.whole, steps)
            if layout is not None and rows_agree(layout, divisor.layout, self.axes):
                yield Found("weights", node, numerator, divisor.extra, tuple(steps), layout)
        elif start.producer and start.producer.name == "dot_general":
            for place, operand in enumerate(start.producer.inputs):
                first, before = chain(operand)
                if alike(first, self.exponentials) and _only_divided(start, steps):
                    layout = multiplied(start.producer, place, after(self.whole, before), self.axes)
                    if rows_agree(after(layout, steps), divisor.layout, self.axes):
                        ways = tuple(before), (), start.producer, place
                        yield Found("divided", node, numerator, divisor.extra, *ways)

    def reciprocal(self, divisor: _Divisor) -> Iterator[Found]:
        for node, position, one in self.onward(divisor):
            if node.name == "mul":
                yield from self.quotient(node, 1 - position, one)

    def logarithm(self, divisor: _Divisor) -> Iterator[Found]:
        assert self.exponentials.producer
        logits, factor, shift = self.exponents
        sources = {"log": {back(self.exponentials.producer.inputs[0])}, "lifted log": set()}
        if isinstance(logits, Value) and abs(factor - 1) < 1e-6:
            sources["lifted log" if shift else "log"] |= {logits, back(logits)}
        for node, position, one in self.onward(divisor):
            agree = rows_agree(self.whole, one.layout, self.axes)
            if node.name == "sub" and position == 1 and agree and back(node.inputs[0]) in sources[one.stage]:
                exps = [user for user, _ in ahead(node.outputs[0], SAME, lambda *_: False) if user.name == "exp"]
                for exp in exps:
                    yield Found("weights", exp, 0, one.extra, (), self.whole)
                if not exps:
                    yield Found("log", node, 0, one.extra, (), self.whole)


def _only_divided(product: Value, steps: list[Step]) -> bool:
    """Whether a product, on the way to its division, is only moved and used for nothing else."""
    for value in (product, *(step.node.outputs[step.result] for step in steps)):
        assert value.producer
        forward = [node for node, _ in value.users if not node.backward]
        if len(forward) != 1 or value in value.producer.frame.home().outputs:
            return False
    return all(step.node.name in MOVED for step in steps)


def _logaddexp(larger: Node) -> Value | None:
    """Returns log(exp(a) + exp(b)), of which an equation takes the larger of both."""
    a, b = larger.inputs
    for node, position in larger.outputs[0].users:
        rest = node.inputs[1 - position].producer if node.name == "add" else None
        for name in ("log1p", "exp", "neg", "abs", "sub"):
            rest = rest if rest and rest.name == name else None
            if rest and name != "sub":
                rest = rest.inputs[0].producer
        if rest and {*map(_identity, rest.inputs)} == {_identity(a), _identity(b)}:
            chosen = [user for user, place in node.outputs[0].users if user.name == "select_n" and place > 0]
            return (chosen or [node])[0].outputs[0]
    return None


def _same_number(one: Value | None, other: Value | None) -> bool:
    """Whether two values are the same but for where they are."""
    return alike(one and back(one, MOVED), other and back(other, MOVED))


def _identity(value: Value) -> Value | float:
    return value if value.number is None else value.number


def _exponents(exponentials: Value, axes: tuple[int, ...]) -> Exponents | None:
    """Returns what exponentials are taken of, before a maximum was subtracted that is the same along axes."""
    assert exponentials.producer
    value = exponent = exponentials.producer.inputs[0]
    factor = base = math.log(2) if exponentials.producer.name == "exp2" else 1.0
    while node := value.producer:
        if node.name == "neg" and not axes and from_maximum(node.inputs[0]):
            return Exponents(0.0, factor, node.inputs[0])
        if node.name == "sub" and from_maximum(node.inputs[1]) and _same_along(node.inputs[1], axes):
            logits = node.inputs[0]
            if constant(logits) is not None:
                return None if axes else Exponents(constant(logits) or 0.0, factor, node.inputs[1])
            if logits.shape == exponent.shape or not axes:
                return Exponents(logits, factor, node.inputs[1])
        numbers = [constant(operand) for operand in node.inputs]
        if node.name in SAME:
            value = node.inputs[0]
        elif node.name == "mul" and len(known := [n for n in numbers if n is not None]) == 1:
            value, factor = node.inputs[numbers.index(None)], factor * known[0]
        elif node.name == "div" and numbers[1]:
            value, factor = node.inputs[0], factor / numbers[1]
        else:
            break
    return Exponents(exponent, base, None)


def _same_along(value: Value, axes: tuple[int, ...]) -> bool:
    """Whether a value was only broadcast along axes."""
    start, steps = chain(value)
    layout = after(layout_of(start.shape), steps)
    if layout is None:
        return False
    return not layout or not set(along(layout, range(len(start.shape)))) & set(axes)
