"""Frames from files that a command wrote, or that a person brings."""

from pathlib import Path
from typing import Any

import polars as pl

from softmax_jax.files import problem, read_bytes
from softmax_jax.refusal import Refusal


def read_csv(path: Path, *columns: str, **options: Any) -> pl.DataFrame:
    """Returns the table in a file of CSV, read with these options of polars; it has at least these columns.

    Raises Refusal, with the file's name, for anything else.
    """
    data = read_bytes(path)
    try:
        frame = pl.read_csv(data, **options)
    except pl.exceptions.PolarsError as error:
        raise Refusal(f"{path} cannot be read as CSV: {problem(error)}: remove it, or restore it from a copy") from None
    return _with_columns(path, frame, columns)


def read_json_lines(path: Path, *columns: str) -> pl.DataFrame:
    """Returns the table in a file with an object of JSON on each line. Raises as `read_csv` does."""
    data = read_bytes(path)
    try:
        frame = pl.read_ndjson(data)
    except pl.exceptions.PolarsError as error:
        raise Refusal(f"{path} cannot be read: {problem(error)}: remove it, or restore it from a copy") from None
    return _with_columns(path, frame, columns)


def _with_columns(path: Path, frame: pl.DataFrame, columns: tuple[str, ...]) -> pl.DataFrame:
    if lacking := [name for name in columns if name not in frame.columns]:
        raise Refusal(f"{path} lacks the column {', '.join(lacking)}: name another file, or make it anew")
    return frame
