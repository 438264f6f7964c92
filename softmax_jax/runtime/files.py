"""Files that are written whole or not at all, and the versions that made them."""

import contextlib
import csv
import errno
import importlib.metadata
import io
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from softmax_jax.runtime import locks

PARTIAL = ".softmax_jax-partial"
"""The end of the name of whatever is being written or deleted; what bears it and is in nobody's hands is a leftover."""


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

    Raises OSError, in words for the user, if the disk is full or the directory cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    with in_words(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = _open_partial(path)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                umask = os.umask(0)
                os.umask(umask)
                os.chmod(temporary, 0o666 & ~umask)
                os.replace(temporary, path)  # while it is open, so that nobody takes it for a leftover
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def append_whole(path: Path, content: str) -> None:
    """Appends to a file, on disk when it returns; a failure leaves the file as it was. Raises OSError likewise."""
    data = content.encode()
    with in_words(path):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        size = os.fstat(handle).st_size
        try:
            while data:  # a disk that fills up takes a part first
                data = data[os.write(handle, data) :]
            os.fsync(handle)
        except BaseException:
            os.ftruncate(handle, size)
            raise
        finally:
            os.close(handle)


def check_output(directory: Path, option: str = "--output") -> None:
    """Raises OSError that names the option unless files can be written to the directory; it need not be there yet.

    Called before anything is computed, for nothing should be computed in vain. Deletes leftovers in the directory.
    """
    whole = directory.absolute()
    try:
        there = next(path for path in (whole, *whole.parents) if path.exists())
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise OSError(f"{option} {directory} cannot be written: {reason(error)}") from error
    remove_partials(directory)


def remove_partials(directory: Path) -> None:
    """Deletes the files that killed processes left half written in a directory; not what others are writing."""
    for path in directory.glob(f".*{PARTIAL}"):
        with contextlib.suppress(OSError):  # another process was faster, or may not be told apart from a dead one
            handle = os.open(path, os.O_RDWR)
            try:
                if locks.lock(handle, wait=False):
                    path.unlink()
            finally:
                os.close(handle)


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


def reason(error: Exception) -> str:
    """What went wrong with a file, in one line, and what to do about it.

    >>> reason(OSError(28, "No space left on device"))
    'No space left on device; free some and repeat the command'
    """
    if isinstance(error, NotWritten):
        return error.why
    code = getattr(error, "errno", None)
    if found := re.search(r"os_error_code='(\d+)'", str(error)):  # TensorStore's words for it take several lines
        code = int(found[1])
    words = os.strerror(code) if code else (str(error).splitlines() or [type(error).__name__])[0][:200]
    if code in (errno.ENOSPC, errno.EDQUOT):
        return f"{words}; free some and repeat the command"
    if code == errno.EFBIG:
        return f"{words}; raise the limit (ulimit -f) and repeat the command"
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{words}; choose a directory that you may write to"
    return words


def _open_partial(path: Path) -> tuple[int, str]:
    """An open file beside `path` that is to replace it, locked so that nobody takes it for a leftover."""
    while True:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=PARTIAL, dir=path.parent)
        with contextlib.suppress(OSError):  # without locks nobody deletes leftovers
            locks.lock(handle, wait=True)
        if os.path.exists(temporary):
            return handle, temporary
        os.close(handle)  # deleted in the moment before it was locked


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
    """Versions of Python and of the packages that the numbers depend on, and the device they came from."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scipy")
    found = {package: importlib.metadata.version(package) for package in packages}
    device = jax.devices()[0]
    return {"python": platform.python_version()} | found | {"device": f"{device.platform} ({device.device_kind})"}
