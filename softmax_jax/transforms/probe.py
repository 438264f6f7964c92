"""`probe`: measures of the weights of a JAX function, row by row, beside what it returns."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.calculus import weight_entropy
from softmax_jax.normalizers.row import Row, critical_beta_of
from softmax_jax.transforms.sites import Site, table
from softmax_jax.transforms.swap import Empty, Normalizers, Rows, Where, by_pattern, transform


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SiteRows:
    """Measures of the weights of one site, row by row.

    Arrays have the axes of its logits less the one along which weights sum; within a loop its turns come first.
    """

    site: Site = dataclasses.field(metadata={"static": True})
    entropy: Float[Array, "*rows"]
    """The entropy of the weights, in nats."""
    largest: Float[Array, "*rows"]
    """The largest weight."""
    place: Int[Array, "*rows"]
    """The position of the largest weight."""
    visible: Int[Array, "*rows"]
    """The number of entries that the model does not hide."""
    first: Float[Array, "*rows"]
    """The weight of the first entry."""
    critical: Any = None
    """The critical inverse temperature of the model's own logits, in the same axes; None unless asked for."""
    also: Any = None
    """What the function `also` returned for the weights; None without one."""


class Probed(list[SiteRows]):
    """The rows of every site; printed, a table of their means; of the critical β, which may be inf, medians."""

    def __repr__(self) -> str:
        head = ["index", "scope", "rows", "entropy", "largest", "visible", "first"]
        means = [[_mean(a) for a in (r.entropy, r.largest, r.visible, r.first)] for r in self]
        if any(rows.critical is not None for rows in self):
            head.append("critical")
            means = [[*one, _mean(rows.critical, np.median)] for one, rows in zip(means, self)]
        start = [[str(rows.site.index), rows.site.scope, str(rows.entropy.shape)] for rows in self]
        return table(head, [[*one, *other] for one, other in zip(start, means)])

    __str__ = __repr__


def _mean(numbers: Any, mean: Callable[[Any], Any] = np.mean) -> str:
    """Returns the mean of the numbers of rows that were weighed, as text."""
    if not isinstance(numbers, jax.Array) or checks.is_traced(numbers):
        return "?"
    known = np.asarray(numbers, np.float64)
    known = known[known >= 0] if np.issubdtype(numbers.dtype, np.integer) else known[~np.isnan(known)]
    return f"{mean(known):.3f}" if known.size else "none"


jax.tree_util.register_pytree_node(Probed, lambda probed: (tuple(probed), None), lambda _, rows: Probed(rows))


def probe(
    fun: Callable[..., Any],
    normalizer: Normalizers | None = None,
    *,
    also: Callable[[Float[Array, "..."]], Any] | None = None,
    critical: bool = False,
    where: Where = None,
    empty: Empty = "model",
) -> Callable[..., tuple[Any, Probed]]:
    r"""Returns a function of the same arguments that returns (what `fun` returns, measures of its weights).

    For each row of each site: the entropy $-\sum_j w_j \log w_j$ in nats, the largest weight and its place, the
    number of visible entries, and the weight of the first entry, where many models keep a sink. `also` is a function of
    the weights, with the axes that the model gave them, for anything else: the mass on marked entries, for one. With
    `critical` comes the critical inverse temperature of each row, as `theory.critical_beta` has it, of the model's own
    logits: a row is sharp in the model only if it is below 1. It sorts each row, so it is off by default.

    With a `normalizer`, the function is `swap(fun, normalizer)`, and `where` and `empty` are what they are there.
    Without one, nothing that `fun` computes changes, its custom rules for derivatives included, and `where` says of a
    `Site` whether it is measured; by default all attention is.

    It works in compiled functions and may itself be compiled. Within `scan` the rows of all turns are stacked, within
    `while` those of the last turn are kept, and a branch of `cond` that is not taken gives NaN, and -1 for numbers of
    entries.

    Raises ValueError for a function without a softmax, for a chosen site that cannot be read, and as `swap` does.

    >>> attend = lambda q, k, v: jax.nn.softmax(q @ k.T) @ v
    >>> output, probed = probe(attend)(jnp.zeros((1, 2)), jnp.zeros((4, 2)), jnp.ones((4, 2)))
    >>> probed
    index  scope   rows  entropy  largest  visible  first
    0      site_0  (1,)  1.386    0.250    4.000    0.250

    One logit 2 above three others is critical at β = log 4 / 2, below the 1 of the model:

    >>> keys = jnp.array([[2.0], [0.0], [0.0], [0.0]])
    >>> output, probed = probe(attend, critical=True)(jnp.ones((1, 1)), keys, jnp.ones((4, 1)))
    >>> probed[0].critical
    Array([0.6931472], dtype=float32)
    """
    normalizers = {"*": None} if normalizer is None else by_pattern(normalizer)
    transformed = transform(fun, normalizers, where, empty, functools.partial(_measures, also=also, critical=critical))

    @functools.wraps(fun, updated=())
    def probed(*args: Any, **kwargs: Any) -> tuple[Any, Probed]:
        output, records = transformed(*args, **kwargs)
        return output, Probed(SiteRows(site, **measured) for site, measured in records)

    return probed


def _measures(
    rows: Rows, weights: Float[Array, "*shape"], also: Callable[[Array], Any] | None = None, critical: bool = False
) -> dict[str, Array]:
    """Returns what `SiteRows` holds of each row."""
    axes = rows.axis if isinstance(rows.axis, tuple) else (rows.axis,)
    besides = {"also": also(weights)} if also else {}
    weights = _flat(weights, axes)
    visible = jnp.ones(weights.shape, bool) if rows.where is None else _flat(rows.where, axes)
    if critical:
        besides["critical"] = critical_beta_of(Row.of(_flat(rows.logits, axes), -1, visible))
    return {
        "entropy": weight_entropy(weights),
        "largest": jnp.max(weights, -1),
        "place": jnp.argmax(weights, -1).astype(jnp.int32),
        "visible": jnp.sum(visible, -1, dtype=jnp.int32),
        "first": weights[..., 0],
        **besides,
    }


def _flat(array: Array, axes: tuple[int, ...]) -> Array:
    """Returns the array with these axes as one, the last; numbers in float32 (float64 stays)."""
    moved = jnp.moveaxis(array, axes, range(-len(axes), 0))
    wide = moved.astype(jnp.float32) if array.dtype in (jnp.float16, jnp.bfloat16) else moved
    return wide.reshape(*moved.shape[: moved.ndim - len(axes)], -1)
