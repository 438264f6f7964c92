"""A small pre-norm transformer whose attention takes any normalizer, and lets it learn some of its numbers."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from softmax_jax.attention.attention import dot_product_attention
from softmax_jax.attention.flax_layers import NnxAttention
from softmax_jax.normalizers.normalizer import Normalizer


class Block(nnx.Module):
    """Attention, then a perceptron; each reads normed inputs and adds to them."""

    def __init__(
        self,
        hidden: int,
        heads: int,
        normalizer: Normalizer,
        learn: tuple[str, ...],
        of_query: tuple[str, ...],
        *,
        dropout: float,
        causal: bool,
        rngs: nnx.Rngs,
    ):
        self.heads = heads
        self.causal = causal
        self.attention_norm = nnx.LayerNorm(hidden, rngs=rngs)
        self.attention_in = nnx.Linear(hidden, 3 * hidden, rngs=rngs)
        self.attention = NnxAttention(normalizer, learn, heads, of_query=of_query, size=hidden // heads)
        self.attention_out = nnx.Linear(hidden, hidden, rngs=rngs)
        self.perceptron_norm = nnx.LayerNorm(hidden, rngs=rngs)
        self.perceptron_in = nnx.Linear(hidden, 4 * hidden, rngs=rngs)
        self.perceptron_out = nnx.Linear(4 * hidden, hidden, rngs=rngs)
        self.dropout = dropout

    def __call__(
        self,
        x: Float[Array, "positions hidden"],
        sequences: int,
        mask: Bool[Array, "sequences length"] | None,
        rngs: nnx.Rngs | None,
        normalizer: Normalizer | None,
        last: int | None = None,
    ) -> Float[Array, "outputs hidden"]:
        by_head = (sequences, len(x) // sequences, 3, self.heads, -1)
        query, key, value = jnp.moveaxis(self.attention_in(self.attention_norm(x)).reshape(by_head), 2, 0)
        if last is not None:
            query = query[:, -last:]
            x = x.reshape(sequences, -1, x.shape[-1])[:, -last:].reshape(-1, x.shape[-1])
        mask = None if mask is None else mask[:, None, None, :]
        normalizer = normalizer or self.attention.normalizer_for(query)
        attended = dot_product_attention(query, key, value, mask=mask, is_causal=self.causal, normalizer=normalizer)
        x = x + self._drop(self.attention_out(attended.reshape(x.shape)), rngs)
        inner = nnx.gelu(self.perceptron_in(self.perceptron_norm(x)))
        return x + self._drop(self.perceptron_out(inner), rngs)

    def _drop(self, x: Array, rngs: nnx.Rngs | None) -> Array:
        """Drops numbers as `nnx.Dropout` does, whose draw changes with x64."""
        if rngs is None or not self.dropout:
            return x
        kept = jax.random.bernoulli(rngs.dropout(), jnp.float32(1 - self.dropout), x.shape)
        return jnp.where(kept, x / (1 - self.dropout), 0)


class Transformer(nnx.Module):
    """Class scores at every position of a sequence. It knows positions from the features only.

    `learn` names the numbers of the normalizer that train with the rest, one for each head of each layer, and
    `of_query` the numbers among them that are linear in the query, as in `NnxAttention`. A call may replace the
    normalizer of all layers. Its `rngs`, if given, drive dropout; without them there is none. With `last`, the last
    block computes only that many positions at the end, where long sequences have their queries; a causal model takes
    none. Models under two normalizers that learn nothing have the same parameters.

    >>> from softmax_jax.normalizers.registry import normalizer
    >>> model = Transformer(features=3, classes=5, normalizer=normalizer("ssmax"), learn=("s",), rngs=nnx.Rngs(0))
    >>> model(jnp.ones((2, 7, 3)), jnp.ones((2, 7), bool)).shape
    (2, 7, 5)
    """

    def __init__(
        self,
        features: int,
        classes: int,
        normalizer: Normalizer,
        learn: tuple[str, ...] = (),
        of_query: tuple[str, ...] = (),
        *,
        hidden: int = 64,
        heads: int = 4,
        layers: int = 2,
        dropout: float = 0.0,
        causal: bool = False,
        rngs: nnx.Rngs,
    ):
        self.embed = nnx.Linear(features, hidden, rngs=rngs)
        self.blocks = nnx.List(
            [
                Block(hidden, heads, normalizer, learn, of_query, dropout=dropout, causal=causal, rngs=rngs)
                for _ in range(layers)
            ]
        )
        self.norm = nnx.LayerNorm(hidden, rngs=rngs)
        self.classify = nnx.Linear(hidden, classes, rngs=rngs)

    def __call__(
        self,
        inputs: Float[Array, "sequences length features"],
        mask: Bool[Array, "sequences length"] | None = None,
        rngs: nnx.Rngs | None = None,
        normalizer: Normalizer | None = None,
        last: int | None = None,
    ) -> Float[Array, "sequences outputs classes"]:
        # Positions in one axis: on CPUs a Dense layer is twice as fast backward on two axes as on three.
        x = self.embed(inputs.reshape(-1, inputs.shape[-1]))
        *blocks, reader = self.blocks
        for block in blocks:
            x = block(x, len(inputs), mask, rngs, normalizer)
        x = reader(x, len(inputs), mask, rngs, normalizer, last)
        return self.classify(self.norm(x)).reshape(len(inputs), last or inputs.shape[1], -1)
