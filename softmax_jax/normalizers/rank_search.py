"""Searches for the threshold that the k largest entries of a row reach, without sorting the row."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.layout import LAST, Layout, Segments
from softmax_jax.normalizers.threshold_search import cut
from softmax_jax.refusal import WrongType


def as_ranks(k: ArrayLike) -> Int[Array, "..."]:
    """Returns the k of a search in int32. Raises TypeError for an array that is not of whole numbers."""
    if checks.is_array(k) and not jnp.issubdtype(jnp.result_type(k), jnp.integer):
        raise WrongType(f"k is {checks.shown(k)}; it must be whole: call .astype('int32') on it")
    most = jnp.iinfo(jnp.int32).max  # which no row is longer than
    if isinstance(k, int | float):
        k = min(int(k), most)
    elif not checks.is_jax(k):
        k = np.minimum(k, np.int64(most))
    elif jnp.iinfo(jnp.result_type(k)).max > most:
        k = jnp.minimum(k, most)
    return jnp.asarray(k, jnp.int32)


@jax.jit
def kth_largest(z: Float[Array, "*rows n"], k: Int[Array, "..."], layout: Layout = LAST) -> Float[Array, "*row"]:
    """Returns a threshold that exactly the k largest of each row (and ties) reach; -inf if the row has no more than k.

    Rows lie along the last axis, or are segments.
    `jax.lax.top_k` takes 70 times as long for k = 32 (1024 rows of 4,096, on 2 AVX2 cores) and no k that is traced.
    """
    # Halves an interval of the floating-point numbers themselves, in their order, until it holds just one or the count
    # of what reaches it fits. It starts at the k-th largest of a part, the largest entry of each place of the blocks,
    # which is not above that of the row, and close.
    # The 2nd largest of (3, 1, 2), if floats were whole numbers: 1 is reached by three entries and 3 by one; halfway
    # between, 2 is reached by two: done.
    in_segments = isinstance(layout, Segments)
    blocks = z[None] if in_segments else cut(z)
    places = jnp.max(blocks, -2, initial=-jnp.inf)
    high = layout.top(places)
    short = in_segments or blocks.shape[-2] == 1
    low = jnp.full_like(high, -jnp.inf) if short else kth_largest(places, k, layout)
    dtype = z.dtype
    integer = jnp.int64 if dtype == jnp.float64 else jnp.int32

    def count(threshold: Array) -> Array:
        if in_segments:
            return layout.total(z >= layout.spread(threshold))
        # Along the blocks first, which XLA on CPU fuses with the comparison: this takes a quarter of the time.
        place_counts = jnp.sum(blocks >= threshold[..., None], -2, dtype=jnp.int32)
        return jnp.sum(jax.lax.optimization_barrier(place_counts), -1, keepdims=True, dtype=jnp.int32)

    def reorder(bits: Array) -> Array:
        # The bits of a float grow with its size, so those below 0, whose sign bit makes them negative, are in reverse:
        # all bits but the sign are flipped there. Applied twice it gives the bits back. -1.0 has the bits 0xBF800000
        # and becomes 0xC07FFFFF; -2.0 has 0xC0000000 and becomes 0xBFFFFFFF, which is less.
        return bits ^ ((bits >> (jnp.iinfo(integer).bits - 1)) & jnp.iinfo(integer).max)

    def unfinished(state: tuple[Array, Array]) -> Array:
        low, high = state
        return jnp.any(low + 1 < high)

    def halve(state: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = state
        middle = (low & high) + ((low ^ high) >> 1)  # their mean, without overflow: 5 and 7 have 5 + (2 >> 1) = 6
        middle_count = count(jax.lax.bitcast_convert_type(reorder(middle), dtype))
        above = jnp.where(middle_count > k, high, jnp.where(middle_count == k, middle + 1, middle))
        return jnp.where(middle_count >= k, middle, low), above

    lowest = jnp.full_like(low, -jnp.inf)
    low = jnp.maximum(low, jnp.finfo(dtype).min)
    none, least, most = (reorder(jax.lax.bitcast_convert_type(end, integer)) for end in (lowest, low, high))
    # The k-th largest of a part may be above after all, where a compiler computed it from logits rounded otherwise.
    low_count = count(low)
    # One more than the end, so that this itself can be found.
    start = jnp.where(low_count < k, none, least), jnp.where(low_count > k, most, least) + 1
    kth, _ = jax.lax.while_loop(unfinished, halve, start)
    return jax.lax.bitcast_convert_type(reorder(kth), dtype)
