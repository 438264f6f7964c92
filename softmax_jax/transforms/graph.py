"""A traced program as one graph of values, through the bodies of its equations.

What a body of `jit` receives and returns are the values of the program around it, so that a path from the logits to
the weights leads through calls. What changes while a loop runs has no producer.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from softmax_jax.normalizers import checks
from softmax_jax.transforms import interpreter

TRANSFORMED = re.compile(r"\b(?:jvp|transpose|vmap|pmap|linearize|checkpoint|remat)\(([^()]*)\)|\b\w+\(\)")
"""How JAX names the scopes of a function that it transformed."""


@dataclasses.dataclass(eq=False)
class Value:
    """Something that an equation computes, or that comes from outside."""

    shape: tuple[int, ...]
    dtype: Any
    producer: "Node | None" = None
    users: "list[tuple[Node, int]]" = dataclasses.field(default_factory=list)
    """The equations that take it, each with its position among their operands."""
    number: float | None = None
    """What it is, where the program says so and it is one number."""
    literal: Any = None
    also: "list[Value]" = dataclasses.field(default_factory=list)
    """What it is called inside and outside of bodies that change as they run: a loop, a branch, a checkpoint."""


@dataclasses.dataclass(eq=False)
class Node:
    """An equation."""

    equation: Any
    frame: "Frame"
    inputs: list[Value]
    outputs: list[Value] = dataclasses.field(default_factory=list)
    frames: "list[Frame]" = dataclasses.field(default_factory=list)
    """Of its bodies."""
    identity: bool = False
    """Whether it returns its first operand, under a rule for derivatives of its own."""

    @property
    def name(self) -> str:
        """Of the primitive."""
        return "identity" if self.identity else self.equation.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        """Of the primitive."""
        return self.equation.params

    @property
    def scope(self) -> str:
        """The names of all scopes around it."""
        outer = self.frame.caller.scope if self.frame.caller else ""
        own = interpreter.scope(self.equation)
        while own != (inner := TRANSFORMED.sub(r"\1", own)):  # "transpose(jvp(Net))" is "Net" for the user
            own = inner
        return "/".join(filter(None, (*outer.split("/"), *own.split("/"))))

    @property
    def backward(self) -> bool:
        """Whether it belongs to the backward pass of a derivative."""
        caller = self.frame.caller
        return "transpose(" in interpreter.scope(self.equation) or (caller is not None and caller.backward)

    @property
    def line(self) -> str:
        """The file and line where it stands, or else that of the call around it."""
        own = interpreter.source_line(self.equation)
        return own or (self.frame.caller.line if self.frame.caller else "")


@dataclasses.dataclass(eq=False)
class Frame:
    """A body, or the program itself."""

    caller: Node | None
    inlined: bool
    """Whether its values are seen from the program around it, once it is executed anew."""
    inputs: list[Value]
    """Those that are not values of the program around it."""
    consts: list[tuple[Value, Any]]
    nodes: list[Node] = dataclasses.field(default_factory=list)
    outputs: list[Value] = dataclasses.field(default_factory=list)

    def around(self) -> "Iterator[Frame]":
        """The frame itself and those it lies in, from the inside."""
        yield self
        if self.caller:
            yield from self.caller.frame.around()

    def home(self) -> "Frame":
        """The innermost frame around whose values are not seen from outside."""
        return next(frame for frame in self.around() if not frame.inlined)


class Graph:
    """The program and all its equations, bodies included, in order."""

    def __init__(self, program: interpreter.Program) -> None:
        self.nodes: list[Node] = []
        body = interpreter.Body(program.jaxpr, program.consts, (None,) * len(program.jaxpr.invars), True)
        self.root = self._frame(body, None, [], inlined=False)

    def _frame(self, body: interpreter.Body, caller: Node | None, operands: list[Value], *, inlined: bool) -> Frame:
        values = {var: _fresh(var) for var in (*body.jaxpr.constvars, *body.jaxpr.invars)}
        given = [operands[s] if s is not None else values[v] for s, v in zip(body.sources, body.jaxpr.invars)]
        fresh = [values[var] for source, var in zip(body.sources, body.jaxpr.invars) if source is None]
        values.update(zip(body.jaxpr.invars, given))
        consts = [(values[var], const) for var, const in zip(body.jaxpr.constvars, body.consts)]
        for value, const in consts:
            value.number = _number(const)
        frame = Frame(caller, inlined, fresh, consts)
        for equation in body.jaxpr.eqns:
            self._add(equation, frame, values)
        frame.outputs = [_value(atom, values) for atom in body.jaxpr.outvars]
        return frame

    def _add(self, equation: Any, frame: Frame, values: dict[Any, Value]) -> None:
        node = Node(equation, frame, [_value(atom, values) for atom in equation.invars])
        frame.nodes.append(node)
        self.nodes.append(node)
        kind = interpreter.kind_of(equation)
        bodies = kind.bodies(equation) if kind else []
        for body in bodies:
            node.frames.append(self._frame(body, node, node.inputs, inlined=bool(kind and kind.inlined)))
        if bodies and bodies[0].returned:
            node.outputs = list(node.frames[0].outputs)
            if node.name.startswith("custom_"):
                _separate(node)
        else:
            node.outputs = [_fresh(var, node) for var in equation.outvars]
        for within in node.frames:
            _tie(node, within)
        if not (kind and kind.inlined):
            for position, value in enumerate(node.inputs):
                value.users.append((node, position))
        values.update(zip(equation.outvars, node.outputs))


def _separate(node: Node) -> None:
    """Makes results that are operands values of their own, as they have a rule for derivatives of their own."""
    node.identity = node.outputs == node.inputs[:1]
    for place, (var, value) in enumerate(zip(node.equation.outvars, node.outputs)):
        if value in node.inputs:
            value.users.append((node, node.inputs.index(value)))
            node.outputs[place] = _fresh(var, node)


def _tie(node: Node, frame: Frame) -> None:
    """Notes which values of a body are those of the program around it, at a turn or on a device."""
    for outside, inside in zip(reversed(node.inputs), reversed(frame.inputs)):
        outside.also.append(inside)
    if len(frame.outputs) == len(node.outputs):  # a condition of a loop has another result
        for inside, outside in zip(frame.outputs, node.outputs):
            if inside is not outside:
                inside.also.append(outside)


def _fresh(var: Any, producer: Node | None = None) -> Value:
    return Value(getattr(var.aval, "shape", ()), getattr(var.aval, "dtype", None), producer)


def _value(atom: Any, values: dict[Any, Value]) -> Value:
    if not interpreter.is_literal(atom):
        return values[atom]
    value = _fresh(atom)
    value.number, value.literal = _number(atom.val), atom.val
    return value


def _number(constant: Any) -> float | None:
    known = isinstance(constant, int | float | np.ndarray | np.generic | jax.Array)
    if not known or checks.is_traced(constant) or np.size(constant) != 1:
        return None
    try:
        return float(np.asarray(constant).reshape(()))
    except TypeError:  # a random key
        return None
