"""Files that are written whole or not at all, and the versions that made them."""

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
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax

from softmax_jax.refusal import Refusal

PARTIAL = ".softmax_jax-partial"
"""How the name of a file or directory ends that is being written or deleted. A killed process leaves it behind."""


def read_bytes(path: Path) -> bytes:
    """Returns the content of a file that a person named. Raises Refusal, with its name, if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise not_read(path, error) from error


def read_text(path: Path) -> str:
    """Returns the text of a file in UTF-8, whatever the locale. Raises Refusal, with its name, if it is not so."""
    try:
        return io.TextIOWrapper(io.BytesIO(read_bytes(path)), "utf-8").read()
    except UnicodeDecodeError as error:
        raise Refusal(f"{path} is not text in UTF-8 ({problem(error)}): name another file, or convert it") from None


def read_json(path: Path, *names: str) -> Any:
    """Returns what a file of JSON holds: if any names are given, an object with at least these.

    Raises Refusal, with the file's name, for anything else.
    """
    data = read_bytes(path)
    try:
        content = json.loads(data)
    except RecursionError:
        raise Refusal(f"{path} cannot be read as JSON: it is nested too deeply") from None
    except ValueError as error:
        raise Refusal(f"{path} cannot be read as JSON: {problem(error)}") from None
    if lacking := [name for name in names if not isinstance(content, dict) or name not in content]:
        raise Refusal(f"{path} lacks {', '.join(lacking)}: it is another file, or not as it was written")
    return content


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file. Raises Refusal, with its name, if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise not_read(path, error) from error


def exists(path: Path) -> bool:
    """Says whether a path that a person gave leads to something. Raises Refusal if that cannot be looked at."""
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


def not_read(path: Path, error: OSError) -> Refusal:
    """Returns the refusal that says in one line which file could not be read, and why.

    >>> not_read(Path("table.csv"), OSError(2, "No such file or directory"))
    Refusal('table.csv cannot be read: No such file or directory: name another file, or restore it')
    """
    return Refusal(f"{path} cannot be read: {problem(error)}: name another file, or restore it")


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
