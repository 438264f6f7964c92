"""The k-th largest entry of each row, found without sorting."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.part import cut, largest_of_places, unless_all


def whole_ranks(k: ArrayLike) -> Int[Array, "..."]:
    """The k of a search in int32. Raises TypeError for an array that is not of whole numbers."""
    if checks.is_array(k) and not jnp.issubdtype(jnp.result_type(k), jnp.integer):
        raise TypeError(f"k is {checks.shown(k)}; it must be whole: call .astype('int32') on it")
    most = jnp.iinfo(jnp.int32).max  # which no row is longer than
    return jnp.asarray(min(int(k), most) if isinstance(k, int | float) else k, jnp.int32)


@jax.jit
def kth_largest(z: Float[Array, "*rows n"], k: Int[Array, "..."]) -> Float[Array, "*rows 1"]:
    """A number that the k largest of each row reach, with what ties with the last, and no others; -inf if all do.

    It is that of the largest entries of each place of the row, if it reaches the least of them at every place: what is
    not among them is no larger. Only rows of which this does not hold are searched as a whole.
    """
    blocks = cut(z)
    part = largest_of_places(blocks)
    of_part = _kth_by_halving(part.largest, k)
    if blocks.shape[-2] == 1:
        return of_part

    def search_all(low: Array) -> Array:
        return find_kth_largest(functools.partial(_count, blocks), k, low, part.maximum())

    return unless_all(part.bound() <= of_part, search_all, of_part)


def _kth_by_halving(blocks: Float[Array, "*rows blocks m"], k: Int[Array, "..."]) -> Float[Array, "*rows 1"]:
    """As `kth_largest`. That of the largest of each place is not above, and close: the search starts there."""
    places = jnp.max(blocks, -2, initial=-jnp.inf)
    high = jnp.max(places, -1, keepdims=True, initial=-jnp.inf)
    low = jnp.full_like(high, -jnp.inf) if blocks.shape[-2] == 1 else _kth_by_halving(cut(places), k)
    return find_kth_largest(functools.partial(_count, blocks), k, low, high)


def _count(blocks: Float[Array, "*rows blocks m"], threshold: Float[Array, "*rows 1"]) -> Int[Array, "*rows 1"]:
    """Entries that are not below a threshold."""
    # Along the blocks first, which XLA on CPU fuses with the comparison: this takes a quarter of the time.
    of_places = jnp.sum(blocks >= threshold[..., None], -2, dtype=jnp.int32)
    return jnp.sum(jax.lax.optimization_barrier(of_places), -1, keepdims=True, dtype=jnp.int32)


def find_kth_largest(
    count: Callable[[Float[Array, "*row"]], Int[Array, "*row"]],
    k: Int[Array, "..."],
    low: Float[Array, "*row"],
    high: Float[Array, "*row"],
) -> Float[Array, "*row"]:
    """As `kth_largest`, from the count of entries that are not below a number.

    `low` is a guess from below, which is tried first, and nothing is above `high`. Halves an interval of the floating
    point numbers themselves, in their order, until it holds just one or the count fits.
    """
    dtype = low.dtype
    whole = jnp.int64 if dtype == jnp.float64 else jnp.int32

    def in_order(bits: Array) -> Array:
        """From the bits of a float to a whole number that grows with it, and back."""
        return bits ^ ((bits >> (jnp.iinfo(whole).bits - 1)) & jnp.iinfo(whole).max)

    def unfinished(state: tuple[Array, Array]) -> Array:
        low, high = state
        return jnp.any(low + 1 < high)

    def search(state: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = state
        middle = (low & high) + ((low ^ high) >> 1)
        counted = count(jax.lax.bitcast_convert_type(in_order(middle), dtype))
        return jnp.where(counted >= k, middle, low), jnp.where(
            counted > k, high, jnp.where(counted == k, middle + 1, middle)
        )

    lowest = jnp.full_like(low, -jnp.inf)
    low = jnp.maximum(low, jnp.finfo(dtype).min)
    none, least, most = (in_order(jax.lax.bitcast_convert_type(end, whole)) for end in (lowest, low, high))
    # A guess from logits that were rounded otherwise, as when they are computed anew, may be above after all. One more
    # than the end, so that this itself can be found.
    counted = count(low)
    start = jnp.where(counted < k, none, least), jnp.where(counted > k, most, least) + 1
    kth, _ = jax.lax.while_loop(unfinished, search, start)
    return jax.lax.bitcast_convert_type(in_order(kth), dtype)
