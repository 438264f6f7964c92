"""A run on disk: config.json, versions.json, metrics.jsonl and Orbax checkpoints, all written to survive a crash."""

import contextlib
import dataclasses
import glob
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from filelock import FileLock

from softmax_jax.files import (
    append_whole,
    in_words,
    read_bytes,
    reason,
    remove_directory,
    remove_unfinished,
    versions,
    write_json,
    write_whole,
)
from softmax_jax.normalizers.registry import require_trust
from softmax_jax.runtime import distributed
from softmax_jax.runtime.checkpoints import (
    PARAMETERS,
    STEPS,
    SUMS,
    differences,
    first_good,
    read_arrays,
    read_settings,
    step_checkpoints,
    verify,
    verify_file,
    write_checkpoint,
)
from softmax_jax.runtime.locks import lock_directory, unlock
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.tasks.notebook import from_bytes
from softmax_jax.training.config import Config, from_settings, settings_of
from softmax_jax.training.optimizers import build_optimizer, build_schedule
from softmax_jax.training.trainer import Parameters, TrainState, initial_state, state_sharding

T = TypeVar("T")

KEPT_CHECKPOINTS = 2
_OF_REPOSITORY = Path(__file__).parents[2] / "checkpoints"
SHIPPED = _OF_REPOSITORY if _OF_REPOSITORY.is_dir() else Path("checkpoints")
"""The trained models that come with the repository: the run of a preset under its name. The installed package lacks
them; there they are looked for where it is used."""
ABSENT = "name the directory of a run, as runs/quick after train.py quick, or a Flax msgpack file"


class RunDirectory:
    """The files of one training run; opening a directory that holds a run continues it.

    Of several processes all open it, save and resume together, and the first alone writes the other files. A run
    continues on any number of devices and processes, one run at a time in a directory: until `close`, or the end of
    the process, nobody else opens it. Opening it deletes what a killed process left half written. A run of fewer steps,
    finished or not, goes on to those of `config` as one that was meant to from the start. Raises ValueError if the
    directory is in use, holds a run of other settings, cannot be written, or is not the same one for all
    processes; saving and logging raise OSError where the disk is full, and leave no part of what they were writing.
    """

    def __init__(self, path: Path | str, config: Config):
        self.path = Path(path).absolute()
        if glob.has_magic(str(self.path)):
            rule = "which Orbax takes for a pattern, and would lose what it writes"
            raise ValueError(f"{self.path} has one of * ? [, {rule}: choose another --workdir")
        self.config = config
        self._lock: FileLock | None = None
        self._saved: int | None = None
        self._gone = f"{self.path} holds a finished run without its checkpoints: choose another --workdir"
        try:
            distributed.agree(self._other_settings() or (self._start() if distributed.is_leader() else None))
            distributed.agree(self._other_settings(required=True))
        except BaseException:
            self.close()
            raise

    def _start(self) -> str | None:
        """Takes the lock and writes the first files of a run. Returns the problem, if there is one, in words."""
        try:
            with in_words(self.path):
                self._lock = lock_directory(self.path)
                (self.path / STEPS).mkdir(parents=True, exist_ok=True)
            if problem := self._other_settings():  # another run may have begun and ended since they were compared
                return problem
            remove_unfinished(self.path)
            remove_unfinished(self.path / STEPS)
            if (self.path / PARAMETERS).exists() and read_config(self.path).steps < self.config.steps:
                if not step_checkpoints(self.path):
                    return self._gone
                remove_directory(self.path / PARAMETERS)  # of a run that is not finished any more
            write_json(self.path / "config.json", settings_of(self.config))
            if not (self.path / "versions.json").exists():  # a look at a finished run is none of its own
                write_json(self.path / "versions.json", versions())
        except (OSError, ValueError) as error:
            return str(error)
        return None

    def _other_settings(self, required: bool = False) -> str | None:
        """The problem with the settings in the directory, in words; having none is a problem if they are `required`."""
        if not (self.path / "config.json").exists():
            unseen = f"{self.path} holds no config.json here: --workdir must be a directory that all processes share"
            return unseen if required else None
        try:
            there = read_config(self.path)
            changed = differences(settings_of(extended(there, self.config)), settings_of(self.config))
        except ValueError as error:
            return str(error)
        if not changed:
            return None
        if dataclasses.replace(there, steps=self.config.steps) == self.config and there.steps < self.config.steps:
            changed += f", by which its learning rates would have been others ({there.schedule})"
        return (
            f"{self.path} holds a run of other settings: {changed}. "
            "Choose another --workdir, or repeat its settings to continue it"
        )

    def resume(self) -> tuple[int, TrainState]:
        """The steps done and the state after them, from the newest good checkpoint; a fresh start if there is none.

        Raises ValueError if all checkpoints are damaged, or gone from a finished run.
        """

        def read(path: Path) -> TrainState:
            return read_checkpoint(path, self.config, state_shapes)

        newest = first_good(step_checkpoints(self.path), read)
        if newest is None:
            distributed.agree(self._gone if (self.path / PARAMETERS).exists() else None)
            step, state = 0, first_state(self.config)
        else:
            step = self._saved = int(newest[0].name)
            state = distributed.placed(newest[1], state_sharding(self.config))
        distributed.agree(self._drop_metrics_after(step) if distributed.is_leader() else None)
        return step, state

    def save(self, step: int, state: TrainState) -> None:
        """Saves the state after `step` steps, unless that is saved already, and drops all but the newest two."""
        if step != self._saved:
            write_checkpoint(self.path / STEPS / str(step), state, settings_of(self.config))
            self._saved = step
        if distributed.is_leader():  # also of a step saved before: the process may have been killed at this line
            saved = step_checkpoints(self.path)
            damaged = [path for path in saved if int(path.name) > step]  # or this step would be done already
            for path in damaged + saved[len(damaged) + KEPT_CHECKPOINTS :]:
                with contextlib.suppress(OSError):  # a checkpoint too many does no harm
                    remove_directory(path)

    def finish(self, state: TrainState) -> None:
        """Writes the trained parameters by themselves, which is all that an evaluation needs."""
        if distributed.any_process(not self._finished()):
            write_checkpoint(self.path / PARAMETERS, state.parameters, settings_of(self.config))

    def _finished(self) -> bool:
        """Whether the trained parameters are there and as they were written."""
        try:
            verify(self.path / PARAMETERS)
            return read_config(self.path / PARAMETERS) == self.config
        except (ValueError, OSError):
            return False

    def log(self, lines: list[dict[str, Any]]) -> None:
        """Appends lines of metrics and leaves them on disk."""
        if distributed.is_leader():
            append_whole(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))

    def _drop_metrics_after(self, step: int) -> str | None:
        """Drops the lines that a resumed run will write again, and any that a crash cut short.

        Returns the problem, in words, if a line is damaged.
        """
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return None
        try:
            complete = [line for line in read_bytes(path).splitlines(keepends=True) if line.endswith(b"}\n")]
            kept = [line for line in complete if json.loads(line)["step"] <= step]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return f"{path} is damaged: restore it from a copy, or remove it to continue without the metrics so far"
        write_whole(path, b"".join(kept))
        return None

    def close(self) -> None:
        """Lets others open the directory."""
        if self._lock:
            unlock(self._lock)


def extended(there: Config, here: Config) -> Config:
    """The settings of a run with the steps of another one, if these are more and change nothing in the first."""
    if not there.steps < here.steps:
        return there
    longer, steps = dataclasses.replace(there, steps=here.steps), np.arange(there.steps)
    with jax.numpy_dtype_promotion("standard"):  # as in training
        first, longer_first = (jax.vmap(build_schedule(config))(steps) for config in (there, longer))
    return longer if np.array_equal(first, longer_first) else there


def started(config: Config) -> Config:
    """The settings with the batches to leave out, where the models start from those of another run.

    Raises ValueError, in one line, unless that run is there, with these seeds and parameters.
    """
    if not config.start_from:
        return config
    there = read_config(config.start_from)
    if absent := sorted(set(config.all_seeds) - set(there.all_seeds)):
        raise ValueError(
            f"--start-from is {config.start_from}, which has no seed {absent[0]}: its seeds are {there.first_seed} to "
            f"{there.all_seeds[-1]}; choose --first-seed and --seeds among them"
        )
    of_both = (dataclasses.replace(one, normalizer=there.normalizer, seeds=1) for one in (config, there))
    here_shapes, there_shapes = (state_shapes(one).parameters for one in of_both)
    if here_shapes != there_shapes:
        raise ValueError(
            f"--start-from is {config.start_from}, whose models have other parameters: give this run the task and the "
            "sizes in its config.json"
        )
    return config if config.first_batch else dataclasses.replace(config, first_batch=there.first_batch + there.steps)


def first_state(config: Config) -> TrainState:
    """Parameters and optimizer state of every seed before the first step, be they random or those of another run."""
    state = initial_state(config)
    if not config.start_from:
        return state
    there, trained = load_checkpoint(config.start_from)
    own = dict(jax.tree_util.tree_leaves_with_path(state.parameters))
    rows = np.array([there.all_seeds.index(seed) for seed in config.all_seeds])
    sharding = state_sharding(config)
    where = dict(jax.tree_util.tree_leaves_with_path(sharding.parameters))
    for path, leaf in jax.tree_util.tree_leaves_with_path(trained):
        if path in own:
            own[path] = distributed.placed(leaf[rows], where[path])
    parameters = jax.tree.unflatten(jax.tree.structure(state.parameters), list(own.values()))
    fresh = jax.jit(jax.vmap(build_optimizer(config).init), out_shardings=sharding.optimizer)
    return TrainState(parameters, fresh(parameters), state.seed)


def read_config(directory: Path | str) -> Config:
    """The settings of the run in a directory. Raises ValueError if there is none, it cannot be read, or names code.

    Its normalizer and its task can, of one's own; its optimizer and schedule are those of optax.
    """
    directory = Path(directory)
    settings = read_settings(directory)
    for setting in ("normalizer", "task"):
        require_trust(str(settings.get(setting)), directory / "config.json")
    try:
        return from_settings(settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{directory / 'config.json'} is not the config of a run: {reason(error)}") from None


def read_checkpoint(path: Path, config: Config, shapes: Callable[[Config], T]) -> T:
    """The arrays of a checkpoint of a run with these settings, whole on this process's first device.

    Raises ValueError, in one line, unless every file is as it was written, for a run of these settings.
    """
    verify(path)
    there = read_config(path)
    if path.name != PARAMETERS:
        there = extended(there, config)  # of steps that were added later
    if changed := differences(settings_of(there), settings_of(config)):
        raise ValueError(f"its settings are not those of the run's config.json: {changed}")
    return read_arrays(path, shapes(config))


def load_checkpoint(path: Path | str) -> tuple[Config, Parameters]:
    """Settings and parameters of a run, finished or not, or of a Flax msgpack file, with a leading seed axis.

    Those of a run are from its newest good checkpoint, with a line on stderr if another was damaged. A msgpack file
    holds one model of max retrieval; a line on stderr says if no checksum is beside it. Raises ValueError, in one
    line, for damage and for anything else.
    """
    path = Path(path)
    if not path.exists():
        absent = "the trained models come with the repository, not with the package: run this there, or "
        raise ValueError(f"{path} does not exist: {absent * (path.parent == SHIPPED)}{ABSENT}")
    return _load_msgpack(path) if path.is_file() else _load_run(path.absolute())


def _load_run(directory: Path) -> tuple[Config, Parameters]:
    config = read_config(directory)

    def read(path: Path) -> Parameters:
        if path.name == PARAMETERS:
            return read_checkpoint(path, config, lambda config: state_shapes(config).parameters)
        return read_checkpoint(path, config, state_shapes).parameters

    trained = directory / PARAMETERS
    candidates = [trained] * trained.exists() + step_checkpoints(directory)
    newest = first_good(candidates, read)
    if newest is None:
        raise ValueError(f"{directory} has no checkpoint yet: let train.py reach its first one")
    path, parameters = newest
    # Where another was passed over, a line on stderr has named this one already.
    if path == candidates[0] != trained and int(path.name) < config.steps and distributed.is_leader():
        step = f"step {path.name} of {config.steps}"
        print(f"warning: {directory} is not trained to its end: this is {step}", file=sys.stderr)
    return config, parameters


def _load_msgpack(path: Path) -> tuple[Config, Parameters]:
    known = verify_file(path)
    parameters = jax.tree.map(lambda leaf: leaf[None], from_bytes(read_bytes(path)))
    if not known and distributed.is_leader():
        add = f"cd {path.parent} && sha256sum {path.name} >> {SUMS}"
        print(f"warning: nothing tells whether {path} is as it was made: it has no checksum ({add})", file=sys.stderr)
    return Config(MaxRetrieval(width=parameters["item_in"]["bias"].shape[-1])), parameters


def state_shapes(config: Config) -> TrainState:
    """Names, shapes and types of all that training carries."""
    return jax.eval_shape(lambda: initial_state(config))
