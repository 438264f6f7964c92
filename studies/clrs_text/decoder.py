"""A small decoder-only transformer whose attention takes any normalizer."""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from softmax_jax.attention.attention import dot_product_attention
from softmax_jax.attention.flax_layers import NnxAttention
from softmax_jax.normalizers.normalizer import Normalizer

Hidden = Float[Array, "positions hidden"]


class DecoderBlock(nnx.Module):
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
        normalizer: Normalizer | None = None,
    ) -> Hidden:
        by_head = (len(mask), len(x) // len(mask), 3, self.heads, -1)
        query, key, value = jnp.moveaxis(self.attention_in(self.attention_norm(x)).reshape(by_head), 2, 0)
        normalizer = normalizer or self.attention.normalizer_for(query)
        attended = dot_product_attention(query, key, value, mask=mask[:, None], normalizer=normalizer)
        x = x + self.attention_out(attended.reshape(x.shape))
        return x + self.perceptron_out(nnx.gelu(self.perceptron_in(self.perceptron_norm(x))))


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
        self.blocks = nnx.List(
            [DecoderBlock(hidden, heads, normalizer, learn, of_query, rngs=rngs) for _ in range(layers)]
        )
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
        normalizer: Normalizer | None = None,
    ) -> Float[Array, "sequences length hidden"]:
        """What is known at every position, which sees those that the mask names; `normalizer` replaces all."""
        x = self.vectors()[tokens.reshape(-1)]
        for block in self.blocks:
            x = block(x, mask, normalizer)
        return self.norm(x).reshape(*tokens.shape, -1)

    def scores(self, hidden: Float[Array, "*positions hidden"]) -> Float[Array, "*positions tokens"]:
        """The score of every token to follow these positions."""
        products = jnp.einsum("...h,th->...t", hidden, self.vectors())
        return products + jnp.broadcast_to(self.bias[...], products.shape)
