"""Maps: each turns a row of logits into weights.

Every map computes in float32 whatever the input type (float64 stays), returns the type it was given, and
obeys the mask as `row` says. In the formulas `z` are the logits of one row, and every sum runs over the
visible entries alone.
"""

import abc
import dataclasses
import inspect
import re
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.normalizers import arithmetic, checks
from softmax_jax.normalizers.layout import Axis, Layout
from softmax_jax.normalizers.parameters import Numbers, number
from softmax_jax.normalizers.row import AnyAxis, AnyMask, Row, weigh


class Entry(NamedTuple):
    """Facts about a map, or about a method that puts it over a scale, for the documentation.

    >>> from softmax_jax import METHODS
    >>> METHODS["ssmax"].entry.formula
    'softmax((s·log n + b)·z)'
    """

    formula: str
    """In plain text."""
    largest_weight: str
    """As n → ∞, of one logit t = r + δ, δ > 0, above n - 1 logits r: it disperses if this goes to 0."""
    source: str
    docstring: str = ""
    """With the formula in LaTeX and a paragraph "When to use it."; that of its class for a map."""


DISPERSES = "Θ(1/n)"
UNWRITTEN = Entry("–", "–", "–")
"""The entry of a method without a description."""


def entry_of(part: Any) -> Entry:
    """Returns the entry of a map, from its class; `UNWRITTEN` if it has no formula."""
    if not getattr(part, "formula", ""):
        return UNWRITTEN
    return Entry(part.formula, part.largest_weight, part.source, inspect.getdoc(part) or "")


class Map(Numbers, abc.ABC):
    """Turns a row of logits into its weights.

    A subclass has its numbers as fields, each with a default, and defines `weights`. Masked entries get 0 whatever
    it returns.

    >>> class Relu(Map):
    ...     sums_to_one = False
    ...     exact_zeros = True
    ...
    ...     def weights(self, row):
    ...         return jax.nn.relu(row.logits) / jnp.maximum(row.count(), 1) + row.zero()
    >>> Relu()(jnp.array([2.0, -1.0, 5.0]), where=jnp.array([True, True, False]))
    Array([1., 0., 0.], dtype=float32)
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
    by_position: ClassVar[bool] = False
    """Whether a weight may depend on where in its row the entry stands."""
    formula: ClassVar[str] = ""
    """In plain text. With it, and with the formula in LaTeX and a paragraph on when to use it in its docstring, a map
    has an entry in the documentation."""
    largest_weight: ClassVar[str] = ""
    """As in `Entry`."""
    source: ClassVar[str] = ""

    @property
    def __name__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The name of the class, spelt as a function's."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    def __call__(
        self, logits: Float[Array, "*shape"], axis: AnyAxis = -1, where: AnyMask = None, **numbers: Any
    ) -> Float[Array, "*shape"]:
        """Returns weights of the logits along `axis`, 0 where `where` is False; `numbers` replace those of the map."""
        part = dataclasses.replace(self, **numbers) if numbers else self
        return weigh(part, logits, axis, where, low_hides=True)

    def of_row(self, row: Row) -> Float[Array, "*shape"]:
        """Returns weights of rows, in the type of the logits that were given, and 0 where they are hidden."""
        return row.weights(self.weights(row))

    def check(self, logits: Float[Array, "*shape"], axis: Axis) -> None:
        """Raises ValueError unless each number, also of a part such as a normalizer, is one for each row."""
        for name, value in vars(self).items():
            if hasattr(value, "check"):
                value.check(logits, axis)
            elif value is not None:
                checks.per_row(name, value, jnp.shape(logits), axis)

    @abc.abstractmethod
    def weights(self, row: Row) -> Float[Array, "*shape"]:
        """Returns weights of rows; what they are at masked entries does not matter."""


@jax.custom_jvp
def _softmax(logits: Float[Array, "*shape"], layout: Layout) -> Float[Array, "*shape"]:
    """Returns e^z over its sum, for whole rows with -inf where an entry is masked; an empty row gets 0."""
    # No comparison and no select, so that a compiler may hand all of it to a library as one operation.
    pivot = jnp.maximum(layout.largest(logits), float(jnp.finfo(logits.dtype).min))
    exponentials = jnp.exp(logits - pivot)
    # The sum is at least 1, that of the largest, and 0 for an empty row.
    return exponentials / jnp.maximum(layout.sum(exponentials), 1e-6)


@_softmax.defjvp
def _(primals: tuple[Array, Layout], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    # dw = w (dz - Σ w dz), which reads only the weights: w = (0.731, 0.269) and dz = (1, 0) give (0.197, -0.197).
    (logits, layout), (change, _) = primals, tangents
    weights = _softmax(logits, layout)
    return weights, weights * (change - layout.sum(weights * change))


class Softmax(Map):
    r"""Softmax over the visible entries.

    $$w_i = \frac{e^{z_i}}{\sum_j e^{z_j}}$$

    Equal to `jax.nn.softmax(logits, axis, where=where)`, but for half-precision input, which is computed in
    float32 here, and for rows whose logits are all -inf, which get zeros.

    When to use it. Where test rows are no longer than those of training. It cannot stay sharp as rows grow: with
    bounded logits every weight falls as 1/n.

    >>> softmax(jnp.array([1.0, 1.0, 7.0]), where=jnp.array([True, True, False]))
    Array([0.5, 0.5, 0. ], dtype=float32)
    """

    shift_invariant = True
    ignores_low = True
    formula = "eᶻ / Σeᶻ"
    largest_weight = DISPERSES
    source = "Bridle 1990"

    def weights(self, row: Row) -> Float[Array, "*shape"]:
        return _softmax(row.logits, row.layout)


class Softmax1(Softmax):
    r"""Softmax with a one in the denominator, so that a row may attend to nothing.

    $$w_i = \frac{e^{z_i}}{1 + \sum_j e^{z_j}}$$

    The weights sum to less than 1. Adding a constant to the row changes them.

    When to use it. Where a head may find nothing: if all logits are far below 0, the weights sum to about 0.

    Source: Miller, "Attention is off by one" (2023).

    >>> softmax1(jnp.array([0.0, 0.0]))
    Array([0.33333334, 0.33333334], dtype=float32)
    """

    shift_invariant = False
    sums_to_one = False
    formula = "eᶻ / (1 + Σeᶻ)"
    source = "Miller 2023"

    def sink_logit(self) -> ArrayLike:
        """Returns the logit that only the denominator has."""
        return 0.0

    def weights(self, row: Row) -> Float[Array, "*shape"]:
        sink = row.number(self.sink_logit())
        # Any pivot gives the same weights, so it counts as a constant in derivatives.
        pivot = jax.lax.stop_gradient(row.maximum(row.logits, sink))
        exponentials = jnp.where(row.logits != -jnp.inf, jnp.exp(arithmetic.subtract_pivot(row.logits, pivot)), 0)
        return arithmetic.divide_row(exponentials, row.sum(exponentials) + jnp.exp(sink - pivot))


class SinkSoftmax(Softmax1):
    r"""Softmax with a sink: one more logit, in the denominator alone, that takes weight from the row.

    $$w_i = \frac{e^{z_i}}{e^{\text{sink}} + \sum_j e^{z_j}}$$

    Usually learned, one per head, of shape (heads, 1, 1). At 0 this is `softmax1`; the lower the sink, the
    closer to `softmax`. The weights sum to less than 1. Adding a constant to the row changes them, and a
    scale multiplies the logits, not the sink.

    When to use it. As `softmax1`, with a sink learned for each head.

    Raises ValueError for a sink that is not finite.

    Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv 2309.17453, for the
    sink; OpenAI, "gpt-oss model card", arXiv 2508.10925, for the learned logit per head.

    >>> sink_softmax(jnp.log(jnp.array([1.0, 2.0])), sink=jnp.log(5.0)).round(3)
    Array([0.125, 0.25 ], dtype=float32)
    """

    formula = "eᶻ / (e^sink + Σeᶻ)"
    source = "Xiao et al., arXiv 2309.17453"

    sink: ArrayLike = number(default=0.0, learn=True)

    def sink_logit(self) -> ArrayLike:
        return self.sink


class SoftmaxN(Softmax1):
    r"""Softmax with a number in the denominator: the sink of `sink_softmax` by its exponential.

    $$w_i = \frac{e^{z_i}}{n_0 + \sum_j e^{z_j}}$$

    `n0`, at least 1e-37, counts entries of logit 0 that take weight and give nothing; 1 is `softmax1`.

    When to use it. As `sink_softmax`, where the sink is meant as a number of empty entries.

    Source: the name under which Miller's softmax1 is generalised.

    >>> softmax_n(jnp.log(jnp.array([1.0, 2.0])), n0=5.0).round(3)
    Array([0.125, 0.25 ], dtype=float32)
    """

    formula = "eᶻ / (n₀ + Σeᶻ)"
    source = "generalises Miller 2023"

    n0: ArrayLike = number(
        default=1.0, rule="above 0, at least 1e-37, such as 1.0", holds=lambda n0: n0 >= 1e-37, learn=True
    )

    def sink_logit(self) -> ArrayLike:
        return jnp.log(self.n0)


class FirstTokenSoftmax(Softmax):
    r"""Softmax with a factor on the first visible entry, where many models keep a sink.

    $$w_i = \frac{\gamma^{[i = 1]} e^{z_i}}{\sum_j \gamma^{[j = 1]} e^{z_j}}, \qquad \gamma = e^{\text{bias}}$$

    `bias`, within ±10,000, is added to that logit, after any scale: at 0 this is softmax.

    When to use it. In a trained model, with a bias calibrated for each head: below 0 it takes weight from the sink.

    Source: ZeroTuning, arXiv 2505.11739, which tunes γ.

    >>> first_token_softmax(jnp.zeros(3), bias=jnp.log(2.0))
    Array([0.5 , 0.25, 0.25], dtype=float32)
    """

    ignores_low = False
    by_position = True
    formula = "softmax(z + bias·[first])"
    source = "ZeroTuning, arXiv 2505.11739"

    # A larger one could carry the largest float to infinity.
    bias: ArrayLike = number(default=0.0, rule="within ±10,000", holds=lambda bias: abs(bias) <= 1e4, learn=True)

    def weights(self, row: Row) -> Float[Array, "*shape"]:
        z = row.logits
        first = row.layout.first(z != -jnp.inf)
        return _softmax(jnp.where(first, z + row.number(self.bias), z), row.layout)


class ScaledSignedAveraging(Softmax):
    r"""Scaled signed averaging: a power of the logit where softmax has the exponential.

    $$w_i = \frac{(1 + b|z_i|)^{p \operatorname{sgn} z_i}}{\sum_j (1 + b|z_j|)^{p \operatorname{sgn} z_j}}$$

    p is the `exponent`, called n in the source, and b > 0. As b = 1/p and p → ∞ this is softmax. No logit outweighs
    another by more than a power of their ratio, so that one large logit does not take the row. Adding a constant to the
    row changes the weights. Only p is learned, as in the authors' model of 114 million parameters, whose values are the
    defaults: b multiplies the logits, which the projection of the query can do.

    When to use it. In a model trained with it, where one large logit should not silence the others.

    Source: Naim et al., "SSA: Improving Performance With a Better Scoring Function", arXiv 2508.14685.

    >>> scaled_signed_averaging(jnp.array([1.0, -1.0]), exponent=1.0, b=1.0)  # 2 and 1/2, over 5/2
    Array([0.8, 0.2], dtype=float32)
    """

    shift_invariant = False
    ignores_low = False
    formula = "(1 + b|z|)^(p·sgn z) / Σ(1 + b|z|)^(p·sgn z)"
    source = "Naim et al., arXiv 2508.14685"

    exponent: ArrayLike = number(default=1.5, learn=True)
    b: ArrayLike = number(default=0.8, rule="above 0, such as 0.8", holds=lambda b: b > 0)

    def weights(self, row: Row) -> Float[Array, "*shape"]:
        # log w = p·sgn(z)·log(1 + b|z|) but for a constant; with sgn(0) = 1 its slope p·b/(1 + b|z|) is right at 0 too.
        finite = jnp.isfinite(row.logits)
        z = jnp.where(finite, row.logits, 0)
        sign = jnp.where(z < 0, -1, 1).astype(z.dtype)
        logarithm = sign * jnp.log1p(sign * arithmetic.product(row.number(self.b), z))
        return _softmax(jnp.where(finite, row.number(self.exponent) * logarithm, row.logits), row.layout)


class ClippedSoftmax(Map):
    r"""Softmax stretched beyond 0 and 1 and clipped to them, so that a finite logit may get exactly 0.

    $$w_i = \min(\max((\zeta - \gamma) \operatorname{softmax}(z)_i + \gamma,\, 0),\, 1), \qquad
      \gamma = \mathrm{gamma} - \frac{\mathrm{alpha}}{n}$$

    n counts the visible entries; `gamma` is at most 0, `alpha` at least 0, `zeta` at least 1. Clipped entries have no
    gradient. At the defaults entries below about 1/n get 0.

    When to use it. In a model trained with it, where heads should be able to do nothing without a sink. A fixed `gamma`
    belongs to one length.

    Source: Bondarenko et al., "Quantizable Transformers", arXiv 2306.12929.

    >>> [round(float(weight), 3) for weight in clipped_softmax(jnp.array([0.0, 0.0, 9.0, 9.0]))]
    [0.0, 0.0, 0.375, 0.375]
    """

    shift_invariant = True
    sums_to_one = False
    exact_zeros = True
    formula = "clip((ζ - γ)·softmax(z) + γ, 0, 1)"
    largest_weight = DISPERSES
    source = "Bondarenko et al., arXiv 2306.12929"

    gamma: ArrayLike = number(default=0.0, rule="at most 0, such as -0.03", holds=lambda gamma: gamma <= 0)
    alpha: ArrayLike = number(default=1.0, rule="at least 0, such as 1.0", holds=lambda alpha: alpha >= 0)
    zeta: ArrayLike = number(default=1.0, rule="at least 1, such as 1.0", holds=lambda zeta: zeta >= 1)

    def weights(self, row: Row) -> Float[Array, "*shape"]:
        gamma = row.number(self.gamma) - row.number(self.alpha) / jnp.maximum(row.count(), 1)
        stretched = (row.number(self.zeta) - gamma) * _softmax(row.logits, row.layout) + gamma
        return arithmetic.at_most(arithmetic.at_least(stretched, 0), 1)


class ElasticSoftmax(Map):
    r"""Softmax with a part of 1/n taken from every weight, and 0 where less is left.

    $$w_i = \max\left(\operatorname{softmax}(z)_i + \frac{\tau}{n},\, 0\right)$$

    n counts the visible entries: under a causal mask the position of the query, as published.

    When to use it. In a model trained with it, with `tau` learned for each head. At -1 entries below 1/n get 0.

    Source: Fu et al., "Attention Needs to Focus", arXiv 2601.00919.

    >>> elastic_softmax(jnp.log(jnp.array([1.0, 1.0, 2.0])), tau=-0.6).round(3)
    Array([0.05, 0.05, 0.3 ], dtype=float32)
    """

    shift_invariant = True
    sums_to_one = False
    exact_zeros = True
    formula = "relu(softmax(z) + τ/n)"
    largest_weight = DISPERSES
    source = "Fu et al., arXiv 2601.00919"

    tau: ArrayLike = number(default=-1.0, learn=True)

    def weights(self, row: Row) -> Float[Array, "*shape"]:
        left = _softmax(row.logits, row.layout) + row.number(self.tau) / jnp.maximum(row.count(), 1)
        return jnp.where(row.logits != -jnp.inf, arithmetic.at_least(left, 0), 0)


class Softpick(Map):
    r"""Rectified softmax: entries with a finite logit below 0 get exactly 0, yet still count in the denominator.

    $$w_i = \frac{\max(e^{z_i - m} - e^{-m}, 0)}{\sum_j |e^{z_j - m} - e^{-m}| + \varepsilon},
      \qquad m = \max(0, \max_j z_j)$$

    `eps`, at least 1e-37, keeps a row of zeros finite. The weights sum to at most 1. Adding a constant to the row
    changes them.

    When to use it. Where a head may attend to nothing. Train with it: where all logits are large and positive, as
    training under softmax may leave them, it is softmax.

    Source: Zuhri, Fuadi, Aji, "Softpick", arXiv 2504.20966.

    >>> softpick(jnp.array([jnp.log(2.0), jnp.log(4.0), -9.0])).round(3)
    Array([0.2, 0.6, 0. ], dtype=float32)
    """

    sums_to_one = False
    exact_zeros = True
    formula = "relu(eᶻ - 1) / (Σ|eᶻ - 1| + ε)"
    # With the rest at r the divisor is (n - 1)·|eʳ - 1|, and the rest counts for nothing only at r = 0.
    largest_weight = "Θ(1/n) if r ≠ 0, → 1 if r = 0; 0 if t ≤ 0"
    source = "Zuhri et al., arXiv 2504.20966"

    # No less is a normal number in float32.
    eps: ArrayLike = number(
        default=1e-6, rule="above 0, at least 1e-37, such as 1e-06", holds=lambda value: value >= 1e-37
    )

    def weights(self, row: Row) -> Float[Array, "*shape"]:
        # No constant in derivatives: ε is added after all terms are divided by exp(m), so m does not cancel.
        maximum = row.maximum(row.logits, 0.0)
        difference = jnp.where(row.logits != -jnp.inf, exp_less_one(row.logits, maximum), 0)
        sizes = arithmetic.keep_apart(jnp.abs(difference), difference)
        divisor = row.sum(sizes) + row.number(self.eps)
        return arithmetic.divide_row(jnp.where(difference > 0, difference, 0), divisor)


def exp_less_one(z: Float[Array, "*shape"], maximum: Float[Array, "*row"]) -> Float[Array, "*shape"]:
    """Returns (exp(z) - 1) · exp(-maximum)."""
    # Two forms of the same difference: at z = 1e-8 float32 has exp(z) - 1 = 0, and expm1(z) = 1e-8.
    small = z < 1
    return jnp.where(
        small,
        arithmetic.times_row(jnp.expm1(jnp.where(small, z, 0)), jnp.exp(-maximum)),
        jnp.exp(z - maximum) - jnp.exp(-maximum),
    )


class Sigmoid(Map):
    r"""Each entry by itself: no entry competes with another, but through their number.

    $$w_i = \sigma(z_i + b), \qquad b = -\log n \text{ unless given}$$

    n is the number of visible entries, so that a row of zeros has about the weights of softmax. The weights do not sum
    to 1. Adding a constant to the row changes them.

    When to use it. In a model trained with it. A row may attend to many entries fully, or to nothing.

    Source: Ramapuram et al., "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", arXiv 2409.04431.

    >>> sigmoid(jnp.array([0.0, jnp.log(2.0)])).round(3)
    Array([0.333, 0.5  ], dtype=float32)
    """

    sums_to_one = False
    formula = "σ(z - log n)"
    largest_weight = DISPERSES
    source = "Ramapuram et al., arXiv 2409.04431"

    bias: ArrayLike | None = number(default=None, rule="such as -5.0")

    def weights(self, row: Row) -> Float[Array, "*shape"]:
        bias = -jnp.log(jnp.maximum(row.count(), 1)) if self.bias is None else row.number(self.bias)
        visible = row.logits != -jnp.inf
        weights = jnp.where(visible, jax.nn.sigmoid(jnp.where(visible, row.logits, 0) + bias), 0)
        return weights + row.zero()


class Hardmax(Map):
    r"""One-hot of the largest logit: the limit of softmax(z / θ) as θ → 0.

    $$w_i = \begin{cases} 1 & z_i = \max_j z_j \\ 0 & \text{otherwise} \end{cases}$$

    Entries that tie for the maximum share the weight equally, as they do in that limit. The gradient is 0. No
    temperature gives the largest logit more weight; one may still answer more, since an average of entries can be right
    where the largest is wrong.

    When to use it. To measure with: its errors are wrong entries on top, not dispersion. It bounds the weight, not the
    accuracy, of every temperature.

    >>> hardmax(jnp.array([1.0, 3.0, 3.0, 2.0]))
    Array([0. , 0.5, 0.5, 0. ], dtype=float32)
    """

    shift_invariant = True
    ignores_low = True
    exact_zeros = True
    formula = "one-hot of the largest logit"
    largest_weight = "= 1"
    source = "folklore"

    def weights(self, row: Row) -> Float[Array, "*shape"]:
        z = row.logits
        maximum = jax.lax.stop_gradient(row.maximum(z))
        # A gap of 0 counts too, as β = 0 leaves it; of NaN it is NaN.
        gap = jax.lax.stop_gradient(arithmetic.subtract_pivot(z, maximum))
        largest = jnp.where(jnp.isnan(gap), jnp.nan, (arithmetic.reaches(z, maximum) | (gap == 0)).astype(z.dtype))
        largest = jnp.where(z != -jnp.inf, largest, 0)
        total = row.sum(largest)
        return largest / jnp.where(total == 0, 1, total)  # 0 in an empty row


class ShiftedSoftmax(Softmax):
    r"""Softmax of shifted logits, sometimes published under the name of SSMax: it is plain softmax.

    $$w = \operatorname{softmax}(z - s \log n) = \operatorname{softmax}(z)$$

    `n` is the number of visible entries. A shift is the same for the whole row, so it cancels before anything is
    computed, and the gradient in `s` is 0. Kept to show just that; the real SSMax is `ssmax`, which multiplies.

    When to use it. To see that a shift changes nothing. The formula has circulated as SSMax, which multiplies.

    >>> z = jnp.array([1.0, 2.0, 3.0])
    >>> bool(jnp.allclose(shifted_softmax(z, s=5.0), softmax(z - 5.0 * jnp.log(3.0))))
    True
    """

    formula = "softmax(z - s·log n), which is softmax(z)"
    source = "published as SSMax"

    s: ArrayLike = number(default=1.0)


class SignedL1(Map):
    r"""Logits over one plus their absolute sum, sometimes published under the name of Softpick.

    $$w_i = \frac{z_i}{1 + \sum_j |z_j|}$$

    Weights carry the sign of their logit and their absolute values sum to less than 1. There is no
    exponential, so nothing is picked; the real Softpick is `softpick`. A logit of -inf counts as masked.

    When to use it. To compare with. The formula has circulated as Softpick; without an exponential nothing stands out
    of a long row.

    >>> signed_l1(jnp.array([1.0, -2.0]))
    Array([ 0.25, -0.5 ], dtype=float32)
    """

    sums_to_one = False
    exact_zeros = True
    signed = True
    formula = "z / (1 + Σ|z|)"
    largest_weight = "Θ(1/n) if r ≠ 0, = δ/(1 + δ) if r = 0"
    source = "published as Softpick"

    def weights(self, row: Row) -> Float[Array, "*shape"]:
        z = jnp.where(row.logits == -jnp.inf, 0, row.logits)
        # Dividing through by the largest keeps the sum finite; by at most 1e37, whose reciprocal is not subnormal.
        sizes = jnp.abs(z)
        pivot = row.maximum(jnp.where(sizes == jnp.inf, sizes, arithmetic.at_most(sizes, 1e37)), 1.0)
        pivot = jax.lax.stop_gradient(pivot)
        ratio = z / pivot
        return arithmetic.divide_row(ratio, row.sum(jnp.abs(ratio)) + 1 / pivot)


def soft_cap(logits: Float[Array, "*shape"], cap: ArrayLike) -> Float[Array, "*shape"]:
    r"""Bounds logits smoothly: $c \tanh(z / c)$, with c the cap above 0.

    Logits that are not finite stay as they are: -inf is hidden, and what else there is leaves its row without weights.

    Source: Gemma Team, "Gemma 2", arXiv 2408.00118.

    >>> [round(float(logit), 3) for logit in soft_cap(jnp.array([1.0, 100.0, -jnp.inf]), 50.0)]
    [1.0, 48.201, -inf]
    """
    cap, finite = checks.against(cap, logits), jnp.isfinite(logits)
    # Of 20 the hyperbolic tangent is 1; the quotient by a small cap would overflow, and its derivative with it.
    bounded = jnp.clip(jnp.where(finite, logits, 0), -20 * cap, 20 * cap)
    return jnp.where(finite, cap * jnp.tanh(bounded / cap), logits)


softmax = Softmax()
softmax1 = Softmax1()
sigmoid = Sigmoid()
sink_softmax = SinkSoftmax()
softmax_n = SoftmaxN()
first_token_softmax = FirstTokenSoftmax()
scaled_signed_averaging = ScaledSignedAveraging()
clipped_softmax = ClippedSoftmax()
elastic_softmax = ElasticSoftmax()
softpick = Softpick()
hardmax = Hardmax()
shifted_softmax = ShiftedSoftmax()
signed_l1 = SignedL1()
