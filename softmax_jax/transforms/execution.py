"""Executes a program again, with some of its equations replaced."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from softmax_jax.transforms.bodies import ExecuteBody
from softmax_jax.transforms.program import CUSTOM_RULES, Frame, Node, Program, Value


def execute_equation(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Returns the results of an equation for these operands."""
    primitive = equation.primitive
    with tracing_context(equation):
        results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return list(results) if primitive.multiple_results else [results]


@contextlib.contextmanager
def tracing_context(equation: Any) -> Any:
    """Sets the scope and the settings under which an equation was traced."""
    name = str(equation.source_info.name_stack)
    with equation.ctx.manager, jax.named_scope(name) if name else contextlib.nullcontext():
        yield


Values = dict[Value, Any]
Records = dict[str, Any]
Replace = Callable[[list[Any], Values], tuple[list[Any], Records]]
"""Takes the operands of an equation, and all values so far; returns its results and what is to be recorded by name."""


NOTHING: Mapping[Node, Mapping[Value, Any]] = {}


def lookup(value: Value, values: Values) -> Any:
    """Returns the array of a value, or the number that the program writes for it."""
    return values[value] if value.literal is None else value.literal


def execute(
    program: Program,
    replacements: Mapping[Node, Replace],
    changed: Iterable[Node],
    required: Iterable[Value] = (),
    sliced: Mapping[Node, Mapping[Value, Any]] = NOTHING,
) -> tuple[list[Any], Records]:
    """Returns the results of a program with some equations replaced, and the records, those of a loop stacked.

    `changed` are the replaced equations whose results change, `required` the values that replacements look up. Bodies
    with any of these are executed equation by equation. `sliced` holds more arrays that a scan slices, each by the
    value that is a slice within.
    """
    changing = {frame for node in changed for frame in node.frame.enclosing()}
    visited = [*replacements, *(value.producer for value in required if value.producer)]
    opened = {frame for node in visited for frame in node.frame.enclosing()}

    def execute_frame(frame: Frame, outer: Values, *arrays: Any) -> tuple[list[Any], Records]:
        """Executes a body, given the values around it and its own inputs."""
        # The values of a call are those of the program around it; those of a loop are its own.
        values = outer if frame.inlined else dict(outer)
        more = sliced.get(frame.caller, {}) if frame.caller else {}
        values.update(zip((*frame.inputs, *more), arrays))
        values.update(frame.consts)
        records: Records = {}
        for node in frame.nodes:
            results, recorded = execute_node(node, [lookup(value, values) for value in node.inputs], values)
            values.update(zip(node.outputs, results))
            records |= recorded
        return [lookup(value, values) for value in frame.outputs], records

    def execute_node(node: Node, operands: list[Any], values: Values) -> tuple[list[Any], Records]:
        if node in replacements:
            return replacements[node](operands, values)
        holder = node.holder
        if holder is None or not opened.intersection(node.frames):
            return execute_equation(node.equation, operands), {}
        bodies: list[ExecuteBody] = [functools.partial(execute_frame, frame, values) for frame in node.frames]
        with tracing_context(node.equation):
            # A scan slices what follows its own sequences, and gives the slices to its body after its own.
            results, records = holder.rebuild(node.equation.params, [*operands, *sliced.get(node, {}).values()], bodies)
        if node.name in CUSTOM_RULES and not changing.intersection(node.frames):
            # What is only measured keeps its rule for derivatives.
            results = execute_equation(node.equation, operands)
        return results, records

    return execute_frame(program.root, {}, *program.arrays)
