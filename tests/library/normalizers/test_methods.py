import math

import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from tests.library.laws import references
from tests.library.laws.references import adaptive_beta, entropy, length_rule_beta
from tests.tiers import full_except


@pytest.mark.parametrize(
    ("weigh", "given", "beta"),
    [
        (sj.temperature_softmax, {"theta": 0.4}, lambda z: 2.5),
        *full_except(
            [
                (sj.adaptive_temperature_softmax, {"coefficients": (0.5, 1.0)}, lambda z: max(entropy(z) / 2 + 1, 1)),
                (sj.adaptive_temperature_softmax, {"entropy_range": (2.0, 3.0)}, lambda z: adaptive_beta(2.0)),
                (sj.ssmax, {"s": 0.43, "bias": 0.2}, lambda z: 0.43 * math.log(z.size) + 0.2),
                (sj.ssmax, {"s": -0.5}, lambda z: -0.5 * math.log(z.size)),
                (sj.scalable_softpick, {"s": 0.9}, lambda z: 0.9 * math.log(z.size)),
                (sj.length_scaled_softmax, {"m": 2, "eps": 0.1}, lambda z: length_rule_beta(z.size, 2, 0.1)),
            ]
        ),
    ],
)
def test_numbers_other_than_the_defaults(weigh, given, beta):
    rng = np.random.default_rng(0)
    logits, where = 2 * rng.normal(size=(5, 9)), rng.random((5, 9)) < 0.7
    weights = weigh(jnp.asarray(logits, jnp.float32), where=jnp.asarray(where), **given)
    formula = references.softpick if weigh is sj.scalable_softpick else references.softmax
    for row, visible, found in zip(logits, where, weights):
        z = row[visible]
        flat = weigh is sj.adaptive_temperature_softmax and entropy(z) <= 0.5  # where β is 1
        np.testing.assert_allclose(found[visible], formula((1 if flat else beta(z)) * z), rtol=2e-5, atol=1e-7)
        assert not found[~visible].any()
