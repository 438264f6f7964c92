"""Any normalizer in the unchanged attention layers of Flax, Linen and NNX.

`attention_fn(normalizer)` is for a normalizer whose numbers are fixed. `LinenAttention` and `NnxAttention` are given
in its place where a layer learns some of the numbers: one for each head, or linear in the query.
"""

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array

from softmax_jax.attention.attention import dot_product_attention
from softmax_jax.attention.inputs import (
    Given,
    Keys,
    Outputs,
    Queries,
    Values,
    Weights,
    as_bias_and_mask,
    weighted_values,
)
from softmax_jax.normalizers.checks import against, is_traced
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.parameters import initial_numbers, with_numbers
from softmax_jax.normalizers.registry import NormalizerLike, as_normalizer
from softmax_jax.refusal import Refusal


def attend(
    normalizer: Normalizer,
    query: Queries,
    key: Keys,
    value: Values,
    bias: Given = None,
    mask: Given = None,
    broadcast_dropout: bool = True,
    dropout_rng: Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: DTypeLike | None = None,
    precision: jax.lax.PrecisionLike = None,
    module: linen.Module | nnx.Module | None = None,
    is_causal: bool = False,
) -> Outputs:
    """Computes attention with the parameters of `dot_product_attention` of `flax.linen` and `flax.nnx`.

    Linen passes only the keywords that it finds named here.

    Arguments:
        normalizer: Takes the place of softmax.
        query, key, value: Of shape (*batch, length, heads, size).
        bias: Broadcasts to (*batch, heads, queries, keys). One of -9,000 or less hides its entry, as -inf does.
        mask: Broadcasts likewise, and is nonzero at the visible entries.
        broadcast_dropout: Drops the same weights in all batch entries and heads.
        dropout_rng, dropout_rate, deterministic: Unless deterministic, each weight is 0 with probability
            `dropout_rate`, and divided by 1 - dropout_rate otherwise.
        dtype: That of the output, of the inputs unless given.
        precision: That of both products.
        module: The weights before dropout are sown there as `attention_weights`, in float32.
        is_causal: Hides the keys after a query's position. A single query under a mask sees what the mask shows, so
            that a layer may pass it when it decodes too.

    Returns:
        The output, of shape (*batch, queries, heads, value_size).

    Raises:
        ValueError: For a bias or mask that does not broadcast, a rate outside [0, 1), and dropout without a key.

    Example:
        >>> x = jnp.eye(3).reshape(3, 1, 3)
        >>> attend(as_normalizer("hardmax"), x, x, x, mask=jnp.array([[1, 1, 0]] * 3))[1, 0]
        Array([0., 1., 0.], dtype=float32)
    """
    dropout = dropout_rate if not deterministic else 0.0
    if not 0 <= dropout < 1:
        raise Refusal(f"dropout_rate is {dropout}; it must be at least 0 and below 1: use 0 for no dropout")
    if dropout and dropout_rng is None:
        raise Refusal(f"dropout_rate is {dropout} but dropout_rng is None: give a key, or deterministic=True")
    batch = query.shape[:-3]
    shape = (*batch, query.shape[-2], query.shape[-3], key.shape[-3])
    bias, mask = as_bias_and_mask(bias, mask, shape, nonzero=True)
    # One query under a mask is that of a layer that decodes: its mask hides the later keys, and it is not the first.
    causal = is_causal and (query.shape[-3] > 1 or mask is None)
    dtype = jnp.result_type(query, key, value) if dtype is None else dtype
    outputs = (*query.shape[:-1], value.shape[-1])
    query, key, value = (array.astype(dtype).reshape(-1, *array.shape[-3:]) for array in (query, key, value))
    bias, mask, normalizer = jax.tree.map(lambda array: _with_one_batch_axis(array, batch), (bias, mask, normalizer))
    dense = bool(dropout) or module is not None
    output = dot_product_attention(
        query,
        key,
        value,
        bias,
        mask,
        is_causal=causal,
        normalizer=normalizer,
        return_weights=dense,
        precision=precision,
    )
    if dense:
        output, weights = output
        weights = weights.reshape(shape)
        if module is not None:
            collection: Any = nnx.Intermediate if isinstance(module, nnx.Module) else "intermediates"
            module.sow(collection, "attention_weights", weights)
        weights = _dropout(weights, dropout_rng, dropout, broadcast_dropout).reshape(-1, *shape[-3:])
        output = weighted_values(weights, value, precision).astype(dtype)
    return output.reshape(outputs)


def _with_one_batch_axis(array: Any, batch: tuple[int, ...]) -> Any:
    """Returns an array that broadcasts to (*batch, heads, queries, keys) with its batch axes joined into one."""
    if len(batch) < 2 or jnp.ndim(array) < 4:
        return array
    return jnp.broadcast_to(array, (*batch, *array.shape[-3:])).reshape(-1, *array.shape[-3:])


def attention_fn(normalizer: NormalizerLike) -> "AttentionFn":
    """Returns an `attention_fn` for Flax attention layers, with this normalizer in place of softmax.

    `normalizer` is a `Normalizer`, its name, as in "ssmax(s=0.43)", a map or a function with the signature of
    `jax.nn.softmax`. The layers are `MultiHeadAttention` and `MultiHeadDotProductAttention` of `flax.linen` and
    `MultiHeadAttention` of `flax.nnx`. Masks, dropout, decoding with a cache and `sow_weights` do what they do with the
    layer's own function, but a query that sees nothing gets 0 where that weighs all keys alike. `attend` says what is
    computed and raised.

    >>> layer = nnx.MultiHeadAttention(4, 8, attention_fn=attention_fn("ssmax"), decode=False, rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((2, 5, 8)), mask=nnx.make_causal_mask(jnp.ones((2, 5)))).shape
    (2, 5, 8)
    """
    return AttentionFn(as_normalizer(normalizer))


@jax.tree_util.register_static
class AttentionFn:
    """Calls `attend` with a normalizer. Equal if the normalizers are equal, so that jit reuses compiled layers.

    It is a pytree without leaves, so that a layer of NNX may hold it where it held a module. It is no dataclass, as
    Linen hashes the fields of a dataclass one by one, which fails for arrays of JAX.
    """

    def __init__(self, normalizer: Normalizer) -> None:
        self.normalizer = normalizer

    @functools.wraps(attend, assigned=(), updated=())  # Linen reads the signature.
    def __call__(self, query: Queries, key: Keys, value: Values, *args: Any, **keywords: Any) -> Outputs:
        return attend(self.normalizer, query, key, value, *args, **keywords)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttentionFn) and self.normalizer == other.normalizer

    def __hash__(self) -> int:
        return hash(self.normalizer)

    def __repr__(self) -> str:
        return f"attention_fn({self.normalizer})"


def _dropout(weights: Weights, rng: Array | None, rate: float, broadcast: bool) -> Weights:
    """Zeroes each weight with probability `rate` and divides the others by 1 - rate."""
    if rate == 0 or rng is None:
        return weights
    axes = (1,) * (weights.ndim - 2) if broadcast else weights.shape[:-2]
    kept = jax.random.bernoulli(rng, jnp.float32(1 - rate), axes + weights.shape[-2:])
    return weights * (kept.astype(weights.dtype) / jnp.asarray(1 - rate, weights.dtype))


class LinenAttention(linen.Module):
    r"""An `attention_fn` for Linen layers that learns some numbers of its normalizer.

    `learn` names them, as the method or scale does; an entry of a tuple has its position behind its name, as in
    "coefficients_0". Each becomes a parameter of that name that starts at the normalizer's own number: one for
    each of `heads` heads, of shape (heads, 1, 1), or one for all heads if `heads` is None. The parameters of the layer
    hold them under "attention_fn", or, where a compact method makes both, under "LinenAttention_0" beside the layer.
    Give each layer an instance of its own: `init` warns of one that several share.

    A number named in `of_query` is learned too, and is linear in the query $q$ of a head:

    $$\text{number} + \langle u, q \rangle$$

    u is a parameter named as "weight_of_query", of shape (heads, size), which starts at 0.

    Raises ValueError for a name that the normalizer lacks, and for a layer with another number of heads.

    >>> layer = linen.MultiHeadAttention(4, attention_fn=LinenAttention("ssmax", learn=("s",), heads=4))
    >>> layer.init(jax.random.key(0), jnp.ones((2, 5, 8)))["params"]["attention_fn"]["s"].shape
    (4, 1, 1)
    """

    normalizer: NormalizerLike
    learn: tuple[str, ...] = ()
    heads: int | None = None
    of_query: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.normalizer, str):
            self.normalizer = jax.tree.map(_hashable, as_normalizer(self.normalizer))
        super().__post_init__()

    @linen.compact
    @functools.wraps(attend, assigned=(), updated=())  # Linen reads the signature, and this takes over nothing else.
    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, query: Queries, key: Keys, value: Values, **keywords: Any
    ) -> Outputs:
        _check_heads(self.heads, query)
        self._warn_if_shared()
        normalizer = as_normalizer(self.normalizer)
        initial = initial_numbers(normalizer, self.learn, _per_head(self.heads), self.of_query)
        numbers: dict[str, Any] = {
            name: self.param(name, lambda _, number: number, number) for name, number in initial.items()
        }
        zeros, shape = linen.initializers.zeros, query.shape[-2:]
        kernels: dict[str, Any] = {name: self.param(kernel_of(name), zeros, shape) for name in self.of_query}
        return attend(with_learned(normalizer, numbers, kernels, query), query, key, value, **keywords)

    def _warn_if_shared(self) -> None:
        """Warns where one instance serves a second layer. A layer of its own may call it as often as it likes."""
        if not self.is_initializing() or isinstance(self.parent, linen.MultiHeadDotProductAttention):
            return
        if hasattr(self, "_called"):
            numbers, path = ", ".join((*self.learn, *self.of_query)), "/".join(self.path)
            warnings.warn(
                f"one LinenAttention, at {path}, serves several layers, which share its {numbers}: give each layer its "
                "own, by a field that makes one, as in lambda: LinenAttention(...)",
                stacklevel=3,
            )
        object.__setattr__(self, "_called", True)


class NnxAttention(nnx.Module):
    r"""An `attention_fn` for NNX layers that learns some numbers of its normalizer.

    `learn` names them, as the method or scale does; an entry of a tuple has its position behind its name, as in
    "coefficients_0". Each becomes an `nnx.Param` of that name that starts at the normalizer's own number: one for
    each of `heads` heads, of shape (heads, 1, 1), or one for all heads if `heads` is None. Give each layer an
    instance of its own.

    A number named in `of_query` is learned too, and is linear in the query $q$ of a head, of `size` features:

    $$\text{number} + \langle u, q \rangle$$

    u is an `nnx.Param` named as "weight_of_query", of shape (heads, size), which starts at 0.

    Raises ValueError for a name that the normalizer lacks, for `of_query` without `heads` and `size`, and for a layer
    with others than these.

    Source of numbers linear in the query: Vasylenko et al., "Long-Context Generalization with Sparse Attention",
    arXiv 2506.16640.

    >>> attention = NnxAttention("ssmax", learn=("s",), heads=4)
    >>> layer = nnx.MultiHeadAttention(4, 8, attention_fn=attention, decode=False, rngs=nnx.Rngs(0))
    >>> nnx.state(layer, nnx.Param)["attention_fn"]["s"].shape
    (4, 1, 1)
    >>> attention = NnxAttention("asentmax", heads=4, of_query=("weight", "power"), size=2)
    >>> attention.normalizer_for(jnp.ones((5, 4, 2))).scale.weight.shape
    (4, 5, 1)
    """

    def __init__(
        self,
        normalizer: NormalizerLike,
        learn: tuple[str, ...] = (),
        heads: int | None = None,
        *,
        of_query: tuple[str, ...] = (),
        size: int | None = None,
    ) -> None:
        self.heads, self.of_query, self.size = heads, of_query, size
        # Within a function, the numbers that are not learned are no state of the module, even if they are arrays.
        self.unlearned = attention_fn(normalizer)
        initial = initial_numbers(self.unlearned.normalizer, learn, _per_head(heads), of_query)
        if of_query and (heads is None or size is None):
            raise Refusal(
                f"of_query is {of_query!r} with heads={heads} and size={size}; numbers that are linear in the query "
                "need both: give the layer's number of heads, and the features of one as size"
            )
        self.names = tuple(initial)
        for name, number in initial.items():
            setattr(self, name, nnx.Param(number))
        for name in of_query:
            setattr(self, kernel_of(name), nnx.Param(jnp.zeros((heads, size), jnp.float32)))

    def normalizer_for(self, query: Queries) -> Normalizer:
        """Returns the normalizer of these queries, with its numbers as learned so far."""
        _check_heads(self.heads, query)
        if self.of_query and query.shape[-1] != self.size:
            raise Refusal(
                f"the normalizer learns numbers of queries of size {self.size}, the layer has {query.shape[-1]}: "
                f"give size={query.shape[-1]}"
            )
        numbers: dict[str, Any] = {name: getattr(self, name)[...] for name in self.names}
        kernels: dict[str, Any] = {name: getattr(self, kernel_of(name))[...] for name in self.of_query}
        return with_learned(self.unlearned.normalizer, numbers, kernels, query)

    def __call__(self, query: Queries, key: Keys, value: Values, **keywords: Any) -> Outputs:
        return attend(self.normalizer_for(query), query, key, value, **keywords)


def kernel_of(name: str) -> str:
    """Returns the name of the parameter that makes a number linear in the query."""
    return f"{name}_of_query"


def with_learned(
    normalizer: Normalizer, numbers: dict[str, ArrayLike], kernels: dict[str, Array], query: Queries
) -> Normalizer:
    """Returns the normalizer with these numbers, where those with a kernel add its product with each query and head."""
    sums = dict(numbers)
    for name, kernel in kernels.items():
        products = jnp.einsum("...qhd,hd->...hq", query.astype(kernel.dtype), kernel)[..., None]
        sums[name] = products + against(numbers[name], products)
    return with_numbers(normalizer, sums)


def _check_heads(heads: int | None, query: Queries) -> None:
    """Raises unless numbers per head are as many as the heads."""
    if heads not in (None, query.shape[-2]):
        raise Refusal(
            f"the normalizer learns numbers for {heads} heads, the layer has {query.shape[-2]}: "
            f"give heads={query.shape[-2]}, or heads=None for numbers that all heads share"
        )


def _hashable(number: Any) -> Any:
    """Returns a number, or array of them, in the one form that Linen can hash within a field, unless it is traced."""
    known = isinstance(number, jax.Array | np.ndarray) and not is_traced(number)
    return np.asarray(number)[()] if known else number


def _per_head(heads: int | None) -> tuple[int, ...] | None:
    """Returns the shape of a number for each head."""
    return None if heads is None else (heads, 1, 1)
