"""Maps with a threshold: sparsemax, the entmax family, Stieltjes and top-k, none of which sorts its row."""

import abc
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Shaped

from softmax_jax.normalizers.blocks import Attended, Block, ScaledRows, Tree, attach, solution_moved
from softmax_jax.normalizers.entry import DISPERSES, Written
from softmax_jax.normalizers.map import Map
from softmax_jax.normalizers.maps import softmax
from softmax_jax.normalizers.masking import Axis, at_least, reaches, row_sum, settled
from softmax_jax.normalizers.numbers import number
from softmax_jax.normalizers.part import Part
from softmax_jax.normalizers.ranks import find_kth_largest, kth_largest, whole_ranks
from softmax_jax.normalizers.rows import WholeRow
from softmax_jax.normalizers.thresholds import (
    POWERS,
    STIELTJES,
    TSALLIS,
    Family,
    away_from_zero,
    excess,
    find_threshold,
    solved,
    tail,
    weights_at,
)

LINEAR, SQUARED = "→ min(δ, 1)", "→ min(δ/2, 1)²"


class Threshold(Map):
    """A map whose weights belong to a family of functions of logit, threshold and ε, and sum to 1."""

    shift_invariant = True
    searches = True

    @abc.abstractmethod
    def family(self) -> Family: ...

    @abc.abstractmethod
    def eps(self, number: Callable[[ArrayLike], Array]) -> Float[Array, "..."]:
        """ε of the family. `number` gives a number of the map in the type and rank of the logits."""

    def excess(self, below: Float[Array, "*shape"], logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """What the family weighs, from distances to the pivot: -inf where no weight goes."""
        return jnp.where(logits == -jnp.inf, -jnp.inf, below)

    def weights(self, row: WholeRow) -> Float[Array, "*shape"]:
        z = row.logits
        # In derivatives x goes with z without any choice: what is far below or hidden has a weight without a slope.
        x = attach(self.excess(row.below(z, jax.lax.stop_gradient(row.pivot(z))), z), z)
        eps = _axis_last(self.eps(row.number), row.axis)
        return _axis_back(solved(self.family(), _axis_last(x, row.axis), eps), z.shape, row.axis)

    def in_blocks(self, rows: ScaledRows) -> Attended:
        """A pass for the maximum, one for each step of the search for the threshold, and one for the weights there."""
        family, eps = self.family(), self.eps(rows.number)
        places = rows.blocks.largest(lambda block: rows.entries(block).logits)
        pivot = settled(jnp.max(places, -1, keepdims=True))

        def excess(logits: Array) -> Array:
            return self.excess(rows.below(logits, pivot), logits)

        def total(threshold: Array) -> Array:
            def weights(block: Block) -> Array:
                return family.weigh(excess(rows.entries(block).logits), threshold, fixed).sum(-1, keepdims=True)

            return jax.lax.stop_gradient(rows.blocks.total(weights))

        # The search starts at the threshold of the largest entry at each place of the blocks.
        fixed = away_from_zero(jax.lax.stop_gradient(eps))
        part = Part(jax.lax.stop_gradient(excess(places))[..., None, :])
        threshold, reached = find_threshold(family, fixed, part, total, rows.blocks.entries)
        threshold, reached = jax.lax.stop_gradient((threshold, reached))

        def weigh(block: Block, moved: Array) -> Array:
            return weights_at(family, threshold, eps, excess(rows.entries(block).logits), moved)

        still = jnp.zeros_like(threshold)

        def slope(block: Block) -> Array:
            return family.derivatives(weigh(block, still), fixed)[0].sum(-1, keepdims=True)

        # Two sums, of which a derivative needs the value of one and the derivative of the other.
        reached_still = rows.blocks.total(lambda block: weigh(block, still).sum(-1, keepdims=True))
        moved = solution_moved(reached_still, rows.blocks.total(slope))
        attended = rows.blocks.total(lambda block: block.attend(weigh(block, moved)))
        attended = jax.tree.map(lambda leaf: leaf / reached, attended)
        return Attended(attended, lambda block: weigh(block, moved) / reached)


def _axis_last(array: Shaped[Array, "*shape"], axis: Axis) -> Shaped[Array, "*rows n"]:
    """The array with the axes of the row joined into one at the end."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    moved = jnp.moveaxis(array, axes, tuple(range(-len(axes), 0)))
    rows = moved.ndim - len(axes)
    return moved.reshape(*moved.shape[:rows], math.prod(moved.shape[rows:]))


def _axis_back(rows: Float[Array, "*rows n"], shape: tuple[int, ...], axis: Axis) -> Float[Array, "*shape"]:
    """Undoes `_axis_last` of an array of this shape."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    last = tuple(range(-len(axes), 0))
    moved = jnp.moveaxis(jnp.empty(shape, bool), axes, last).shape
    return jnp.moveaxis(rows.reshape(moved), last, axes)


class Sparsemax(Threshold):
    r"""The point of the probability simplex nearest to the logits: small weights are exactly 0.

    $$w_i = \max(z_i - \tau, 0), \qquad \tau \text{ such that } \sum_j w_j = 1$$

    Equal to `entmax` at `alpha` = 2.

    When to use it. When few entries matter and all others should get exactly 0. One logit that leads by 1 or more
    takes the whole row, however long.

    Source: Martins & Astudillo, "From Softmax to Sparsemax", ICML 2016.

    >>> sparsemax(jnp.array([1.0, 0.5, -1.0]))
    Array([0.75, 0.25, 0.  ], dtype=float32)
    """

    exact_zeros = True
    ignores_low = True
    formula = "max(z - τ, 0)"
    largest_weight = LINEAR
    source = "Martins & Astudillo, ICML 2016"

    def family(self) -> Family:
        return excess(1)

    def eps(self, number: Callable[[ArrayLike], Array]) -> Array:
        return number(1.0)

    def written(self) -> Written:
        # The page finds tau_1, and tau_2 of entmax15, exactly, from the sorted row.
        return Written("max(datum.c - datum.tau_1, 0)", "0", "1")


class Entmax15(Threshold):
    r"""Halfway between softmax and sparsemax: smooth, with small weights exactly 0.

    $$w_i = \max(z_i / 2 - \tau, 0)^2, \qquad \tau \text{ such that } \sum_j w_j = 1$$

    Equal to `entmax` at `alpha` = 1.5.

    When to use it. When zeros are wanted and sparsemax is too blunt: weights leave 0 smoothly, and a lead of 2 takes
    the whole row.

    Source: Peters, Niculae, Martins, "Sparse Sequence-to-Sequence Models", ACL 2019.

    >>> entmax15(jnp.array([1.0, 1.0, -3.0]))
    Array([0.5, 0.5, 0. ], dtype=float32)
    """

    exact_zeros = True
    ignores_low = True
    formula = "max(z/2 - τ, 0)²"
    largest_weight = SQUARED
    source = "Peters et al., ACL 2019"

    def family(self) -> Family:
        return excess(2)

    def eps(self, number: Callable[[ArrayLike], Array]) -> Array:
        return number(0.5)

    def written(self) -> Written:
        return Written("pow(max(datum.c / 2 - datum.tau_2, 0), 2)", "0", "1")


class Entmax(Threshold):
    r"""The family from softmax (α → 1) over sparsemax (α = 2) to hardmax (α → ∞): sparser as α grows.

    $$w_i = \max((\alpha - 1) z_i - \tau, 0)^{1 / (\alpha - 1)}, \qquad \tau \text{ such that } \sum_j w_j = 1$$

    `alpha` > 1 is a number, or an array that broadcasts against the logits with the row's axis at size 1, as in
    (heads, 1, 1). Weights and gradients, that in `alpha` too, keep their digits down to `alpha` = 1, which an
    array may hold and which is softmax. Above 2 a weight near 0 changes steeply with its logit, and so is only
    as good as the digits of the logits.

    When to use it. When how sparse a head is should be learned: α goes from softmax at 1 over sparsemax at 2 towards
    hardmax, one for each head if wanted. A plain 1.25, 1.5 or 2 takes half the time of other numbers and of arrays.

    Raises ValueError for a plain number that is not above 1, or above 1e6.

    Source: Peters, Niculae, Martins, "Sparse Sequence-to-Sequence Models", ACL 2019; gradient in α: Correia,
    Niculae, Martins, "Adaptively Sparse Transformers", EMNLP 2019.

    >>> entmax(jnp.array([1.0, 1.0, -3.0]), alpha=1.3)
    Array([0.5, 0.5, 0. ], dtype=float32)
    """

    exact_zeros = True
    formula = "max((α-1)·z - τ, 0)^(1/(α-1))"
    largest_weight = "→ min((α-1)·δ, 1)^(1/(α-1))"
    source = "Peters et al., ACL 2019"

    alpha: ArrayLike = number(
        default=1.5, rule="above 1 and at most 1e6, such as 1.5", holds=lambda alpha: 1 < alpha <= 1e6, learn=True
    )

    def family(self) -> Family:
        power = 1 / (self.alpha - 1) if isinstance(self.alpha, float) else None
        return excess(int(power)) if power in POWERS else TSALLIS

    def eps(self, number: Callable[[ArrayLike], Array]) -> Array:
        return number(self.alpha) - 1


class Stieltjes(Threshold):
    r"""Weights with a tail: they fall off as a power of the distance to the largest logit, and are never 0.

    $$w_i = (\lambda - z_i)^{-q}, \qquad \lambda > \max_j z_j \text{ such that } \sum_j w_j = 1$$

    `q` > 0 is a number, or an array that broadcasts against the logits with the row's axis at size 1. A logit
    of -inf gets 0.

    When to use it. When no entry should ever be lost to sight: a weight falls as a power of its distance to the top,
    where softmax has an exponential. Without a scale the long tail disperses.

    Raises ValueError for a plain number below 1e-6 or above 1e6.

    Source: AS-Stieltjes, which is this map with `q` = 4 at a scale that grows with the length of the row.

    >>> stieltjes(jnp.array([3.0, 3.0, 3.0, -jnp.inf, 3.0]))
    Array([0.25, 0.25, 0.25, 0.  , 0.25], dtype=float32)
    """

    formula = "(λ - z)^(-q)"
    largest_weight = DISPERSES
    source = "AS-Stieltjes without its scale"

    q: ArrayLike = number(default=4.0, rule="above 0, from 1e-6 to 1e6, such as 4.0", holds=lambda q: 1e-6 <= q <= 1e6)

    def family(self) -> Family:
        return tail(int(self.q)) if isinstance(self.q, float) and self.q in POWERS else STIELTJES

    def eps(self, number: Callable[[ArrayLike], Array]) -> Array:
        return -1 / number(self.q)


class TopKSoftmax(Map):
    r"""Softmax over the k largest visible logits; the others get exactly 0.

    $$w_i = \frac{[z_i \ge z_{(k)}]\, e^{z_i}}{\sum_j [z_j \ge z_{(k)}]\, e^{z_j}}, \qquad
      z_{(k)} \text{ the k-th largest}$$

    Every logit that ties with the k-th largest is kept, so more than k may be; a row with fewer than k is kept
    whole. `k` ≥ 1 is a whole number, or an array of them that broadcasts against the logits with the row's axis
    at size 1; it may be traced.

    When to use it. When at most k entries matter. The others cannot dilute the sum, so the weights stay what they
    are as the row grows with entries below the k largest.

    Raises ValueError for a plain number that is not whole or below 1.

    >>> top_k_softmax(jnp.array([2.0, 1.0, 2.0, 1.5]), k=2)
    Array([0.5, 0. , 0.5, 0. ], dtype=float32)
    """

    shift_invariant = True
    exact_zeros = True
    searches = True
    ignores_low = True
    formula = "softmax over the k largest"
    largest_weight = "≥ 1/k if none tie, else Θ(1/n)"
    source = "folklore"

    k: ArrayLike = number(
        default=8, rule="that is whole and at least 1, such as 8", holds=lambda k: k >= 1 and k == int(k)
    )

    def rank(self, ndim: int) -> Int[Array, "..."]:
        """K in int32, with so many axes."""
        rank = whole_ranks(self.k)
        return rank.reshape((1,) * (ndim - rank.ndim) + rank.shape)

    def weights(self, row: WholeRow) -> Float[Array, "*shape"]:
        z, rank = (_axis_last(array, row.axis) for array in (row.logits, self.rank(row.logits.ndim)))
        weights = _shares_of_largest(z, kth_largest(jax.lax.stop_gradient(z), rank))
        return _axis_back(weights, row.logits.shape, row.axis)

    def in_blocks(self, rows: ScaledRows) -> Attended:
        """A pass for the maximum, one for each step of the search for the k-th largest, and one for the weights."""
        rank = self.rank(len(rows.blocks.like.shape))
        places = rows.blocks.largest(lambda block: rows.entries(block).logits)
        pivot = settled(jnp.max(places, -1, keepdims=True))

        def ranked(logits: Array) -> Array:
            # Rounding may make logits tie once they are scaled; which are among the k largest is asked of those.
            scaled = logits if rows.beta is None else rows.below(logits, pivot)
            return jnp.where(logits != -jnp.inf, scaled, -jnp.inf)

        def count(threshold: Array) -> Array:
            def reach(block: Block) -> Array:
                return jnp.sum(ranked(rows.entries(block).logits) >= threshold, -1, keepdims=True, dtype=jnp.int32)

            return rows.blocks.total(reach)

        of_part = jax.lax.stop_gradient(ranked(places))
        low, high = kth_largest(of_part, rank), jnp.max(of_part, -1, keepdims=True)
        least = jax.lax.stop_gradient(find_kth_largest(count, rank, low, high))
        least = at_least(least, float(jnp.finfo(least.dtype).min))  # finite: derivatives keep it

        def exponentials(block: Block) -> Array:
            entries = rows.entries(block)
            return jnp.where(reaches(ranked(entries.logits), least), softmax.terms(rows, entries, pivot)[0], 0)

        def sums(block: Block) -> Tree:
            numerators = exponentials(block)
            return block.attend(numerators), numerators.sum(-1, keepdims=True)

        attended, divisor = rows.blocks.total(sums)
        divisor = jnp.where(divisor == 0, 1, divisor)
        attended = jax.tree.map(lambda leaf: leaf / divisor, attended)
        return Attended(attended, lambda block: exponentials(block) / divisor)


sparsemax = Sparsemax()
entmax15 = Entmax15()
entmax = Entmax()
stieltjes = Stieltjes()
top_k_softmax = TopKSoftmax()


@jax.custom_jvp
def _shares_of_largest(z: Float[Array, "*rows n"], least: Float[Array, "*rows 1"]) -> Float[Array, "*rows n"]:
    """Softmax over the logits of each row that reach a number; the others get 0, or NaN as the row does."""
    kept = reaches(z, least)
    pivot = settled(jnp.max(z, -1, keepdims=True, initial=-jnp.inf))
    exponentials = jnp.where(kept, jnp.exp(z - pivot), 0)
    total = row_sum(exponentials, -1)
    # The choice comes last, so that XLA on CPUs writes the weights once, in the place where they are returned.
    return jnp.where(kept, exponentials / total, 0 * total)


@_shares_of_largest.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    weights = _shares_of_largest(*primals)
    mean = jnp.sum(weights * tangents[0], -1, keepdims=True)
    # Always so; without a choice XLA on CPUs takes sum and product as one operation, which takes twice as long.
    mean = jnp.where(primals[1] < jnp.inf, mean, 0)
    return weights, weights * (tangents[0] - mean)
