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
from softmax_jax.normalizers.calculus import entropy_of_weights
from softmax_jax.normalizers.layout import Layout
from softmax_jax.normalizers.row import Row, critical_beta_of, visible_values
from softmax_jax.transforms.replacement import Empty, SiteLogits
from softmax_jax.transforms.sites import Site, table
from softmax_jax.transforms.swap import Normalizers, Where, by_pattern, transform


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SiteRows:
    """Measures of the weights of one site, row by row.

    Arrays have the axes of its logits less the one along which weights sum; within a loop its turns come first. Of a
    softmax over segments the first axis is that of the segments.
    """

    site: Site = dataclasses.field(metadata={"static": True})
    entropy: Float[Array, "*rows"]
    """The entropy of the weights, in nats."""
    largest: Float[Array, "*rows"]
    """The largest weight."""
    place: Int[Array, "*rows"]
    """The position of the largest weight; in segments, its place among all entries."""
    visible: Int[Array, "*rows"]
    """The number of entries that the model does not hide."""
    first: Float[Array, "*rows"]
    """The weight of the first entry."""
    top: Float[Array, "*rows"]
    """The largest visible logit of the model; this and the three below are 0 for a row that sees nothing."""
    gap: Float[Array, "*rows"]
    """The largest logit less the second; 0 for a row that sees one entry."""
    spread: Float[Array, "*rows"]
    """δ, the largest visible logit less the least."""
    log_sum_exp: Float[Array, "*rows"]
    """log Σ exp of the visible logits."""
    critical: Any = None
    """The critical inverse temperature of the model's own logits, in the same axes; None unless asked for."""
    also: Any = None
    """The result of `also` for the weights; None without one."""

    def sink_rate(self, least: float = 0.3) -> Float[Array, ""]:
        """Returns the share of rows that see several entries and give the first more than `least` of the weight.

        Source: Gu et al., "When Attention Sink Emerges in Language Models", arXiv 2410.10781, which takes 0.3.
        """
        return jnp.mean(self.first > least, where=self.visible > 1)


class Probed(list[SiteRows]):
    """The rows of every site; printed, a table of their means; of the critical β, which may be inf, medians."""

    def __repr__(self) -> str:
        head = ["index", "scope", "rows", "entropy", "largest", "visible", "first"]
        cells = [
            [str(rows.site.index), rows.site.scope, str(rows.entropy.shape)]
            + [_mean(measure) for measure in (rows.entropy, rows.largest, rows.visible, rows.first)]
            for rows in self
        ]
        if any(rows.critical is not None for rows in self):
            head.append("critical")
            cells = [[*line, _mean(rows.critical, np.median)] for line, rows in zip(cells, self)]
        return table(head, cells)

    __str__ = __repr__


def _mean(measure: Any, mean: Callable[[Any], Any] = np.mean) -> str:
    """Returns the mean over the rows that were weighed, as text."""
    if not isinstance(measure, jax.Array) or checks.is_traced(measure):
        return "?"
    rows = np.asarray(measure, np.float64)
    rows = rows[rows >= 0] if np.issubdtype(measure.dtype, np.integer) else rows[~np.isnan(rows)]
    return f"{mean(rows):.3f}" if rows.size else "none"


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
    r"""Measures the weights of a function, row by row, beside what it returns.

    For each row of each site: the entropy $-\sum_j w_j \log w_j$ in nats, the largest weight and its place, the
    number of visible entries, and the weight of the first entry, where many models keep a sink; of the model's own
    visible logits the largest, its gap to the second, the spread δ and the log-sum-exp, in float32.

    It works in compiled functions and may itself be compiled. Within `scan` the rows of all turns are stacked, within
    `while` those of the last turn are kept, and a branch of `cond` that is not taken gives NaN, and -1 for numbers of
    entries.

    Arguments:
        fun: Any JAX function.
        normalizer: Measures `swap(fun, normalizer)`. Without one, nothing that `fun` computes changes, its custom rules
            for derivatives included.
        also: A function of the weights, with the axes that the model gave them, for anything else: the mass on marked
            entries, for one.
        critical: Adds the critical inverse temperature of each row of the model's own logits, as
            `theory.critical_beta` has it: a row is sharp in the model only if it is below 1. It sorts each row, so it
            is off by default.
        where: Says of a `Site` whether it is measured; by default all attention is.
        empty: What a row with nothing visible gets under a normalizer, as in `swap`.

    Returns:
        A function of the same arguments that returns what `fun` returns, and `Probed`: a `SiteRows` for each site.

    Raises:
        TypeError: `fun` is no function, or `normalizer` none.
        ValueError: `fun` has no softmax, a chosen site cannot be read, or as in `swap`.

    Example:
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
    recorder = functools.partial(_measure_rows, also=also, critical=critical)
    transformed = transform(fun, normalizers, where, empty, recorder)

    @functools.wraps(fun, updated=())
    def probed(*args: Any, **kwargs: Any) -> tuple[Any, Probed]:
        output, records = transformed(*args, **kwargs)
        return output, Probed(SiteRows(site, **measures) for site, measures in records)

    return probed


def _measure_rows(
    rows: SiteLogits,
    weights: Float[Array, "*shape"],
    also: Callable[[Array], Any] | None = None,
    critical: bool = False,
) -> dict[str, Array]:
    """Returns what `SiteRows` holds of each row."""
    optional = {"also": also(weights)} if also else {}
    join, layout = rows.layout.joined, rows.layout.after_joining()
    # What the model hides is in `where`: the size of a logit hides nothing more.
    row = Row.of(join(rows.logits), layout, None if rows.where is None else join(rows.where), low_hides=False)
    if critical:
        optional["critical"] = critical_beta_of(row)
    visible = jnp.ones(row.logits.shape, bool) if row.where is None else row.where
    measures = {
        **_measure_weights(visible_values(join(weights)), layout),
        "visible": layout.total(visible).astype(jnp.int32),
        **_measure_logits(row.logits, layout),
    }
    return {name: layout.squeeze(numbers) for name, numbers in measures.items()} | optional


def _measure_weights(w: Float[Array, "*shape"], layout: Layout) -> dict[str, Float[Array, "*row"] | Int[Array, "*row"]]:
    """Returns the measures of rows of weights; 0 for a segment without entries."""
    largest = layout.top(w)
    filled = largest != -jnp.inf
    place = layout.first_place((w == layout.spread(largest)) | jnp.isnan(w))  # of NaN, which equals nothing, the first
    return {
        "entropy": entropy_of_weights(w, layout),
        "largest": jnp.where(filled, largest, 0),
        "place": jnp.where(filled, place, 0),
        "first": layout.head(w),
    }


def _measure_logits(z: Float[Array, "*shape"], layout: Layout) -> dict[str, Float[Array, "*row"]]:
    """Returns the measures of rows of logits, -inf where these are hidden; 0 for a row that sees nothing."""
    visible = z != -jnp.inf
    top, seen = layout.top(z), layout.total(visible)
    # The second is the largest without the first of the largest: (3, 3, 1) has gap 0.
    first_of_top = layout.first(visible & (z == layout.spread(top)))
    second = layout.top(jnp.where(first_of_top, -jnp.inf, z))
    least = -layout.top(jnp.where(visible, -z, -jnp.inf))
    # log Σ exp z = m + log Σ exp(z - m) for any constant m. The largest logit is one, as long as it is finite: (0, 0)
    # has 0 + log 2, and the sum of a row that sees nothing is 0, which has no logarithm.
    pivot = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    total = layout.total(jnp.exp(z - layout.spread(pivot)))
    measures = {
        "top": top,
        "gap": jnp.where(seen > 1, top - second, 0),
        "spread": top - least,
        "log_sum_exp": pivot + jnp.log(jnp.where(seen > 0, total, 1)),
    }
    return {name: jnp.where(seen > 0, measure, 0) for name, measure in measures.items()}
