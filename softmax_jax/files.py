"""Files that are written whole or not at all, and the versions that made them."""

import contextlib
import csv
import errno
import glob
import importlib.metadata
import io
import json
import os
import platform
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

PARTIAL = ".softmax_jax-partial"
"""How the name of a file or directory ends that is being written or deleted. A killed process leaves it behind."""


class NotWritten(OSError):  # noqa: N818
    """A line that says which file could not be written, why, and what to do."""

    def __init__(self, path: Path, why: str):
        super().__init__(f"{path} cannot be written: {why}")
        self.why = why


@contextlib.contextmanager
def in_words(path: Path) -> Iterator[None]:
    """Turns an OSError into NotWritten."""
    try:
        yield
    except OSError as error:
        raise NotWritten(path, reason(error)) from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file so that a reader, or a crash, meets the old content or the new, never a part.

    Deletes what killed processes left half written of the same file. Raises NotWritten if the disk is full or the
    directory cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    with in_words(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for leftover in path.parent.glob(f".{glob.escape(path.name)}.*{PARTIAL}"):
            leftover.unlink(missing_ok=True)
        try:
            _replace(path, data)
        except FileNotFoundError:  # another process, writing the same file, took ours for a leftover
            _replace(path, data)


def _replace(path: Path, data: bytes) -> None:
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def link_whole(path: Path, target: str) -> None:
    """Makes a symbolic link, in place of any that stands there, so that a reader meets the old one or the new."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    partial.symlink_to(target)
    try:
        os.replace(partial, path)
    except OSError:
        partial.unlink()
        raise


def append_whole(path: Path, content: str) -> None:
    """Appends to a file, on disk when it returns; a failure leaves the file as it was. Raises NotWritten likewise."""
    data = content.encode()
    with in_words(path), path.open("ab", buffering=0) as file:
        size = file.tell()
        try:
            while data:  # a disk that fills up takes a part first
                data = data[os.write(file.fileno(), data) :]
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(size)
            raise


def require_room(directory: Path, size: int) -> None:
    """Raises OSError unless so many bytes fit on the disk of a directory, found out by taking and returning them.

    For writers that a full disk leaves in disorder. A limit on the size of a file counts for all of them at once.
    """
    if hasattr(os, "posix_fallocate"):
        with tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, size)


def remove_directory(path: Path) -> None:
    """Deletes a directory so that under its name there is all of it or nothing."""
    partial = path.with_name(f".{path.name}.old{PARTIAL}")
    path.rename(partial)
    shutil.rmtree(partial, ignore_errors=True)


def remove_unfinished(directory: Path) -> None:
    """Deletes what killed processes left half written or half deleted in a directory that is this process's alone."""
    for path in directory.glob(f".*{PARTIAL}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def reason(error: Exception) -> str:
    """What went wrong with a file, in one line, and what to do about it.

    >>> reason(OSError(28, "No space left on device"))
    'No space left on device; free some and repeat the command'
    """
    if isinstance(error, NotWritten):
        return error.why
    code = getattr(error, "errno", None)
    if in_tensorstore := re.search(r"os_error_code='(\d+)'", str(error)):  # its own words take several lines
        code = int(in_tensorstore[1])
    words = os.strerror(code) if code else (str(error).splitlines() or [type(error).__name__])[0][:200]
    if code in (errno.ENOSPC, errno.EDQUOT):
        return f"{words}; free some and repeat the command"
    if code == errno.EFBIG:
        return f"{words}; raise the limit (ulimit -f) and repeat the command"
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{words}; choose a directory that you may write to"
    return words


def write_json(path: Path, value: Any) -> None:
    """Writes a value as indented JSON, whole or not at all."""
    write_whole(path, json.dumps(value, indent=2) + "\n")


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a table as CSV, whole or not at all."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_whole(path, table.getvalue())


def versions() -> dict[str, str]:
    """Versions of Python and of the packages here that the numbers depend on, and the device they came from."""
    by_package = {}
    for package in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scipy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # the library needs but some of them
            by_package[package] = importlib.metadata.version(package)
    device = jax.devices()[0]
    return {"python": platform.python_version()} | by_package | {"device": f"{device.platform} ({device.device_kind})"}
