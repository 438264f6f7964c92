"""No number breaks a law of a normalizer: forward, backward and twice, in every type and form of attention."""

import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.attention.fused import rides

from .hostile_rows import DTYPES, FORMS, broken_laws, hostile, joined

WIDTH = 40
"""Wide enough that a row is summed in blocks; the masks make rows of every shorter length."""

SHARDED = ["adaptive", "sink_softmax", "entmax15", "top_k", "signed_l1"]
"""What meets the other devices in different ways."""

FUSED = [name for name in sj.METHODS if rides(sj.normalizer(name))]


def of_three_types(seed):
    """Rows of the half types and float32 in one array: what they become before anything is computed."""
    return joined(*(hostile(dtype, WIDTH, 150, seed) for dtype in ("float32", "float16", "bfloat16")))


@pytest.mark.parametrize("form", ["dense", "streaming"])
@pytest.mark.parametrize("name", sj.METHODS)
def test_no_number_breaks_a_law(name, form):
    assert broken_laws(name, form, of_three_types(0), "float32") == {}


@pytest.mark.parametrize("name", SHARDED)
def test_no_number_breaks_a_law_on_two_devices(name):
    assert broken_laws(name, "sharded", of_three_types(1), "float32") == {}


@pytest.mark.parametrize("name", FUSED)
def test_no_number_breaks_a_law_on_a_fused_kernel(name):
    assert broken_laws(name, "xla", of_three_types(2), "float32") == {}
