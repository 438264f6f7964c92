"""Attention of other libraries, where they are installed, as functions that time one call forward and backward.

Each takes query, key and value as `(batch, length, heads, size)` and is causal, but for AdaSplash, whose map is
entmax with α = 1.5.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import timed

Timed = Callable[[], float]


def installed() -> dict[str, Callable[..., Timed]]:
    """By name those whose package is there; each takes the arrays and gives a function to time."""
    known = {
        "tokamax": ("tokamax", of_tokamax),
        "torch SDPA": ("torch", of_sdpa),
        "torch flex_attention": ("torch", of_flex),
        "adasplash: entmax15": ("adasplash", of_adasplash),
    }
    return {name: make for name, (package, make) in known.items() if importlib.util.find_spec(package)}


def of_tokamax(*arrays: np.ndarray) -> Timed:
    """Tokamax, which chooses its kernel by itself."""
    import tokamax  # pyright: ignore[reportMissingImports]

    here = [jnp.asarray(array) for array in arrays]

    @jax.jit
    def program(*arrays: jax.Array) -> Any:
        output, pull = jax.vjp(lambda *qkv: tokamax.dot_product_attention(*qkv, is_causal=True), *arrays)
        return pull(output)

    return timed(lambda: program(*here))


def of_sdpa(*arrays: np.ndarray) -> Timed:
    """PyTorch's fused attention."""
    import torch  # pyright: ignore[reportMissingImports]

    return _in_torch(lambda *qkv: torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=True), arrays)


def of_flex(*arrays: np.ndarray) -> Timed:
    """PyTorch's attention with a program for the mask, compiled."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch.nn.attention import flex_attention as flex  # pyright: ignore[reportMissingImports]

    length = arrays[0].shape[1]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mask = flex.create_block_mask(lambda b, h, q, k: q >= k, None, None, length, length, device=device)
    compiled = torch.compile(flex.flex_attention)
    return _in_torch(lambda *qkv: compiled(*qkv, block_mask=mask), arrays)


def of_adasplash(*arrays: np.ndarray) -> Timed:
    """AdaSplash, entmax with α = 1.5 (arXiv 2502.12082)."""
    import adasplash  # pyright: ignore[reportMissingImports]

    return _in_torch(lambda *qkv: adasplash.adasplash(*qkv, alpha=1.5, is_causal=True), arrays)


def _in_torch(attend: Callable[..., Any], arrays: tuple[np.ndarray, ...]) -> Timed:
    import torch  # pyright: ignore[reportMissingImports]

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def there(array: np.ndarray) -> Any:
        by_head = torch.from_numpy(array.astype(np.float32)).transpose(1, 2).contiguous()
        return by_head.to(device, torch.bfloat16).requires_grad_()

    here = [there(array) for array in arrays]

    def both() -> None:
        output = attend(*here)
        torch.autograd.grad(output, here, output)
        if device == "cuda":
            torch.cuda.synchronize()

    return timed(both)
