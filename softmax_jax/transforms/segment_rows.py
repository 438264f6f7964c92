"""Measures the rows of a softmax over segments, as `probe` measures those along an axis."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers.layout import Segments
from softmax_jax.normalizers.row import Row


def measure_segments(
    logits: Float[Array, "entries *rest"],
    weights: Float[Array, "entries *rest"],
    layout: Segments,
    where: Bool[Array, "entries *rest"] | None,
    critical: bool,
) -> dict[str, Array]:
    """Returns the measures that `SiteRows` holds, of each segment; 0 for one that sees nothing."""
    row = Row.of(logits, layout, where, low_hides=False)
    z, w = row.logits, Row.of(weights, layout, None, low_hides=False).logits
    visible, place = z > -jnp.inf, jax.lax.broadcasted_iota(jnp.int32, z.shape, 0)

    def total(values: Array) -> Array:
        return layout.total(values)[1:-1]  # without what belongs to no segment

    def top(values: Array) -> Array:
        return layout.top(values)[1:-1]

    entries, seen = total(jnp.ones(z.shape, jnp.int32)), total(visible)
    sizes = jnp.abs(w)
    shares = sizes / layout.divisor(sizes)
    largest = layout.first(w == layout.largest(w))
    # The second is the largest without the first of the largest: (3, 3, 1) has gap 0.
    first_of_top = layout.first(visible & (z == layout.largest(z)))
    second, least = top(jnp.where(first_of_top, -jnp.inf, z)), -top(jnp.where(visible, -z, -jnp.inf))
    log_sum_exp = jnp.log(total(jnp.where(visible, jnp.exp(layout.centre(z)), 0))) + top(z)
    measures = {
        "entropy": 0 - total(shares * jnp.log(jnp.where(shares == 0, 1, shares))),
        "largest": jnp.where(entries > 0, top(w), 0),
        "place": total(jnp.where(largest, place, 0)),
        "visible": entries if where is None else total(where),
        "first": total(jnp.where(layout.first(jnp.ones(z.shape, bool)), w, 0)),
        "top": jnp.where(seen > 0, top(z), 0),
        "gap": jnp.where(seen > 1, top(z) - second, 0),
        "spread": jnp.where(seen > 0, top(z) - least, 0),
        "log_sum_exp": jnp.where(seen > 0, log_sum_exp, 0),
    }
    return measures | ({"critical": _critical_beta(z, layout)} if critical else {})


def _critical_beta(z: Float[Array, "entries *rest"], layout: Segments) -> Float[Array, "segments *rest"]:
    """Returns the critical inverse temperature of each segment, as `row.critical_beta_of` does of rows."""
    # Entries in the order of their segments, the largest first: (0, 1, 0) with z = (0, 5, 2) become the places 2, 0, 1.
    # Segment 0 starts at 0, so 2 is its first, k = 1, and 0 its second: log 2 / (2 - 0).
    ids = jnp.broadcast_to(layout.ids.reshape(-1, *(1,) * (z.ndim - 1)), z.shape)
    ids, negative = jax.lax.sort((ids, -z), dimension=0, num_keys=2)
    ordered, sorted_layout = -negative, dataclasses.replace(layout, ids=jnp.sort(layout.ids), ascending=True)
    lengths = layout.total(jnp.ones(layout.ids.shape, jnp.int32))
    place = jax.lax.broadcasted_iota(jnp.int32, z.shape, 0) - (jnp.cumsum(lengths) - lengths)[ids]
    counted = (place > 0) & (ordered > -jnp.inf)
    gap = jnp.where(counted, sorted_layout.largest(ordered) - ordered, 1)
    slope = jnp.where(counted, jnp.log1p(place.astype(z.dtype)) / gap, 0)
    finite = layout.total(z == jnp.inf) + layout.total(jnp.isnan(z)) == 0
    return jnp.where(finite, jnp.maximum(sorted_layout.top(slope), 0), jnp.nan)[1:-1]
