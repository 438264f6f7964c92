"""Models for the tests, each with a softmax of its own and a place to edit it by hand."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

Softmax = Callable[..., Any]
BATCH, HEADS, LENGTH, SIZE = 2, 2, 6, 8


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32), jnp.float32)


def close(one: Any, other: Any, atol: float = 1e-6) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=1e-6), one, other)


def drawn(shapes: Any) -> Any:
    """Returns arrays of these shapes, drawn without compiling the initializers of a library."""
    return jax.tree.map(lambda leaf: normal(*leaf.shape) / 4, shapes)


def run(function: Any, *arguments: Any) -> Any:
    """Returns what a function returns when it is compiled."""
    return jax.jit(function)(*arguments)


def same(model: Any, swapped: Any, *arguments: Any, atol: float = 1e-6) -> None:
    """Two functions return the same, compiled in one program."""
    close(*run(lambda *args: (model(*args), swapped(*args)), *arguments), atol=atol)


def refused(call: Callable[[], Any], line: str) -> None:
    """A call is refused in one line that starts like this."""
    with pytest.raises(ValueError) as error:  # noqa: PT011
        jax.eval_shape(call)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def attention(q, k, v, *, softmax: Softmax = jax.nn.softmax, hide: Callable[[Any], Any] = lambda z: z):
    """Attention of (batch, heads, length, size), with logits that `hide` changes."""
    logits = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(jnp.float32(q.shape[-1]))
    return jnp.einsum("bhqk,bhkd->bhqd", softmax(hide(logits)), v)


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
