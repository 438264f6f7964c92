"""The switch that names the rows whose weights are NaN, and the logit that made them so."""

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from softmax_jax.normalizers.masking import Axis, Mask, visible_logits

SHOWN = 4
"""Rows named in one line; the others are counted."""

_on = jax.make_user_context(False)


def name_bad_rows(on: bool = True) -> Any:
    """Context in which every `Normalizer` prints, to standard error, which rows have a visible NaN or +inf.

    One line for each time that a program weighs such logits: the map and the scale, the indices of the row, and
    what stands in it. What is compiled in the context is compiled anew; outside of it, it costs nothing. Attention
    by blocks of queries and on fused kernels forms all logits for it.

    >>> import softmax_jax as sj
    >>> with name_bad_rows():  # prints "ssmax: ..." to standard error
    ...     weights = sj.normalizer("ssmax")(jnp.array([[0.0, jnp.nan], [0.0, 1.0]]))
    """
    return _on(on)


def naming() -> bool:
    """Returns True inside `name_bad_rows`."""
    return bool(_on.value)


def name_rows(normalizer: Any, logits: Float[Array, "*shape"], axis: Axis, where: Mask) -> None:
    """Prints the rows of these logits that have a visible NaN or +inf, if the switch is on."""
    if naming():
        z = visible_logits(logits, where)
        bad = jnp.any(jnp.isnan(z), axis), jnp.any(z == jnp.inf, axis)
        jax.debug.callback(functools.partial(_print, name_of(normalizer)), *bad)


def _print(name: str, with_nan: Array, with_inf: Array) -> None:
    if said := line(name, np.asarray(with_nan), np.asarray(with_inf)):
        print(said, file=sys.stderr)


def line(name: str, with_nan: np.ndarray, with_inf: np.ndarray) -> str:
    """Returns the line that names the marked rows; empty if none is marked.

    >>> line("softmax", np.array([False, True]), np.array([True, False]))
    'softmax: logits of row (0,) hold +inf; logits of row (1,) hold NaN; their weights are NaN'
    """
    rows = [tuple(int(index) for index in row) for row in np.argwhere(with_nan | with_inf)]
    said = [f"logits of row {row} hold {'NaN' if with_nan[row] else '+inf'}" for row in rows[:SHOWN]]
    more = [f"those of {len(rows) - SHOWN} more rows too"] if len(rows) > SHOWN else []
    return f"{name}: {'; '.join([*said, *more])}; their weights are NaN" if rows else ""


def name_of(part: Any) -> str:
    """The name of a map, a scale or a function; of a normalizer, of its map and of its scale if it has one."""
    if hasattr(part, "map") and hasattr(part, "scale"):
        return name_of(part.map) if part.scale is None else f"{name_of(part.map)} × {name_of(part.scale)}"
    function = getattr(part, "func", part)
    return getattr(function, "__name__", type(function).__name__)
