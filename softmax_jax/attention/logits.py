"""Logits of attention and what they weigh: what dense, streaming and fused attention share.

Queries, keys and values are laid out as (batch, length, heads, size), logits and weights as
(batch, heads, queries, keys). What hides an entry is one boolean mask, given to the normalizer as `where`;
no large negative number ever stands for it.
"""

import functools
import math
from typing import Literal, NamedTuple, TypedDict

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
    first_key: ArrayLike = 0,
    first_query: ArrayLike = 0,
) -> Mask:
    """One mask of all that hides an entry of logits of this shape, True where it is visible; None if nothing does.

    `first_key` and `first_query` are the positions of the first key and query, where the logits are those of a part.
    """
    rows = align((jnp.arange(shape[-2], dtype=jnp.int32) + jnp.asarray(first_query, jnp.int32))[:, None], len(shape))
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


def unless_lowest(mask: Mask, bias: Bias) -> Mask:
    """The mask less what a bias of -inf hides, as in masks that are added to the logits."""
    mask = None if mask is None else align(mask, 4)
    if bias is None:
        return mask
    above = align(bias, 4) != -jnp.inf
    return above if mask is None else mask & above


class Options(TypedDict, total=False):
    """What all forms of attention take besides their arrays; `dot_product_attention` says what each means."""

    scale: ArrayLike | None
    is_causal: bool
    query_seq_lengths: Lengths
    key_value_seq_lengths: Lengths
    local_window_size: Window
    normalizer: Normalizer | str


class Inputs(NamedTuple):
    """Arrays with a batch axis that fit each other, and options that fit them."""

    query: Queries
    key: Keys
    value: Keys
    bias: Bias
    mask: Mask
    shape: tuple[int, int, int, int]
    """Of the logits: batch, heads, queries, keys."""
    normalizer: Normalizer
    scale: ArrayLike | None
    is_causal: bool
    lengths: tuple[Lengths, Lengths]
    """Of queries and keys."""
    window: Window
    outside: jax.ShapeDtypeStruct
    """Shape and type of the query as it was given, which are those of the output."""

    @classmethod
    def checked(cls, query: Queries, key: Keys, value: Keys, bias: Bias, mask: Mask, options: Options) -> "Inputs":
        """Raises ValueError or TypeError, in one line, unless all fits."""
        check_layout(query, key, value)
        scale, window = options.get("scale"), options.get("local_window_size")
        lengths = options.get("query_seq_lengths"), options.get("key_value_seq_lengths")
        normalizer = as_normalizer(options.get("normalizer", "softmax"))
        check_options(scale, window)
        outside = jax.ShapeDtypeStruct(query.shape, query.dtype)
        q, k, v = (array if array.ndim == 4 else array[None] for array in (query, key, value))
        batch, queries, heads, _ = q.shape
        shape = (batch, heads, queries, k.shape[1])
        check_broadcasts("bias", bias, shape)
        check_broadcasts("mask", mask, shape)
        for name, length in zip(("query_seq_lengths", "key_value_seq_lengths"), lengths):
            if length is not None and length.shape != (batch,):
                raise ValueError(
                    f"{name} has shape {length.shape}; it must be ({batch},): give one length per batch entry"
                )
        check_numbers(normalizer, shape)
        is_causal = options.get("is_causal", False)
        return cls(q, k, v, bias, mask, shape, normalizer, scale, is_causal, lengths, window, outside)

    def visible(self, mask: Mask) -> Mask:
        """One mask of all that hides an entry, with this one for what the user says."""
        return visible_entries(self.shape, mask, self.is_causal, *self.lengths, self.window)

    def returned(self, output: Float[Array, "..."]) -> Float[Array, "..."]:
        """The output in shape and type of the query as it was given."""
        return output.astype(self.outside.dtype).reshape(self.outside.shape)


def check_numbers(normalizer: Normalizer, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless the numbers of a normalizer are one for each row of logits of this shape."""
    if checks.has_axes(normalizer):
        jax.eval_shape(lambda z: normalizer(z), jax.ShapeDtypeStruct((*shape[:-1], 1), jnp.float32))


def check_broadcasts(name: Literal["bias", "mask"], array: Bias | Mask, shape: tuple[int, ...]) -> None:
    """Raises unless a bias or a mask has its type, and a shape that broadcasts to that of the logits."""
    if array is None:
        return
    if name == "mask" and array.dtype != jnp.bool_:
        raise TypeError(
            f"mask has dtype {array.dtype}; it must be bool: pass a mask to be added to the logits as bias="
        )
    if name == "bias" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"bias has dtype {array.dtype}; it must be floating point: pass a boolean mask as mask=")
    if not checks.broadcasts(array.shape, shape):
        raise ValueError(
            f"{name} has shape {array.shape}; it must broadcast to (batch, heads, queries, keys) = {shape}: "
            "give each axis its full size or 1"
        )


def check_layout(query: Array, key: Array, value: Array) -> None:
    """Raises unless queries, keys and values fit each other."""
    if query.ndim not in (3, 4):
        raise ValueError(
            f"query has shape {query.shape}; it must be (batch, length, heads, size) or (length, heads, size): "
            "give even a single head its axis"
        )
    check_fits(query, key)
    if value.shape != key.shape:
        raise ValueError(
            f"value has shape {value.shape}; it must be that of the key, {key.shape}: pair each key with one"
        )
    if not jnp.issubdtype(query.dtype, jnp.floating) or not query.dtype == key.dtype == value.dtype:
        raise TypeError(
            f"query, key and value have dtypes {query.dtype}, {key.dtype} and {value.dtype}; "
            "they must be one floating-point type: call .astype('float32') on each"
        )


def check_fits(query: Array, key: Array) -> None:
    """Raises ValueError unless keys have the batch and size of the queries, and heads that divide theirs."""
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


def check_options(scale: ArrayLike | None, window: Window) -> None:
    """Raises ValueError unless the scale is one number, and the window one or two of at least 0."""
    if scale is not None and jnp.ndim(scale):
        raise ValueError(
            f"scale has shape {jnp.shape(scale)}; it must be one number: give a number per head to the normalizer, "
            "as in normalizer('temperature', theta=...)"
        )
    sides = window if isinstance(window, tuple) else (window,)
    if window is not None and (len(sides) > 2 or any(side is None or side < 0 for side in sides)):
        raise ValueError(f"local_window_size is {window}; it must be at least 0: give one number, or (left, right)")


def align(array: Array, ndim: int) -> Array:
    """Adds axes of size 1 in front, up to this rank."""
    return array.reshape((1,) * (ndim - array.ndim) + array.shape)
