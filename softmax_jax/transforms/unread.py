"""What a program divides by a sum of exponentials, though no softmax was read there.

Every value is marked that holds exponentials, their sum, or the logarithm of that. Where such a sum divides anything,
it is listed: rows in blocks or on several devices, segments, and whatever else a reader should know of.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

from softmax_jax.transforms.finding import Softmax
from softmax_jax.transforms.graph import Graph, Node, Value
from softmax_jax.transforms.paths import LAID, constant, inverts, was_boolean

State = Literal["exponentials", "product", "sum", "reciprocal", "log", "minus log"]
Reason = Literal["blocks", "segments", "unread"]

TOTALS = frozenset({"reduce_sum", "cumsum", "reduce_window_sum", "psum", "psum2", "psum_invariant"})
PLACED = LAID | {"pad", "concatenate", "gather", "dynamic_slice", "dynamic_update_slice", "scatter", "select_n"}
PLACED |= {"all_gather", "ppermute"}
COMBINED = PLACED | TOTALS | {"add", "add_any", "max", "min", "abs", "sub"}


@dataclasses.dataclass(frozen=True)
class Mark:
    """What a value holds."""

    state: State
    sums: frozenset[Node] = frozenset()
    """The equations that sum the exponentials."""
    exponentials: frozenset[Node] = frozenset()
    """The equations that take them."""


def unread(graph: Graph, found: Iterable[Softmax]) -> dict[Node, Reason]:
    """Returns the sums of exponentials that divide something which no found softmax divides, and why they are unread.

    Backward passes are left out: what they divide by was divided by before.
    """
    marks: dict[Value, Mark] = {}
    reasons: dict[Node, Reason] = {}
    weighing: set[Node] = set()
    read = {softmax.node for softmax in found}
    for node in graph.nodes:
        given = [marks.get(value) for value in node.inputs]
        if node in read or not (node.name in ("exp", "exp2") or any(given)):
            continue
        if (divisor := _divisor(node, given)) and not node.backward:
            reasons |= {total: _reason(total, node) for total in divisor.sums}
        if (state := _state(node, given)) is None:
            continue
        sums: frozenset[Node] = frozenset().union(*(mark.sums for mark in given if mark))
        exponentials: frozenset[Node] = frozenset().union(*(mark.exponentials for mark in given if mark))
        if state == "product":
            weighing |= exponentials
        sums = frozenset([node]) if not sums and state in ("sum", "product") else sums
        mark = Mark(state, sums, exponentials or frozenset([node]))
        _spread(node.outputs, mark, marks)
    for value in graph.root.outputs:  # what is divided by the sum may be returned with it
        mark = marks.get(value)
        if mark and mark.state == "sum" and mark.exponentials & weighing:
            reasons |= dict.fromkeys(mark.sums, "blocks")
    return reasons


def _spread(values: Iterable[Value], mark: Mark, marks: dict[Value, Mark]) -> None:
    """Marks values, within and outside of bodies."""
    for value in values:
        if value not in marks:
            marks[value] = mark
            _spread(value.also, mark, marks)


def _divisor(node: Node, given: list[Mark | None]) -> Mark | None:
    """Returns the mark of the sum that an equation divides by."""
    first, last = given[0], given[-1]
    if node.name == "div" and last and not inverts(node):
        return last if last.state == "sum" or (last.state == "product" and first == last) else None
    if node.name in ("exp", "exp2") and first:
        return first if first.state == "minus log" else None
    inverse = [mark for mark in given if mark and mark.state == "reciprocal"]
    return inverse[0] if inverse and node.name not in PLACED else None


def _state(node: Node, given: list[Mark | None]) -> State | None:
    """Returns what the results of an equation hold."""
    name = node.name
    if name in ("exp", "exp2"):
        return "exponentials"
    states = [mark and mark.state for mark in given]
    if "reciprocal" in states:
        return "reciprocal" if name in PLACED else None
    if "sum" in states:
        scaled = name == "mul" or (name == "div" and states[0] == "sum")
        grown = any(state == "sum" and one.shape != node.outputs[0].shape for state, one in zip(states, node.inputs))
        if name == "log":
            return "log"
        if name in ("div", "integer_pow", "pow") and inverts(node):
            return "reciprocal"
        return "sum" if name in COMBINED or (scaled and not grown) else None
    if "log" in states or "minus log" in states:
        return _log_state(name, states)
    if "product" in states:
        return "product" if name in LAID else None
    if name in TOTALS or (name == "scatter-add" and states[2]):
        return "sum"
    if name == "dot_general":
        other = node.inputs[states.index(None)] if None in states else None
        return "sum" if other and (constant(other) is not None or was_boolean(other)) else "product"
    return "exponentials" if name in PLACED or name == "mul" or (name == "div" and states[0]) else None


def _log_state(name: str, states: Sequence[str | None]) -> State | None:
    if name in ("sub", "neg"):
        taken = states[-1] == "log" or (states[0] == "minus log" and name == "sub")
        return "minus log" if taken else "log"
    minus = "minus log" in states
    return ("minus log" if minus else "log") if name in COMBINED - TOTALS - {"abs"} or name in ("mul", "div") else None


def _reason(total: Node, divided: Node) -> Reason:
    if total.name == "scatter-add":
        return "segments"
    on_devices = any(frame.caller and frame.caller.name == "shard_map" for frame in total.frame.around())
    return "blocks" if on_devices or total.frame.home() is not divided.frame.home() else "unread"
