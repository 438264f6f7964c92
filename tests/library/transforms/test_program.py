"""What the transformations need of JAX's traced programs. A failure here says what a new version of JAX changed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax.transforms.execution import execute, execute_equation
from softmax_jax.transforms.program import Node, Program, trace

from .models import close, normal, run

X = normal(2, 3)
SHIFT = jnp.ones(3)


def own_jvp(x):
    rule = jax.custom_jvp(jnp.sin)
    rule.defjvp(lambda primals, tangents: (jnp.sin(*primals), 2 * tangents[0]))
    return rule(x)


def own_vjp(x):
    rule = jax.custom_vjp(jnp.sin)
    rule.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (2 * g,))
    return rule(x)


def scan(x):
    carry, turns = jax.lax.scan(lambda c, y: (c * y + SHIFT, {"sine": jnp.sin(c)}), x[0], x, reverse=True)
    return carry, turns


def loop(x):
    return jax.lax.while_loop(lambda state: state[0] < 3, lambda state: (state[0] + 1, jnp.sin(state[1]) + x), (0, x))


def mapped(x):
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(jnp.sin, mesh=mesh, in_specs=jax.P("rows"), out_specs=jax.P("rows"))(x)


PROGRAMS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "jit": (jax.jit(lambda x: jnp.sin(x) + SHIFT[None]), "jit"),
    "checkpoint": (jax.checkpoint(jnp.sin), "remat2"),
    "scan": (scan, "scan"),
    "while": (loop, "while"),
    "cond": (lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, lambda x: 2 * jnp.sin(x), x), "cond"),
    "custom_jvp": (own_jvp, "custom_jvp_call"),
    "custom_vjp": (own_vjp, "custom_vjp_call"),
    "shard_map": (mapped, "shard_map"),
}


def sines(program: Program) -> list[Node]:
    return [node for node in program.nodes if node.name == "sin"]


def anew(function: Callable[..., Any], x: Any = X, factor: float | None = None, **kwargs: Any) -> Any:
    """What a function returns when its program is executed again, with every sine multiplied, if a factor is given."""
    program = trace(function, (x,), kwargs)
    times: Any = lambda node: lambda operands, values: ([factor * execute_equation(node.equation, operands)[0]], {})  # noqa: E731
    replacements = {} if factor is None else {node: times(node) for node in sines(program)}
    return program.restore(execute(program, replacements, replacements)[0])


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_body_is_read_and_executed_again(name: str):
    function, primitive = PROGRAMS[name]
    names = [node.name for node in trace(function, (X,), {}).nodes]
    assert primitive in names, f"this version of JAX calls {name} otherwise: see bodies.HOLDERS"
    assert "sin" in names, f"the body of {primitive} is not where bodies.HOLDERS looks for it"
    every = lambda x: (function(x), anew(function, x), anew(function, x, 1.0), anew(function, x, 2.0))  # noqa: E731
    wanted, same, opened, changed = run(every, X)
    jax.tree.map(np.testing.assert_array_equal, wanted, same)
    close(opened, wanted)
    assert any(not np.allclose(a, b) for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(changed)))


def test_rules_for_derivatives_hold_where_nothing_is_replaced():
    for function in (own_jvp, own_vjp):
        gradient = jax.grad(lambda x, f=function: anew(f, x).sum())
        np.testing.assert_array_equal(gradient(X), jnp.full((2, 3), 2.0))
        (sine,) = sines(trace(function, (X,), {}))
        assert sine.custom_rule == function.__name__.replace("own", "custom")


def test_what_is_no_array_passes_by():
    def function(x, *, double: bool, name: str):
        return {"result": 2 * x if double else x, "name": name, "count": 3}

    restored = anew(function, double=True, name="x")
    assert (restored["name"], restored["count"]) == ("x", 3)
    np.testing.assert_array_equal(restored["result"], 2 * X)


def test_scopes_and_lines_are_known():
    @jax.jit
    def inner(x):
        with jax.named_scope("inner"):
            return jnp.sin(x)

    def outer(x):
        with jax.named_scope("outer"):
            return inner(x)

    (sine,) = sines(trace(outer, (X,), {}))
    assert sine.scope == "outer/inner"
    assert sine.line.startswith("test_program.py:")
    again = jax.make_jaxpr(lambda x: anew(outer, x))(X)
    assert "outer" in str(again.eqns[0].source_info.name_stack)


def test_a_sharding_of_a_nested_jit_is_kept():
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.NamedSharding(mesh, jax.P("rows"))
    result = jax.jit(lambda x: anew(jax.jit(jnp.sin, out_shardings=sharding), x, factor=1.0))(X)
    assert result.sharding == sharding
