"""Several devices, simulated, and several processes give the numbers of one, and move the bytes that were predicted."""

import contextlib
import csv
import io
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from rich.console import Console

from benchmarks import costs
from softmax_jax.experiment.measures.evaluation import evaluate
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training import distributed, trainer
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.distributed import Cluster
from softmax_jax.experiment.training.run import build_model, build_run
from softmax_jax.experiment.training.run_directory import RunDirectory, load_checkpoint
from softmax_jax.experiment.training.train import train
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.refusal import Refusal
from studies.clrs_text.task import ClrsText
from tests import communication
from tests.eight_devices import TINY

ROOT = Path(__file__).parents[3]


def start(script, count, *arguments):
    """A script of the tests in a process of its own, with this many simulated devices."""
    flags = re.sub(r"device_count=\d+", f"device_count={count}", os.environ["XLA_FLAGS"])
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    # Without the script's own directory on the path, whose folders have the names of those at the root.
    command = [sys.executable, "-P", ROOT / "tests" / script, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process):
    out, error = process.communicate(timeout=280)
    assert process.returncode == 0, error
    return out


def trained(path):
    train(TINY, path, Console(file=io.StringIO()))
    return jax.tree.leaves(load_checkpoint(path)[1])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Parameters of a run that one process, which has two devices, finished at once."""
    return trained(tmp_path_factory.mktemp("run") / "whole")


def close(a, b, tolerance=1e-6):
    return all(np.allclose(x, y, rtol=0, atol=tolerance) for x, y in zip(a, b, strict=True))


@pytest.mark.rare
def test_eight_devices_give_the_numbers_of_one(tmp_path, uninterrupted):
    finish(start("eight_devices.py", 8, tmp_path))
    results = json.loads((tmp_path / "results.json").read_text())
    one, eight = results["on 1"], results["on 8"]
    for step, drawn in enumerate((one["drawn"][:4], one["drawn"][4:])):
        whole = jax.vmap(TINY.task.training_batch, (0, None))(jnp.arange(TINY.seeds), jnp.int32(step))
        assert all(np.array_equal(x, y) for x, y in zip(drawn, jax.tree.leaves(whole), strict=True))
    assert eight["drawn"] == one["drawn"]
    assert close(eight["trained"], one["trained"])
    assert close(eight["evaluated"], one["evaluated"], 1e-5)
    for count in (1, 2, 4, 8):
        moved, predicted = results[f"on {count}"]["moved"]
        assert moved == predicted
        assert (moved > 0) == (count > TINY.seeds)
        assert results[f"on {count}"]["mesh"] == [min(count, 2), max(count // 2, 1)]
    with contextlib.closing(RunDirectory(build_run(TINY), tmp_path / "run")) as directory:
        assert directory.resume()[0] == TINY.chunk
    assert close(trained(tmp_path / "run"), uninterrupted)


@pytest.mark.rare
def test_two_processes_stop_together_and_one_continues(tmp_path, uninterrupted):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    leader, other = [start("two_processes.py", 2, address, process, tmp_path) for process in (0, 1)]
    printed = finish(leader)
    assert "step" not in re.sub(r"stopped at step|\[Gloo\].*", "", finish(other))
    assert f"step {TINY.chunk}/{TINY.steps}" in printed
    by_process = [json.loads((tmp_path / f"results{process}.json").read_text()) for process in (0, 1)]
    assert [(results["trained"], results["evaluated"]) for results in by_process] == [(130, 0), (130, 0)]
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["seed"]) for line in metrics] == [(TINY.chunk, 0), (TINY.chunk, 1)]
    stopped = load_checkpoint(tmp_path / "run")[1]
    for results in by_process:
        assert close(results["one seed"], [leaf[:1] for leaf in jax.tree.leaves(stopped)])
    assert not (tmp_path / "evaluation1").exists()
    with (tmp_path / "evaluation0" / "evaluation.csv").open() as file:
        theirs = [float(row["loss"]) for row in csv.DictReader(file)]
    (measured,) = evaluate(stopped, {"softmax": normalizer("softmax")}, seeds=(0, 1), lengths=(8,), sets=16)
    assert np.allclose(theirs, measured.frame()["loss"], atol=1e-5)
    assert close(trained(tmp_path / "run"), uninterrupted)


CLUSTERS = ("SLURM_JOB_ID", "OMPI_MCA_orte_hnp_uri", "KUBERNETES_SERVICE_HOST", "TPU_WORKER_HOSTNAMES")


def test_one_process_joins_nothing():
    """In a process where JAX has touched no device yet, and finds no network."""
    program = (
        "import jax, socket; socket.socket = None; from softmax_jax.experiment.training.distributed import *\n"
        "join(); print(is_leader(), jax.distributed.is_initialized())"
    )
    environment = {name: value for name, value in os.environ.items() if name not in CLUSTERS}
    done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "True False\n", done.stderr


def test_a_scheduler_is_asked_unless_one_process_is_to_run_alone(monkeypatch):
    initialize = mock.Mock()
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    for cluster in (Cluster(processes=1), distributed.ALONE, Cluster("a:1", 2, 0)):
        distributed.join(cluster)
    assert [call.kwargs["cluster_detection_method"] for call in initialize.call_args_list] == [None, "deactivate"]


def test_processes_that_do_not_find_each_other_say_why_and_alone_nothing_is_asked(monkeypatch):
    jnp.ones(())  # where JAX has computed before, too
    distributed.join()
    assert not jax.distributed.is_initialized()
    for cluster in (Cluster("a:1"), Cluster(processes=0), Cluster("a:1", 2, 2)):
        with pytest.raises(Refusal, match=r"^the processes did not find each other: [^\n]* with --processes"):
            distributed.join(cluster)
    # What a scheduler says wrongly is not taken for running alone.
    for cluster, error in (
        (distributed.ALONE, ValueError("nobody there")),
        (Cluster("a:1", 2, 0), jax.errors.JaxRuntimeError("nobody there\nat line 1")),
    ):
        monkeypatch.setattr(jax.distributed, "initialize", mock.Mock(side_effect=error))
        with pytest.raises(Refusal, match=r"each other: nobody there\. Name a reachable"):
            distributed.join(cluster)


def test_shares_use_what_divides_evenly_and_a_problem_of_one_process_stops_the_others(monkeypatch):
    assert distributed.shares(10, 128, 16, 1, 1) == (2, 8)
    assert distributed.shares(3, 7, 4, 1, 1) == (3, 1)
    assert distributed.shares(3, 128, 4, 2, 1) == (1, 4)
    assert distributed.shares(2, 5, 4, 2, 1) == (2, 1)
    assert distributed.shares(1, 128, 8, 4, 32) == (1, 4)
    assert distributed.shares(1, 128, 8, 8, 32) == (1, 8)
    with pytest.raises(ValueError, match="3 seeds of 5 sets do not divide evenly among 2 processes"):
        distributed.shares(3, 5, 8, 2)
    monkeypatch.setattr(distributed, "any_process", lambda flag: True)
    with pytest.raises(ValueError, match="another process cannot go on"):
        distributed.agree(None)


@pytest.mark.full
def test_the_formulas_of_the_costs_are_those_of_the_programs():
    """As written, before compiling. What is no matrix product grows with the width and not with its square."""
    paper, texts = MaxRetrieval(min_items=16, max_items=16, width=1024), ClrsText(batch=1)
    of_paper = costs.step_multiply_adds(16, paper.batch, paper.width)
    for task, multiply_adds in ((paper, of_paper), (texts, costs.decoder_multiply_adds(texts))):
        parameters = jax.eval_shape(build_model(task)[1], jax.random.key(0))
        batch = jax.eval_shape(lambda task=task: task.training_batch(jnp.int32(0), jnp.int32(0)))
        gradient = jax.jit(trainer.padded_gradient(build_run(Config(task, l2=0.0))))
        counted: Any = gradient.lower(parameters, batch).cost_analysis()
        assert 2 * multiply_adds < counted["flops"] < 1.03 * 2 * multiply_adds
    sizes = [leaf.size for leaf in jax.tree.leaves(jax.eval_shape(build_model(paper)[1], jax.random.key(0)))]
    assert sum(sizes) == communication.parameter_count(paper.width)


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_arrays_and_plain_numbers_are_placed_and_gathered_whole(implementation):
    sharding = NamedSharding(distributed.device_mesh(2), PartitionSpec(distributed.SEEDS))
    everywhere = NamedSharding(distributed.device_mesh(1), PartitionSpec())
    keys = jax.random.split(jax.random.key(0, impl=implementation), 2)
    tree = {"many": np.arange(4.0, dtype=np.float32), "keys": keys}
    placed = distributed.placed(tree, sharding)
    assert placed["many"].sharding == placed["keys"].sharding == sharding
    assert np.array_equal(distributed.gathered(placed["many"]), tree["many"])
    assert np.array_equal(jax.random.key_data(placed["keys"]), jax.random.key_data(keys))
    assert placed["keys"].dtype == keys.dtype
    assert distributed.placed(placed["many"], sharding) is placed["many"]
    plain = distributed.placed(0.43, everywhere)  # a normalizer's number
    assert (plain.dtype, float(plain)) == (np.float32, np.float32(0.43))
