"""Rows with their weights and gradients in float64 under each registered method, for programs in other frameworks.

Beside the right weights stand those of mistakes that circulate, so that `check_vectors.py` can name them.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import METHODS

N = 10
"""Entries of the longest row."""
DIGITS = 12
"""Significant digits of a weight."""

OTHER: Mapping[str, dict[str, Any]] = {
    "soft_capped": {"cap": 2.0},
    "temperature": {"theta": 0.4},
    "adaptive": {"coefficients": (0.5, 1.0), "threshold": 0.2},
    "adaptive_entmax15": {"coefficients": (0.5, 1.0), "threshold": 0.2},
    "ssmax": {"s": 0.43, "bias": 0.2},
    "clipped_ssmax": {"s": 0.9, "low": 1.2, "high": 1.8},
    "softpick": {"eps": 1e-3},
    "scalable_softpick": {"s": 0.9},
    "length_scaled": {"m": 2.0, "eps": 0.1},
    "sink_softmax": {"sink": 1.5},
    "softmax_n": {"n0": 5.0},
    "first_token": {"bias": -1.0},
    "clipped_softmax": {"gamma": -0.03, "alpha": 0.0, "zeta": 1.1},
    "elastic_softmax": {"tau": -0.5},
    "sigmoid": {"bias": -1.0},
    "shifted_softmax": {"s": 3.0},
    "entmax": {"alpha": 1.3},
    "asentmax": {"weight": 0.5, "power": 0.2, "delta": 0.5},
    "as_stieltjes": {"weight": 0.5, "power": 0.2, "delta": 0.5},
    "stieltjes": {"q": 2.0},
    "top_k": {"k": 3},
    "llama4": {"attn_scale": 0.5, "floor_scale": 3.0},
    "grok2": {"s": 1 / math.log(3)},
    "length_boost": {"s": 0.8, "bias": 1 - 0.8 * math.log(4)},
    "yarn": {"ratio": 16.0},
    "qassmax": {"s": 0.43, "bias": 0.2, "gate": 0.5},
    "sqrt_ssmax": {"s": 0.5},
    "ssa": {"exponent": 3.0, "b": 0.5},
}
"""Numbers of the second half of the rows; the first half has the defaults."""


def rows() -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Returns twelve rows, each with its kind and its mask. What is masked holds a large number."""
    rng = np.random.default_rng(0)
    unit = rng.normal(size=(5, N)).round(3)
    full, random, tail = np.ones(N, bool), rng.random(N) < 0.6, np.arange(N) < 6
    flat, ties = np.full(N, 0.5), 1 + np.arange(N) / 1000
    huge = 1e4 * np.arange(N)[::-1]
    kinds = [
        ("ordinary", 2 * unit[0], full),
        ("ordinary", 2 * unit[1] + 3, full),
        ("negative", unit[2] - 6, full),
        ("masked", 2 * unit[3], random),
        ("masked", unit[4], ~random),
        ("padded", 2 * unit[0], tail),
        ("padded", unit[1] + 1, np.arange(N) < 3),
        ("one entry", unit[2], np.arange(N) == 4),
        ("flat", flat, full),
        ("near ties", ties, full),
        ("huge", huge, tail),
        ("empty", unit[3], np.zeros(N, bool)),
    ]
    return [(kind, np.where(where, z, 50.0).round(3), where) for kind, z, where in kinds]


def softmax(z: np.ndarray) -> np.ndarray:
    """Returns the softmax of the visible entries of a row."""
    exponentials = np.exp(z - z.max(initial=-1e9))
    return exponentials / exponentials.sum()


def entropy(z: np.ndarray) -> float:
    """Returns the entropy in nats of the softmax of a row."""
    p = softmax(z)
    return -float(np.sum(p * np.log(p + 1e-300)))


def ascending(z: np.ndarray, _: int, numbers: Mapping[str, Any]) -> np.ndarray:
    """Returns softmax under the polynomial of the entropy with its coefficients read from the lowest power on."""
    h = entropy(z)
    beta = max(sum(c * h**power for power, c in enumerate(numbers["coefficients"])), numbers["floor"])
    return softmax((beta if h > numbers["threshold"] else 1) * z)


def softpick_without_mask(z: np.ndarray, n: int, numbers: Mapping[str, Any]) -> np.ndarray:
    """Returns softpick whose masked entries, at -inf, add |0 - 1| each to the divisor."""
    m = max(z.max(initial=0), 0)
    difference = np.exp(z - m) - np.exp(-m)
    total = np.abs(difference).sum() + (n - z.size) * np.exp(-m) + numbers["eps"]
    return np.maximum(difference, 0) / total


def clipped(z: np.ndarray, gamma: float, zeta: float) -> np.ndarray:
    """Returns clipped softmax at this γ."""
    return np.clip((zeta - gamma) * softmax(z) + gamma, 0, 1)


Mistake = Callable[[np.ndarray, int, Mapping[str, Any]], np.ndarray]
"""From the visible logits, the length of the padded row, and the numbers."""
PADDED = "n is the length of the padded row, not the number of visible entries"
EMPTY = "an empty row is 0/0: no floor of the divisor, or one that is 0 in the type, as 1e-45 in bfloat16"
SIGN = "the sign of the sink is turned"
MISTAKES: Mapping[str, Mapping[str, Mistake]] = {
    "softmax": {EMPTY: lambda z, n, _: softmax(z)},
    "temperature": {"multiplies by the temperature": lambda z, n, k: softmax(z * k["theta"])},
    "soft_capped": {"the cap is not multiplied back": lambda z, n, k: softmax(np.tanh(z / k["cap"]))},
    "adaptive": {"the coefficients are read in ascending order": ascending},
    "ssmax": {
        "a shift by s·log n, where it is a factor: plain softmax": lambda z, n, k: softmax(z),
        PADDED: lambda z, n, k: softmax((k["s"] * math.log(n) + k["bias"]) * z),
    },
    "softpick": {
        "masked entries count in the divisor": softpick_without_mask,
        "z / (1 + Σ|z|), which is signed_l1": lambda z, n, k: z / (1 + np.abs(z).sum()),
    },
    "softmax1": {
        "the 1 is not divided by e^max": lambda z, n, k: (
            np.exp(z - z.max(initial=-1e9)) / (1 + np.exp(z - z.max(initial=-1e9)).sum())
        )
    },
    "sigmoid": {
        PADDED: lambda z, n, k: 1 / (1 + np.exp(-z - (-math.log(n) if k["bias"] is None else k["bias"]))),
        "the sign of the bias is turned": lambda z, n, k: (
            1 / (1 + np.exp(-z - (math.log(max(z.size, 1)) if k["bias"] is None else -k["bias"])))
        ),
    },
    "sink_softmax": {SIGN: lambda z, n, k: softmax(np.append(z, -k["sink"]))[:-1]},
    "softmax_n": {SIGN: lambda z, n, k: softmax(np.append(z, -math.log(k["n0"])))[:-1]},
    "clipped_softmax": {
        "γ is above 0": lambda z, n, k: clipped(z, k["alpha"] / max(z.size, 1) - k["gamma"], k["zeta"]),
        PADDED: lambda z, n, k: clipped(z, k["gamma"] - k["alpha"] / n, k["zeta"]),
    },
    "elastic_softmax": {PADDED: lambda z, n, k: np.maximum(softmax(z) + k["tau"] / n, 0)},
    "length_boost": {PADDED: lambda z, n, k: softmax(max(k["s"] * math.log(n) + k["bias"], 1) * z)},
    "sqrt_ssmax": {PADDED: lambda z, n, k: softmax(k["s"] * math.sqrt(2 * math.log(n)) * z)},
    "grok2": {PADDED: lambda z, n, k: softmax(max(k["s"] * math.log(n), 1) * z)},
    "llama4": {
        "the position p in the place of p + 1": lambda z, n, k: softmax(
            (1 + k["attn_scale"] * math.log((z.size - 1) // k["floor_scale"] + 1 if z.size else 1)) * z
        ),
        PADDED: lambda z, n, k: softmax((1 + k["attn_scale"] * math.log(n // k["floor_scale"] + 1)) * z),
    },
    "yarn": {"the factor is not squared": lambda z, n, k: softmax((0.1 * math.log(k["ratio"]) + 1) * z)},
}
"""By method, then in words: the mistakes that circulate, in numpy, as the library makes none of them."""


@jax.jit
def weigh(normalizer: Normalizer, logits: jax.Array, where: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the weights of rows, and the gradients of Σ cos(i)·wᵢ of each."""
    weights, pull = jax.vjp(lambda z: normalizer(z, where=where), logits)
    return weights, pull(jnp.broadcast_to(jnp.cos(jnp.arange(N, dtype=logits.dtype)), logits.shape))[0]


def mistaken(mistake: str, weigh_wrongly: Mistake, z: np.ndarray, where: np.ndarray, numbers: Mapping[str, Any]) -> Any:
    """Returns the weights of a row under a mistake; those of an empty row are 0 unless it is about them."""
    row = np.full(N, np.nan if mistake == EMPTY and not where.any() else 0.0)
    if where.any():
        row[where] = weigh_wrongly(z[where], N, numbers)
    return row


def vectors_of(name: str) -> dict[str, Any]:
    """Returns rows of a method with weights, gradients of Σ cos(i)·wᵢ, and the weights of each mistake."""
    method, twelve = METHODS[name], rows()
    contents, wrong = [], {mistake: [] for mistake in MISTAKES.get(name, {})}
    for others in {}, OTHER.get(name, {}):
        numbers = {key: value for key, value in (method.numbers | others).items() if key != "positions"}
        with jax.enable_x64(True):
            logits, masks = (jnp.asarray(np.stack([row[part] for row in twelve])) for part in (1, 2))
            weights, gradients = (np.asarray(array) for array in weigh(method.build(**numbers), logits, masks))
        for place, (kind, z, where) in enumerate(twelve):
            row = {"kind": kind, "logits": z.tolist(), "visible": where.astype(int).tolist(), "numbers": numbers}
            contents.append(row | {"weights": _digits(weights[place]), "gradient": _digits(gradients[place])})
            for mistake, weigh_wrongly in MISTAKES.get(name, {}).items():
                wrong[mistake].append(_digits(mistaken(mistake, weigh_wrongly, z, where, numbers)))
    facts = {"method": name, "formula": method.entry.formula, "source": method.entry.source, "rows": contents}
    return facts | {"mistakes": [{"says": mistake, "weights": weights} for mistake, weights in wrong.items()]}


def _digits(numbers: Any) -> list[float | None]:
    """Returns numbers with few digits; None for NaN, as JSON has none."""
    return [None if math.isnan(number) else float(f"{number:.{DIGITS}g}") for number in np.asarray(numbers).tolist()]


def text_of(name: str) -> str:
    """Returns the file of a method, a row a line."""
    content = vectors_of(name)
    lines = {key: [json.dumps(line, ensure_ascii=False) for line in content.pop(key)] for key in ("rows", "mistakes")}
    head = json.dumps(content, ensure_ascii=False)[1:-1]
    parts = [f'"{key}": [\n' + ",\n".join(values) + "\n]" for key, values in lines.items()]
    return "{" + ",\n".join([head, *parts]) + "}\n"
