"""Devices that divide the parameters of one model train what one device trains, each holding its part alone."""

import json
import math

import jax
import numpy as np
import pytest
from rich.console import Console

from softmax_jax.training import run as run_module
from softmax_jax.training.config import changed
from softmax_jax.training.run_directory import load_checkpoint
from softmax_jax.training.trainer import initial_state, state_sharding
from tests.eight_shards import TINY
from tests.runtime.test_distributed import finish, start


def trained(config, path):
    run_module.run(config, path, Console(quiet=True))
    return jax.tree.leaves(load_checkpoint(path)[1])


def test_each_device_holds_its_part_of_the_state():
    shapes = jax.eval_shape(lambda: initial_state(TINY))
    on_one = jax.tree.map(lambda leaf, lies: math.prod(lies.shard_shape(leaf.shape)), shapes, state_sharding(TINY))
    whole = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    devices = jax.device_count()
    assert devices > 1
    assert whole / devices <= sum(jax.tree.leaves(on_one)) < 1.3 * whole / devices  # what they do not divide is small


@pytest.mark.full
def test_a_run_of_eight_shards_goes_on_with_two_and_ends_where_whole_parameters_do(tmp_path):
    finish(start("eight_shards.py", 8, tmp_path))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [TINY.chunk]
    on_one, of_all = json.loads((tmp_path / "held.json").read_text())
    assert of_all / 8 <= on_one < 1.3 * of_all / 8  # what eight do not divide is small
    sharded = trained(TINY, tmp_path / "run")
    whole = trained(changed(TINY, sharded=False), tmp_path / "whole")
    for a, b in zip(sharded, whole, strict=True):
        assert np.allclose(a, b, rtol=0, atol=1e-5)
