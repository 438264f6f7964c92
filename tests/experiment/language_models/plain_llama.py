"""A llama-like decoder in plain numpy, from the arrays by their names in GGUF, and a tiny random model."""

from typing import Any

import numpy as np

TINY = {"heads": 4, "key_heads": 2, "size": 8, "width": 24, "inner": 40, "layers": 2}


def tiny_arrays(tokens, biases=False, tied=True, seed=0):
    """Random arrays by their names in GGUF, the rows of queries and keys in the order of safetensors."""
    random = np.random.default_rng(seed)
    heads, key_heads, size, width, inner, layers = TINY.values()
    shapes = {"token_embd.weight": (tokens, width), "output_norm.weight": (width,)}
    if not tied:
        shapes["output.weight"] = (tokens, width)
    of_layer = {"attn_norm": (width,), "ffn_norm": (width,), "attn_output": (width, heads * size)}
    of_layer |= {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
    projected = {"attn_q": heads * size, "attn_k": key_heads * size, "attn_v": key_heads * size}
    of_layer |= {name: (features, width) for name, features in projected.items()}
    for layer in range(layers):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
        if biases:
            shapes |= {f"blk.{layer}.{name}.bias": (features,) for name, features in projected.items()}
    return {
        name: (random.normal(size=shape) * (0.4 if len(shape) > 1 else 0.2) + ("norm" in name)).astype(np.float32)
        for name, shape in shapes.items()
    }


def softmax(logits):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def normed(x, scale, epsilon=1e-5):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * scale


def turned(x, base, pairs, rotary=None):
    """Rotates (positions, heads, size): features (2i, 2i + 1) together if `pairs`, else (i, i + half).

    With `rotary`, this is done to so many features of a head, the first.
    """
    if rotary is not None:
        return np.concatenate([turned(x[..., :rotary], base, pairs), x[..., rotary:]], -1)
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None, None] * base ** (-np.arange(half) / half)
    first, second = (x[..., 0::2], x[..., 1::2]) if pairs else (x[..., :half], x[..., half:])
    both = first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles)
    return np.stack(both, -1).reshape(x.shape) if pairs else np.concatenate(both, -1)


def logits_of(
    arrays, tokens, heads, key_heads, base=10_000.0, pairs=False, weigh=softmax, windows=None, rotary=None, scale=None
):
    """Logits of every token after every position; `windows` has the keys that each layer sees at most, or None."""
    x: Any = arrays["token_embd.weight"][tokens].astype(np.float64)
    places = np.arange(len(tokens))
    for layer in range(sum(name.endswith("ffn_up.weight") for name in arrays)):
        own = {name.split(".", 2)[2]: array for name, array in arrays.items() if name.startswith(f"blk.{layer}.")}
        inputs: Any = normed(x, own["attn_norm.weight"])

        def projected(name: str, by: int, own: Any = own, inputs: Any = inputs) -> Any:
            outputs = inputs @ own[f"attn_{name}.weight"].T + own.get(f"attn_{name}.bias", 0)
            return outputs.reshape(len(tokens), by, -1)

        query, key = (turned(projected(*one), base, pairs, rotary) for one in (("q", heads), ("k", key_heads)))
        key, value = (np.repeat(one, heads // key_heads, 1) for one in (key, projected("v", key_heads)))
        logits = np.einsum("qhs,nhs->hqn", query, key) * (scale or query.shape[-1] ** -0.5)
        window = windows[layer] if windows and windows[layer] else len(tokens)
        behind = places[:, None] - places[None]
        hidden = (behind < 0) | (behind >= window)
        weights = weigh(np.where(hidden, -np.inf, logits))
        x = x + np.einsum("hqn,nhs->qhs", weights, value).reshape(len(tokens), -1) @ own["attn_output.weight"].T
        inputs = normed(x, own["ffn_norm.weight"])
        gate = inputs @ own["ffn_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (inputs @ own["ffn_up.weight"].T)) @ own["ffn_down.weight"].T
    return normed(x, arrays["output_norm.weight"]) @ arrays.get("output.weight", arrays["token_embd.weight"]).T
