from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from softmax_jax.attention.flax_layers import attention_fn
from softmax_jax.experiment.tasks.max_retrieval import sample
from softmax_jax.experiment.tasks.published import from_bytes
from softmax_jax.experiment.tasks.retrieval_model import MaxRetrievalModel
from softmax_jax.normalizers.registry import normalizer

WIDTH = 128


class StockModel(linen.Module):
    """The recreation's model from stock Flax layers alone."""

    normalizer: str

    @linen.compact
    def __call__(self, items, query, mask):
        items = linen.gelu(linen.Dense(WIDTH)(items))
        items = linen.gelu(linen.Dense(WIDTH)(items))
        query = linen.gelu(linen.Dense(WIDTH)(query))
        query = linen.gelu(linen.Dense(WIDTH)(query))
        attention = linen.MultiHeadDotProductAttention(
            num_heads=1, qkv_features=WIDTH, attention_fn=attention_fn(normalizer(self.normalizer))
        )
        out = attention(query[:, None, :], items, items, mask=mask[:, None, None, :])[:, 0]
        out = linen.gelu(linen.Dense(WIDTH)(out))
        return linen.Dense(10)(out)


@pytest.fixture(scope="module")
def stock_parameters():
    """Random numbers in each place, biases too, so that each must arrive at its own."""
    like = jax.eval_shape(lambda: sample(jax.random.key(1), 8, 32))
    shapes = jax.eval_shape(StockModel("softmax").init, jax.random.key(0), like.items, like.query, like.mask)["params"]
    random = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(0.1 * random.normal(size=leaf.shape), leaf.dtype), shapes)


@pytest.mark.full
@pytest.mark.parametrize(("name", "level"), [("softmax", False), ("adaptive", True), ("softpick", False)])
def test_imported_parameters_give_the_stock_models_scores(stock_parameters, name, level):
    batch = sample(jax.random.key(1), 8, 32, jnp.arange(1, 33, 4))
    data = flax.serialization.to_bytes({"params": stock_parameters} if level else stock_parameters)
    expected: Any = StockModel(name).apply({"params": stock_parameters}, batch.items, batch.query, batch.mask)
    structure = nnx.split(MaxRetrievalModel(WIDTH, rngs=nnx.Rngs(0)))[0]
    scores = nnx.merge(structure, from_bytes(data))(batch, normalizer(name)).scores
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_other_bytes_are_refused_in_one_line(stock_parameters):
    wrong = stock_parameters | {"Dense_5": {"kernel": jnp.zeros((WIDTH, 7)), "bias": jnp.zeros(7)}}
    missing = {name: layer for name, layer in stock_parameters.items() if name != "Dense_3"}
    contents = b"\x80\x04no msgpack", b"", *map(flax.serialization.to_bytes, (missing, wrong))
    for data, words in zip(contents, ("msgpack", "msgpack", "Dense_3", "Dense_5")):
        with pytest.raises(ValueError, match=rf"^[^\n]*{words}[^\n]*$"):
            from_bytes(data)
