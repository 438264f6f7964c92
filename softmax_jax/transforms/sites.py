"""`sites`: every softmax of a JAX function, as a list that prints as a table.

Beside where a softmax stands, a site says how the model hides logits and what the weights are used for. Divisions by
sums of exponentials that could not be read as a softmax are sites too.
"""

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, SupportsInt

import jax.numpy as jnp

from softmax_jax.normalizers import checks
from softmax_jax.refusal import Refusal, WrongType
from softmax_jax.transforms.derivatives import find_derived
from softmax_jax.transforms.find import Softmax, find_softmaxes
from softmax_jax.transforms.hiding import Hidden, Hides, find_hidden
from softmax_jax.transforms.merges import Merges
from softmax_jax.transforms.program import SCORES, Node, Program, trace
from softmax_jax.transforms.turns import find_scan
from softmax_jax.transforms.unread import find_kernels, find_unread
from softmax_jax.transforms.usage import Use, find_use

FORMS = {"weights": "softmax", "log": "log_softmax", "divided": "divided after the product"}
"""What the forms of a softmax are called."""
UNREAD_FORMS: dict[Use, str] = {
    "blocks": "softmax in blocks",
    "segments": "softmax over segments",
    "derivative": "the derivative of a sum of exponentials",
}
"""What the sites of these uses are called."""


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
    """The shape of its logits."""
    axis: int | tuple[int, ...]
    """Where its weights sum to one, counted from the end."""
    dtype: str
    """The type of its logits."""
    mask: Hides
    """How the model hides logits: by a predicate that selects, by large negative values, or both."""
    use: Use
    """What happens to the weights. "attention": a product sums vectors under them; "segments": the same over segments,
    as in graph attention; "choice": the largest are chosen; "log": their logarithm is taken; "expectation": a product
    sums numbers under them; "output": the function returns them; "other". "kernel", "blocks", "derivative" and "unread"
    cannot be read, and some forms of "segments"."""
    turns: int = 1
    """The turns of the scan over layers that it lies in: numbers may have these as their first axis. 1 without one. A
    scan over time that carries a state and slices inputs of floating point counts as one."""
    what: str = "softmax"
    """The form it has in the function; for a kernel, its name. Where a custom rule for derivatives lies around it that
    JAX does not define, it is named, since a swap replaces it with the derivative of the new normalizer; and it is said
    where the function takes the derivative of the softmax itself."""

    def matches(self, pattern: str | int) -> bool:
        """Says whether a pattern is its index, or fits its scope; `*` stands for anything."""
        return pattern == self.index if isinstance(pattern, int) else fnmatch.fnmatchcase(self.scope, pattern)


class Sites(list[Site]):
    """The sites of a function, in the order of its program; printed, a table.

    >>> import jax
    >>> listed = sites(lambda q, k, v: jax.nn.softmax(q @ k.T) @ v)(*[jnp.eye(4)] * 3)
    >>> print(listed)  # doctest: +ELLIPSIS, +NORMALIZE_WHITESPACE
    index  scope   line...shape   axis  dtype    mask  use        what
    0      site_0  <doctest...(4, 4)  -1    float32  none  attention  softmax
    """

    def __repr__(self) -> str:
        in_scan = any(site.turns > 1 for site in self)
        names = [field.name for field in dataclasses.fields(Site) if in_scan or field.name != "turns"]
        return table(names, [[str(getattr(site, name)) for name in names] for site in self])

    __str__ = __repr__


def table(head: list[str], rows: list[list[str]]) -> str:
    """Returns rows of text under a head, in columns."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def sites(fun: Callable[..., Any]) -> Callable[..., Sites]:
    """Lists every softmax of a function, which is traced and not run.

    They are found by what they compute, whatever wrote it: `jax.nn.softmax`, a quotient of exponentials and their sum
    with or without a maximum, a mask or an extra logit, `exp2`, `exp(z - logsumexp(z))`, `log_softmax`, a division
    after the product with the values; and in the bodies of `jit`, `scan`, `while`, `cond`, `checkpoint`, `shard_map`
    and of functions with custom rules for derivatives. Anything else that is divided by a sum of exponentials is
    listed as unread: whatever `swap` changes or leaves is in the list. A softmax in a loop is one site; in a scan over
    layers, which slices their parameters, the site has the number of its `turns`.

    Arguments:
        fun: Any JAX function.

    Returns:
        A function of the same arguments, which may be `jax.ShapeDtypeStruct`, that returns the `Sites`.

    Raises:
        TypeError: `fun` is no function.
        ValueError: `fun` has no softmax; the message says what was looked at.

    Example:
        >>> import jax
        >>> attend = lambda q, k, v: jax.nn.softmax(q @ k.T) @ v
        >>> sites(attend)(*[jnp.eye(4)] * 3)[0].use
        'attention'
    """
    check_callable(fun)

    def list_sites(*args: Any, **kwargs: Any) -> Sites:
        return Sites(traced.site for traced in find_sites(trace(fun, args, kwargs), fun))

    return list_sites


def check_callable(fun: Any) -> None:
    """Raises TypeError unless a function is one."""
    if not callable(fun):
        raise WrongType(f"fun is {checks.shown(fun)}; it must be a function: give the one that applies your model")


class TracedSite(NamedTuple):
    """A site with its equations, if they could be read."""

    site: Site
    softmax: Softmax | None
    hidden: Hidden
    scan: Node | None = None
    """The scan over layers that it lies in."""
    derived: bool = False
    """True if the function takes its derivative too, which a swap of its value would leave."""


def find_sites(program: Program, fun: Any) -> list[TracedSite]:
    """Returns the sites of a program, in order. Raises ValueError if there is none."""
    softmaxes = {softmax.node: softmax for softmax in find_softmaxes(program)}
    unread = find_unread(program, softmaxes)
    derived = find_derived(list(softmaxes.values()), unread)
    # The sum of a softmax whose derivative is taken divides a tangent too: one site, not two.
    for softmax in derived:
        unread.pop(softmax.total, None)
    unread |= dict.fromkeys(find_kernels(program), "kernel")
    nodes = [node for node in program.nodes if node in softmaxes or node in unread]
    if not nodes:
        raise Refusal(_describe_absence(program, fun))
    traced = {
        node: TracedSite(_unread_site(index, node, unread[node]), None, Hidden())
        if node in unread
        else _softmax_site(index, softmaxes[node], program, softmaxes[node] in derived)
        for index, node in enumerate(nodes)
    }
    return list((traced | _merged_sites(program, traced)).values())


def _merged_sites(program: Program, traced: Mapping[Node, TracedSite]) -> dict[Node, TracedSite]:
    """Returns the sites that are parts of a row, or that merge these: they cannot be read, whatever they look like."""
    # The quotient rule multiplies weights by the slope of their own sum, which is no merge.
    softmaxes = {node: site.softmax for node, site in traced.items() if site.softmax and not site.derived}
    weighing = {node: softmax for node, softmax in softmaxes.items() if traced[node].site.use != "other"}
    merges = Merges(program, weighing)
    names: dict[Node, str] = {}
    for node in traced if merges.merged else ():
        if node not in softmaxes:
            names |= {node: "softmax in blocks"} if any(map(merges.uses_totals, node.outputs)) else {}
        elif merges.uses_totals(softmaxes[node].logits):
            names[node] = "softmax that merges parts"
        elif merges.is_part(softmaxes[node]):
            names[node] = "softmax over part of a row, merged by its log-sum-exp"
    sites = {node: dataclasses.replace(traced[node].site, use="blocks", what=name) for node, name in names.items()}
    return {node: TracedSite(site, None, Hidden()) for node, site in sites.items()}


def _softmax_site(index: int, softmax: Softmax, program: Program, derived: bool) -> TracedSite:
    node, shape, hidden = softmax.node, list(softmax.logits.shape), find_hidden(softmax)
    axis = _axes_from_end(softmax.axes, shape)
    what = FORMS[softmax.form] + (" over segments" if softmax.segments else "")
    if softmax.extra:
        what += " with an extra logit"
        shape[softmax.axes[0]] += 1
    elif math.prod(shape[at] for at in softmax.axes) == 1:
        what += " of one entry"
    if rule := node.custom_rule:
        what += f", whose {rule} a swap drops"
    if derived:
        what += ", whose derivative is taken here"
    scope, dtype, use = node.scope or f"site_{index}", str(jnp.dtype(softmax.logits.dtype)), find_use(softmax, program)
    scan = find_scan(softmax)
    turns = scan.params["length"] if scan else 1
    site = Site(index, scope, node.line, tuple(shape), axis, dtype, hidden.kind, use, turns, what)
    return TracedSite(site, softmax, hidden, scan, derived)


def _axes_from_end(axes: Iterable[SupportsInt], shape: Sequence[int]) -> int | tuple[int, ...]:
    """Returns axes counted from the end; one as a number."""
    counted = tuple(int(axis) - len(shape) for axis in axes)
    return counted[0] if len(counted) == 1 else counted


def _unread_site(index: int, node: Node, use: Use) -> Site:
    axes, what, value = (), node.name, (*node.outputs, *node.inputs)[0]
    if use != "kernel":
        value = node.inputs[-1 if node.name == "scatter-add" else 0]
        axes = _axes_from_end(node.params["axes"], value.shape) if node.name == "reduce_sum" else ()
        what = "products of exponentials over their sum" if node.name in SCORES else "exponentials over a sum"
        what = UNREAD_FORMS.get(use, what)
    scope = node.scope or f"site_{index}"
    return Site(index, scope, node.line, value.shape, axes, str(value.dtype), "none", use, what=what)


def _describe_absence(program: Program, fun: Any) -> str:
    """Returns the message for a function without a softmax."""
    bodies = sorted({node.name for node in program.nodes if node.frames})
    inside = f", within {', '.join(bodies)} too" if bodies else ""
    exponentials = [node for node in program.nodes if node.exponentiates]
    divided = "nothing is divided by their sum"
    if any(node.derived for node in exponentials):
        divided += " except by a derivative that the function takes itself: look at what is inside of it"
    return (
        f"there is no softmax in {checks.shown(fun)}: looked at {len(program.nodes)} equations{inside}; "
        f"{len(exponentials)} take exponentials, and {divided}; "
        "where another normalizer has been put in already, look at the original"
    )
