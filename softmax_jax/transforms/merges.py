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

from softmax_jax.transforms.exponents import read_node_mask, unwrap_views
from softmax_jax.transforms.find import Softmax, find_sums
from softmax_jax.transforms.program import (
    IDENTITIES,
    LAYOUTS,
    SCORES,
    VIEWS,
    Node,
    Program,
    Value,
    constant,
    unwrap,
    walk,
)

MULTIPLIED = frozenset({"mul", "div", "dot_general"})
SUMMED = frozenset({"reduce_sum", "cumsum", "psum", "psum2", "psum_invariant"})
CURVED = frozenset({"exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "erf", "sin", "cos", "sqrt", "rsqrt"})
CURVED |= {"square", "integer_pow", "pow", "abs", "sign", "max", "min", "clamp", "sort", "top_k"}
CURVED |= {"reduce_max", "reduce_min", "reduce_prod"}
"""The primitives whose result is not linear in an operand; all others are taken to move, add or multiply."""
REDUCED = frozenset({"reduce_max", "reduce_min", "sort", "top_k", "gather", "scatter-add", "scatter-max"})
REDUCED |= SUMMED | SCORES
"""The primitives whose result no longer varies along the rows of an operand."""
RECOMPUTED = VIEWS | SCORES | {"exp", "exp2", "add", "sub", "mul", "div", "neg", "max", "min", "tanh", "integer_pow"}
RECOMPUTED |= {"reduce_max", "select_n", "concatenate", "pad", "dynamic_slice", "iota", "eq", "lt", "le", "gt", "ge"}
"""The primitives that are the same twice for the same operands: a program may compute its scores again."""
NONE: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class Mark:
    """The rows of which a value holds something; rows have the number of their logits."""

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
        self.softmaxes, self.sums = softmaxes, find_sums(program)
        self.numbers = _number_values(program)
        self.marks: dict[Value, Mark] = {}
        self.merged: set[int] = set()
        """The rows whose output meets one of their totals."""
        logits = [*self.sums.values(), *(softmax.logits for softmax in softmaxes.values())]
        self.rows = {self.number_row(value) for value in logits}
        carries = [pair for node in program.nodes for pair in node.carries]
        # A scan may merge in each turn the part of the turn before. The first pass marks what a turn leaves, the second
        # finds it where the next turn receives it.
        for _ in range(2 if carries else 1):
            for node in program.nodes:
                if not node.backward and (not node.frames or node.name in IDENTITIES):
                    self.visit(node)
            for left, received in carries:
                self.add(received, self.marks.get(left, UNMARKED))

    def number_row(self, logits: Value) -> int:
        """Returns the number of rows: that of their logits before these are masked, laid out or scaled."""
        return self.numbers[_unwrap_scores(logits)]

    def is_part(self, softmax: Softmax) -> bool:
        """Says whether a softmax is that of a part of a row."""
        return self.number_row(softmax.logits) in self.merged

    def uses_totals(self, value: Value) -> bool:
        """Says whether a value is computed from the totals of merged parts."""
        return not self.merged.isdisjoint(self.marks.get(value, UNMARKED).totals)

    def add(self, value: Value, mark: Mark) -> None:
        """Marks a value, within and outside of bodies."""
        if mark != UNMARKED:
            for alias in walk([value], lambda value: value.aliases):
                self.marks[alias] = self.marks.get(alias, UNMARKED) | mark

    def visit(self, node: Node) -> None:
        """Marks the results of an equation, and notes a merge."""
        operands = [self.mark_of(value) for value in node.inputs]
        if node.name in IDENTITIES:
            for value, mark in zip(node.outputs, operands):
                self.add(value, mark)
            return
        mark = _combine(node, operands)
        softmax = self.softmaxes.get(node)
        row = frozenset([self.number_row(softmax.logits)]) if softmax else NONE
        if node.name in MULTIPLIED:
            # o_P · g(s_P), or o_P / g(s_P): the one product that all merges have. A softmax divides by its own sum: in
            # a scan over layers the values of (Σ e v) / s hold outputs of the turn before, which is no merge.
            first, last = operands[0], operands[-1]
            self.merged |= (first.outputs & last.totals | last.outputs & first.totals) - row
        if node.exponentiates:
            # e^(log w + l_P - l) = w · s_P / s: the same product, in logarithms.
            self.merged |= operands[0].merged_logs
        if node in self.sums:
            mark |= Mark(totals=frozenset([self.number_row(self.sums[node])]))
        if node.name == "dot_general" and any(constant(value) is not None for value in node.inputs):
            # A product of exponentials with ones is their sum.
            summed = [self.marks.get(value, UNMARKED).entries for value in node.inputs if _holds_exponentials(value)]
            mark |= Mark(totals=NONE.union(*summed))
        if softmax:
            # w = e / s divides by its own total s once, which then is no factor of w.
            weights = Mark(logs=row) if softmax.form == "log" else Mark(outputs=row)
            mark = weights | Mark(totals=mark.totals - row)
        for value in node.outputs:
            if value.dtype is not None and jnp.issubdtype(value.dtype, jnp.floating):  # a comparison weighs nothing
                self.add(value, mark)

    def mark_of(self, value: Value) -> Mark:
        """Returns the mark of a value, which may be the logits of rows.

        Logits that are linear in weights of their own rows are those of the next layer, in a scan over layers: the
        weights are of the turn before, and their rows are others.
        """
        mark, number = self.marks.get(value, UNMARKED), self.numbers.get(value)
        if number not in self.rows:
            return mark
        row = frozenset([number])
        return dataclasses.replace(mark, outputs=mark.outputs - row) | Mark(entries=row)


def _combine(node: Node, operands: list[Mark]) -> Mark:
    """Returns the mark of the results of an equation, from those of its operands."""
    union = UNMARKED
    for mark in operands:
        union |= mark
    if union == UNMARKED:
        return UNMARKED
    name = node.name
    entries = NONE if name in REDUCED else union.entries
    # z - l varies along the row, as the entropy -Σ w (z - l) does before its sum: no factor of the whole output. New
    # scores of a total, as of a layer that follows, are no total either.
    totals = NONE if name in SCORES else union.totals - union.entries - union.logs - union.outputs
    outputs = NONE if name in CURVED else union.outputs
    # log w + l keeps what it is while it is moved or added to; a product or a sum of logarithms is no logarithm.
    kept = name not in CURVED | MULTIPLIED | SUMMED | SCORES
    logs, merged = (union.logs, union.merged_logs) if kept else (NONE, NONE)
    merged |= union.logs & union.totals if name in ("add", "sub") else NONE
    return Mark(outputs, logs, merged, totals, entries)


def _holds_exponentials(value: Value) -> bool:
    start, _ = unwrap_views(value)
    return start.producer is not None and start.producer.exponentiates


def _unwrap_scores(logits: Value) -> Value:
    """Returns the numbers that a model masks, lays out, shifts and scales to make logits."""
    # The sum may be of z - max z, and the softmax of z: both are rows of z. d = sub z b, where b is m of shape (4, 1)
    # broadcast to (4, 5): without its broadcast b has 4 numbers and z has 20, as many as d. So z is the score, and m a
    # shift. If both operands are whole, as in q @ k + a bias of each entry, d itself is the score.
    while node := logits.producer:
        if node.name in VIEWS:
            logits = node.inputs[0]
        elif node.name in ("mul", "div", "select_n", "max", "add", "sub"):
            masked, size = read_node_mask(node), math.prod(logits.shape)
            operands = [masked[0]] if masked else node.inputs[1:] if node.name == "select_n" else node.inputs
            scores = [operand for operand in operands if math.prod(unwrap(operand, LAYOUTS).shape) == size]
            if len(scores) != 1:
                break
            logits = scores[0]
        else:
            break
    return logits


def _number_values(program: Program) -> dict[Value, int]:
    """Returns a number for each value, the same for values that are computed alike from the same."""
    # This is value numbering. q @ k.T written twice is one row: both transposes of k, number 0, get number 1; q has
    # number 2, and both products are (dot_general, (2, 1)), number 3.
    numbers: dict[Value, int] = {}
    constants: dict[tuple[float, tuple[int, ...], str], int] = {}
    computed: dict[tuple[str, tuple[int, ...]], list[tuple[Node, list[int]]]] = {}

    def number_value(value: Value) -> int:
        if value not in numbers:
            new = len(numbers)
            key = None if value.number is None else (value.number, value.shape, str(value.dtype))
            numbers[value] = new if key is None else constants.setdefault(key, new)
        return numbers[value]

    for node in program.nodes:
        operands = tuple(number_value(value) for value in node.inputs)
        if node.name in ("checkpoint", "remat2"):
            numbers.update(zip(node.frames[0].inputs, operands))
        if node.frames and node.name not in IDENTITIES:
            continue
        alike = computed.setdefault((node.name, operands), []) if node.name in RECOMPUTED else []
        results = next((results for other, results in alike if other.params == node.params), [])
        if not results:
            results = list(range(len(numbers), len(numbers) + len(node.outputs)))
            alike.append((node, results))
        numbers.update(zip(node.outputs, results))
    return numbers
