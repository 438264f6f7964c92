"""Maps with a threshold: sparsemax, the entmax family, Stieltjes and top-k, none of which sorts its row.

Each is a formula in which one number of the row, the threshold, is not known; `threshold_search` finds it.
"""

import abc

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.normalizers.arithmetic import reaches
from softmax_jax.normalizers.maps import DISPERSES, Map, softmax
from softmax_jax.normalizers.parameters import number
from softmax_jax.normalizers.rank_search import as_ranks, kth_largest
from softmax_jax.normalizers.row import Row
from softmax_jax.normalizers.threshold_families import POWERS, STIELTJES, TSALLIS, excess, tail
from softmax_jax.normalizers.threshold_search import Family, solve

LINEAR, SQUARED = "→ min(δ, 1)", "→ min(δ/2, 1)²"


class Threshold(Map):
    """A map whose weights belong to a `Family`, at the threshold at which they sum to 1."""

    shift_invariant = True

    @abc.abstractmethod
    def family(self, row: Row) -> tuple[Family, Float[Array, "..."]]:
        """Returns the family that the weights belong to, and its ε."""

    def weights(self, row: Row) -> Float[Array, "*shape"]:
        family, eps = self.family(row)
        z, eps = map(row.layout.joined, (row.logits, eps))
        return row.layout.parted(solve(family, z, eps, row.layout.after_joining()), row.logits.shape)


class Sparsemax(Threshold):
    r"""The point of the probability simplex nearest to the logits: small weights are exactly 0.

    $$w_i = \max(z_i - \tau, 0), \qquad \tau \text{ such that } \sum_j w_j = 1$$

    Equal to `entmax` at `alpha` = 2.

    When to use it. Where few entries matter and the others should get exactly 0. A lead of 1 takes the whole row.

    Source: Martins & Astudillo, "From Softmax to Sparsemax", ICML 2016.

    >>> sparsemax(jnp.array([1.0, 0.5, -1.0]))
    Array([0.75, 0.25, 0.  ], dtype=float32)
    """

    exact_zeros = True
    ignores_low = True
    formula = "max(z - τ, 0)"
    largest_weight = LINEAR
    source = "Martins & Astudillo, ICML 2016"

    def family(self, row: Row) -> tuple[Family, Array]:
        # Of (1, 0.5, -1) two entries stay: 1.5 - 2τ = 1 gives τ = 0.25, above -1, and the weights 0.75 and 0.25.
        return excess(1), row.number(1.0)


class Entmax15(Threshold):
    r"""Halfway between softmax and sparsemax: smooth, with small weights exactly 0.

    $$w_i = \max(z_i / 2 - \tau, 0)^2, \qquad \tau \text{ such that } \sum_j w_j = 1$$

    Equal to `entmax` at `alpha` = 1.5.

    When to use it. As `sparsemax`, but weights leave 0 smoothly. A lead of 2 takes the row.

    Source: Peters, Niculae, Martins, "Sparse Sequence-to-Sequence Models", ACL 2019.

    >>> entmax15(jnp.array([1.0, 1.0, -3.0]))
    Array([0.5, 0.5, 0. ], dtype=float32)
    """

    exact_zeros = True
    ignores_low = True
    formula = "max(z/2 - τ, 0)²"
    largest_weight = SQUARED
    source = "Peters et al., ACL 2019"

    def family(self, row: Row) -> tuple[Family, Array]:
        # Of (1, 1, -3) two entries stay: 2 (1/2 - τ)² = 1 gives τ = 1/2 - √½ = -0.207, above -3/2, and twice 1/2.
        return excess(2), row.number(0.5)


class Entmax(Threshold):
    r"""The family from softmax (α → 1) over sparsemax (α = 2) to hardmax (α → ∞): sparser as α grows.

    $$w_i = \max((\alpha - 1) z_i - \tau, 0)^{1 / (\alpha - 1)}, \qquad \tau \text{ such that } \sum_j w_j = 1$$

    `alpha` > 1 is a number, or an array that broadcasts against the logits with the row's axis at size 1, as in
    (heads, 1, 1). Weights and gradients, that in `alpha` too, keep their digits down to `alpha` = 1, which an
    array may hold and which is softmax. Above 2 a weight near 0 changes steeply with its logit, and so is only
    as good as the digits of the logits.

    When to use it. Where sparsity should be learned: α = 1 is softmax, 2 sparsemax, larger tends to hardmax.

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

    def family(self, row: Row) -> tuple[Family, Array]:
        # With ε = α - 1, a weight is the base εz - τ to the power 1/ε: 4 at α = 1.25, 2 at 1.5, 1 at 2. With x = z - m,
        # m the largest logit, the base is 1 + ε(x - θ) with θ = (1 - εm + τ) / ε, which is finite as ε → 0.
        power = 1 / (self.alpha - 1) if isinstance(self.alpha, float) else None
        family = excess(int(power)) if power in POWERS else TSALLIS
        return family, row.number(self.alpha) - 1


class Stieltjes(Threshold):
    r"""Weights with a tail: they fall off as a power of the distance to the largest logit, and are never 0.

    $$w_i = (\lambda - z_i)^{-q}, \qquad \lambda > \max_j z_j \text{ such that } \sum_j w_j = 1$$

    `q` > 0 is a number, or an array that broadcasts against the logits with the row's axis at size 1. A logit
    of -inf gets 0.

    When to use it. Where no entry should be lost to sight: weights fall as a power of the distance to the top. Without
    a scale the tail disperses.

    Raises ValueError for a plain number below 1e-6 or above 1e6.

    Source: AS-Stieltjes, which is this map with `q` = 4 at a scale that grows with the length of the row.

    >>> stieltjes(jnp.array([3.0, 3.0, 3.0, -jnp.inf, 3.0]))
    Array([0.25, 0.25, 0.25, 0.  , 0.25], dtype=float32)
    """

    formula = "(λ - z)^(-q)"
    largest_weight = DISPERSES
    source = "AS-Stieltjes without its scale"

    q: ArrayLike = number(default=4.0, rule="above 0, from 1e-6 to 1e6, such as 4.0", holds=lambda q: 1e-6 <= q <= 1e6)

    def family(self, row: Row) -> tuple[Family, Array]:
        # With ε = -1/q a weight is (λ - z)^(1/ε): of four equal entries 1/4, so λ - z = 4^(1/4) = √2 at q = 4.
        family = tail(int(self.q)) if isinstance(self.q, float) and self.q in POWERS else STIELTJES
        return family, -1 / row.number(self.q)


class TopKSoftmax(Map):
    r"""Softmax over the k largest visible logits; the others get exactly 0.

    $$w_i = \frac{[z_i \ge z_{(k)}]\, e^{z_i}}{\sum_j [z_j \ge z_{(k)}]\, e^{z_j}}, \qquad
      z_{(k)} \text{ the k-th largest}$$

    Every logit that ties with the k-th largest is kept, so more than k may be; a row with fewer than k is kept
    whole. `k` ≥ 1 is a whole number, or an array of them that broadcasts against the logits with the row's axis
    at size 1; it may be traced.

    When to use it. Where at most k entries matter. Entries below the k largest change nothing, however many.

    Raises ValueError for a plain number that is not whole or below 1.

    >>> top_k_softmax(jnp.array([2.0, 1.0, 2.0, 1.5]), k=2)
    Array([0.5, 0. , 0.5, 0. ], dtype=float32)
    """

    shift_invariant = True
    exact_zeros = True
    ignores_low = True
    formula = "softmax over the k largest"
    largest_weight = "≥ 1/k if none tie, else Θ(1/n)"
    source = "folklore"

    k: ArrayLike = number(
        default=8, rule="that is whole and at least 1, such as 8", holds=lambda k: k >= 1 and k == int(k)
    )

    def weights(self, row: Row) -> Float[Array, "*shape"]:
        rank = as_ranks(self.k)
        rank = rank.reshape((1,) * (row.logits.ndim - rank.ndim) + rank.shape)
        layout = row.layout.after_joining()
        z, rank = map(row.layout.joined, (row.logits, rank))
        # The threshold is a constant in derivatives: it moves with its own entry, which is kept either way. Of
        # (2, 1, 2, 1.5) at k = 2 it is 2, and softmax of (2, -inf, 2, -inf) remains.
        least = layout.spread(kth_largest(jax.lax.stop_gradient(z), rank, layout))
        kept = jnp.where(reaches(z, least), z, -jnp.inf)
        return row.layout.parted(softmax.weights(Row(kept, layout)), row.logits.shape)


sparsemax = Sparsemax()
entmax15 = Entmax15()
entmax = Entmax()
stieltjes = Stieltjes()
top_k_softmax = TopKSoftmax()
