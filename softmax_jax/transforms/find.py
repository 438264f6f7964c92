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
* *over segments*: $e_i / s_{g(i)}$, where g(i) is the segment of entry i, as in graph attention. The sum is a scatter
  by the ids g, the divisor is gathered by the same ids, and a shift may be any number of each segment.
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
from typing import Literal, NamedTuple

import numpy as np

from softmax_jax.normalizers import checks
from softmax_jax.transforms.exponents import (
    LOW_LOGIT,
    Exponents,
    Mask,
    hides_same,
    low_number_masks,
    read_exponents,
    read_node_mask,
    same_computation,
    same_up_to_layout,
    unwrap_views,
)
from softmax_jax.transforms.layouts import Step, axes_along, random_entries, sizes_of, trace_entries
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
from softmax_jax.transforms.scatters import SegmentIds, gathers_by, is_of_segments, read_scatter

Form = Literal["weights", "log", "divided"]
PRODUCTS = ("dot_general", "mul", "div", "reduce_sum")
"""The primitives of products with exponentials. Where a derivative is taken only the first counts: the derivative of
Σ exp(z) is Σ exp(z) dz, an elementwise product and a sum too."""
SMALL_DIVISOR = 1e-3
"""A constant at most this is added to a divisor only to keep it from 0."""


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
    segments: SegmentIds | None = None
    """The segments of the first axis that are rows; None for rows along `axes`."""

    @property
    def exponentials(self) -> Value:
        """The exponentials that are summed."""
        return unwrap_views(self.total.inputs[-1])[0]

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
        values += [self.segments.ids] if self.segments else []
        for node, position, _ in (*self.steps, *(extra.steps if extra else ())):
            values += [operand for index, operand in enumerate(node.inputs) if index != position]
        return values

    def readable(self) -> bool:
        """Says whether its logits can be had where it stands, and each mask of its exponentials, entry by entry."""
        fits = all(checks.broadcasts(mask.predicate.shape, self.logits.shape) for mask in self.masks)
        one_axis = self.extra is None or (len(self.axes) == 1 and not self.segments)
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


# The search from a sum of exponentials to what it divides


class _Total(NamedTuple):
    """A sum of exponentials s on its way to a division.

    Stages: the sum s; log s, or log s + m if m was subtracted; 1 / s. A sum over segments is `gathered` once each entry
    has that of its own.
    """

    value: Value
    steps: tuple[Step, ...] = ()
    extra: Extra | None = None
    stage: Literal["sum", "log", "log and shift", "reciprocal"] = "sum"
    gathered: bool = False


class _Sum(NamedTuple):
    """An equation that sums exponentials along axes, or over segments of the first."""

    node: Node
    exponentials: Value
    exponents: Exponents
    axes: tuple[int, ...]
    masks: tuple[Mask, ...]
    segments: SegmentIds | None = None

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
            if self.segments and position == 0 and gathers_by(node, self.segments.ids) and not total.steps:
                yield total._replace(value=node.outputs[0], gathered=True)
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
                case "log", "add" if shift and same_up_to_layout(node.inputs[1 - position], shift):
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
        exponents = read_exponents(start, ())
        same_shift = exponents and same_up_to_layout(exponents.shift, shift)
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
                scattered = any(step.node.name == "scatter-add" for step in path)
                form = "weights" if axes_along(path, shape, self.axes) and not scattered else "divided"
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
        elif product and self.is_product(product, products) and _serves_division_only(start, steps):
            # A quotient is linear in its numerator only, and e · e is not linear in e: one factor of an elementwise
            # product holds exponentials. In a `dot_general` each operand is a path of its own.
            linear = product.inputs[:1] if product.name == "div" else product.inputs
            operand_paths = [[*self.find_paths(operand, products)] for operand in linear]
            if product.name == "dot_general" or sum(map(bool, operand_paths)) == 1:
                for position, paths in enumerate(operand_paths):
                    yield from ((*path, Step(product, position, 0), *steps) for path in paths)

    def is_product(self, node: Node, products: Sequence[str]) -> bool:
        """Says whether an equation is one of these products, or a sum over the segments that the exponentials have."""
        scatter = read_scatter(node) if self.segments else None
        return same_computation(scatter.ids, self.segments.ids) if self.segments and scatter else node.name in products

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
            exps = _find_exponentials(node, [*self.masks, *low_number_masks(logits)])
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
        masks = [read[1] if (read := read_node_mask(user)) else None for user in users]
        all_masked = all(mask and hides_same(mask, other) for mask in masks for other in missing)
        if all_masked and softmax.form == "weights" and not is_returned(softmax.node):
            yield from (dataclasses.replace(softmax, node=user) for user in users)

    def missing_masks(self, steps: tuple[Step, ...]) -> list[Mask]:
        """Returns the masks of the sum that a numerator, made by these steps, lacks in exponentials and logits."""
        applied = [mask[1] for step in steps if (mask := read_node_mask(step.node))]
        applied += low_number_masks(self.exponents.logits)
        return [mask for mask in self.masks if not any(hides_same(mask, other) for other in applied)]

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
                in_sum = any(hides_same(mask, other) for other in self.masks)
                return mask if number <= LOW_LOGIT or in_sum else None
        return None

    def divides_own_rows(self, steps: tuple[Step, ...], total: _Total, shape: tuple[int, ...]) -> bool:
        """Says whether each entry of a result, made by these steps, is divided by the sum of its own row."""
        # e of shape (4, 5) summed over axis 1, y = (e @ v) / s[:, None]: entry (i, j) of y holds (i, anything) of e, so
        # the row (i,). Its divisor is entry (i, 0) of s[:, None], which is entry (i,) of s.
        indices = random_entries(shape)
        divisor = np.minimum(indices[len(shape) - len(total.value.shape) :], sizes_of(total.value.shape) - 1)
        rows, divisors = trace_entries(steps, indices), trace_entries(total.steps, divisor)
        if not self.segments:
            return np.array_equal(np.delete(rows, self.axes, 0), divisors)
        # t = s[ids] of e over segments: entry (j, h) of y holds entry (j, h) of e, and its divisor is that of t. In
        # (Σ e v) / s entry (i, h) of y holds segment i, as does that of s: here a segment counts as its i-th entry.
        scattered = any(step.node.name == "scatter-add" for step in steps)
        last = sizes_of(self.exponentials.shape) - 1
        return scattered != total.gathered and np.array_equal(rows, np.minimum(divisors, last))

    def softmax(self, form: Form, node: Node, extra: Extra | None, steps: tuple[Step, ...]) -> Softmax:
        # A replacement hides what a mask of the sum hides before it weighs; other masks, as of dropout, come after.
        kept = tuple(step for step in steps if not self.is_mask_of_sum(step))
        return Softmax(form, node, self.node, self.exponents, self.axes, self.masks, extra, kept, self.segments)

    def is_mask_of_sum(self, step: Step) -> bool:
        """Says whether a step is a mask that the sum has too."""
        _, mask = read_node_mask(step.node) or (None, None)
        same = [other for other in self.masks if mask and mask.visible_if == other.visible_if]
        return any(mask and same_computation(mask.predicate, other.predicate) for other in same)


def _read_sums(program: Program) -> list[_Sum]:
    """Returns the equations that sum exponentials, in the order of the program."""
    return [total for node in program.nodes if (total := _read_sum(node))]


def _read_sum(node: Node) -> _Sum | None:
    """Returns an equation that sums exponentials, perhaps masked, with their exponents; None for any other."""
    segments = read_scatter(node) if node.name == "scatter-add" and constant(node.inputs[0]) == 0 else None
    if node.name != "reduce_sum" and not segments:
        return None
    axes = (0,) if segments else tuple(int(axis) for axis in node.params["axes"])
    start, steps = unwrap_views(node.inputs[-1])
    masked = [read_node_mask(step.node) for step in steps]
    if any(not mask and step.node.name not in IDENTITIES for mask, step in zip(masked, steps)):
        return None
    if not (start.producer and start.producer.exponentiates):
        return None
    # Of segments a shift is the same for all entries of one: their maximum, gathered by the ids that the sum has.
    exponents = read_exponents(start, axes, lambda value: bool(segments) and is_of_segments(value, segments.ids))
    masks = tuple(dict.fromkeys(mask for _, mask in filter(None, masked)))
    return _Sum(node, start, exponents, axes, masks, segments) if exponents else None


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
    return any(hides_same(mask, other) for mask in low_number_masks(result) for other in masks)


def _serves_division_only(product: Value, steps: Iterable[Step]) -> bool:
    """Says whether a product is only moved or masked on the way to its division, and used for nothing else."""
    # n / s is replaced by a product with new weights. Any other use of n = Σ e v would keep the old exponentials.
    for value in (product, *(step.node.outputs[step.result] for step in steps)):
        assert value.producer
        users = [node for node, _ in value.users if not node.backward]
        if len(users) != 1 or value in value.producer.frame.owner().outputs:
            return False
    return all(step.node.name in LAYOUTS or read_node_mask(step.node) for step in steps)


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
