"""Files that are read only where they end, files that are written whole or not at all, and what made them."""

import ast
import contextlib
import csv
import errno
import hashlib
import importlib.metadata
import io
import json
import math
import os
import platform
import re
import shlex
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


def read_json(path: Path | str, *names: str, limit: int = LARGEST_JSON) -> Any:
    """Returns what a file of JSON holds: if any names are given, an object with at least these.

    Raises Refusal, with the file's name, as `opened` does, and for anything else.
    """
    content = read_bytes(path, limit)
    try:
        value = json.loads(content)
    except RecursionError:
        raise Refusal(f"{path} cannot be read as JSON: it is nested too deeply") from None
    except ValueError as error:  # of JSON, of Unicode, of a whole number of too many digits
        raise Refusal(f"{path} cannot be read as JSON: {str(error).partition(';')[0]}") from None
    if lacking := [name for name in names if not isinstance(value, dict) or name not in value]:
        raise Refusal(f"{path} lacks {', '.join(lacking)}: it is another file, or not as it was written")
    return value


def not_read(path: Path | str, error: OSError) -> Refusal:
    """Returns the refusal that says in one line which file could not be read, why, and what to do.

    >>> not_read("table.csv", PermissionError(13, "Permission denied"))
    Refusal('table.csv cannot be read: Permission denied; make it readable, or name another')
    """
    remedy = "make it readable, or name another" if isinstance(error, PermissionError) else "name another"
    return Refusal(f"{path} cannot be read: {problem(error)}; {remedy}")


def _too_large(path: Path | str, size: str, limit: int) -> Refusal:
    return Refusal(f"{path} has {size}: a file of its kind may have at most {limit:,}, so name another")


def _kind_of_file(mode: int) -> str:
    """Returns what a file is that is no regular one, in words."""
    return "a directory" if stat.S_ISDIR(mode) else "a FIFO" if stat.S_ISFIFO(mode) else "a device"


def sha256_of(path: Path, limit: int) -> str:
    """Returns the SHA-256 of a regular file of at most `limit` bytes. Raises Refusal as `opened` does."""
    with opened(path, limit) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def exists(path: Path) -> bool:
    """Returns True if a path that a person gave leads to something. Raises Refusal if it cannot be looked at."""
    try:
        return path.exists()
    except OSError as error:  # too long a name, a directory that may not be entered
        raise not_read(path, error) from error


def typed(value: object) -> str:
    """Returns a path, or a text such as a normalizer, as it is typed in a command line.

    >>> typed(Path("my runs/x")), typed("ssmax(s=0.43)"), typed("softmax")
    ("'my runs/x'", "'ssmax(s=0.43)'", 'softmax')
    """
    return shlex.quote(str(value))


def first_line_of_docstring(path: Path) -> str:
    """Returns the first line of the docstring of a module, without importing it."""
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


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Appends lines to a file. Raises Refusal if the disk is full or the file cannot be written."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    except OSError as error:
        raise not_written(path, error) from error


def make_directory(path: Path) -> None:
    """Makes a directory and those above it, unless they are there. Raises Refusal if it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
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
    try:
        path.rename(partial)
    except OSError as error:
        raise Refusal(f"{path} cannot be removed: {reason(error)}") from error
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
    code, words = number_of(error), problem(error)
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{words}; free some and repeat the command"
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{words}; choose a directory that you may write to"
    return words


def problem(error: Exception) -> str:
    """Returns what went wrong, in one line."""
    code = number_of(error)
    return os.strerror(code) if code else (str(error).splitlines() or [type(error).__name__])[0][:200]


def number_of(error: Exception) -> int | None:
    """Returns the number of the system's error that this one is, or that TensorStore tells of; None for any other.

    >>> [number_of(error) for error in (OSError(28, "no space"), ValueError("os_error_code='27'"), KeyError("x"))]
    [28, 27, None]
    """
    in_tensorstore = re.search(r"os_error_code='(\d+)'", str(error))  # its own words take several lines
    return int(in_tensorstore[1]) if in_tensorstore else getattr(error, "errno", None)


def versions() -> dict[str, str]:
    """Returns what the numbers depend on: versions of Python and of packages, the device, and whether x64 is on."""
    by_package = {}
    for package in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scipy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # the library needs only some of them
            by_package[package] = importlib.metadata.version(package)
    device = jax.devices()[0]
    settings = {"device": f"{device.platform} ({device.device_kind})", "x64": str(jax.config.values["jax_enable_x64"])}
    return {"python": platform.python_version()} | by_package | settings
