"""Executes a program anew, with some of its equations replaced, through all bodies that hold them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from softmax_jax.transforms import interpreter
from softmax_jax.transforms.graph import Frame, Graph, Node, Value

Values = dict[Value, Any]
Records = dict[str, Any]
Replacement = Callable[[list[Any], Values], tuple[list[Any], Records]]
"""From the operands of an equation, and all values so far, to its results and what is to be recorded by name."""


def execute(
    graph: Graph, arrays: Iterable[Any], replacements: Mapping[Node, Replacement], needed: Iterable[Value] = ()
) -> tuple[list[Any], Records]:
    """The results of a program and the records of its replacements, those of a loop stacked.

    `needed` are the values that replacements look up, besides their operands.
    """
    opened = {frame for node in replacements for frame in node.frame.around()}
    for value in needed:
        opened |= _hiding(value)
    return _Execution(replacements, opened).frame(graph.root, {}, list(arrays))


def _hiding(value: Value) -> set[Frame]:
    """The calls that have to be executed equation by equation for a value to be seen."""
    if value.producer is None:
        return set()
    frame = value.producer.frame
    while frame.inlined and frame.caller and value in frame.outputs:
        frame = frame.caller.frame
    hiding: set[Frame] = set()
    for one in frame.around():
        if not one.inlined:
            break
        hiding.add(one)
    return hiding


class _Execution:
    def __init__(self, replacements: Mapping[Node, Replacement], opened: set[Frame]) -> None:
        self.replacements = replacements
        self.opened = opened

    def frame(self, frame: Frame, outer: Values, arrays: Iterable[Any]) -> tuple[list[Any], Records]:
        """A body, given the values around it and its own inputs."""
        # The values of a call are those of the program around it; those of a loop are its own.
        values = outer if frame.inlined else dict(outer)
        values.update(zip(frame.inputs, arrays))
        values.update(frame.consts)
        records: Records = {}
        for node in frame.nodes:
            operands = [values[one] if one.literal is None else one.literal for one in node.inputs]
            results, recorded = self.node(node, operands, values)
            values.update(zip(node.outputs, results))
            records |= recorded
        return [values[one] if one.literal is None else one.literal for one in frame.outputs], records

    def node(self, node: Node, operands: list[Any], values: Values) -> tuple[list[Any], Records]:
        if node in self.replacements:
            return self.replacements[node](operands, values)
        kind = interpreter.kind_of(node.equation)
        if kind is None or not self.opened.intersection(node.frames):
            return interpreter.execute(node.equation, operands), {}
        runs = [self.runner(frame, values) for frame in node.frames]
        with interpreter.within(node.equation):
            return kind.rebuild(node.equation, operands, runs)

    def runner(self, frame: Frame, values: Values) -> interpreter.Run:
        return lambda *arrays: self.frame(frame, values, arrays)
