"""Scales: each gives a row's inverse temperature β = 1/θ, from the row itself."""

import abc
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.checks import against
from softmax_jax.normalizers.parameters import Numbers, number
from softmax_jax.normalizers.row import AnyAxis, AnyMask, Axis, Mask, Row, axis_and_mask, entropy
from softmax_jax.refusal import Refusal

ScaleLike = Callable[[Float[Array, "*shape"], Axis, Mask], Float[Array, "..."]]
"""Anything from (logits, axis, where) to inverse temperatures that broadcast against the logits."""


class Scale(Numbers, abc.ABC):
    """Gives β of each row, from the `Row`. One that reads only its `count` and `entropy` may ride a fused kernel too.

    A subclass has its numbers as fields, each with a default, and defines `of_row`.

    >>> class Constant(Scale):
    ...     def of_row(self, row):
    ...         return row.number(2.0)
    >>> Constant()(jnp.zeros(3), -1, None)
    Array([2.], dtype=float32)
    """

    @abc.abstractmethod
    def of_row(self, row: Row) -> Float[Array, "..."]:
        """Returns β, which broadcasts against the logits."""

    def __call__(self, logits: Float[Array, "*shape"], axis: AnyAxis, where: AnyMask) -> Float[Array, "..."]:
        axis, where = axis_and_mask(logits, axis, where)
        return self.of_row(Row.of(logits, axis, where))


class ConstantTemperature(Scale):
    """One temperature for every row: β = 1/θ. `theta` > 0; below 1 it sharpens.

    >>> ConstantTemperature(theta=0.5)(jnp.zeros(3), -1, None)
    Array([2.], dtype=float32)
    """

    theta: ArrayLike = number(default=1.0, rule="above 0, such as 1.0", holds=lambda theta: theta > 0)

    def of_row(self, row: Row) -> Float[Array, "..."]:
        return 1 / row.number(self.theta)


class InverseTemperature(Scale):
    """A given β: one for every row, or an array that broadcasts against the logits, the row's axis at size 1.

    For a β that something else computes, such as one per query of shape (batch, heads, queries, 1). At 0 all
    visible entries weigh the same; below 0 the order of the logits is reversed.

    >>> InverseTemperature(beta=2.0)(jnp.zeros(3), -1, None)
    Array([2.], dtype=float32)
    """

    beta: ArrayLike = number(default=1.0)

    def of_row(self, row: Row) -> Float[Array, "..."]:
        return row.number(self.beta)


class LogLength(Scale):
    """The scale of SSMax: β = s·log n + b, with n the number of visible entries (a logit of -inf is none), natural log.

    The method registered as `ssmax` is the map `softmax` over this scale. The default `s` makes β = 1 for rows of 16
    entries.

    Source: Nakanishi, "Scalable-Softmax Is Superior for Attention", arXiv 2501.19399.

    >>> round(float(LogLength(s=0.5)(jnp.zeros(100), -1, None)[0]), 3)
    2.303
    """

    s: ArrayLike = number(default=1 / math.log(16), learn=True)
    bias: ArrayLike = number(default=0.0)

    def of_row(self, row: Row) -> Float[Array, "..."]:
        # With β = s·log n a lead of δ over n - 1 equal logits has the weight 1 / (1 + (n - 1) n^(-s·δ)), which stays
        # near 1 for any n if s·δ > 1: at s = 0.43, δ = 5 and n = 1000 it is 1 / (1 + 999 · 1000^-2.15) = 0.9996.
        count = jnp.maximum(row.count(), 1)
        return row.number(self.s) * jnp.log(count) + row.number(self.bias)


class ClippedLogLength(Scale):
    """The scale of SSMax within bounds: β = s·log n + b, clipped to [low, high].

    n is the number of visible entries; a logit of -inf is none.
    The default bounds leave rows of up to 16 entries as they are and stop at rows of 4096. A learned `s` gets
    no gradient from a row at a bound. `low` must lie below `high`. With s = 1/log L, `low` = 1 and no bound above it
    is the scale of Grok-2, β = max(1, log n / log L), which counts the entries before the query, one less.

    >>> ClippedLogLength(s=1.0, low=1.0, high=3.0)(jnp.zeros(100), -1, None)
    Array([3.], dtype=float32)
    """

    s: ArrayLike = number(default=1 / math.log(16), learn=True)
    bias: ArrayLike = number(default=0.0)
    low: ArrayLike = number(default=1.0)
    high: ArrayLike = number(default=3.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(map(checks.is_jax, (self.low, self.high))) and np.any(np.asarray(self.low) >= np.asarray(self.high)):
            raise Refusal(f"low is {self.low!r} and high is {self.high!r}; low must lie below high: give 1.0 and 3.0")

    def of_row(self, row: Row) -> Float[Array, "..."]:
        beta = LogLength(self.s, self.bias).of_row(row)
        return jnp.clip(beta, row.number(self.low), row.number(self.high))


class LogLengthPower(Scale):
    r"""The scale of ASEntmax: a power of log n, with n the number of visible entries (a logit of -inf is none).

    $$\beta = \delta + \operatorname{softplus}(\text{weight}) \cdot (\log n)^\gamma, \qquad
      \gamma = 2 \tanh(\text{power})$$

    `weight` and `power` may take any value, so they are learned without bounds: what multiplies stays
    positive, γ between -2 and 2. With the defaults β = 1 + 0.693·log n. A row of one entry, whose log n = 0
    has no negative power, has β = δ.

    Source: Vasylenko et al., "Long-Context Generalization with Sparse Attention", arXiv 2506.16640, where
    `weight` and `power` are linear in the query, as `NnxAttention` and `LinenAttention` learn them with `of_query`.

    >>> round(float(LogLengthPower(weight=0.0, power=0.5, delta=1.0)(jnp.zeros(100), -1, None)[0]), 3)
    3.843
    """

    weight: ArrayLike = number(default=0.0, learn=True, of_query=True)
    power: ArrayLike = number(default=math.atanh(1 / 2), learn=True, of_query=True)
    delta: ArrayLike = number(default=1.0)

    def of_row(self, row: Row) -> Float[Array, "..."]:
        count = row.count()
        gamma = 2 * jnp.tanh(row.number(self.power))
        # The derivative in γ is (log n)^γ · log(log n), not finite at log 1 = 0: n is replaced before the power.
        # The defaults have γ = 2·tanh(atanh(1/2)) = 1 and softplus(0) = log 2: β = 1 + 0.693 · 2.773 = 2.922 at n = 16.
        power = jnp.where(count > 1, jnp.log(jnp.maximum(count, 2)) ** gamma, 0)
        return row.number(self.delta) + jax.nn.softplus(row.number(self.weight)) * power


class GatedLogLength(Scale):
    r"""The scale of QASSMax with one factor for each query: that of SSMax times a gate, which reads the query.

    $$\beta = (s \log n + b)\,(1 + \tanh(\text{gate}))$$

    n is the number of visible entries; a logit of -inf is none. The gate leaves β between 0 and twice that of SSMax. As
    published a perceptron gives the first factor from log n, another the gate from the query, and each feature of the
    query has factors of its own. One β for each row leaves room for one of each; here both are linear, the gate in the
    query, as `NnxAttention` and `LinenAttention` learn it with `of_query`.

    Source: "TabICLv2: A better, faster, scalable, and open tabular foundation model", arXiv 2602.11139.

    >>> round(float(GatedLogLength(s=0.5, gate=0.5)(jnp.zeros(100), -1, None)[0]), 3)  # 2.303 · 1.462
    3.367
    """

    s: ArrayLike = number(default=1 / math.log(16), learn=True)
    bias: ArrayLike = number(default=0.0, learn=True)
    gate: ArrayLike = number(default=0.0, learn=True, of_query=True)

    def of_row(self, row: Row) -> Float[Array, "..."]:
        return LogLength(self.s, self.bias).of_row(row) * (1 + jnp.tanh(row.number(self.gate)))


class SqrtLogLength(Scale):
    r"""The critical scale of normal logits: $\beta = s \sqrt{2 \log n}$, with n the number of visible entries.

    The largest of n independent standard normal numbers is near √(2 log n), and at that β softmax passes from weights
    that are spread over the row to weights that a few entries hold, as n → ∞. Queries and keys of d features that are
    normalized to mean square 1 have such logits where their product is divided by √d and their directions are random.
    A row of one entry has β = 0.

    Source: Derrida, "Random-energy model", Physical Review B 24 (1981), whose freezing temperature this is.

    >>> round(float(SqrtLogLength()(jnp.zeros(100), -1, None)[0]), 3)
    3.035
    """

    s: ArrayLike = number(default=1.0, learn=True)

    def of_row(self, row: Row) -> Float[Array, "..."]:
        return row.number(self.s) * jnp.sqrt(2 * jnp.log(jnp.maximum(row.count(), 1)))


class LogPosition(Scale):
    r"""The scale of Llama 4: β grows by a logarithm of the query's position, in steps.

    $$\beta = 1 + a \log\left(\left\lfloor \frac{p + o}{L} \right\rfloor + 1\right)$$

    a is `attn_scale` and L `floor_scale`, at least 1: the length up to which β = 1. o is `offset`, 1 in Llama 4 and 0
    in Mistral 3, where the row at p = L is the first with another β.

    `positions` holds p, the number of entries before the query, for each row: an array that broadcasts against the
    logits with the row's axis at size 1, as (queries, 1) for logits of shape (batch, heads, queries, keys). Without it
    p + 1 is the number of visible entries, which under a causal mask is the same. An empty row has β = 1.

    Source: Meta, Llama 4 (2025), whose layers without positions have it; the numbers are those of its configuration.

    >>> scale = LogPosition(floor_scale=2.0, positions=jnp.array([[0], [1], [3]]))
    >>> [round(float(beta), 4) for beta in scale(jnp.zeros((3, 5)), -1, None).ravel()]
    [1.0, 1.0693, 1.1099]
    """

    attn_scale: ArrayLike = number(default=0.1)
    floor_scale: ArrayLike = number(default=8192.0, rule="at least 1, such as 8192.0", holds=lambda length: length >= 1)
    positions: ArrayLike | None = number(default=None, rule="at least 0, such as 0.0", holds=lambda p: p >= 0)
    offset: ArrayLike = number(default=1.0, rule="at least 0, such as 0.0 or 1.0", holds=lambda offset: offset >= 0)

    def of_row(self, row: Row) -> Float[Array, "..."]:
        # At p = 8191 and o = 1 the quotient is 8192 / 8192: the first step, β = 1 + 0.1·log 2 = 1.0693.
        position = jnp.maximum(row.count() - 1, 0) if self.positions is None else row.number(self.positions)
        steps = jnp.floor((position + row.number(self.offset)) / row.number(self.floor_scale))
        return 1 + row.number(self.attn_scale) * jnp.log1p(steps)


class LengthRatio(Scale):
    r"""The scale of YaRN: $\beta = (0.1 \log r + 1)^2$, with r the ratio of the length to that of training.

    The ratio, at least 1, is the same for all rows; at 1 the temperature is that of training. As published it goes
    with rotary positions that are interpolated by the same ratio.

    Source: Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", arXiv 2309.00071,
    where $\sqrt{1/t} = 0.1 \ln s + 1$.

    >>> round(float(LengthRatio(16.0)(jnp.zeros((1, 5)), -1, None).squeeze()), 4)
    1.6314
    """

    ratio: ArrayLike = number(default=1.0, rule="at least 1, such as 4.0", holds=lambda ratio: ratio >= 1)

    def of_row(self, row: Row) -> Float[Array, "..."]:
        return (0.1 * jnp.log(row.number(self.ratio)) + 1) ** 2


class LengthRule(Scale):
    r"""The least β that leaves a mass of at most ε outside the m entries that matter.

    $$\beta = \tfrac12 \ln \frac{(1-\varepsilon)(n-m)}{\varepsilon m}, \qquad
      \beta = 0 \text{ where that is negative or } n \le m$$

    Derived for rows of n visible entries (a logit of -inf is none) of which m have logit +1 and the others -1.
    `m` > 0 and 0 < `eps` < 1.

    Source: a note of 2017 on softmax over long rows.

    >>> round(float(LengthRule(m=10, eps=0.25)(jnp.zeros(200), -1, None)[0]), 3)
    2.022
    """

    m: ArrayLike = number(default=1.0, rule="above 0, such as 1.0", holds=lambda m: m > 0)
    eps: ArrayLike = number(default=0.05, rule="between 0 and 1, such as 0.05", holds=lambda eps: 0 < eps < 1)

    def of_row(self, row: Row) -> Float[Array, "..."]:
        # The mass outside is (n - m) e^-β / ((n - m) e^-β + m e^β) = ε, so e^(2β) = (1 - ε)(n - m) / (ε m), the odds.
        # At n = 200, m = 10 and ε = 1/4 they are 57, and β = log(57) / 2 = 2.0215 leaves the mass 0.25 outside.
        m, eps = row.number(self.m), row.number(self.eps)
        odds = (1 - eps) * (row.count() - m) / (eps * m)
        return jnp.log(jnp.maximum(odds, 1)) / 2


class EntropyPolynomial(Scale):
    r"""Adaptive temperature: β is a polynomial of the entropy H of the row's softmax.

    The method registered as `adaptive` is the map `softmax` over this scale.

    $$\beta = \max(\mathrm{poly}(H), \text{floor}) \text{ if } H > \text{threshold, else } 1$$

    `coefficients` come highest power first; `entropy_range` (low, high), in nats, clamps H before the
    polynomial is evaluated, for fits that hold only there. With the default, published coefficients β
    exceeds 1 only for 0.849 < H < 5.945 nats.

    Source: Veličković et al., "softmax is not enough", arXiv 2410.01104, the adaptive temperature function.

    >>> round(float(EntropyPolynomial()(jnp.zeros(32), -1, None)[0]), 3)  # at H = log 32
    2.309
    """

    coefficients: tuple[ArrayLike, ...] = number(default=(-0.037, 0.481, -2.3, 4.917, -1.791), many=True)
    threshold: ArrayLike = number(default=0.5)
    floor: ArrayLike = number(default=1.0)
    entropy_range: tuple[ArrayLike, ...] | None = number(default=None, many=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.coefficients:
            raise Refusal("coefficients is (); it must hold at least one number, such as (1.0,) for a constant")
        plain = [end for end in self.entropy_range or () if isinstance(end, float)]
        if self.entropy_range is not None and (len(self.entropy_range) != 2 or plain != sorted(set(plain))):
            raise Refusal(
                f"entropy_range is {self.entropy_range!r}; it must be (low, high) with low below high, "
                "such as (0.5, 6.0)"
            )

    def of_row(self, row: Row) -> Float[Array, "..."]:
        # Where the polynomial decides, dβ/dz = poly'(H)·dH/dz, and dH is written where the entropy is. Below the
        # threshold or the floor, and outside of the range of entropies, β is constant in z, and the selects stop dβ.
        row_entropy = row.entropy()
        beta = jnp.maximum(self.polynomial(row_entropy), row.number(self.floor))
        return jnp.where(row_entropy > row.number(self.threshold), beta, jnp.ones((), row_entropy.dtype))

    def extrapolates(self, logits: Float[Array, "*shape"], axis: Axis, where: Mask) -> Bool[Array, "..."]:
        """Returns True for rows above the threshold whose entropy lies outside `entropy_range`; axis kept at size 1."""
        row_entropy = entropy(logits, axis, where)
        low, high = (-jnp.inf, jnp.inf) if self.entropy_range is None else self.entropy_range
        inside = (against(low, logits) <= row_entropy) & (row_entropy <= against(high, logits))
        return (row_entropy > against(self.threshold, logits)) & ~inside

    def polynomial(self, row_entropy: Float[Array, "*row"]) -> Float[Array, "*row"]:
        """Returns poly(H), with H clamped to `entropy_range` first."""
        if self.entropy_range is not None:
            low, high = (against(bound, row_entropy) for bound in self.entropy_range)
            row_entropy = jnp.clip(row_entropy, low, high)
        # Horner's rule: (2, 3, 4) at H = 1 is ((2)·1 + 3)·1 + 4 = 9; the published coefficients at H = 2 give 2.099.
        value = jnp.zeros_like(row_entropy)
        for coefficient in self.coefficients:
            value = value * row_entropy + against(coefficient, row_entropy)
        return value


class EntropyInterpolation(Scale):
    r"""Adaptive temperature of any shape: β by linear interpolation of the entropy H of the row's softmax.

    β goes through `betas` at `entropies`, which ascend, in nats, and stays at the first and last beyond them; it is
    at least the floor, and 1 up to the threshold.

    >>> shape = EntropyInterpolation(entropies=jnp.array([1.0, 2.0]), betas=jnp.array([1.0, 3.0]))
    >>> shape(jnp.zeros((1, 5)), -1, None)  # H = log 5 = 1.609
    Array([[2.218876]], dtype=float32)
    """

    entropies: Float[ArrayLike, " knots"]
    betas: Float[ArrayLike, " knots"]
    threshold: ArrayLike = number(default=0.5)
    floor: ArrayLike = number(default=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if jnp.shape(self.entropies) != jnp.shape(self.betas):
            raise Refusal(
                f"entropies has shape {jnp.shape(self.entropies)} and betas {jnp.shape(self.betas)}; they must be "
                "alike: give one β for each entropy"
            )
        known = None if checks.is_traced(self.entropies) else np.asarray(self.entropies)
        if known is not None and not np.all(np.diff(known) >= 0):
            raise Refusal(f"entropies is {known.tolist()}; they must ascend: sort them, and betas with them")

    def of_row(self, row: Row) -> Float[Array, "..."]:
        # Between knots at 1 and 2 with β = 1 and 3, H = log 5 = 1.609 has β = 1 + 2 · 0.609 = 2.219, and dβ/dH = 2.
        row_entropy = row.entropy()
        knots, values = (jnp.asarray(numbers, row_entropy.dtype) for numbers in (self.entropies, self.betas))
        beta = jnp.maximum(jnp.interp(row_entropy, knots, values), row.number(self.floor))
        return jnp.where(row_entropy > row.number(self.threshold), beta, jnp.ones((), row_entropy.dtype))
