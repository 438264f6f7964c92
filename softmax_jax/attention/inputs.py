"""Arguments of attention, checked and as arrays: what dense attention, blocks of queries and fused kernels share.

Queries, keys and values are laid out as (batch, length, heads, size), logits and weights as
(batch, heads, queries, keys). What hides an entry is one boolean mask, given to the normalizer as `where`;
no large negative number ever stands for it, but a bias of -9,000 or less hides too, as `row` says.
"""

import dataclasses
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
from softmax_jax.normalizers.execution import is_known, on_cpu
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.row import HIDDEN, read_mask, weigh
from softmax_jax.refusal import Refusal, WrongType

MANY_ROWS = 64
"""Rows of logits for each key of a head, from which a copy of the keys is little beside their products: a number copied
for 64 multiply-adds."""

Queries = Float[Array, "*batch queries heads size"]
Keys = Float[Array, "*batch keys kv_heads size"]
Values = Float[Array, "*batch keys kv_heads value_size"]
Outputs = Float[Array, "*batch queries heads value_size"]
Weights = Float[Array, "*batch heads queries keys"]
Bias = Float[Array, "..."] | None
Mask = Bool[Array, "..."] | None
Lengths = Int32[Array, "_"] | None
Ids = Int32[Array, "batch _"] | None
Window = tuple[int, int] | None
Given = ArrayLike | Sequence[Any] | None
"""A bias, a mask, lengths or a window as users give them: an array, a list or one number."""

BIAS = "pass a mask that is added to the logits as bias="
"""What to do with such a mask."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Options:
    """The settings that are fixed when a program is compiled."""

    is_causal: bool = False
    window: Window = None
    precision: jax.lax.PrecisionLike = None
    """Of the products with keys and with values."""


class Inputs(NamedTuple):
    """Arrays with a batch axis that fit each other, and options that fit them. The query is scaled already."""

    query: Queries
    key: Keys
    value: Values
    bias: Bias
    mask: Mask
    lengths: tuple[Lengths, Lengths]
    """Of queries and keys."""
    normalizer: Normalizer
    options: Options = Options()
    segments: tuple[Ids, Ids] = (None, None)
    """The documents of queries and keys, which see no other; None for one."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the logits: batch, heads, queries, keys."""
        batch, queries, heads, _ = self.query.shape
        return batch, heads, queries, self.key.shape[1]

    def visible(self, first_query: ArrayLike = 0) -> Mask:
        """Returns one mask of all that hides an entry, True where it is visible; None if nothing does.

        `first_query` is the position of the first query, where these are some of the queries.
        """
        rows = align((jnp.arange(self.shape[2], dtype=jnp.int32) + jnp.asarray(first_query, jnp.int32))[:, None], 4)
        columns = align(jnp.arange(self.shape[3], dtype=jnp.int32), 4)
        masks = [] if self.mask is None else [self.mask]
        if self.bias is not None:
            masks.append(~(self.bias <= HIDDEN))  # NaN is no mask
        if self.options.is_causal:
            masks.append(columns <= rows)
        if self.options.window is not None:
            left, right = self.options.window
            masks.append((rows - left <= columns) & (columns <= rows + right))
        for places, length in zip((rows, columns), self.lengths):
            if length is not None:
                masks.append(places < length[:, None, None, None])
        query_ids, key_ids = self.segments
        if query_ids is not None and key_ids is not None:
            masks.append(query_ids[:, None, :, None] == key_ids[:, None, None, :])
        return functools.reduce(jnp.logical_and, masks) if masks else None

    def logits(self) -> Weights:
        r"""Returns the logits $z_{ij} = q_i \cdot k_j + b_{ij}$ in the type of the query."""
        batch, heads, queries, keys = self.shape
        kv_heads, size = self.key.shape[2:]
        # With the heads first, so that the logits are never transposed: XLA does that for other orders.
        grouped = jnp.moveaxis(self.query, 2, 1).reshape(batch, kv_heads, heads // kv_heads * queries, size)
        by_head = jnp.moveaxis(self.key, 2, 1).astype(self.query.dtype)
        logits = _products(grouped, by_head, self.options.precision)
        logits = logits.reshape(batch, heads, queries, keys)
        return logits if self.bias is None else logits + self.bias.astype(logits.dtype)

    def attend(self, first_query: ArrayLike = 0) -> tuple[Outputs, Weights]:
        """Returns output and weights in the type of the query; `first_query` is as in `visible`."""
        weights = weigh(self.normalizer, self.logits(), where=self.visible(first_query))
        return weighted_values(weights, self.value, self.options.precision), weights


def _products(
    query: Float[Array, "batch heads rows size"],
    key: Float[Array, "batch heads keys size"],
    precision: jax.lax.PrecisionLike,
) -> Float[Array, "batch heads rows keys"]:
    """Returns the product of each query with each key of its head."""
    batch, heads, rows, _ = query.shape
    one_head = on_cpu() and is_known(rows) and rows >= MANY_ROWS and batch == heads == 1
    if not one_head:
        return jnp.einsum("bhqd,bhkd->bhqk", query, key, precision=precision)
    # The gradient of the keys is dk = dzᵀ q = (qᵀ dz)ᵀ. XLA on CPUs transposes the first factor, and dz is the large
    # one: of 512 queries and 1,024 keys of size 64 dzᵀ q takes 5 × the time of q kᵀ, and qᵀ dz 1.3 ×. XLA writes the
    # second where both factors have two axes and the keys come by feature, behind a barrier that keeps it from
    # transposing them itself.
    by_feature = jax.lax.optimization_barrier(key[0, 0].T)
    return jnp.matmul(query[0, 0], by_feature, precision=precision)[None, None]


def scaled_query(query: Queries, scale: ArrayLike | None) -> Queries:
    """Returns the query times the scale, which is 1/√size unless given, in float32 (float64 stays)."""
    dtype = jnp.float64 if query.dtype == jnp.float64 else jnp.float32
    factor = jnp.asarray(1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale, dtype)
    return query.astype(dtype) * factor


def weighted_values(weights: Weights, value: Values, precision: jax.lax.PrecisionLike = None) -> Outputs:
    r"""Returns the output $o_i = \sum_j w_{ij} v_j$, in the type of the weights."""
    batch, heads, queries, keys = weights.shape
    kv_heads, size = value.shape[2:]
    grouped = weights.reshape(batch, kv_heads, heads // kv_heads * queries, keys)
    by_head = jnp.moveaxis(value, 2, 1).astype(weights.dtype)
    output = jnp.einsum("bhqk,bhkd->bhqd", grouped, by_head, precision=precision)
    return jnp.moveaxis(output.reshape(batch, heads, queries, size), 1, 2)


def align(array: Array, ndim: int) -> Array:
    """Adds axes of size 1 in front, up to this rank."""
    return array.reshape((1,) * (ndim - array.ndim) + array.shape)


# Checks and conversions: each raises ValueError or TypeError, in one line, for what does not fit.


def check_layout(query: Array, key: Array, value: Array) -> None:
    """Raises unless queries, keys and values are of one type, and fit each other."""
    if query.ndim not in (3, 4):
        raise Refusal(
            f"query has shape {query.shape}; it must be (batch, length, heads, size) or (length, heads, size): "
            "give even a single head its axis"
        )
    if (key.ndim, key.shape[:-3], key.shape[-1]) != (query.ndim, query.shape[:-3], query.shape[-1]):
        raise Refusal(
            f"key has shape {key.shape}; its batch and size must be those of the query, which has {query.shape}: "
            "both are (batch, length, heads, size)"
        )
    if not key.shape[-2] or query.shape[-2] % key.shape[-2]:
        raise Refusal(
            f"query has {query.shape[-2]} heads, which is no multiple of the {key.shape[-2]} of key and value: "
            "let each of theirs serve the same number of query heads"
        )
    if value.shape[:-1] != key.shape[:-1]:
        raise Refusal(
            f"value has shape {value.shape}; but for its size it must be that of the key, {key.shape}: "
            "pair each key with one"
        )
    if not jnp.issubdtype(query.dtype, jnp.floating) or not query.dtype == key.dtype == value.dtype:
        raise WrongType(
            f"query, key and value have dtypes {query.dtype}, {key.dtype} and {value.dtype}; "
            "they must be one floating-point type: call .astype('float32') on each"
        )


def check_scale(scale: ArrayLike | None) -> None:
    """Raises unless the scale is one number."""
    if scale is not None and jnp.ndim(scale):
        raise Refusal(
            f"scale has shape {jnp.shape(scale)}; it must be one number: give a number per head to the normalizer, "
            "as in normalizer('temperature', theta=...)"
        )
    if scale is not None:
        checks.finite("scale", scale)


def check_numbers(normalizer: Normalizer, shape: tuple[int, ...]) -> None:
    """Raises unless the numbers of a normalizer are one for each row of logits of this shape."""
    if checks.has_axes(normalizer):
        jax.eval_shape(lambda z: normalizer(z), jax.ShapeDtypeStruct((*shape[:-1], 1), jnp.float32))


def as_bias_and_mask(bias: Given, mask: Given, shape: tuple[int, ...], nonzero: bool = False) -> tuple[Bias, Mask]:
    """Returns both as arrays of the rank of logits of this shape; `nonzero` is as in `read_mask`."""
    mask = read_mask(mask, shape, BIAS, "(batch, heads, queries, keys) =", nonzero)
    mask = None if mask is None else align(mask, len(shape))
    if bias is None:
        return None, mask
    array = checks.array("bias", bias, int | float | list | tuple)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise WrongType(f"bias has dtype {array.dtype}; it must be floating point: pass a boolean mask as mask=")
    if not checks.broadcasts(array.shape, shape):
        raise Refusal(
            f"bias has shape {array.shape}; it must broadcast to (batch, heads, queries, keys) = {shape}: "
            "give each axis its full size or 1"
        )
    return align(jnp.asarray(array), len(shape)), mask


def as_lengths(name: str, lengths: Given, batch: int) -> Lengths:
    """Returns lengths, one whole number for each batch entry, as an array."""
    if lengths is None:
        return None
    array = checks.indices(name, lengths)
    if array.shape != (batch,):
        raise Refusal(f"{name} has shape {array.shape}; it must be ({batch},): give one length per batch entry")
    return jnp.asarray(array, jnp.int32)


def as_segments(ids: Any, batch: tuple[int, ...], queries: int, keys: int) -> tuple[Ids, Ids]:
    """Returns the segment ids of queries and keys with a batch axis, from one array for both or from a pair.

    Raises:
        TypeError: For ids that are not whole numbers.
        ValueError: For ids of another shape than (*batch, length), and for a tuple that is no pair.
    """
    if ids is None:
        return None, None
    pair = tuple(ids) if isinstance(ids, tuple) else (ids, ids)
    if len(pair) != 2:
        raise Refusal(
            f"segment_ids is a tuple of {len(pair)}; it must be one array for queries and keys, or a pair of arrays: "
            "give (query_ids, key_ids)"
        )

    def as_ids(name: str, ids: Any, length: int) -> Any:
        array = checks.indices(f"segment_ids of the {name}", ids)
        if array.shape != (*batch, length):
            raise Refusal(
                f"segment_ids of the {name} has shape {array.shape}; it must be {(*batch, length)}: give one id for "
                "each position, and a pair (query_ids, key_ids) where queries and keys differ"
            )
        return jnp.asarray(array if batch else array[None], jnp.int32)

    return as_ids("queries", pair[0], queries), as_ids("keys", pair[1], keys)


def as_window(window: Given) -> Window:
    """Returns the window to the left and to the right, from one or two whole numbers."""
    if window is None:
        return None
    sides: tuple[Any, ...] = tuple(window) if isinstance(window, tuple | list) else (window, window)
    if len(sides) != 2 or not all(map(checks.is_whole, sides)) or min(sides) < 0:
        raise Refusal(
            f"local_window_size is {checks.shown(window)}; it must be whole and at least 0: give one number, or "
            "(left, right)"
        )
    return operator.index(sides[0]), operator.index(sides[1])
