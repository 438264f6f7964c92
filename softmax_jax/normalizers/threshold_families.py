"""Families of weights that `threshold_search` makes sum to 1.

Those of sparsemax and entmax are cut at a threshold, those of Stieltjes have heavy tails. Powers that are whole and
small have families of their own, as they are faster.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from softmax_jax.normalizers.execution import is_known
from softmax_jax.normalizers.threshold_search import Family

MOST_ENTRIES = 2**40
"""More than a row has whose length is a symbol of `jax.export`."""
POWERS = 1, 2, 4
"""Those of `excess` and `tail`, which products and square roots give: a logarithm takes several times as long."""


@functools.cache
def excess(power: int) -> Family:
    """Returns the family of weights max((x - τ) / power, 0)^power, with ε = 1 / power."""

    def weigh(x: Array, tau: Array, eps: Array) -> Array:
        # Not max(x - τ, 0): XLA on CPUs would write out a 0 for each entry, as it does with any number for all rows.
        return (eps * (jnp.maximum(x, tau) - tau)) ** power

    def advance(before: Array, tau: Array, times: Array, eps: Array) -> Array:
        # The total to the power ε is a norm of the weights' bases, which is convex in τ and nearly straight: of two
        # equal entries at power 2 it is √2 (x - τ) / 2, a line, and the first secant meets its root.
        return tau + (tau - before) * times

    def derivatives(weights: Array, eps: Array) -> tuple[Array, None]:
        # w = u^power with u = (x - τ) / power, so dw/dx = u^(power - 1) = w^(1 - ε): of w = 0.25 at power 2 it is 0.5.
        return _times_power(1, weights, 4 - 4 // power), None

    # At τ = -power the largest entry, x = 0, has the weight 1; at τ = 0 no entry has any.
    return Family(weigh, derivatives, advance, -float(power), lambda entries: 0.0)


def _times_power(times: ArrayLike, weights: Float[Array, "*rows n"], quarters: int) -> Float[Array, "*rows n"]:
    """Returns times · w^(quarters/4), and 0 where w = 0."""
    # By products and square roots: 7 quarters are 1 + 1/2 + 1/4, and 16^(7/4) = 16 · 4 · 2 = 128.
    live = weights > 0
    base = jnp.where(live, weights, 1)
    root, value = jnp.sqrt(base), base ** (quarters // 4)
    value = value * root if quarters & 2 else value
    value = value * jnp.sqrt(root) if quarters & 1 else value
    return jnp.where(live, times * value, 0)


def log1p(x: Array) -> Array:
    """Returns log(1 + x) within 3 ulp; in float64 that of jax 0.10 is off by up to 120 on CPU.

    Source: Kahan's trick, Goldberg, "What every computer scientist should know about floating-point arithmetic", 1991,
    theorem 4.
    """
    if x.dtype != jnp.float64:
        return jnp.log1p(x)
    # 1 + x is rounded to r, so log r is the logarithm of another number, 1 + l with l = r - 1 exactly. log(1 + t) / t
    # changes so slowly that its value at l serves for x: log(1 + x) = log(r) · x / l. In three digits x = 0.0126 has
    # r = 1.01, l = 0.01, and 0.00995 · 1.26 = 0.01254 where log(1.0126) = 0.01252; log r itself is off by a fifth.
    rounded = jax.lax.reduce_precision(1 + x, 11, 52)  # or XLA would simplify (1 + x) - 1 to x
    lost = rounded - 1
    itself = (lost == 0) | (lost == jnp.inf)
    return jnp.where(itself, x, jnp.log(rounded) * (x / jnp.where(itself, 1, lost)))


# The entmax family has w = b^(1/ε) with the base b = 1 + ε(x - θ), cut at 0, where ε = α - 1. Its search is for
# t = -log of the largest weight, that of x = 0, so that e^(-εt) = 1 - εθ is the largest base, and
#     b = e^(-εt) + εx = e^(-εt) (1 + ε e^(εt) x),    w = e^(-t) (1 + ε e^(εt) x)^(1/ε).
# As ε → 0 this becomes e^(x - t): softmax, with t the log-sum-exp. Stieltjes has b = λ - x and ε = -1/q, so that
# e^(-εt) = λ and b = e^(-εt) (1 - e^(εt) x): the same with the rate -1 in the place of ε.
# t is at least 0, where the largest weight is 1, and at most log n, where each weight is at most 1/n.
# Sparsemax (ε = 1) of (1, 0.5, -1): the largest weight is 3/4, so e^t = 4/3, and x = -0.5 has 3/4 (1 - 2/3) = 1/4.
def _weigh_tsallis(x: Array, t: Array, eps: Array, rate: ArrayLike) -> Array:
    # Both ends of the clip are far beyond what can matter. Without a branch, which XLA on CPUs would not vectorise.
    limit = 0.9 * math.log(jnp.finfo(x.dtype).max)
    t, floor = jax.lax.optimization_barrier((t, jnp.full_like(t, -1)))  # as in the search
    shortfall = jnp.maximum(rate * jnp.exp(jnp.clip(eps * t, -limit, limit)) * x, floor)
    return jnp.exp(log1p(shortfall) * (1 / eps) - t)


def _advance_tsallis(before: Array, t: Array, times: Array, eps: Array) -> Array:
    # Linear in the largest bases B = e^(-εt): B' = B + times (B - B_before) = B (1 + times (1 - e^(ε(t - before)))),
    # whose -log over ε is t'. The total to the power ε is a norm of the bases, which is convex in B up to ε = 1.
    return t - log1p(-jnp.expm1(eps * (t - before)) * times) / eps


def _derivatives_tsallis(
    weights: Float[Array, "*rows n"], eps: Float[Array, "..."]
) -> tuple[Float[Array, "*rows n"], Float[Array, "*rows n"]]:
    """Returns the derivatives of weights (1 + ε·(x - θ))^(1/ε): in x, equal to that in -θ, and in ε at a fixed θ."""
    # In x: b^(1/ε - 1) = w^(1 - ε). In ε, with a = log b = ε log w:
    #     d(a/ε)/dε = (x - θ) / (εb) - a / ε² = ((1 - e^(-a)) - a) / ε²,    as x - θ = (b - 1) / ε,
    # so dw/dε = (w - w e^(-a) - a w) / ε², where w e^(-a) is the slope in x. Of w = 1/4 at ε = 1: a = -log 4, the slope
    # is 1, and dw/dε = 0.25 - 1 + 0.3466 = -0.4034. At ε = 0 it tends to -w log²(w) / 2.
    live = weights > 0
    logs = jnp.log(jnp.where(live, weights, 1))
    log_base = eps * logs
    # Above ε = 1 the slope of a tiny weight has no bound; this one keeps sums over the row finite.
    slopes = jnp.where(live, jnp.exp(jnp.minimum(logs - log_base, 60)), 0)
    # The difference cancels for small a, where its series -a²/2 + a³/6 - … is exact.
    small = jnp.abs(log_base) < 0.5
    series = -weights * logs**2 * _second_order(jnp.where(small, log_base, 0))
    return slopes, jnp.where(small, series, (weights - slopes - log_base * weights) / eps**2)


def _derivatives_stieltjes(
    weights: Float[Array, "*rows n"], eps: Float[Array, "..."]
) -> tuple[Float[Array, "*rows n"], Float[Array, "*rows n"]]:
    """Returns the derivatives of weights (λ - x)^(1/ε): in x, equal to that in -λ, and in ε at a fixed λ."""
    # In x: -b^(1/ε - 1) / ε = w^(1 - ε) / -ε. In ε: d(log(b) / ε)/dε = -log(b) / ε² = log(w) / -ε. At q = 1 (ε = -1)
    # and λ - x = 4, so w = 1/4: the slope is w² = 1/16, and dw/dε = log(1/4) / 4 = -0.3466.
    live = weights > 0
    logs = jnp.log(jnp.where(live, weights, 1))
    return jnp.where(live, jnp.exp((1 - eps) * logs) / -eps, 0), weights * logs / -eps


def _second_order(a: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns (exp(-a) - 1 + a) / a² for |a| < 1/2, by its series 1/2 - a/6 + a²/24 - …."""
    value = jnp.zeros_like(a)
    for power in range(12, -1, -1):
        value = 1 / math.factorial(power + 2) - a * value
    return value


TSALLIS = Family(
    lambda x, t, eps: _weigh_tsallis(x, t, eps, eps),
    _derivatives_tsallis,
    _advance_tsallis,
    0.0,
    lambda entries: math.log(max(entries, 1) if is_known(entries) else MOST_ENTRIES) + 1,
)
"""Weights (1 + ε·(x - θ))^(1/ε), for any ε but 0, which `solve` replaces; the threshold stands for θ."""

STIELTJES = TSALLIS._replace(
    weigh=lambda x, t, eps: _weigh_tsallis(x, t, eps, -1.0), derivatives=_derivatives_stieltjes
)
"""Weights (λ - x)^(1/ε) for ε below 0, which are those of `TSALLIS` for x over -ε; the threshold stands for λ."""


@functools.cache
def tail(power: int) -> Family:
    """Returns the family of weights (λ - x)^-power, `STIELTJES` at a whole power, with ε = -1 / power."""

    def weigh(x: Array, t: Array, eps: Array) -> Array:
        return (1 / (jnp.exp(-eps * t) - x)) ** power

    def derivatives(weights: Array, eps: Array) -> tuple[Array, None]:
        # dw/dx = power · (λ - x)^(-power - 1) = w^(1 + 1/power) / -ε: of w = 1/4 at power 2, 2 · (1/2)³ = 1/4.
        return _times_power(-1 / eps, weights, 4 + 4 // power), None

    return STIELTJES._replace(weigh=weigh, derivatives=derivatives)
