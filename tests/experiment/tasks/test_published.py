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


def sets():
    return sample(jax.random.key(1), 8, 32, jnp.arange(1, 33, 4))


@pytest.fixture(scope="module")
def batch():
    return sets()


@pytest.fixture(scope="module")
def stock_parameters():
    """Random numbers in each place, biases too, so that each must arrive at its own."""
    like = jax.eval_shape(sets)
    shapes = jax.eval_shape(StockModel("softmax").init, jax.random.key(0), like.items, like.query, like.mask)["params"]
    random = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(0.1 * random.normal(size=leaf.shape), leaf.dtype), shapes)


def ours(data, batch, name):
    structure = nnx.split(MaxRetrievalModel(WIDTH, rngs=nnx.Rngs(0)))[0]
    return nnx.merge(structure, from_bytes(data))(batch, normalizer(name)).scores


@pytest.mark.full
@pytest.mark.parametrize("name", ["softmax", "adaptive", "softpick"])
@pytest.mark.parametrize("level", [False, True])
def test_imported_parameters_give_the_stock_models_scores(stock_parameters, batch, name, level):
    data = flax.serialization.to_bytes({"params": stock_parameters} if level else stock_parameters)
    expected: Any = StockModel(name).apply({"params": stock_parameters}, batch.items, batch.query, batch.mask)
    assert np.allclose(ours(data, batch, name), expected, atol=1e-5)


def test_other_bytes_are_refused_in_one_line(stock_parameters):
    wrong = dict(stock_parameters)
    wrong["Dense_5"] = {"kernel": jnp.zeros((WIDTH, 7)), "bias": jnp.zeros(7)}
    missing = {name: layer for name, layer in stock_parameters.items() if name != "Dense_3"}
    for data, words in [
        (b"\x80\x04no msgpack", "msgpack"),
        (flax.serialization.to_bytes(missing), "Dense_3"),
        (flax.serialization.to_bytes(wrong), "Dense_5"),
        (b"", "msgpack"),
    ]:
        with pytest.raises(ValueError, match=words) as caught:
            from_bytes(data)
        assert "\n" not in str(caught.value)
