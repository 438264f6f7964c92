"""Models for the tests, each with a softmax of its own and a place to edit it by hand."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Softmax = Callable[..., Any]
BATCH, HEADS, LENGTH, SIZE = 2, 2, 6, 8


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def close(one: Any, other: Any, atol: float = 1e-6) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=1e-6), one, other)


def run(function: Any, *arguments: Any) -> Any:
    """What a function returns when it is compiled."""
    return jax.jit(function)(*arguments)


def visible(logits):
    """What a model hides by a large negative number."""
    return logits > -1e4


def quotient(z):
    exponentials = jnp.exp(z - jnp.max(z, -1, keepdims=True))
    return exponentials / jnp.sum(exponentials, -1, keepdims=True)


def without_maximum(z):
    return jnp.exp(z) / jnp.sum(jnp.exp(z), -1, keepdims=True)


def reciprocal(z):
    exponentials = jnp.exp(z - jax.lax.stop_gradient(jnp.max(z, -1, keepdims=True)))
    return exponentials * (1 / (jnp.sum(exponentials, -1, keepdims=True) + 1e-9))


def base_two(z):
    exponentials = jnp.exp2((z - jnp.max(z, -1, keepdims=True)) * np.log2(np.e))
    return exponentials / jnp.sum(exponentials, -1, keepdims=True)


def log_sum_exp(z):
    return jnp.exp(z - jax.nn.logsumexp(z, -1, keepdims=True))


def of_log_softmax(z):
    return jnp.exp(jax.nn.log_softmax(z))


def with_rule(z):
    with jax.softmax_custom_jvp(True):
        return jax.nn.softmax(z)


def transposed(z):
    return jax.vmap(lambda row: jax.nn.softmax(row, -1), in_axes=1, out_axes=1)(z)


def stable_in_half(z):
    return jax.nn.softmax(z.astype(jnp.float32)).astype(z.dtype)


FORMS: dict[str, Softmax] = {
    "jax.nn.softmax": jax.nn.softmax,
    "quotient": quotient,
    "without_maximum": without_maximum,
    "reciprocal": reciprocal,
    "base_two": base_two,
    "log_sum_exp": log_sum_exp,
    "of_log_softmax": of_log_softmax,
    "with_rule": with_rule,
    "transposed": transposed,
    "stable_in_half": stable_in_half,
}


def attention(q, k, v, *, softmax: Softmax = jax.nn.softmax, hide: Callable[[Any], Any] = lambda z: z):
    """Attention of (batch, heads, length, size), with logits that `hide` changes."""
    logits = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(jnp.float32(q.shape[-1]))
    return jnp.einsum("bhqk,bhkd->bhqd", softmax(hide(logits)), v)


def divided_last(q, k, v):
    """The same, with the division after the product."""
    logits = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(jnp.float32(q.shape[-1]))
    exponentials = jnp.exp(logits - jnp.max(logits, -1, keepdims=True))
    return jnp.einsum("bhqk,bhkd->bhqd", exponentials, v) / jnp.sum(exponentials, -1)[..., None]


QKV = tuple(normal(BATCH, HEADS, LENGTH, SIZE, seed=seed) for seed in range(3))
CAUSAL = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))[None, None]


def bert(layers: int = 2, width: int = 16, words: int = 30, seed: int = 0) -> dict[str, Any]:
    """Parameters of a small BERT, with one array for all layers."""
    generator = np.random.default_rng(seed)

    def array(*shape: int) -> jax.Array:
        return jnp.asarray((generator.normal(size=shape) / np.sqrt(shape[-2])).astype(np.float32))

    names = {"query": (width, width), "key": (width, width), "value": (width, width), "out": (width, width)}
    names |= {"up": (width, 4 * width), "down": (4 * width, width)}
    blocks = {name: array(layers, *shape) for name, shape in names.items()}
    return {"words": array(words, width), "positions": array(64, width), "blocks": blocks}


def apply_bert(parameters, tokens, present, softmax: Softmax = jax.nn.softmax):
    """A BERT in plain jnp under scan and checkpoint: its mask is added to the logits, as -1e9."""
    x = parameters["words"][tokens] + parameters["positions"][None, : tokens.shape[1]]
    bias = jnp.where(present, 0.0, -1e9)[:, None, None, :]

    def split(x):
        return x.reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)

    @jax.checkpoint
    def block(x, w):
        query, key, value = (split(x @ w[name]) for name in ("query", "key", "value"))
        attended = attention(query, key, value, softmax=softmax, hide=lambda z: z + bias)
        x = x + attended.transpose(0, 2, 1, 3).reshape(x.shape) @ w["out"]
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

    return jax.lax.scan(block, x, parameters["blocks"])[0]
