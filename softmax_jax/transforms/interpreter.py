"""JAX's interface for interpreters: the one module that knows how a traced program is stored.

A traced program is a list of equations, each a primitive with operands, results and parameters; some hold programs
of their own, called bodies here. How parameters name these bodies, and how an equation is executed again, changes
between versions of JAX. Everything that depends on it is in this module, and
`tests/transforms/test_interpreter.py` fails by name for what a new version changed.
"""

import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal

from softmax_jax.transforms.objects import Carried

JAX_FOLDER = str(Path(jax.__file__).parent)
HERE = str(Path(__file__).parent)
LAYERS = re.compile(
    r"[/\\](site|dist)-packages[/\\](flax|keras|keras_hub|equinox|haiku|jaxtyping|beartype|optax|chex|haliax)[/\\]"
)
"""The folders of libraries of layers, whose line says less than that of the call."""


class Body(NamedTuple):
    """A program within an equation."""

    jaxpr: Any
    consts: Sequence[Any]
    """Values of `jaxpr.constvars`."""
    sources: tuple[int | None, ...]
    """For each input, the operand of the equation that it is, or None where it changes as the program runs."""
    returned: bool
    """Whether the results of the body are those of the equation."""


Run = Callable[..., tuple[list[Any], Any]]
"""A body to be executed: takes the inputs whose source is None, returns the results and what else was recorded."""

Rebuild = Callable[[Any, list[Any], list[Run]], tuple[list[Any], Any]]
"""Executes an equation on its operands with its bodies replaced."""


class Kind(NamedTuple):
    """How a primitive holds its bodies, and how it is executed with others."""

    bodies: Callable[[Any], list[Body]]
    rebuild: Rebuild
    inlined: bool = False
    """Whether `rebuild` executes the body as it stands, in the program around it."""


def trace(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Program":
    """The program of a function for these arguments. Arguments that are no arrays stay what they are."""
    carried = Carried(fun, args, kwargs)
    leaves, tree = jax.tree.flatten(carried.parts)
    places = [place for place, leaf in enumerate(leaves) if _is_array(leaf)]
    returned: dict[str, Any] = {}

    def flat(*arrays: Any) -> list[Any]:
        given = dict(zip(places, arrays))
        parts = tree.unflatten([given.get(place, leaf) for place, leaf in enumerate(leaves)])
        outputs, returned["tree"] = jax.tree.flatten(carried.call(parts))
        returned["others"] = [None if _is_array(output) else output for output in outputs]
        return [output for output in outputs if _is_array(output)]

    arrays = [leaves[place] for place in places]
    closed = jax.make_jaxpr(flat)(*arrays)

    def restore(values: Sequence[Any]) -> Any:
        remaining = iter(values)
        outputs = [next(remaining) if other is None else other for other in returned["others"]]
        return carried.returned(returned["tree"].unflatten(outputs))

    return Program(*opened(closed), arrays, restore)


class Program(NamedTuple):
    """A traced function."""

    jaxpr: Any
    consts: Sequence[Any]
    arrays: list[Any]
    """The arguments that are arrays."""
    restore: Callable[[Sequence[Any]], Any]
    """From the results of the program to what the function returns."""


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return leaf.dtype != object
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)


def opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """A program and the values of its constants, however it is stored: closed, open, or as one that is both."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def execute(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of an equation as it stands."""
    primitive, params = equation.primitive, equation.primitive.get_bind_params(equation.params)
    functions, params = params if isinstance(params, tuple) else ((), params)  # a tuple before jax 0.9.2
    with within(equation):
        results = primitive.bind(*functions, *operands, **params)
    return list(results) if primitive.multiple_results else [results]


@contextlib.contextmanager
def within(equation: Any) -> Any:
    """The scope and the settings under which an equation was traced."""
    name = scope(equation)
    with equation.ctx.manager, jax.named_scope(name) if name else contextlib.nullcontext():
        yield


def scope(equation: Any) -> str:
    """The names of the scopes around an equation within its body, as in "Net/block_0"."""
    return str(equation.source_info.name_stack)


def source_line(equation: Any) -> str:
    """The file and line of the innermost call outside JAX and libraries of layers, as "model.py:12".

    Where all calls are within libraries it is the innermost outside JAX; it is empty if none is known.
    """
    traceback = equation.source_info.traceback
    ours = (JAX_FOLDER, HERE, "<frozen", "<@beartype")
    frames = [frame for frame in traceback.frames if not frame.file_name.startswith(ours)] if traceback else []
    calls = [frame for frame in frames if not LAYERS.search(frame.file_name)] or frames
    return f"{Path(calls[0].file_name).name}:{calls[0].line_num}" if calls else ""


def is_literal(atom: Any) -> bool:
    """Whether an operand is a number that stands in the program."""
    return isinstance(atom, Literal)


def kind_of(equation: Any) -> Kind | None:
    """How the bodies of an equation are held; None where it has none, or none that can be executed anew."""
    return KINDS.get(equation.primitive.name)


def hides(equation: Any, names: tuple[str, ...]) -> bool:
    """Whether an equation holds a program with primitives of these names that no entry of `KINDS` reads."""
    return kind_of(equation) is None and any(_has(body, names) for body in _held(equation))


def _has(jaxpr: Any, names: tuple[str, ...]) -> bool:
    return any(one.primitive.name in names or any(_has(b, names) for b in _held(one)) for one in jaxpr.eqns)


def _held(equation: Any) -> list[Any]:
    """The programs among the parameters of an equation."""
    held = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "jaxpr"))
    return [opened(leaf)[0] for leaf in held if hasattr(opened(leaf)[0], "eqns")]


def _called(name: str) -> Callable[[Any], list[Body]]:
    def bodies(equation: Any) -> list[Body]:
        jaxpr, consts = opened(equation.params[name])
        return [Body(jaxpr, consts, tuple(range(len(jaxpr.invars))), True)]

    return bodies


def _inline(equation: Any, operands: list[Any], runs: list[Run]) -> tuple[list[Any], Any]:
    return runs[0]()


def _jit(equation: Any, operands: list[Any], runs: list[Run]) -> tuple[list[Any], Any]:
    # Without its boundary a nested jit is the same program, but for what it says of shardings.
    results, recorded = runs[0]()
    shardings = equation.params["out_shardings"]
    known = [isinstance(sharding, jax.sharding.Sharding) for sharding in shardings]
    constrain = jax.lax.with_sharding_constraint
    return [constrain(r, s) if yes else r for r, s, yes in zip(results, shardings, known)], recorded


def _checkpoint(equation: Any, operands: list[Any], runs: list[Run]) -> tuple[list[Any], Any]:
    options = {name: equation.params[name] for name in ("prevent_cse", "policy")}
    return jax.checkpoint(lambda *inputs: runs[0](*inputs), **options)(*operands)


def _checkpoint_bodies(equation: Any) -> list[Body]:
    jaxpr, consts = opened(equation.params["jaxpr"])
    return [Body(jaxpr, consts, (None,) * len(jaxpr.invars), True)]


def _scan_sizes(params: dict[str, Any]) -> tuple[int, int]:
    """Numbers of constants and of carried values."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # since jax 0.11
    return len(consts), len(carry)


def _scan_bodies(equation: Any) -> list[Body]:
    jaxpr, consts = opened(equation.params["jaxpr"])
    fixed, _ = _scan_sizes(equation.params)
    return [Body(jaxpr, consts, _constants_first(fixed, jaxpr), False)]


def _constants_first(fixed: int, jaxpr: Any, start: int = 0) -> tuple[int | None, ...]:
    return (*range(start, start + fixed), *(None,) * (len(jaxpr.invars) - fixed))


def _scan(equation: Any, operands: list[Any], runs: list[Run]) -> tuple[list[Any], Any]:
    params = equation.params
    fixed, carried = _scan_sizes(params)
    start, sequences = operands[fixed : fixed + carried], operands[fixed + carried :]

    def step(carry: list[Any], slices: list[Any]) -> tuple[list[Any], Any]:
        results, recorded = runs[0](*carry, *slices)
        return results[:carried], (results[carried:], recorded)

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, (stacked, recorded) = jax.lax.scan(step, start, sequences, **options)
    return [*carry, *stacked], recorded


def _while_bodies(equation: Any) -> list[Body]:
    (condition, condition_consts), (body, consts) = (opened(equation.params[f"{n}_jaxpr"]) for n in ("cond", "body"))
    first, second = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    return [
        Body(condition, condition_consts, _constants_first(first, condition), False),
        Body(body, consts, _constants_first(second, body, start=first), False),
    ]


def _while(equation: Any, operands: list[Any], runs: list[Run]) -> tuple[list[Any], Any]:
    fixed = equation.params["cond_nconsts"] + equation.params["body_nconsts"]
    start = operands[fixed:]
    recorded = jax.tree.map(missing, jax.eval_shape(lambda *carry: runs[1](*carry)[1], *start))
    carry, recorded = jax.lax.while_loop(
        lambda state: runs[0](*state[0])[0][0], lambda state: runs[1](*state[0]), (start, recorded)
    )
    return list(carry), recorded


def missing(like: Any) -> jax.Array:
    """What stands for a record of a program that did not run: NaN, or -1 for whole numbers."""
    return jax.numpy.full(like.shape, np.nan if jax.numpy.issubdtype(like.dtype, np.floating) else -1, like.dtype)


def _cond_bodies(equation: Any) -> list[Body]:
    programs = [opened(branch) for branch in equation.params["branches"]]
    return [Body(jaxpr, consts, tuple(range(1, len(jaxpr.invars) + 1)), False) for jaxpr, consts in programs]


def _cond(equation: Any, operands: list[Any], runs: list[Run]) -> tuple[list[Any], Any]:
    recorded = [jax.eval_shape(lambda run=run: run()[1]) for run in runs]
    every = {name: like for one in recorded for name, like in one.items()}

    def branch(run: Run) -> Callable[[], tuple[list[Any], Any]]:
        def results() -> tuple[list[Any], Any]:
            values, own = run()
            others = {name: jax.tree.map(missing, like) for name, like in every.items() if name not in own}
            return list(values), {name: (own | others)[name] for name in every}

        return results

    return jax.lax.switch(operands[0], [branch(run) for run in runs])


def _shard_map_bodies(equation: Any) -> list[Body]:
    jaxpr, consts = opened(equation.params["jaxpr"])
    return [Body(jaxpr, consts, (None,) * len(jaxpr.invars), False)]


def _shard_map(equation: Any, operands: list[Any], runs: list[Run]) -> tuple[list[Any], Any]:
    params = equation.params
    names = params["newly_manual_axes"] if "newly_manual_axes" in params else params["manual_axes"]

    def each(*inputs: Any) -> list[Any]:
        results, recorded = runs[0](*inputs)
        if jax.tree.leaves(recorded):
            raise ValueError("a softmax within shard_map cannot be probed: probe the function on one device")
        return results

    specs = {"in_specs": tuple(params["in_specs"]), "out_specs": list(params["out_specs"])}
    mapped = jax.shard_map(each, mesh=params["mesh"], axis_names=names, check_vma=params["check_vma"], **specs)
    return list(mapped(*operands)), {}


KINDS = {
    "jit": Kind(_called("jaxpr"), _jit, inlined=True),
    "pjit": Kind(_called("jaxpr"), _jit, inlined=True),  # its name before jax 0.7
    "closed_call": Kind(_called("call_jaxpr"), _inline, inlined=True),
    # A rule for the derivative of softmax is none for that of another normalizer, and goes.
    "custom_jvp_call": Kind(_called("call_jaxpr"), _inline, inlined=True),
    "custom_vjp_call": Kind(_called("call_jaxpr"), _inline, inlined=True),
    "remat2": Kind(_checkpoint_bodies, _checkpoint),
    "checkpoint": Kind(_checkpoint_bodies, _checkpoint),
    "scan": Kind(_scan_bodies, _scan),
    "while": Kind(_while_bodies, _while),
    "cond": Kind(_cond_bodies, _cond),
    "shard_map": Kind(_shard_map_bodies, _shard_map),
}
"""The primitives whose bodies are read and executed anew."""
