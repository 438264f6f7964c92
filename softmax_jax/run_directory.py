"""A run on disk: config.json, versions.json, metrics.jsonl and Orbax checkpoints, all written to survive a crash."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from softmax_jax import distributed
from softmax_jax.config import Config
from softmax_jax.files import versions, write_json, write_whole
from softmax_jax.tasks.flax_msgpack import from_bytes
from softmax_jax.training import Parameters, TrainState, build_model, initial_state

KEPT_CHECKPOINTS = 2


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
    continues on any number of devices and processes. Raises ValueError if the directory holds a run of other
    settings, cannot be written, or is not the same one for all processes.
    """

    def __init__(self, path: Path, config: Config):
        self.path = path.absolute()
        self.config = config
        distributed.agree(self._other_settings() or (self._start() if distributed.is_leader() else None))
        distributed.agree(self._other_settings(required=True))
        self._checkpointer = ocp.training.Checkpointer(
            self.path / "checkpoints",  # pyright: ignore[reportArgumentType]
            preservation_policy=ocp.training.preservation_policies.LatestN(KEPT_CHECKPOINTS),  # pyright: ignore[reportArgumentType]
        )

    def _start(self) -> str | None:
        """Writes what a run begins with; what is wrong if that cannot be."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / "config.json", dataclasses.asdict(self.config))
            write_json(self.path / "versions.json", versions())
        except OSError as error:
            return f"--workdir cannot be written: {error}"
        return None

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
        newest = self._checkpointer.latest
        step = 0 if newest is None else newest.step
        if step:
            state = self._checkpointer.load(step, jax.tree.map(_abstract, state))
        if distributed.is_leader():
            self._drop_metrics_after(step)
        return step, state

    def save(self, step: int, state: TrainState) -> None:
        """Saves the state after `step` steps, unless that is saved already, and drops all but the newest two."""
        newest = self._checkpointer.latest
        if newest is None or newest.step < step:
            self._checkpointer.save(step, state)

    def finish(self, state: TrainState) -> None:
        """Writes the trained parameters by themselves, which is all that an evaluation needs."""
        if not (self.path / "parameters").exists():
            ocp.save(self.path / "parameters", state.parameters)  # pyright: ignore[reportArgumentType]

    def log(self, lines: list[dict[str, Any]]) -> None:
        """Appends lines of metrics and leaves them on disk."""
        if not distributed.is_leader():
            return
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))

    def _drop_metrics_after(self, step: int) -> None:
        """Drops the lines that a resumed run will write again, and any that a crash cut short."""
        path = self.path / "metrics.jsonl"
        if path.exists():
            complete = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("}\n")]
            write_whole(path, "".join(line for line in complete if json.loads(line)["step"] <= step))

    def close(self) -> None:
        """Waits for open writes."""
        self._checkpointer.close()


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
    if not (directory / "checkpoints").is_dir():
        raise FileNotFoundError
    with ocp.training.Checkpointer(directory / "checkpoints") as checkpointer:  # pyright: ignore[reportArgumentType]
        if checkpointer.latest is None:
            raise FileNotFoundError
        shapes = jax.tree.map(_abstract_here, jax.eval_shape(lambda: initial_state(config)))
        return checkpointer.load(checkpointer.latest.step, shapes)


def _abstract(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    """What a leaf must be when it is read back, so that a wrong shape or a missing leaf raises."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _abstract_here(leaf: Any) -> jax.ShapeDtypeStruct:
    """The same for a leaf that each process reads whole."""
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here)
