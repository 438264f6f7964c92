"""Which logits a model hides, read from its program: by the predicate that chose them, or by their value.

Models hide a logit with a large negative number. Under another scale that number would no longer be one that hides:
half the lowest float may show through, twice the lowest is -inf. So the mask is recovered before anything multiplies.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers.masking import HIDDEN
from softmax_jax.transforms.finding import Softmax, at_hand
from softmax_jax.transforms.graph import Node, Value
from softmax_jax.transforms.paths import MOVED, back, constant

LOW = -100.0
"""A constant at most this, chosen by a predicate, hides a logit."""
SCORES = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})

Kind = Literal["none", "select", "values", "select and values"]


class Hidden(NamedTuple):
    """How a model hides logits."""

    predicates: tuple[tuple[Value, bool], ...] = ()
    """What selects visible logits, and whether it is True or False there."""
    by_value: bool = False
    """Whether something other than the scores and these predicates makes the logits, which may hide some."""
    later: bool = False
    """Whether some are hidden in the exponentials alone, so that the logits do not tell."""

    @property
    def one_number(self) -> bool:
        """Whether all hidden logits are the same low number."""
        return len(self.predicates) == 1 and not self.by_value and not self.later

    @property
    def kind(self) -> Kind:
        """In words."""
        if self.predicates:
            return "select and values" if self.by_value else "select"
        return "values" if self.by_value else "none"


def hidden(softmax: Softmax) -> Hidden:
    """How the logits of a softmax are hidden."""
    logits, frame = softmax.logits, softmax.weigher.frame
    predicates: list[tuple[Value, bool]] = []
    by_value, waiting = False, [logits]
    while waiting:
        node = waiting.pop().producer
        if node is None:
            by_value = True
        elif node.name in SCORES:
            continue
        elif found := _selection(node, logits.shape):
            predicate, visible_if, rest = found
            usable = at_hand(predicate, frame) and predicate.shape in ((), logits.shape)
            predicates += [(predicate, visible_if)] if usable else []
            by_value |= not usable
            waiting += rest
        else:
            operands = _made_of(node)
            by_value |= operands is None
            waiting += operands or []
    later = [mask for mask in softmax.masks if mask not in predicates]
    return Hidden((*predicates, *later), by_value, bool(later))


def _selection(node: Node, shape: tuple[int, ...]) -> tuple[Value, bool, list[Value]] | None:
    """The predicate of an equation that hides logits, its value where they are visible, and what is chosen there."""
    if node.name != "select_n" or len(node.inputs) != 3:
        return None
    predicate, *cases = node.inputs
    numbers = [constant(case) for case in cases]
    low = [place for place, number in enumerate(numbers) if number is not None and number <= LOW]
    if len(low) != 1:
        return None
    visible = 1 - low[0]
    return predicate, bool(visible), [cases[visible]] if numbers[visible] is None else []


def _made_of(node: Node) -> list[Value] | None:
    """What an equation makes logits of, if by itself it hides none."""
    first = node.inputs[:1]
    if node.name in MOVED or node.name in ("neg", "tanh", "integer_pow", "slice"):
        return first
    if node.name in ("mul", "div"):  # the other operand is a scale
        scores = [operand for operand in node.inputs if back(operand, MOVED).shape == node.outputs[0].shape]
        return scores or first
    if node.name in ("add", "sub", "concatenate"):
        return [operand for operand in node.inputs if constant(operand) is None]
    return None


def visible(
    logits: Float[Array, "*shape"], predicates: Sequence[tuple[Array, bool]], by_value: bool
) -> Bool[Array, "*shape"] | None:
    """True at the visible logits; None if none is hidden. A predicate may be an array of numbers, 0 where it is False.

    >>> visible(jnp.array([0.5, -1e9, -jnp.inf]), [], by_value=True)
    Array([ True, False, False], dtype=bool)
    """
    masks = [mask.astype(bool) if visible_if else ~mask for mask, visible_if in predicates]
    if by_value:
        masks.append(logits > jnp.asarray(HIDDEN, logits.dtype))
    result = None
    for mask in masks:
        mask = jnp.broadcast_to(mask, logits.shape)
        result = mask if result is None else result & mask
    return result
