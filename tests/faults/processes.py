"""Scripts of the project in processes to be killed, stopped and starved of disk.

`Script` forks one from a server that has imported everything, which takes a tenth of the time of a new Python. Its
training is real but for the arithmetic: `without_arithmetic` puts a line of numpy in the place of what JAX would have
to compile anew in every process.
"""

import json
import multiprocessing
import os
import re
import resource
import runpy
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp
from softmax_jax.runtime.checkpoints import step_checkpoints, verify

from softmax_jax.files import PARTIAL
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.tasks.task import option
from softmax_jax.training import run, run_directory
from softmax_jax.training.config import Config, settings_of
from softmax_jax.training.trainer import Metrics, TrainState

ROOT = Path(__file__).parents[2]
SMALL = Config(
    MaxRetrieval(sets=2, min_items=2, max_items=2, width=2), steps=24, seeds=2, chunk=2, chunks_per_checkpoint=2
)
"""A run of 12 chunks and 6 checkpoints."""
SETTINGS = ("steps", "seeds", "sets", "min_items", "max_items", "width", "chunk", "chunks_per_checkpoint")
FILE_OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
"""The events that Python's audit hooks are told of; TensorStore's own writes lie between them."""


def train_options(workdir: Path, config: Config = SMALL) -> list[str]:
    """The command line of a training run."""
    settings = [part for name in SETTINGS for part in (option(name), str(settings_of(config)[name]))]
    return ["quick", *settings, "--workdir", str(workdir), "--no-compilation-cache"]


class Script:
    """A script of the project in a process of its own, its output in `<logs>/stdout` and `<logs>/stderr`."""

    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__, "train", "evaluate", "fit_temperature", "report", "shootout"])

    def __init__(
        self,
        name: str,
        arguments: list[str],
        logs: Path,
        *,
        pause: float = 0.0,
        largest_file: int | None = None,
        kill_at: int | None = None,
    ):
        self.logs = logs
        logs.mkdir(exist_ok=True)
        streams = [logs / "stdout", logs / "stderr"]
        for stream in streams:
            stream.unlink(missing_ok=True)
        self._pipes = [] if largest_file is None else [_pipe(stream) for stream in streams]
        options = (name, arguments, str(logs), pause, largest_file, kill_at)
        self.process: ForkServerProcess = self.server.Process(target=_run_script, args=options)
        self.process.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self.process.pid is not None
        return self.process.pid

    def send(self, number: int) -> None:
        """A signal, if the process is still there."""
        if self.process.is_alive():
            os.kill(self.pid, number)

    def status(self) -> int:
        """How it ended: its exit status, or the number of the signal that killed it with a minus."""
        self.process.join(600)
        assert self.process.exitcode is not None, "it hangs"
        return self.process.exitcode

    def errors(self) -> str:
        """What it wrote to stderr."""
        if not self._pipes:
            return (self.logs / "stderr").read_text()
        said = [os.read(pipe, 2**16).decode() for pipe in self._pipes if select.select([pipe], [], [], 0)[0]]
        for pipe in self._pipes:
            os.close(pipe)
        return said[-1]


def _pipe(path: Path) -> int:
    """Where a process writes that may write no file; it stands open here."""
    os.mkfifo(path)
    return os.open(path, os.O_RDWR)


def _run_script(
    name: str, arguments: list[str], logs: str, pause: float, largest_file: int | None, kill_at: int | None
) -> None:
    for number, stream in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{logs}/{stream}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    if name == "train.py":
        without_arithmetic(pause)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    if kill_at is not None:
        _kill_at(kill_at, arguments[arguments.index("--output" if "--output" in arguments else "--workdir") + 1])
    os.chdir(logs)
    sys.argv = [name, *arguments]
    runpy.run_path(str(ROOT / name), run_name="__main__")


def _kill_at(count: int, directory: str) -> None:
    """Kills this process in front of its so-manieth operation on a file of the directory."""
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in FILE_OPERATIONS and any(str(some).startswith(directory) for some in arguments[:2]):
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def without_arithmetic(pause: float = 0.0) -> None:
    """Puts numpy in the place of JAX where a run trains; each chunk takes `pause` seconds."""

    def chunk_trainer(config: Config) -> Callable[[TrainState, int, int], tuple[TrainState, Metrics]]:
        def train_chunk(state: TrainState, step: int, steps: int) -> tuple[TrainState, Metrics]:
            time.sleep(pause)
            return next_state(state, step + steps)

        return train_chunk

    run.chunk_trainer = chunk_trainer
    run_directory.initial_state = first_state
    run_directory.state_sharding = lambda config: jax.tree.map(lambda leaf: leaf.sharding, first_state(config))


def first_state(config: Config) -> TrainState:
    """Two arrays per seed, one of them of some size."""
    numbers = np.arange(config.seeds * 4000, dtype=np.float32).reshape(config.seeds, -1)
    state = TrainState({"numbers": numbers}, {"sum": numbers[:, :4]}, np.arange(config.seeds, dtype=np.int32))  # pyright: ignore[reportArgumentType]
    return jax.device_put(state)


def next_state(state: TrainState, step: int) -> tuple[TrainState, Metrics]:
    """The state after `step` steps from the one a chunk before: no step can be left out or done twice unseen."""
    numbers = np.cos(np.asarray(state.parameters["numbers"]) + np.float32(step))
    total = np.asarray(state.optimizer["sum"]) / 2 + numbers[:, :4]  # pyright: ignore[reportIndexIssue,reportCallIssue,reportArgumentType]
    loss, cross_entropy, accuracy, _ = total.T
    metrics = Metrics(loss, cross_entropy, accuracy, np.full(len(numbers), -1, np.int32))  # pyright: ignore[reportArgumentType]
    return jax.device_put((TrainState({"numbers": numbers}, {"sum": total}, state.seed), metrics))


def states(config: Config = SMALL) -> dict[int, TrainState]:
    """The state after every chunk of a run that is never stopped."""
    found = {0: first_state(config)}
    for step in range(config.chunk, config.steps + 1, config.chunk):
        found[step] = next_state(found[step - config.chunk], step)[0]
    return found


def train(workdir: Path, logs: Path, config: Config = SMALL, **faults: Any) -> Script:
    """`train.py` on the small run, or another."""
    return Script("train.py", train_options(workdir, config), logs, **faults)


def equal(a: Any, b: Any) -> bool:
    """Whether two trees hold the same bits."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def load(path: Path, like: Any) -> Any:
    """The arrays of a checkpoint."""
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return ocp.load(path, jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), like))  # pyright: ignore[reportArgumentType]


def metrics_of(workdir: Path) -> bytes:
    """The metrics of a run, without the rates, which are the clock's."""
    path = workdir / "metrics.jsonl"
    return re.sub(rb'("steps_per_second": )[\d.e+]+', rb"\1-", path.read_bytes()) if path.exists() else b""


def check_whole(workdir: Path, expected: dict[int, TrainState], metrics: bytes) -> None:
    """Everything that a reader could open in a run's directory is whole and right, at whatever moment it was killed."""
    if (workdir / "config.json").exists():
        run_directory.read_config(workdir)
    if (workdir / "versions.json").exists():
        json.loads((workdir / "versions.json").read_text())
    assert metrics.startswith(metrics_of(workdir))
    for step in saved_steps(workdir):
        verify(workdir / "checkpoints" / str(step))
        assert equal(load(workdir / "checkpoints" / str(step), expected[step]), expected[step]), step
    if (workdir / "parameters").exists():
        parameters = expected[max(expected)].parameters
        assert equal(load(workdir / "parameters", parameters), parameters)


def check_finished(workdir: Path, expected: dict[int, TrainState], metrics: bytes) -> None:
    """The directory is that of a run which was never stopped: the same bits, and no file more or less."""
    check_whole(workdir, expected, metrics)
    assert metrics_of(workdir) == metrics
    names = {"config.json", "versions.json", "metrics.jsonl", "parameters", "checkpoints"}
    assert {path.name for path in workdir.iterdir()} == names
    assert saved_steps(workdir) == sorted(expected)[-3::2]
    assert len(list((workdir / "checkpoints").iterdir())) == 2


def saved_steps(workdir: Path) -> list[int]:
    """The steps after which a run has been saved, in order."""
    return sorted(int(path.name) for path in step_checkpoints(workdir))


def leftovers(directory: Path) -> list[Path]:
    """Files and directories that are not whole, by their names."""
    return [path for path in directory.rglob("*") if PARTIAL in path.name]


def wait_for(condition: Callable[[], Any], process: Script, seconds: float = 600.0) -> bool:
    """Whether the condition came true before the process ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        if not process.process.is_alive():
            return False
        time.sleep(0.0005)
    raise TimeoutError


class SmallDisk:
    """A file system in memory of a fixed size."""

    def __init__(self, path: Path):
        self.path = path

    def leave(self, free: int) -> None:
        """Fills it up to so many free blocks."""
        self.clear()
        state = os.statvfs(self.path)
        (self.path / "filler").write_bytes(b"x" * state.f_bsize * max(state.f_bavail - free, 0))

    def clear(self) -> None:
        """Frees what was filled."""
        (self.path / "filler").unlink(missing_ok=True)

    def make_read_only(self) -> None:
        """Until it is gone."""
        _mount("-o", "remount,ro", self.path)


def small_disk(path: Path, size: str = "2m") -> Iterator[SmallDisk | str]:
    """Mounts one at a new directory and takes it away again; why not, where that is not allowed."""
    path.mkdir()
    problem = _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", path)
    yield problem or SmallDisk(path)
    if not problem:
        subprocess.run(["umount", "--lazy", path], check=True)


def _mount(*arguments: Any) -> str | None:
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return "there is no mount command"
    return done.stderr.strip() or None if done.returncode else None
