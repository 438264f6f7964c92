import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.attention.streaming import sharded_attention

from .inputs import KEYS, arrays, assert_equal, dense_attention, each, some_mask, with_arrays

GRADIENTS = ["adaptive", "sink_softmax", "entmax"]
"""What meets the other devices in different ways; the slow test takes the gradients of all."""


@functools.cache
def sharded(devices):
    """Attention with the keys divided over so many devices."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ("keys",))
    return functools.partial(sharded_attention, mesh=mesh, axis="keys", block_size=2)


@functools.partial(jax.jit, static_argnums=0)
def outputs(attentions, normalizer):
    query, key, value, bias = arrays()
    bias = jnp.where(jnp.isfinite(bias), bias, 0)
    return [attend(query, key, value, bias, some_mask(), normalizer=normalizer) for attend in attentions]


def check(names, devices, gradients):
    """Raises unless attention over so many devices gives what dense attention gives on one."""
    for name in names:
        if name in gradients:
            dense, divided = each((dense_attention, sharded(devices)), with_arrays(name), arrays())
            assert_equal(dense, divided, values=1e-6)
        else:
            dense, divided = outputs((dense_attention, sharded(devices)), with_arrays(name))
            np.testing.assert_allclose(divided, dense, atol=1e-6 * float(jnp.abs(dense).max()), err_msg=name)


def in_process_of_its_own(devices, gradients):
    """Runs `check` for all names where there are so many simulated devices."""
    flags = os.environ["XLA_FLAGS"] + f" --xla_force_host_platform_device_count={devices}"
    script = f"from tests.attention.test_sharded import check, sj\ncheck(sj.METHODS, {devices}, {gradients})"
    ran = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


def test_two_devices_give_what_one_gives():
    check(["clipped_ssmax"], 2, ["clipped_ssmax"])


def test_keys_that_fill_up_the_devices_get_no_weight():
    """Under no mask, and under a mask or a bias that is the same for all keys, which is not filled up."""
    of_queries = jnp.arange(5.0)[:, None]

    @jax.jit
    def all_of_them(query, *keys_and_values):
        return [
            [attend(query, *keys_and_values, **hiding) for attend in (dense_attention, sharded(2))]
            for hiding in ({}, {"mask": of_queries < 4}, {"bias": of_queries})
        ]

    query, key, value, _ = arrays()
    for keys in (1, KEYS):
        for dense, divided in all_of_them(query, key[:, :keys], value[:, :keys]):
            np.testing.assert_allclose(divided, dense, atol=1e-6)


@pytest.mark.slow
def test_eight_devices_give_what_one_gives():
    in_process_of_its_own(8, GRADIENTS)


@pytest.mark.slow
def test_eight_devices_give_the_gradients_of_one():
    in_process_of_its_own(8, list(sj.METHODS))


def test_the_keys_are_divided_and_only_sums_are_moved():
    mesh = jax.make_mesh((2,), ("keys",))
    query, key, value, _ = arrays()
    attend = functools.partial(sharded_attention, mesh=mesh, axis="keys")
    program = jax.jit(attend).lower(query, key, value).compile().as_text()
    assert program is not None
    assert "all-reduce" in program
    assert "all-gather" not in program


def test_an_axis_that_the_mesh_lacks_is_refused():
    with pytest.raises(
        ValueError, match=r"axis is 'key'; did you mean 'keys'\? it must be one of the mesh, which has keys"
    ):
        sharded_attention(*arrays()[:3], mesh=jax.make_mesh((2,), ("keys",)), axis="key")
