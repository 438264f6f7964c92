"""Logits of attention and what they weigh: what dense, streaming and fused attention share.

Queries, keys and values are laid out as (batch, length, heads, size), logits and weights as
(batch, heads, queries, keys). What hides an entry is one boolean mask, given to the normalizer as `where`;
no large negative number ever stands for it.
"""

import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int32

from softmax_jax.normalizers import checks, registry
from softmax_jax.normalizers.normalizer import Normalizer

Queries = Float[Array, "*batch queries heads size"]
Keys = Float[Array, "*batch keys kv_heads size"]
Values = Float[Array, "*batch keys kv_heads value_size"]
Outputs = Float[Array, "*batch queries heads value_size"]
Weights = Float[Array, "*batch heads queries keys"]
Bias = Float[Array, "..."] | None
Mask = Bool[Array, "..."] | None
Lengths = Int32[Array, "_"] | None
Window = int | tuple[int, int] | None


def as_normalizer(normalizer: Normalizer | str) -> Normalizer:
    """The normalizer itself, or the registered one of that name. Raises TypeError for anything else."""
    if isinstance(normalizer, str):
        return registry.normalizer(normalizer)
    if not isinstance(normalizer, Normalizer):
        raise TypeError(
            f"normalizer is {checks.shown(normalizer)}; it must be a Normalizer or the name of one: "
            "give 'ssmax(s=0.43)', or Normalizer(map, scale)"
        )
    return normalizer


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
    grouped = scaled.reshape(*batch, queries, kv_heads, heads // kv_heads, size)
    logits = jnp.einsum("...qhgd,...khd->...hgqk", grouped, key.astype(scaled.dtype), precision=precision)
    logits = logits.reshape(*batch, heads, queries, keys)
    return logits if bias is None else logits + align(bias, logits.ndim).astype(scaled.dtype)


def scaled_query(query: Queries, scale: ArrayLike | None) -> Queries:
    """The query times the scale, which is 1/√size unless given, in float32 (float64 stays)."""
    dtype = jnp.float64 if query.dtype == jnp.float64 else jnp.float32
    factor = jnp.asarray(1 / math.sqrt(query.shape[-1]) if scale is None else scale, dtype)
    return query.astype(dtype) * factor


def weighted_values(weights: Weights, value: Values, precision: jax.lax.PrecisionLike = None) -> Outputs:
    r"""Output $o_i = \sum_j w_{ij} v_j$, in the type of the weights."""
    *batch, heads, queries, keys = weights.shape
    kv_heads, size = value.shape[-2:]
    grouped = weights.reshape(*batch, kv_heads, heads // kv_heads, queries, keys)
    output = jnp.einsum("...hgqk,...khd->...qhgd", grouped, value.astype(weights.dtype), precision=precision)
    return output.reshape(*batch, queries, heads, size)


def visible_entries(
    shape: tuple[int, ...],
    mask: Mask = None,
    is_causal: bool = False,
    query_seq_lengths: Lengths = None,
    key_value_seq_lengths: Lengths = None,
    local_window_size: Window = None,
    first_key: ArrayLike = 0,
) -> Mask:
    """One mask of all that hides an entry of logits of this shape, True where it is visible; None if nothing does.

    `first_key` is the position of the first key, where the logits are those of a part of the keys.
    """
    rows = align(jnp.arange(shape[-2], dtype=jnp.int32)[:, None], len(shape))
    columns = align(jnp.arange(shape[-1], dtype=jnp.int32) + jnp.asarray(first_key, jnp.int32), len(shape))
    masks = [] if mask is None else [align(mask, len(shape))]
    if is_causal:
        masks.append(columns <= rows)
    if local_window_size is not None:
        left, right = (local_window_size,) * 2 if isinstance(local_window_size, int) else local_window_size
        masks.append((rows - left <= columns) & (columns <= rows + right))
    if query_seq_lengths is not None:
        masks.append(rows < query_seq_lengths[:, None, None, None])
    if key_value_seq_lengths is not None:
        masks.append(columns < key_value_seq_lengths[:, None, None, None])
    return functools.reduce(jnp.logical_and, masks) if masks else None


def check_inputs(
    query: Queries,
    key: Keys,
    value: Keys,
    bias: Bias,
    mask: Mask,
    query_seq_lengths: Lengths,
    key_value_seq_lengths: Lengths,
    local_window_size: Window,
    scale: ArrayLike | None,
    is_causal: bool,
) -> tuple[Array, Array, Array, tuple[int, int, int, int]]:
    """Queries, keys and values with a batch axis, and the shape of the logits. Raises unless all fits."""
    check_layout(query, key, value)
    check_scale(scale)
    checks.yes_or_no("is_causal", is_causal)
    q, k, v = (array if array.ndim == 4 else array[None] for array in (query, key, value))
    batch, queries, heads, _ = q.shape
    shape = (batch, heads, queries, k.shape[1])
    check_broadcasts("bias", bias, shape)
    check_broadcasts("mask", mask, shape)
    check_lengths("query_seq_lengths", query_seq_lengths, batch)
    check_lengths("key_value_seq_lengths", key_value_seq_lengths, batch)
    check_window(local_window_size)
    return q, k, v, shape


def check_broadcasts(name: Literal["bias", "mask"], array: Bias | Mask, shape: tuple[int, ...]) -> None:
    """Raises unless a bias or a mask has its type, and a shape that broadcasts to that of the logits."""
    if array is None:
        return
    if not checks.is_array(array):
        raise TypeError(f"{name} is {checks.shown(array)}; it must be an array: call jnp.asarray on it")
    if name == "mask" and array.dtype != jnp.bool_:
        raise TypeError(
            f"mask has dtype {array.dtype}; it must be bool: pass a mask to be added to the logits as bias="
        )
    if name == "bias" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"bias has dtype {array.dtype}; it must be floating point: pass a boolean mask as mask=")
    check_shape(name, array.shape, shape)


def check_numbers(normalizer: Normalizer, shape: tuple[int, ...]) -> None:
    """Raises unless the numbers of a normalizer keep the rules of its map and are one for each row of such logits."""
    if checks.has_axes(normalizer):
        jax.eval_shape(lambda z: normalizer(z), jax.ShapeDtypeStruct((*shape[:-1], 1), jnp.float32))


def check_shape(name: str, own: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Raises unless the shape of a bias or a mask broadcasts to that of the logits."""
    if not checks.broadcasts(own, shape):
        raise ValueError(
            f"{name} has shape {own}; it must broadcast to (batch, heads, queries, keys) = {shape}: "
            "give each axis its full size or 1"
        )


def check_layout(query: Array, key: Array, value: Array) -> None:
    """Raises unless queries, keys and values fit each other."""
    check_arrays(query, key, value)
    if query.ndim not in (3, 4):
        raise ValueError(
            f"query has shape {query.shape}; it must be (batch, length, heads, size) or (length, heads, size): "
            "give even a single head its axis"
        )
    if (key.ndim, key.shape[:-3], key.shape[-1]) != (query.ndim, query.shape[:-3], query.shape[-1]):
        raise ValueError(
            f"key has shape {key.shape}; its batch and size must be those of the query, which has {query.shape}: "
            "both are (batch, length, heads, size)"
        )
    if value.shape != key.shape:
        raise ValueError(
            f"value has shape {value.shape}; it must be that of the key, {key.shape}: pair each key with one"
        )
    if query.shape[-1] < 1:
        raise ValueError(f"query has shape {query.shape}; a head must have at least 1 feature: give a larger size")
    if not key.shape[-2] or query.shape[-2] % key.shape[-2]:
        raise ValueError(
            f"query has {query.shape[-2]} heads, which is no multiple of the {key.shape[-2]} of key and value: "
            "let each of theirs serve the same number of query heads"
        )
    if not jnp.issubdtype(query.dtype, jnp.floating) or not query.dtype == key.dtype == value.dtype:
        raise TypeError(
            f"query, key and value have dtypes {query.dtype}, {key.dtype} and {value.dtype}; "
            "they must be one floating-point type: call .astype('float32') on each"
        )


def check_arrays(query: Any, key: Any, value: Any) -> None:
    """Raises TypeError unless queries, keys and values are arrays."""
    for name, array in {"query": query, "key": key, "value": value}.items():
        if not checks.is_array(array):
            raise TypeError(f"{name} is {checks.shown(array)}; it must be an array: call jnp.asarray on it")


def check_scale(scale: Any) -> None:
    """Raises unless a scale is one finite number, or None."""
    if scale is None:
        return
    checks.finite("scale", scale)
    if jnp.ndim(scale):
        raise ValueError(
            f"scale has shape {jnp.shape(scale)}; it must be one number: give a number per head to the normalizer, "
            "as in normalizer('temperature', theta=...)"
        )


def check_lengths(name: str, lengths: Array | None, batch: int) -> None:
    """Raises unless lengths are one int32 per batch entry."""
    if lengths is None:
        return
    if not checks.is_array(lengths):
        raise TypeError(f"{name} is {checks.shown(lengths)}; it must be an int32 array: call jnp.asarray on it")
    if lengths.dtype != jnp.int32:
        raise TypeError(f"{name} has dtype {lengths.dtype}; it must be int32: call .astype('int32')")
    if lengths.shape != (batch,):
        raise ValueError(f"{name} has shape {lengths.shape}; it must be ({batch},): give one length per batch entry")


def check_window(window: Window) -> None:
    """Raises unless a window is one whole number or two."""
    if window is None:
        return
    sides = window if isinstance(window, tuple) else (window, window)
    if not (len(sides) == 2 and all(checks.is_whole(side) and side >= 0 for side in sides)):
        raise ValueError(
            f"local_window_size is {checks.shown(window)}; it must be one whole number of at least 0, or a tuple of "
            "two: give (left, right)"
        )


def align(array: Array, ndim: int) -> Array:
    """Adds axes of size 1 in front, up to this rank."""
    return array.reshape((1,) * (ndim - array.ndim) + array.shape)
