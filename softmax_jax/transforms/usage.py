"""What the weights of a softmax are used for, by a walk forward from the weights.

Each value on the walk is followed with the axis along which its weights sum to one, the keys. A use is told at the
first equation that ends this: a product that sums over that axis, a choice, a logarithm, the end of the function.

Worked example, talking heads, 2 batches, 3 heads, 5 queries, 6 keys, values of 4:

    w = softmax z             (2, 3, 5, 6), keys at axis 3
    m = dot_general c w       (3, 2, 5, 6), sums heads: still weights of the same keys, now mixed
    t = transpose m           (2, 3, 5, 6), keys at axis 3
    y = dot_general t v       contracts axis 3 with vectors of 4: "attention"
"""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

from softmax_jax.normalizers import checks
from softmax_jax.transforms.find import Softmax
from softmax_jax.transforms.layouts import Step, axes_along
from softmax_jax.transforms.program import IDENTITIES, LAYOUTS, VIEWS, Node, Program, Value, constant, walk
from softmax_jax.transforms.scatters import read_scatter

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
* segments: as attention, over segments of an array, such as the edges of each node. Other forms cannot be read.
* kernel, blocks, derivative, unread: they cannot be read. A compiled kernel; rows that come in blocks, or in parts that
  are merged by their log-sum-exps; the derivative of a sum of exponentials; anything else that such a sum divides.
"""
RANKED: tuple[Use, ...] = ("attention", "choice", "log", "expectation", "output", "other")
"""The uses of weights, the one that counts most first."""
CHOICES = {"argmax": 0, "argmin": 0, "top_k": 1, "approx_top_k": 1, "sort": 1, "cumsum": 1}
"""The primitives that choose, and the first of their results that has indices."""
MIXES = ("dot_general", "reduce_sum")
"""The primitives that sum weights of several rows."""
WINDOWS = frozenset({"reduce_window_sum", "reduce_window_max", "reduce_window_min", "rev"})
"""The primitives whose results have the axes of their operand."""
PARTIAL = frozenset({"slice", "split", "dynamic_slice", "pad", "concatenate", "dynamic_update_slice"})
"""The primitives that keep the axes, and take or give a part of one."""
BENDING = frozenset({"exp", "exp2", "tanh", "logistic", "erf", "max", "rsqrt", "sin", "cos"})
"""The primitives that bend sums of several rows: what follows is a layer, such as the next round, and no weights."""


class _Tracked(NamedTuple):
    """A value that holds weights, and the axis along which they sum to one."""

    value: Value
    axis: int
    spread: bool = False
    """True if an axis was added, along which each weight stands many times."""
    mixed: bool = False
    """True if weights of several rows were summed."""


def find_use(softmax: Softmax, program: Program) -> Use:
    """Returns the use of the weights of a softmax that counts most: attention, then a choice, then the others.

    Attention over segments is a use of its own.
    """
    use = _most_important_use(softmax, program)
    return "segments" if softmax.segments and use == "attention" else use


def _most_important_use(softmax: Softmax, program: Program) -> Use:
    if softmax.form == "log":
        return "log"
    if softmax.form == "divided":
        return _product_use(softmax)
    weights = softmax.node.outputs[0]
    axes = axes_along(softmax.steps, weights.shape, softmax.axes)
    uses: dict[Use, list[Node]] = {}
    for tracked in walk([_Tracked(weights, axis) for axis in axes], _follow):
        if tracked.value in program.root.outputs and not tracked.mixed:
            uses.setdefault("output", [])
        for node, position in tracked.value.users:
            if use := _read_use(node, position, tracked):
                uses.setdefault(use, []).append(node)
    choices = [*uses.get("choice", ()), *_choices_behind(softmax.logits)]
    if "attention" in uses and choices and _meet_choices(uses["attention"], choices):
        return "choice"
    return next(use for use in RANKED if use in uses or use == "other")


def _meet_choices(products: list[Node], choices: list[Node]) -> bool:
    """Says whether every product takes what was chosen.

    A router multiplies weights by a one-hot of the chosen indices, or gathers the chosen experts: the indices meet the
    weights again. An alignment that is returned beside attention does not.
    """
    chosen = [index for node in choices for index in node.outputs[CHOICES[node.name] :]]

    def follow(value: Value) -> list[Value]:
        return [*value.aliases, *(result for node, _ in value.users for result in node.outputs)]

    descendants = set(walk(chosen, follow))
    return all(descendants.intersection(node.inputs) for node in products)


def _product_use(softmax: Softmax) -> Use:
    """Returns the use of weights that are divided after a product: what the step does that sums along their axis."""
    steps, spread = softmax.steps, False
    for index, (node, position, _) in enumerate(steps):
        operand = node.inputs[position]
        for axis in axes_along(steps[:index], operand.shape, softmax.axes):
            if use := _read_use(node, position, _Tracked(operand, axis, spread)):
                return use
        spread = spread or math.prod(node.outputs[0].shape) > math.prod(operand.shape)
    return "attention"


def _read_use(node: Node, position: int, tracked: _Tracked) -> Use | None:
    """Returns what an equation does with weights: attention is a product over their axis, or the sum of one."""
    if node.name == "dot_general":
        contracted, batch = node.params["dimension_numbers"]
        if tracked.axis not in contracted[position]:
            return None
        # bhqk,bhkd contracts k under batch axes b, h, and d is left: vectors. bv,bv->b leaves nothing: numbers.
        consumed = len(contracted[1 - position]) + len(batch[1 - position])
        return "attention" if len(node.inputs[1 - position].shape) > consumed else "expectation"
    if read_scatter(node) and position == 2 and tracked.axis == 0:
        return "attention" if tracked.spread else "expectation"
    if node.name == "conv_general_dilated":
        return "attention" if _convolved_axis(node, position, tracked.axis) is None else None
    if node.name == "reduce_sum" and tracked.axis in node.params["axes"]:
        # (w[:, :, None] * v).sum(1) sums vectors: w was spread over them. (w * v).sum(1) sums numbers.
        return "attention" if tracked.spread else "expectation"
    return "choice" if node.name in CHOICES else "log" if node.name == "log" else None


def _follow(tracked: _Tracked) -> Iterator[_Tracked]:
    """Yields the values one equation later that still hold these weights."""
    shape = tracked.value.shape
    for alias in tracked.value.aliases:
        # A scan takes (turns, 4, 5) and its body sees (4, 5): one turn of an axis in front, so axis 2 becomes 1.
        axis = tracked.axis + len(alias.shape) - len(shape)
        if axis >= 0 and alias.shape[axis] == shape[tracked.axis]:
            yield tracked._replace(value=alias, axis=axis)
    for node, position in tracked.value.users:
        ends = tracked.mixed and node.name in BENDING
        if node.outputs and not ends and not _read_use(node, position, tracked):
            result, mixes = node.outputs[0].shape, node.name in (*MIXES, "conv_general_dilated")
            spread = tracked.spread or math.prod(result) > math.prod(shape)
            for axis in _result_axes(node, position, tracked.axis):
                if axis < len(result):
                    yield from (_Tracked(value, axis, spread, tracked.mixed or mixes) for value in node.outputs)


def _result_axes(node: Node, position: int, axis: int) -> tuple[int, ...]:
    """Returns where an axis is in the results of an equation: once, in its blocks, or joined; else nowhere."""
    before, shape = node.inputs[position].shape, node.outputs[0].shape
    if node.name == "stack":
        return (axis + (axis >= node.params["axis"]),)
    if node.name == "tile":
        return (axis,) if node.params["reps"][axis] == 1 else ()
    if node.name in PARTIAL or node.name in WINDOWS:
        return (axis,)
    if node.name == "conv_general_dilated":
        convolved = _convolved_axis(node, position, axis)
        return () if convolved is None else (convolved,)
    if node.name in VIEWS - IDENTITIES or node.name in MIXES:
        axes = axes_along([Step(node, position, 0)], shape, [axis])
        # A reshape of (6, 8), keys at axis 1, to (6, 2, 4) holds them in axes 1 and 2, of size 8. One to (48,) joins
        # them to other rows, in a multiple of 8. Keys that are summed away are in no axis, and the size is 1.
        size, keys = math.prod(shape[at] for at in axes), before[axis]
        return axes if size == keys or (keys and size % keys == 0) else ()
    entry_by_entry = all(operand.shape == () or checks.broadcasts(operand.shape, shape) for operand in node.inputs)
    return (axis,) if entry_by_entry and (not node.frames or node.name in IDENTITIES) else ()


def _convolved_axis(node: Node, position: int, axis: int) -> int | None:
    """Returns where an axis of an operand is in a convolution, or None if the convolution sums along it.

    Weights convolved over queries and keys, or mixed over heads as channels, are weights of the same keys. As the
    kernel of a convolution, weights sum the vectors in its windows.
    """
    numbers = node.params["dimension_numbers"]
    # The specs list axes by role. An operand: batch, channels, windows. A kernel: channels out, channels in, windows.
    spec = (numbers.lhs_spec, numbers.rhs_spec)[position]
    role = spec.index(axis)
    if position == 1:
        return numbers.out_spec[1] if role == 0 else None
    # Channels are summed into new ones, unless each is convolved on its own (as many groups as channels).
    return None if role == 1 and node.params["feature_group_count"] == 1 else numbers.out_spec[role]


def _choices_behind(logits: Value) -> list[Node]:
    """Returns the choices whose largest numbers the logits are, if any."""
    while node := logits.producer:
        if node.name in CHOICES:
            return [node]
        if node.name == "gather":  # along indices that were chosen
            makers = [value.producer for value in walk([node.inputs[1]], _index_sources)]
            return [maker for maker in makers if maker and maker.name in CHOICES]
        rest = [operand for operand in node.inputs if constant(operand) is None and operand.shape == logits.shape]
        if node.name not in LAYOUTS | {"slice"} and (node.name not in ("mul", "div", "add", "sub", "max") or not rest):
            break
        logits = rest[0] if rest else node.inputs[0]
    return []


def _index_sources(indices: Value) -> list[Value]:
    """Returns the values that an equation only turns into indices, as JAX does for a gather: wrapped and stacked."""
    node = indices.producer
    known = LAYOUTS | {"slice", "concatenate", "add", "lt", "select_n", "iota"}
    return node.inputs if node and node.name in known else []
