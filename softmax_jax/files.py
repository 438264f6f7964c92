"""Files that are written whole or not at all, and the versions that made them."""

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
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax

from softmax_jax.refusal import Refusal

PARTIAL = ".softmax_jax-partial"
"""How the name of a file or directory ends that is being written or deleted. A killed process leaves it behind."""


def read_text(path: Path) -> str:
    """Returns the text of a file, which is in UTF-8 whatever the locale."""
    return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """Returns what a file of JSON holds. Raises ValueError for anything but JSON."""
    try:
        return json.loads(path.read_bytes())
    except RecursionError:
        raise Refusal("it is nested too deeply") from None


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
