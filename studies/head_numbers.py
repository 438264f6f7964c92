"""Softmax with numbers of each head, as data: one program weighs by any of them, and they can be learned."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from softmax_jax.experiment.language_models.decoder import Logits, Visible
from softmax_jax.normalizers.row import Row
from softmax_jax.normalizers.scales import EntropyPolynomial

Each = Float[Array, "*layers heads"]


class HeadNumbers(NamedTuple):
    r"""Numbers of the heads of a layer, or of all layers. The row of a query that sees n tokens is weighed so:

    $$w = \operatorname{softmax}(\beta z + \log\gamma \cdot [j = 0]), \qquad \beta = \max(b + s \log n, \text{low})$$

    or, where `adaptive` is 1, with the published adaptive temperature for β.
    """

    beta: Each
    """b: the inverse temperature."""
    s: Each
    low: Each
    adaptive: Each
    first: Each
    """log γ: added to the logit of the first token."""


SOFTMAX = {"beta": 1.0, "s": 0.0, "low": -1e30, "adaptive": 0.0, "first": 0.0}


def head_numbers(shape: tuple[int, ...], **numbers: float) -> HeadNumbers:
    """Returns the same numbers for all heads of a shape (layers, heads); those of softmax unless given."""
    return HeadNumbers(**{name: jnp.full(shape, number, jnp.float32) for name, number in (SOFTMAX | numbers).items()})


def scaled(logits: Logits, visible: Visible, numbers: HeadNumbers) -> Logits:
    """Returns the logits that softmax is taken of."""
    beta, s, low, adaptive, first = (number[:, None, None] for number in numbers)
    log_length = jnp.log(visible.sum(-1, dtype=jnp.float32))[None, :, None]
    scale = jnp.maximum(beta + s * log_length, low)

    def with_adaptive(scale: Float[Array, "heads queries 1"]) -> Float[Array, "heads queries 1"]:
        return jnp.where(adaptive > 0.5, EntropyPolynomial().of_row(Row.of(logits, -1, visible[None])), scale)

    scale = jax.lax.cond(jnp.any(adaptive > 0.5), with_adaptive, lambda scale: scale, scale)
    return logits * scale + jnp.where(jnp.arange(logits.shape[-1]) == 0, first, 0)


def by_numbers(logits: Logits, visible: Visible, numbers: HeadNumbers) -> Logits:
    """Weighs a block of rows with the numbers of each head of a layer."""
    return jax.nn.softmax(scaled(logits, visible, numbers), where=visible[None])


FAMILIES = {
    "theta": ({}, {"beta": 1.0}),
    "s log n": ({"beta": 0.0, "s": 1 / math.log(512)}, {"s": 1 / math.log(512)}),
    "1 + alpha log(n / 256)": ({}, {"beta": -0.5 * math.log(256), "s": 0.5}),
    "gamma of the first": ({}, {"first": 2.0}),
}
"""What can be learned for each head: the numbers that it starts from, and what they change by for each unit learned."""


def learned_numbers(family: str, units: Float[Array, "layers heads"]) -> HeadNumbers:
    """Returns the numbers of a family after so many units."""
    start, change = FAMILIES[family]
    moved = head_numbers(units.shape, **start)
    return moved._replace(**{name: getattr(moved, name) + units * by for name, by in change.items()})
