"""Files that are read only where they end, files that are written whole or not at all, and what made them."""

import ast
import contextlib
import csv
import errno
import importlib.metadata
import io
import json
import math
import os
import platform
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from softmax_jax.refusal import Refusal

PARTIAL = ".softmax_jax-partial"
"""How the name of a file or directory ends that is being written or deleted. A killed process leaves it behind."""


LARGEST = 2**28
"""The most bytes of a text that is read, unless a reader says otherwise."""
LARGEST_JSON = 2**26
"""The same of JSON, which takes some thirty times as much memory as it has bytes."""


@contextlib.contextmanager
def opened(path: Path | str, limit: int = LARGEST) -> Iterator[io.BufferedReader]:
    """Opens a regular file of at most `limit` bytes to read. Every file that somebody names is read through this.

    A FIFO blocks whoever opens it and a device never ends, so what is opened is looked at before it is read: the
    descriptor itself, because a name may lead elsewhere a moment later.

    Raises Refusal, in one line, for anything but such a file: one that is absent, may not be read or is too large,
    a directory, a FIFO, a device; and where reading it fails.
    """
    if "\0" in str(path):
        raise Refusal(f"{str(path)!r} is no name of a file: it must have no null character, so name another")
    try:
        with open(path, "rb", opener=lambda name, _: _descriptor(name, limit)) as file:
            yield file
    except OSError as error:
        raise not_read(path, error) from error


def _descriptor(path: str, limit: int) -> int:
    """Returns the descriptor of a regular file of at most `limit` bytes. Raises Refusal or OSError for others."""
    # Without blocking, which says nothing for a regular file and returns at once for a FIFO.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= limit:
        return descriptor
    os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise Refusal(f"{path} is {_kind_of_file(status.st_mode)}: it must be a regular file, so name another")
    raise _too_large(path, f"{status.st_size:,} bytes", limit)


def read_bytes(path: Path | str, limit: int = LARGEST) -> bytes:
    """Returns the content of a regular file of at most `limit` bytes. Raises Refusal as `opened` does."""
    content = bytearray()
    with opened(path, limit) as file:
        while part := file.read(2**20):
            content += part
            if len(content) > limit:  # a file may grow while it is read, and those of /proc have the size 0
                raise _too_large(path, f"more than {limit:,} bytes", limit)
    return bytes(content)


def read_text(path: Path | str, limit: int = LARGEST) -> str:
    """Returns the text of a file, which is in UTF-8 whatever the locale, with newlines as Python has them.

    Raises Refusal as `opened` does, and for other bytes than UTF-8.
    """
    content = read_bytes(path, limit)
    try:
        return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise Refusal(f"{path} cannot be read as text: {error}; write it in UTF-8") from None


def read_json(path: Path | str, limit: int = LARGEST_JSON) -> Any:
    """Returns what a file of JSON holds. Raises Refusal as `opened` does, and for anything but JSON."""
    content = read_bytes(path, limit)
    try:
        return json.loads(content)
    except RecursionError:
        raise Refusal(f"{path} cannot be read as JSON: it is nested too deeply") from None
    except ValueError as error:  # of JSON, of Unicode, of a whole number of too many digits
        raise Refusal(f"{path} cannot be read as JSON: {str(error).partition(';')[0]}") from None


def not_read(path: Path | str, error: OSError) -> Refusal:
    """Returns the refusal that says in one line which file could not be read, why, and what to do.

    >>> not_read("table.csv", PermissionError(13, "Permission denied"))
    Refusal('table.csv cannot be read: Permission denied; make it readable, or name another')
    """
    remedy = "make it readable, or name another" if isinstance(error, PermissionError) else "name another"
    return Refusal(f"{path} cannot be read: {error.strerror or error}; {remedy}")


def _too_large(path: Path | str, size: str, limit: int) -> Refusal:
    return Refusal(f"{path} has {size}: a file of its kind may have at most {limit:,}, so name another")


def _kind_of_file(mode: int) -> str:
    """Returns what a file is that is no regular one, in words."""
    return "a directory" if stat.S_ISDIR(mode) else "a FIFO" if stat.S_ISFIFO(mode) else "a device"


def first_line_of_docstring(path: Path) -> str:
    """Returns what a module says of itself, without importing it."""
    return (ast.get_docstring(ast.parse(read_text(path))) or "").split("\n")[0]


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file so that a reader, or a crash, meets the old content or the new, never a part.

    Raises Refusal if the disk is full or the directory cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise not_written(path, error) from error


def write_json(path: Path, value: Any) -> None:
    """Writes a value as indented JSON, whole or not at all. NaN and infinities, which JSON lacks, become null."""
    write_whole(path, json.dumps(_as_json(value), indent=2, allow_nan=False) + "\n")


def _as_json(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _as_json(item) for key, item in value.items()}
        case list() | tuple():
            return [_as_json(item) for item in value]
    return value


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a table as CSV, whole or not at all."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_whole(path, table.getvalue())


def remove_directory(path: Path) -> None:
    """Deletes a directory so that under its name there is all of it or nothing."""
    partial = path.with_name(f".{path.name}.old{PARTIAL}")
    path.rename(partial)
    shutil.rmtree(partial, ignore_errors=True)


def remove_unfinished(directory: Path) -> None:
    """Deletes what killed processes left half written or half deleted in a directory that nobody else writes to."""
    for path in directory.glob(f".*{PARTIAL}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def not_written(path: Path, error: Exception) -> Refusal:
    """Returns the refusal that says in one line which file could not be written, why, and what to do.

    >>> not_written(Path("table.csv"), OSError(28, "No space left on device"))
    Refusal('table.csv cannot be written: No space left on device; free some and repeat the command')
    """
    return Refusal(f"{path} cannot be written: {reason(error)}")


def reason(error: Exception) -> str:
    """Returns what went wrong, in one line, and what to do about a file that cannot be written."""
    code = getattr(error, "errno", None)
    if in_tensorstore := re.search(r"os_error_code='(\d+)'", str(error)):  # its own words take several lines
        code = int(in_tensorstore[1])
    words = os.strerror(code) if code else (str(error).splitlines() or [type(error).__name__])[0][:200]
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{words}; free some and repeat the command"
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{words}; choose a directory that you may write to"
    return words


def versions() -> dict[str, str]:
    """Returns what the numbers depend on: versions of Python and of packages, the device, and whether x64 is on."""
    by_package = {}
    for package in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scipy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # the library needs only some of them
            by_package[package] = importlib.metadata.version(package)
    device = jax.devices()[0]
    settings = {"device": f"{device.platform} ({device.device_kind})", "x64": str(jax.config.values["jax_enable_x64"])}
    return {"python": platform.python_version()} | by_package | settings
