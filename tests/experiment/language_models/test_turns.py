"""The layers of the decoder run in one scan: a swap with numbers of each layer is what `weigh` with them computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.experiment.language_models.decoder import hidden
from softmax_jax.normalizers.row import weigh
from tests.experiment.language_models.plain_llama import TINY, tiny_arrays
from tests.experiment.language_models.test_decoder import SIZES, as_parameters


@pytest.mark.parametrize("length", [24, pytest.param(520, marks=pytest.mark.full)])  # one block of queries, or several
def test_a_swap_with_numbers_of_each_layer(length: int):
    parameters = as_parameters(tiny_arrays(50))
    tokens = jnp.asarray(np.random.default_rng(2).integers(0, 50, length).astype(np.int32))
    s = 0.3 + jax.random.uniform(jax.random.key(0), (TINY["layers"], TINY["heads"], 1, 1))

    def swapped(s):
        return sj.swap(lambda: hidden(parameters, SIZES, tokens)[0], sj.normalizer("ssmax", s=s))()

    def edited(s):
        by_ssmax = lambda logits, visible, s: weigh(sj.normalizer("ssmax", s=s), logits, -1, visible[None])  # noqa: E731
        return hidden(parameters, SIZES, tokens, by_ssmax, s)[0]

    def with_gradient(function):
        return jax.value_and_grad(lambda s: (jnp.sin(function(s))).mean())(s)

    found, wanted = jax.jit(lambda: (with_gradient(swapped), with_gradient(edited)))()
    jax.tree.map(lambda *pair: np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-6), found, wanted)
    assert np.ptp(np.asarray(wanted[1]), 0).max() > 1e-5
    assert {site.turns for site in sj.sites(lambda: hidden(parameters, SIZES, tokens))()} == {TINY["layers"]}
