"""Logits of attention and what they weigh: what attention dense, by queries and fused shares.

Queries, keys and values are laid out as (batch, length, heads, size), logits and weights as
(batch, heads, queries, keys). What hides an entry is one boolean mask, given to the normalizer as `where`;
no large negative number ever stands for it, but a bias of -9,000 or less hides too, as `masking` says.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int32

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.masking import HIDDEN
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import as_normalizer

Queries = Float[Array, "*batch queries heads size"]
Keys = Float[Array, "*batch keys kv_heads size"]
Values = Float[Array, "*batch keys kv_heads value_size"]
Outputs = Float[Array, "*batch queries heads value_size"]
Weights = Float[Array, "*batch heads queries keys"]
Bias = Float[Array, "..."] | None
Mask = Bool[Array, "..."] | None
Lengths = Int32[Array, "_"] | None
Window = tuple[int, int] | None
Given = ArrayLike | Sequence[Any] | None
"""A bias, a mask, lengths or a window as users give them: an array, a list or one number."""

BIAS = "pass a mask that is added to the logits as bias="
"""What to do with such a mask."""


def attention_logits(
    query: Queries,
    key: Keys,
    bias: Bias = None,
    scale: ArrayLike | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> Weights:
    r"""Logits $z_{ij} = \text{scale} \cdot q_i \cdot k_j + b_{ij}$ in float32 (float64 stays)."""
    *batch, queries, heads, size = query.shape
    keys, kv_heads = key.shape[-3:-1]
    scaled = scaled_query(query, scale)
    # With the heads first, so that the logits are never transposed: XLA does that for other orders.
    grouped = jnp.moveaxis(scaled, -2, -3).reshape(*batch, kv_heads, heads // kv_heads * queries, size)
    by_head = jnp.moveaxis(key, -2, -3).astype(scaled.dtype)
    logits = jnp.einsum("...hqd,...hkd->...hqk", grouped, by_head, precision=precision)
    logits = logits.reshape(*batch, heads, queries, keys)
    return logits if bias is None else logits + align(bias, logits.ndim).astype(scaled.dtype)


def scaled_query(query: Queries, scale: ArrayLike | None) -> Queries:
    """The query times the scale, which is 1/√size unless given, in float32 (float64 stays)."""
    dtype = jnp.float64 if query.dtype == jnp.float64 else jnp.float32
    factor = jnp.asarray(1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale, dtype)
    return query.astype(dtype) * factor


def weighted_values(weights: Weights, value: Values, precision: jax.lax.PrecisionLike = None) -> Outputs:
    r"""Output $o_i = \sum_j w_{ij} v_j$, in the type of the weights."""
    *batch, heads, queries, keys = weights.shape
    kv_heads, size = value.shape[-2:]
    grouped = weights.reshape(*batch, kv_heads, heads // kv_heads * queries, keys)
    by_head = jnp.moveaxis(value, -2, -3).astype(weights.dtype)
    output = jnp.einsum("...hqk,...hkd->...hqd", grouped, by_head, precision=precision)
    return jnp.moveaxis(output.reshape(*batch, heads, queries, size), -2, -3)


def visible_entries(
    shape: tuple[int, ...],
    mask: Mask = None,
    is_causal: bool = False,
    query_seq_lengths: Lengths = None,
    key_value_seq_lengths: Lengths = None,
    local_window_size: Window = None,
    first_query: ArrayLike = 0,
    bias: Bias = None,
) -> Mask:
    """One mask of all that hides an entry of logits of this shape, True where it is visible; None if nothing does.

    `first_query` is the position of the first query, where the logits are those of some queries.
    """
    rows = align((jnp.arange(shape[-2], dtype=jnp.int32) + jnp.asarray(first_query, jnp.int32))[:, None], len(shape))
    columns = align(jnp.arange(shape[-1], dtype=jnp.int32), len(shape))
    masks = [] if mask is None else [align(mask, len(shape))]
    if bias is not None:
        masks.append(~(align(bias, len(shape)) <= HIDDEN))  # NaN is no mask
    if is_causal:
        masks.append(columns <= rows)
    if local_window_size is not None:
        left, right = local_window_size
        masks.append((rows - left <= columns) & (columns <= rows + right))
    if query_seq_lengths is not None:
        masks.append(rows < query_seq_lengths[:, None, None, None])
    if key_value_seq_lengths is not None:
        masks.append(columns < key_value_seq_lengths[:, None, None, None])
    return functools.reduce(jnp.logical_and, masks) if masks else None


class Inputs(NamedTuple):
    """Arrays with a batch axis that fit each other, and options that fit them."""

    query: Queries
    key: Keys
    value: Values
    bias: Bias
    mask: Mask
    normalizer: Normalizer
    scale: ArrayLike | None
    is_causal: bool
    lengths: tuple[Lengths, Lengths]
    """Of queries and keys."""
    window: Window
    precision: jax.lax.PrecisionLike = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the logits: batch, heads, queries, keys."""
        batch, queries, heads, _ = self.query.shape
        return batch, heads, queries, self.key.shape[1]

    def visible(self) -> Mask:
        """One mask of all that hides an entry."""
        return visible_entries(self.shape, self.mask, self.is_causal, *self.lengths, self.window, bias=self.bias)

    def logits(self) -> Weights:
        """All logits."""
        return attention_logits(self.query, self.key, self.bias, self.scale, self.precision)


def checked_inputs(
    query: Queries,
    key: Keys,
    value: Values,
    bias: Given,
    mask: Given,
    scale: ArrayLike | None,
    is_causal: bool,
    lengths: tuple[Given, Given],
    window: Given,
    normalizer: Normalizer | str,
    precision: jax.lax.PrecisionLike = None,
) -> Inputs:
    """The inputs with a batch axis. Raises ValueError or TypeError, in one line, unless all fits."""
    query, key, value = (checks.array(*one) for one in (("query", query), ("key", key), ("value", value)))
    check_layout(query, key, value)
    check_options(scale, is_causal)
    *batched, queries, heads, _ = query.shape
    batch = batched[0] if batched else 1
    shape = (batch, heads, queries, key.shape[-3])
    bias, mask = bias_and_mask(bias, mask, shape)
    names = "query_seq_lengths", "key_value_seq_lengths"
    of_queries, of_keys = (lengths_of(name, one, batch) for name, one in zip(names, lengths))
    normalizer = as_normalizer(normalizer)
    check_numbers(normalizer, shape)
    of_both, window = (of_queries, of_keys), window_of(window)
    query, key, value = (jnp.asarray(one if batched else one[None]) for one in (query, key, value))
    return Inputs(query, key, value, bias, mask, normalizer, scale, bool(is_causal), of_both, window, precision)


def check_numbers(normalizer: Normalizer, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless the numbers of a normalizer are one for each row of logits of this shape."""
    if checks.has_axes(normalizer):
        jax.eval_shape(lambda z: normalizer(z), jax.ShapeDtypeStruct((*shape[:-1], 1), jnp.float32))


def bias_and_mask(bias: Given, mask: Given, shape: tuple[int, ...], nonzero: bool = False) -> tuple[Bias, Mask]:
    """Both as arrays for logits of this shape; `nonzero` is as in `checks.mask`. Raises unless they fit."""
    mask = checks.mask(mask, shape, BIAS, "(batch, heads, queries, keys) =", nonzero)
    if bias is None:
        return None, mask
    added = checks.array("bias", bias, int | float | list | tuple)
    if not jnp.issubdtype(added.dtype, jnp.floating):
        raise TypeError(f"bias has dtype {added.dtype}; it must be floating point: pass a boolean mask as mask=")
    if not checks.broadcasts(added.shape, shape):
        raise ValueError(
            f"bias has shape {added.shape}; it must broadcast to (batch, heads, queries, keys) = {shape}: "
            "give each axis its full size or 1"
        )
    return jnp.asarray(added), mask


def lengths_of(name: str, lengths: Given, batch: int) -> Lengths:
    """Lengths as an array. Raises TypeError unless they are whole numbers, ValueError unless one per batch entry."""
    if lengths is None:
        return None
    found = checks.indices(name, lengths)
    if found.shape != (batch,):
        raise ValueError(f"{name} has shape {found.shape}; it must be ({batch},): give one length per batch entry")
    return jnp.asarray(found, jnp.int32)


def window_of(window: Given) -> Window:
    """The window to the left and to the right. Raises TypeError or ValueError unless it is one or two numbers."""
    if window is None:
        return None
    sides: tuple[Any, ...] = tuple(window) if isinstance(window, tuple | list) else (window, window)
    if len(sides) != 2 or not all(map(checks.is_whole, sides)) or min(sides) < 0:
        raise ValueError(
            f"local_window_size is {checks.shown(window)}; it must be whole and at least 0: give one number, or "
            "(left, right)"
        )
    return operator.index(sides[0]), operator.index(sides[1])


def check_layout(query: Array, key: Array, value: Array) -> None:
    """Raises unless queries, keys and values fit each other."""
    if query.ndim not in (3, 4):
        raise ValueError(
            f"query has shape {query.shape}; it must be (batch, length, heads, size) or (length, heads, size): "
            "give even a single head its axis"
        )
    check_fits(query, key, value)
    if not jnp.issubdtype(query.dtype, jnp.floating) or not query.dtype == key.dtype == value.dtype:
        raise TypeError(
            f"query, key and value have dtypes {query.dtype}, {key.dtype} and {value.dtype}; "
            "they must be one floating-point type: call .astype('float32') on each"
        )


def check_fits(query: Array, key: Array, value: Array) -> None:
    """Raises ValueError unless keys fit the queries, their heads divide those of the queries, and each has a value."""
    if (key.ndim, key.shape[:-3], key.shape[-1]) != (query.ndim, query.shape[:-3], query.shape[-1]):
        raise ValueError(
            f"key has shape {key.shape}; its batch and size must be those of the query, which has {query.shape}: "
            "both are (batch, length, heads, size)"
        )
    if not key.shape[-2] or query.shape[-2] % key.shape[-2]:
        raise ValueError(
            f"query has {query.shape[-2]} heads, which is no multiple of the {key.shape[-2]} of key and value: "
            "let each of theirs serve the same number of query heads"
        )
    if value.shape[:-1] != key.shape[:-1]:
        raise ValueError(
            f"value has shape {value.shape}; but for its size it must be that of the key, {key.shape}: "
            "pair each key with one"
        )


def check_options(scale: ArrayLike | None, is_causal: bool) -> None:
    """Raises ValueError or TypeError unless the scale is one number, and `is_causal` True or False."""
    if scale is not None and jnp.ndim(scale):
        raise ValueError(
            f"scale has shape {jnp.shape(scale)}; it must be one number: give a number per head to the normalizer, "
            "as in normalizer('temperature', theta=...)"
        )
    if scale is not None:
        checks.finite("scale", scale)
    checks.flag("is_causal", is_causal)


def align(array: Array, ndim: int) -> Array:
    """Adds axes of size 1 in front, up to this rank."""
    return array.reshape((1,) * (ndim - array.ndim) + array.shape)
