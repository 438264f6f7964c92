r"""Finds softmaxes of parts of a row, which a program merges into the row by their log-sum-exps.

A row may be cut in parts P, each with a softmax of its own. With the sum $s_P$ of the exponentials of a part, its
log-sum-exp $l_P = \log s_P$ and its output $o_P = \sum_{j \in P} e^{z_j} v_j / s_P$, the output of the row is

$$o = \frac{\sum_j e^{z_j} v_j}{\sum_j e^{z_j}} = \sum_P \frac{s_P}{\sum_Q s_Q} o_P
    = \sum_P \operatorname{softmax}(l)_P o_P$$

Flash decoding, ring attention, shared prefixes and hash rounds compute this. The factor of $o_P$ has many forms:

* a softmax of the log-sum-exps, or $e^{l_P - \log(e^{l_P} + e^{l_Q})}$; of two parts $\sigma(l_P - l_Q)$;
* $s_P e^{m_P - m}$ with maxima m, where the sum of all divides later;
* $\sigma(l - z_0)$ for a sink, a part without a value.

All have in common that **the output of a softmax meets, in a product, a number computed from the sum of the
exponentials of its own logits**. Under another normalizer no such number merges the parts: the threshold of entmax
depends on the whole row, and the n of ssmax counts it. So neither the parts nor a softmax that merges them can be
swapped.

Two things are followed from each softmax: its *output*, while it is moved, added and multiplied; and the *totals* of
its logits, the sums of their exponentials and what is computed from these alone or with other numbers. What varies
along the row is no factor of its output, so $z - l$ in an entropy or a likelihood is no total.

Worked example, a part of a row with logits z1:

    w = softmax z1; o = dot_general w v1                an output of z1
    s = reduce_sum (exp (sub z1 m)); l = add (log s) m  a total of z1
    g = logistic (sub l l2)                             still a total of z1, and of the other part
    y = mul g o                                         both are of z1: a merge

A gate made of other numbers is no total of z1, nor is the log-sum-exp of other logits. A loss adds its totals.
"""

import dataclasses
import math
from collections.abc import Mapping

import jax.numpy as jnp

from softmax_jax.transforms.find import Softmax, chain, masking, sums
from softmax_jax.transforms.program import LAID, MOVED, SAME, Node, Program, Value, back, constant, reached

SCORES = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})
MULTIPLIED = frozenset({"mul", "div", "dot_general"})
SUMMED = frozenset({"reduce_sum", "cumsum", "psum", "psum2", "psum_invariant"})
CURVED = frozenset({"exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "erf", "sin", "cos", "sqrt", "rsqrt"})
CURVED |= {"square", "integer_pow", "pow", "abs", "sign", "max", "min", "clamp", "sort", "top_k"}
CURVED |= {"reduce_max", "reduce_min", "reduce_prod"}
"""The primitives whose result is not linear in an operand; all others are taken to move, add or multiply."""
REDUCED = frozenset({"reduce_max", "reduce_min", "sort", "top_k", "gather"}) | SUMMED | SCORES
"""The primitives whose result no longer varies along the rows of an operand."""
REPEATABLE = LAID | SCORES | {"exp", "exp2", "add", "sub", "mul", "div", "neg", "max", "min", "tanh", "integer_pow"}
REPEATABLE |= {"reduce_max", "select_n", "concatenate", "pad", "dynamic_slice", "iota", "eq", "lt", "le", "gt", "ge"}
"""The primitives that are the same twice for the same operands: a program may compute its scores again."""
NONE: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class Mark:
    """Says of which rows a value holds something; rows have the number of their logits."""

    outputs: frozenset[int] = NONE
    """The value is linear in the weights of these rows."""
    logs: frozenset[int] = NONE
    """It holds the logarithms of these weights."""
    merged_logs: frozenset[int] = NONE
    """It holds the logarithms of these weights plus a total of the same rows."""
    totals: frozenset[int] = NONE
    """It is computed from the sums of the exponentials of these rows."""
    entries: frozenset[int] = NONE
    """It varies along these rows, as their logits do."""

    def __or__(self, other: "Mark") -> "Mark":
        fields = [field.name for field in dataclasses.fields(self)]
        return Mark(*(getattr(self, name) | getattr(other, name) for name in fields))


UNMARKED = Mark()


class Merges:
    """The merges of a program, and which softmaxes and sums belong to them."""

    def __init__(self, program: Program, softmaxes: Mapping[Node, Softmax]) -> None:
        self.softmaxes, self.sums = softmaxes, sums(program)
        self.numbers = _numbered(program)
        self.marks: dict[Value, Mark] = {}
        self.merged: set[int] = set()
        """The rows whose output meets one of their totals."""
        logits = [*self.sums.values(), *(softmax.logits for softmax in softmaxes.values())]
        self.rows = {self.row(value) for value in logits}
        carried = [pair for node in program.nodes for pair in node.carried]
        for _ in range(2 if carried else 1):  # what a turn of a loop leaves, the next one has
            for node in program.nodes:
                if not node.backward and (not node.frames or node.name in SAME):
                    self.visit(node)
            for left, received in carried:
                self.add(received, self.marks.get(left, UNMARKED))

    def row(self, logits: Value) -> int:
        """Returns the number of rows: that of their logits before these are masked, laid out or scaled."""
        return self.numbers[_scores(logits)]

    def part(self, softmax: Softmax) -> bool:
        """Says whether a softmax is that of a part of a row."""
        return self.row(softmax.logits) in self.merged

    def of_totals(self, value: Value) -> bool:
        """Says whether a value is computed from the totals of merged parts."""
        return not self.merged.isdisjoint(self.marks.get(value, UNMARKED).totals)

    def add(self, value: Value, mark: Mark) -> None:
        """Marks a value, within and outside of bodies."""
        if mark != UNMARKED:
            for same in reached([value], lambda value: value.also):
                self.marks[same] = self.marks.get(same, UNMARKED) | mark

    def visit(self, node: Node) -> None:
        """Marks the results of an equation, and notes a merge."""
        operands = [self.mark(value) for value in node.inputs]
        if node.name in SAME:
            for value, same in zip(node.outputs, operands):
                self.add(value, same)
            return
        mark = _result(node, operands)
        if node.name in MULTIPLIED:
            first, last = operands[0], operands[-1]
            self.merged |= first.outputs & last.totals | last.outputs & first.totals
        if node.exponentiates:
            self.merged |= operands[0].merged_logs
        if node in self.sums:
            mark |= Mark(totals=frozenset([self.row(self.sums[node])]))
        if node.name == "dot_general" and any(constant(value) is not None for value in node.inputs):
            # A product of exponentials with ones is their sum.
            summed = [self.marks.get(value, UNMARKED).entries for value in node.inputs if _are_exponentials(value)]
            mark |= Mark(totals=NONE.union(*summed))
        if softmax := self.softmaxes.get(node):
            # It divides by its own total, which then is no factor.
            row = frozenset([self.row(softmax.logits)])
            own = Mark(logs=row) if softmax.form == "log" else Mark(outputs=row)
            mark = own | Mark(totals=mark.totals - row)
        for value in node.outputs:
            if value.dtype is not None and jnp.issubdtype(value.dtype, jnp.floating):  # a comparison weighs nothing
                self.add(value, mark)

    def mark(self, value: Value) -> Mark:
        """Returns the mark of a value, which may be the logits of rows.

        Logits that are linear in weights of their own rows are those of the next layer, in a scan over layers: the
        weights are of the turn before, and their rows are others.
        """
        mark, number = self.marks.get(value, UNMARKED), self.numbers.get(value)
        if number not in self.rows:
            return mark
        own = frozenset([number])
        return dataclasses.replace(mark, outputs=mark.outputs - own) | Mark(entries=own)


def _result(node: Node, operands: list[Mark]) -> Mark:
    """Returns the mark of the results of an equation, from those of its operands."""
    whole = UNMARKED
    for mark in operands:
        whole |= mark
    if whole == UNMARKED:
        return UNMARKED
    name = node.name
    entries = NONE if name in REDUCED else whole.entries
    totals = NONE if name in SCORES else whole.totals - whole.entries - whole.logs - whole.outputs
    outputs = NONE if name in CURVED else whole.outputs
    kept = name not in CURVED | MULTIPLIED | SUMMED | SCORES
    logs, merged = (whole.logs, whole.merged_logs) if kept else (NONE, NONE)
    merged |= whole.logs & whole.totals if name in ("add", "sub") else NONE
    return Mark(outputs, logs, merged, totals, entries)


def _are_exponentials(value: Value) -> bool:
    start, _ = chain(value)
    return start.producer is not None and start.producer.exponentiates


def _scores(logits: Value) -> Value:
    """Returns the numbers that a model masks, lays out and scales to make logits."""
    while node := logits.producer:
        if node.name in LAID:
            logits = node.inputs[0]
        elif node.name in ("mul", "div", "select_n", "max", "add", "sub"):
            masked, whole = masking(node), math.prod(logits.shape)
            operands = [masked[0]] if masked else node.inputs[1:] if node.name == "select_n" else node.inputs
            # A bias, a shift or a number is the same for several entries.
            scores = [one for one in operands if math.prod(back(one, MOVED).shape) == whole]
            if len(scores) != 1:
                break
            logits = scores[0]
        else:
            break
    return logits


def _numbered(program: Program) -> dict[Value, int]:
    """Returns a number for each value, the same for values that are computed alike from the same."""
    numbers: dict[Value, int] = {}
    constants: dict[tuple[float, tuple[int, ...], str], int] = {}
    known: dict[tuple[str, tuple[int, ...]], list[tuple[Node, list[int]]]] = {}

    def number(value: Value) -> int:
        if value not in numbers:
            new = len(numbers)
            key = None if value.number is None else (value.number, value.shape, str(value.dtype))
            numbers[value] = new if key is None else constants.setdefault(key, new)
        return numbers[value]

    for node in program.nodes:
        operands = tuple(number(value) for value in node.inputs)
        if node.name in ("checkpoint", "remat2"):
            numbers.update(zip(node.frames[0].inputs, operands))
        if node.frames and node.name not in SAME:
            continue
        alike = known.setdefault((node.name, operands), []) if node.name in REPEATABLE else []
        results = next((results for other, results in alike if other.params == node.params), [])
        if not results:
            results = list(range(len(numbers), len(numbers) + len(node.outputs)))
            alike.append((node, results))
        numbers.update(zip(node.outputs, results))
    return numbers
