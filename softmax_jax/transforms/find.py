r"""Finds the softmaxes of a program by what they compute.

A softmax is a sum of exponentials that divides these exponentials, row by row:

$$w_i = \frac{e^{c (z_i - m)}}{\sum_j e^{c (z_j - m)}} = \operatorname{softmax}(c z)_i$$

Numerator and denominator share the factor $e^{-c m}$, so the shift m may be any number that is the same along the row:
the maximum, a part of it, or nothing. The other forms follow by algebra.

* *weights*: the quotient; the product with the reciprocal of the sum; or $e^{z_i - \log s}$, where s is the sum.
* *log*: $z_i - \log s$, whose exponential is not taken.
* *divided*: a product with values comes first. It is linear, so $(\sum_i e_i v_i) / s = \sum_i (e_i / s) v_i$.
  The product may be a `dot_general`, or an elementwise product and a sum.
* *masked after*: $m_i e^{z_i - \log s}$, where $s = \sum_j m_j e^{z_j}$. The mask lets only those entries through whose
  logits are in the sum.
* An *extra logit* $z_0$ adds $e^{c (z_0 - m)}$ to s: the softmax of a row with one more entry, whose weight is dropped.

The weights depend only on the logits of their row, and nothing else of the exponentials reaches the result.
So any other function of these logits may stand there: the equation with the result is computed from new weights.

Worked example, `e = exp(z - z.max(1, keepdims=True)); y = (e @ v) / e.sum(1, keepdims=True)`, 4 rows of 5, values of 3:

    m = reduce_max z; b = broadcast_in_dim m      (4, 1): the same along axis 1, so a shift
    d = sub z b; e = exp d                        exponentials of z, c = 1
    n = dot_general e v                           (4, 3)
    s = reduce_sum[axes=(1,)] e                   the search starts here
    t = broadcast_in_dim s; y = div n t           a division by s; n is a product with e: form "divided"

Entry (i, j) of y holds products with row i of e (n takes all of axis 1), and entry i of s: the row that was summed.
`_Sum.quotient` checks this for entries at random. The logits are z, the axis is 1, and y is the equation to replace.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from softmax_jax.normalizers import checks
from softmax_jax.transforms.program import LAID, MOVED, SAME, Frame, Node, Program, Value, back, constant, reached

Form = Literal["weights", "log", "divided"]
PRODUCTS = ("dot_general", "mul", "div", "reduce_sum")
"""The primitives of products with exponentials. Where a derivative is taken only the first counts: the derivative of
Σ exp(z) is Σ exp(z) dz, an elementwise product and a sum too."""
SMALL = 1e-3
"""A constant at most this is added to a divisor only to keep it from 0."""
LOW = -100.0
"""A constant at most this, chosen by a predicate, hides a logit."""
REPEATED = frozenset({"exp", "exp2", "pow", "sub", "mul", "div", "max", "reduce_max", "neg"})
REPEATED |= {"slice", "dot_general", "add", "select_n", "integer_pow", "sqrt", "rsqrt", "tanh"}
"""The primitives, beside those that move numbers, that a program may repeat: exp(q k) over the sum of exp(q k)."""
UNKNOWN = 7
"""Stands for the size of an axis that is symbolic, as in `jax.export`, or has no entries."""
UNIFORM = np.random.default_rng(0).random((64, 48))
"""The 48 entries at which layouts are compared, as places from 0 to 1 along up to 64 axes."""


class Step(NamedTuple):
    """One equation on a way through the program: the operand that is followed, and the result."""

    node: Node
    position: int
    result: int


class Mask(NamedTuple):
    """A value that hides entries of an array."""

    predicate: Value
    visible_if: bool
    """Says whether it is True, or not 0, at the visible entries."""
    steps: tuple[Step, ...] = ()
    """What the model makes of the masked array until it is the logits."""


class Exponents(NamedTuple):
    """The exponent of exponentials: factor × (logits - shift)."""

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
    """The shape of the sum."""


@dataclasses.dataclass(eq=False, repr=False)
class Softmax:
    """A softmax in a program."""

    form: Form
    """Says whether `node` returns weights, their logarithms, or a product with them."""
    node: Node
    """The equation to replace."""
    total: Node
    """The equation that sums the exponentials."""
    exponents: Exponents
    axes: tuple[int, ...]
    """The axes of the sum."""
    masks: tuple[Mask, ...]
    """What hides exponentials, rather than logits."""
    extra: Extra | None
    steps: tuple[Step, ...]
    """What the model makes of the exponentials until they are divided, less masks that the sum has too."""

    @property
    def exponentials(self) -> Value:
        """The exponentials that are summed."""
        return chain(self.total.inputs[0])[0]

    @property
    def logits(self) -> Value:
        """The logits, except for a factor."""
        assert isinstance(self.exponents.logits, Value)
        return self.exponents.logits

    @property
    def plain(self) -> bool:
        """Says whether `node` returns the weights of the model, or their logarithms, as they are."""
        return not self.extra and all(step.node.name in SAME for step in self.steps)

    def needed(self) -> list[Value]:
        """Returns the values that a replacement looks up."""
        extra = self.extra
        values = [self.logits, *(mask.predicate for mask in self.masks)]
        values += [extra.logit] if extra and isinstance(extra.logit, Value) else []
        for node, position, _ in (*self.steps, *(extra.steps if extra else ())):
            values += [other for place, other in enumerate(node.inputs) if place != position]
        return values

    def readable(self) -> bool:
        """Says whether its logits can be had where it stands, and each mask of its exponentials, entry by entry."""
        fits = all(checks.broadcasts(mask.predicate.shape, self.logits.shape) for mask in self.masks)
        one_axis = self.extra is None or len(self.axes) == 1
        return fits and one_axis and all(at_hand(value, self.node.frame) for value in self.needed())


def softmaxes(program: Program) -> list[Softmax]:
    """Returns all softmaxes whose logits can be read, in the order of the program."""
    sums = [total for node in program.nodes if node.name == "reduce_sum" and (total := _sum_of_exponentials(node))]
    found = {one.node: one for total in reversed(sums) for one in total.softmaxes() if one.readable()}
    return [found[node] for node in program.nodes if node in found]


def sums(program: Program) -> dict[Node, Value]:
    """Returns the equations that sum exponentials along rows, with the logits of each, except for a factor."""
    totals = [total for node in program.nodes if node.name == "reduce_sum" and (total := _sum_of_exponentials(node))]
    return {one.node: one.exponents.logits for one in totals if isinstance(one.exponents.logits, Value)}


def at_hand(value: Value, frame: Frame) -> bool:
    """Says whether a value can be had where a body is executed: it comes from there, or from the program around it."""
    if value.producer is None:
        return True
    home = value.producer.frame.home()
    around = list(frame.around())
    while home not in around and home.caller and value in home.outputs:
        home = home.caller.frame.home()
    return home in around


# Layouts: which entry of an array another holds
#
# Reshapes, transposes, slices and products move entries by rules that hold for every entry. So two layouts are compared
# at 48 entries, by arithmetic on their indices: layouts that differ do so at most entries.


def entries(shape: Sequence[int]) -> np.ndarray:
    """Returns entries of an array at random, as their (axes, entries) indices."""
    return (UNIFORM[: len(shape)] * _sizes(shape)).astype(int)


def origin(steps: Iterable[Step], at: np.ndarray) -> np.ndarray:
    """Returns the entries of the array where a way starts that these entries at its end hold.

    >>> import jax, jax.numpy as jnp
    >>> from softmax_jax.transforms import program
    >>> traced = program.trace(lambda x: x.T.reshape(6)[2:], (jnp.ones((2, 3)),), {})
    >>> origin([Step(node, 0, 0) for node in traced.nodes], np.array([[0, 1, 3]]))
    array([[0, 1, 1],
           [1, 1, 2]])
    """
    for step in reversed(tuple(steps)):
        at = _operand_entries(step, at)
    return at


def _operand_entries(step: Step, at: np.ndarray) -> np.ndarray:
    """Returns the entries of the operand that these entries of the result are made of; of a sum, any one of each."""
    node, params = step.node, step.node.params
    shape, result = node.inputs[step.position].shape, node.outputs[step.result].shape
    sizes = _sizes(shape)
    match node.name:
        case "transpose":
            at = at[np.argsort(params["permutation"])]
        case "broadcast_in_dim":
            at = at[list(params["broadcast_dimensions"])]
        case "reshape" | "squeeze" | "expand_dims":
            at = _strides(result) @ at // _strides(shape)[:, None] % sizes
        case "slice":
            at = at * _sizes(params["strides"] or [1] * len(shape)) + _sizes(params["start_indices"], zero=0)
        case "split":
            at = at.copy()
            at[params["axis"]] += sum(params["sizes"][: step.result])
        case "reduce_sum":
            at = _completed(at, shape, [axis for axis in range(len(shape)) if axis not in params["axes"]])
        case "dot_general":
            contracted, batch = params["dimension_numbers"]
            gone = [{*contracted[side], *batch[side]} for side in (0, 1)]
            free = [[a for a in range(len(node.inputs[side].shape)) if a not in gone[side]] for side in (0, 1)]
            first = len(batch[0]) + step.position * len(free[0])  # the result has batch axes, then both free ones
            own = [*range(len(batch[0])), *range(first, first + len(free[step.position]))]
            at = _completed(at[own], shape, [*batch[step.position], *free[step.position]])
        case _:  # entry by entry
            at = at[len(result) - len(shape) :]
    return np.minimum(at, sizes - 1)  # an axis of size 1 is broadcast


def _sizes(sizes: Sequence[Any], zero: int = UNKNOWN) -> np.ndarray:
    """Returns sizes as a column, with numbers that stand for 0 and for what is symbolic."""
    known = [(size or zero) if isinstance(size, int | np.integer) else UNKNOWN for size in sizes]
    return np.array(known, int).reshape(-1, 1)


def _strides(shape: Sequence[int]) -> np.ndarray:
    sizes = _sizes(shape)[:, 0]
    return np.array([math.prod(sizes[axis + 1 :]) for axis in range(len(shape))], int)


def _completed(at: np.ndarray, shape: Sequence[int], known: list[int]) -> np.ndarray:
    """Returns entries of an array of which some axes are known and the others are anywhere."""
    turns = -(-at.shape[1] // UNIFORM.shape[1])
    full = np.tile(entries(shape)[:, ::-1], turns)[:, : at.shape[1]]
    full[known] = at
    return full


def along(steps: Iterable[Step], shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Returns the axes of the end of a way along which the place in some axes of its start changes.

    `shape` is the shape at the end. Each axis in turn gets other indices: where the entry at the start moves along
    `axes` then, the axis holds a part of them.
    """
    rank, number = len(shape), UNIFORM.shape[1]
    at = np.tile(entries(shape), rank + 1).reshape(rank, rank + 1, number)
    for axis in range(rank):
        at[axis, axis + 1] = at[axis, axis + 1, ::-1].copy()
    at = at.reshape(rank, (rank + 1) * number)
    places = origin(steps, at)[list(axes)].reshape(len(axes), rank + 1, number)
    return tuple(axis for axis in range(rank) if (places[:, axis + 1] != places[:, 0]).any())


def chain(value: Value) -> tuple[Value, tuple[Step, ...]]:
    """Returns the value that a value was laid out or masked from, and the steps from there."""
    steps: list[Step] = []
    while node := value.producer:
        masked = masking(node)
        if masked is None and node.name not in LAID:
            break
        operand = masked[0] if masked else node.inputs[0]
        steps.append(Step(node, node.inputs.index(operand), node.outputs.index(value)))
        value = operand
    return value, tuple(steps[::-1])


# Masks of exponentials, divisors and shifts


def masking(node: Node) -> tuple[Value, Mask] | None:
    """Returns what an equation lets through where a mask says so, with 0 elsewhere, and the mask."""
    if node.name == "select_n" and len(node.inputs) == 3:
        predicate, *cases = node.inputs
        kept = [case for case in cases if constant(case) != 0]
        return (kept[0], Mask(predicate, kept[0] is cases[1])) if len(kept) == 1 else None
    if node.name == "mul":
        number, mask = sorted(node.inputs, key=was_boolean)
        return (number, Mask(mask, True)) if was_boolean(mask) and not was_boolean(number) else None
    return None


def was_boolean(value: Value) -> bool:
    """Says whether a value is a mask, perhaps laid out or turned into numbers."""
    return back(value, MOVED).dtype == bool


def inverts(node: Node) -> bool:
    """Says whether an equation divides a number by its operand."""
    if node.name == "div":
        return constant(node.inputs[0]) is not None
    power = node.params["y"] if node.name == "integer_pow" else constant(node.inputs[-1])
    return node.name in ("integer_pow", "pow") and power == -1


def _keeps_divisor(node: Node, position: int) -> bool:
    """Says whether an equation only keeps a sum from 0: it adds a small number, or takes the larger of the two."""
    if node.name in ("add", "max"):
        number = constant(node.inputs[1 - position])
        return number is not None and number <= SMALL and (number >= 0 or node.name == "max")
    if node.name == "select_n" and position > 0:
        return all(constant(case) is not None for case in node.inputs[1:] if case is not node.inputs[position])
    return node.name == "abs"


def _fails_only(node: Node, position: int) -> bool:
    """Says whether an equation chooses NaN in the place of some numbers, as for the logarithm of a negative sum."""
    others = [constant(case) for case in node.inputs[1:] if case is not node.inputs[position]]
    return position > 0 and all(number is not None and math.isnan(number) for number in others)


def _from_maximum(value: Value) -> bool:
    """Says whether a value is the maximum of rows, or of these and something else, laid out to be subtracted."""
    node = back(value, MOVED).producer
    if node is None or node.name not in ("reduce_max", "max", "select_n"):
        return False
    return node.name == "reduce_max" or any(map(_from_maximum, node.inputs[-2:]))


def same_steps(one: Value | None, other: Value | None, depth: int = 8) -> bool:
    """Says whether two values are the same, or the same few steps from the same: a program may compute one twice."""
    if one is other or one is None or other is None:
        return one is other
    first, second = one.producer, other.producer
    if first is None or second is None:
        return one.number is not None and one.number == other.number
    return (
        depth > 0
        and first.name == second.name
        and first.name in MOVED | REPEATED
        and first.params == second.params
        and all(same_steps(a, b, depth - 1) for a, b in zip(first.inputs, second.inputs))
    )


def _same_number(one: Value | None, other: Value | None) -> bool:
    """Says whether two values are the same, perhaps laid out otherwise."""
    return same_steps(one and back(one, MOVED), other and back(other, MOVED))


def _exponents(exponentials: Value, axes: tuple[int, ...]) -> Exponents | None:
    """Returns what exponentials are taken of, without a maximum that was subtracted and is the same along axes."""
    assert exponentials.producer
    value = exponent = exponentials.producer.inputs[-1]
    factor = base = exponentials.producer.base
    assert base is not None
    assert factor is not None
    while node := value.producer:
        if node.name == "neg" and not axes and _from_maximum(node.inputs[0]):
            return Exponents(0.0, factor, node.inputs[0])
        if node.name == "sub" and _from_maximum(node.inputs[1]):
            logits, shift = node.inputs
            start, steps = chain(shift)
            if set(along(steps, shift.shape, range(len(start.shape)))) & set(axes):
                break  # not the same along the axes
            number = constant(logits)
            if number is not None and (not axes or logits.shape != exponent.shape):
                return None if axes else Exponents(number, factor, shift)
            if logits.shape == exponent.shape or not axes:
                return Exponents(logits, factor, shift)
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


# The search from a sum of exponentials to what it divides


class _Total(NamedTuple):
    """A sum of exponentials on its way to a division."""

    value: Value
    steps: tuple[Step, ...] = ()
    extra: Extra | None = None
    stage: Literal["sum", "log", "log and shift", "reciprocal"] = "sum"


class _Sum(NamedTuple):
    """An equation that sums exponentials along axes."""

    node: Node
    exponentials: Value
    exponents: Exponents
    axes: tuple[int, ...]
    masks: tuple[Mask, ...]

    def softmaxes(self) -> Iterator[Softmax]:
        """Yields the softmaxes that divide by the sum."""
        for total in reached([_Total(self.node.outputs[0])], self.onward):
            for node, position in total.value.users:
                match total.stage, node.name:
                    case "sum", "div" if position == 1:
                        yield from self.quotient(node, 0, total)
                    case "reciprocal", "mul":
                        yield from self.quotient(node, 1 - position, total)
                    case "log" | "log and shift", "sub" if position == 1:
                        yield from self.exponential(node, total)

    def onward(self, total: _Total) -> Iterator[_Total]:
        """Yields the sum one equation further: laid out, kept from 0, with an extra logit, its logarithm or inverse."""
        shift, value = self.exponents.shift, total.value
        for node, position in value.users:
            if node.name in LAID and position == 0:
                for place, result in enumerate(node.outputs):
                    yield total._replace(value=result, steps=(*total.steps, Step(node, 0, place)))
                continue
            if not node.outputs or node.outputs[0].shape != value.shape:
                continue
            further = total._replace(value=node.outputs[0])
            match total.stage, node.name:
                case "sum", "log":
                    yield further._replace(stage="log")
                case "sum", "div" | "integer_pow" | "pow" if inverts(node):
                    if node.name != "div" or constant(node.inputs[0]) == 1:
                        yield further._replace(stage="reciprocal")
                case "sum", _ if _keeps_divisor(node, position):
                    yield further
                case "log" | "log and shift", "select_n" if _fails_only(node, position):
                    yield further
                case "log", "add" if shift and _same_number(node.inputs[1 - position], shift):
                    yield further._replace(stage="log and shift")
                case "sum", "add" if total.extra is None and self.unmoved(total):
                    if extra := self.extra(node.inputs[1 - position], value.shape):
                        yield further._replace(extra=extra)
                case "log" | "log and shift", "max" if total.extra is None and self.unmoved(total):
                    both = _logaddexp(node)
                    if both and (total.stage == "log and shift" or not shift):
                        yield further._replace(value=both, extra=Extra(node.inputs[1 - position], 1, (), value.shape))

    def unmoved(self, total: _Total) -> bool:
        """Says whether the sum is laid out as it was summed, with or without axes of size 1 for those summed."""
        shape, summed = total.value.shape, self.node.outputs[0].shape
        kept = tuple(1 if axis in self.axes else size for axis, size in enumerate(self.exponentials.shape))
        at = entries(shape)
        own = at if shape == summed else np.delete(at, self.axes, 0) if shape == kept else None
        return own is not None and np.array_equal(own, origin(total.steps, at))

    def extra(self, other: Value, shape: tuple[int, ...]) -> Extra | None:
        """Returns the logit whose exponential a value is, if it has the shift of the others."""
        shift = self.exponents.shift
        number = constant(other)
        if number is not None:
            return Extra(math.log(number), 1, (), shape) if number > SMALL and shift is None else None
        start, steps = chain(other)
        assert self.exponentials.producer
        same_base = start.producer and start.producer.base == self.exponentials.producer.base
        if not same_base or any(step.node.name not in MOVED for step in steps):
            return None
        exponents = _exponents(start, ())
        same = exponents and _same_number(exponents.shift, shift)
        return Extra(exponents.logits, exponents.factor, steps, shape) if exponents and same else None

    def quotient(self, node: Node, numerator: int, total: _Total) -> Iterator[Softmax]:
        """Yields the softmax whose exponentials, or a product with them, an equation divides."""
        operand, shape = node.inputs[numerator], node.outputs[0].shape
        start, steps = chain(operand)
        if operand.shape != shape:
            return
        if same_steps(start, self.exponentials):
            if self.same_rows(steps, total, shape):
                yield from self.masked_after(self.softmax("weights", node, total.extra, steps), self.bare(steps))
            return
        for way in self.ways(operand, PRODUCTS[:1] if node.derived else PRODUCTS):
            if self.same_rows(way, total, shape):
                # A product that contracts all of a row: no entry of the result has a place within it.
                form = "weights" if along(way, shape, self.axes) else "divided"
                yield from self.masked_after(self.softmax(form, node, total.extra, way), self.bare(way))

    def ways(self, value: Value, products: Sequence[str]) -> Iterator[tuple[Step, ...]]:
        """Yields the ways from the exponentials to what is linear in them, through products that serve nothing else.

        With values of 3, `(e[..., None] * v).sum(-2)` broadcasts e to (4, 5, 3), multiplies, and sums axis 1: the
        steps of a `dot_general`, one by one. Dropout and gates multiply before.
        """
        start, steps = chain(value)
        product = start.producer
        if same_steps(start, self.exponentials):
            yield steps
        elif product and product.name in products and _only_divided(start, steps):
            linear = product.inputs[:1] if product.name == "div" else product.inputs
            befores = [[*self.ways(operand, products)] for operand in linear]
            if product.name == "dot_general" or sum(map(bool, befores)) == 1:
                for place, ways in enumerate(befores):
                    yield from ((*before, Step(product, place, 0), *steps) for before in ways)

    def exponential(self, node: Node, total: _Total) -> Iterator[Softmax]:
        """Yields the softmaxes that subtract the logarithm of the sum from their logits."""
        assert self.exponentials.producer
        logits, factor, shift = self.exponents
        exponent, base = self.exponentials.producer.inputs[-1], self.exponentials.producer.base
        sources = {back(exponent)} if base == 1 and total.stage == "log" else set()
        if isinstance(logits, Value) and abs(factor - 1) < 1e-6 and (total.stage == "log and shift" or not shift):
            sources |= {logits, back(logits)}
        bare = back(node.inputs[0])
        hidden = [mask for source in sources if (mask := self.mask_above(source, bare))]
        whole = any(same_steps(bare, source) for source in sources)
        if not (whole or hidden) or not self.same_rows((), total, node.outputs[0].shape):
            return
        if whole:
            exps = _exponentials_of(node, [*self.masks, *_low_masks(logits)])
            for exp in exps:
                yield self.softmax("weights", exp, total.extra, ())
            if not exps:
                yield self.softmax("log", node, total.extra, ())
            return
        own = self._replace(exponents=self.exponents._replace(logits=bare), masks=(hidden[0],))
        bare_exps = _exponentials_of(node, [])
        for exp in _exponentials_of(node, hidden):
            softmax = own.softmax("weights", exp, total.extra, ())
            yield from own.masked_after(softmax, hidden if exp in bare_exps else [])

    def masked_after(self, softmax: Softmax, bare: list[Mask]) -> Iterator[Softmax]:
        """Yields a softmax whose sum has masks that its numerator lacks, where everything that uses it has them.

        where(m, exp(z - log Σ_j m_j exp(z_j)), 0): the hidden entries of exp(z - log s) may be anything. So each
        equation that uses them must mask them as the sum does, and is the one to replace.
        """
        if not bare:
            yield softmax
            return
        users = [user for user, _ in softmax.node.outputs[0].users if not user.backward]
        masks = [own[1] if (own := masking(user)) else None for user in users]
        masked = all(mask and _same_mask(mask, other) for mask in masks for other in bare)
        if masked and softmax.form == "weights" and not returned(softmax.node):
            yield from (dataclasses.replace(softmax, node=user) for user in users)

    def bare(self, steps: tuple[Step, ...]) -> list[Mask]:
        """Returns the masks of the sum that a numerator, made by these steps, lacks in exponentials and logits."""
        own = [mask[1] for step in steps if (mask := masking(step.node))]
        own += _low_masks(self.exponents.logits)
        return [mask for mask in self.masks if not any(_same_mask(mask, other) for other in own)]

    def mask_above(self, masked: Value, bare: Value) -> Mask | None:
        """Returns the mask that makes masked logits of bare ones, if the sum leaves out what it hides."""
        node = back(masked).producer
        if node is None or node.name != "select_n" or len(node.inputs) != 3:
            return None
        predicate, *cases = node.inputs
        for place, case in enumerate(cases):
            number = constant(cases[1 - place])
            if number is not None and back(case) is bare:
                mask = Mask(predicate, bool(place))
                summed = any(_same_mask(mask, other) for other in self.masks)
                return mask if number <= LOW or summed else None
        return None

    def same_rows(self, steps: tuple[Step, ...], total: _Total, shape: tuple[int, ...]) -> bool:
        """Says whether each entry of a result, made by these steps, meets the sum of its own row."""
        at = entries(shape)
        divisor = at[len(shape) - len(total.value.shape) :]  # one number may divide all
        divisor = np.minimum(divisor, _sizes(total.value.shape) - 1)
        return np.array_equal(np.delete(origin(steps, at), self.axes, 0), origin(total.steps, divisor))

    def softmax(self, form: Form, node: Node, extra: Extra | None, steps: tuple[Step, ...]) -> Softmax:
        # A mask that the sum has is in the logits of a replacement; any other is one of the weights.
        own = tuple(step for step in steps if not self.repeats(step))
        return Softmax(form, node, self.node, self.exponents, self.axes, self.masks, extra, own)

    def repeats(self, step: Step) -> bool:
        """Says whether a step is a mask that the sum has too."""
        _, own = masking(step.node) or (None, None)
        same = [mask for mask in self.masks if own and own.visible_if == mask.visible_if]
        return any(own and same_steps(own.predicate, mask.predicate) for mask in same)


def _sum_of_exponentials(node: Node) -> _Sum | None:
    """Returns what is known of an equation that sums exponentials, perhaps masked."""
    axes = tuple(int(axis) for axis in node.params["axes"])
    start, steps = chain(node.inputs[0])
    masked = [masking(step.node) for step in steps]
    if any(not mask and step.node.name not in SAME for mask, step in zip(masked, steps)):
        return None
    if not (start.producer and start.producer.exponentiates and (exponents := _exponents(start, axes))):
        return None
    return _Sum(node, start, exponents, axes, tuple(dict.fromkeys(mask for _, mask in filter(None, masked))))


def returned(node: Node) -> bool:
    """Says whether a body returns results of an equation."""
    return any(value in node.frame.home().outputs for value in node.outputs)


def _exponentials_of(node: Node, masks: Iterable[Mask]) -> list[Node]:
    """Returns the equations that take the exponential of a result, perhaps hidden by these masks."""

    def onward(value: Value) -> list[Value]:
        results = [user.outputs[0] for user, _ in value.users if user.outputs]
        hidden = [one for one in results if any(_same_mask(a, b) for a in _low_masks(one) for b in masks)]
        return [*hidden, *(one for one in results if one.producer and one.producer.name in SAME)]

    return [user for value in reached(node.outputs, onward) for user, _ in value.users if user.name == "exp"]


def _low_masks(logits: Value | float) -> list[Mask]:
    """Returns the mask by which a low number was chosen in the place of some logits, if any."""
    node = back(logits).producer if isinstance(logits, Value) else None
    if node is None or node.name != "select_n" or len(node.inputs) != 3:
        return []
    numbers = [constant(case) for case in node.inputs[1:]]
    return [Mask(node.inputs[0], not at) for at, number in enumerate(numbers) if number is not None and number <= LOW]


def _same_mask(one: Mask, other: Mask) -> bool:
    """Says whether two masks hide the same entries: of one predicate, perhaps turned into numbers and back."""
    (first, laid), (second, other_laid) = _predicate(one.predicate), _predicate(other.predicate)
    return one.visible_if == other.visible_if and laid == other_laid and same_steps(first, second)


def _predicate(value: Value) -> tuple[Value, list[Any]]:
    """Returns what a mask was made of without leaving its entries, and how it was laid out on the way."""
    laid: list[Any] = []
    while node := value.producer:
        turned_back = node.name == "ne" and constant(node.inputs[1]) == 0
        if node.name not in MOVED and not turned_back:
            break
        repeated = node.name == "broadcast_in_dim" and len(node.inputs[0].shape) == len(
            value.shape
        )  # a product does too
        if node.name in MOVED - SAME and not repeated:
            laid.append((node.name, node.params))
        value = node.inputs[0]
    return value, laid


def _only_divided(product: Value, steps: Iterable[Step]) -> bool:
    """Says whether a product, on the way to its division, is only moved or masked, and used for nothing else."""
    for value in (product, *(step.node.outputs[step.result] for step in steps)):
        assert value.producer
        forward = [node for node, _ in value.users if not node.backward]
        if len(forward) != 1 or value in value.producer.frame.home().outputs:
            return False
    return all(step.node.name in MOVED or masking(step.node) for step in steps)


def _logaddexp(larger: Node) -> Value | None:
    """Returns log(exp(a) + exp(b)), if an equation takes the larger of both for it."""

    def same(node: Node) -> set[Value | float]:
        return {one if one.number is None else one.number for one in node.inputs}

    for node, position in larger.outputs[0].users:
        rest = node.inputs[1 - position].producer if node.name == "add" else None
        for name in ("log1p", "exp", "neg", "abs"):
            rest = rest.inputs[0].producer if rest and rest.name == name else None
        if rest and rest.name == "sub" and same(rest) == same(larger):
            chosen = [user for user, place in node.outputs[0].users if user.name == "select_n" and place > 0]
            return (chosen or [node])[0].outputs[0]
    return None
