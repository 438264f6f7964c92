"""Computes a long study in units, each of which writes one CSV file. Draws nothing, so that it runs without charts."""

import dataclasses
import re
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from softmax_jax.experiment.measures.frames import read_csv
from softmax_jax.files import read_json, write_csv
from softmax_jax.refusal import Refusal


@dataclasses.dataclass(frozen=True)
class Unit:
    """A part of the work, which computes the rows of one CSV file."""

    name: str
    columns: tuple[str, ...]
    rows: Callable[[], Iterable[tuple[Any, ...]]]
    needs: str = ""
    """The unit whose file it reads, if any."""


def slug(name: str) -> str:
    """Returns a name that a file can have."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_")


def read(path: Path) -> pl.DataFrame:
    """Returns the rows that a unit wrote."""
    return read_csv(path, schema_overrides={"text": pl.String, "loss": pl.Float64})


def settings_file(output: Path, settings: Mapping[str, Any], differing: str) -> Path:
    """Returns the file for the settings of the units. Raises Refusal where it has units of `differing` ones."""
    file = output / "versions.json"
    before = read_json(file) if file.exists() else settings
    if {**before, **settings} != before:
        raise Refusal(f"{output} has {differing}: choose another --output")
    return file


def collect(output: Path, directory: Path, kinds: Iterable[str]) -> dict[str, pl.DataFrame]:
    """Writes one CSV file of all units of a kind, and returns its rows. Raises Refusal where a kind has none."""
    frames = {}
    for kind in kinds:
        if not (paths := sorted(output.glob(f"{kind}_*.csv"))):
            raise Refusal(f"{output} has no {kind} to put together: name the --output of a run")
        frames[kind] = frame = pl.concat(map(read, paths), how="vertical_relaxed")
        write_csv(directory / f"{kind}.csv", frame.columns, frame.rows())
    return frames


def compute(units: Sequence[Unit], output: Path) -> None:
    """Computes in order the units whose files are missing.

    After an error the other units go on, but for those that need the failed one; the first error is raised at the end.
    A Refusal is raised at once.
    """
    started, failed = time.monotonic(), []
    missing = [unit for unit in units if not (output / f"{unit.name}.csv").exists()]
    print(f"{len(missing)} of {len(units)} parts to compute", flush=True)
    for unit in missing:
        before = time.monotonic() - started
        if unit.needs and not (output / f"{unit.needs}.csv").exists():
            print(f"{unit.name} needs {unit.needs}, which is missing", flush=True)
            continue
        try:
            write_csv(output / f"{unit.name}.csv", unit.columns, unit.rows())
        except Refusal:
            raise
        except Exception as error:
            print(f"FAILED {unit.name}: {traceback.format_exc(limit=-3)}", flush=True)
            failed.append(error)
        else:
            now = time.monotonic() - started
            print(f"{now:6.1f} s: {unit.name} ({now - before:.1f})", flush=True)
    if failed:
        raise failed[0]
