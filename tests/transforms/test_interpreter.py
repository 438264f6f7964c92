"""What the transformations need of JAX's traced programs. A failure here says what a new version of JAX changed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax.transforms import interpreter
from softmax_jax.transforms.graph import Graph
from softmax_jax.transforms.rewriting import execute

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32))
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


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_body_is_read_and_executed_anew(name: str):
    function, primitive = PROGRAMS[name]
    program = interpreter.trace(function, (X,), {})
    graph = Graph(program)
    names = [node.name for node in graph.nodes]
    assert primitive in names, f"this version of JAX calls {name} otherwise: see interpreter.KINDS"
    assert "sin" in names, f"the body of {primitive} is not where interpreter.KINDS looks for it"
    # A replacement that changes nothing opens every body around it.
    sines = {
        node: (lambda operands, values, node=node: (interpreter.execute(node.equation, operands), {}))
        for node in graph.nodes
        if node.name == "sin"
    }
    results, _ = execute(graph, program.arrays, sines)
    wanted, got = function(X), program.restore(results)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), wanted, got)
    doubled = {
        node: (lambda operands, values, node=node: ([2 * interpreter.execute(node.equation, operands)[0]], {}))
        for node in sines
    }
    changed = program.restore(execute(graph, program.arrays, doubled)[0])
    assert any(not np.allclose(a, b) for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(changed)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_equation_is_executed_as_it_stands(name: str):
    function, _ = PROGRAMS[name]
    program = interpreter.trace(function, (X,), {})
    results, _ = execute(Graph(program), program.arrays, {})
    jax.tree.map(np.testing.assert_array_equal, function(X), program.restore(results))


def test_rules_for_derivatives_hold_where_nothing_is_replaced():
    for function in (own_jvp, own_vjp):

        def anew(x, function=function):
            program = interpreter.trace(function, (x,), {})
            return program.restore(execute(Graph(program), program.arrays, {})[0])

        np.testing.assert_array_equal(jax.grad(lambda x: anew(x).sum())(X), jnp.full((2, 3), 2.0))


def test_what_is_no_array_passes_by():
    def function(x, *, double: bool, name: str):
        return {"result": 2 * x if double else x, "name": name, "count": 3}

    program = interpreter.trace(function, (X,), {"double": True, "name": "x"})
    restored = program.restore(execute(Graph(program), program.arrays, {})[0])
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

    graph = Graph(interpreter.trace(outer, (X,), {}))
    (sine,) = [node for node in graph.nodes if node.name == "sin"]
    assert sine.scope == "outer/inner"
    assert sine.line.startswith("test_interpreter.py:")
    program = interpreter.trace(outer, (X,), {})
    anew = jax.make_jaxpr(lambda x: execute(Graph(program), [x], {})[0])(X)
    assert "outer" in str(anew.eqns[0].source_info.name_stack)


def test_a_sharding_of_a_nested_jit_is_kept():
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.NamedSharding(mesh, jax.P("rows"))
    program = interpreter.trace(jax.jit(jnp.sin, out_shardings=sharding), (X,), {})
    graph = Graph(program)
    (sine,) = [node for node in graph.nodes if node.name == "sin"]
    replacements: Any = {sine: lambda operands, values: (interpreter.execute(sine.equation, operands), {})}
    (result,) = jax.jit(lambda x: execute(graph, [x], replacements)[0])(X)
    assert result.sharding == sharding
