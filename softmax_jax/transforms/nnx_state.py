"""Takes objects of `flax.nnx` among the arguments of a function apart while it is traced, and updates them afterwards.

A function may write to such an object: the index of a cache, counts of random numbers, statistics, sown values. While
it is traced it gets copies that hold tracers. What it writes to them leaves the program as further results, and goes to
the objects themselves when the program has run, as under `nnx.jit`. The caller has imported Flax; this module does not.
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax

from softmax_jax.normalizers import checks
from softmax_jax.refusal import Refusal


def _nnx() -> Any:
    """Returns `flax.nnx` if anything has imported it, in a version that has what is used here."""
    nnx = sys.modules.get("flax.nnx")
    return nnx if hasattr(nnx, "Pytree") else None


def is_object(value: Any) -> bool:
    """Says whether a value is a module, a variable, or another object of NNX that a function may write to."""
    nnx = _nnx()
    return nnx is not None and isinstance(value, nnx.Pytree | nnx.Variable)


def transformations(tree: Any) -> Any:
    """Returns `flax.nnx` where a tree holds objects, whose `jit` and `grad` carry what is written to them, or `jax`."""
    return _nnx() if find_objects(tree) else jax


def find_objects(tree: Any) -> list[Any]:
    """Returns the objects among the leaves of a tree."""
    return list(filter(is_object, jax.tree.leaves(tree, is_leaf=is_object)))


def unbind(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Returns a function and its arguments, with the objects that it is bound to among them."""
    while True:
        if is_object(fun):
            fun, args = type(fun).__call__, (fun, *args)
        elif inspect.ismethod(fun) and is_object(fun.__self__):
            fun, args = fun.__func__, (fun.__self__, *args)
        elif isinstance(fun, functools.partial) and find_objects((fun.func, fun.args, fun.keywords)):
            fun, args, kwargs = fun.func, (*fun.args, *args), fun.keywords | kwargs
        else:
            return fun, args, kwargs


class SplitTree:
    """A tree with its objects taken apart: `parts` is the same content as a pytree of arrays and values."""

    def __init__(self, tree: Any, **index: Any) -> None:
        leaves, self.structure = jax.tree.flatten(tree, is_leaf=is_object)
        self.object_flags = list(map(is_object, leaves))
        objects = [leaf for leaf, flag in zip(leaves, self.object_flags) if flag]
        self.graph, values = _nnx().flatten(objects, with_paths=False, graph=True, **index) if objects else (None, [])
        self.parts = [None if flag else leaf for leaf, flag in zip(leaves, self.object_flags)], values

    def join(self, parts: Any, **index: Any) -> Any:
        """Returns the tree with other arrays in its parts, and with objects made or updated from these."""
        leaves, values = parts
        objects = iter(() if self.graph is None else _nnx().unflatten(self.graph, values, **index))
        return self.structure.unflatten(
            [next(objects) if flag else leaf for leaf, flag in zip(leaves, self.object_flags)]
        )


class StatefulCall:
    """A call of a function on copies of the objects in its arguments, which puts what it writes into the objects.

    The caller calls `fun` between `copy_arguments` and `collect`, under `refuse_writes`, and then `restore`.
    """

    def __init__(self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.fun, *arguments = unbind(fun, args, kwargs)
        self.named = fun
        # References by identity: original object → index here, index → copy in `copy_arguments`, index → original in
        # `restore`. So a write to a copy reaches the one original that it was made from, though several arguments
        # share it.
        self.originals = _nnx().graphlib.RefMap() if _nnx() else None
        self.arguments = SplitTree(arguments, ref_index=self.originals)
        self.parts = self.arguments.parts

    def copy_arguments(self, parts: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments from their parts, with copies of the objects."""
        self.by_index = _nnx().graphlib.IndexMap() if _nnx() else None
        args, kwargs = self.arguments.join(parts, index_ref=self.by_index)
        self.contents = [(item, _read_content(item)) for item in find_objects((args, kwargs))]
        return args, kwargs

    def refuse_writes(self) -> contextlib.AbstractContextManager[None]:
        """Raises ValueError, as `refuse_writes`, where the function writes to an object that it is not given."""
        return refuse_writes(self.named, _describe_holder(self.named))

    def collect(self, output: Any) -> Any:
        """Returns the parts of what the function has written to the copies, and of its output."""
        written = [item for item, content in self.contents if not _same_content(content, _read_content(item))]
        objects = bool(self.contents)
        copies = _nnx().graphlib.RefMap.from_indexmap(self.by_index) if objects else {}
        inside = _nnx().iter_graph(find_objects((written, output)), graph=True) if objects else ()
        self.updated = [copies[item] for _, item in inside if item in copies]
        self.results = SplitTree((written, output), **{"ref_outer_index": copies} if objects else {})
        return self.results.parts

    def restore(self, parts: Any) -> Any:
        """Returns what the function returns, and updates the objects that it writes to."""
        if not self.originals:
            return self.results.join(parts)[1]
        by_index = _nnx().graphlib.IndexMap.from_refmap(self.originals)
        with refuse_writes(self.named, OUTSIDE):
            for index in self.updated:  # first of all, as Flax empties an object before it finds that it cannot
                _check_writable(by_index[index])
        return self.results.join(parts, outer_index_outer_ref=by_index)[1]


def _read_content(item: Any) -> tuple[Any, list[Any]]:
    """Returns the structure of an object and the arrays that it holds."""
    graph, values = _nnx().flatten(item, with_paths=False, graph=True)
    return graph, jax.tree.leaves(values)


def _same_content(content: tuple[Any, list[Any]], other: tuple[Any, list[Any]]) -> bool:
    """Says whether two contents have the same structure and hold the very same arrays."""
    return content[0] == other[0] and all(array is other_array for array, other_array in zip(content[1], other[1]))


def _check_writable(item: Any) -> None:
    """Raises Flax's TraceContextError for an object that was made outside of a transformation around this call."""
    if isinstance(item, _nnx().Variable):
        item.set_raw_value(item.get_raw_value())
    else:
        with contextlib.suppress(AttributeError):  # of one that is frozen, whose variables are checked
            item.written_to = None
            del item.written_to


OUTSIDE = (
    "was made outside of a transformation around it: let the function that is transformed take it as an argument, as "
    "in nnx.jit(lambda model, x: swapped(model, x)), and calibrate in each batch"
)


def _describe_holder(fun: Callable[..., Any]) -> str:
    """Returns text on the object that a function writes to and is not given, and what to write instead."""
    around = inspect.getclosurevars(fun)[:2] if inspect.isfunction(fun) else ()
    names = [name for variables in around for name, value in variables.items() if is_object(value)]
    holds = f" (it holds {', '.join(names)})" if names else ""
    return f"is none of its arguments{holds}: pass it, as in swap(lambda model, x: model(x), 'ssmax')(model, x)"


@contextlib.contextmanager
def refuse_writes(fun: Callable[..., Any], why: str) -> Iterator[None]:
    """Raises ValueError with the reason where an object is written to that was made outside of what is traced."""
    try:
        yield
    except Exception as error:
        if not _nnx() or not isinstance(error, sys.modules["flax.errors"].TraceContextError):
            raise
        raise Refusal(f"{checks.shown(fun)} writes to an object of flax.nnx that {why}") from error
