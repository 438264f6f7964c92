"""Which logits a model hides, read from its program: by the predicate that chose them, or by their value.

Models hide a logit with a large negative number. Under another scale that number would no longer be one that hides:
half the lowest float may show through, twice the lowest is -inf. So the mask is recovered before anything multiplies.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers.masking import HIDDEN
from softmax_jax.transforms import interpreter
from softmax_jax.transforms.finding import Softmax, at_hand
from softmax_jax.transforms.graph import Node, Value
from softmax_jax.transforms.layout import Step
from softmax_jax.transforms.paths import LAID, MOVED, SAME, back, constant

LOW = -100.0
"""A constant at most this, chosen by a predicate, hides a logit."""
SCORES = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})

Kind = Literal["none", "select", "values", "select and values"]


class Predicate(NamedTuple):
    """What selects visible logits."""

    predicate: Value
    visible_if: bool
    """Whether it is True or False where they are visible."""
    steps: tuple[Step, ...] = ()
    """What the model makes of the selected numbers until they are the logits."""


class Hidden(NamedTuple):
    """How a model hides logits."""

    predicates: tuple[Predicate, ...] = ()
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
    frame = softmax.weigher.frame
    predicates: list[Predicate] = []
    by_value = False
    waiting: list[tuple[Value, float | None, tuple[Step, ...]]] = [(softmax.logits, 1.0, ())]
    while waiting:
        value, scale, steps = waiting.pop()
        node = value.producer
        if node is None:
            by_value = True
        elif node.name in SCORES:
            continue
        elif found := _selection(node, scale):
            predicate, visible_if, rest = found
            usable = at_hand(predicate, frame)
            predicates += [Predicate(predicate, visible_if, (Step(node, 0, 0), *steps))] if usable else []
            by_value |= not usable
            waiting += [(one, scale, steps) for one in rest]
        else:
            operands = _made_of(node)
            # Anything may hide the logits that it is added to.
            by_value |= operands is None or (node.name in ("add", "sub") and len(operands) > 1) or _adds_hidden(node)
            result = node.outputs.index(value)
            for one in operands or []:
                waiting.append((node.inputs[one], _scaled(node, one, scale), (Step(node, one, result), *steps)))
    known = [one.predicate for one in predicates]
    later = [Predicate(*mask) for mask in softmax.masks if mask[0] not in known]
    return Hidden((*predicates, *later), by_value, bool(later))


def _scaled(node: Node, position: int, scale: float | None) -> float | None:
    """The scale of an operand that an equation makes logits of; None if it is not known."""
    if scale is None or node.name not in ("mul", "div", "neg", "sub"):
        return scale
    if node.name in ("neg", "sub"):
        return scale if node.name == "sub" and position == 0 else -scale
    number = constant(node.inputs[1 - position])
    return (scale * number if node.name == "mul" else scale / number) if number else None


def _selection(node: Node, scale: float | None) -> tuple[Value, bool, list[Value]] | None:
    """The predicate of an equation that hides logits, its value where they are visible, and what is chosen there.

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
    return predicate, bool(visible), [cases[visible]] if numbers[visible] is None else []


def _made_of(node: Node) -> list[int] | None:
    """The operands that an equation makes logits of, if by itself it hides none."""
    if node.name in LAID or node.name in ("neg", "tanh", "integer_pow", "pad"):
        return [0]
    if node.name in ("mul", "div"):  # the other operand is a scale
        scores = [place for place, one in enumerate(node.inputs) if back(one, MOVED).shape == node.outputs[0].shape]
        return scores or [0]
    if node.name in ("add", "sub", "concatenate"):
        return [place for place, operand in enumerate(node.inputs) if constant(operand) is None]
    return None


def _adds_hidden(node: Node) -> bool:
    """Whether an equation puts low numbers beside the logits."""
    beside = [constant(one) for one in node.inputs] if node.name in ("concatenate", "pad") else []
    return any(number is not None and number <= LOW for number in beside)


def visible(
    logits: Float[Array, "*shape"], predicates: Sequence[tuple[Array, bool, Sequence[Step]]], by_value: bool
) -> Bool[Array, "*shape"] | None:
    """True at the visible logits; None if none is hidden. A predicate may be an array of numbers, 0 where it is False.

    >>> visible(jnp.array([0.5, -1e9, -jnp.inf]), [], by_value=True)
    Array([ True, False, False], dtype=bool)
    """
    masks = [_laid_out(mask.astype(bool) == visible_if, steps) for mask, visible_if, steps in predicates]
    if by_value:
        masks.append(logits > jnp.asarray(HIDDEN, logits.dtype))
    result = None
    for mask in masks:
        mask = jnp.broadcast_to(mask, logits.shape)
        result = mask if result is None else result & mask
    return result


def _laid_out(mask: Bool[Array, "..."], steps: Sequence[Step]) -> Bool[Array, "..."]:
    """The mask of what a model makes of selected numbers; what it puts beside them is visible."""
    for node, position, result in steps:
        shape = node.outputs[result].shape
        match node.name:
            case "concatenate":
                mask = jnp.concatenate(
                    [mask if place == position else jnp.ones(one.shape, bool) for place, one in enumerate(node.inputs)],
                    node.params["dimension"],
                )
            case "pad":
                mask = jax.lax.pad(mask, jnp.asarray(True), node.params["padding_config"])
            case name if name in LAID - SAME:
                mask = interpreter.execute(node.equation, [mask])[result]
            case _:
                mask = jnp.broadcast_to(mask, shape)
    return mask
