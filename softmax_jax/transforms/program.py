"""Traces a function into a graph of equations.

A traced program is a list of equations. Each has a primitive, operands, results and parameters; some hold programs
of their own, called bodies here. How parameters name the bodies changes between versions of JAX: `bodies` knows it, and
`tests/library/transforms/test_program.py` names what a new version changed.

The graph goes through bodies: what `jit` receives and returns are the values of the program around it, so a path
from logits to weights leads through calls. A value that changes while a loop runs has no producer.

Worked example, `lax.scan(lambda c, x: (c + jit(sin)(x) * k, None), c0, xs)[0]`, where k is an array:

    scan k c0 xs                a node of the program, with one frame; k is a constant of the loop, c0 is carried
      frame: inputs c, x        values of their own, no producer: they change at each turn
        jit x                   its frame is inlined: what it receives is x, what it returns is the result s of `sin`
          s = sin x
        t = mul s k             k is the value of the program around the loop
        d = add c t             the output of the frame
    y                           the result of the scan

So `mul` finds `sin` behind its operand, through the call. c0 and c are aliases, and so are xs and x, d and y: the same
numbers at some turn. The scan carries d to c: what one turn leaves, the next one receives.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.extend.core import Literal

from softmax_jax.normalizers import checks
from softmax_jax.transforms.bodies import HOLDERS, NO_BODIES, Body, Holder, body_of, nested_jaxprs, scan_sizes
from softmax_jax.transforms.nnx_state import StatefulCall

JAX_FOLDER = str(Path(jax.__file__).parent)
JET = str(Path("jax", "experimental", "jet.py"))
OWN_FOLDER = str(Path(__file__).parent)
LAYERS = re.compile(
    r"[/\\](site|dist)-packages[/\\](flax|keras|keras_hub|equinox|haiku|jaxtyping|beartype|optax|chex|haliax)[/\\]"
)
"""The folders of libraries of layers, whose lines say less than the line that calls the layer."""
TRANSFORMED = re.compile(r"\b(?:jvp|transpose|vmap|pmap|linearize|checkpoint|remat)\(([^()]*)\)|\b\w+\(\)")
"""How JAX names the scopes of a function that it transformed."""
IDENTITIES = frozenset(
    {"convert_element_type", "stop_gradient", "copy", "copy_p", "optimization_barrier", "reduce_precision"}
    | {"name", "pvary", "pcast", "reshard", "sharding_constraint", "identity"}
)
"""Primitives that return their first operand, perhaps in another type."""
LAYOUTS = IDENTITIES | {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose"}
"""Primitives that return all numbers of their first operand, perhaps elsewhere."""
VIEWS = LAYOUTS | {"slice", "split"}
"""Primitives that return numbers of their first operand, perhaps elsewhere and not all."""
SCORES = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})
"""The primitives that make scores, or sum vectors under weights."""
LOG_BASES = {"exp": 1.0, "exp2": math.log(2)}
"""The primitives that take exponentials, and the logarithms of their bases."""
CUSTOM_RULES = ("custom_jvp_call", "custom_vjp_call")
"""The primitives that hold a function with a custom rule for derivatives."""
Item = TypeVar("Item")


@dataclasses.dataclass(eq=False, repr=False)
class Value:
    """A result of an equation, or what comes from outside."""

    shape: tuple[int, ...]
    dtype: Any
    producer: "Node | None" = None
    users: "list[tuple[Node, int]]" = dataclasses.field(default_factory=list)
    """The equations that take it, each with its position among their operands."""
    number: float | None = None
    """The one number that it is, if the program says so."""
    literal: Any = None
    aliases: "list[Value]" = dataclasses.field(default_factory=list)
    """The same value inside or outside of a body that changes as it runs: a loop, a branch, a checkpoint."""


@dataclasses.dataclass(eq=False, repr=False)
class Node:
    """An equation."""

    equation: Any
    frame: "Frame"
    inputs: list[Value]
    outputs: list[Value] = dataclasses.field(default_factory=list)
    frames: "list[Frame]" = dataclasses.field(default_factory=list)
    """The bodies of the equation."""
    identity: bool = False
    """True if it returns its first operand under a custom rule for derivatives."""

    @property
    def name(self) -> str:
        """The name of the primitive."""
        return "identity" if self.identity else self.equation.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the primitive."""
        return self.equation.params

    @property
    def holder(self) -> "Holder | None":
        """How the bodies are held; None without bodies, and for bodies that cannot be executed again."""
        return HOLDERS.get(self.equation.primitive.name)

    @property
    def carries(self) -> "list[tuple[Value, Value]]":
        """What a turn of a loop leaves, each with what the next one receives."""
        if self.name not in ("scan", "while"):
            return []
        body = self.frames[-1]
        # A scan's body takes (carry, slices) and returns (carry, stacked); a while's body takes and returns the carry.
        number = scan_sizes(self.params)[1] if self.name == "scan" else len(body.inputs)
        return list(zip(body.outputs[:number], body.inputs))

    @property
    def scope(self) -> str:
        """The named scopes around it, as in "Net/block_0"."""
        # "transpose(jvp(Net))" becomes "transpose(Net)", then "Net"; "jvp()" becomes "".
        outer = self.frame.caller.scope if self.frame.caller else ""
        scope = str(self.equation.source_info.name_stack)
        while scope != (inner := TRANSFORMED.sub(r"\1", scope)):
            scope = inner
        return "/".join(filter(None, (*outer.split("/"), *scope.split("/"))))

    @property
    def backward(self) -> bool:
        """Says whether it belongs to the backward pass of a derivative."""
        caller = self.frame.caller
        return "transpose(" in str(self.equation.source_info.name_stack) or (caller is not None and caller.backward)

    @property
    def derived(self) -> bool:
        """Says whether it was traced while a derivative was taken, by `jax.grad`, `jax.jvp` or `jet`."""
        traceback, caller = self.equation.source_info.traceback, self.frame.caller
        by_jet = traceback is not None and any(frame.file_name.endswith(JET) for frame in traceback.frames)
        return "jvp(" in str(self.equation.source_info.name_stack) or by_jet or (caller is not None and caller.derived)

    @property
    def line(self) -> str:
        """The file and line of the innermost call outside JAX and libraries of layers, as "model.py:12".

        Where all calls are in libraries it is the innermost outside JAX. Without any, it is the line of the equation
        around, or empty.
        """
        traceback = self.equation.source_info.traceback
        skipped = (JAX_FOLDER, OWN_FOLDER, "<frozen", "<@beartype")
        frames = [frame for frame in traceback.frames if not frame.file_name.startswith(skipped)] if traceback else []
        calls = [frame for frame in frames if not LAYERS.search(frame.file_name)] or frames
        if calls:
            return f"{Path(calls[0].file_name).name}:{calls[0].line_num}"
        return self.frame.caller.line if self.frame.caller else ""

    @property
    def custom_rule(self) -> str:
        """The rule for derivatives around it that is not JAX's own: "custom_jvp", "custom_vjp", or "" for none."""
        callers = [frame.caller for frame in self.frame.enclosing() if frame.caller]
        rules = [node.name for node in callers if node.name in CUSTOM_RULES and not _defined_by_jax(node)]
        return rules[0].removesuffix("_call") if rules else ""

    @property
    def exponentiates(self) -> bool:
        """Says whether it takes exponentials."""
        return self.base is not None

    @property
    def base(self) -> float | None:
        """The logarithm of the base of the powers that it takes of its last operand; None for anything else."""
        # pow(b, x) = e^(x log b) takes exponentials if the base b is a constant; pow(x, 2) takes none, nor does 1^x.
        if self.name == "pow" and constant(self.inputs[1]) is None:
            number = constant(self.inputs[0])
            return math.log(number) if number and number > 0 and number != 1 else None
        return LOG_BASES.get(self.name)

    @property
    def hides_exponentials(self) -> bool:
        """Says whether it takes exponentials in a body that `HOLDERS` cannot read."""
        return self.holder is None and any(map(_takes_exponentials, nested_jaxprs(self.equation)))


@dataclasses.dataclass(eq=False, repr=False)
class Frame:
    """A body, or the program itself."""

    caller: Node | None
    inlined: bool
    """True if the program around it sees its values when it is executed again."""
    inputs: list[Value]
    """The inputs that are not values of the program around it."""
    consts: list[tuple[Value, Any]]
    nodes: list[Node] = dataclasses.field(default_factory=list)
    outputs: list[Value] = dataclasses.field(default_factory=list)

    def enclosing(self) -> "Iterator[Frame]":
        """Yields the frame and those that it lies in, from the inside."""
        yield self
        if self.caller:
            yield from self.caller.frame.enclosing()

    def owner(self) -> "Frame":
        """Returns the innermost frame around it whose values the program outside does not see."""
        return next(frame for frame in self.enclosing() if not frame.inlined)


class Program:
    """A traced function: all equations in order, bodies included.

    `arrays` are the arguments that are arrays; `restore` makes what the function returns from the program's results.
    """

    def __init__(self, closed: Any, arrays: list[Any], restore: Callable[[Sequence[Any]], Any]) -> None:
        self.nodes: list[Node] = []
        self.arrays, self.restore = arrays, restore
        self.root = self._frame(body_of(closed, 0), None, [], inlined=False)

    def _frame(self, body: "Body", caller: Node | None, operands: list[Value], *, inlined: bool) -> Frame:
        """Reads a body, and adds its equations after those before it."""
        inputs = body.jaxpr.invars
        values = {var: _new_value(var) for var in (*body.jaxpr.constvars, *inputs)}
        # An input with a source is an operand of the caller itself, so that walks lead out of the body and into it. One
        # without changes at each turn of a loop and has a value of its own.
        fresh = [values[var] for source, var in zip(body.sources, inputs) if source is None]
        shared = [values[var] if source is None else operands[source] for source, var in zip(body.sources, inputs)]
        values.update(zip(inputs, shared))
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
        holder = node.holder or NO_BODIES
        for body in holder.bodies(equation.params):
            node.frames.append(self._frame(body, node, node.inputs, inlined=holder.inlined))
        # The results of a call are those of its body: weights that `jit(softmax)` returns have the division in its body
        # as their producer. The results of a loop or a branch are values of their own.
        if holder.inlined or holder.returns:
            node.outputs = list(node.frames[0].outputs)
            if node.name in CUSTOM_RULES:
                _separate_results(node)
        else:
            node.outputs = [_new_value(var, node) for var in equation.outvars]
        for body_frame in node.frames:
            _link_aliases(node, body_frame)
        # A call only hands its operands on; the equations in its body use them.
        if not holder.inlined:
            for position, value in enumerate(node.inputs):
                value.users.append((node, position))
        values.update(zip(equation.outvars, node.outputs))


def _separate_results(node: Node) -> None:
    """Gives results that are operands a value of their own, because a custom rule for derivatives lies between."""
    # f(x) = x with another gradient: inlined, x and f(x) would be one value, and a replay of the program would skip f.
    node.identity = node.outputs == node.inputs[:1]
    for index, (var, value) in enumerate(zip(node.equation.outvars, node.outputs)):
        if value in node.inputs:
            value.users.append((node, node.inputs.index(value)))
            node.outputs[index] = _new_value(var, node)


def _link_aliases(node: Node, frame: Frame) -> None:
    """Notes which values of a body are those of the program around it, at one turn or on one device."""
    # Operands are (constants, carry, slices) and the fresh inputs of a frame (carry, slices): paired from the end.
    for outside, inside in zip(reversed(node.inputs), reversed(frame.inputs)):
        outside.aliases.append(inside)
    if len(frame.outputs) == len(node.outputs):  # the condition of a loop has another result
        for inside, outside in zip(frame.outputs, node.outputs):
            if inside is not outside:
                inside.aliases.append(outside)


def _new_value(var: Any, producer: Node | None = None) -> Value:
    return Value(getattr(var.aval, "shape", ()), getattr(var.aval, "dtype", None), producer)


def _value(atom: Any, values: dict[Any, Value]) -> Value:
    if not isinstance(atom, Literal):
        return values[atom]
    value = _new_value(atom)
    value.number, value.literal = _number(atom.val), atom.val
    return value


def _number(const: Any) -> float | None:
    known = isinstance(const, int | float | np.ndarray | np.generic | jax.Array)
    if not known or checks.is_traced(const) or np.size(const) != 1:
        return None
    try:
        return float(np.asarray(const).reshape(()))
    except TypeError:  # a random key
        return None


def trace(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
    """Returns the program of a function for these arguments. Arguments that are not arrays stay as they are."""
    call = StatefulCall(fun, args, kwargs)
    leaves, tree = jax.tree.flatten(call.parts)
    positions = [position for position, leaf in enumerate(leaves) if _is_array(leaf)]
    returned: dict[str, Any] = {}

    def flat(*arrays: Any) -> list[Any]:
        filled = dict(zip(positions, arrays))
        parts = tree.unflatten([filled.get(position, leaf) for position, leaf in enumerate(leaves)])
        args, kwargs = call.copy_arguments(parts)
        with call.refuse_writes():
            output = call.fun(*args, **kwargs)
        outputs, returned["tree"] = jax.tree.flatten(call.collect(output))
        returned["others"] = [None if _is_array(output) else output for output in outputs]
        return [output for output in outputs if _is_array(output)]

    arrays = [leaves[position] for position in positions]
    closed = jax.make_jaxpr(flat)(*arrays)

    def restore(results: Sequence[Any]) -> Any:
        remaining = iter(results)
        outputs = [next(remaining) if other is None else other for other in returned["others"]]
        return call.restore(returned["tree"].unflatten(outputs))

    return Program(closed, arrays, restore)


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return leaf.dtype != object
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)


# Walks


def constant(value: Value) -> float | None:
    """Returns the number that all entries of a value are, if the program says so."""
    return unwrap(value, LAYOUTS).number


def unwrap(value: Value, through: Collection[str] = IDENTITIES) -> Value:
    """Returns the first value, from this one back along first operands, that no primitive of `through` made."""
    while value.producer and value.producer.name in through:
        value = value.producer.inputs[0]
    return value


def walk(start: Iterable[Item], onward: Callable[[Item], Iterable[Item]]) -> Iterator[Item]:
    """Yields the items of `start` and all to which `onward` leads from them, each once."""
    seen: set[Item] = set()
    waiting = list(start)
    while waiting:
        item = waiting.pop()
        if item not in seen:
            seen.add(item)
            yield item
            waiting += onward(item)


def _takes_exponentials(jaxpr: Any) -> bool:
    return any(
        equation.primitive.name in LOG_BASES or any(map(_takes_exponentials, nested_jaxprs(equation)))
        for equation in jaxpr.eqns
    )


def _defined_by_jax(custom: Node) -> bool:
    """Says whether JAX itself defines a custom rule, which then is the true derivative of the function."""
    function = body_of(custom.params["call_jaxpr"]).jaxpr
    rule = custom.params.get("bwd", custom.params.get("jvp_jaxpr_fun"))
    infos = function.debug_info, getattr(rule, "debug_info", function.debug_info)
    return all(JAX_FOLDER in str(info.func_src_info) for info in infos)
