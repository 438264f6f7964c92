"""What is said of each method is what is measured."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.normalizers.maps import DISPERSES
from softmax_jax.normalizers.methods import HOLDS_A_LEAD
from softmax_jax.normalizers.sparse import LINEAR, SQUARED
from tests.tiers import methods

every_fact = pytest.mark.parametrize("name", methods())


weigh = jax.jit(lambda normalizer, logits: normalizer(logits))
first_weights = jax.jit(lambda normalizer, logits: normalizer(logits)[:, 0])


@pytest.mark.full
@every_fact
def test_sums_zeros_and_signs(name):
    logits = np.asarray(jax.random.normal(jax.random.key(0), (200, 40)), np.float64) * np.linspace(0.1, 3, 200)[:, None]
    # Logits of exactly 0 are where signed_l1 gives 0.
    with jax.enable_x64(True):
        weights, rounded = (np.asarray(weigh(sj.normalizer(name), rows)) for rows in (logits, np.round(logits)))
    fact: Any = sj.METHODS[name].map
    assert (np.abs(weights.sum(1) - 1) < 1e-6).all() == fact.sums_to_one
    assert (weights < 0).any() == fact.signed
    assert ((rounded == 0).any() or (weights == 0).any()) == fact.exact_zeros


def largest_weights(name, n, deltas, rest=0.25):
    """Of one logit above n - 1 equal ones, by each of `deltas`, in float64."""
    logits = np.full((len(deltas), n), rest)
    logits[:, 0] += deltas
    with jax.enable_x64(True):
        return np.asarray(first_weights(sj.normalizer(name), logits))


def between(logarithm):
    """Exponent of n in a weight whose logarithm is given, between the rows of `slope`."""
    return (logarithm(2**20) - logarithm(2**14)) / np.log(2**6)


def slopes(name, deltas, rest=0.25):
    """Exponents of n in the largest weight, between rows of 2^14 and 2^20."""
    short, long = (np.log(largest_weights(name, 2**power, deltas, rest)) for power in (14, 20))
    return (long - short) / np.log(2**6)


EXPONENTS = {
    DISPERSES: lambda delta, numbers: -1.0,
    **{sj.METHODS[name].entry.largest_weight: lambda delta, numbers: -1.0 for name in ("softpick", "signed_l1")},
    sj.METHODS["scalable_softpick"].entry.largest_weight: lambda delta, numbers: min(numbers["s"] * delta - 1, 0.0),
    HOLDS_A_LEAD: lambda delta, numbers: min(numbers["s"] * delta - 1, 0.0),
    sj.METHODS["length_scaled"].entry.largest_weight: lambda delta, numbers: min(delta / 2 - 1, 0.0),
    sj.METHODS["llama4"].entry.largest_weight: lambda delta, numbers: min(numbers["attn_scale"] * delta - 1, 0.0),
    sj.METHODS["sqrt_ssmax"].entry.largest_weight: lambda delta, numbers: between(
        lambda n: min(numbers["s"] * delta * np.sqrt(2 * np.log(n)) - np.log(n), 0.0)
    ),
}
LIMITS = {
    LINEAR: lambda delta: min(delta, 1),
    SQUARED: lambda delta: min(delta / 2, 1) ** 2,
    sj.METHODS["entmax"].entry.largest_weight: lambda delta: min(delta / 2, 1) ** 2,
    sj.METHODS["asentmax"].entry.largest_weight: lambda delta: 1.0,
    sj.METHODS["hardmax"].entry.largest_weight: lambda delta: 1.0,
}


# Above these a row of 2^20 is still too short for its limit: β·δ must be small beside log n, or beside n^(1/q).
LARGEST_DELTA = {"clipped_ssmax": 1.0, "stieltjes": 0.02, "as_stieltjes": 0.02}


@every_fact
def test_the_largest_weight_goes_where_the_table_says(name):
    claim = sj.METHODS[name].entry.largest_weight
    deltas = [min(delta, LARGEST_DELTA.get(name, 6.0)) for delta in (0.5, 1.0, 6.0)]
    if claim in EXPONENTS:
        exponents = [EXPONENTS[claim](delta, sj.METHODS[name].numbers) for delta in deltas]
        np.testing.assert_allclose(slopes(name, deltas), exponents, rtol=0, atol=0.06)
    elif claim in LIMITS:
        limits = [LIMITS[claim](delta) for delta in deltas]
        np.testing.assert_allclose(largest_weights(name, 2**20, deltas), limits, rtol=0, atol=0.01)
    else:
        assert name == "top_k"
        np.testing.assert_allclose(slopes(name, deltas), -1, rtol=0, atol=0.01)
        assert float(sj.normalizer("top_k")(jnp.arange(100.0) / 100)[-1]) >= 1 / 8


@pytest.mark.parametrize(
    ("name", "rest", "delta", "limit", "exponent"),
    [
        ("softpick", 0.0, 2.0, 1.0, 0.0),
        ("softpick", -1.0, 3.0, 0.0, -1.0),
        ("scalable_softpick", 0.0, 0.5, 1.0, 0.0),
        ("scalable_softpick", -1.0, 6.0, 1.0, 0.0),  # s·t = 1.8
        # s·δ = 1.08 would hold the lead above positive logits; what counts above negative ones is s·t = 0.72.
        ("scalable_softpick", -1.0, 3.0, None, 2 / np.log(16) - 1),
        ("signed_l1", 0.0, 2.0, 2 / 3, 0.0),
        ("signed_l1", -1.0, 3.0, 0.0, -1.0),
    ],
)
def test_the_offset_decides_limit_and_exponent_as_the_table_says(name, rest, delta, limit, exponent):
    assert slopes(name, [delta], rest)[0] == pytest.approx(exponent, abs=0.02)
    if limit is not None:
        assert largest_weights(name, 2**20, [delta], rest)[0] == pytest.approx(limit, abs=1e-3)
