"""Models that nobody here wrote, of the libraries at hand: Linen, NNX and `jax.nn`; and a plain one under scan."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

import softmax_jax as sj
from tests.tiers import full_except

from .models import close, drawn, normal, run

X = normal(2, 6, 16)
CAUSAL = jnp.tril(jnp.ones((6, 6), bool))[None, None]


class Linen(linen.Module):
    """Two layers of attention, the second under checkpoint."""

    attention_fn: Any = linen.dot_product_attention

    @linen.compact
    def __call__(self, x):
        mask = linen.make_causal_mask(x[..., 0])
        layer = linen.MultiHeadDotProductAttention
        x = layer(4, name="block_0", attention_fn=self.attention_fn)(x, mask=mask)
        return linen.remat(layer)(4, name="block_1", attention_fn=self.attention_fn)(x, mask=mask)


def both(stock, swapped, edited, *arguments):
    """The model swapped to softmax is the model, and swapped to another normalizer the model edited by hand."""
    one, other, got, wanted = run(lambda *args: tuple(f(*args) for f in (stock, *swapped, edited)), *arguments)
    np.testing.assert_array_equal(one, other)
    close(got, wanted)


@pytest.mark.parametrize("normalizer", full_except(("hardmax", "entmax15"), "hardmax"))
def test_linen(normalizer: str):
    model = Linen()
    variables = drawn(jax.eval_shape(model.init, jax.random.key(0), X))
    found = sj.sites(model.apply)(variables, X)
    assert [(site.scope, site.use, site.mask) for site in found] == [
        ("Linen/block_0", "attention", "select"),
        ("Linen/block_1", "attention", "select"),
    ]
    swapped = sj.swap(model.apply, "softmax"), sj.swap(model.apply, normalizer)
    both(model.apply, swapped, Linen(sj.attention_fn(normalizer)).apply, variables, X)


QUERY, KEY = normal(2, 6, 4, 8), normal(2, 6, 2, 8, seed=1)
OPTIONS: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "causal": {"is_causal": True},
    "bias": {"bias": normal(1, 4, 6, 6, seed=2)},
    "mask": {"mask": CAUSAL},
    "local window": {"local_window_size": (2, 1)},
    "lengths": {"key_value_seq_lengths": jnp.array([3, 6])},
}


@pytest.mark.parametrize("option", full_except(OPTIONS, "local window"))
def test_dot_product_attention_of_jax(option: str):
    options, name = OPTIONS[option], "ssmax"
    stock = lambda q, k: jax.nn.dot_product_attention(q, k, k, **options)  # noqa: E731
    edited = lambda q, k: sj.dot_product_attention(q, k, k, normalizer=name, **options)  # noqa: E731
    both(stock, (sj.swap(stock, "softmax"), sj.swap(stock, name)), edited, QUERY, KEY)
