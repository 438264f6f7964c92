"""Killed or out of disk: a run ends with the bits of one that nothing happened to, and no file is half there."""

import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from softmax_jax.experiment.commands.output import check_directory
from softmax_jax.experiment.training.checkpoint import step_checkpoints, verify
from softmax_jax.files import PARTIAL
from tests.faults.killed import CONFIG

ROOT = Path(__file__).parents[2]


def train(workdir, kill=0, size=0):
    """The exit status of a run, and what it said on stderr."""
    command = [sys.executable, "-m", "tests.faults.killed", workdir, kill, size]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr


def metrics_of(workdir):
    """The metrics of a run, without the rates, which are the clock's."""
    path = workdir / "metrics.jsonl"
    return re.sub(r'("steps_per_second": )[\d.e+]+', r"\1-", path.read_text()) if path.exists() else ""


def arrays(workdir):
    """All arrays of a run's checkpoints, which are whole."""
    found, here = {}, jax.sharding.SingleDeviceSharding(jax.devices()[0])
    for path in [*step_checkpoints(workdir), workdir / "parameters"]:
        if path.exists():
            verify(path)
            stored = ocp.metadata(path).metadata
            like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), stored)
            for key, leaf in jax.tree.leaves_with_path(ocp.load(path, like)):
                found[path.name + jax.tree_util.keystr(key)] = np.asarray(leaf).tobytes()
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    assert train(workdir) == (0, "")
    assert metrics_of(workdir).count("\n") == CONFIG.seeds * CONFIG.steps // CONFIG.chunk
    return workdir


def check_finished(workdir, undisturbed):
    """The directory is that of a run which was never stopped: the same bits, and no file more or less."""
    assert train(workdir) == (0, "")
    assert metrics_of(workdir) == metrics_of(undisturbed)
    assert arrays(workdir) == arrays(undisturbed)
    patterns = ("*", "checkpoints/*")
    ours, theirs = ({path.name for p in patterns for path in run.glob(p)} for run in (workdir, undisturbed))
    assert ours == theirs


SEEDS = [pytest.param(seed, marks=pytest.mark.rare if seed else pytest.mark.full) for seed in range(10)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_killed_before_any_of_its_file_operations_ends_with_the_same_bits(seed, tmp_path, undisturbed):
    draw, workdir = random.Random(seed), tmp_path / "run"
    for _ in range(3):
        status, said = train(workdir, kill=draw.randrange(1, 50))
        assert (status, said) in ((-signal.SIGKILL, ""), (0, ""))
        assert metrics_of(undisturbed).startswith(metrics_of(workdir))
        arrays(workdir)
    check_finished(workdir, undisturbed)


@pytest.mark.full
def test_a_run_whose_files_may_not_grow_says_so_and_continues_when_they_may(tmp_path, undisturbed):
    workdir = tmp_path / "run"
    status, said = train(workdir, size=4000)
    assert status == 2
    assert re.match(rf"error: {workdir}.* cannot be written: File too large", said.splitlines()[-1])
    assert not [path for path in workdir.rglob("*") if PARTIAL in path.name]
    check_finished(workdir, undisturbed)


def test_a_directory_that_cannot_be_made_is_named_with_its_option(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ValueError, match=rf"--output is {tmp_path}/file/out: .*{tmp_path}/file is a file; name another"
    ):
        check_directory("--output", tmp_path / "file" / "out")
    check_directory("--output", tmp_path / "deep" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


WRITES = r"\bopen\(|\.write_text\(|\.write_bytes\(|\.savefig\(|\.save\(|np\.save|to_csv\("
READS = r"[. ]open\(|\.read_text\(|\.read_bytes\(|np\.load|pl\.read_|pl\.scan_|json\.load\("
WHOLE = ("fit.save(path)", "self.save(step, state)", "ocp.save(unfinished, tree)", "np.savez(file, ")
"""A fit, by `write_json`; a checkpoint, by Orbax; arrays in memory, which `write_whole` writes."""
OTHERWISE = (">>>", 'files[name].read_text(encoding="utf-8")', "pl.read_csv(data", "pl.read_ndjson(data")
OTHERWISE += ("np.load(io.BytesIO(read_bytes(",)
"""An example; the script that goes with the vectors, which runs without this package; what was read by `files`."""


@pytest.mark.parametrize(("calls", "allowed"), [(WRITES, WHOLE), (READS, OTHERWISE)], ids=["written", "read"])
def test_whole_files_are_written_and_regular_files_are_read_by_the_functions_for_them_alone(calls, allowed):
    """All others are named here, and each of these is there."""
    lines = [
        f"{path.name}: {line.strip()}"
        for path in (ROOT / "softmax_jax").rglob("*.py")
        for line in path.read_text().splitlines()
        if path.name != "files.py" and re.search(calls, line)
    ]
    assert [line for line in lines if not any(words in line for words in allowed)] == []
    assert all(any(words in line for line in lines) for words in allowed)
