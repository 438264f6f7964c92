r"""Every published method: a map by itself, or over a scale, under the name that `normalizer` knows.

A method is called as `jax.nn.softmax` is, with its numbers as keywords. `ssmax`, for one, is the map `softmax` over
the scale `LogLength`: $w = \operatorname{softmax}((s \ln n + b)\, z)$, with n the number of visible entries.

>>> import jax.numpy as jnp
>>> z = jnp.array([3.0] + [-2.0] * 999)
>>> [round(float(w), 4) for w in (maps.softmax(z)[0], ssmax(z, s=0.43)[0])]
[0.1293, 0.9996]
>>> bool(adaptive_temperature_softmax(z[:32])[0] > maps.softmax(z[:32])[0])
True
>>> round(float(scalable_softpick(jnp.array([1.0, -1.0, -1.0, -1.0]), s=1.0)[0]), 3)
0.571
>>> round(float(length_scaled_softmax(jnp.array([1.0] * 10 + [-1.0] * 190), m=10, eps=0.25)[:10].sum()), 4)
0.75
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

from softmax_jax.normalizers import maps, sparse
from softmax_jax.normalizers.maps import DISPERSES, Entry, Map, softmax, softpick
from softmax_jax.normalizers.normalizer import SoftCapped
from softmax_jax.normalizers.registry import Method, register
from softmax_jax.normalizers.scales import (
    ClippedLogLength,
    ConstantTemperature,
    EntropyPolynomial,
    GatedLogLength,
    LengthRatio,
    LengthRule,
    LogLength,
    LogLengthPower,
    LogPosition,
    Scale,
    SqrtLogLength,
)
from softmax_jax.normalizers.sparse import SQUARED, entmax15, stieltjes

HOLDS_A_LEAD = "→ 1 if s·δ > 1, else Θ(n^(s·δ-1))"


def method(
    name: str, part: Map, scale: type[Scale], formula: str, largest_weight: str, source: str, **defaults: Any
) -> Callable[[Callable[[], None]], Method]:
    """Registers a map over a scale under a name; the decorated function is empty and holds the docstring.

    Arguments:
        name: The name that `normalizer` knows.
        part: The map.
        scale: The class of the scale.
        formula: In plain text, as in `Entry`.
        largest_weight: As in `Entry`.
        source: As in `Entry`.
        defaults: Those of this method where they differ from those of the scale.
    """

    def register_with(description: Callable[[], None]) -> Method:
        entry = Entry(formula, largest_weight, source, inspect.getdoc(description) or "")
        return register(name, part, scale, entry, **defaults)

    return register_with


register("softmax", maps.softmax)
register("soft_capped", SoftCapped())


@method("temperature", softmax, ConstantTemperature, "softmax(z/θ)", DISPERSES, "folklore")
def temperature_softmax() -> None:
    r"""Softmax at a temperature.

    $$w = \operatorname{softmax}(z / \theta)$$

    When to use it. For one known length. The best θ for each length is the mark that adaptive methods are measured
    against.

    >>> [round(float(weight), 3) for weight in temperature_softmax(jnp.array([1.0, 0.0]), theta=0.5)]
    [0.881, 0.119]
    """


@method(
    "adaptive",
    softmax,
    EntropyPolynomial,
    "softmax(β(H)·z), β a polynomial of the entropy H",
    DISPERSES,
    "Veličković et al., arXiv 2410.01104",
)
def adaptive_temperature_softmax() -> None:
    r"""Softmax at the temperature that a polynomial gives for the entropy of the row.

    $$w = \operatorname{softmax}(\beta(H)\, z),\qquad \beta(H) = \begin{cases} \max(\operatorname{poly}(H), 1) & H >
      0.5 \\ 1 & H \le 0.5 \end{cases}$$

    When to use it. On rows longer than those of training, in a trained model. Refit it first (`python
    fit_temperature.py`): the published β exceeds 1 only for 0.849 < H < 5.945 nats.

    >>> z = jnp.array([3.0] + [0.0] * 31)
    >>> [round(float(weigh(z)[0]), 3) for weigh in (softmax, adaptive_temperature_softmax)]
    [0.393, 0.962]
    """


@method("ssmax", softmax, LogLength, "softmax((s·log n + b)·z)", HOLDS_A_LEAD, "Nakanishi, arXiv 2501.19399")
def ssmax() -> None:
    r"""Softmax of logits times the logarithm of the number of entries.

    $$w = \operatorname{softmax}((s \log n + b)\, z)$$

    When to use it. On rows longer than those of training, with s learned for each head. A lead of δ over all others
    holds at any length if s·δ > 1.

    >>> z = jnp.array([3.0] + [-2.0] * 999)
    >>> [round(float(weights[0]), 4) for weights in (softmax(z), ssmax(z, s=0.43))]
    [0.1293, 0.9996]
    """


@method(
    "clipped_ssmax", softmax, ClippedLogLength, "softmax(clip(s·log n + b, low, high)·z)", DISPERSES, "ssmax, bounded"
)
def clipped_ssmax() -> None:
    r"""SSMax whose β stays within bounds.

    $$w = \operatorname{softmax}(\operatorname{clip}(s \log n + b,\, \mathrm{low},\, \mathrm{high})\, z)$$

    When to use it. As `ssmax`, with β within bounds that training has seen.
    """


register("softpick", maps.softpick)


@method(
    "scalable_softpick",
    softpick,
    LogLength,
    "softpick((s·log n + b)·z)",
    "→ 1 if s·δ > 1, else Θ(n^(s·δ-1)), with t for δ if r < 0; → 1 if r = 0",
    "Zuhri et al., arXiv 2504.20966",
)
def scalable_softpick() -> None:
    r"""Softpick over the scale of SSMax.

    $$w = \operatorname{softpick}((s \log n + b)\, z)$$

    When to use it. As `softpick`, on rows longer than those of training.

    >>> round(float(scalable_softpick(jnp.array([1.0, -1.0, -1.0, -1.0]), s=1.0)[0]), 3)
    0.571
    """


@method(
    "length_scaled",
    softmax,
    LengthRule,
    "softmax(½ log((1-ε)(n-m)/(ε·m))·z)",
    "→ 1 if δ > 2, else Θ(n^(δ/2-1))",
    "a note of 2017",
)
def length_scaled_softmax() -> None:
    r"""Softmax at the least β that leaves a small mass outside the entries that matter.

    $$w = \operatorname{softmax}(\beta z), \qquad \beta = \tfrac{1}{2} \log \frac{(1 - \varepsilon)(n -
      m)}{\varepsilon m}$$

    When to use it. Where about m entries matter, with logits near 1, and the others, near -1, may have the mass ε.

    >>> z = jnp.array([1.0] * 10 + [-1.0] * 190)
    >>> round(float(length_scaled_softmax(z, m=10, eps=0.25)[:10].sum()), 4)
    0.75
    """


register("softmax1", maps.softmax1)
register("sigmoid", maps.sigmoid)
register("sink_softmax", maps.sink_softmax)
register("softmax_n", maps.softmax_n)
register("first_token", maps.first_token_softmax)
register("clipped_softmax", maps.clipped_softmax)
register("elastic_softmax", maps.elastic_softmax)
register("hardmax", maps.hardmax)
register("shifted_softmax", maps.shifted_softmax)
register("signed_l1", maps.signed_l1)
register("sparsemax", sparse.sparsemax)
register("entmax15", sparse.entmax15)
register("entmax", sparse.entmax)


@method(
    "asentmax",
    entmax15,
    LogLengthPower,
    "entmax15((δ + softplus(w)·(log n)^γ)·z)",
    "→ 1",
    "Vasylenko et al., arXiv 2506.16640",
)
def asentmax() -> None:
    r"""Entmax at α = 1.5 over a power of log n.

    $$w = \operatorname{entmax15}(\beta z),\qquad \beta = \delta + \operatorname{softplus}(\mathrm{weight}) \, (\log
      n)^{2 \tanh(\mathrm{power})}$$

    When to use it. On much longer rows than in training: exact zeros, and a scale that grows, learned for each head.
    """


@method(
    "adaptive_entmax15",
    entmax15,
    EntropyPolynomial,
    "entmax15(β(H)·z), β a polynomial of the entropy H of softmax",
    SQUARED,
    "this project",
)
def adaptive_entmax15() -> None:
    r"""Entmax at α = 1.5 over the scale of `adaptive`.

    $$w = \operatorname{entmax15}(\beta(H)\, z),\qquad \beta(H) \text{ as in adaptive}$$

    When to use it. As `adaptive`, with exact zeros. H is the entropy of softmax: a fit for `adaptive` was not made for
    this map.
    """


register("top_k", sparse.top_k_softmax)
register("stieltjes", sparse.stieltjes)


@method(
    "as_stieltjes", stieltjes, LogLengthPower, "stieltjes((δ + softplus(w)·(log n)^γ)·z)", DISPERSES, "AS-Stieltjes"
)
def as_stieltjes() -> None:
    r"""The Stieltjes map over the scale of `asentmax`.

    $$w = \operatorname{stieltjes}(\beta z),\qquad \beta = \delta + \operatorname{softplus}(\mathrm{weight}) \, (\log
      n)^{2 \tanh(\mathrm{power})}$$

    When to use it. As `asentmax`, without zeros.
    """


@method(
    "llama4",
    softmax,
    LogPosition,
    "softmax((1 + a·log(⌊(p + o)/L⌋ + 1))·z)",
    "→ 1 if a·δ > 1, else Θ(n^(a·δ-1))",
    "Meta, Llama 4",
)
def llama4() -> None:
    r"""Softmax over the scale of Llama 4.

    $$w = \operatorname{softmax}(\beta z), \qquad \beta = 1 + a \log\left(\left\lfloor \frac{p + o}{L} \right\rfloor +
      1\right)$$

    When to use it. In a trained model on rows of many times L entries. a is `attn_scale`, L `floor_scale`, o `offset`,
    1 in Llama 4 and 0 in Mistral 3; p the query's position, from `positions`.
    """


@method(
    "grok2",
    softmax,
    ClippedLogLength,
    "softmax(max(1, log n / log 1024)·z)",
    HOLDS_A_LEAD,
    "xAI, Grok-2",
    s=1 / math.log(1024),
    high=1e37,
)
def grok2() -> None:
    r"""Softmax over the scale of Grok-2.

    $$w = \operatorname{softmax}(\beta z), \qquad \beta = \max\left(1, \frac{\log n}{\log 1024}\right)$$

    When to use it. As `clipped_ssmax` without an upper bound: rows of up to L = 1024 entries stay as they are; `s` =
    1/log L gives another L.
    """


@method(
    "length_boost",
    softmax,
    ClippedLogLength,
    "softmax((1 + α·max(log(n/L), 0))·z)",
    HOLDS_A_LEAD,
    "folklore",
    s=1.0,
    bias=1 - math.log(16),
    high=1e37,
)
def length_boost() -> None:
    r"""Softmax whose β grows with log n beyond the length of training.

    $$w = \operatorname{softmax}(\beta z), \qquad \beta = 1 + \alpha \max(\log(n / L), 0)$$

    When to use it. In a trained model on rows of more than L = 16 entries. α is `s`, and `bias` = 1 - α·log L gives
    another L.
    """


@method("yarn", softmax, LengthRatio, "softmax((0.1·log r + 1)²·z)", DISPERSES, "Peng et al., arXiv 2309.00071")
def yarn() -> None:
    r"""Softmax over the scale of YaRN.

    $$w = \operatorname{softmax}(\beta z), \qquad \beta = (0.1 \log r + 1)^2$$

    When to use it. In a trained model with rotary positions whose context grows by a factor r, `ratio`. All rows get
    the same β.
    """


@method(
    "qassmax",
    softmax,
    GatedLogLength,
    "softmax((s·log n + b)·(1 + tanh(gate))·z)",
    HOLDS_A_LEAD,
    "TabICLv2, arXiv 2602.11139",
)
def qassmax() -> None:
    r"""SSMax whose β each query turns down or up to double.

    $$w = \operatorname{softmax}(\beta z), \qquad \beta = (s \log n + b)\,(1 + \tanh(\mathrm{gate}))$$

    When to use it. As `ssmax`, where queries of one head differ in how sharp they should be: the gate is learned,
    linear in the query. At 0 this is `ssmax`. As published both factors are perceptrons, for each feature of the query.
    """


@method(
    "sqrt_ssmax",
    softmax,
    SqrtLogLength,
    "softmax(s·√(2·log n)·z)",
    "→ 0 as e^(s·δ·√(2·log n))/n",
    "Derrida 1981, the random energy model",
)
def sqrt_ssmax() -> None:
    r"""Softmax at the critical β of rows of independent normal logits.

    $$w = \operatorname{softmax}(s \sqrt{2 \log n}\, z)$$

    When to use it. Where queries and keys are normalized, so that logits are near to standard normal numbers: their
    largest is then about √(2 log n), and this β is where it starts to hold weight. A fixed lead is lost in long rows.
    """


register("ssa", maps.scaled_signed_averaging)
