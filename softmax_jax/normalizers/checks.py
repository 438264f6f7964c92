"""The numbers of maps and scales: what they may be, said in one line when they are not; how they meet the logits."""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float


def require(name: str, number: ArrayLike, rule: str, holds: Callable[[float], bool]) -> None:
    """Raises ValueError if a plain Python number is not finite or breaks the rule; arrays are the caller's business."""
    if isinstance(number, int | float) and not (math.isfinite(number) and holds(number)):
        raise ValueError(f"{name} is {number!r}; it must be a finite number {rule}")


def finite(name: str, number: ArrayLike) -> None:
    """Raises ValueError unless a plain Python number is finite."""
    require(name, number, "such as 1.0", lambda _: True)


def positive(name: str, number: ArrayLike) -> None:
    """Raises ValueError unless a plain Python number is finite and above 0."""
    require(name, number, "above 0, such as 1.0", lambda value: value > 0)


def against(number: ArrayLike, logits: Float[Array, "*shape"]) -> Float[Array, "..."]:
    """The number in the logits' type and rank, ready to broadcast against them."""
    array = jnp.asarray(number, logits.dtype)
    return array.reshape((1,) * (logits.ndim - array.ndim) + array.shape)
