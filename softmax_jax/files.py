"""Files that are written whole or not at all, read only where they are files, and the versions that made them."""

import ast
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
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

PARTIAL = ".softmax_jax-partial"
"""How the name of a file or directory ends that is being written or deleted. A killed process leaves it behind."""
SMALL = 2**20
"""Most bytes of settings, of a fit, or of a list of sums; those written here have some thousand."""


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


def open_file(path: Path, most: int = sys.maxsize) -> io.BufferedReader:
    """Opens a regular file to read. Raises OSError for anything else, and for more bytes than `most`.

    A pipe would wait for its other end and a device may have no end, so neither is opened.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is a directory, a pipe or a device: put a file in its place")
    if status.st_size > most:
        raise OSError(f"{path} has {status.st_size} bytes: it must have at most {most}")
    return path.open("rb")


def read_bytes(path: Path, most: int = sys.maxsize) -> bytes:
    """Returns the bytes of a regular file. Raises as `open_file`."""
    with open_file(path, most) as file:
        return file.read()


def read_text(path: Path) -> str:
    """Returns the text of a regular file, which is in UTF-8 whatever the locale. Raises as `open_file`."""
    return read_bytes(path).decode()


def read_json(path: Path, most: int = sys.maxsize) -> Any:
    """Returns what a file of JSON holds. Raises as `open_file`, and ValueError for anything but JSON."""
    try:
        return json.loads(read_bytes(path, most))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def first_line_of_docstring(path: Path) -> str:
    """Returns what a module says of itself, without importing it."""
    return (ast.get_docstring(ast.parse(read_text(path))) or "").split("\n")[0]


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


class Printed(io.FileIO):
    """A terminal, a pipe or a file that is printed to. Once it takes no more, the rest goes nowhere."""

    def write(self, data: Any) -> int:
        """Writes as `io.FileIO` does. A failure is said on stderr, unless the reader of a pipe has what it wanted."""
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if error.errno != errno.EPIPE:
                print(f"warning: what is printed gets lost from here on: {reason(error)}", file=sys.stderr)
            return memoryview(data).nbytes


def print_to_the_end() -> None:
    """Lets no printing end the work: a closed pipe is put up with, and characters that a terminal lacks become `?`."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream and stream is getattr(sys, f"__{name}__"):  # not what tests or notebooks have put there
            stream.flush()
            raw = io.BufferedWriter(Printed(stream.fileno(), "w", closefd=False))
            setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, "replace", line_buffering=stream.line_buffering))


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
    """Returns what the numbers depend on: versions of Python and of packages, the device, and whether x64 is on."""
    by_package = {}
    for package in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scipy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # the library needs but some of them
            by_package[package] = importlib.metadata.version(package)
    device = jax.devices()[0]
    settings = {"device": f"{device.platform} ({device.device_kind})", "x64": str(jax.config.values["jax_enable_x64"])}
    return {"python": platform.python_version()} | by_package | settings
