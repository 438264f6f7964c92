"""The formula of each method in float64 numpy, written from the papers, not from the package."""

import jax
import jax.numpy as jnp
import numpy as np

import softmax_jax as sj


def softmax(z):
    exponentials = np.exp(z - z.max())
    return exponentials / exponentials.sum()


def softpick(z):
    m = max(z.max(), 0.0)
    difference = np.exp(z - m) - np.exp(-m)
    return np.maximum(difference, 0) / (np.abs(difference).sum() + 1e-6)


def softmax1(z):
    m = max(z.max(), 0.0)
    return np.exp(z - m) / (np.exp(-m) + np.exp(z - m).sum())


def sink_softmax(z, sink=0.0):
    return np.exp(z - np.logaddexp(sink, np.logaddexp.reduce(z)))


def clipped_softmax(z, gamma=0.0, alpha=1.0, zeta=1.0):
    gamma = gamma - alpha / z.size
    return np.clip((zeta - gamma) * softmax(z) + gamma, 0, 1)


def first_token(z, bias=0.0):
    return softmax(np.concatenate([z[:1] + bias, z[1:]]))


def sigmoid(z):
    return np.exp(-np.logaddexp(0, np.log(z.size) - z))


def hardmax(z):
    return (z == z.max()) / (z == z.max()).sum()


def signed_l1(z):
    return z / (1 + np.abs(z).sum())


def sparsemax(z):
    u = np.sort(z - z.max())[::-1]
    tau = (np.cumsum(u) - 1) / np.arange(1, z.size + 1)
    return np.maximum(z - z.max() - tau[np.sum(u > tau) - 1], 0)


def entmax15(z):
    u = np.sort(z - z.max())[::-1] / 2
    k = np.arange(1, z.size + 1)
    mean, squares = np.cumsum(u) / k, np.cumsum(u**2) / k
    tau = mean - np.sqrt(np.maximum(1 / k - (squares - mean**2), 0))
    return np.maximum((z - z.max()) / 2 - tau[np.sum(tau <= u) - 1], 0) ** 2


def halved(weigh, low, high):
    """Weights at the threshold between two at which they sum to 1, by halving the interval."""
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if weigh(middle).sum() > 1 else (low, middle)
    return weigh(low) / weigh(low).sum()


def entmax(z, alpha):
    x = (alpha - 1) * (z - z.max())
    return halved(lambda tau: np.maximum(x - tau, 0) ** (1 / (alpha - 1)), -1.0, 0.0)


def stieltjes(z, q):
    distance = z.max() - z
    return halved(lambda log: (np.exp(log) + distance) ** -q, 0.0, np.log(z.size) / q)


def top_k(z, k):
    kept = z >= np.sort(z)[max(z.size - k, 0)]
    return np.where(kept, np.exp(z - z.max()), 0) / np.exp(z[kept] - z.max()).sum()


def entropy(z):
    p = softmax(z)
    p = p[p > 0]
    return -(p * np.log(p)).sum()


def adaptive_beta(h):
    return max(np.polyval([-0.037, 0.481, -2.3, 4.917, -1.791], h), 1.0) if h > 0.5 else 1.0


def log_length_beta(n):
    return np.log(n) / np.log(16)


def power_beta(n, weight, power, delta=1.0):
    return delta + np.logaddexp(0, weight) * (np.log(n) ** (2 * np.tanh(power)) if n > 1 else 0)


def length_rule_beta(n, m=1.0, eps=0.05):
    return max(0.5 * np.log((1 - eps) * (n - m) / (eps * m)), 0.0) if n > m else 0.0


def position_beta(n, attn_scale=0.1, floor_scale=8192):
    return 1 + attn_scale * np.log(n // floor_scale + 1)


def ssa(z, exponent=1.5, b=0.8):
    powers = exponent * np.sign(z) * np.log1p(b * np.abs(z))
    return softmax(powers)


REFERENCES = {
    "softmax": softmax,
    "temperature": softmax,
    "adaptive": lambda z: softmax(adaptive_beta(entropy(z)) * (z - z.max())),
    "ssmax": lambda z: softmax(log_length_beta(z.size) * (z - z.max())),
    "clipped_ssmax": lambda z: softmax(np.clip(log_length_beta(z.size), 1, 3) * (z - z.max())),
    "softpick": softpick,
    "scalable_softpick": lambda z: softpick(log_length_beta(z.size) * z),
    "length_scaled": lambda z: softmax(length_rule_beta(z.size) * (z - z.max())),
    "soft_capped": lambda z: softmax(50 * np.tanh(z / 50)),
    "softmax1": softmax1,
    "sigmoid": sigmoid,
    "sink_softmax": sink_softmax,
    "softmax_n": softmax1,
    "first_token": first_token,
    "clipped_softmax": clipped_softmax,
    "elastic_softmax": lambda z: np.maximum(softmax(z) - 1 / z.size, 0),
    "hardmax": hardmax,
    "shifted_softmax": lambda z: softmax(z - np.log(z.size)),
    "signed_l1": signed_l1,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "entmax": lambda z: entmax(z, 1.5),
    "top_k": lambda z: top_k(z, 8),
    "stieltjes": lambda z: stieltjes(z, 4.0),
    "asentmax": lambda z: entmax15(power_beta(z.size, 0.0, np.arctanh(0.5)) * (z - z.max())),
    "as_stieltjes": lambda z: stieltjes(power_beta(z.size, 0.0, np.arctanh(0.5)) * (z - z.max()), 4.0),
    "llama4": lambda z: softmax(position_beta(z.size) * (z - z.max())),
    "grok2": lambda z: softmax(max(1.0, np.log(z.size) / np.log(1024)) * (z - z.max())),
    "length_boost": lambda z: softmax((1 + max(np.log(z.size / 16), 0)) * (z - z.max())),
    "yarn": softmax,
    "qassmax": lambda z: softmax(log_length_beta(z.size) * (z - z.max())),
    "sqrt_ssmax": lambda z: softmax(np.sqrt(2 * np.log(z.size)) * (z - z.max())),
    "ssa": ssa,
    "adaptive_entmax15": lambda z: entmax15(adaptive_beta(entropy(z)) * (z - z.max())),
}
"""By registered name, at the default numbers: one row of visible logits in, its weights out."""


def expected(name, logits, where):
    """Weights of a matrix of logits in float64: by the formula, or by the method itself where none is listed."""
    logits = np.asarray(logits, np.float64)
    if name not in REFERENCES:
        with jax.enable_x64(True):
            return np.asarray(sj.normalizer(name)(jnp.asarray(logits), where=jnp.asarray(where)))
    weights = np.zeros(logits.shape)
    for row, visible, out in zip(logits, where, weights):
        if visible.any():
            out[visible] = REFERENCES[name](row[visible])
    return weights
