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


@pytest.mark.full
@every_fact
def test_sums_zeros_and_signs(name):
    logits = jax.random.normal(jax.random.key(0), (200, 40)) * jnp.linspace(0.1, 3, 200)[:, None]
    with jax.enable_x64(True):
        weights = np.asarray(sj.normalizer(name)(jnp.asarray(np.asarray(logits), jnp.float64)))
    fact: Any = sj.METHODS[name].map
    assert (np.abs(weights.sum(1) - 1) < 1e-6).all() == fact.sums_to_one
    assert (weights < 0).any() == fact.signed
    # Logits of exactly 0 are where signed_l1 gives 0.
    with jax.enable_x64(True):
        rounded = np.asarray(sj.normalizer(name)(jnp.round(jnp.asarray(np.asarray(logits), jnp.float64))))
    assert ((rounded == 0).any() or (weights == 0).any()) == fact.exact_zeros


def largest_weight(name, n, delta, rest=0.25):
    """Of one logit `delta` above n - 1 equal ones, in float64."""
    with jax.enable_x64(True):
        logits = jnp.full((1, n), rest).at[0, 0].add(delta)
        return float(sj.normalizer(name)(logits)[0, 0])


def between(logarithm):
    """Exponent of n in a weight whose logarithm is given, between the rows of `slope`."""
    return (logarithm(2**20) - logarithm(2**14)) / np.log(2**6)


def slope(name, delta, rest=0.25):
    """Exponent of n in the largest weight, between rows of 2^14 and 2^20."""
    short, long = (np.log(largest_weight(name, 2**power, delta, rest)) for power in (14, 20))
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
@pytest.mark.parametrize("delta", [0.5, 1.0, 6.0])
def test_the_largest_weight_goes_where_the_table_says(name, delta):
    claim = sj.METHODS[name].entry.largest_weight
    delta = min(delta, LARGEST_DELTA.get(name, 6.0))
    if claim in EXPONENTS:
        assert slope(name, delta) == pytest.approx(EXPONENTS[claim](delta, sj.METHODS[name].numbers), abs=0.06)
    elif claim in LIMITS:
        assert largest_weight(name, 2**20, delta) == pytest.approx(LIMITS[claim](delta), abs=0.01)
    else:
        assert name == "top_k"
        assert slope(name, delta) == pytest.approx(-1, abs=0.01)
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
    assert slope(name, delta, rest) == pytest.approx(exponent, abs=0.02)
    if limit is not None:
        assert largest_weight(name, 2**20, delta, rest) == pytest.approx(limit, abs=1e-3)
