"""A run on disk: config.json, versions.json, metrics.jsonl and Orbax checkpoints, all written to survive a crash."""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from filelock import FileLock, Timeout

from softmax_jax.experiment import REPOSITORY, program
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.published import from_bytes
from softmax_jax.experiment.training import distributed
from softmax_jax.experiment.training.checkpoint import (
    PARAMETERS,
    STEPS,
    check_coding,
    check_name,
    drop_older_checkpoints,
    read_arrays,
    require_finite,
    step_checkpoints,
    verify,
    write_checkpoint,
)
from softmax_jax.experiment.training.config import Config, no_config, read_config, settings_of
from softmax_jax.experiment.training.optimizers import build_schedule
from softmax_jax.experiment.training.run import Parameters, Run, TrainState, build_run
from softmax_jax.files import (
    append_lines,
    exists,
    make_directory,
    problem,
    read_bytes,
    read_text,
    remove_directory,
    remove_unfinished,
    versions,
    write_json,
    write_whole,
)
from softmax_jax.refusal import NotFiniteError, Refusal

SHIPPED = (REPOSITORY or Path()) / "checkpoints"
"""The trained models that come with the repository: the run of a preset under its name. The installed package lacks
them and looks for them in the working directory."""
METRICS = "metrics.jsonl"
"""The file of a run with a line for each seed and chunk."""
LARGEST_METRICS = 2**30
"""The most bytes of a metrics.jsonl."""
LARGEST_MODEL = 2**28
"""The most bytes of a Flax msgpack file."""


class Chunk(NamedTuple):
    """A chunk of training: the step it reached, the state there, and a line of metrics for each seed."""

    step: int
    state: TrainState
    lines: list[dict[str, Any]]


class RunDirectory:
    """The files of one training run; opening a directory that holds a run continues it.

    Of several processes all open it and record together, and the first writes what is written once. One run at a time
    is in a directory: until `close`, or the end of the process, nobody else opens it. A run with fewer steps is
    extended to those of the settings.

    Raises Refusal if the directory is in use, holds a run of other settings, cannot be written, or is not the same one
    for all processes; so do saving and logging where the disk is full.
    """

    def __init__(self, run: Run, path: Path | str):
        self.run = run
        self.path = Path(path).absolute()
        self.settings = settings_of(run.config)
        self._lock = FileLock(self.path / ".lock", blocking=False)
        self._saved: int | None = None
        distributed.agree(self._begin() if distributed.is_leader() else None)
        shared = (self.path / "config.json").exists()
        distributed.agree(None if shared else f"{self.path} must be a directory that all processes share")

    def _begin(self) -> str | None:
        """Takes the lock and writes the first files of a run. Returns the problem, if there is one, in words."""
        try:
            check_name(self.path)
            make_directory(self.path / STEPS)
            self._take_lock()
            if (self.path / "config.json").exists():
                stored, trained = read_config(self.path), self.path / PARAMETERS
                _require_same(self.path, stored, self.run.config)
                if trained.exists() and not step_checkpoints(self.path):
                    raise Refusal(f"{self.path} holds a finished run without its checkpoints: choose another --workdir")
                if trained.exists() and stored.steps < self.run.config.steps:
                    remove_directory(trained)  # of a run that is not finished any more
            remove_unfinished(self.path)
            remove_unfinished(self.path / STEPS)
            write_json(self.path / "config.json", self.settings)
            if not (self.path / "versions.json").exists():  # a finished run keeps the versions that trained it
                write_json(self.path / "versions.json", versions())
        except Refusal as refusal:
            self.close()
            return str(refusal)
        return None

    def _take_lock(self) -> None:
        try:
            self._lock.acquire()
        except Timeout:
            raise Refusal(f"{self.path} is in use by another run: let it end, or choose another --workdir") from None
        except OSError as error:
            raise Refusal(f"{self.path} cannot be locked: {problem(error)}: choose another --workdir") from error

    def record(self, chunks: Callable[[int, TrainState], Iterator[Chunk]]) -> tuple[int, TrainState]:
        """Writes what a training yields, and closes the directory.

        `chunks` trains from a step and its state. Every chunk is logged, every so many are saved, and so is the last
        good state however the training ends. Returns the step reached and the state there.
        """
        try:
            step, state = self.resume()
            between = self.run.config.chunk * self.run.config.chunks_per_checkpoint
            try:
                for chunk in chunks(step, state):
                    step, state = chunk.step, chunk.state
                    self.log(chunk.lines)
                    if step % between == 0:
                        self.save(step, state)
            except NotFiniteError:
                self.save(step, state)
                raise
            self.save(step, state)
            if step == self.run.config.steps:
                self.finish(state)
            return step, state
        finally:
            self.close()

    def resume(self) -> tuple[int, TrainState]:
        """Returns the steps done and the state after them, from the newest checkpoint; a fresh start if there is none.

        Raises Refusal if that checkpoint is damaged.
        """
        newest = step_checkpoints(self.path)[:1]
        if newest:
            step = self._saved = int(newest[0].name)
            arrays = read_checkpoint(self.path, newest[0], self.run.config, self.run.shapes)
            state = distributed.placed(arrays, self.run.sharding)
        else:
            step, state = 0, first_state(self.run)
        if distributed.is_leader():
            self._drop_metrics_after(step)
        return step, state

    def save(self, step: int, state: TrainState) -> None:
        """Saves the state after `step` steps, unless that is saved already, and drops all but the newest two."""
        if step != self._saved:
            write_checkpoint(self.path / STEPS / str(step), state, self.settings)
            self._saved = step
        if distributed.is_leader():  # also of a step saved before: the process may have been killed at this line
            drop_older_checkpoints(self.path)

    def finish(self, state: TrainState) -> None:
        """Writes the trained parameters by themselves, which is all that an evaluation needs."""
        if not (self.path / PARAMETERS).exists():
            write_checkpoint(self.path / PARAMETERS, state.parameters, self.settings)

    def log(self, lines: list[dict[str, Any]]) -> None:
        """Appends lines of metrics."""
        if distributed.is_leader():
            append_lines(self.path / METRICS, map(json.dumps, lines))

    def _drop_metrics_after(self, step: int) -> None:
        """Drops the lines that a resumed run will write again, and any that a crash cut short."""
        path = self.path / METRICS
        if path.exists():
            lines = (line for line in read_metrics(self.path) if line["step"] <= step)
            write_whole(path, "".join(json.dumps(line) + "\n" for line in lines))

    def close(self) -> None:
        """Lets others open the directory."""
        self._lock.release()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Returns the lines of metrics of a run, less one that a crash cut short.

    Raises Refusal, in one line, for a file that holds anything else.
    """
    path, lines = run / METRICS, []
    for number, text in enumerate(read_text(path, limit=LARGEST_METRICS).splitlines(keepends=True), 1):
        if not text.endswith("}\n"):
            continue
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not (isinstance(line, dict) and all(type(line.get(key)) is int for key in ("step", "seed"))):
            problem = f"line {number} holds no metrics of a step and a seed"
            raise Refusal(f"{path} is damaged: {problem}: remove that file, or restore it from a copy")
        lines.append(line)
    return lines


def _require_same(path: Path, stored: Config, config: Config) -> None:
    """Raises Refusal unless a stored run continues under these settings: its own, or more steps at the same rates.

    Where a schedule spreads over the steps, more of them would have changed the first learning rates.
    """
    longer = dataclasses.replace(stored, steps=max(stored.steps, config.steps))
    if changes := differences(settings_of(longer), settings_of(config)):
        raise Refusal(f"{path} holds a run with {changes}. Choose another directory, or repeat its settings")
    if stored.steps == config.steps:
        return
    steps = np.arange(stored.steps)
    with jax.numpy_dtype_promotion("standard"):  # as in training
        rates, longer_rates = (jax.vmap(build_schedule(settings))(steps) for settings in (stored, longer))
    if not np.array_equal(rates, longer_rates):
        raise Refusal(
            f"{path} holds a run of {stored.steps} steps, not {config.steps}, by which its learning rates would have "
            f"been others ({stored.schedule}). Choose another directory, or give --steps {stored.steps}"
        )


def differences(stored: dict[str, Any], settings: dict[str, Any]) -> str:
    """Returns what differs between two settings, in words.

    >>> differences({"width": 8, "steps": 10}, {"width": 16, "steps": 10})
    'width=8, not 16'
    """
    names = [name for name in dict.fromkeys([*settings, *stored]) if stored.get(name) != settings.get(name)]
    return "; ".join(f"{name}={stored.get(name)}, not {settings.get(name)}" for name in names)


def first_state(run: Run) -> TrainState:
    """Returns parameters and optimizer state of every seed before the first step, random or those of another run."""
    state = run.initial_state()
    if not run.config.start_from:
        return state
    start, trained = load_checkpoint(run.config.start_from)
    leaves = dict(jax.tree_util.tree_leaves_with_path(trained))
    rows = np.array([start.all_seeds.index(seed) for seed in run.config.all_seeds])

    def trained_or_random(path: Any, random: jax.Array) -> jax.Array:
        return distributed.placed(np.asarray(leaves[path])[rows], run.sharding) if path in leaves else random

    parameters = jax.tree_util.tree_map_with_path(trained_or_random, state.parameters)
    optimizer = jax.jit(jax.vmap(run.optimizer.init), out_shardings=run.sharding)(parameters)
    return TrainState(parameters, optimizer, state.seed)


def read_checkpoint(run: Path, path: Path, config: Config, shapes: Any) -> Any:
    """Returns the arrays of a run's checkpoint, whole on this process's first device.

    Arguments:
        run: The directory of the run.
        path: The checkpoint in it.
        config: The settings of the run.
        shapes: Names, shapes and types of the arrays.

    Raises:
        Refusal: in one line, unless every file is as it was written, for a run of these settings.
    """
    verify(path, shapes)
    _require_same(path, read_config(path, run), config)
    return read_arrays(path, shapes)


def load_checkpoint(path: Path | str) -> tuple[Config, Parameters]:
    """Returns settings and parameters of a run, finished or not, or of a Flax msgpack file, with a leading seed axis.

    Parameters of an unfinished run are from its newest checkpoint, and a line on stderr says so. A msgpack file holds
    one model of max retrieval. Raises Refusal, in one line, for damage and for anything else.
    """
    path = Path(path)
    if not exists(path):
        absent = "the trained models come with the repository, not with the package: run this there, or "
        remedy = f"name the directory of a run, as runs/quick after {program('train')} quick, or a Flax msgpack file"
        raise Refusal(f"{path} does not exist: {absent * (path.parent == SHIPPED)}{remedy}")
    if path.is_file():
        content = read_bytes(path, limit=LARGEST_MODEL)
        try:
            parameters = jax.tree.map(lambda leaf: leaf[None], from_bytes(content))
        except Refusal as refusal:
            raise Refusal(f"{path}: {refusal}") from None
        return Config(MaxRetrieval(width=parameters["item_in"]["bias"].shape[-1])), parameters
    check_coding(path)
    path = path.absolute()
    config = read_config(path)
    try:
        shapes = build_run(config).shapes
    except Refusal as refusal:  # of normalizer, optimizer or schedule, which nobody typed
        raise no_config(path / "config.json", refusal) from None
    trained, newest = path / PARAMETERS, step_checkpoints(path)[:1]
    if trained.exists():
        checkpoint, parameters = trained, read_checkpoint(path, trained, config, shapes.parameters)
    elif newest:
        if distributed.is_leader():
            step = f"step {newest[0].name} of {config.steps}"
            print(f"warning: {path} is not trained to its end: this is {step}", file=sys.stderr)
        checkpoint, parameters = newest[0], read_checkpoint(path, newest[0], config, shapes).parameters
    else:
        raise Refusal(f"{path} has no checkpoint yet: let train.py reach its first one")
    require_finite(checkpoint, parameters)
    return config, parameters
