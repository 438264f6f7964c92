import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from docs import catalogue
from softmax_jax.attention.attention import dot_product_attention
from softmax_jax.attention.fused import runs_fused
from tests.tiers import HEART, methods

from .inputs import EMPTY, arrays, assert_equal, dense_attention, each, with_arrays

RIDES = [name for name in sj.METHODS if runs_fused(sj.normalizer(name))]
fused = functools.partial(dot_product_attention, implementation="xla")


def test_what_rides_a_kernel_is_what_the_facts_say():
    assert dict(catalogue.rows())["runs on a fused kernel"] == RIDES


RIDERS = "llama4", "sink_softmax", "ssmax", "yarn"
"""Beside the heart, one for each way to ride."""


@pytest.mark.parametrize("name", methods((*HEART[:2], *RIDERS)))
def test_values_and_gradients_are_those_of_dense_attention(name):
    *qkv, bias = arrays()
    beside = [jnp.where(jnp.isfinite(bias), bias, 0)[:1]] if name in ("softmax", "ssmax") else []
    dense, ridden = each((dense_attention, fused), with_arrays(name), (*qkv, *beside))
    assert_equal(dense, ridden)
    output, (*_, to_query, _, _) = (ridden[0], ridden[1][: len(ridden[1]) - len(beside)])
    np.testing.assert_array_equal(output[0, EMPTY], 0)
    np.testing.assert_array_equal(to_query[0, EMPTY], 0)


@pytest.mark.full
def test_half_precision_is_computed_in_float32():
    half = tuple(array.astype(jnp.bfloat16) for array in arrays()[:3])
    whole = tuple(array.astype(jnp.float32) for array in half)
    output = jax.jit(functools.partial(fused, normalizer="adaptive"))(*half)
    assert output.dtype == jnp.bfloat16
    dense = jax.jit(functools.partial(dense_attention, normalizer="adaptive"))(*whole)
    np.testing.assert_allclose(output.astype(jnp.float32), dense, rtol=2.0**-8, atol=1e-5)


@pytest.mark.parametrize(
    ("normalizer", "bias", "message"),
    [
        ("softpick", False, r"the map softpick .* use implementation='streaming'"),
        ("ssmax(cap=30)", False, r"the map soft_capped "),
        (
            sj.Normalizer(sj.softmax, cast(Any, lambda *_: 2.0)),
            False,
            r"the scale <lambda> needs .* use implementation=",
        ),
        ("adaptive", True, r"the entropy needs it: leave bias out"),
        ("sink_softmax", True, r"sink_softmax needs it: leave bias out"),
    ],
)
def test_what_rides_no_kernel_is_refused_in_one_line(normalizer, bias, message):
    query, key, value, some_bias = arrays()
    with pytest.raises(ValueError, match=message) as caught:
        fused(query, key, value, some_bias if bias else None, normalizer=normalizer)
    assert "\n" not in str(caught.value)
