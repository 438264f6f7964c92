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
from softmax_jax.transforms.program import (
    IDENTITIES,
    LAYOUTS,
    VIEWS,
    Frame,
    Node,
    Program,
    Value,
    constant,
    unwrap,
    walk,
)

Form = Literal["weights", "log", "divided"]
PRODUCTS = ("dot_general", "mul", "div", "reduce_sum")
"""The primitives of products with exponentials. Where a derivative is taken only the first counts: the derivative of
Σ exp(z) is Σ exp(z) dz, an elementwise product and a sum too."""
SMALL_DIVISOR = 1e-3
"""A constant at most this is added to a divisor only to keep it from 0."""
LOW_LOGIT = -100.0
"""A constant at most this, chosen by a predicate, hides a logit."""
RECOMPUTED = frozenset({"exp", "exp2", "pow", "sub", "mul", "div", "max", "reduce_max", "neg"})
RECOMPUTED |= {"slice", "dot_general", "add", "select_n", "integer_pow", "sqrt", "rsqrt", "tanh"}
"""The primitives, beside those that move numbers, that a program may repeat: exp(q k) over the sum of exp(q k)."""
STAND_IN_SIZE = 7
"""Stands for the size of an axis that is symbolic, as in `jax.export`, or has no entries."""
PLACES = np.random.default_rng(0).random((64, 48))
"""The 48 entries at which layouts are compared, as places from 0 to 1 along up to 64 axes."""


class Step(NamedTuple):
    """One equation on a path through the program: the operand that is followed, and the result."""

    node: Node
    position: int
    result: int


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


class Extra(NamedTuple):
    """One more logit of every row, whose exponential is added to the sum."""

    logit: Value | float
    factor: float
    steps: tuple[Step, ...]
    """The layout of its exponential."""
    shape: tuple[int, ...]
    """The shape of the sum."""


@dataclasses.dataclass(eq=False, repr=False)
class Softmax:
    """A softmax in a program."""

    form: Form
    """The result of `node`: weights, their logarithms, or a product with them."""
    node: Node
    """The equation to replace."""
    total: Node
    """The equation that sums the exponentials."""
    exponents: Exponents
    axes: tuple[int, ...]
    """The axes of the sum."""
    masks: tuple[Mask, ...]
    """The masks of exponentials, rather than of logits."""
    extra: Extra | None
    steps: tuple[Step, ...]
    """The steps from the exponentials to their division, without masks that the sum has too."""

    @property
    def exponentials(self) -> Value:
        """The exponentials that are summed."""
        return unwrap_views(self.total.inputs[0])[0]

    @property
    def logits(self) -> Value:
        """The logits, except for a factor."""
        assert isinstance(self.exponents.logits, Value)
        return self.exponents.logits

    @property
    def unmodified(self) -> bool:
        """Says whether `node` returns the weights of the model, or their logarithms, as they are."""
        return not self.extra and all(step.node.name in IDENTITIES for step in self.steps)

    def required_values(self) -> list[Value]:
        """Returns the values that a replacement looks up."""
        extra = self.extra
        values = [self.logits, *(mask.predicate for mask in self.masks)]
        values += [extra.logit] if extra and isinstance(extra.logit, Value) else []
        for node, position, _ in (*self.steps, *(extra.steps if extra else ())):
            values += [operand for index, operand in enumerate(node.inputs) if index != position]
        return values

    def readable(self) -> bool:
        """Says whether its logits can be had where it stands, and each mask of its exponentials, entry by entry."""
        fits = all(checks.broadcasts(mask.predicate.shape, self.logits.shape) for mask in self.masks)
        one_axis = self.extra is None or len(self.axes) == 1
        return fits and one_axis and all(is_available(value, self.node.frame) for value in self.required_values())


def find_softmaxes(program: Program) -> list[Softmax]:
    """Returns all softmaxes whose logits can be read, in the order of the program."""
    # Where one equation is a softmax of two sums, the sum that comes first in the program counts.
    candidates = (softmax for total in reversed(_read_sums(program)) for softmax in total.find_softmaxes())
    softmaxes = {softmax.node: softmax for softmax in candidates if softmax.readable()}
    return [softmaxes[node] for node in program.nodes if node in softmaxes]


def find_sums(program: Program) -> dict[Node, Value]:
    """Returns the equations that sum exponentials along rows, with the logits of each, except for a factor."""
    logits = {total.node: total.exponents.logits for total in _read_sums(program)}
    return {node: value for node, value in logits.items() if isinstance(value, Value)}


def is_available(value: Value, frame: Frame) -> bool:
    """Says whether a body can read a value while it runs: the body computes it, or the program around the body does."""
    if value.producer is None:
        return True
    owner = value.producer.frame.owner()
    enclosing = list(frame.enclosing())
    # y = jit(f)(x): f computes y, and the program around receives it as the same value. So a value that a body returns
    # also belongs to the caller of that body.
    while owner not in enclosing and owner.caller and value in owner.outputs:
        owner = owner.caller.frame.owner()
    return owner in enclosing


# Layouts: which entry of an array another holds
#
# Reshapes, transposes, slices and products move entries by rules that hold for every entry. So two layouts are compared
# at 48 entries, by arithmetic on their indices. Layouts that agree at a share p of their entries pass for equal with
# chance p^48. A transpose of (n, n) keeps the diagonal, p = 1 / n: 4e-15 for n = 2.


def random_entries(shape: Sequence[int]) -> np.ndarray:
    """Returns the indices of 48 random entries of an array, of shape (axes, entries)."""
    return (PLACES[: len(shape)] * _sizes(shape)).astype(int)


def trace_entries(steps: Iterable[Step], indices: np.ndarray) -> np.ndarray:
    """Returns the entries at the start of a path that these entries at its end hold.

    x.T of shape (3, 2), reshaped to 6 and cut at 2: entry 1 is entry 3 of the reshaped array, row 1 and column 1 of
    x.T, so x[1, 1].

    >>> import jax, jax.numpy as jnp
    >>> from softmax_jax.transforms import program
    >>> traced = program.trace(lambda x: x.T.reshape(6)[2:], (jnp.ones((2, 3)),), {})
    >>> trace_entries([Step(node, 0, 0) for node in traced.nodes], np.array([[0, 1, 3]]))
    array([[0, 1, 1],
           [1, 1, 2]])
    """
    for step in reversed(tuple(steps)):
        indices = _trace_step(step, indices)
    return indices


def _trace_step(step: Step, indices: np.ndarray) -> np.ndarray:
    """Returns the entries of the operand that these entries of the result hold; for a sum, any one of its summands."""
    node, params = step.node, step.node.params
    shape, result = node.inputs[step.position].shape, node.outputs[step.result].shape
    sizes = _sizes(shape)
    match node.name:
        case "transpose":
            # Axis a of the result is axis p[a] of the operand, so axis b of the operand is axis argsort(p)[b] of the
            # result. p = (2, 0, 1): argsort(p) = (1, 2, 0), and y[i, j, k] = x[j, k, i].
            indices = indices[np.argsort(params["permutation"])]
        case "broadcast_in_dim":
            indices = indices[list(params["broadcast_dimensions"])]
        case "reshape" | "squeeze" | "expand_dims":
            # A reshape keeps the row-major place Σ strideₐ · iₐ. Entry 3 of (6,) is entry (3 // 2 % 3, 3 // 1 % 2) =
            # (1, 1) of (3, 2), whose strides are (2, 1).
            indices = _strides(result) @ indices // _strides(shape)[:, None] % sizes
        case "slice":
            indices = indices * _sizes(params["strides"] or [1] * len(shape)) + _sizes(params["start_indices"], zero=0)
        case "split":
            indices = indices.copy()
            indices[params["axis"]] += sum(params["sizes"][: step.result])
        case "reduce_sum":
            indices = _fill_entries(indices, shape, [axis for axis in range(len(shape)) if axis not in params["axes"]])
        case "dot_general":
            contracted, batch = params["dimension_numbers"]
            # The result has the batch axes, then the free axes of both operands: bhqk,bhkd->bhqd has batch axes b and
            # h, free axes q and d. Its axes 0, 1, 2 are b, h, q of the first operand; 0, 1, 3 are b, h, d of the
            # second. The index along the contracted axis k is arbitrary.
            removed = [{*contracted[side], *batch[side]} for side in (0, 1)]
            free = [[a for a in range(len(node.inputs[side].shape)) if a not in removed[side]] for side in (0, 1)]
            first = len(batch[0]) + step.position * len(free[0])
            axes = [*range(len(batch[0])), *range(first, first + len(free[step.position]))]
            indices = _fill_entries(indices[axes], shape, [*batch[step.position], *free[step.position]])
        case _:  # entry by entry; NumPy's broadcasting adds axes in front
            indices = indices[len(result) - len(shape) :]
    return np.minimum(indices, sizes - 1)  # an axis of size 1 is broadcast


def _sizes(sizes: Sequence[Any], zero: int = STAND_IN_SIZE) -> np.ndarray:
    """Returns sizes as a column, with stand-ins for 0 and for symbolic sizes."""
    numbers = [(size or zero) if isinstance(size, int | np.integer) else STAND_IN_SIZE for size in sizes]
    return np.array(numbers, int).reshape(-1, 1)


def _strides(shape: Sequence[int]) -> np.ndarray:
    sizes = _sizes(shape)[:, 0]
    return np.array([math.prod(sizes[axis + 1 :]) for axis in range(len(shape))], int)


def _fill_entries(indices: np.ndarray, shape: Sequence[int], known: list[int]) -> np.ndarray:
    """Returns entries of an array with these indices along known axes, and arbitrary ones along the others."""
    # `axes_along` passes several blocks of 48 entries, which repeat the draws, so an arbitrary axis never moves.
    # They are reversed: in einsum("ij,id->jd", e, v) / s[:, None], whose rows are wrong, axis 0 of e would otherwise
    # have the very draws at which s is read.
    repetitions = -(-indices.shape[1] // PLACES.shape[1])
    filled = np.tile(random_entries(shape)[:, ::-1], repetitions)[:, : indices.shape[1]]
    filled[known] = indices
    return filled


def axes_along(steps: Iterable[Step], shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Returns the axes at the end of a path that hold a part of some axes at its start; `shape` is the one at the end.

    (6, 5) reshaped to (2, 3, 5): axis 0 is held by axes 0 and 1.
    """
    # Block 0 has random entries; block a + 1 has the same, but for the indices along axis a. If they come from other
    # places along `axes` than those of block 0, axis a holds a part of `axes`.
    rank, count = len(shape), PLACES.shape[1]
    indices = np.tile(random_entries(shape), rank + 1).reshape(rank, rank + 1, count)
    for axis in range(rank):
        indices[axis, axis + 1] = indices[axis, axis + 1, ::-1].copy()
    indices = indices.reshape(rank, (rank + 1) * count)
    moved = trace_entries(steps, indices)[list(axes)].reshape(len(axes), rank + 1, count)
    return tuple(axis for axis in range(rank) if (moved[:, axis + 1] != moved[:, 0]).any())


def unwrap_views(value: Value) -> tuple[Value, tuple[Step, ...]]:
    """Returns the value that a value is a view of, masked or not, and the steps from there."""
    steps: list[Step] = []
    while node := value.producer:
        masked = read_mask(node)
        if masked is None and node.name not in VIEWS:
            break
        operand = masked[0] if masked else node.inputs[0]
        steps.append(Step(node, node.inputs.index(operand), node.outputs.index(value)))
        value = operand
    return value, tuple(steps[::-1])


# Masks of exponentials, divisors and shifts


def read_mask(node: Node) -> tuple[Value, Mask] | None:
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


def is_reciprocal(node: Node) -> bool:
    """Says whether an equation divides a number by its operand: c / s, s ** -1 or pow(s, -1)."""
    if node.name == "div":
        return constant(node.inputs[0]) is not None
    power = node.params["y"] if node.name == "integer_pow" else constant(node.inputs[-1])
    return node.name in ("integer_pow", "pow") and power == -1


def _guards_divisor(node: Node, position: int) -> bool:
    """Says whether an equation only keeps a sum from 0, as in s + 1e-9, max(s, 1e-9) or where(s == 0, 1, s)."""
    if node.name in ("add", "max"):
        number = constant(node.inputs[1 - position])
        return number is not None and number <= SMALL_DIVISOR and (number >= 0 or node.name == "max")
    if node.name == "select_n" and position > 0:
        return all(constant(case) is not None for case in node.inputs[1:] if case is not node.inputs[position])
    return node.name == "abs"


def _selects_nan(node: Node, position: int) -> bool:
    """Says whether an equation replaces some numbers by NaN, as `logsumexp` does for a negative sum."""
    numbers = [constant(case) for case in node.inputs[1:] if case is not node.inputs[position]]
    return position > 0 and all(number is not None and math.isnan(number) for number in numbers)


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


def _same_up_to_layout(left: Value | None, right: Value | None) -> bool:
    """Says whether two values are the same, perhaps laid out otherwise."""
    return same_computation(left and unwrap(left, LAYOUTS), right and unwrap(right, LAYOUTS))


def _read_exponents(exponentials: Value, axes: tuple[int, ...]) -> Exponents | None:
    """Returns logits, factor and shift of exponentials; the shift is the same along axes.

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


# The search from a sum of exponentials to what it divides


class _Total(NamedTuple):
    """A sum of exponentials s on its way to a division.

    Stages: the sum s; log s, or log s + m if m was subtracted; 1 / s.
    """

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

    def find_softmaxes(self) -> Iterator[Softmax]:
        """Yields the softmaxes that divide by the sum."""
        for total in walk([_Total(self.node.outputs[0])], self.follow):
            for node, position in total.value.users:
                match total.stage, node.name:
                    case "sum", "div" if position == 1:
                        yield from self.quotient(node, 0, total)
                    case "reciprocal", "mul":
                        yield from self.quotient(node, 1 - position, total)
                    case "log" | "log and shift", "sub" if position == 1:
                        yield from self.exponential(node, total)

    def follow(self, total: _Total) -> Iterator[_Total]:
        """Yields the sum one equation further: a view, kept from 0, with an extra logit, its log or reciprocal."""
        shift, value = self.exponents.shift, total.value
        for node, position in value.users:
            if node.name in VIEWS and position == 0:
                for index, result in enumerate(node.outputs):
                    yield total._replace(value=result, steps=(*total.steps, Step(node, 0, index)))
                continue
            if not node.outputs or node.outputs[0].shape != value.shape:
                continue
            further = total._replace(value=node.outputs[0])
            match total.stage, node.name:
                case "sum", "log":
                    yield further._replace(stage="log")
                case "sum", "div" | "integer_pow" | "pow" if is_reciprocal(node):
                    # c / s with another c would scale the weights.
                    if node.name != "div" or constant(node.inputs[0]) == 1:
                        yield further._replace(stage="reciprocal")
                case "sum", _ if _guards_divisor(node, position):
                    yield further
                case "log" | "log and shift", "select_n" if _selects_nan(node, position):
                    yield further
                # z - (log s + m) = log (e^(z - m) / s): only the m that was subtracted gives the weights.
                case "log", "add" if shift and _same_up_to_layout(node.inputs[1 - position], shift):
                    yield further._replace(stage="log and shift")
                # s + e^(z₀ - m), and log (e^l + e^z₀) of the logarithm l of a sum. The extra logit gets the layout
                # of the sum, so the sum must not have been moved.
                case "sum", "add" if total.extra is None and self.keeps_layout(total):
                    if extra := self.extra(node.inputs[1 - position], value.shape):
                        yield further._replace(extra=extra)
                case "log" | "log and shift", "max" if total.extra is None and self.keeps_layout(total):
                    joined = _read_logaddexp(node)
                    if joined and (total.stage == "log and shift" or not shift):
                        yield further._replace(value=joined, extra=Extra(node.inputs[1 - position], 1, (), value.shape))

    def keeps_layout(self, total: _Total) -> bool:
        """True if the sum still has the layout of `reduce_sum` (keepdims or not)."""
        shape, reduced_shape = total.value.shape, self.node.outputs[0].shape
        kept_shape = tuple(1 if axis in self.axes else size for axis, size in enumerate(self.exponentials.shape))
        indices = random_entries(shape)
        if shape not in (reduced_shape, kept_shape):
            return False
        reduced_indices = indices if shape == reduced_shape else np.delete(indices, self.axes, 0)
        return np.array_equal(reduced_indices, trace_entries(total.steps, indices))

    def extra(self, other: Value, shape: tuple[int, ...]) -> Extra | None:
        """Returns the logit whose exponential a value is, if it has the shift of the others."""
        shift = self.exponents.shift
        number = constant(other)
        if number is not None:  # s + c = s + e^(log c - 0): a logit where nothing is subtracted
            return Extra(math.log(number), 1, (), shape) if number > SMALL_DIVISOR and shift is None else None
        start, steps = unwrap_views(other)
        assert self.exponentials.producer
        same_base = start.producer and start.producer.base == self.exponentials.producer.base
        if not same_base or any(step.node.name not in LAYOUTS for step in steps):
            return None
        exponents = _read_exponents(start, ())
        same_shift = exponents and _same_up_to_layout(exponents.shift, shift)
        return Extra(exponents.logits, exponents.factor, steps, shape) if exponents and same_shift else None

    def quotient(self, node: Node, numerator: int, total: _Total) -> Iterator[Softmax]:
        """Yields the softmax whose exponentials, or a product with them, an equation divides by the sum."""
        operand, shape = node.inputs[numerator], node.outputs[0].shape
        start, steps = unwrap_views(operand)
        if operand.shape != shape:
            return
        if same_computation(start, self.exponentials):
            if self.divides_own_rows(steps, total, shape):
                yield from self.require_masks(
                    self.softmax("weights", node, total.extra, steps), self.missing_masks(steps)
                )
            return
        for path in self.find_paths(operand, PRODUCTS[:1] if node.derived else PRODUCTS):
            if self.divides_own_rows(path, total, shape):
                # A product that contracts all of a row: no entry of the result has a place within it.
                form = "weights" if axes_along(path, shape, self.axes) else "divided"
                yield from self.require_masks(self.softmax(form, node, total.extra, path), self.missing_masks(path))

    def find_paths(self, value: Value, products: Sequence[str]) -> Iterator[tuple[Step, ...]]:
        """Yields the paths from the exponentials to a value linear in them, through products that serve nothing else.

        With values of 3, `(e[..., None] * v).sum(-2)` broadcasts e to (4, 5, 3), multiplies, and sums axis 1: the
        steps of a `dot_general`, one by one. Dropout and gates multiply before.
        """
        start, steps = unwrap_views(value)
        product = start.producer
        if same_computation(start, self.exponentials):
            yield steps
        elif product and product.name in products and _serves_division_only(start, steps):
            # A quotient is linear in its numerator only, and e · e is not linear in e: one factor of an elementwise
            # product holds exponentials. In a `dot_general` each operand is a path of its own.
            linear = product.inputs[:1] if product.name == "div" else product.inputs
            operand_paths = [[*self.find_paths(operand, products)] for operand in linear]
            if product.name == "dot_general" or sum(map(bool, operand_paths)) == 1:
                for position, paths in enumerate(operand_paths):
                    yield from ((*path, Step(product, position, 0), *steps) for path in paths)

    def exponential(self, node: Node, total: _Total) -> Iterator[Softmax]:
        """Yields the softmaxes that subtract the logarithm of the sum from their logits."""
        # e^(x - l) = e^x / Σ e^x needs l to be of the same x. l = log Σ e^x, with x the whole exponent, c (z - m) or z.
        # l = log s + m, with x = z: then c = 1, as c z - (log s + m) is not log (e^(c (z - m)) / s).
        assert self.exponentials.producer
        logits, factor, shift = self.exponents
        exponent, base = self.exponentials.producer.inputs[-1], self.exponentials.producer.base
        sources = {unwrap(exponent)} if base == 1 and total.stage == "log" else set()
        if isinstance(logits, Value) and abs(factor - 1) < 1e-6 and (total.stage == "log and shift" or not shift):
            sources |= {logits, unwrap(logits)}
        unmasked = unwrap(node.inputs[0])
        hidden = [mask for source in sources if (mask := self.find_mask(source, unmasked))]
        matches = any(same_computation(unmasked, source) for source in sources)
        if not (matches or hidden) or not self.divides_own_rows((), total, node.outputs[0].shape):
            return
        if matches:
            exps = _find_exponentials(node, [*self.masks, *_low_number_masks(logits)])
            for exp in exps:
                yield self.softmax("weights", exp, total.extra, ())
            if not exps:
                yield self.softmax("log", node, total.extra, ())
            return
        # z - log Σ_j m_j e^(z_j): the sum is of masked logits, the numerator of bare ones. The bare ones are the logits
        # and the mask counts as one of the exponentials, which whoever uses the weights must apply.
        unmasked_sum = self._replace(exponents=self.exponents._replace(logits=unmasked), masks=(hidden[0],))
        unmasked_exps = _find_exponentials(node, [])
        for exp in _find_exponentials(node, hidden):
            softmax = unmasked_sum.softmax("weights", exp, total.extra, ())
            yield from unmasked_sum.require_masks(softmax, hidden if exp in unmasked_exps else [])

    def require_masks(self, softmax: Softmax, missing: list[Mask]) -> Iterator[Softmax]:
        """Yields a softmax whose sum has masks that its numerator lacks, if all its users apply them.

        where(m, exp(z - log Σ_j m_j exp(z_j)), 0): the hidden entries of exp(z - log s) may be anything. So each
        equation that uses them must mask them as the sum does, and is the one to replace.
        """
        if not missing:
            yield softmax
            return
        users = [user for user, _ in softmax.node.outputs[0].users if not user.backward]
        masks = [read[1] if (read := read_mask(user)) else None for user in users]
        all_masked = all(mask and _hides_same(mask, other) for mask in masks for other in missing)
        if all_masked and softmax.form == "weights" and not is_returned(softmax.node):
            yield from (dataclasses.replace(softmax, node=user) for user in users)

    def missing_masks(self, steps: tuple[Step, ...]) -> list[Mask]:
        """Returns the masks of the sum that a numerator, made by these steps, lacks in exponentials and logits."""
        applied = [mask[1] for step in steps if (mask := read_mask(step.node))]
        applied += _low_number_masks(self.exponents.logits)
        return [mask for mask in self.masks if not any(_hides_same(mask, other) for other in applied)]

    def find_mask(self, masked: Value, unmasked: Value) -> Mask | None:
        """Returns the mask between masked and unmasked logits, if the sum leaves out the entries that it hides."""
        node = unwrap(masked).producer
        if node is None or node.name != "select_n" or len(node.inputs) != 3:
            return None
        predicate, *cases = node.inputs
        for index, case in enumerate(cases):
            number = constant(cases[1 - index])
            if number is not None and unwrap(case) is unmasked:
                mask = Mask(predicate, bool(index))
                in_sum = any(_hides_same(mask, other) for other in self.masks)
                return mask if number <= LOW_LOGIT or in_sum else None
        return None

    def divides_own_rows(self, steps: tuple[Step, ...], total: _Total, shape: tuple[int, ...]) -> bool:
        """Says whether each entry of a result, made by these steps, is divided by the sum of its own row."""
        # e of shape (4, 5) summed over axis 1, y = (e @ v) / s[:, None]: entry (i, j) of y holds (i, anything) of e, so
        # the row (i,). Its divisor is entry (i, 0) of s[:, None], which is entry (i,) of s.
        indices = random_entries(shape)
        divisor = np.minimum(indices[len(shape) - len(total.value.shape) :], _sizes(total.value.shape) - 1)
        rows = np.delete(trace_entries(steps, indices), self.axes, 0)
        return np.array_equal(rows, trace_entries(total.steps, divisor))

    def softmax(self, form: Form, node: Node, extra: Extra | None, steps: tuple[Step, ...]) -> Softmax:
        # A replacement hides what a mask of the sum hides before it weighs; other masks, as of dropout, come after.
        kept = tuple(step for step in steps if not self.is_mask_of_sum(step))
        return Softmax(form, node, self.node, self.exponents, self.axes, self.masks, extra, kept)

    def is_mask_of_sum(self, step: Step) -> bool:
        """Says whether a step is a mask that the sum has too."""
        _, mask = read_mask(step.node) or (None, None)
        same = [other for other in self.masks if mask and mask.visible_if == other.visible_if]
        return any(mask and same_computation(mask.predicate, other.predicate) for other in same)


def _read_sums(program: Program) -> list[_Sum]:
    """Returns the equations that sum exponentials, in the order of the program."""
    return [total for node in program.nodes if node.name == "reduce_sum" and (total := _read_sum(node))]


def _read_sum(node: Node) -> _Sum | None:
    """Returns an equation that sums exponentials, perhaps masked, with their exponents; None for any other."""
    axes = tuple(int(axis) for axis in node.params["axes"])
    start, steps = unwrap_views(node.inputs[0])
    masked = [read_mask(step.node) for step in steps]
    if any(not mask and step.node.name not in IDENTITIES for mask, step in zip(masked, steps)):
        return None
    if not (start.producer and start.producer.exponentiates and (exponents := _read_exponents(start, axes))):
        return None
    return _Sum(node, start, exponents, axes, tuple(dict.fromkeys(mask for _, mask in filter(None, masked))))


def is_returned(node: Node) -> bool:
    """Says whether a body returns results of an equation."""
    return any(value in node.frame.owner().outputs for value in node.outputs)


def _find_exponentials(node: Node, masks: Iterable[Mask]) -> list[Node]:
    """Returns the equations that take the exponential of a result, perhaps hidden by these masks."""

    def follow(value: Value) -> list[Value]:
        results = [user.outputs[0] for user, _ in value.users if user.outputs]
        return [result for result in results if _is_masked(result, masks) or _is_identity(result)]

    return [user for value in walk(node.outputs, follow) for user, _ in value.users if user.name == "exp"]


def _is_identity(result: Value) -> bool:
    return result.producer is not None and result.producer.name in IDENTITIES


def _is_masked(result: Value, masks: Iterable[Mask]) -> bool:
    """Says whether one of these masks chooses a low number for some entries of a result."""
    return any(_hides_same(mask, other) for mask in _low_number_masks(result) for other in masks)


def _low_number_masks(logits: Value | float) -> list[Mask]:
    """Returns the mask that replaces some logits by a low number, if any."""
    node = unwrap(logits).producer if isinstance(logits, Value) else None
    if node is None or node.name != "select_n" or len(node.inputs) != 3:
        return []
    low = [(number := constant(case)) is not None and number <= LOW_LOGIT for case in node.inputs[1:]]
    return [Mask(node.inputs[0], visible_if=not position) for position, is_low in enumerate(low) if is_low]


def _hides_same(left: Mask, right: Mask) -> bool:
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


def _serves_division_only(product: Value, steps: Iterable[Step]) -> bool:
    """Says whether a product is only moved or masked on the way to its division, and used for nothing else."""
    # n / s is replaced by a product with new weights. Any other use of n = Σ e v would keep the old exponentials.
    for value in (product, *(step.node.outputs[step.result] for step in steps)):
        assert value.producer
        users = [node for node, _ in value.users if not node.backward]
        if len(users) != 1 or value in value.producer.frame.owner().outputs:
            return False
    return all(step.node.name in LAYOUTS or read_mask(step.node) for step in steps)


def _read_logaddexp(larger: Node) -> Value | None:
    """Returns log(exp(a) + exp(b)), if an equation takes the larger of both for it."""
    # logaddexp(a, b) = max(a, b) + log1p(exp(-|a - b|)), then a select for NaN: walk from the sum back to a - b.

    def operands_of(node: Node) -> set[Value | float]:
        return {operand if operand.number is None else operand.number for operand in node.inputs}

    for node, position in larger.outputs[0].users:
        rest = node.inputs[1 - position].producer if node.name == "add" else None
        for name in ("log1p", "exp", "neg", "abs"):
            rest = rest.inputs[0].producer if rest and rest.name == name else None
        if rest and rest.name == "sub" and operands_of(rest) == operands_of(larger):
            selections = [user for user, index in node.outputs[0].users if user.name == "select_n" and index > 0]
            return (selections or [node])[0].outputs[0]
    return None
