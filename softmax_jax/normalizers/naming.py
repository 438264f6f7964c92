"""The switch that names the rows whose weights are NaN, and the logit that made them so."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers.masking import Axis, Mask, visible_logits

SHOWN = 4
"""Rows named in one line; the others are counted."""

_on = jax.make_user_context(False)


def name_bad_rows(on: bool = True) -> Any:
    """Context in which every `Normalizer` prints, to standard error, which rows have a visible NaN or +inf.

    One line for each time that a program weighs such logits: the map and the scale, the indices of the row, and
    what stands in it. What is compiled in the context is compiled anew; outside of it, it costs nothing. Attention
    in blocks reads its blocks once more, and that on fused kernels forms all logits.

    >>> import softmax_jax as sj
    >>> with name_bad_rows():  # prints "ssmax: ..." to standard error
    ...     weights = sj.normalizer("ssmax")(jnp.array([[0.0, jnp.nan], [0.0, 1.0]]))
    """
    return _on(on)


def naming() -> bool:
    """Whether rows are to be named here."""
    return bool(_on.value)


def name_rows(normalizer: Any, logits: Float[Array, "*shape"], axis: Axis, where: Mask) -> None:
    """Prints the rows of these logits that have a visible NaN or +inf, if the switch is on."""
    if naming():
        z = visible_logits(logits, where)
        report(normalizer, *(jnp.any(bad, axis) for bad in bad_logits(z)))


def bad_logits(z: Float[Array, "*shape"]) -> tuple[Bool[Array, "*shape"], Bool[Array, "*shape"]]:
    """Where visible logits are NaN, and where they are +inf."""
    return jnp.isnan(z), z == jnp.inf


def report(
    normalizer: Any, with_nan: Bool[Array, "*rows"], with_inf: Bool[Array, "*rows"], silent: ArrayLike = False
) -> None:
    """Prints which rows are marked, from within a compiled program."""

    def show(with_nan: Array, with_inf: Array, silent: Array) -> None:
        if (said := line(name_of(normalizer), np.asarray(with_nan), np.asarray(with_inf))) and not silent:
            print(said, file=sys.stderr)

    jax.debug.callback(show, with_nan, with_inf, silent)


def line(name: str, with_nan: np.ndarray, with_inf: np.ndarray) -> str:
    """What is printed of the rows that are marked; empty if none is.

    >>> line("softmax", np.array([False, True]), np.array([True, False]))
    'softmax: logits of row (0,) hold +inf; logits of row (1,) hold NaN; their weights are NaN'
    """
    rows = [tuple(int(index) for index in row) for row in np.argwhere(with_nan | with_inf)]
    kinds = ["NaN" if with_nan[row] else "+inf" for row in rows]
    told = [f"logits of row {row} hold {kind}" for row, kind in zip(rows, kinds)][:SHOWN]
    more = [f"those of {len(rows) - SHOWN} more rows too"] if len(rows) > SHOWN else []
    return f"{name}: {'; '.join([*told, *more])}; their weights are NaN" if rows else ""


def name_of(part: Any) -> str:
    """The name of a map, a scale or a function; of a normalizer, of its map and of its scale if it has one."""
    if hasattr(part, "map") and hasattr(part, "scale"):
        return name_of(part.map) if part.scale is None else f"{name_of(part.map)} × {name_of(part.scale)}"
    function = getattr(part, "func", part)
    return getattr(function, "__name__", type(function).__name__)
