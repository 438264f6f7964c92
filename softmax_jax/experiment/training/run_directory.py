"""A run on disk: config.json, versions.json, metrics.jsonl and Orbax checkpoints, all written to survive a crash."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from filelock import FileLock, Timeout

from softmax_jax.experiment import REPOSITORY
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
from softmax_jax.experiment.training.config import Config, from_settings, settings_of
from softmax_jax.experiment.training.optimizers import build_optimizer, build_schedule
from softmax_jax.experiment.training.trainer import Parameters, TrainState, initial_state, state_sharding
from softmax_jax.files import (
    append_lines,
    exists,
    make_directory,
    problem,
    read_bytes,
    read_json,
    read_text,
    remove_directory,
    remove_unfinished,
    versions,
    write_json,
    write_whole,
)
from softmax_jax.normalizers.checks import shown
from softmax_jax.normalizers.registry import require_fit_within
from softmax_jax.normalizers.user_modules import require_trust
from softmax_jax.refusal import Refusal

SHIPPED = (REPOSITORY or Path()) / "checkpoints"
"""The trained models that come with the repository: the run of a preset under its name. The installed package lacks
them; there they are looked for where it is used."""
METRICS = "metrics.jsonl"
"""The file of a run with a line for each seed and chunk."""
ABSENT = "name the directory of a run, as runs/quick after train.py quick, or a Flax msgpack file"
LARGEST_CONFIG = 2**20
"""The most bytes of a config.json."""
LARGEST_METRICS = 2**30
"""The most bytes of a metrics.jsonl."""
LARGEST_MODEL = 2**28
"""The most bytes of a Flax msgpack file."""


class RunDirectory:
    """The files of one training run; opening a directory that holds a run continues it.

    Of several processes all open it, save and resume together, and the first alone writes the other files. One run at
    a time is in a directory: until `close`, or the end of the process, nobody else opens it. A run of fewer steps,
    finished or not, goes on to those of `config` as one that was meant to from the start. Raises Refusal if the
    directory is in use, holds a run of other settings, cannot be written, or is not the same one for all processes;
    so do saving and logging where the disk is full.
    """

    def __init__(self, path: Path | str, config: Config):
        self.path = Path(path).absolute()
        self.config = config
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
                there, trained = read_config(self.path), self.path / PARAMETERS
                _require_same(self.path, there, self.config)
                if trained.exists() and not step_checkpoints(self.path):
                    raise Refusal(f"{self.path} holds a finished run without its checkpoints: choose another --workdir")
                if trained.exists() and there.steps < self.config.steps:
                    remove_directory(trained)  # of a run that is not finished any more
            remove_unfinished(self.path)
            remove_unfinished(self.path / STEPS)
            write_json(self.path / "config.json", settings_of(self.config))
            if not (self.path / "versions.json").exists():  # a look at a finished run is none of its own
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

    def resume(self) -> tuple[int, TrainState]:
        """Returns the steps done and the state after them, from the newest checkpoint; a fresh start if there is none.

        Raises ValueError if that checkpoint is damaged.
        """
        newest = step_checkpoints(self.path)[:1]
        if newest:
            step = self._saved = int(newest[0].name)
            arrays = read_checkpoint(self.path, newest[0], self.config, state_shapes(self.config))
            state = distributed.placed(arrays, state_sharding(self.config))
        else:
            step, state = 0, first_state(self.config)
        if distributed.is_leader():
            self._drop_metrics_after(step)
        return step, state

    def save(self, step: int, state: TrainState) -> None:
        """Saves the state after `step` steps, unless that is saved already, and drops all but the newest two."""
        if step != self._saved:
            write_checkpoint(self.path / STEPS / str(step), state, settings_of(self.config))
            self._saved = step
        if distributed.is_leader():  # also of a step saved before: the process may have been killed at this line
            drop_older_checkpoints(self.path)

    def finish(self, state: TrainState) -> None:
        """Writes the trained parameters by themselves, which is all that an evaluation needs."""
        if not (self.path / PARAMETERS).exists():
            write_checkpoint(self.path / PARAMETERS, state.parameters, settings_of(self.config))

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

    Raises ValueError, in one line, for a file that holds anything else.
    """
    path, lines = run / "metrics.jsonl", []
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


def _require_same(path: Path, there: Config, here: Config) -> None:
    """Raises ValueError unless a run goes on under these settings: its own, or more steps at the same learning rates.

    Where a schedule spreads over the steps, more of them would have changed the first.
    """
    longer = dataclasses.replace(there, steps=max(there.steps, here.steps))
    changed = differences(settings_of(longer), settings_of(here))
    if changed:
        raise Refusal(f"{path} holds a run with {changed}. Choose another directory, or repeat its settings")
    if there.steps == here.steps:
        return
    steps = np.arange(there.steps)
    with jax.numpy_dtype_promotion("standard"):  # as in training
        first, longer_first = (jax.vmap(build_schedule(config))(steps) for config in (there, longer))
    if not np.array_equal(first, longer_first):
        raise Refusal(
            f"{path} holds a run of {there.steps} steps, not {here.steps}, by which its learning rates would have been "
            f"others ({there.schedule}). Choose another directory, or give --steps {there.steps}"
        )


def differences(there: dict[str, Any], here: dict[str, Any]) -> str:
    """Returns what differs between two settings, in words.

    >>> differences({"width": 8, "steps": 10}, {"width": 16, "steps": 10})
    'width=8, not 16'
    """
    names = dict.fromkeys([*here, *there])
    changed = [name for name in names if there.get(name) != here.get(name)]
    return "; ".join(f"{name}={there.get(name)}, not {here.get(name)}" for name in changed)


def started(config: Config) -> Config:
    """Returns the settings with the batches to leave out, where the models start from those of another run.

    Raises ValueError, in one line, unless that run is there, with these seeds and parameters.
    """
    if not config.start_from:
        return config
    there = read_config(config.start_from)
    if absent := sorted(set(config.all_seeds) - set(there.all_seeds)):
        raise Refusal(
            f"--start-from is {config.start_from}, which has no seed {absent[0]}: its seeds are {there.first_seed} to "
            f"{there.all_seeds[-1]}; choose --first-seed and --seeds among them"
        )
    both = (dataclasses.replace(one, normalizer=there.normalizer, seeds=1) for one in (config, there))
    here_shapes, there_shapes = (state_shapes(one).parameters for one in both)
    if here_shapes != there_shapes:
        raise Refusal(
            f"--start-from is {config.start_from}, whose models have other parameters: give this run the task and the "
            "sizes in its config.json"
        )
    return config if config.first_batch else dataclasses.replace(config, first_batch=there.first_batch + there.steps)


def first_state(config: Config) -> TrainState:
    """Returns parameters and optimizer state of every seed before the first step, random or those of another run."""
    state = initial_state(config)
    if not config.start_from:
        return state
    there, trained = load_checkpoint(config.start_from)
    by_path = dict(jax.tree_util.tree_leaves_with_path(trained))
    rows = np.array([there.all_seeds.index(seed) for seed in config.all_seeds])
    sharding = state_sharding(config)

    def start(path: Any, own: jax.Array) -> jax.Array:
        return distributed.placed(by_path[path][rows], sharding) if path in by_path else own

    parameters = jax.tree_util.tree_map_with_path(start, state.parameters)
    optimizer = jax.jit(jax.vmap(build_optimizer(config).init), out_shardings=sharding)(parameters)
    return TrainState(parameters, optimizer, state.seed)


def read_config(directory: Path | str, run: Path | str | None = None) -> Config:
    """Returns the settings of the run in a directory, or of its checkpoint in one, where `run` is that of the run.

    Raises ValueError, in one line, if there is none, it cannot be read, it names code or a fit outside of the run. A
    normalizer or a task can be somebody's own; optimizer and schedule are those of optax.
    """
    path = Path(directory) / "config.json"
    if not exists(path):
        raise Refusal(f"{directory} holds no run (no config.json): name a directory that train.py made")
    settings = read_json(path, limit=LARGEST_CONFIG)
    if not isinstance(settings, dict):
        raise Refusal(f"{path} is not the config of a run: it must hold settings by name, and holds {shown(settings)}")
    for setting in ("normalizer", "task"):
        require_trust(str(settings.get(setting)), path)
    try:
        config = from_settings(settings)
        require_fit_within(config.normalizer, Path(run or directory))
        return config
    except Refusal as refusal:
        raise _no_config(path, refusal) from None


def _no_config(path: Path, refusal: Refusal) -> Refusal:
    return Refusal(f"{path} is not the config of a run: {refusal}")


def read_checkpoint(run: Path, path: Path, config: Config, shapes: Any) -> Any:
    """Returns the arrays of a checkpoint of a run with these settings, whole on this process's first device.

    Raises ValueError, in one line, unless every file is as it was written, for a run of these settings.
    """
    verify(path, shapes)
    _require_same(path, read_config(path, run), config)
    return read_arrays(path, shapes)


def load_checkpoint(path: Path | str) -> tuple[Config, Parameters]:
    """Returns settings and parameters of a run, finished or not, or of a Flax msgpack file, with a leading seed axis.

    Those of a run that is not finished are from its newest checkpoint, and a line on stderr says so. A msgpack file
    holds one model of max retrieval. Raises ValueError, in one line, for damage and for anything else.
    """
    path = Path(path)
    if not exists(path):
        absent = "the trained models come with the repository, not with the package: run this there, or "
        raise Refusal(f"{path} does not exist: {absent * (path.parent == SHIPPED)}{ABSENT}")
    if path.is_file():
        parameters = jax.tree.map(lambda leaf: leaf[None], from_bytes(read_bytes(path, limit=LARGEST_MODEL)))
        return Config(MaxRetrieval(width=parameters["item_in"]["bias"].shape[-1])), parameters
    check_coding(path)
    path = path.absolute()
    config = read_config(path)
    try:
        shapes = state_shapes(config)
    except Refusal as refusal:  # of normalizer, optimizer or schedule, which nobody typed
        raise _no_config(path / "config.json", refusal) from None
    trained = path / PARAMETERS
    if trained.exists():
        parameters = read_checkpoint(path, trained, config, shapes.parameters)
        require_finite(trained, parameters)
        return config, parameters
    newest = step_checkpoints(path)[:1]
    if not newest:
        raise Refusal(f"{path} has no checkpoint yet: let train.py reach its first one")
    if distributed.is_leader():
        step = f"step {newest[0].name} of {config.steps}"
        print(f"warning: {path} is not trained to its end: this is {step}", file=sys.stderr)
    parameters = read_checkpoint(path, newest[0], config, shapes).parameters
    require_finite(newest[0], parameters)
    return config, parameters


def state_shapes(config: Config) -> TrainState:
    """Returns names, shapes and types of all that training carries."""
    return jax.eval_shape(lambda: initial_state(config))
