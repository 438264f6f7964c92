"""Killed, stopped, out of disk, locked out: a run ends with the bits of one that nothing happened to."""

import contextlib
import dataclasses
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from softmax_jax.runtime.command_line import check_directory
from softmax_jax.runtime.locks import lock_directory, unlock

from softmax_jax import files
from softmax_jax.files import PARTIAL
from softmax_jax.training.run_directory import load_checkpoint
from tests.faults.processes import (
    SMALL,
    Script,
    SmallDisk,
    check_finished,
    check_whole,
    equal,
    leftovers,
    metrics_of,
    saved_steps,
    small_disk,
    states,
    train,
    train_options,
    wait_for,
)


@pytest.fixture(scope="module")
def expected():
    """The state after every chunk."""
    return states()


@pytest.fixture(scope="module")
def metrics(tmp_path_factory, expected):
    """The metrics of a run that nothing happens to."""
    path = tmp_path_factory.mktemp("whole")
    assert train(path / "run", path / "logs").status() == 0
    found = metrics_of(path / "run")
    assert found.count(b"\n") == SMALL.seeds * SMALL.steps // SMALL.chunk
    check_finished(path / "run", expected, found)
    return found


@pytest.fixture
def disk(tmp_path):
    """A small file system in memory; the test is skipped where none can be mounted."""
    for found in small_disk(tmp_path / "disk", "16m"):
        if not isinstance(found, SmallDisk):
            pytest.skip(f"no file system in memory: {found}")
        yield found


def one_line(script: Script, *words: str) -> None:
    """The script said one thing, and all the words are in it."""
    said = script.errors()
    assert said.count("\n") == 1, said
    for word in words:
        assert word in said


# Killed


@pytest.mark.full
@pytest.mark.parametrize("aim", [".orbax-checkpoint-tmp", PARTIAL, f".old{PARTIAL}"])
def test_a_run_killed_while_it_writes_a_checkpoint_or_drops_one(aim, tmp_path, expected, metrics):
    workdir = tmp_path / "run"
    script = train(workdir, tmp_path / "logs")
    aimed = wait_for(lambda: list((workdir / "checkpoints").glob(f"*{aim}")), script)
    script.send(signal.SIGKILL)
    assert script.status() in ((-signal.SIGKILL,) if aimed else (-signal.SIGKILL, 0))
    check_whole(workdir, expected, metrics)
    assert train(workdir, tmp_path / "logs").status() == 0
    check_finished(workdir, expected, metrics)


@pytest.mark.full
@pytest.mark.parametrize("seed", [0])
def test_a_run_killed_again_and_again_before_one_of_its_file_operations(seed, tmp_path, expected, metrics):
    killed_before_random_operations(random.Random(seed), 4, tmp_path, expected, metrics)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_fifty_kills_before_file_operations(seed, tmp_path, expected, metrics):
    killed_before_random_operations(random.Random(seed), 5, tmp_path, expected, metrics)


def killed_before_random_operations(draw, kills, path, expected, metrics):
    for _ in range(kills):
        script = train(path / "run", path / "logs", kill_at=draw.randrange(1, 60))
        assert script.status() == -signal.SIGKILL
        check_whole(path / "run", expected, metrics)
    assert train(path / "run", path / "logs").status() == 0
    check_finished(path / "run", expected, metrics)


@pytest.mark.slow
def test_a_run_killed_before_every_one_of_its_file_operations(tmp_path, expected, metrics):
    """A run of its own for each, of three checkpoints, killed and continued once."""
    config = dataclasses.replace(SMALL, steps=12)
    expected = {step: state for step, state in expected.items() if step <= config.steps}
    metrics = b"".join(metrics.splitlines(keepends=True)[: config.seeds * config.steps // config.chunk])
    count = 1
    while status := train(workdir := tmp_path / str(count), tmp_path / "logs", config, kill_at=count).status():
        assert status == -signal.SIGKILL
        check_whole(workdir, expected, metrics)
        assert train(workdir, tmp_path / "logs", config).status() == 0
        check_finished(workdir, expected, metrics)
        count += 1
    assert count > 50
    print(f"killed before each of {count - 1} file operations")


# Asked to stop


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_asked_to_stop_leaves_a_checkpoint_and_says_where_it_stopped(number, tmp_path, expected, metrics):
    workdir = tmp_path / "run"
    script = train(workdir, tmp_path / "logs", pause=0.05)
    assert wait_for((workdir / "metrics.jsonl").exists, script)
    script.send(number)
    assert script.status() == 130
    check_whole(workdir, expected, metrics)
    reached = saved_steps(workdir)[-1]
    assert 0 < reached < SMALL.steps
    assert metrics_of(workdir).count(b"\n") == SMALL.seeds * reached // SMALL.chunk
    one_line(script, f"stopped at step {reached}; the same command continues {workdir}")
    assert not leftovers(workdir)
    assert train(workdir, tmp_path / "logs").status() == 0
    check_finished(workdir, expected, metrics)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_asked_to_stop_at_random_moments(number, tmp_path, expected, metrics):
    """Each asks once, after a random time from the first chunk on; the last run is left alone."""
    draw = random.Random(number)
    for index in range(10):
        asked_to_stop_after(draw.uniform(0, 0.8), number, tmp_path / str(index), expected, metrics)


def asked_to_stop_after(seconds, number, path, expected, metrics):
    path.mkdir()
    script = train(path / "run", path / "logs", pause=0.02)
    assert wait_for((path / "run" / "metrics.jsonl").exists, script)
    time.sleep(seconds)
    script.send(number)
    assert script.status() in (130, 0)
    check_whole(path / "run", expected, metrics)
    assert not leftovers(path)
    assert train(path / "run", path / "logs").status() == 0
    check_finished(path / "run", expected, metrics)


@pytest.mark.full
def test_a_second_ctrl_c_stops_at_once(tmp_path, expected, metrics):
    workdir = tmp_path / "run"
    script = train(workdir, tmp_path / "logs", pause=0.2)
    assert wait_for((workdir / "metrics.jsonl").exists, script)
    script.send(signal.SIGINT)
    assert wait_for(lambda: "Ctrl-C again" in (tmp_path / "logs" / "stdout").read_text(), script)
    script.send(signal.SIGINT)
    assert script.status() == 130
    assert metrics_of(workdir).count(b"\n") < SMALL.seeds * SMALL.steps // SMALL.chunk
    one_line(script, "stopped at", f"at step {saved_steps(workdir)[-1]}", f"the same command continues {workdir}")
    assert train(workdir, tmp_path / "logs").status() == 0
    check_finished(workdir, expected, metrics)


# Out of disk


LIMITS = (20, 200, 700, 1500, 4000)
"""Bytes that a file may have: too few in turn for the lock, the settings, the metrics and checkpoints."""


@pytest.mark.full
def test_a_run_whose_files_may_not_grow_says_so_and_continues_when_they_may(tmp_path, expected, metrics):
    workdir = tmp_path / "run"
    for limit in LIMITS:
        script = train(workdir, tmp_path / "logs", largest_file=limit)
        assert script.status() == 2, limit
        one_line(script, "cannot be written: File too large; raise the limit", str(workdir))
        assert not leftovers(workdir)
        check_whole(workdir, expected, metrics)
    assert train(workdir, tmp_path / "logs").status() == 0
    check_finished(workdir, expected, metrics)


def run_out_of_disk(disk, blocks, path, expected, metrics):
    """Starts a run again and again, each time with the disk all but full; the refusals on the way."""
    workdir, refusals = disk.path / "run", set()
    for free in blocks:
        disk.leave(free)
        script = train(workdir, path / "logs")
        status = script.status()
        disk.clear()
        assert not leftovers(disk.path)
        check_whole(workdir, expected, metrics)
        if status == 0:
            break
        assert status == 2, (free, script.errors())
        one_line(script, "No space left on device; free some and repeat the command", str(workdir))
        refusals.add(script.errors().split(" cannot")[0].split("/")[-1])
    assert train(workdir, path / "logs").status() == 0
    check_finished(workdir, expected, metrics)
    return refusals


@pytest.mark.full
def test_a_run_on_a_full_disk_says_so_and_continues_when_there_is_room(disk, tmp_path, expected, metrics):
    assert len(run_out_of_disk(disk, (0, 2, 6, 20), tmp_path, expected, metrics)) >= 2


@pytest.mark.slow
def test_a_run_on_a_disk_with_any_number_of_free_blocks(disk, tmp_path, expected, metrics):
    """As one run that is continued with ever more room, and as a fresh run for each."""
    refused = run_out_of_disk(disk, range(200), tmp_path, expected, metrics)
    print(f"refused to write {sorted(refused)}")
    assert {"run", "config.json", "4"} <= refused
    for free in range(0, 200, 5):
        for path in sorted(disk.path.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        if not run_out_of_disk(disk, (free,), tmp_path, expected, metrics):
            break


# A directory that cannot be written


@pytest.mark.full
def test_a_read_only_disk_is_refused_before_anything_is_computed(disk, tmp_path):
    (disk.path / "before").mkdir()
    disk.make_read_only()
    for workdir in (disk.path / "new" / "run", disk.path / "before"):
        script = train(workdir, tmp_path / "logs")
        assert script.status() == 2
        one_line(script, f"--workdir is {workdir}", "must be a directory to write to", "name another")
    for name in ("evaluate.py", "fit_temperature.py", "report.py", "shootout.py"):
        script = Script(name, ["--output", str(disk.path / "before")], tmp_path / "logs")
        assert script.status() == 2
        one_line(script, f"--output is {disk.path / 'before'}", "must be a directory to write to", "name another")
    assert [path.name for path in disk.path.iterdir()] == ["before"]


def test_a_directory_that_cannot_be_made_is_named_with_its_option(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=rf"--output is {tmp_path}/file/out: .* Not a directory"):
        check_directory("--output", tmp_path / "file" / "out")
    check_directory("--output", tmp_path / "deep" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_directory_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(ValueError, match="Permission denied; choose a directory that you may write to"):
        check_directory("--output", tmp_path / "out")


# Two runs in one directory


@pytest.mark.full
def test_a_second_run_in_a_directory_is_refused_and_a_dead_one_is_not_in_the_way(tmp_path, expected, metrics):
    workdir = tmp_path / "run"
    first = train(workdir, tmp_path / "first", pause=0.5)
    assert wait_for((workdir / "metrics.jsonl").exists, first)
    before = metrics_of(workdir)
    second = train(workdir, tmp_path / "second")
    assert second.status() == 2
    one_line(second, f"{workdir} is in use by process {first.pid} on {os.uname().nodename} since 20", "--workdir")
    assert metrics_of(workdir).startswith(before)
    first.send(signal.SIGKILL)
    assert first.status() == -signal.SIGKILL
    assert f"process {first.pid} " in (tmp_path / ".run.lock").read_text()
    assert train(workdir, tmp_path / "second").status() == 0
    check_finished(workdir, expected, metrics)


def test_a_lock_keeps_others_out_until_it_is_released(tmp_path):
    lock = lock_directory(tmp_path)
    with pytest.raises(ValueError, match=rf"in use by process {os.getpid()} on .* since .*another --workdir"):
        lock_directory(tmp_path)
    unlock(lock)
    unlock(lock)
    unlock(lock_directory(tmp_path))


# Files


@contextlib.contextmanager
def largest_file(size):
    """No file of this process may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_the_disk_takes_a_part_of_stays_as_it_was(tmp_path):
    path = tmp_path / "file"
    files.write_whole(path, "old\n")
    new = "a line of the new\n" * 5
    for write in (files.write_whole, files.append_whole):
        for size in range(len(new)):
            with largest_file(size), pytest.raises(OSError, match=rf"{path} cannot be written: File too large"):
                write(path, new)
            assert path.read_text() == "old\n"
            assert list(tmp_path.iterdir()) == [path]
    files.append_whole(path, new)
    assert path.read_text() == "old\n" + new
    files.write_whole(path, new)
    assert path.read_text() == new


@pytest.mark.full
def test_leftovers_of_a_file_are_deleted_when_it_is_written(tmp_path):
    (tmp_path / f".table.csv.12345678{PARTIAL}").write_text("normalizer,n")
    others = {tmp_path / ".table.csv.12345678", tmp_path / f".page.html.12345678{PARTIAL}"}
    for path in others:
        path.write_text("somebody else's")
    files.write_whole(tmp_path / "table.csv", "whole")
    assert set(tmp_path.iterdir()) == {tmp_path / "table.csv", *others}


@pytest.mark.full
def test_a_file_that_another_process_took_for_a_leftover_is_written_again(tmp_path, monkeypatch):
    replace, made = os.replace, []

    def late(partial, path):
        made.append(partial)
        if len(made) == 1:
            partial.unlink()
        replace(partial, path)

    monkeypatch.setattr(files.os, "replace", late)
    files.write_whole(tmp_path / "file", "whole")
    assert len(made) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


ROOT = Path(__file__).parents[2]
WRITERS = ("open(", ".write_text(", ".write_bytes(", ".savefig(", ".save(", "np.save", "to_csv(")
WHOLE = ("fit.save(path)", "directory.save(step, state)", "ocp.save(path, tree)")
"""A fit, by `write_json`; a checkpoint, by Orbax."""


def test_nothing_is_written_but_by_the_functions_that_write_whole_files():
    sources = [*ROOT.glob("*.py"), *(ROOT / "softmax_jax").rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sources
        for line in path.read_text().splitlines()
        if any(word in line for word in WRITERS) and path.name not in ("files.py", "locks.py", "conftest.py")
    ]
    assert [line for line in found if not any(whole in line for whole in WHOLE)] == []
    assert all(any(whole in line for line in found) for whole in WHOLE)


# The scripts as a user runs them


LONG = dataclasses.replace(SMALL, steps=600)
"""A run of 150 checkpoints."""


def start_train(path, cache):
    """A new Python with `train.py`, nothing of it replaced."""
    command = [sys.executable, ROOT / "train.py", *train_options(path / "run", LONG)[:-1], "--compilation-cache", cache]
    with (path / "stdout").open("w") as out, (path / "stderr").open("w") as error:
        return subprocess.Popen(command, stdout=out, stderr=error)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run of `train.py` that nothing happens to, and its cache of compiled programs."""
    path = tmp_path_factory.mktemp("undisturbed")
    assert start_train(path, path / "cache").wait(600) == 0
    return path


def kill_train(path, cache, draw):
    """Kills the script while it writes a checkpoint, or after a random time from its start or its first chunk on."""
    before, process = metrics_of(path / "run"), start_train(path, cache)
    aim = draw.choice(["checkpoint", "checkpoint", "start", "chunk"])
    end = time.monotonic() + 600
    while process.poll() is None and aim != "start" and time.monotonic() < end:
        if metrics_of(path / "run") > before and (aim == "chunk" or leftovers(path / "run" / "checkpoints")):
            break
        time.sleep(0.0005)
    time.sleep({"checkpoint": 0.0, "start": draw.uniform(0, 4), "chunk": draw.uniform(0, 0.5)}[aim])
    process.kill()
    assert process.wait(600) == -signal.SIGKILL, (path / "stderr").read_text()
    return aim


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_train_py_killed_fifty_times_ends_with_the_same_bits(seed, tmp_path, undisturbed):
    """Ten times per seed."""
    draw, (_, parameters) = random.Random(seed), load_checkpoint(undisturbed / "run")
    metrics = metrics_of(undisturbed / "run")
    for _ in range(10):
        aim = kill_train(tmp_path, undisturbed / "cache", draw)
        found = metrics_of(tmp_path / "run")
        print(f"{aim}: {len(found.splitlines()) // 2} chunks, {[path.name for path in leftovers(tmp_path / 'run')]}")
        assert metrics.startswith(found)
        if saved_steps(tmp_path / "run"):
            load_checkpoint(tmp_path / "run")
    assert start_train(tmp_path, undisturbed / "cache").wait(600) == 0
    assert equal(load_checkpoint(tmp_path / "run")[1], parameters)
    assert metrics_of(tmp_path / "run") == metrics
    assert not leftovers(tmp_path / "run")


SCRIPTS = {
    "evaluate.py": ["--lengths", "4", "16", "--sets", "8", "--normalizers", "softmax"],
    "fit_temperature.py": ["--lengths", "8", "16", "256", "--sets", "8", "--degree", "1"],
    "report.py": ["--lengths", "16", "--sets", "8", "--normalizers", "softmax", "hardmax"],
    "shootout.py": [
        *("--length", "8", "--hidden", "8", "--heads", "2", "--epochs", "1", "--seeds", "1"),
        *("--normalizers", "softmax"),
    ],
}


def places(name, output):
    """The options that say where a script writes."""
    return ["--output", str(output), *(["--workdir", str(output / "runs")] * (name == "shootout.py"))]


ENDS = {".svg": b"</svg>", ".png": b"IEND\xaeB`\x82", ".html": b"</html>"}


def whole_files(output):
    """The files that a reader sees, each of which is whole, with the rows of the tables."""
    found = {}
    for path in output.rglob("*"):
        name, data = path.relative_to(output), path.read_bytes() if path.is_file() else b""
        if path.is_dir() or path.name.startswith(".") or name.parts[0] == "runs":  # which has promises of its own
            continue
        if path.suffix == ".json":
            json.loads(data)
        elif path.suffix == ".csv":
            assert data.endswith(b"\n")
        else:
            assert data.rstrip().endswith(ENDS[path.suffix]), name
        found[str(name)] = data.count(b"\n") if path.suffix == ".csv" else 0
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_killed_while_it_writes_leaves_whole_files_alone(name, tmp_path):
    arguments = [*SCRIPTS[name], *places(name, tmp_path / "out")]
    assert Script(name, arguments, tmp_path / "logs").status() == 0
    complete, draw = whole_files(tmp_path / "out"), random.Random(name)
    shutil.rmtree(tmp_path / "out")
    for _ in range(4):
        script = Script(name, arguments, tmp_path / "logs", kill_at=draw.randrange(1, 3 * len(complete)))
        assert script.status() in (-signal.SIGKILL, 0)
        left = whole_files(tmp_path / "out")
        print(f"{len(left)} of {len(complete)} files, {[path.name for path in leftovers(tmp_path / 'out')]}")
        assert left.items() <= complete.items()
    assert Script(name, arguments, tmp_path / "logs").status() == 0
    assert whole_files(tmp_path / "out") == complete
    assert not leftovers(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_on_a_full_disk_says_so_and_leaves_whole_files_alone(name, disk, tmp_path):
    arguments, status = [*SCRIPTS[name], *places(name, disk.path / "out")], 2
    for free in (0, 3, 20):
        disk.leave(free)
        script = Script(name, arguments, tmp_path / "logs")
        status = script.status()
        disk.clear()
        whole_files(disk.path / "out")
        assert not leftovers(disk.path)
        last = script.errors().splitlines()[-1]
        assert status == 2, last
        assert last.startswith("error: ")
        assert "cannot be written: No space left on device; free some and repeat the command" in last
        assert "Traceback" not in script.errors()
    assert Script(name, arguments, tmp_path / "logs").status() == 0
