"""Walking a graph of values: back to what something was computed from, and on to what is made of it."""

from collections.abc import Callable, Collection, Iterator

from softmax_jax.transforms.graph import Node, Value

SAME = frozenset(
    {"convert_element_type", "stop_gradient", "copy", "copy_p", "optimization_barrier", "reduce_precision"}
    | {"name", "pvary", "pcast", "reshard", "sharding_constraint", "identity"}
)
"""Primitives whose result is their first operand, but for its type."""
MOVED = SAME | {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose"}
"""Primitives whose result holds the numbers of their first operand, elsewhere."""
LAID = MOVED | {"slice", "split", "rev"}
"""Primitives whose results hold numbers of their first operand, elsewhere."""
SMALL = 1e-3
"""A constant at most this is added to a divisor only to keep it from 0."""


def constant(value: Value) -> float | None:
    """The number that all entries of a value are, if the program says so."""
    while value.number is None and value.producer and value.producer.name in MOVED:
        value = value.producer.inputs[0]
    return value.number


def back(value: Value, through: Collection[str] = SAME, step: Callable[[Node], Value | None] | None = None) -> Value:
    """The first value on the way back that no primitive of `through` made, and of which `step` names no operand."""
    while node := value.producer:
        operand = node.inputs[0] if node.name in through else step(node) if step else None
        if operand is None:
            break
        value = operand
    return value


def ahead(value: Value, through: Collection[str], step: Callable[[Node, int], bool]) -> Iterator[tuple[Node, int]]:
    """What takes a value and at which position, straight or through primitives that `through` or `step` let pass."""
    seen: set[Value] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        for node, position in one.users:
            yield node, position
            if (node.name in through and position == 0) or step(node, position):
                waiting += node.outputs


def unmasked(node: Node) -> Value | None:
    """What `select` takes where the mask lets it through, if the rest is 0; the same for a product with a mask."""
    if node.name == "select_n":
        _, *cases = node.inputs
        left = [case for case in cases if constant(case) != 0]
        return left[0] if len(cases) == 2 and len(left) == 1 else None
    if node.name == "mul":
        factors = [factor for factor in node.inputs if not was_boolean(factor)]
        return factors[0] if len(factors) == 1 else None
    return None


def mask_of(node: Node) -> tuple[Value, bool]:
    """The mask of an equation that `unmasked` reads, and whether it is True, or not 0, where it lets through."""
    if node.name == "select_n":
        predicate, *cases = node.inputs
        return predicate, cases[1] is unmasked(node)
    return next(factor for factor in node.inputs if factor is not unmasked(node)), True


def was_boolean(value: Value) -> bool:
    """Whether a value is a mask, laid out or turned into numbers."""
    return back(value, MOVED).dtype == bool


def inverts(node: Node) -> bool:
    """Whether an equation divides a number by its operand."""
    if node.name == "div":
        return constant(node.inputs[0]) is not None
    power = node.params["y"] if node.name == "integer_pow" else constant(node.inputs[-1])
    return node.name in ("integer_pow", "pow") and power == -1


def keeps_divisor(node: Node, position: int) -> bool:
    """Whether an equation only keeps a sum from 0: it adds a small number, or takes the larger of the two."""
    if node.name in ("add", "max"):
        number = constant(node.inputs[1 - position])
        return number is not None and number <= SMALL and (number >= 0 or node.name == "max")
    if node.name == "select_n" and position > 0:
        return all(constant(case) is not None for case in node.inputs[1:] if case is not node.inputs[position])
    return node.name == "abs"


def from_maximum(value: Value) -> bool:
    """Whether a value is the maximum of rows, or of these and something else, laid out to be subtracted from them."""
    node = back(value, MOVED).producer
    if node is None or node.name not in ("reduce_max", "max", "select_n"):
        return False
    return node.name == "reduce_max" or any(map(from_maximum, node.inputs[-2:]))


def alike(one: Value | None, other: Value | None, depth: int = 8) -> bool:
    """Whether two values are the same, or the same few steps from the same: a program may compute one twice."""
    if one is other or one is None or other is None:
        return one is other
    first, second = one.producer, other.producer
    if first is None or second is None:
        return one.number is not None and one.number == other.number
    return (
        depth > 0
        and first.name == second.name
        and first.name in MOVED | {"exp", "exp2", "sub", "mul", "div", "max", "reduce_max", "neg"}
        and first.params == second.params
        and all(alike(a, b, depth - 1) for a, b in zip(first.inputs, second.inputs))
    )
