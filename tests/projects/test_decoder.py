import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from projects.decoder import Decoder
from softmax_jax.normalizers.registry import normalizer

TOKENS, LENGTH, MORE = 11, 7, 5


@functools.cache
def model(name="softmax", learn=()):
    features = np.random.default_rng(0).normal(size=(TOKENS, 3)).astype(np.float32)
    return Decoder(features, normalizer(name), learn, hidden=16, heads=2, layers=2, rngs=nnx.Rngs(0))


def texts():
    """Tokens, of which the first of some texts are not there."""
    tokens = jax.random.randint(jax.random.key(1), (3, LENGTH), 0, TOKENS)
    return tokens, jnp.arange(LENGTH)[None] >= jnp.array([0, 2, 5])[:, None]


def full_pass(one, tokens, visible, places, by):
    mask = jnp.tri(tokens.shape[1], dtype=bool)[None] & visible[:, None]
    return one.scores(one(tokens, mask, places, by))


@pytest.mark.full
@pytest.mark.parametrize(("name", "rope"), [("ssmax", 1), ("softmax", 0), ("adaptive", 0), ("top_k(k=3)", 1)])
def test_decoding_with_a_cache_is_what_full_passes_give(name, rope):
    """Also under normalizers that count the entries in sight, of which a cache has fewer than it has room for."""
    tokens, visible = texts()
    places = jnp.cumsum(jnp.ones((3, LENGTH + MORE - 1), jnp.int32), 1) * 3 if rope else None
    one, by = model(), normalizer(name)
    cached = jax.jit(lambda: one.decode(tokens, visible, MORE, places, by))()
    # One pass over all that is written: each token is the best after those before it.
    written = jnp.concatenate([tokens, cached[:, :-1]], 1)
    there = jnp.concatenate([visible, jnp.ones((3, MORE - 1), bool)], 1)
    best = jax.jit(lambda: full_pass(one, written, there, places, by))()[:, LENGTH - 1 :].argmax(-1)
    np.testing.assert_array_equal(cached, best)


def test_no_position_sees_a_later_one_or_what_the_mask_hides():
    tokens, visible = texts()
    scores = full_pass(model(), tokens, visible, None, None)
    changed = jnp.where(visible & (jnp.arange(LENGTH) < 6)[None], tokens, (tokens + 1) % TOKENS)
    again = full_pass(model(), changed, visible, None, None)
    np.testing.assert_allclose(
        jnp.where(visible[..., None], scores, 0)[:, :6], jnp.where(visible[..., None], again, 0)[:, :6], atol=1e-6
    )
    assert not np.allclose(scores[:, 6], again[:, 6])


@pytest.mark.full
def test_a_shift_of_all_positions_changes_nothing_and_another_spacing_does():
    tokens, visible = texts()
    places = jnp.broadcast_to(jnp.arange(LENGTH)[None], tokens.shape)
    scores = full_pass(model(), tokens, visible, places, None)
    np.testing.assert_allclose(full_pass(model(), tokens, visible, places + 40, None), scores, atol=1e-4)
    assert not np.allclose(full_pass(model(), tokens, visible, 2 * places, None), scores, atol=1e-4)


@pytest.mark.full
def test_a_normalizer_learns_a_number_for_each_head_and_a_call_may_replace_it():
    learned = model("ssmax", ("s",))
    state = nnx.state(learned, nnx.Param)
    assert [block["attention"]["s"].shape for block in state["blocks"].values()] == [(2, 1, 1)] * 2
    tokens, visible = texts()
    own = full_pass(learned, tokens, visible, None, None)
    np.testing.assert_array_equal(own, full_pass(learned, tokens, visible, None, normalizer("ssmax")))
    assert not np.allclose(own, full_pass(learned, tokens, visible, None, normalizer("softmax")))
