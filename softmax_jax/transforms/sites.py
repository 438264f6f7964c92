"""`sites`: every softmax of a JAX function, as a list that prints as a table.

Beside where a softmax stands, a site says how the model hides logits and what the weights are used for. Divisions by
sums of exponentials that could not be read as a softmax are sites too.
"""

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, SupportsInt

import jax.numpy as jnp

from softmax_jax.normalizers import checks
from softmax_jax.refusal import Refusal, WrongType
from softmax_jax.transforms.find import (
    LOW,
    Mask,
    Softmax,
    Step,
    along,
    at_hand,
    chain,
    inverts,
    returned,
    same_steps,
    softmaxes,
    was_boolean,
)
from softmax_jax.transforms.merges import Merges
from softmax_jax.transforms.program import LAID, MOVED, SAME, Node, Program, Value, back, constant, reached, trace

Hides = Literal["none", "select", "values", "select and values"]
Use = Literal[
    "attention",
    "choice",
    "log",
    "expectation",
    "output",
    "other",
    "kernel",
    "blocks",
    "segments",
    "derivative",
    "unread",
]
"""What happens to weights.

* attention: they enter a product that sums vectors over their axis.
* choice: the largest are chosen, as a router or a sampler does, even if vectors are summed under those.
* log: their logarithm is taken, for a likelihood; so are the quotients of a contrastive loss, which are not read.
* expectation: a product sums numbers under them.
* output: the function returns them, as a classifier does.
* kernel, blocks, segments, derivative, unread: they cannot be read. A compiled kernel; rows that come in blocks, or in
  parts that are merged by their log-sum-exps; rows of their own lengths; the derivative of a sum of exponentials;
  anything else that is divided by such a sum.
"""
KERNELS = ("pallas", "triton", "custom_call", "ffi_call", "cudnn", "splash", "flash", "dot_product_attention")
"""Parts of the names of primitives that stand for a compiled kernel, whose inside cannot be read."""
UNREADABLE = {
    "kernel": "a kernel, whose inside cannot be read",
    "blocks": "of rows that never lie whole, so swap before they are cut",
    "segments": "of rows of their own lengths",
    "derivative": "which the function takes itself",
    "unread": "of a form that is not known",
}
"""The uses that cannot be read, and why."""
NAMES: dict[Use, str] = {
    "blocks": "softmax in blocks",
    "segments": "softmax over segments",
    "derivative": "the derivative of a sum of exponentials",
}
"""What the sites of these uses are called."""
SCORES = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})


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
    """What happens to the weights: "attention", if a product sums vectors under them. "kernel", "blocks", "segments",
    "derivative" and "unread" cannot be read."""
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
    """Returns rows of text under a head, in columns."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def sites(fun: Callable[..., Any]) -> Callable[..., Sites]:
    """Returns a function of the same arguments that lists the softmaxes of `fun`, which is traced and not run.

    They are found by what they compute, whatever wrote it: `jax.nn.softmax`, a quotient of exponentials and their sum
    with or without a maximum, a mask or an extra logit, `exp2`, `exp(z - logsumexp(z))`, `log_softmax`, a division
    after the product with the values; and in the bodies of `jit`, `scan`, `while`, `cond`, `checkpoint`, `shard_map`
    and of functions with custom rules for derivatives. Anything else that is divided by a sum of exponentials is
    listed as unread: whatever `swap` changes or leaves is in the list. A softmax in a loop is one site, whatever the
    number of turns. Arguments may be `jax.ShapeDtypeStruct`.

    Raises ValueError for a function without a softmax, with what was looked at.

    >>> import jax
    >>> attend = lambda q, k, v: jax.nn.softmax(q @ k.T) @ v
    >>> sites(attend)(*[jnp.eye(4)] * 3)[0].use
    'attention'
    """
    check_callable(fun)

    def find(*args: Any, **kwargs: Any) -> Sites:
        return Sites(place.site for place in places(trace(fun, args, kwargs), fun))

    return find


def check_callable(fun: Any) -> None:
    """Raises TypeError unless a function is one."""
    if not callable(fun):
        raise WrongType(f"fun is {checks.shown(fun)}; it must be a function: give the one that applies your model")


class Hidden(NamedTuple):
    """How a model hides logits."""

    masks: tuple[Mask, ...] = ()
    by_value: bool = False
    """Says whether something other than the scores and these masks makes the logits, which may hide some."""
    later: bool = False
    """Says whether some are hidden in the exponentials only, so that the logits do not tell."""

    @property
    def one_number(self) -> bool:
        """Says whether all hidden logits are the same low number."""
        return len(self.masks) == 1 and not self.by_value and not self.later

    @property
    def kind(self) -> Hides:
        """How `Site.mask` names it."""
        if self.masks:
            return "select and values" if self.by_value else "select"
        return "values" if self.by_value else "none"


class Place(NamedTuple):
    """A site with its equations, if they could be read."""

    site: Site
    softmax: Softmax | None
    hidden: Hidden
    derived: bool = False
    """Says whether the function takes its derivative too, which a swap of its value would leave."""


def places(program: Program, fun: Any) -> list[Place]:
    """Returns the sites of a program, in order. Raises ValueError if there is none."""
    read = {softmax.node: softmax for softmax in softmaxes(program)}
    unread = _unread(program, read)
    forward = {total for total, use in unread.items() if use == "derivative"}
    derived = _derived(list(read.values()), forward)
    unread = {total: use for total, use in unread.items() if total not in {one.total for one in derived}}
    unread: dict[Node, Use] = {**unread, **dict.fromkeys(filter(_is_kernel, program.nodes), "kernel")}
    found = [node for node in program.nodes if node in read or node in unread]
    if not found:
        raise Refusal(_nothing(program, fun))
    listed = {
        node: Place(_site_of_unread(index, node, unread[node]), None, Hidden())
        if node in unread
        else _place(index, read[node], program, read[node] in derived)
        for index, node in enumerate(found)
    }
    return list((listed | _merged(program, listed)).values())


def _merged(program: Program, listed: dict[Node, Place]) -> dict[Node, Place]:
    """Returns the places that are parts of a row, or that merge these: they cannot be read, whatever they look like."""
    # The quotient rule multiplies weights by the slope of their own sum, which is no merge.
    read = {node: place.softmax for node, place in listed.items() if place.softmax and not place.derived}
    merges = Merges(program, {node: one for node, one in read.items() if listed[node].site.use in ("attention", "log")})
    what: dict[Node, str] = {}
    for node in listed if merges.merged else ():
        if node not in read:
            what |= {node: "softmax in blocks"} if any(map(merges.of_totals, node.outputs)) else {}
        elif merges.of_totals(read[node].logits):
            what[node] = "softmax that merges parts"
        elif merges.part(read[node]):
            what[node] = "softmax over part of a row, merged by its log-sum-exp"
    sites = {node: dataclasses.replace(listed[node].site, use="blocks", what=one) for node, one in what.items()}
    return {node: Place(site, None, Hidden()) for node, site in sites.items()}


def _is_kernel(node: Node) -> bool:
    """Says whether an equation is a kernel by name, or holds a program that takes exponentials and is not read."""
    named = any(part in node.name for part in KERNELS)
    return (named and node.holder is None) or node.hides_exponentials


def _place(index: int, softmax: Softmax, program: Program, derived: bool) -> Place:
    node, shape, how = softmax.node, list(softmax.logits.shape), _hidden(softmax)
    use: Use = _use_of_product(softmax) if softmax.form == "divided" else "log"
    if softmax.form == "weights":
        weights = node.outputs[0]
        use = _use_of(weights, along(softmax.steps, weights.shape, softmax.axes), softmax.logits, program)
    axis = _from_the_end(softmax.axes, shape)
    what = {"weights": "softmax", "log": "log_softmax", "divided": "divided after the product"}[softmax.form]
    if softmax.extra:
        what += " with an extra logit"
        shape[softmax.axes[0]] += 1
    if rule := node.custom_rule:
        what += f", whose {rule} a swap drops"
    if derived:
        what += ", whose derivative is taken here"
    own = (tuple(shape), axis, str(jnp.dtype(softmax.logits.dtype)), how.kind, use, what)
    return Place(Site(index, node.scope or f"site_{index}", node.line, *own), softmax, how, derived)


def _from_the_end(axes: Iterable[SupportsInt], shape: Sequence[int]) -> int | tuple[int, ...]:
    """Returns axes counted from the end; one as a number."""
    counted = tuple(int(axis) - len(shape) for axis in axes)
    return counted[0] if len(counted) == 1 else counted


def _site_of_unread(index: int, node: Node, use: Use) -> Site:
    axes, what, value = (), node.name, (*node.outputs, *node.inputs)[0]
    if use != "kernel":
        value = node.inputs[-1 if node.name == "scatter-add" else 0]
        axes = _from_the_end(node.params["axes"], value.shape) if node.name == "reduce_sum" else ()
        what = "products of exponentials over their sum" if node.name in SCORES else "exponentials over a sum"
        what = NAMES.get(use, what)
    scope = node.scope or f"site_{index}"
    return Site(index, scope, node.line, value.shape, axes, str(value.dtype), "none", use, what)


def _nothing(program: Program, fun: Any) -> str:
    bodies = sorted({node.name for node in program.nodes if node.frames})
    within = f", within {', '.join(bodies)} too" if bodies else ""
    exponentials = [node for node in program.nodes if node.exponentiates]
    divided = "nothing is divided by their sum"
    if any(node.derived for node in exponentials):
        divided += " except by a derivative that the function takes itself: look at what is inside of it"
    return (
        f"there is no softmax in {checks.shown(fun)}: looked at {len(program.nodes)} equations{within}; "
        f"{len(exponentials)} take exponentials, and {divided}; "
        "where another normalizer has been put in already, look at the original"
    )


# How a model hides logits
#
# A model hides a logit with a large negative number. Under another scale that number would no longer be one that
# hides: half the lowest float may show through, twice the lowest is -inf. So the mask is recovered before anything
# multiplies: from the predicate that chose the number, or else from the value.


def _hidden(softmax: Softmax) -> Hidden:
    """Returns how the logits of a softmax are hidden, by a walk back to the scores."""
    masks: list[Mask] = []
    by_value = False
    waiting: list[tuple[Value, float | None, tuple[Step, ...]]] = [(softmax.logits, 1.0, ())]
    while waiting:
        value, scale, steps = waiting.pop()
        node = value.producer
        if node is None:
            by_value = True
        elif selection := _selection(node, scale):
            mask, rest = selection
            usable = at_hand(mask.predicate, softmax.node.frame)
            masks += [mask._replace(steps=(Step(node, 0, 0), *steps))] if usable else []
            by_value |= not usable
            waiting += [(one, scale, steps) for one in rest]
        elif node.name not in SCORES:
            operands = _sources(node)
            # Anything may hide the logits that it is added to.
            by_value |= operands is None or (node.name in ("add", "sub") and len(operands) > 1) or _adds_hidden(node)
            result = node.outputs.index(value)
            for one in operands or []:
                waiting.append((node.inputs[one], _scaled(node, one, scale), (Step(node, one, result), *steps)))
    known = {mask.predicate for mask in masks}
    later = [mask for mask in softmax.masks if mask.predicate not in known]
    return Hidden((*masks, *later), by_value, bool(later))


def _scaled(node: Node, position: int, scale: float | None) -> float | None:
    """Returns the scale of an operand that an equation makes logits of; None if it is not known."""
    if scale is None or node.name not in ("mul", "div", "neg", "sub"):
        return scale
    if node.name in ("neg", "sub"):
        return scale if node.name == "sub" and position == 0 else -scale
    number = constant(node.inputs[1 - position])
    return (scale * number if node.name == "mul" else scale / number) if number else None


def _selection(node: Node, scale: float | None) -> tuple[Mask, list[Value]] | None:
    """Returns the mask of an equation that hides logits, and what it chooses where they are visible.

    The logits are what it chooses times a scale. If the scale is not known, numbers that are added to logits may be too
    small to hide them.
    """
    if node.name != "select_n" or len(node.inputs) != 3:
        return None
    predicate, *cases = node.inputs
    numbers = [constant(case) for case in cases]
    factor = 1.0 if scale is None and None in numbers else scale
    if factor is None:
        return None
    low = [place for place, number in enumerate(numbers) if number is not None and number * factor <= LOW]
    if len(low) != 1:
        return None
    visible = 1 - low[0]
    return Mask(predicate, bool(visible)), [cases[visible]] if numbers[visible] is None else []


def _sources(node: Node) -> list[int] | None:
    """Returns the operands that an equation makes logits of, if by itself it hides none."""
    if node.name in LAID or node.name in ("neg", "tanh", "integer_pow", "pad"):
        return [0]
    if node.name in ("mul", "div"):  # the other operand is a scale
        scores = [place for place, one in enumerate(node.inputs) if back(one, MOVED).shape == node.outputs[0].shape]
        return scores or [0]
    if node.name in ("add", "sub", "concatenate"):
        return [place for place, operand in enumerate(node.inputs) if constant(operand) is None]
    return None


def _adds_hidden(node: Node) -> bool:
    """Says whether an equation puts low numbers beside the logits."""
    beside = [constant(one) for one in node.inputs] if node.name in ("concatenate", "pad") else []
    return any(number is not None and number <= LOW for number in beside)


# What weights are used for

CHOICES = {"argmax": 0, "argmin": 0, "top_k": 1, "approx_top_k": 1, "sort": 1, "cumsum": 1}
"""The primitives that choose, and the first of their results that has indices."""


MIXES = ("dot_general", "reduce_sum")
"""The primitives that sum weights of several rows."""
WINDOWS = frozenset({"reduce_window_sum", "reduce_window_max", "reduce_window_min", "rev"})
"""The primitives whose results have the axes of their operand."""
BENDING = frozenset({"exp", "exp2", "tanh", "logistic", "erf", "max", "rsqrt", "sin", "cos"})
"""The primitives that bend sums of several rows: what follows is a layer, such as the next round, and no weights."""


class _Tracked(NamedTuple):
    """A value that holds weights, and the axis along which they sum to one."""

    value: Value
    axis: int
    spread: bool = False
    """Says whether an axis was added, along which each weight stands many times."""
    mixed: bool = False
    """Says whether weights of several rows were summed."""


def _use_of(weights: Value, axes: tuple[int, ...], logits: Value, program: Program) -> Use:
    """Returns the use of weights that counts most: attention, then a choice, then the others."""
    uses: dict[Use, list[Node]] = {}
    for tracked in reached([_Tracked(weights, axis) for axis in axes], _followed):
        if tracked.value in program.root.outputs and not tracked.mixed:
            uses.setdefault("output", [])
        for node, position in tracked.value.users:
            if use := _used(node, position, tracked):
                uses.setdefault(use, []).append(node)
    choices = [*uses.get("choice", ()), *_choices_behind(logits)]
    if "attention" in uses and choices:
        chosen = [index for node in choices for index in node.outputs[CHOICES[node.name] :]]
        made = set(reached(chosen, lambda value: [*value.also, *(one for n, _ in value.users for one in n.outputs)]))
        if all(made.intersection(node.inputs) for node in uses["attention"]):
            return "choice"  # what was chosen meets the weights again
    ranked: tuple[Use, ...] = ("attention", "choice", "log", "expectation", "output", "other")
    return next(use for use in ranked if use in uses or use == "other")


def _use_of_product(softmax: Softmax) -> Use:
    """Returns the use of weights of the form "divided": what the step does that sums along their axis."""
    steps, spread = softmax.steps, False
    for place, (node, position, _) in enumerate(steps):
        operand = node.inputs[position]
        for axis in along(steps[:place], operand.shape, softmax.axes):
            if use := _used(node, position, _Tracked(operand, axis, spread)):
                return use
        spread = spread or math.prod(node.outputs[0].shape) > math.prod(operand.shape)
    return "attention"


def _used(node: Node, position: int, tracked: _Tracked) -> Use | None:
    """Returns what an equation does with weights: attention is a product over their axis, or the sum of one."""
    if node.name == "dot_general":
        contracted, batch = node.params["dimension_numbers"]
        if tracked.axis not in contracted[position]:
            return None
        gone = len(contracted[1 - position]) + len(batch[1 - position])
        return "attention" if len(node.inputs[1 - position].shape) > gone else "expectation"
    if node.name == "conv_general_dilated":
        return "attention" if _convolved(node, position, tracked.axis) is None else None
    if node.name == "reduce_sum" and tracked.axis in node.params["axes"]:
        return "attention" if tracked.spread else "expectation"
    return "choice" if node.name in CHOICES else "log" if node.name == "log" else None


def _followed(tracked: _Tracked) -> Iterator[_Tracked]:
    """Yields where weights still are weights of the same rows one equation further, within and outside of bodies."""
    before = tracked.value.shape
    for other in tracked.value.also:  # a loop takes or gives one turn of an axis before all others
        axis = tracked.axis + len(other.shape) - len(before)
        if axis >= 0 and other.shape[axis] == before[tracked.axis]:
            yield tracked._replace(value=other, axis=axis)
    for node, position in tracked.value.users:
        ends = tracked.mixed and node.name in BENDING
        if node.outputs and not ends and not _used(node, position, tracked):
            shape, mixes = node.outputs[0].shape, node.name in (*MIXES, "conv_general_dilated")
            spread = tracked.spread or math.prod(shape) > math.prod(before)
            for axis in _moved(node, position, tracked.axis):
                if axis < len(shape):
                    yield from (_Tracked(one, axis, spread, tracked.mixed or mixes) for one in node.outputs)


def _moved(node: Node, position: int, axis: int) -> tuple[int, ...]:
    """Returns where an axis is in the results of an equation: once, in its blocks, or joined; else nowhere."""
    before, shape = node.inputs[position].shape, node.outputs[0].shape
    if node.name == "stack":
        return (axis + (axis >= node.params["axis"]),)
    if node.name == "tile":
        return (axis,) if node.params["reps"][axis] == 1 else ()
    if node.name in ("slice", "split", "dynamic_slice", "pad", "concatenate", "dynamic_update_slice"):
        return (axis,)
    if node.name == "conv_general_dilated":
        convolved = _convolved(node, position, axis)
        return () if convolved is None else (convolved,)
    if node.name in WINDOWS:
        return (axis,)
    if node.name in LAID - SAME or node.name in MIXES:
        moved = along([Step(node, position, 0)], shape, [axis])
        size, own = math.prod(shape[at] for at in moved), before[axis]
        return (
            moved if size == own or (own and size % own == 0) else ()
        )  # beside other rows, where a reshape joins axes
    entry_by_entry = all(one.shape == () or checks.broadcasts(one.shape, shape) for one in node.inputs)
    return (axis,) if entry_by_entry and (not node.frames or node.name in SAME) else ()


def _convolved(node: Node, position: int, axis: int) -> int | None:
    """Returns where an axis of an operand is in a convolution, or None if the convolution sums along it.

    Weights convolved over queries and keys, or mixed over heads as channels, are weights of the same keys. As the
    kernel of a convolution, weights sum the vectors in its windows.
    """
    numbers = node.params["dimension_numbers"]
    own = (numbers.lhs_spec, numbers.rhs_spec)[position]
    place = own.index(axis)  # batch, channels, windows; of a kernel: channels out, channels in, windows
    if position == 1:
        return numbers.out_spec[1] if place == 0 else None
    return None if place == 1 and node.params["feature_group_count"] == 1 else numbers.out_spec[place]


def _choices_behind(logits: Value) -> list[Node]:
    """Returns the choices whose largest numbers the logits are, if any."""
    while node := logits.producer:
        if node.name in CHOICES:
            return [node]
        if node.name == "gather":  # along indices that were chosen
            makers = [value.producer for value in reached([node.inputs[1]], _index_sources)]
            return [maker for maker in makers if maker and maker.name in CHOICES]
        rest = [one for one in node.inputs if constant(one) is None and one.shape == logits.shape]
        if node.name not in MOVED | {"slice"} and (node.name not in ("mul", "div", "add", "sub", "max") or not rest):
            break
        logits = rest[0] if rest else node.inputs[0]
    return []


def _index_sources(indices: Value) -> list[Value]:
    node = indices.producer
    known = MOVED | {"slice", "concatenate", "add", "lt", "select_n", "iota"}
    return node.inputs if node and node.name in known else []


# Sums of exponentials that divide, though no softmax was read there
#
# An independent look, coarser than the search for softmaxes: it marks every value that holds exponentials, their sum,
# or the logarithm of that, whatever its layout. Where such a sum divides anything, it is listed.

State = Literal["exponentials", "product", "sum", "reciprocal", "log", "minus log"]
TOTALS = frozenset({"reduce_sum", "cumsum", "reduce_window_sum", "psum", "psum2", "psum_invariant"})
PLACED = LAID | {"pad", "concatenate", "gather", "dynamic_slice", "dynamic_update_slice", "scatter", "select_n"}
PLACED |= {"all_gather", "ppermute", "rev", "stack", "unstack", "tile"}
LINEAR = LAID | {"neg", "sub", "add_any", "add", "reduce_sum"}
"""The primitives between the products of the derivative of a softmax."""
COMBINED = PLACED | TOTALS | {"add", "add_any", "max", "min", "abs", "sub"}


class _Mark(NamedTuple):
    """Says what a value holds."""

    state: State
    sums: frozenset[Node] = frozenset()
    """The equations that sum the exponentials."""


def _unread(program: Program, read: Mapping[Node, Softmax]) -> dict[Node, Use]:
    """Returns the sums of exponentials that divide something which is not in `read`, and why they are unread.

    Backward passes are left out: what they divide by was divided by before.
    """
    marks: dict[Value, _Mark] = {}
    reasons: dict[Node, Use] = {}
    totals = {softmax.total for softmax in read.values()}
    for node in program.nodes:
        operands = [marks.get(value) for value in node.inputs]
        if node in read or _only_masked(node, read) or not (node.exponentiates or any(operands)):
            continue
        if (divisor := _divisor(node, operands)) and not node.backward:
            reason: Use | None = "log" if _in_a_likelihood(node) else "blocks" if _in_parts(node, marks) else None
            for total in divisor.sums:
                use = reason or _reason(total, node, divisor, totals)
                # A derivative stays one; what else divides by a sum counts more than a likelihood.
                if reasons.get(total) != "derivative" and (use != "log" or total not in reasons):
                    reasons[total] = use
        if state := _state(node, operands):
            summed: frozenset[Node] = frozenset().union(*(mark.sums for mark in operands if mark))
            own = frozenset([node]) if state in ("sum", "product") else summed
            for value in reached(node.outputs, lambda value: value.also):
                marks.setdefault(value, _Mark(state, summed or own))
    return reasons


def _divisor(node: Node, operands: list[_Mark | None]) -> _Mark | None:
    """Returns the mark of the sum that an equation divides by."""
    first, last = operands[0], operands[-1]
    if node.name == "div" and last and not inverts(node):
        return last if last.state == "sum" or (last.state == "product" and _same_product(node, first, last)) else None
    if node.exponentiates and first:
        return first if first.state == "minus log" else None
    inverse = [mark for mark in operands if mark and mark.state == "reciprocal"]
    return inverse[0] if inverse and node.name not in PLACED else None


def _state(node: Node, operands: list[_Mark | None]) -> State | None:
    """Returns what the results of an equation hold."""
    name = node.name
    if node.exponentiates:
        return "exponentials"
    states = [mark and mark.state for mark in operands]
    if "reciprocal" in states:
        return "reciprocal" if name in PLACED else None
    if "sum" in states:
        scaled = name == "mul" or (name == "div" and states[0] == "sum")
        grown = any(state == "sum" and one.shape != node.outputs[0].shape for state, one in zip(states, node.inputs))
        if name == "log":
            return "log"
        if name in ("div", "integer_pow", "pow") and inverts(node):
            return "reciprocal"
        others = [one for state, one in zip(states, node.inputs) if state is None]
        spread = name == "dot_general" and all(map(was_boolean, others)) and len(others) == 1
        return "sum" if name in COMBINED or spread or (scaled and not grown) else None
    if "log" in states or "minus log" in states:
        if name in ("sub", "neg"):
            negated = states[-1] == "log" or (states[0] == "minus log" and name == "sub")
            return "minus log" if negated else "log"
        kept = name in COMBINED - TOTALS - {"abs"} or name in ("mul", "div")
        return ("minus log" if "minus log" in states else "log") if kept else None
    if "product" in states:
        if inverts(node) and all(_of_exponentials(total) for mark in operands if mark for total in mark.sums):
            return "reciprocal"
        return "product" if name in LAID or name == "mul" else None
    if name in TOTALS or (name == "scatter-add" and states[2]):
        return "sum"
    if name in ("dot_general", "conv_general_dilated"):
        other = node.inputs[states.index(None)] if None in states else None
        return "sum" if other and (constant(other) is not None or was_boolean(other)) else "product"
    raised = name in ("add", "max") and any(constant(one) is not None for one in node.inputs)
    kept = name in PLACED or name in ("mul", "abs") or raised or (name == "div" and states[0])
    return "exponentials" if kept else None


def _of_exponentials(product: Node) -> bool:
    """Says whether an equation sums products of exponentials with exponentials, which are exponentials too."""
    makers = [chain(one)[0].producer for one in product.inputs]
    return all(maker is not None and maker.exponentiates for maker in makers)


def _same_product(node: Node, first: _Mark | None, last: _Mark) -> bool:
    """Says whether an equation divides a product with exponentials by itself, or by one with the same exponentials.

    exp(w) @ (exp(k) v) over exp(w) @ exp(k) is the softmax of w_ij + k_j, logits that are never added.
    """
    if first is None or first.state != "product":
        return False
    operands = [[chain(one)[0] for total in mark.sums for one in total.inputs] for mark in (first, last)]
    return first == last or any(same_steps(one, other) for one in operands[0] for other in operands[1])


def _only_masked(node: Node, read: Mapping[Node, Softmax]) -> bool:
    """Says whether every use of results is a softmax that was read, whose mask comes after them."""
    users = [user for value in node.outputs for user, _ in value.users if not user.backward]
    return bool(users) and not returned(node) and all(user in read for user in users)


def _reason(total: Node, divided: Node, divisor: _Mark, totals: set[Node]) -> Use:
    """Returns why a sum, perhaps with others, divides something and is not read; `totals` are the sums that are."""
    if total.name == "scatter-add":
        return "segments"
    numerator = divided.inputs[0].producer
    while numerator and numerator.name in LAID | {"neg", "select_n"}:  # the derivative of |s| chooses ds or -ds
        numerator = numerator.inputs[-1 if numerator.name == "select_n" else 0].producer
    tangent = numerator is not None and numerator.name in ("reduce_sum", "add_any", "sub")
    if divided.derived and (total in totals or (tangent and divided.name == "div")):
        return "derivative"
    around = set(divided.frame.around())
    callers = [frame.caller.name for frame in total.frame.around() if frame.caller and frame not in around]
    on_devices = any(frame.caller and frame.caller.name == "shard_map" for frame in total.frame.around())
    several = len(divisor.sums) > 1 and divisor.state in ("sum", "reciprocal")
    return "blocks" if on_devices or several or {"scan", "while"}.intersection(callers) else "unread"


def _in_a_likelihood(divided: Node) -> bool:
    r"""Says whether the logarithm of a quotient is taken and no vectors are weighed by it.

    So it is in a contrastive loss, $-\log(e^p / (e^p + \sum_j e^{n_j}))$ of a positive p and negatives n. A product
    over an axis, or with a larger array, weighs vectors.
    """

    def weighs(node: Node, position: int, value: Value) -> bool:
        others = [one for place, one in enumerate(node.inputs) if place != position]
        if node.name in SCORES:
            return not all(constant(one) is not None or was_boolean(one) for one in others)
        return node.name == "mul" and math.prod(node.outputs[0].shape) > math.prod(value.shape)

    def onward(value: Value) -> Iterator[Value]:
        yield from value.also
        for node, _ in value.users:
            yield from () if node.backward or node.name == "log" else node.outputs

    values = list(reached(divided.outputs, onward))
    users = [(node, position, value) for value in values for node, position in value.users if not node.backward]
    return any(node.name == "log" for node, *_ in users) and not any(weighs(*user) for user in users)


def _in_parts(divided: Node, marks: dict[Value, _Mark]) -> bool:
    r"""Says whether an equation divides a sum of products with exponentials by a sum of their sums.

    So it ends a row whose parts are merged as they come, $(\sum_P e^{m_P - m} \sum_{j \in P} e^{z_j - m_P} v_j) /
    \sum_P e^{m_P - m} s_P$. A sink is one more exponential of the divisor, for which nothing is added above.
    """
    if divided.name != "div":
        return False

    def makers(value: Value) -> list[Node]:
        values = reached([value], lambda one: one.producer.inputs if one.producer and passes(one.producer) else ())
        return [one.producer for one in values if one.producer]

    def passes(node: Node) -> bool:
        return node.name in COMBINED or node.name == "mul"

    above, below = makers(divided.inputs[0]), makers(divided.inputs[-1])
    added = {"add", "add_any", "reduce_sum"}
    weighed = any(node.name in SCORES and any(one in marks for one in node.inputs) for node in above)
    merged = [node for node in below if node.name in added and all(one in marks for one in node.inputs)]
    return weighed and any(node.name in added for node in above) and len(merged) > 1


# Softmaxes whose derivative the function takes itself
#
# A swap replaces the equation with the weights, y = e / s. A derivative that was taken within the function is computed
# from e and s by JAX's rules, and would stay that of softmax. It shows in one of four ways:
#
#   in reverse     equations of the backward pass use e or s: ∂y/∂z, times a cotangent
#   forward        a tangent is divided by s, which `_unread` has seen: dy = (de - y ds) / s
#   a custom rule  only y is used, as y (dz - Σ y dz)
#   a checkpoint   the backward pass computes e again, so the softmax is there twice, at the same line
#
# A derivative through the values alone multiplies by y once, and is right after a swap.


def _derived(read: Sequence[Softmax], forward: set[Node]) -> set[Softmax]:
    """Returns the softmaxes whose derivative is taken in the program; `forward` are the sums that divide a tangent."""
    again = {softmax for softmax in read if softmax.total.backward}
    lines = {softmax.node.line for softmax in again}
    return again | {
        softmax
        for softmax in read
        if softmax.total in forward or softmax.node.line in lines or _in_reverse(softmax) or _by_rule(softmax)
    }


def _copies(values: Iterable[Value]) -> set[Value]:
    """Returns values and what they are elsewhere: in and out of bodies, laid out, or in another type."""

    def onward(value: Value) -> list[Value]:
        return [*value.also, *(one for node, _ in value.users if node.name in LAID for one in node.outputs)]

    return set(reached(values, onward))


def _in_reverse(softmax: Softmax) -> bool:
    """Says whether a backward pass uses the exponentials or their sum."""
    copies = _copies([softmax.exponentials, *softmax.total.outputs])
    users = [user for value in copies for user, _ in value.users if user.backward]
    return not softmax.node.backward and any(user.name not in LAID for user in users)


def _by_rule(softmax: Softmax) -> bool:
    """Says whether weights y enter y (t - Σ y t) while a derivative is taken."""
    weights = _copies(softmax.node.outputs)

    def onward(value: Value) -> list[Value]:
        return [one for node, _ in value.users if node.name in LINEAR for one in node.outputs] + value.also

    products = {user for value in weights for user, _ in value.users if user.name == "mul" and user.derived}
    for product in products:
        for value in reached(product.outputs, onward):
            summed = value.producer is not None and value.producer.name == "reduce_sum"
            if summed and any(user in products for one in reached([value], onward) for user, _ in one.users):
                return True
    return False
