import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from softmax_jax.experiment.tasks.max_retrieval import sample
from studies.normalised_head import NormalisedKeys
from studies.normalised_keys import derived, half_beta, largest_share, row_weights


@pytest.mark.parametrize("size", [4, 32])
def test_the_derived_beta_gives_the_nearest_key_half_the_weight(size: int):
    weights = np.array([row_weights(size, 1024, row) for row in range(400)])
    assert half_beta(size, 1024, weights[:, 0]) == pytest.approx(derived(1024, size), rel=0.2)


def test_the_largest_share_is_that_of_drawn_rows():
    drawn = np.random.default_rng(0).exponential(size=(4000, 500)).cumsum(1) ** (1 / 2.5)
    shares = 1 / np.exp(-3 * (drawn - drawn[:, :1])).sum(1)
    assert largest_share(3.0, 2.5) == pytest.approx(shares.mean(), abs=0.015)


def test_weights_of_a_row_rise_with_beta_and_end_at_one():
    nearest, planted, right = row_weights(8, 64, 0)
    assert (np.diff([nearest, planted]) > 0).all()
    assert nearest[-1] > 0.5
    assert right[-1] == 1


@pytest.mark.full
def test_logits_of_a_head_are_cosines_times_its_gain():
    model = NormalisedKeys(width=16, size=4).build("softmax", nnx.Rngs(0))
    batch = sample(jax.random.key(0), sets=3, items=50)
    bounded = model(batch).logits
    assert float(jnp.abs(bounded).max()) <= 2.0 + 1e-5  # √4
    model.attention_key.kernel[...] *= 8
    model.attention_key.bias[...] *= 8
    np.testing.assert_allclose(model(batch).logits, bounded, atol=1e-5)
