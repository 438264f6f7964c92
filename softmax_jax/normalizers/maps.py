"""Maps: each turns a row of logits into weights.

Every map computes in float32 whatever the input type (float64 stays), returns the type it was given, and
obeys the mask as `masking` says. In the formulas `z` are the logits of one row, and every sum runs over the
visible entries alone.
"""

import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.normalizers.blocks import Attended, Block, ScaledRows, Tree
from softmax_jax.normalizers.entry import DISPERSES, Written
from softmax_jax.normalizers.map import AnyRow, Entries, Map, Quotient
from softmax_jax.normalizers.masking import Axis, at_most, reaches
from softmax_jax.normalizers.numbers import number
from softmax_jax.normalizers.rows import Row, WholeRow

# What a page computes of each item: y = β·z, c = y less the largest of the row, m = max(0, the largest y).
EXPONENTIAL, LIFTED = "exp(datum.c)", "exp(datum.y - datum.m)"


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _shares(logits: Float[Array, "*shape"], axis: Axis) -> Float[Array, "*shape"]:
    """e^z over its sum, for whole rows with -inf where an entry is masked; an empty row gets 0.

    No comparison and no choice, so that a compiler may hand all of it to a library as one operation.
    """
    largest = jnp.max(logits, axis, keepdims=True, initial=-jnp.inf)
    pivot = jnp.maximum(largest, float(jnp.finfo(logits.dtype).min))
    exponentials = jnp.exp(logits - pivot)
    # The sum is at least 1, that of the largest, and 0 for an empty row.
    return exponentials / jnp.maximum(jnp.sum(exponentials, axis, keepdims=True), 1e-6)


@_shares.defjvp
def _(axis: Axis, logits: tuple[Array], slopes: tuple[Array]) -> tuple[Array, Array]:
    """The slope of the weights, w (dz - Σ w dz): it needs nothing but them."""
    weights, slope = _shares(*logits, axis), slopes[0]
    return weights, weights * (slope - jnp.sum(weights * slope, axis, keepdims=True))


class Softmax(Quotient):
    r"""Softmax over the visible entries.

    $$w_i = \frac{e^{z_i}}{\sum_j e^{z_j}}$$

    Equal to `jax.nn.softmax(logits, axis, where=where)`, but for half-precision input, which is computed in
    float32 here, and for rows whose logits are all -inf, which get zeros.

    When to use it. The default, and the measure of all others. It serves well where rows at test time are no longer
    than those of training, and where an average over many entries is wanted. It cannot keep a sharp choice as rows
    grow: with bounded logits every weight falls as 1/n.

    >>> softmax(jnp.array([1.0, 1.0, 7.0]), where=jnp.array([True, True, False]))
    Array([0.5, 0.5, 0. ], dtype=float32)
    """

    shift_invariant = True
    ignores_low = True
    fused = "softmax"
    formula = "eᶻ / Σeᶻ"
    largest_weight = DISPERSES
    source = "Bridle 1990"

    def terms(self, row: AnyRow, entries: Entries, pivot: Array) -> tuple[Array, Array]:
        exponentials = jnp.where(entries.logits != -jnp.inf, jnp.exp(row.below(entries.logits, pivot)), 0)
        return exponentials, exponentials

    def weights(self, row: WholeRow) -> Float[Array, "*shape"]:
        """What the terms give, faster; `python -m benchmarks.attention` has dense attention beside that of JAX."""
        return _shares(row.logits, row.axis)

    def written(self) -> Written:
        return Written(EXPONENTIAL, EXPONENTIAL)


class Softmax1(Softmax):
    r"""Softmax with a one in the denominator, so that a row may attend to nothing.

    $$w_i = \frac{e^{z_i}}{1 + \sum_j e^{z_j}}$$

    The weights sum to less than 1. Adding a constant to the row changes them.

    When to use it. When a head may find nothing worth its attention: where all logits are far below 0, so is the sum
    of the weights. Where the logits are large it is softmax.

    Source: Miller, "Attention is off by one" (2023).

    >>> softmax1(jnp.array([0.0, 0.0]))
    Array([0.33333334, 0.33333334], dtype=float32)
    """

    shift_invariant = False
    sums_to_one = False
    fused = "sink"
    formula = "eᶻ / (1 + Σeᶻ)"
    largest_weight = DISPERSES
    source = "Miller 2023"

    weights = Quotient.weights

    def sink_logit(self) -> ArrayLike:
        """The logit in the denominator alone."""
        return 0.0

    def start(self) -> ArrayLike:
        return self.sink_logit()

    def divisor(self, row: AnyRow, total: Array, pivot: Array) -> Array:
        return total + jnp.exp(row.number(self.sink_logit()) - pivot)

    def written(self) -> Written:
        return Written(LIFTED, LIFTED, f"exp({self.sink_logit()} - datum.m)")


class SinkSoftmax(Softmax1):
    r"""Softmax with a sink: one more logit, in the denominator alone, that takes weight from the row.

    $$w_i = \frac{e^{z_i}}{e^{\text{sink}} + \sum_j e^{z_j}}$$

    Usually learned, one per head, of shape (heads, 1, 1). At 0 this is `softmax1`; the lower the sink, the
    closer to `softmax`. The weights sum to less than 1. Adding a constant to the row changes them, and a
    scale multiplies the logits, not the sink.

    When to use it. As `softmax1`, with the height of the sink learned for each head.

    Raises ValueError for a sink that is not finite.

    Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv 2309.17453, for the
    sink; OpenAI, "gpt-oss model card", arXiv 2508.10925, for the learned logit per head.

    >>> sink_softmax(jnp.log(jnp.array([1.0, 2.0])), sink=jnp.log(5.0)).round(3)
    Array([0.125, 0.25 ], dtype=float32)
    """

    formula = "eᶻ / (e^sink + Σeᶻ)"
    largest_weight = DISPERSES
    source = "Xiao et al., arXiv 2309.17453"

    sink: ArrayLike = number(default=0.0, learn=True)

    def sink_logit(self) -> ArrayLike:
        return self.sink


class Softpick(Quotient):
    r"""Rectified softmax: entries with a finite logit below 0 get exactly 0, yet still count in the denominator.

    $$w_i = \frac{\max(e^{z_i - m} - e^{-m}, 0)}{\sum_j |e^{z_j - m} - e^{-m}| + \varepsilon},
      \qquad m = \max(0, \max_j z_j)$$

    `eps`, at least 1e-37, keeps a row of zeros finite. The weights sum to at most 1. Adding a constant to the row
    changes them.

    When to use it. When a head should be able to attend to nothing, and when logits of 0 or less should get a weight
    of exactly 0. It has to be trained in: where all logits are large and positive, as in a model trained under
    softmax they may be, it is softmax.

    Source: Zuhri, Fuadi, Aji, "Softpick", arXiv 2504.20966.

    >>> softpick(jnp.array([jnp.log(2.0), jnp.log(4.0), -9.0])).round(3)
    Array([0.2, 0.6, 0. ], dtype=float32)
    """

    sums_to_one = False
    exact_zeros = True
    pivot_cancels = False  # but for ε, which is added after all terms are divided by exp(m)
    formula = "relu(eᶻ - 1) / (Σ|eᶻ - 1| + ε)"
    largest_weight = DISPERSES
    source = "Zuhri et al., arXiv 2504.20966"

    # No less is a normal number in float32.
    eps: ArrayLike = number(
        default=1e-6, rule="above 0, at least 1e-37, such as 1e-06", holds=lambda value: value >= 1e-37
    )

    def start(self) -> ArrayLike:
        return 0.0

    def terms(self, row: AnyRow, entries: Entries, pivot: Array) -> tuple[Array, Array]:
        difference = jnp.where(entries.logits != -jnp.inf, less_one(entries.logits, pivot), 0)
        return jnp.where(difference > 0, difference, 0), jnp.abs(difference)

    def divisor(self, row: AnyRow, total: Array, pivot: Array) -> Array:
        return total + row.number(self.eps)

    def written(self) -> Written:
        picked = f"{LIFTED} - exp(-datum.m)"
        return Written(f"max({picked}, 0)", f"abs({picked})", str(self.eps))


def less_one(z: Float[Array, "*shape"], maximum: Float[Array, "*row"]) -> Float[Array, "*shape"]:
    """exp(z) - 1, both times exp(-maximum)."""
    # Two forms of the same difference: for small logits the right one alone cancels all its digits.
    small = z < 1
    return jnp.where(
        small,
        jnp.exp(-maximum) * jnp.expm1(jnp.where(small, z, 0)),
        jnp.exp(z - maximum) - jnp.exp(-maximum),
    )


class Sigmoid(Map):
    r"""Each entry by itself: no entry competes with another, but through their number.

    $$w_i = \sigma(z_i + b), \qquad b = -\log n \text{ unless given}$$

    n is the number of visible entries, so that a row of zeros has about the weights of softmax. The weights do not sum
    to 1. Adding a constant to the row changes them.

    When to use it. In a model that is trained with it, where a head should weigh each entry on its own merits: a row
    may attend to many entries fully, or to nothing.

    Source: Ramapuram et al., "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", arXiv 2409.04431.

    >>> sigmoid(jnp.array([0.0, jnp.log(2.0)])).round(3)
    Array([0.333, 0.5  ], dtype=float32)
    """

    sums_to_one = False
    formula = "σ(z - log n)"
    largest_weight = DISPERSES
    source = "Ramapuram et al., arXiv 2409.04431"

    bias: ArrayLike | None = number(default=None, rule="such as -5.0")

    def weights(self, row: WholeRow) -> Float[Array, "*shape"]:
        return self._each(row.logits, self._bias(row)) + row.sum(_not_finite(row.logits))

    def in_blocks(self, rows: ScaledRows) -> Attended:
        """What the weights of rows in blocks weigh, in one pass after that for the length, and those of any block."""
        bias = self._bias(rows.blocks)

        def weigh(block: Block) -> Float[Array, "*rows entries"]:
            return self._each(rows.entries(block).logits, bias)

        def sums(block: Block) -> Tree:
            return block.attend(weigh(block)), _not_finite(rows.entries(block).logits).sum(-1, keepdims=True)

        attended, poison = rows.blocks.total(sums)
        return Attended(jax.tree.map(lambda leaf: leaf + poison, attended), lambda block: weigh(block) + poison)

    def _bias(self, row: Row) -> Float[Array, "..."]:
        return -jnp.log(jnp.maximum(row.count(), 1)) if self.bias is None else row.number(self.bias)

    def _each(self, logits: Float[Array, "*shape"], bias: Float[Array, "..."]) -> Float[Array, "*shape"]:
        visible = logits != -jnp.inf
        return jnp.where(visible, jax.nn.sigmoid(jnp.where(visible, logits, 0) + bias), 0)

    def written(self) -> Written:
        return Written(f"1 / (1 + exp(-datum.y - ({'-log(n)' if self.bias is None else self.bias})))", "0", "1")


def _not_finite(logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """0, but NaN for NaN and +inf, which leave a row without weights."""
    return jax.lax.stop_gradient(jnp.where(logits == -jnp.inf, 0, logits * 0))


class Hardmax(Quotient):
    r"""One-hot of the largest logit: the limit of softmax(z / θ) as θ → 0, and so the bound of every temperature.

    $$w_i = \begin{cases} 1 & z_i = \max_j z_j \\ 0 & \text{otherwise} \end{cases}$$

    Entries that tie for the maximum share the weight equally, as they do in that limit. The gradient is 0.

    When to use it. To measure with. It is the limit of θ → 0, so what it gets wrong is not dispersion but the wrong
    entry on top. Its gradient is 0, so nothing trains through it.

    >>> hardmax(jnp.array([1.0, 3.0, 3.0, 2.0]))
    Array([0. , 0.5, 0.5, 0. ], dtype=float32)
    """

    shift_invariant = True
    ignores_low = True
    exact_zeros = True
    formula = "one-hot of the largest logit"
    largest_weight = "= 1"
    source = "folklore"

    def terms(self, row: AnyRow, entries: Entries, pivot: Array) -> tuple[Array, Array]:
        largest = jnp.where(entries.logits != -jnp.inf, self.decay(row, entries.logits, pivot), 0)
        return largest, largest

    def decay(self, row: AnyRow, old: Array, new: Array) -> Array:
        # A gap of 0 counts too, as β = 0 leaves it; of NaN it is NaN.
        gap = row.below(old, new)
        return jnp.where(jnp.isnan(gap), jnp.nan, (reaches(old, new) | (gap == 0)).astype(gap.dtype))

    def written(self) -> Written:
        return Written("datum.c == 0 ? 1 : 0", "datum.c == 0 ? 1 : 0")


class ShiftedSoftmax(Softmax):
    r"""Softmax of shifted logits, sometimes published under the name of SSMax: it is plain softmax.

    $$w = \operatorname{softmax}(z - s \log n) = \operatorname{softmax}(z)$$

    `n` is the number of visible entries. A shift is the same for the whole row, so it cancels before anything is
    computed, and the gradient in `s` is 0. Kept to show just that; the real SSMax is `ssmax`, which multiplies.

    When to use it. To see that a shift changes nothing. The formula has circulated as SSMax, which multiplies
    instead.

    >>> z = jnp.array([1.0, 2.0, 3.0])
    >>> bool(jnp.allclose(shifted_softmax(z, s=5.0), softmax(z - 5.0 * jnp.log(3.0))))
    True
    """

    formula = "softmax(z - s·log n), which is softmax(z)"
    largest_weight = DISPERSES
    source = "published as SSMax"

    s: ArrayLike = number(default=1.0)


class SignedL1(Quotient):
    r"""Logits over one plus their absolute sum, sometimes published under the name of Softpick.

    $$w_i = \frac{z_i}{1 + \sum_j |z_j|}$$

    Weights carry the sign of their logit and their absolute values sum to less than 1. There is no
    exponential, so nothing is picked; the real Softpick is `softpick`. A logit of -inf counts as masked.

    When to use it. To compare with. The formula has circulated as Softpick; without an exponential, nothing stands
    out of a long row.

    >>> signed_l1(jnp.array([1.0, -2.0]))
    Array([ 0.25, -0.5 ], dtype=float32)
    """

    sums_to_one = False
    exact_zeros = True
    signed = True
    formula = "z / (1 + Σ|z|)"
    largest_weight = DISPERSES
    source = "published as Softpick"

    # Dividing through by the largest keeps the sum finite; by at most 1e37, whose reciprocal is not subnormal.
    def start(self) -> ArrayLike:
        return 1.0

    def height(self, entries: Entries) -> Array:
        sizes = jnp.abs(_finite_below(entries.logits))
        return jnp.where(sizes == jnp.inf, sizes, at_most(sizes, 1e37))

    def terms(self, row: AnyRow, entries: Entries, pivot: Array) -> tuple[Array, Array]:
        ratio = _finite_below(entries.logits) / pivot
        return ratio, jnp.abs(ratio)

    def divisor(self, row: AnyRow, total: Array, pivot: Array) -> Array:
        return total + 1 / pivot

    def decay(self, row: AnyRow, old: Array, new: Array) -> Array:
        return old / new

    def written(self) -> Written:
        return Written("datum.y", "abs(datum.y)", "1")


def _finite_below(logits: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The logits with 0 for -inf."""
    return jnp.where(logits == -jnp.inf, 0, logits)


softmax = Softmax()
softmax1 = Softmax1()
sigmoid = Sigmoid()
sink_softmax = SinkSoftmax()
softpick = Softpick()
hardmax = Hardmax()
shifted_softmax = ShiftedSoftmax()
signed_l1 = SignedL1()
