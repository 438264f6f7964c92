"""Weighs segments of an array as rows: the edges of each node of a graph, the tokens of each document of a batch.

Maps and scales reduce over segments directly, by `layout.Segments`, in memory that grows with the entries. A plain
function, or a part that reads the axis of its rows, sees the segments as rows padded to the longest.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.layout import NeedsAxis, Segments
from softmax_jax.normalizers.registry import NormalizerLike, as_normalizer
from softmax_jax.normalizers.row import AnyMask, Mask, axis_and_mask, weigh, weigh_rows
from softmax_jax.refusal import Refusal

PADDED_ENTRIES = 2**22
"""Entries of the padded rows that are formed at once: 16 MiB in float32."""

MOST = 2**31 - 3
"""The largest id: the layout counts in int32, with a row before all segments and one after them."""


def segments(
    logits: Float[Array, "entries *rest"],
    segment_ids: Shaped[ArrayLike, "..."] | Sequence[Any],
    normalizer: NormalizerLike = "softmax",
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    *,
    where: AnyMask = None,
    max_length: int | None = None,
) -> Float[Array, "entries *rest"]:
    r"""Weighs each segment of the first axis as a row, by any normalizer, as `jax.ops.segment_sum` sums segments.

    $$w_i = \operatorname{normalizer}(\{z_j : s_j = s_i\})_i$$

    n, entropy, maximum and threshold are those of the segment. The weights are those of the segments as padded rows:
    `normalizer(rows, where=mask)`.

    Arguments:
        logits: An array of floating point. Other axes than the first, such as heads, hold rows of their own.
        segment_ids: The segment of each entry, whole numbers in any order. An entry whose id is not from 0 to
            `num_segments` - 1 is refused, or gets weight 0 where ids are traced.
        normalizer: A `Normalizer`, its name, as in "ssmax(s=0.43)", or any function with the signature of
            `jax.nn.softmax`. Its numbers per head have the shape (heads,) for logits of shape (entries, heads).
        num_segments: The number of segments; the largest id and one unless given. Needed where ids are traced.
        indices_are_sorted: Whether the ids ascend, which is faster. Not checked where ids are traced.
        where: True at the visible entries; None for no mask.
        max_length: The entries of the longest segment, for a plain function where ids are traced: it sees padded rows
            of that length. The number of all entries unless given, which costs time of segments times entries. A
            segment that is longer has weights NaN.

    Returns:
        Weights in the shape and type of the logits.

    Raises:
        TypeError: For ids that are not whole.
        ValueError: For ids out of bounds, or not sorted where `indices_are_sorted` says so, and for shapes that do not
            fit. The values of traced ids are not known, and so not checked.

    Example:
        >>> segments(jnp.zeros(4), jnp.array([0, 1, 1, 1]), "ssmax").round(3)
        Array([1.   , 0.333, 0.333, 0.333], dtype=float32)

        In a graph of jraph, for its `attention_normalize_fn`:

        >>> from functools import partial
        >>> by_node = partial(segments, normalizer="ssmax")
        >>> by_node(jnp.zeros(2), segment_ids=jnp.array([0, 0]), num_segments=3)
        Array([0.5, 0.5], dtype=float32)
    """
    _, where = axis_and_mask(logits, 0, where)
    normalizer = as_normalizer(normalizer)
    ids, count = _as_ids(segment_ids, jnp.shape(logits), num_segments, indices_are_sorted)
    logits = jnp.asarray(logits)
    layout = Segments.of(ids, count, indices_are_sorted)
    return weigh_segments(normalizer, logits, layout, where, ids, max_length, low_hides=True)


def weigh_segments(
    part: Any,
    logits: Float[Array, "entries *rest"],
    layout: Segments,
    where: Mask,
    ids: Any,
    max_length: int | None = None,
    *,
    low_hides: bool,
) -> Float[Array, "entries *rest"]:
    """Weighs logits and a mask that are checked by a map or a normalizer, in the segments of a layout made of ids.

    Entries of no segment get weight 0.
    """
    inside = layout.inside(logits.ndim)
    where = inside if where is None else where & inside
    try:
        return weigh_rows(part, logits, layout, where, low_hides=low_hides)
    except NeedsAxis:
        length = _longest(ids, layout.count - 2, max_length)
        return _weigh_padded(part, logits, layout, where, ids, length, low_hides)


def _as_ids(ids: Any, shape: tuple[int, ...], count: int | None, ascending: bool) -> tuple[Any, int]:
    """Returns the ids and the number of segments, checked as far as they are known."""
    ids = checks.indices("segment_ids", ids)
    if ids.shape != shape[:1]:
        raise Refusal(
            f"segment_ids has shape {ids.shape}; it must be {shape[:1]}: give one id for each entry of the first axis "
            f"of the logits, which have shape {shape}"
        )
    checks.flag("indices_are_sorted", ascending)
    known = _as_known(ids)
    if count is not None:
        checks.whole("num_segments", count, 0, 16)
    elif known is None:
        raise Refusal("num_segments is None and segment_ids is traced; the size must be known: give a whole number")
    else:
        count = int(known.max(initial=-1)) + 1
    if known is None or not known.size:
        return ids, int(count)
    wrong = known[(known < 0) | (known >= count)]
    if wrong.size:
        raise Refusal(
            f"segment_ids holds {wrong[0]}; each must be from 0 to num_segments - 1 = {count - 1}: mask such an entry "
            "by where=, under any id"
        )
    if ascending and np.any(np.diff(known) < 0):
        place = int(np.argmax(np.diff(known) < 0))
        raise Refusal(
            f"segment_ids holds {known[place]} before {known[place + 1]} and indices_are_sorted=True; they must "
            "ascend: sort them, or leave indices_are_sorted out"
        )
    return ids, int(count)


def _as_known(ids: Any) -> Any:
    """Returns ids in int64, in which their differences have a sign; None if they are traced."""
    if not checks.is_known(ids):
        return None
    known = np.asarray(ids)
    if known.size and known.max() > MOST:
        raise Refusal(f"segment_ids holds {known.max()}; each must be at most {MOST}: number the segments from 0")
    return known.astype(np.int64)


def _longest(ids: Any, count: int, max_length: int | None) -> int:
    """Returns the length of padded rows: that of the longest segment if known, else a bound."""
    if max_length is not None:
        checks.whole("max_length", max_length, 1, 128)
    known = _as_known(ids)
    if known is None:
        return ids.shape[0] if max_length is None else int(max_length)
    counts = np.bincount(known[(known >= 0) & (known < count)], minlength=1)
    longest = int(counts.max())
    if max_length is not None and longest > max_length:
        raise Refusal(
            f"max_length is {max_length} and segment {counts.argmax()} has {longest} entries; it must be at least "
            "that: leave it out, as the ids are known"
        )
    return longest


def _weigh_padded(
    part: Any,
    logits: Float[Array, "entries *rest"],
    layout: Segments,
    where: Array,
    ids: Any,
    length: int,
    low_hides: bool,
) -> Float[Array, "entries *rest"]:
    """Returns weights of segments as rows padded to a length, a block of segments at a time."""
    # Of the ids (1, 0, 1) the order is (1, 0, 2), and segment 1 has the places 1 and 2 in it. At a length of 2 the rows
    # are the entries (1, -) and (0, 2).
    entries, *rest = logits.shape
    count, where = layout.count - 2, jnp.broadcast_to(where, logits.shape)
    if not logits.size or not count:
        return jnp.zeros_like(logits)
    order = np.argsort(ids, kind="stable") if checks.is_known(ids) else jnp.argsort(layout.ids, stable=True)
    order = jnp.asarray(order, jnp.int32)
    lengths = layout.total(jnp.ones(entries, jnp.int32))
    starts = jnp.cumsum(lengths) - lengths
    block = min(count, max(PADDED_ENTRIES // (length * math.prod(rest)), 1))

    # The backward pass computes a block once more, where it would else keep what a function holds of all of them.
    @jax.checkpoint
    def weigh_block(first: Array) -> tuple[Array, Array]:
        row = first + jnp.arange(block, dtype=jnp.int32)
        size = jnp.where(row <= count, lengths.at[row].get(mode="clip"), 0)[:, None]
        place = jnp.arange(length, dtype=jnp.int32)[None]
        entry = order.at[starts.at[row].get(mode="clip")[:, None] + place].get(mode="clip")
        within = (place < size).reshape(block, length, *(1,) * len(rest))
        weights = weigh(part, logits[entry], 1, within & where[entry], low_hides=low_hides)
        return jnp.where(place < size, entry, entries), weights

    def step(weights: Array, first: Array) -> tuple[Array, None]:
        places, block_weights = weigh_block(first)
        return weights.at[places].set(block_weights, mode="drop"), None

    firsts = jnp.arange(1, count + 1, block, dtype=jnp.int32)  # without the rows of entries outside all segments
    weights = jax.lax.scan(step, jnp.zeros_like(logits), firsts)[0]
    too_long = layout.spread(lengths > length).reshape(entries, *(1,) * len(rest))
    return jnp.where(too_long, jnp.nan, weights)
