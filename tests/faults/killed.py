"""A small run in a process of its own, to be killed or starved of disk.

    python -m tests.faults.killed WORKDIR KILL BYTES

Kills itself in front of its file operation number KILL, and may write no file of more than BYTES; 0 is neither. Files,
lock and signals are the real ones. Arithmetic is not: a line of numpy stands for what JAX would have to compile.
"""

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from softmax_jax.experiment.commands.process import one_line_errors
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training import train
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.distributed import device_mesh
from softmax_jax.experiment.training.run import Run, TrainState
from softmax_jax.experiment.training.trainer import Metrics

TASK = MaxRetrieval(batch=2, min_items=2, max_items=2, width=2)
CONFIG = Config(TASK, steps=16, seeds=2, chunk=2, chunks_per_checkpoint=2)
"""A run of 8 chunks and 4 checkpoints."""
FILE_OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}
"""Events that Python's audit hooks hear; TensorStore's own writes lie between them."""


def first_state(seeds: Any) -> Any:
    """Two arrays per seed, one of them of some size."""
    numbers = np.arange(len(seeds) * 4000, dtype=np.float32).reshape(len(seeds), -1)
    state = {"numbers": numbers}, {"sum": numbers[:, :4]}, np.arange(len(seeds), dtype=np.int32)
    return jax.device_put(TrainState(*state))  # pyright: ignore[reportArgumentType]


def build_run(config: Config) -> Run:
    """What takes JAX no time to build."""
    shapes = jax.eval_shape(lambda: first_state(config.all_seeds))
    unused: Any = None
    return Run(config, unused, unused, unused, device_mesh(1), first_state, shapes)


def compiled_chunk(run: Run, state: Any, steps: int) -> Any:
    """No step can be left out or done twice unseen."""

    def chunk(state: Any, step: int) -> Any:
        numbers = np.cos(np.asarray(state.parameters["numbers"]) + np.float32(step))
        total = np.asarray(state.optimizer["sum"]) / 2 + numbers[:, :4]
        metrics: Any = Metrics(*total.T[:3], np.full(len(numbers), -1, np.int32))  # pyright: ignore[reportCallIssue]
        return jax.device_put((TrainState({"numbers": numbers}, {"sum": total}, state.seed), metrics))

    return chunk


def kill_at(count: int, directory: str) -> None:
    """Kills this process in front of an operation on a file of the directory."""
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in FILE_OPERATIONS and any(str(argument).startswith(directory) for argument in arguments[:2]):
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if __name__ == "__main__":
    workdir, kill, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    train.compiled_chunk, train.build_run = compiled_chunk, build_run
    if size:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    if kill:
        kill_at(kill, str(workdir))
    with one_line_errors():
        train.train(CONFIG, workdir, Console(quiet=True))
