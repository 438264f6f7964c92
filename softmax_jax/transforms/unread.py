"""Finds sums of exponentials that divide something, though no softmax was read there.

This is an independent look, coarser than the search for softmaxes: it marks every value that holds exponentials, their
sum, or the logarithm of that, whatever its layout. Where such a sum divides anything, it is listed. So whatever `swap`
leaves in a function is known: a form that `find` cannot read is reported, and not passed over.

Worked example, AFT: `(exp(z) @ (exp(v) * v)) / (exp(z) @ exp(v))`. Its logits z_ij + v_jc are never added.

    a = exp z; b = exp v                exponentials
    c = mul b v                         exponentials, times a number
    n = dot_general a c                 product: a sum of exponentials times something
    s = dot_general a b                 product
    y = div n s                         n and s are products with the same exponentials a: listed, "unread"
"""

import math
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from softmax_jax.transforms.exponents import is_mask, same_computation, unwrap_views
from softmax_jax.transforms.find import Softmax, is_reciprocal, is_returned
from softmax_jax.transforms.program import SCORES, VIEWS, Node, Program, Value, constant, walk
from softmax_jax.transforms.usage import Use

UNREADABLE = {
    "kernel": "a kernel, whose inside cannot be read",
    "blocks": "of rows that never lie whole, so swap before they are cut",
    "segments": "in a form that is not known, as under jax.vmap, before which it may be swapped",
    "derivative": "which the function takes itself",
    "unread": "of a form that is not known",
}
"""The uses that cannot be read, and why."""
KERNELS = ("pallas", "triton", "custom_call", "ffi_call", "cudnn", "splash", "flash", "dot_product_attention")
"""Parts of the names of primitives that stand for a compiled kernel, whose inside cannot be read."""
State = Literal["exponentials", "product", "sum", "reciprocal", "log", "minus log"]
"""What a value holds: exponentials; a sum of their products with something; their sum s, 1 / s, log s or -log s."""
TOTALS = frozenset({"reduce_sum", "cumsum", "reduce_window_sum", "psum", "psum2", "psum_invariant"})
PLACED = VIEWS | {"pad", "concatenate", "gather", "dynamic_slice", "dynamic_update_slice", "scatter", "select_n"}
PLACED |= {"all_gather", "ppermute", "rev", "stack", "unstack", "tile"}
"""The primitives that place numbers beside others."""
ADDED = frozenset({"add", "add_any", "reduce_sum"})
COMBINED = PLACED | TOTALS | {"add", "add_any", "max", "min", "abs", "sub"}
"""The primitives whose result of sums of exponentials is such a sum."""


class _Mark(NamedTuple):
    """Says what a value holds."""

    state: State
    sums: frozenset[Node] = frozenset()
    """The equations that sum the exponentials."""


def find_kernels(program: Program) -> list[Node]:
    """Returns the equations that are kernels by name, or hold a program that takes exponentials and is not read."""
    return [node for node in program.nodes if _is_kernel(node)]


def _is_kernel(node: Node) -> bool:
    named = any(part in node.name for part in KERNELS)
    return (named and node.holder is None) or node.hides_exponentials


def find_unread(program: Program, softmaxes: Mapping[Node, Softmax]) -> dict[Node, Use]:
    """Returns the sums of exponentials that divide something which is not in `softmaxes`, and why they are unread.

    Backward passes are left out: what they divide by was divided by before.
    """
    marks: dict[Value, _Mark] = {}
    reasons: dict[Node, Use] = {}
    totals = {softmax.total for softmax in softmaxes.values()}
    for node in program.nodes:
        operands = [marks.get(value) for value in node.inputs]
        if node in softmaxes or _is_masked_after(node, softmaxes) or not (node.exponentiates or any(operands)):
            continue
        if (divisor := _read_divisor(node, operands)) and not node.backward:
            reason: Use | None = "log" if _in_likelihood(node) else "blocks" if _merges_parts(node, marks) else None
            for total in divisor.sums:
                use = reason or _read_reason(total, node, divisor, totals)
                # A derivative stays one; what else divides by a sum counts more than a likelihood.
                if reasons.get(total) != "derivative" and (use != "log" or total not in reasons):
                    reasons[total] = use
        if state := _read_state(node, operands):
            summed: frozenset[Node] = frozenset().union(*(mark.sums for mark in operands if mark))
            sums = summed or (frozenset([node]) if state in ("sum", "product") else summed)
            for value in walk(node.outputs, lambda value: value.aliases):
                marks.setdefault(value, _Mark(state, sums))
    return reasons


def _read_divisor(node: Node, operands: list[_Mark | None]) -> _Mark | None:
    """Returns the mark of the sum that an equation divides by: a / s, a · (1 / s), or exp(z - log s)."""
    first, last = operands[0], operands[-1]
    if node.name == "div" and last and not is_reciprocal(node):
        return last if last.state == "sum" or (last.state == "product" and _same_product(node, first, last)) else None
    if node.exponentiates and first:
        return first if first.state == "minus log" else None
    inverse = [mark for mark in operands if mark and mark.state == "reciprocal"]
    return inverse[0] if inverse and node.name not in PLACED else None


def _read_state(node: Node, operands: list[_Mark | None]) -> State | None:
    """Returns what the results of an equation hold.

    The operand that is furthest on its way from exponentials to a division decides.
    """
    if node.exponentiates:
        return "exponentials"
    states: list[State | None] = [mark.state if mark else None for mark in operands]
    if "reciprocal" in states:
        return "reciprocal" if node.name in PLACED else None
    if "sum" in states:
        return _state_of_sum(node, states)
    if "log" in states or "minus log" in states:
        return _state_of_log(node, states)
    if "product" in states:
        # Where both factors are exponentials, Σ e^a e^b is a sum of exponentials, and 1 / (Σ e^a e^b) its reciprocal.
        if is_reciprocal(node) and all(_sums_exponentials(total) for mark in operands if mark for total in mark.sums):
            return "reciprocal"
        return "product" if node.name in VIEWS or node.name == "mul" else None
    return _state_of_exponentials(node, states)


def _state_of_sum(node: Node, states: list[State | None]) -> State | None:
    """Returns what an equation makes of s."""
    name, shape = node.name, node.outputs[0].shape
    if name == "log":
        return "log"
    if name in ("div", "integer_pow", "pow") and is_reciprocal(node):
        return "reciprocal"
    # c s and s / c are sums of other exponentials still. Not so s v, of the shape of v: there s is one number of many.
    scaled = name == "mul" or (name == "div" and states[0] == "sum")
    grown = any(state == "sum" and value.shape != shape for state, value in zip(states, node.inputs))
    # A product with a one-hot matrix takes the sum of each segment to its entries.
    others = [value for state, value in zip(states, node.inputs) if state is None]
    gathered = name == "dot_general" and all(map(is_mask, others)) and len(others) == 1
    return "sum" if name in COMBINED or gathered or (scaled and not grown) else None


def _state_of_log(node: Node, states: list[State | None]) -> State | None:
    """Returns what an equation makes of log s: z - log s is minus a logarithm, and log s - z is one."""
    if node.name in ("sub", "neg"):
        negated = states[-1] == "log" or (states[0] == "minus log" and node.name == "sub")
        return "minus log" if negated else "log"
    kept = node.name in COMBINED - TOTALS - {"abs"} or node.name in ("mul", "div")
    return ("minus log" if "minus log" in states else "log") if kept else None


def _state_of_exponentials(node: Node, states: list[State | None]) -> State | None:
    """Returns what an equation makes of exponentials."""
    name = node.name
    if name in TOTALS or (name == "scatter-add" and states[2]):
        return "sum"
    if name in ("dot_general", "conv_general_dilated"):
        # e @ ones is Σ e, and e @ one_hot the sums of segments.
        other = node.inputs[states.index(None)] if None in states else None
        return "sum" if other and (constant(other) is not None or is_mask(other)) else "product"
    raised = name in ("add", "max") and any(constant(value) is not None for value in node.inputs)
    kept = name in PLACED or name in ("mul", "abs") or raised or (name == "div" and states[0])
    return "exponentials" if kept else None


def _sums_exponentials(product: Node) -> bool:
    """Says whether an equation sums products of exponentials with exponentials, which are exponentials too."""
    makers = [unwrap_views(value)[0].producer for value in product.inputs]
    return all(maker is not None and maker.exponentiates for maker in makers)


def _same_product(node: Node, first: _Mark | None, last: _Mark) -> bool:
    """Says whether an equation divides a product with exponentials by itself, or by one with the same exponentials."""
    if first is None or first.state != "product":
        return False
    above, below = ([unwrap_views(value)[0] for total in m.sums for value in total.inputs] for m in (first, last))
    return first == last or any(same_computation(x, y) for x in above for y in below)


def _is_masked_after(node: Node, softmaxes: Mapping[Node, Softmax]) -> bool:
    """Says whether every use of results is a softmax that was read, whose mask comes after them."""
    users = [user for value in node.outputs for user, _ in value.users if not user.backward]
    return bool(users) and not is_returned(node) and all(user in softmaxes for user in users)


def _read_reason(total: Node, divided: Node, divisor: _Mark, totals: set[Node]) -> Use:
    """Returns why a sum, perhaps with others, divides something and is not read; `totals` are the sums that are."""
    # Forward, d log s = ds / s with ds = reduce_sum (mul dz e): a sum or difference is divided. d (e / s) is
    # de / s - e ds / s², where s is the sum of a softmax that was read.
    numerator = divided.inputs[0].producer
    while numerator and numerator.name in VIEWS | {"neg", "select_n"}:  # the derivative of |s| chooses ds or -ds
        numerator = numerator.inputs[-1 if numerator.name == "select_n" else 0].producer
    tangent = numerator is not None and numerator.name in ("reduce_sum", "add_any", "sub")
    if divided.derived and (total in totals or (tangent and divided.name == "div")):
        return "derivative"
    if total.name == "scatter-add":
        return "segments"
    # A sum in a body that the division is outside of: of one turn, or on one device.
    around = set(divided.frame.enclosing())
    callers = [frame.caller.name for frame in total.frame.enclosing() if frame.caller and frame not in around]
    on_devices = any(frame.caller and frame.caller.name == "shard_map" for frame in total.frame.enclosing())
    several = len(divisor.sums) > 1 and divisor.state in ("sum", "reciprocal")
    return "blocks" if on_devices or several or {"scan", "while"}.intersection(callers) else "unread"


def _in_likelihood(divided: Node) -> bool:
    r"""Says whether the logarithm of a quotient is taken and no vectors are weighed by it.

    So it is in a contrastive loss, $-\log(e^p / (e^p + \sum_j e^{n_j}))$ of a positive p and negatives n. A product
    over an axis, or with a larger array, weighs vectors.
    """

    def weighs(node: Node, position: int, value: Value) -> bool:
        others = [operand for index, operand in enumerate(node.inputs) if index != position]
        if node.name in SCORES:
            return not all(constant(operand) is not None or is_mask(operand) for operand in others)
        return node.name == "mul" and math.prod(node.outputs[0].shape) > math.prod(value.shape)

    def follow(value: Value) -> Iterator[Value]:
        yield from value.aliases
        for node, _ in value.users:
            yield from () if node.backward or node.name == "log" else node.outputs

    values = list(walk(divided.outputs, follow))
    users = [(node, position, value) for value in values for node, position in value.users if not node.backward]
    return any(node.name == "log" for node, *_ in users) and not any(weighs(*user) for user in users)


def _merges_parts(divided: Node, marks: dict[Value, _Mark]) -> bool:
    r"""Says whether an equation divides a sum of products with exponentials by a sum of their sums.

    So it ends a row whose parts are merged as they come, $(\sum_P e^{m_P - m} \sum_{j \in P} e^{z_j - m_P} v_j) /
    \sum_P e^{m_P - m} s_P$. A sink is one more exponential of the divisor, for which nothing is added above.
    """
    if divided.name != "div":
        return False

    def sources(value: Value) -> list[Value]:
        node = value.producer
        return node.inputs if node and (node.name in COMBINED or node.name == "mul") else []

    def makers(value: Value) -> list[Node]:
        return [source.producer for source in walk([value], sources) if source.producer]

    above, below = makers(divided.inputs[0]), makers(divided.inputs[-1])
    weighed = any(node.name in SCORES and any(value in marks for value in node.inputs) for node in above)
    merged = [node for node in below if node.name in ADDED and all(value in marks for value in node.inputs)]
    return weighed and any(node.name in ADDED for node in above) and len(merged) > 1
