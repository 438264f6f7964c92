"""A small decoder-only transformer whose attention takes any normalizer: all positions at once, or one by one."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from softmax_jax.attention.attention import dot_product_attention
from softmax_jax.attention.flax_layers import NnxAttention
from softmax_jax.normalizers.normalizer import Normalizer

Hidden = Float[Array, "positions hidden"]
Heads = Float[Array, "sequences length heads size"]
Places = Int[Array, "sequences length"] | None
"""The positions that RoPE rotates by; None for a model without."""
SLOWEST = 10_000.0


class Cache(NamedTuple):
    """Keys and values of the positions so far, and the place of the next one."""

    key: Heads
    value: Heads
    place: Int[Array, ""]


def rotated(x: Heads, places: Places, base: float = SLOWEST) -> Heads:
    """RoPE: pairs of features turned by an angle that grows with the position.

    Source: Su et al., "RoFormer", arXiv 2104.09864.
    """
    if places is None:
        return x
    half = x.shape[-1] // 2
    rates = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = (places.astype(jnp.float32)[..., None] * rates[None, None])[:, :, None]
    sine, cosine, (first, second) = jnp.sin(angles), jnp.cos(angles), jnp.split(x, 2, -1)
    return jnp.concatenate([first * cosine - second * sine, first * sine + second * cosine], -1)


class Block(nnx.Module):
    """Attention, then a perceptron, each on normed inputs and added to them."""

    def __init__(
        self,
        hidden: int,
        heads: int,
        normalizer: Normalizer,
        learn: tuple[str, ...],
        of_query: tuple[str, ...],
        *,
        rngs: nnx.Rngs,
    ):
        self.heads = heads
        self.attention_norm = nnx.RMSNorm(hidden, rngs=rngs)
        self.attention_in = nnx.Linear(hidden, 3 * hidden, use_bias=False, rngs=rngs)
        self.attention = NnxAttention(normalizer, learn, heads, of_query=of_query, size=hidden // heads)
        self.attention_out = nnx.Linear(hidden, hidden, use_bias=False, rngs=rngs)
        self.perceptron_norm = nnx.RMSNorm(hidden, rngs=rngs)
        self.perceptron_in = nnx.Linear(hidden, 4 * hidden, rngs=rngs)
        self.perceptron_out = nnx.Linear(4 * hidden, hidden, rngs=rngs)

    def __call__(
        self,
        x: Hidden,
        mask: Bool[Array, "sequences queries keys"],
        places: Places,
        cache: Cache | None = None,
        normalizer: Normalizer | None = None,
    ) -> tuple[Hidden, Cache | None]:
        by_head = (len(mask), len(x) // len(mask), 3, self.heads, -1)
        query, key, value = jnp.moveaxis(self.attention_in(self.attention_norm(x)).reshape(by_head), 2, 0)
        query, key = rotated(query, places), rotated(key, places)
        if cache is not None:
            at = (0, cache.place, 0, 0)
            key, value = (jax.lax.dynamic_update_slice(*pair, at) for pair in ((cache.key, key), (cache.value, value)))
            cache = Cache(key, value, cache.place + query.shape[1])
        normalizer = normalizer or self.attention.normalizer_for(query)
        attended = dot_product_attention(query, key, value, mask=mask[:, None], normalizer=normalizer)
        x = x + self.attention_out(attended.reshape(x.shape))
        return x + self.perceptron_out(nnx.gelu(self.perceptron_in(self.perceptron_norm(x)))), cache


class Decoder(nnx.Module):
    """Scores of the token that follows, from those so far, by the vectors that stand for the tokens themselves.

    A token's vector is learned, and so is a linear map of its `features`, which is added. Parameters of two
    normalizers that learn nothing are alike.

    >>> from softmax_jax.normalizers.registry import normalizer
    >>> sizes = {"hidden": 8, "heads": 2, "layers": 1}
    >>> model = Decoder(np.zeros((5, 0), np.float32), normalizer("softmax"), **sizes, rngs=nnx.Rngs(0))
    >>> hidden = model(jnp.array([[0, 3, 2]]), jnp.tril(jnp.ones((1, 3, 3), bool)))
    >>> model.scores(hidden).shape
    (1, 3, 5)
    """

    def __init__(
        self,
        features: Float[np.ndarray, "tokens features"],
        normalizer: Normalizer,
        learn: tuple[str, ...] = (),
        of_query: tuple[str, ...] = (),
        *,
        hidden: int,
        heads: int,
        layers: int,
        rngs: nnx.Rngs,
    ):
        self.of_features = lambda: features
        tokens, known = features.shape
        self.embed = nnx.Embed(tokens, hidden, embedding_init=nnx.initializers.normal(0.1), rngs=rngs)
        self.embed_features = nnx.Linear(known, hidden, use_bias=False, rngs=rngs) if known else None
        self.blocks = nnx.List([Block(hidden, heads, normalizer, learn, of_query, rngs=rngs) for _ in range(layers)])
        self.norm = nnx.RMSNorm(hidden, rngs=rngs)
        self.bias = nnx.Param(jnp.zeros(tokens, jnp.float32))

    def vectors(self) -> Float[Array, "tokens hidden"]:
        """What stands for each token."""
        learned = self.embed.embedding[...]
        return (
            learned if self.embed_features is None else learned + self.embed_features(jnp.asarray(self.of_features()))
        )

    def __call__(
        self,
        tokens: Int[Array, "sequences length"],
        mask: Bool[Array, "sequences length length"],
        places: Places = None,
        normalizer: Normalizer | None = None,
    ) -> Float[Array, "sequences length hidden"]:
        """What is known at every position, which sees those that the mask names; `normalizer` replaces all."""
        x = self.vectors()[tokens.reshape(-1)]
        for block in self.blocks:
            x, _ = block(x, mask, places, normalizer=normalizer)
        return self.norm(x).reshape(*tokens.shape, -1)

    def scores(self, hidden: Float[Array, "*positions hidden"]) -> Float[Array, "*positions tokens"]:
        """The score of every token to follow these positions."""
        products = jnp.einsum("...h,th->...t", hidden, self.vectors())
        return products + jnp.broadcast_to(self.bias[...], products.shape)

    def decode(
        self,
        tokens: Int[Array, "sequences length"],
        visible: Bool[Array, "sequences length"],
        more: int,
        places: Int[Array, "sequences room"] | None = None,
        normalizer: Normalizer | None = None,
    ) -> Int[Array, "sequences more"]:
        """The tokens that follow, each the likeliest after all before it; `places` are those of all but the last.

        Keys and values of earlier positions are kept, so that a step computes one position.
        """
        sequences, length = tokens.shape
        room = length + more - 1
        seen = jnp.concatenate([visible, jnp.ones((sequences, more - 1), bool)], 1)
        given = jnp.pad(tokens, ((0, 0), (0, more - 1)))

        def step(
            carry: tuple[Int[Array, " sequences"], Sequence[Cache]], at: Int[Array, ""]
        ) -> tuple[tuple[Int[Array, " sequences"], Sequence[Cache]], Int[Array, " sequences"]]:
            last, caches = carry
            token = jnp.where(at < length, given[:, at], last)
            mask = seen & (jnp.arange(room, dtype=jnp.int32) <= at)[None]
            here = None if places is None else jax.lax.dynamic_slice_in_dim(places, at, 1, 1)
            x, kept = self.vectors()[token], []
            for block, cache in zip(self.blocks, caches):
                x, cache = block(x, mask[:, None], here, cache, normalizer)
                kept.append(cache)
            likeliest = self.scores(self.norm(x)).argmax(-1).astype(tokens.dtype)
            return (likeliest, kept), likeliest

        caches = [self._empty(block, sequences, room) for block in self.blocks]
        _, likeliest = jax.lax.scan(step, (tokens[:, 0], caches), jnp.arange(room, dtype=jnp.int32))
        return likeliest[length - 1 :].T

    def _empty(self, block: Block, sequences: int, room: int) -> Cache:
        hidden = self.embed.embedding.shape[-1]
        zeros = jnp.zeros((sequences, room, block.heads, hidden // block.heads), jnp.float32)
        return Cache(zeros, zeros, jnp.int32(0))
