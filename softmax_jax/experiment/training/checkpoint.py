"""A checkpoint on disk: a directory of Orbax's files, the settings they belong to, and the SHA-256 of each of them.

The directory gets its name last, so a checkpoint is whole or absent. Orbax does so too, but names a directory before
anybody could add the sums. Nothing in a checkpoint is parsed before its sums are verified: Orbax finds some damage
late, with tracebacks of its own, and some not at all.
"""

import contextlib
import gc
import glob
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from softmax_jax.experiment.training import distributed
from softmax_jax.files import (
    PARTIAL,
    not_read,
    not_written,
    number_of,
    problem,
    read_text,
    remove_directory,
    remove_unfinished,
    sha256_of,
    write_json,
    write_whole,
)
from softmax_jax.refusal import Refusal

SUMS = "SHA256SUMS"
"""The file of the sums, as `sha256sum` writes and checks it."""
PARAMETERS, STEPS = "parameters", "checkpoints"
"""Where a run keeps its trained parameters, and the checkpoints to continue from, each named by its step."""

KEPT_CHECKPOINTS = 2

OVERHEAD = 2**26
"""The most bytes of a checkpoint's files beyond those of its arrays."""

T = TypeVar("T")


def check_name(directory: Path) -> None:
    """Raises Refusal for a name that Orbax takes for a pattern, and would lose what it writes; or as `check_coding`."""
    if glob.has_magic(str(directory.absolute())):
        raise Refusal(f"{directory} has one of * ? [ in its name: choose another --workdir")
    check_coding(directory)


def check_coding(path: Path) -> None:
    """Raises Refusal for a name by which Orbax finds no file: one that is not in UTF-8 for Python as it runs here."""
    name = str(path.absolute())
    try:
        name.encode()
        os.fsencode(name)
    except UnicodeEncodeError:
        readable = name.encode(errors="surrogateescape").decode(errors="replace")
        raise Refusal(
            f"{readable} must be a name in UTF-8, and Python reads names in {sys.getfilesystemencoding()} here: set "
            "LC_ALL=C.UTF-8, without PYTHONUTF8=0, or choose a name of plain letters"
        ) from None


def write_checkpoint(path: Path, tree: Any, settings: Mapping[str, Any]) -> None:
    """Writes a checkpoint whole or not at all; all processes call it together.

    Raises Refusal if the disk is full or the directory cannot be written.
    """
    unfinished = path.with_name(f".{path.name}{PARTIAL}")
    try:
        ocp.save(unfinished, tree)  # pyright: ignore[reportArgumentType]
        if distributed.is_leader():
            sign(unfinished, settings)
            unfinished.rename(path)
    except Exception as error:  # Orbax and TensorStore raise many types
        if distributed.is_leader():
            remove_unfinished(path.parent)
        if number_of(error) is None:
            raise  # of no file
        raise not_written(path, error) from error
    distributed.any_process(False)  # all wait


def sign(checkpoint: Path, settings: Mapping[str, Any]) -> None:
    """Adds the settings, and the sums of all files, to a directory that is trusted to be whole."""
    write_json(checkpoint / "config.json", settings)
    lines = (f"{digest}  {name}\n" for name, digest in sorted(_sums(checkpoint).items()))
    write_whole(checkpoint / SUMS, "".join(lines))


def verify(checkpoint: Path, shapes: Any = None) -> None:
    """Raises Refusal, in one line, unless the directory holds the files of its sums, unchanged, and no others.

    Where shapes are given, files larger than any with arrays of these are refused before they are read whole.
    """
    try:
        lines = read_text(checkpoint / SUMS, limit=OVERHEAD).splitlines()
    except Refusal:
        lines = []
    parts = [line.split("  ", 1) for line in lines]
    if not parts or any(len(part) != 2 for part in parts):
        raise _damaged(checkpoint, f"it has no {SUMS} that can be read")
    expected = {name: digest for digest, name in parts}
    sums = _sums(checkpoint, None if shapes is None else _largest(shapes))
    for name in sorted(expected.keys() | sums.keys()):
        if name not in sums:
            raise _damaged(checkpoint, f"{name} is missing")
        if expected.get(name) != sums[name]:
            raise _damaged(checkpoint, f"{name} has another SHA-256 than its {SUMS} says")


def read_arrays(checkpoint: Path, shapes: T) -> T:
    """Returns the arrays of a verified checkpoint, whole on this process's first device.

    Raises Refusal, in one line, unless it holds the arrays of these names, shapes and types, as `jax.eval_shape`
    gives them; before any is made.
    """
    first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=first), shapes)
    try:
        with _one_error():
            stored = ocp.metadata(checkpoint).metadata  # pyright: ignore[reportArgumentType]
            _require_arrays(checkpoint, stored, shapes)
            return ocp.load(checkpoint, abstract)  # pyright: ignore[reportArgumentType, reportReturnType]
    except (MemoryError, Refusal):
        raise
    except Exception as error:  # Orbax and TensorStore raise many types
        raise _damaged(checkpoint, problem(error)) from error


@contextlib.contextmanager
def _one_error() -> Iterator[None]:
    """Silences loggers, so that an error is told once. Orbax reads all arrays at once and logs the failure of each."""
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    previous = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    except Exception:
        gc.collect()  # a task is logged once it is forgotten
        raise
    finally:
        for logger, disabled in zip(loggers, previous):
            logger.disabled = disabled


def require_finite(checkpoint: Path, arrays: Any) -> None:
    """Raises Refusal, in one line, for an array of a checkpoint that holds NaN or an infinity."""
    for path, leaf in jax.tree.leaves_with_path(arrays):
        if not np.isfinite(np.asarray(leaf)).all():
            raise _damaged(checkpoint, f"{_name(path)} holds NaN or an infinite number")


def _require_arrays(checkpoint: Path, stored: Any, shapes: Any) -> None:
    """Raises Refusal unless what is stored, as Orbax's metadata has it, has these names, shapes and types."""
    arrays = {_name(path): leaf for path, leaf in jax.tree.leaves_with_path(stored)}
    expected = {_name(path): leaf for path, leaf in jax.tree.leaves_with_path(jax.eval_shape(_stored, shapes))}
    if not arrays:  # which Orbax gives for a part of what may be damaged
        raise _damaged(checkpoint, "it has no arrays that can be read")
    for name in sorted(arrays.keys() ^ expected.keys()):
        raise _damaged(checkpoint, f"{name} is {'missing' if name in expected else 'no array of such a run'}")
    for name, leaf in expected.items():
        shape, dtype = (getattr(arrays[name], attribute, None) for attribute in ("shape", "dtype"))
        if (shape, dtype) != (leaf.shape, leaf.dtype):
            has = f"has shape {shape} and type {dtype}"
            raise _damaged(checkpoint, f"{name} {has}; by its config.json it must have {leaf.shape} and {leaf.dtype}")
        chunk = arrays[name].storage_metadata.chunk_shape  # which is made whole, however little of it is the array's
        if any(part > max(size, 1) for part, size in zip(chunk, leaf.shape, strict=True)):
            raise _damaged(checkpoint, f"{name} has shape {shape} and is stored in parts of shape {chunk}")


def _stored(arrays: Any) -> Any:
    """Returns the arrays as Orbax stores them: a random key, which an optimizer may have, as its numbers."""
    keys = jax.dtypes.prng_key
    return jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, keys) else x, arrays)


def _largest(shapes: Any) -> int:
    """Returns the most bytes of all files of a checkpoint with arrays of these shapes."""
    leaves = jax.tree.leaves(jax.eval_shape(_stored, shapes))
    return OVERHEAD + 2 * sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def step_checkpoints(run: Path) -> list[Path]:
    """Returns the checkpoints that a run can continue from, newest first."""
    path = run / STEPS
    try:
        steps = [entry for entry in path.iterdir() if entry.name.isdecimal()] if path.is_dir() else []
    except OSError as error:
        raise not_read(path, error) from error
    return sorted(steps, key=lambda entry: int(entry.name), reverse=True)


def drop_older_checkpoints(run: Path) -> None:
    """Deletes all but the newest two checkpoints that a run can continue from."""
    for checkpoint in step_checkpoints(run)[KEPT_CHECKPOINTS:]:
        remove_directory(checkpoint)


def _damaged(checkpoint: Path, problem: str) -> Refusal:
    remedy = "Restore it from a copy, or remove that directory to use the checkpoint before it"
    return Refusal(f"{checkpoint} cannot be used: {problem}. {remedy}")


def _sums(directory: Path, largest: int | None = None) -> dict[str, str]:
    """Returns the SHA-256 of all files below a directory, except that of its sums, by name.

    Raises Refusal, in one line, for what is neither a directory nor a regular file, such as a link to a directory, and
    where all files together have more bytes than `largest`.
    """
    sums, allowance = {}, largest
    for path in sorted(directory.rglob("*")):
        if path == directory / SUMS or (path.is_dir() and not path.is_symlink()):
            continue
        name = path.relative_to(directory).as_posix()
        size = path.stat().st_size if path.is_file() else 0
        if allowance is not None and (allowance := allowance - size) < 0:
            raise _damaged(directory, f"its files up to {name} have more than {largest:,} bytes, which no such run has")
        try:
            sums[name] = sha256_of(path, size)
        except Refusal as refusal:
            raise _damaged(directory, str(refusal)) from None
    return sums
