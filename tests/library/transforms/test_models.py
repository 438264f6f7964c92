"""Models that nobody here wrote, of the libraries at hand: Linen, NNX and `jax.nn`; and a plain one under scan."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

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


def nnx_model(**options: Any):
    return nnx.MultiHeadAttention(4, 16, decode=False, rngs=nnx.Rngs(0), **options)


@pytest.mark.full
@pytest.mark.parametrize("normalizer", ["hardmax", "entmax15"])
def test_nnx_models_are_taken_as_they_are(normalizer: str):
    model, edited = nnx_model(), nnx_model(attention_fn=sj.attention_fn(normalizer))
    (site,) = sj.sites(model)(X, mask=CAUSAL)
    assert (site.scope, site.use, site.mask) == ("site_0", "attention", "select")
    graph, state = nnx.split(model)
    split = sj.swap(lambda state, x: nnx.merge(graph, state)(x, mask=CAUSAL), normalizer)
    swapped = lambda x: sj.swap(model, "softmax")(x, mask=CAUSAL), lambda x: split(state, x)
    both(lambda x: model(x, mask=CAUSAL), swapped, lambda x: edited(x, mask=CAUSAL), X)


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


@pytest.mark.parametrize("name", full_except(("ssmax(s=1.0)", "adaptive"), "ssmax(s=1.0)"))
def test_decoding_with_a_cache_gives_what_the_full_pass_gives(name: str):
    decoder = linen.MultiHeadDotProductAttention(4, decode=True)
    full = linen.MultiHeadDotProductAttention(4)
    shapes = jax.eval_shape(decoder.init, jax.random.key(0), X)
    params = drawn(shapes["params"])
    empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes["cache"])
    whole = run(lambda x: sj.swap(full.apply, name)({"params": params}, x, mask=CAUSAL), X)

    def one(cache, x):
        output, state = decoder.apply({"params": params, "cache": cache}, x[:, None], mutable=["cache"])
        return state["cache"], output[:, 0]

    step = sj.swap(one, name)
    (site,) = sj.sites(one)(empty, X[:, 0])
    assert site.use == "attention"
    outputs = run(lambda x: jax.lax.scan(step, empty, x.swapaxes(0, 1))[1], X)
    close(outputs.swapaxes(0, 1), whole, atol=2e-6)
