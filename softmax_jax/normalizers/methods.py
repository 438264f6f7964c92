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

import math

from softmax_jax.normalizers import maps, sparse
from softmax_jax.normalizers.maps import DISPERSES, Entry
from softmax_jax.normalizers.normalizer import SoftCapped
from softmax_jax.normalizers.registry import register
from softmax_jax.normalizers.scales import (
    ClippedLogLength,
    ConstantTemperature,
    EntropyPolynomial,
    LengthRatio,
    LengthRule,
    LogLength,
    LogLengthPower,
    LogPosition,
)

BETA_OF_ENTROPY = (
    r"\qquad \beta(H) = \begin{cases} \max(\operatorname{poly}(H), 1) & H > 0.5 \\ 1 & H \le 0.5 \end{cases}"
)
GROWING = r"\qquad \beta = \delta + \operatorname{softplus}(\mathrm{weight}) \, (\log n)^{2 \tanh(\mathrm{power})}"
GROK2_LENGTH = 1024
HOLDS_A_LEAD = "→ 1 if s·δ > 1, else Θ(n^(s·δ-1))"

register("softmax", maps.softmax)
register("soft_capped", SoftCapped())
temperature_softmax = register(
    "temperature",
    maps.softmax,
    ConstantTemperature,
    Entry(
        "softmax(z/θ)",
        r"w = \operatorname{softmax}(z / \theta)",
        DISPERSES,
        "folklore",
        "When one number may be tuned for a length that is known beforehand. The best θ for each length is the mark "
        "that adaptive methods are measured against. It delays dispersion and does not end it.",
    ),
)
adaptive_temperature_softmax = register(
    "adaptive",
    maps.softmax,
    EntropyPolynomial,
    Entry(
        "softmax(β(H)·z), β a polynomial of the entropy H",
        r"w = \operatorname{softmax}(\beta(H)\, z)," + BETA_OF_ENTROPY,
        DISPERSES,
        "Veličković et al., arXiv 2410.01104",
        "For a trained model whose parameters stay as they are, on rows longer than those of training. "
        "[Refit](refit.md) the polynomial to your model first: the published one was fitted to another, and is above 1 "
        "for 0.849 < H < 5.945 nats alone. On flatter rows it is softmax again.",
    ),
)
ssmax = register(
    "ssmax",
    maps.softmax,
    LogLength,
    Entry(
        "softmax((s·log n + b)·z)",
        r"w = \operatorname{softmax}((s \log n + b)\, z)",
        HOLDS_A_LEAD,
        "Nakanishi, arXiv 2501.19399",
        "In a model that is to meet longer rows than it was trained on, with s learned for each head. A lead of δ over "
        "all others holds at any length if s·δ > 1. It costs one factor on the query.",
    ),
)
register(
    "clipped_ssmax",
    maps.softmax,
    ClippedLogLength,
    Entry(
        "softmax(clip(s·log n + b, low, high)·z)",
        r"w = \operatorname{softmax}(\operatorname{clip}(s \log n + b,\, \mathrm{low},\, \mathrm{high})\, z)",
        DISPERSES,
        "ssmax, bounded",
        "As `ssmax`, where β must stay within bounds that training has seen. Beyond the upper bound it disperses as "
        "softmax does at that β.",
    ),
)
register("softpick", maps.softpick)
scalable_softpick = register(
    "scalable_softpick",
    maps.softpick,
    LogLength,
    Entry(
        "softpick((s·log n + b)·z)",
        r"w = \operatorname{softpick}((s \log n + b)\, z)",
        HOLDS_A_LEAD,
        "Zuhri et al., arXiv 2504.20966",
        "As `softpick`, on rows longer than those of training: the scale of `ssmax` keeps the lead that the map alone "
        "would lose.",
    ),
)
length_scaled_softmax = register(
    "length_scaled",
    maps.softmax,
    LengthRule,
    Entry(
        "softmax(½ log((1-ε)(n-m)/(ε·m))·z)",
        r"w = \operatorname{softmax}(\beta z), \qquad "
        r"\beta = \tfrac{1}{2} \log \frac{(1 - \varepsilon)(n - m)}{\varepsilon m}",
        "→ 1 if δ > 2, else Θ(n^(δ/2-1))",
        "a note of 2017",
        "When about m entries of a row matter, and their logits are near +1 and those of the others near −1. It has "
        "nothing to learn: m and the mass ε that may go elsewhere are said beforehand.",
    ),
)
register("softmax1", maps.softmax1)
register("sigmoid", maps.sigmoid)
register("sink_softmax", maps.sink_softmax)
register("hardmax", maps.hardmax)
register("shifted_softmax", maps.shifted_softmax)
register("signed_l1", maps.signed_l1)
register("sparsemax", sparse.sparsemax)
register("entmax15", sparse.entmax15)
register("entmax", sparse.entmax)
register(
    "asentmax",
    sparse.entmax15,
    LogLengthPower,
    Entry(
        "entmax15((δ + softplus(w)·(log n)^γ)·z)",
        r"w = \operatorname{entmax15}(\beta z)," + GROWING,
        "→ 1",
        "Vasylenko et al., arXiv 2506.16640",
        "In a model that is to meet much longer rows: exact zeros, and a scale that grows with the row. All three "
        "numbers may be learned for each head.",
    ),
)
register(
    "adaptive_entmax15",
    sparse.entmax15,
    EntropyPolynomial,
    Entry(
        "entmax15(β(H)·z), β a polynomial of the entropy H of softmax",
        r"w = \operatorname{entmax15}(\beta(H)\, z)," + BETA_OF_ENTROPY,
        sparse.SQUARED,
        "this project",
        "As `adaptive`, for a trained model that may have zeros among its weights. H is the entropy of softmax, so a "
        "fit made for `adaptive` can be read, but was not made for this map.",
    ),
)
register("top_k", sparse.top_k_softmax)
register("stieltjes", sparse.stieltjes)
register(
    "as_stieltjes",
    sparse.stieltjes,
    LogLengthPower,
    Entry(
        "stieltjes((δ + softplus(w)·(log n)^γ)·z)",
        r"w = \operatorname{stieltjes}(\beta z)," + GROWING,
        DISPERSES,
        "AS-Stieltjes",
        "As `asentmax`, without zeros: the scale holds the tail together as the row grows.",
    ),
)
register(
    "llama4",
    maps.softmax,
    LogPosition,
    Entry(
        "softmax((1 + a·log(⌊(p + 1)/L⌋ + 1))·z)",
        r"w = \operatorname{softmax}(\beta z), \qquad "
        r"\beta = 1 + a \log\left(\left\lfloor \frac{p + 1}{L} \right\rfloor + 1\right)",
        "→ 1 if a·δ > 1, else Θ(n^(a·δ-1))",
        "Meta, Llama 4",
        "In a trained model on rows of many times L entries, where it sharpens little by little and leaves shorter "
        "rows as they are. a is `attn_scale` and L `floor_scale`; p is the query's position, from `positions`, and "
        "without these p + 1 is the number of visible entries.",
    ),
)
register(
    "grok2",
    maps.softmax,
    ClippedLogLength,
    Entry(
        "softmax(max(1, log n / log 1024)·z)",
        r"w = \operatorname{softmax}(\beta z), \qquad "
        rf"\beta = \max\left(1, \frac{{\log n}}{{\log {GROK2_LENGTH}}}\right)",
        HOLDS_A_LEAD,
        "xAI, Grok-2",
        "As `clipped_ssmax`, without a bound above: rows of up to L = 1024 entries stay as they are. Another L is "
        "`s` = 1/log L. Grok-2 counts the entries before the query, one less than n under its causal mask.",
    ),
    s=1 / math.log(GROK2_LENGTH),
    high=1e37,  # the largest that a number may be
)
register(
    "yarn",
    maps.softmax,
    LengthRatio,
    Entry(
        "softmax((0.1·log r + 1)²·z)",
        r"w = \operatorname{softmax}(\beta z), \qquad \beta = (0.1 \log r + 1)^2",
        DISPERSES,
        "Peng et al., arXiv 2309.00071",
        "In a trained model with rotary positions whose context is extended to r times that of training. All rows get "
        "the same β, and at r = 1, the default, it is softmax.",
    ),
)
