"""What every map is: an object, called as `jax.nn.softmax` is; and the many maps whose weights are a quotient."""

import abc
import dataclasses
import re
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.blocks import Attended, Block, BlockEntries, ScaledRows, Tree
from softmax_jax.normalizers.entry import Written
from softmax_jax.normalizers.masking import AnyAxis, AnyMask, Axis, Mask, axis_and_mask, hide, unless_low
from softmax_jax.normalizers.numbers import Numbers
from softmax_jax.normalizers.products import over
from softmax_jax.normalizers.rows import WholeRow
from softmax_jax.normalizers.surroundings import as_one, spec_of


class Map(Numbers, abc.ABC):
    """A row of logits in, its weights out.

    A subclass has its numbers as fields, each with a default, and defines `weights` of whole rows. What is masked
    gets 0 whatever that says. A row may also come in blocks where it defines `in_blocks`, as `Quotient` does.
    """

    shift_invariant: ClassVar[bool] = False
    """Whether adding a constant to a row leaves its weights as they are. A `Normalizer` then subtracts the row's
    maximum before it scales the logits, so that large logits neither overflow nor lose digits."""
    sums_to_one: ClassVar[bool] = True
    """Whether the weights of every row with a visible logit above -inf do."""
    exact_zeros: ClassVar[bool] = False
    """Whether a finite logit among others may get a weight of exactly 0, beyond what float32 rounds to it."""
    signed: ClassVar[bool] = False
    """Whether a weight may be negative."""
    ignores_low: ClassVar[bool] = False
    """Whether a logit far below the largest of its row gets exactly 0 and changes no other weight, as if hidden."""
    searches: ClassVar[bool] = False
    """Whether blocks are read many times, in search of a threshold."""
    fused: ClassVar[Literal["softmax", "sink"] | None] = None
    """Which fused attention kernels give it: those of softmax as they are, or with a factor for a sink afterwards."""
    formula: ClassVar[str] = ""
    """In plain text. With it, and with the formula in LaTeX and a paragraph on when to use it in its docstring, a map
    has an entry in the documentation."""
    largest_weight: ClassVar[str] = ""
    """As in `Entry`."""
    source: ClassVar[str] = ""

    @property
    def __name__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As functions have: that of the class, in the style of a function."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    def __call__(
        self, logits: Float[Array, "*shape"], axis: AnyAxis = -1, where: AnyMask = None, **numbers: Any
    ) -> Float[Array, "*shape"]:
        """Weights of the logits along `axis`, with 0 where `where` is False; `numbers` in the place of its own."""
        map = dataclasses.replace(self, **numbers) if numbers else self
        axis, where = axis_and_mask(logits, axis, where, **vars(map))
        return map.weigh(logits, axis, where if map.ignores_low else unless_low(logits, axis, where))

    def weigh(self, logits: Float[Array, "*shape"], axis: Axis, where: Mask) -> Float[Array, "*shape"]:
        """As when called, for those who know what is hidden: `where` and -inf alone tell."""
        checks.row(logits, axis, **vars(self))

        def weigh(map: "Map", logits: Array, where: Mask) -> Array:
            return hide(map.weights(WholeRow.of(logits, axis, where)), where).astype(jnp.result_type(logits))

        return as_one(weigh, self, logits, where, out=spec_of(logits))

    @abc.abstractmethod
    def weights(self, row: WholeRow) -> Float[Array, "*shape"]:
        """Weights of rows that are there as a whole; what they say of masked entries does not matter."""

    def written(self) -> Written | None:
        """The map as expressions of Vega, for a page to compute."""
        return None


Entries = WholeRow | BlockEntries
"""Some entries of each row, a block of them or all: their logits, with -inf where one is masked."""

AnyRow = WholeRow | ScaledRows
"""Rows that are there as a whole, or that come in blocks."""


class Quotient(Map):
    """A map whose weights are a quotient: terms relative to a pivot of the row, over what they sum to.

    Stated once, for rows that are there as a whole and for rows that come in blocks.
    """

    pivot_cancels: ClassVar[bool] = True
    """Whether any pivot gives the same weights, so that it may be a constant in derivatives. In blocks it always is."""

    def start(self) -> ArrayLike:
        """The least that the pivot may be."""
        return -jnp.inf

    def height(self, entries: Entries) -> Float[Array, "*shape"]:
        """What the pivot is the largest of."""
        return entries.logits

    @abc.abstractmethod
    def terms(
        self, row: AnyRow, entries: Entries, pivot: Float[Array, "*row"]
    ) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
        """Of each entry: its numerator, and what the divisor sums."""

    def divisor(self, row: AnyRow, total: Float[Array, "*row"], pivot: Float[Array, "*row"]) -> Float[Array, "*row"]:
        """What divides, from the sum."""
        return total

    def decay(self, row: AnyRow, old: Float[Array, "*row"], new: Float[Array, "*row"]) -> Float[Array, "*row"]:
        """The factor by which the terms change when the pivot does."""
        return jnp.exp(row.below(old, new))

    def weights(self, row: WholeRow) -> Float[Array, "*shape"]:
        pivot = row.pivot(self.height(row), self.start())
        pivot = jax.lax.stop_gradient(pivot) if self.pivot_cancels else pivot
        numerators, terms = self.terms(row, row, pivot)
        return over(numerators, _or_one(self.divisor(row, row.sum(terms), pivot)), row.axis)

    def in_blocks(self, rows: ScaledRows) -> Attended:
        """What the weights of rows in blocks weigh, in one pass, and the weights of any block."""

        def sums(block: Block, pivot: Array) -> Tree:
            numerators, terms = self.terms(rows, rows.entries(block), pivot)
            return block.attend(numerators), terms.sum(-1, keepdims=True)

        def move(sums: Tree, old: Array, new: Array) -> Tree:
            decay = self.decay(rows, old, new)
            return jax.tree.map(lambda leaf: leaf * decay, sums)

        pivot, (attended, total) = rows.blocks.online(
            lambda block: self.height(rows.entries(block)), self.start(), sums, move
        )
        divisor = _or_one(self.divisor(rows, total, pivot))
        attended = jax.tree.map(lambda leaf: leaf / divisor, attended)
        return Attended(attended, lambda block: self.terms(rows, rows.entries(block), pivot)[0] / divisor)


def _or_one(divisor: Float[Array, "*row"]) -> Float[Array, "*row"]:
    """The divisor; 1 where it is 0, which is the case of an empty row alone."""
    return jnp.where(divisor == 0, jnp.ones((), divisor.dtype), divisor)
