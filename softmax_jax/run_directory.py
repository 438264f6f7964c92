"""A run on disk: config.json, versions.json, metrics.jsonl and Orbax checkpoints, all written to survive a crash."""

import contextlib
import dataclasses
import json
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from softmax_jax import distributed
from softmax_jax.config import Config
from softmax_jax.files import (
    append_whole,
    check_output,
    in_words,
    reason,
    remove_directory,
    remove_partials,
    versions,
    write_json,
    write_whole,
)
from softmax_jax.locks import DirectoryLock
from softmax_jax.tasks.flax_msgpack import from_bytes
from softmax_jax.training import Parameters, TrainState, build_model, initial_state

KEPT_CHECKPOINTS = 2
UNFINISHED = ".orbax-checkpoint-tmp"
"""The end of the name of a checkpoint that is being written: Orbax takes it away in one step once all is there."""


def read_config(directory: Path) -> Config:
    """The settings of the run in a directory. Raises ValueError if there is none or it cannot be read."""
    path = directory / "config.json"
    try:
        return Config(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise ValueError(f"{directory} holds no run (no config.json): name a directory that train.py made") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is not the config of a run: {error}") from None


class RunDirectory:
    """The files of one training run; opening a directory that holds a run continues it.

    Of several processes all open it, save and resume together, and the first alone writes the other files. A run
    continues on any number of devices and processes, one run at a time in a directory: until `close`, or the end of
    the process, nobody else opens it. Opening it deletes what a killed process left half written. Raises ValueError
    if the directory is in use, holds a run of other settings, cannot be written, or is not the same one for all
    processes; saving and logging raise OSError where the disk is full, and leave no part of what they were writing.
    """

    def __init__(self, path: Path, config: Config):
        self.path = path.absolute()
        self.config = config
        self._lock: DirectoryLock | None = None
        try:
            distributed.agree(self._other_settings() or (self._start() if distributed.is_leader() else None))
            distributed.agree(self._other_settings(required=True))
        except BaseException:
            self.close()
            raise
        self._saved = saved_steps(self.path)

    def _start(self) -> str | None:
        """Writes what a run begins with; what is wrong if that cannot be."""
        try:
            check_output(self.path, "--workdir")
            with in_words(self.path / "lock"):
                (self.path / "checkpoints").mkdir(parents=True, exist_ok=True)
                self._lock = DirectoryLock(self.path)
            if problem := self._other_settings():  # another run may have begun and ended since they were compared
                return problem
            self._remove_leftovers()
            write_json(self.path / "config.json", dataclasses.asdict(self.config))
            write_json(self.path / "versions.json", versions())
        except (OSError, ValueError) as error:
            return str(error)
        return None

    def _remove_leftovers(self) -> None:
        for directory in (self.path, self.path / "checkpoints"):
            remove_partials(directory)
            for unfinished in directory.glob(f"*{UNFINISHED}"):
                shutil.rmtree(unfinished, ignore_errors=True)

    def _other_settings(self, required: bool = False) -> str | None:
        """What is wrong with the settings in the directory; `required` if there must be some."""
        if not (self.path / "config.json").exists():
            unseen = f"{self.path} holds no config.json here: --workdir must be a directory that all processes share"
            return unseen if required else None
        try:
            old, new = dataclasses.asdict(read_config(self.path)), dataclasses.asdict(self.config)
        except ValueError as error:
            return str(error)
        changed = [f"{name} is {old[name]} there and {new[name]} here" for name in new if old[name] != new[name]]
        if not changed:
            return None
        return (
            f"{self.path} holds a run of other settings: {'; '.join(changed)}. "
            "Choose another --workdir, or repeat its settings to continue it"
        )

    def resume(self) -> tuple[int, TrainState]:
        """The steps done and the state after them, from the newest checkpoint; a fresh start if there is none."""
        state = initial_state(self.config)
        step = max(self._saved, default=0)
        if step:
            state = ocp.load(_checkpoint(self.path, step), jax.tree.map(_abstract, state))  # pyright: ignore[reportArgumentType]
        if distributed.is_leader():
            self._drop_metrics_after(step)
        return step, state

    def save(self, step: int, state: TrainState) -> None:
        """Saves the state after `step` steps, unless that is saved already, and drops all but the newest two."""
        if self._saved and max(self._saved) >= step:
            return
        _save(_checkpoint(self.path, step), state)
        self._saved.append(step)
        while len(self._saved) > KEPT_CHECKPOINTS:
            oldest = self._saved.pop(0)
            if distributed.is_leader():
                with contextlib.suppress(OSError):  # a checkpoint too many does no harm
                    remove_directory(_checkpoint(self.path, oldest))

    def finish(self, state: TrainState) -> None:
        """Writes the trained parameters by themselves, which is all that an evaluation needs."""
        if not (self.path / "parameters").exists():
            _save(self.path / "parameters", state.parameters)

    def log(self, lines: list[dict[str, Any]]) -> None:
        """Appends lines of metrics and leaves them on disk."""
        if distributed.is_leader():
            append_whole(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))

    def _drop_metrics_after(self, step: int) -> None:
        """Drops the lines that a resumed run will write again, and any that a crash cut short."""
        path = self.path / "metrics.jsonl"
        if path.exists():
            complete = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("}\n")]
            write_whole(path, "".join(line for line in complete if json.loads(line)["step"] <= step))

    def close(self) -> None:
        """Lets others open the directory."""
        if self._lock:
            self._lock.release()


def saved_steps(directory: Path) -> list[int]:
    """The steps after which the run in a directory has been saved, in order."""
    names = (path.name for path in (directory / "checkpoints").glob("*"))
    return sorted(int(name) for name in names if name.isdecimal())


def _checkpoint(directory: Path, step: int) -> Path:
    return directory / "checkpoints" / str(step)


def _save(path: Path, tree: Any) -> None:
    """Writes arrays as a checkpoint, whole or not at all. Raises OSError, in words for the user, if that cannot be."""
    with _silent_orbax():
        before = set(threading.enumerate())
        try:
            ocp.save(path, tree)  # pyright: ignore[reportArgumentType]
        except Exception as error:  # Orbax and TensorStore raise many types for a full disk.
            _wait_for(set(threading.enumerate()) - before)
            if distributed.is_leader():
                shutil.rmtree(path.with_name(path.name + UNFINISHED), ignore_errors=True)
            raise OSError(f"{path} cannot be written: {reason(error)}") from error


def _wait_for(threads: set[threading.Thread], seconds: float = 5.0) -> None:
    """Waits for threads of a save that failed, which go on writing beside the one that raised."""
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


@contextlib.contextmanager
def _silent_orbax() -> Iterator[None]:
    """Keeps the traceback of each of its threads out of the log: the exception itself is raised and says it once."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def load_parameters(directory: Path) -> tuple[Config, Parameters]:
    """Settings and parameters of a run, finished or not, with a leading seed axis.

    Raises ValueError, in one line, if the directory holds no run, no checkpoint yet, or a damaged one.
    """
    directory = directory.absolute()
    config = read_config(directory)
    _, initialize = build_model(config.width)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), config.seeds))
    parameters = jax.tree.map(_abstract_here, jax.eval_shape(jax.vmap(initialize), keys))
    try:
        if (directory / "parameters").is_dir():
            return config, _load_shaped(directory / "parameters", parameters)
        return config, _newest_state(directory, config).parameters
    except FileNotFoundError:
        raise ValueError(f"{directory} has no checkpoint yet: let train.py reach its first one") from None
    except Exception as error:  # Orbax and TensorStore raise many types for a damaged checkpoint.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"the checkpoint in {directory} cannot be read: {reason[:200]}") from error


def load_checkpoint(path: Path) -> tuple[list[int], Parameters]:
    """Seeds and parameters, with a leading seed axis, from a run's directory or a Flax msgpack file (then seed 0).

    Raises ValueError, in one line, for anything else.
    """
    if path.is_file():
        return [0], jax.tree.map(lambda leaf: leaf[None], from_bytes(path.read_bytes()))
    config, parameters = load_parameters(path)
    return list(range(config.first_seed, config.first_seed + config.seeds)), parameters


def longest_in_training(path: Path) -> int:
    """The most items of a set that a checkpoint was trained on; 16 for a msgpack file, as in the recreation."""
    return Config.max_items if path.is_file() else read_config(path).max_items


def _load_shaped(path: Path, abstract: Parameters) -> Parameters:
    """The stored arrays, once their shapes are known to be right: Orbax finds that out late and leaves reads open."""
    stored = ocp.metadata(path).metadata  # pyright: ignore[reportArgumentType]
    if stored is None:
        raise ValueError("files of it are missing or damaged")
    found, expected = (
        {jax.tree_util.keystr(key, simple=True, separator="/"): tuple(leaf.shape) for key, leaf in leaves}
        for leaves in map(jax.tree.leaves_with_path, (stored, abstract))
    )
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise ValueError(f"{name} has shape {found.get(name)} and its config.json asks for {expected.get(name)}")
    return ocp.load(path, abstract)  # pyright: ignore[reportArgumentType]


def _newest_state(directory: Path, config: Config) -> TrainState:
    saved = saved_steps(directory)
    if not saved:
        raise FileNotFoundError
    shapes = jax.tree.map(_abstract_here, jax.eval_shape(lambda: initial_state(config)))
    return ocp.load(_checkpoint(directory, saved[-1]), shapes)  # pyright: ignore[reportArgumentType]


def _abstract(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    """What a leaf must be when it is read back, so that a wrong shape or a missing leaf raises."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _abstract_here(leaf: Any) -> jax.ShapeDtypeStruct:
    """The same for a leaf that each process reads whole."""
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here)
