"""What a number of a map or a scale may be, said in one line when it is not."""

import math
from collections.abc import Callable

from jax.typing import ArrayLike


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
