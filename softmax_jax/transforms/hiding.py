"""How a model hides logits: the masks behind the logits of a softmax.

A model hides a logit with a large negative number. Under another scale that number would no longer be one that hides:
half the lowest float may show through, twice the lowest is -inf. So the mask is recovered before anything multiplies:
from the predicate that chose the number, or else from the value.

Worked example, `jnp.where(seen, q @ k.T, -1e30) / 8`:

    z = dot_general q k; t = select_n seen -1e30 z      select_n(p, a, b) is b where p is True
    u = div t 8                                         the logits: u = t / 8, so the scale of t is 1/8

The walk starts at u with scale 1. At `div` it goes on to t with scale 1/8, and there the number -1e30 ends up as
-1.25e29, at most -100: `seen` is a mask, visible where True. It goes on to z, which `dot_general` made: scores.
"""

from typing import Literal, NamedTuple

from softmax_jax.transforms.exponents import LOW_LOGIT, Mask
from softmax_jax.transforms.find import Softmax, is_available
from softmax_jax.transforms.layouts import Step
from softmax_jax.transforms.program import LAYOUTS, SCORES, VIEWS, Node, Value, constant, unwrap

Hides = Literal["none", "select", "values", "select and values"]


class Hidden(NamedTuple):
    """How a model hides logits."""

    masks: tuple[Mask, ...] = ()
    by_value: bool = False
    """True if something other than the scores and these masks makes the logits, which may hide some."""
    later: bool = False
    """True if some are hidden in the exponentials only, so that the logits do not tell."""

    @property
    def one_number(self) -> bool:
        """True if all hidden logits are the same low number."""
        return len(self.masks) == 1 and not self.by_value and not self.later

    @property
    def kind(self) -> Hides:
        """How `Site.mask` names it."""
        if self.masks:
            return "select and values" if self.by_value else "select"
        return "values" if self.by_value else "none"


def find_hidden(softmax: Softmax) -> Hidden:
    """Returns how the logits of a softmax are hidden, by a walk back to the scores."""
    masks: list[Mask] = []
    by_value = False
    waiting: list[tuple[Value, float | None, tuple[Step, ...]]] = [(softmax.logits, 1.0, ())]
    while waiting:
        value, scale, steps = waiting.pop()
        node = value.producer
        if node is None:
            by_value = True
        elif selection := _read_selection(node, scale):
            mask, visible = selection
            usable = is_available(mask.predicate, softmax.node.frame)
            masks += [mask._replace(steps=(Step(node, 0, 0), *steps))] if usable else []
            by_value |= not usable
            waiting += [(operand, scale, steps) for operand in visible]
        elif node.name not in SCORES:
            positions = _logit_operands(node)
            # z + b: b may hold low numbers that no predicate in the program chose, so the values have to tell.
            by_value |= positions is None or (node.name in ("add", "sub") and len(positions) > 1) or _adds_hidden(node)
            result = node.outputs.index(value)
            for position in positions or []:
                step = Step(node, position, result)
                waiting.append((node.inputs[position], _operand_scale(node, position, scale), (step, *steps)))
    predicates = {mask.predicate for mask in masks}
    later = [mask for mask in softmax.masks if mask.predicate not in predicates]
    return Hidden((*masks, *later), by_value, bool(later))


def _operand_scale(node: Node, position: int, scale: float | None) -> float | None:
    """Returns the scale of an operand that an equation makes logits of; None if it is not known."""
    # scale · (c x) = (scale · c) x; scale · (a - b) gives a the scale, and b the negative one.
    if scale is None or node.name not in ("mul", "div", "neg", "sub"):
        return scale
    if node.name in ("neg", "sub"):
        return scale if node.name == "sub" and position == 0 else -scale
    number = constant(node.inputs[1 - position])
    return (scale * number if node.name == "mul" else scale / number) if number else None


def _read_selection(node: Node, scale: float | None) -> tuple[Mask, list[Value]] | None:
    """Returns the mask of an equation that hides logits, and what it chooses where they are visible.

    The logits are what it chooses times a scale. If the scale is not known, numbers that are added to logits may be too
    small to hide them.
    """
    if node.name != "select_n" or len(node.inputs) != 3:
        return None
    predicate, *cases = node.inputs
    numbers = [constant(case) for case in cases]
    # where(p, z, -1e9) / t hides under any t > 0, so an unknown scale counts as 1; where(p, 0, -200) · t may not.
    factor = 1.0 if scale is None and None in numbers else scale
    if factor is None:
        return None
    low = [index for index, number in enumerate(numbers) if number is not None and number * factor <= LOW_LOGIT]
    if len(low) != 1:
        return None
    visible = 1 - low[0]
    return Mask(predicate, bool(visible)), [cases[visible]] if numbers[visible] is None else []


def _logit_operands(node: Node) -> list[int] | None:
    """Returns the positions of the operands that an equation makes logits of; None if it may hide some by itself."""
    if node.name in VIEWS or node.name in ("neg", "tanh", "integer_pow", "pad"):
        return [0]
    if node.name in ("mul", "div"):  # the operand that was broadcast is a scale
        shape = node.outputs[0].shape
        whole = [index for index, operand in enumerate(node.inputs) if unwrap(operand, LAYOUTS).shape == shape]
        return whole or [0]
    if node.name in ("add", "sub", "concatenate"):
        return [index for index, operand in enumerate(node.inputs) if constant(operand) is None]
    return None


def _adds_hidden(node: Node) -> bool:
    """Says whether an equation puts low numbers beside the logits."""
    numbers = [constant(operand) for operand in node.inputs] if node.name in ("concatenate", "pad") else []
    return any(number is not None and number <= LOW_LOGIT for number in numbers)
