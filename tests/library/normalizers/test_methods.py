import math

import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from tests.library.laws import references
from tests.tiers import methods

FUNCTIONS = {
    "temperature": sj.temperature_softmax,
    "adaptive": sj.adaptive_temperature_softmax,
    "ssmax": sj.ssmax,
    "scalable_softpick": sj.scalable_softpick,
    "length_scaled": sj.length_scaled_softmax,
}
RNG = np.random.default_rng(0)
LOGITS, WHERE = 2 * RNG.normal(size=(5, 9)), RNG.random((5, 9)) < 0.7


def by_formula(weigh):
    """`weigh` applied to the visible entries of each row of LOGITS, in float64."""
    weights = np.zeros(LOGITS.shape)
    for row, visible, out in zip(LOGITS, WHERE, weights):
        out[visible] = weigh(row[visible])
    return weights


@pytest.mark.parametrize(
    ("name", "given", "weigh"),
    methods(
        [
            ("temperature", {"theta": 0.4}, lambda z: references.softmax(z / 0.4)),
            ("adaptive", {"coefficients": (0.5, 1.0)}, lambda z: references.softmax(adaptive_line(z))),
            ("adaptive", {"entropy_range": (2.0, 3.0)}, lambda z: references.softmax(at_least_two_nats(z))),
            ("ssmax", {"s": 0.43, "bias": 0.2}, lambda z: references.softmax((0.43 * math.log(z.size) + 0.2) * z)),
            ("ssmax", {"s": -0.5}, lambda z: references.softmax(-0.5 * math.log(z.size) * z)),
            ("scalable_softpick", {"s": 0.9}, lambda z: references.softpick(0.9 * math.log(z.size) * z)),
            (
                "length_scaled",
                {"m": 2, "eps": 0.1},
                lambda z: references.softmax(references.length_rule_beta(z.size, 2, 0.1) * z),
            ),
        ]
    ),
)
def test_numbers_other_than_the_defaults(name, given, weigh):
    actual = FUNCTIONS[name](jnp.asarray(LOGITS, jnp.float32), where=jnp.asarray(WHERE), **given)
    np.testing.assert_allclose(actual, by_formula(weigh), rtol=2e-5, atol=1e-7)


def adaptive_line(z):
    h = references.entropy(z)
    return (max(0.5 * h + 1, 1) if h > 0.5 else 1) * z


def at_least_two_nats(z):
    return (references.adaptive_beta(2.0) if references.entropy(z) > 0.5 else 1) * z
