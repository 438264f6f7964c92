"""A checkpoint on disk: a directory of Orbax's files, the settings they belong to, and the SHA-256 of each of them.

The directory gets its name once all of that is written. Orbax writes whole checkpoints too, but gives a directory its
name before anybody could add the sums. Nothing in a checkpoint is parsed before its sums are verified: Orbax finds some
damage late, with tracebacks of its own, and some not at all. `python -m softmax_jax.runtime.checkpoints RUN` adds the
sums to the checkpoints of a run that has none, such as one of an earlier version.
"""

import dataclasses
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import jax
import numpy as np
import tyro
from orbax.checkpoint import v1 as ocp

from softmax_jax.files import (
    PARTIAL,
    SMALL,
    NotWritten,
    in_words,
    open_file,
    read_bytes,
    read_json,
    reason,
    remove_directory,
    remove_unfinished,
    require_room,
    write_json,
    write_whole,
)
from softmax_jax.runtime import command_line, distributed

SUMS = "SHA256SUMS"
"""As `sha256sum` writes and checks it."""
PARAMETERS, STEPS = "parameters", "checkpoints"
"""Where a run keeps its trained parameters, and the checkpoints to continue from, each named by its step."""

ROOM = 2**18
"""Bytes that a checkpoint may take besides its arrays."""

T = TypeVar("T")


def write_checkpoint(path: Path, tree: Any, settings: Mapping[str, Any]) -> None:
    """Writes a checkpoint whole or not at all, in place of any that stands there; all processes call it together.

    Raises OSError, in words for the user, if the disk is full or the directory cannot be written.
    """
    unfinished = path.with_name(f".{path.name}{PARTIAL}")
    if distributed.is_leader():
        remove_unfinished(path.parent)
    distributed.any_process(False)  # all wait
    with in_words(path):
        try:
            require_room(path.parent, ROOM + sum(leaf.nbytes for leaf in jax.tree.leaves(tree)))
            _save(unfinished, tree)
            if distributed.is_leader():
                sign(unfinished, settings)
                if path.exists():
                    remove_directory(path)
                unfinished.rename(path)
        except OSError:
            if distributed.is_leader():
                remove_unfinished(path.parent)
            raise
    distributed.any_process(False)


def _save(path: Path, tree: Any) -> None:
    """`ocp.save`; of all that it may raise for a full disk it raises OSError."""
    try:
        ocp.save(path, tree)  # pyright: ignore[reportArgumentType]
    except Exception as error:  # Orbax and TensorStore raise many types
        raise NotWritten(path, reason(error)) from error


def read_arrays(path: Path, shapes: T) -> T:
    """The arrays of a verified checkpoint, whole on this process's first device.

    Raises ValueError, in one line, unless it holds the arrays of these names, shapes and types, as `jax.eval_shape`
    gives them, and no others.
    """
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), shapes)
    try:
        _check_arrays(path, abstract)
        return ocp.load(path, abstract)  # pyright: ignore[reportArgumentType, reportReturnType]
    except Exception as error:  # Orbax and TensorStore raise many types
        raise ValueError(f"it cannot be read: {reason(error)}") from error


def first_good(candidates: Iterable[Path], read: Callable[[Path], T]) -> tuple[Path, T] | None:
    """The first of these checkpoints that can be read, and what it holds; None if there are none.

    If that is not the first of all, one line on stderr says so and why. Raises ValueError, in one line, if none can
    be read. All processes call it together and use the same one.
    """
    problems: list[str] = []
    for path in candidates:
        content, problem = None, None
        try:
            content = read(path)
        except (ValueError, OSError) as error:
            problem = str(error)
        if not distributed.any_process(problem is not None):
            if problems and distributed.is_leader():
                print(f"warning: {'; '.join(problems)}. Using {path} instead", file=sys.stderr)
            return path, content  # pyright: ignore[reportReturnType]
        problems.append(f"{path} cannot be used: {problem or 'another process cannot read it'}")
    if problems:
        raise ValueError(f"{'; '.join(problems)}. Restore it from a copy, or train anew in another --workdir")
    return None


def step_checkpoints(run: Path) -> list[Path]:
    """The checkpoints that a run can continue from, newest first."""
    path = run / STEPS
    steps = [entry for entry in path.iterdir() if entry.name.isdecimal()] if path.is_dir() else []
    return sorted(steps, key=lambda entry: int(entry.name), reverse=True)


def sign(checkpoint: Path, settings: Mapping[str, Any]) -> None:
    """Adds the settings, and the sums of all files, to a directory that is trusted to be whole."""
    write_json(checkpoint / "config.json", settings)
    lines = (f"{sha256(path)}  {name}\n" for name, path in sorted(_files(checkpoint).items()))
    write_whole(checkpoint / SUMS, "".join(lines))


def verify(checkpoint: Path) -> None:
    """Raises ValueError, in one line, unless the directory holds the files of its sums, unchanged, and no others."""
    if not (checkpoint / SUMS).is_file():
        raise ValueError(
            f"it has no {SUMS}: it was not copied whole, or an earlier version wrote it "
            f"(python -m softmax_jax.runtime.checkpoints {_run_of(checkpoint)} makes one for files that you trust)"
        )
    expected, there = read_sums(checkpoint), _files(checkpoint)
    for name in sorted(expected.keys() | there.keys()):
        if name not in there:
            raise ValueError(f"{name} is missing")
        if name not in expected:
            raise ValueError(f"{name} is not among its {SUMS}")
        if sha256(there[name]) != expected[name]:
            raise ValueError(f"{name} has another SHA-256 than its {SUMS} says")


def verify_file(path: Path) -> bool:
    """Whether a file has a sum in its directory. Raises ValueError, in one line, if the file differs from it."""
    expected = read_sums(path.parent) if (path.parent / SUMS).is_file() else {}
    if path.name in expected and sha256(path) != expected[path.name]:
        raise ValueError(f"{path} has another SHA-256 than the {SUMS} beside it says: restore it from a copy")
    return path.name in expected


def read_sums(directory: Path) -> dict[str, str]:
    """The sums of a directory by the names of its files. Raises ValueError, in one line, if a line is none."""
    path = directory / SUMS
    lines = read_bytes(path, SMALL).decode(errors="replace").splitlines()
    matches = [re.fullmatch(r"([0-9a-f]{64}) [ *](.+)", line) for line in lines]
    if not all(matches):
        raise ValueError(f"{path} is damaged: its lines must be as sha256sum writes them")
    return {match[2]: match[1] for match in matches if match}


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_settings(directory: Path) -> dict[str, Any]:
    """The settings of the run in a directory. Raises ValueError, in one line, if there are none or they are damaged."""
    path = directory / "config.json"
    try:
        settings = read_json(path, SMALL)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{directory} holds no run (no config.json): name a directory that train.py made") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not the config of a run: {reason(error)}") from None
    if not isinstance(settings, dict):
        raise ValueError(f"{path} is not the config of a run: it holds a {type(settings).__name__}, not settings")
    return settings


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """What differs between two settings, in words.

    >>> differences({"width": 8, "steps": 10}, {"width": 16, "steps": 10})
    'width is 8 there and 16 here'
    """
    names = dict.fromkeys([*here, *there])
    changed = [name for name in names if there.get(name) != here.get(name)]
    return "; ".join(f"{name} is {there.get(name)} there and {here.get(name)} here" for name in changed)


def _check_arrays(path: Path, abstract: Any) -> None:
    """Raises ValueError unless names, shapes and types are right, which Orbax finds late and leaves reads open."""
    stored = ocp.metadata(path).metadata  # pyright: ignore[reportArgumentType]
    there, expected = (
        {
            jax.tree_util.keystr(key, simple=True, separator="/"): f"{np.dtype(leaf.dtype)}{list(leaf.shape)}"
            for key, leaf in jax.tree.leaves_with_path(tree)
        }
        for tree in (stored, abstract)
    )
    for name in sorted(there.keys() | expected.keys()):
        if there.get(name) != expected.get(name):
            raise ValueError(f"{name} is {there.get(name, 'missing')}, not {expected.get(name, 'to be there')}")


def _files(directory: Path) -> dict[str, Path]:
    """All files below a directory by name, but its sums."""
    files = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if not path.is_dir()}
    files.pop(SUMS, None)
    return files


def _run_of(checkpoint: Path) -> Path:
    return checkpoint.parent.parent if checkpoint.parent.name == STEPS else checkpoint.parent


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(help_behavior_hint="")]
    """Directories of runs whose files you trust to be whole: each of their checkpoints gets its sums."""

    def __post_init__(self) -> None:
        command_line.each_once("RUNS", self.runs)


def main() -> None:
    """Signs the checkpoints of runs."""
    asked = command_line.parse(Arguments, description="Writes the SHA-256 sums of the checkpoints of runs.")
    with command_line.one_line_errors():
        for run in asked.runs:
            settings = read_settings(run)
            for checkpoint in [path for path in (run / PARAMETERS,) if path.is_dir()] + step_checkpoints(run):
                sign(checkpoint, settings)
                print(f"wrote {checkpoint / SUMS}")


if __name__ == "__main__":
    main()
