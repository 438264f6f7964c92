"""`sites`: every softmax of a JAX function, as a list that prints as a table."""

import dataclasses
import fnmatch
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from softmax_jax.normalizers import checks
from softmax_jax.transforms import finding, interpreter
from softmax_jax.transforms.finding import Softmax
from softmax_jax.transforms.graph import Graph, Node
from softmax_jax.transforms.masks import Hidden, Kind, hidden
from softmax_jax.transforms.unread import unread
from softmax_jax.transforms.uses import Use, use_of

KERNELS = ("pallas", "triton", "custom_call", "ffi_call", "cudnn", "splash", "flash", "dot_product_attention")
"""Parts of the names of primitives that stand for a compiled kernel, whose inside cannot be read."""
UNREADABLE = {
    "kernel": "a kernel, whose inside cannot be read",
    "blocks": "of rows that never lie whole",
    "segments": "of rows of their own lengths",
    "unread": "of a form that is not known",
}
"""Uses of what cannot be read, and why."""


@dataclasses.dataclass(frozen=True)
class Site:
    """A softmax in somebody's function."""

    index: int
    """Its place among the sites of the function."""
    scope: str
    """The named scopes around it, as "Net/block_0"; "site_3" by its index where there is none."""
    line: str
    """The file and line where it stands."""
    shape: tuple[int, ...]
    """Of its logits."""
    axis: int | tuple[int, ...]
    """Along which its weights sum to one, counted from the end."""
    dtype: str
    """Of its logits."""
    mask: Kind
    """How the model hides logits: by a predicate that selects, by large negative values, or both."""
    use: Use
    """What becomes of the weights: "attention", if a product sums vectors under them. "kernel", "blocks", "segments"
    and "unread" are what cannot be read."""
    what: str = "softmax"
    """The form it has in the function; of a kernel, its name."""

    def matches(self, pattern: str | int) -> bool:
        """Whether a pattern is its index, or fits its scope; `*` stands for anything."""
        return pattern == self.index if isinstance(pattern, int) else fnmatch.fnmatchcase(self.scope, pattern)


class Sites(list[Site]):
    """The sites of a function, in the order of its program; printed, a table.

    >>> import jax
    >>> found = sites(lambda q, k, v: jax.nn.softmax(q @ k.T) @ v)(*[jnp.eye(4)] * 3)
    >>> print(found)  # doctest: +ELLIPSIS, +NORMALIZE_WHITESPACE
    index  scope   line...shape   axis  dtype    mask  use        what
    0      site_0  <doctest...(4, 4)  -1    float32  none  attention  softmax
    """

    def __repr__(self) -> str:
        names = [field.name for field in dataclasses.fields(Site)]
        return table(names, [[str(getattr(site, name)) for name in names] for site in self])

    __str__ = __repr__


def table(head: list[str], rows: list[list[str]]) -> str:
    """Rows of text under a head, in columns."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


class Place(NamedTuple):
    """A site with what is known of its equations; of a kernel, nothing is."""

    site: Site
    softmax: Softmax | None
    hidden: Hidden


def sites(fun: Callable[..., Any]) -> Callable[..., Sites]:
    """A function of the same arguments that returns the softmaxes of `fun`, which is traced and not run.

    They are found by what they compute, whatever wrote it: `jax.nn.softmax`, a quotient of exponentials and their sum
    with or without a maximum, a mask or an extra logit, `exp2`, `exp(z - logsumexp(z))`, `log_softmax`, a division
    after the product with the values; and in the bodies of `jit`, `scan`, `while`, `cond`, `checkpoint`, `shard_map`
    and of functions with derivatives of their own. What else is divided by a sum of exponentials is listed as unread:
    whatever `swap` changes or leaves is in the list. In a loop it is one site, whatever the number of turns. Arguments
    may be `jax.ShapeDtypeStruct`.

    Raises ValueError for a function without a softmax, with what was looked at.

    >>> import jax
    >>> attend = lambda q, k, v: jax.nn.softmax(q @ k.T) @ v
    >>> sites(attend)(*[jnp.eye(4)] * 3)[0].use
    'attention'
    """
    checks_callable(fun)

    def find(*args: Any, **kwargs: Any) -> Sites:
        graph = Graph(interpreter.trace(fun, args, kwargs))
        return Sites(place.site for place in places(graph, fun))

    return find


def checks_callable(fun: Any) -> None:
    """Raises TypeError unless a function is one."""
    if not callable(fun):
        raise TypeError(f"fun is {checks.shown(fun)}; it must be a function: give the one that applies your model")


def places(graph: Graph, fun: Any) -> list[Place]:
    """The sites of a program, in order. Raises ValueError if there is none."""
    softmaxes = finding.softmaxes(graph)
    by_node: dict[Node, Any] = {softmax.node: softmax for softmax in softmaxes}
    by_node |= unread(graph, softmaxes)
    by_node |= dict.fromkeys(filter(_is_kernel, graph.nodes), "kernel")
    found = [(node, by_node[node]) for node in graph.nodes if node in by_node]
    if not found:
        raise ValueError(_nothing(graph, fun))
    return [
        _read(index, node, one, graph) if isinstance(one, Softmax) else Place(_unread(index, node, one), None, Hidden())
        for index, (node, one) in enumerate(found)
    ]


def _is_kernel(node: Node) -> bool:
    """Whether an equation is a kernel by name, or holds a program that takes exponentials and is not read."""
    named = any(part in node.name for part in KERNELS)
    return (named and interpreter.kind_of(node.equation) is None) or interpreter.hides(node.equation, ("exp", "exp2"))


def _read(index: int, node: Node, softmax: Softmax, graph: Graph) -> Place:
    shape = list(softmax.logits.shape)
    how = hidden(softmax)
    use: Use = "attention" if softmax.form == "divided" else "log"
    if softmax.form == "weights":
        use = use_of(node.outputs[0], softmax.out_axes, softmax.logits, graph)
    axis = _from_the_end(softmax.axes, shape)
    what = {"weights": "softmax", "log": "log_softmax", "divided": "divided after the product"}[softmax.form]
    if softmax.extra:
        what += " with an extra logit"
        shape[softmax.axes[0]] += 1
    own = (tuple(shape), axis, str(jnp.dtype(softmax.logits.dtype)), how.kind, use, what)
    return Place(Site(index, node.scope or f"site_{index}", node.line, *own), softmax, how)


def _from_the_end(axes: Iterable[int], shape: Sequence[int]) -> int | tuple[int, ...]:
    """Axes counted from the end; one as a number."""
    counted = tuple(int(axis) - len(shape) for axis in axes)
    return counted[0] if len(counted) == 1 else counted


def _unread(index: int, node: Node, use: Use) -> Site:
    axes, what, value = (), node.name, (*node.outputs, *node.inputs)[0]
    if use != "kernel":
        value = node.inputs[-1 if node.name == "scatter-add" else 0]
        axes = _from_the_end(node.params["axes"], value.shape) if node.name == "reduce_sum" else ()
        what = {"blocks": "softmax in blocks", "segments": "softmax over segments"}.get(use, "exponentials over a sum")
    scope = node.scope or f"site_{index}"
    return Site(index, scope, node.line, value.shape, axes, str(value.dtype), "none", use, what)


def _nothing(graph: Graph, fun: Any) -> str:
    names = Counter(node.name for node in graph.nodes)
    bodies = sorted({node.name for node in graph.nodes if node.frames})
    within = f", within {', '.join(bodies)} too" if bodies else ""
    exponentials = names["exp"] + names["exp2"]
    return (
        f"there is no softmax in {checks.shown(fun)}: looked at {len(graph.nodes)} equations{within}; "
        f"{exponentials} take exponentials, and nothing is divided by their sum; "
        "where another normalizer has been put in already, look at the original"
    )
