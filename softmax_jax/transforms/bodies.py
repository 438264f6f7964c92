"""How the primitives of JAX hold programs, called bodies here, and how an equation is executed again with other bodies.

Which parameters name the bodies changes between versions of JAX.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from softmax_jax.refusal import Refusal


class Body(NamedTuple):
    """A program within an equation."""

    jaxpr: Any
    consts: Sequence[Any]
    """The values of `jaxpr.constvars`."""
    sources: tuple[int | None, ...]
    """For each input, the operand of the equation that it is, or None where it changes as the program runs."""


ExecuteBody = Callable[..., tuple[list[Any], Any]]
"""Executes a body: takes the inputs whose source is None, returns the results and the records."""


class Holder(NamedTuple):
    """How a primitive holds its bodies, and how it is executed with others."""

    bodies: Callable[[Any], list[Body]]
    """Takes the parameters of an equation."""
    rebuild: Callable[[Any, list[Any], list[ExecuteBody]], tuple[list[Any], Any]]
    """Takes the parameters, the operands and the bodies to execute; returns the results and the records."""
    inlined: bool = False
    """True if `rebuild` executes the body in the program around it."""
    returns: bool = False
    """True if the results of the body are those of the equation, though it is not inlined."""


def body_of(stored: Any, fixed: int | None = None, start: int = 0) -> Body:
    """Returns a stored program, closed or open, whose first `fixed` inputs, or all, are the operands from `start`."""
    jaxpr, consts = getattr(stored, "jaxpr", stored), getattr(stored, "consts", ())
    fixed = len(jaxpr.invars) if fixed is None else fixed
    return Body(jaxpr, consts, (*range(start, start + fixed), *(None,) * (len(jaxpr.invars) - fixed)))


def nested_jaxprs(equation: Any) -> list[Any]:
    """Returns the programs among the parameters of an equation."""
    leaves = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "jaxpr"))
    return [jaxpr for leaf in leaves if hasattr(jaxpr := getattr(leaf, "jaxpr", leaf), "eqns")]


def _inline(params: Any, operands: list[Any], bodies: list[ExecuteBody]) -> tuple[list[Any], Any]:
    return bodies[0]()


def _jit(params: Any, operands: list[Any], bodies: list[ExecuteBody]) -> tuple[list[Any], Any]:
    # Without its boundary a nested jit is the same program, except for the shardings that it states.
    results, records = bodies[0]()
    shardings = params["out_shardings"]
    stated = [isinstance(sharding, jax.sharding.Sharding) for sharding in shardings]
    constrain = jax.lax.with_sharding_constraint
    return [constrain(r, s) if yes else r for r, s, yes in zip(results, shardings, stated)], records


def _checkpoint(params: Any, operands: list[Any], bodies: list[ExecuteBody]) -> tuple[list[Any], Any]:
    options = {name: params[name] for name in ("prevent_cse", "policy")}
    return jax.checkpoint(lambda *inputs: bodies[0](*inputs), **options)(*operands)


def scan_sizes(params: Any) -> tuple[int, int]:
    """Returns the numbers of constants and of carried values."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # since jax 0.11
    return len(consts), len(carry)


def _scan(params: Any, operands: list[Any], bodies: list[ExecuteBody]) -> tuple[list[Any], Any]:
    fixed, carried = scan_sizes(params)
    # A scan takes (constants, carry, sequences) and returns (carry, stacked results), and stacks the records too.
    start, sequences = operands[fixed : fixed + carried], operands[fixed + carried :]

    def step(carry: list[Any], slices: list[Any]) -> tuple[list[Any], Any]:
        results, records = bodies[0](*carry, *slices)
        return results[:carried], (results[carried:], records)

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, (stacked, records) = jax.lax.scan(step, start, sequences, **options)
    return [*carry, *stacked], records


def _while_bodies(params: Any) -> list[Body]:
    first, second = params["cond_nconsts"], params["body_nconsts"]
    return [body_of(params["cond_jaxpr"], first), body_of(params["body_jaxpr"], second, start=first)]


def _while(params: Any, operands: list[Any], bodies: list[ExecuteBody]) -> tuple[list[Any], Any]:
    condition, body = bodies
    start = operands[params["cond_nconsts"] + params["body_nconsts"] :]
    # A while loop stacks nothing, so the records are carried: those of the last turn remain, NaN if there was none.
    records = jax.tree.map(placeholder, jax.eval_shape(lambda *carry: body(*carry)[1], *start))
    carry, records = jax.lax.while_loop(
        lambda state: condition(*state[0])[0][0], lambda state: body(*state[0]), (start, records)
    )
    return list(carry), records


def placeholder(like: Any) -> jax.Array:
    """Returns a record for a program that did not run: NaN, or -1 for whole numbers."""
    return jax.numpy.full(like.shape, np.nan if jax.numpy.issubdtype(like.dtype, np.floating) else -1, like.dtype)


def _cond(params: Any, operands: list[Any], bodies: list[ExecuteBody]) -> tuple[list[Any], Any]:
    # All branches of a switch return the same tree, so each fills in the records of the others.
    shapes: dict[str, Any] = {}
    for body in bodies:
        shapes |= jax.eval_shape(lambda body=body: body()[1])

    def branch(body: ExecuteBody) -> tuple[list[Any], Any]:
        results, records = body()
        others = {name: jax.tree.map(placeholder, like) for name, like in shapes.items() if name not in records}
        return results, {name: (records | others)[name] for name in shapes}

    return jax.lax.switch(operands[0], [lambda body=body: branch(body) for body in bodies])


def _shard_map(params: Any, operands: list[Any], bodies: list[ExecuteBody]) -> tuple[list[Any], Any]:
    names = params["newly_manual_axes"] if "newly_manual_axes" in params else params["manual_axes"]

    def each(*inputs: Any) -> list[Any]:
        results, records = bodies[0](*inputs)
        if jax.tree.leaves(records):
            raise Refusal("a softmax within shard_map cannot be probed: probe the function on one device")
        return results

    specs = {"in_specs": tuple(params["in_specs"]), "out_specs": list(params["out_specs"])}
    mapped = jax.shard_map(each, mesh=params["mesh"], axis_names=names, check_vma=params["check_vma"], **specs)
    return list(mapped(*operands)), {}


_CHECKPOINT = Holder(lambda params: [body_of(params["jaxpr"], 0)], _checkpoint, returns=True)
_CALL = Holder(lambda params: [body_of(params["call_jaxpr"])], _inline, inlined=True)
NO_BODIES = Holder(lambda params: [], _inline)
"""That of a primitive whose bodies, if any, are not read."""
HOLDERS = {
    "jit": Holder(lambda params: [body_of(params["jaxpr"])], _jit, inlined=True),
    "closed_call": _CALL,
    "custom_jvp_call": _CALL,
    "custom_vjp_call": _CALL,
    "remat2": _CHECKPOINT,
    "checkpoint": _CHECKPOINT,
    "scan": Holder(lambda params: [body_of(params["jaxpr"], scan_sizes(params)[0])], _scan),
    "while": Holder(_while_bodies, _while),
    "cond": Holder(lambda params: [body_of(branch, start=1) for branch in params["branches"]], _cond),
    "shard_map": Holder(lambda params: [body_of(params["jaxpr"], 0)], _shard_map),
}
"""The primitives whose bodies are read and executed again."""
