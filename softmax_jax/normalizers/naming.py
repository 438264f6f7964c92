"""The switch that names the rows whose weights are NaN, and the logit that made them so."""

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers.layout import Layout

SHOWN = 4
"""Rows named in one line; the others are counted."""

_switch = jax.make_user_context(False)


def name_bad_rows(on: bool = True) -> Any:
    """Returns a context in which every `Normalizer` prints to standard error which rows have a visible NaN or +inf.

    A program prints one line each time it weighs such logits: the map and the scale, the indices of the row, and
    whether it holds NaN or +inf. A program that runs in the context is compiled for it; other programs pay nothing.
    Attention by blocks of queries and on fused kernels forms all logits in it.

    >>> import softmax_jax as sj
    >>> with name_bad_rows():  # prints "ssmax: ..." to standard error
    ...     weights = sj.normalizer("ssmax")(jnp.array([[0.0, jnp.nan], [0.0, 1.0]]))
    """
    return _switch(on)


def naming() -> bool:
    """Returns True inside `name_bad_rows`."""
    return bool(_switch.value)


def name_rows(
    normalizer: Any, logits: Float[Array, "*shape"], layout: Layout, where: Bool[Array, "..."] | None
) -> None:
    """Prints the rows of these logits that have a visible NaN or +inf, if the switch is on."""
    if naming():
        visible = jnp.broadcast_to(True if where is None else where, logits.shape)
        with_nan, with_inf = (layout.any(bad & visible) for bad in (jnp.isnan(logits), logits == jnp.inf))
        jax.debug.callback(functools.partial(_print, name_of(normalizer)), with_nan, with_inf)


def _print(name: str, with_nan: Array, with_inf: Array) -> None:
    if message := describe(name, np.asarray(with_nan), np.asarray(with_inf)):
        print(message, file=sys.stderr)


def describe(name: str, with_nan: np.ndarray, with_inf: np.ndarray) -> str:
    """Returns the line that names the marked rows; an empty one if none is marked.

    >>> describe("softmax", np.array([False, True]), np.array([True, False]))
    'softmax: logits of row (0,) hold +inf; logits of row (1,) hold NaN; their weights are NaN'
    """
    rows = [tuple(int(index) for index in row) for row in np.argwhere(with_nan | with_inf)]
    parts = [f"logits of row {row} hold {'NaN' if with_nan[row] else '+inf'}" for row in rows[:SHOWN]]
    parts += [f"those of {len(rows) - SHOWN} more rows too"] if len(rows) > SHOWN else []
    return f"{name}: {'; '.join(parts)}; their weights are NaN" if rows else ""


def name_of(part: Any) -> str:
    """Returns the name of a map, a scale or a function; of a normalizer, of its map and of its scale if it has one."""
    if hasattr(part, "map") and hasattr(part, "scale"):
        return name_of(part.map) if part.scale is None else f"{name_of(part.map)} × {name_of(part.scale)}"
    function = getattr(part, "func", part)
    return getattr(function, "__name__", type(function).__name__)
