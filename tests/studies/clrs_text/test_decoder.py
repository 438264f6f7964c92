import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from softmax_jax.normalizers.registry import normalizer
from studies.clrs_text.decoder import Decoder

TOKENS, LENGTH = 11, 7


@functools.cache
def model(name="softmax", learn=()):
    features = np.random.default_rng(0).normal(size=(TOKENS, 3)).astype(np.float32)
    return Decoder(features, normalizer(name), learn, hidden=16, heads=2, layers=2, rngs=nnx.Rngs(0))


def texts():
    """Tokens, of which the first of some texts are not there."""
    tokens = jax.random.randint(jax.random.key(1), (3, LENGTH), 0, TOKENS)
    return tokens, jnp.arange(LENGTH)[None] >= jnp.array([0, 2, 5])[:, None]


@functools.partial(nnx.jit, static_argnames="by")
def full_pass(one, tokens, visible, by):
    mask = jnp.tri(tokens.shape[1], dtype=bool)[None] & visible[:, None]
    return one.scores(one(tokens, mask, by))


def test_no_position_sees_a_later_one_or_what_the_mask_hides():
    tokens, visible = texts()
    scores = full_pass(model(), tokens, visible, None)
    changed = jnp.where(visible & (jnp.arange(LENGTH) < 6)[None], tokens, (tokens + 1) % TOKENS)
    again = full_pass(model(), changed, visible, None)
    np.testing.assert_allclose(
        jnp.where(visible[..., None], scores, 0)[:, :6], jnp.where(visible[..., None], again, 0)[:, :6], atol=1e-6
    )
    assert not np.allclose(scores[:, 6], again[:, 6])


@pytest.mark.full
def test_a_normalizer_learns_a_number_for_each_head_and_a_call_may_replace_it():
    learned = model("ssmax", ("s",))
    state = nnx.state(learned, nnx.Param)
    assert [block["attention"]["s"].shape for block in state["blocks"].values()] == [(2, 1, 1)] * 2
    tokens, visible = texts()
    own = full_pass(learned, tokens, visible, None)
    np.testing.assert_array_equal(own, full_pass(learned, tokens, visible, normalizer("ssmax")))
    assert not np.allclose(own, full_pass(learned, tokens, visible, normalizer("softmax")))
