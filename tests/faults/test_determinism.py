"""The same numbers from run to run, and on any number of threads, devices and processes: to the bit, or how nearly."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from softmax_jax.runtime import devices, distributed

from tests.faults import same_numbers

ROOT = Path(__file__).parents[2]
NEAR = {"evaluated": 2e-5, "trained": 1e-6, "training": 2e-5}
"""Largest difference on other devices, in nats, weights and parameters: their batches are summed in another order."""


def start(path, devices, threads, *cluster, own_flags=False):
    """A process on so many devices and threads, with the compiler's flags of the tests or with its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    if own_flags:
        environment.pop("XLA_FLAGS", None)
    command = [sys.executable, "-m", "tests.faults.same_numbers", path, devices, threads, *cluster]
    command = list(map(str, command))
    return subprocess.Popen(command, env=environment, cwd=ROOT, text=True, stderr=subprocess.PIPE)


def finish(process, path):
    """What it found."""
    _, error = process.communicate(timeout=900)
    assert process.returncode == 0, error
    with np.load(path, allow_pickle=False) as found:
        return dict(found)


def apart(one, other):
    """The largest difference of each part; data is all there is in the others' names."""
    assert one.keys() == other.keys()
    most = {}
    for name, ours in one.items():
        part = "data" if name.startswith("data") else name.partition("[")[0].partition(".")[0]
        assert ours.shape == other[name].shape
        difference = np.abs(ours.astype(np.float64) - other[name].astype(np.float64)).max()
        most[part] = max(most.get(part, 0.0), float(difference))
    assert most.keys() == {"data", *NEAR}
    return most


def identical(one, other):
    return one.keys() == other.keys() and all(ours.tobytes() == other[name].tobytes() for name, ours in one.items())


def near(one, other):
    most = apart(one, other)
    return most.pop("data") == 0 and all(difference <= NEAR[part] for part, difference in most.items())


@pytest.fixture(scope="module")
def here():
    """What this process finds, on its two devices and all its threads."""
    return same_numbers.numbers()


@pytest.mark.full
def test_one_thread_and_one_device_give_the_numbers_of_all(here, tmp_path):
    path = tmp_path / "one.npz"
    one = finish(start(path, 1, 1), path)
    assert near(one, here), apart(one, here)


@pytest.mark.full
@pytest.mark.slow  # as it compiles everything again
def test_a_second_run_gives_the_same_bits(here):
    jax.clear_caches()
    assert identical(same_numbers.numbers(), here)


@pytest.mark.full
def test_a_single_bit_is_seen(here):
    for name in here:
        changed = {key: value.copy() for key, value in here.items()}
        changed[name].view(np.uint8).reshape(-1)[0] ^= 1
        assert not identical(changed, here)
    changed = here | {"evaluated": here["evaluated"] + 3e-5}
    assert not near(changed, here)
    changed = here | {name: value + 1 for name, value in here.items() if name.startswith("data")}
    assert not near(changed, here)


def test_processes_place_the_plain_numbers_of_a_normalizer(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    tree = {"plain": 0.43, "one": np.float32(2), "many": np.arange(4.0), "keys": jax.random.split(jax.random.key(0), 2)}
    there = distributed.placed(tree, NamedSharding(devices.device_mesh(1), PartitionSpec()))
    assert [leaf.dtype for leaf in (there["plain"], there["one"], there["many"])] == [np.float32] * 3
    assert there["plain"] == np.float32(0.43)
    assert np.array_equal(distributed.gathered(there["many"]), tree["many"])
    assert np.array_equal(jax.random.key_data(there["keys"]), jax.random.key_data(tree["keys"]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What processes with the compiler's own flags find, by devices and threads; the first one twice."""
    directory = tmp_path_factory.mktemp("runs")
    found = {}
    settings = {"first": (1, 2), "again": (1, 2), "one thread": (1, 1), "two devices": (2, 2), "eight devices": (8, 2)}
    for name, setting in settings.items():
        path = directory / f"{name}.npz"
        found[name] = finish(start(path, *setting, own_flags=True), path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    paths = [directory / f"process {process}.npz" for process in (0, 1)]
    both = [start(path, 1, 2, address, 2, process, own_flags=True) for process, path in enumerate(paths)]
    found |= {path.stem: finish(process, path) for path, process in zip(paths, both)}
    for name, numbers in found.items():
        print(f"{name}: {apart(numbers, found['first'])}")
    return found


@pytest.mark.full
@pytest.mark.slow
def test_another_run_changes_no_bit(runs):
    assert identical(runs["again"], runs["first"])


@pytest.mark.full
@pytest.mark.slow
def test_threads_change_no_bit_of_an_evaluation(runs):
    """In training, where XLA divides a product among threads, they change the order of a sum."""
    one, two = ({name: run[name] for name in run if "train" not in name} for run in (runs["one thread"], runs["first"]))
    assert len(one) > 4
    assert identical(one, two)
    assert near(runs["one thread"], runs["first"]), apart(runs["one thread"], runs["first"])


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("name", ["two devices", "eight devices", "process 0"])
def test_devices_and_processes_draw_the_same_and_agree(runs, name):
    assert near(runs[name], runs["first"]), apart(runs[name], runs["first"])


@pytest.mark.full
@pytest.mark.slow
def test_both_processes_hold_the_numbers_of_two_devices(runs):
    assert identical(runs["process 0"], runs["process 1"])
    assert identical(runs["process 0"], runs["two devices"])
