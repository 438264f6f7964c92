"""Finds the softmaxes whose derivative a function takes itself.

A swap replaces the equation with the weights, y = e / s. A derivative that was taken within the function is computed
from e and s by JAX's rules, and would stay that of softmax. It shows in one of four ways:

    in reverse     equations of the backward pass use e or s: ∂y/∂z, times a cotangent
    forward        a tangent is divided by s, which `unread` has seen: dy = de / s - e ds / s²
    a custom rule  only y is used, as y (dz - Σ y dz)
    a checkpoint   the backward pass computes e again, so the softmax is there twice, at the same line

A derivative through the values alone multiplies by y once, and is right after a swap.
"""

from collections.abc import Iterable, Mapping, Sequence

from softmax_jax.transforms.find import Softmax
from softmax_jax.transforms.program import VIEWS, Node, Value, walk
from softmax_jax.transforms.usage import Use

LINEAR = VIEWS | {"neg", "sub", "add_any", "add", "reduce_sum"}
"""The primitives between the products of the derivative of a softmax."""


def find_derived(softmaxes: Sequence[Softmax], unread: Mapping[Node, Use]) -> set[Softmax]:
    """Returns the softmaxes whose derivative is taken in the program; `unread` holds the sums that divide a tangent."""
    recomputed = {softmax for softmax in softmaxes if softmax.total.backward}
    lines = {softmax.node.line for softmax in recomputed}
    return recomputed | {
        softmax
        for softmax in softmaxes
        if unread.get(softmax.total) == "derivative"
        or softmax.node.line in lines
        or _in_reverse(softmax)
        or _by_rule(softmax)
    }


def _find_copies(values: Iterable[Value]) -> set[Value]:
    """Returns values and what they are elsewhere: in and out of bodies, as views, or in another type."""

    def follow(value: Value) -> list[Value]:
        return [*value.aliases, *(view for node, _ in value.users if node.name in VIEWS for view in node.outputs)]

    return set(walk(values, follow))


def _in_reverse(softmax: Softmax) -> bool:
    """Says whether a backward pass uses the exponentials or their sum."""
    copies = _find_copies([softmax.exponentials, *softmax.total.outputs])
    users = [user for value in copies for user, _ in value.users if user.backward]
    return not softmax.node.backward and any(user.name not in VIEWS for user in users)


def _by_rule(softmax: Softmax) -> bool:
    """Says whether weights y enter y (t - Σ y t) while a derivative is taken."""
    # p = mul y t; r = reduce_sum p; d = sub t r; x = mul y d: a linear way leads from one product with y to a sum over
    # the row, and from there to another.
    weights = _find_copies(softmax.node.outputs)

    def follow(value: Value) -> list[Value]:
        return [*value.aliases, *(result for node, _ in value.users if node.name in LINEAR for result in node.outputs)]

    products = {user for value in weights for user, _ in value.users if user.name == "mul" and user.derived}
    for product in products:
        for value in walk(product.outputs, follow):
            summed = value.producer is not None and value.producer.name == "reduce_sum"
            if summed and any(user in products for result in walk([value], follow) for user, _ in result.users):
                return True
    return False
