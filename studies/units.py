"""Units of a long study: each is one call of a compiled program, and leaves one CSV file.

The programs of later units are compiled by threads while earlier units are computed, which on a GPU hides most of it.
Nothing here draws, so that it runs where no chart can be made.
"""

import dataclasses
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from softmax_jax.files import write_csv


@dataclasses.dataclass(frozen=True)
class Unit:
    """A part of the work: a call of a compiled program whose output becomes the rows of a CSV file."""

    name: str
    columns: tuple[str, ...]
    program: str
    fun: Callable[..., Any]
    args: Callable[[bool], tuple[Any, ...]]
    """Returns the arguments, or if False some of the same shapes that need no other unit."""
    rows: Callable[[Any], Any]
    needs: str = ""
    """The unit whose file the arguments are read from."""


def compute(units: Sequence[Unit], output: Path, seconds: float) -> None:
    """Computes the units whose files are not there yet, and starts none after so many seconds.

    Next comes the first whose program is compiled and whose arguments are there. One that fails is told of, and costs
    none of the others.
    """
    started = time.monotonic()
    missing = [unit for unit in units if not (output / f"{unit.name}.csv").exists()]
    print(f"{len(missing)} missing", flush=True)
    lowering, programs = threading.Lock(), dict[str, Future[Any]]()

    def compiled(unit: Unit) -> Any:
        with lowering:
            lowered = jax.jit(unit.fun).lower(*unit.args(False))
        return lowered.compile()

    with ThreadPoolExecutor(8) as pool:
        for unit in missing:
            if unit.program not in programs:
                programs[unit.program] = pool.submit(compiled, unit)
        while missing:
            before = time.monotonic() - started
            possible = [unit for unit in missing if not unit.needs or (output / f"{unit.needs}.csv").exists()]
            if before > seconds or not possible:
                print(f"stopped after {before:.0f} s, {len(missing)} units missing", flush=True)
                pool.shutdown(wait=False, cancel_futures=True)
                break
            unit = next((unit for unit in possible if programs[unit.program].done()), possible[0])
            missing.remove(unit)
            try:
                result = programs[unit.program].result()(*unit.args(True))
                write_csv(output / f"{unit.name}.csv", unit.columns, unit.rows(jax.tree.map(np.asarray, result)))
                now = time.monotonic() - started
                print(f"{now:6.1f} s: {unit.name} ({now - before:.1f})", flush=True)
            except Exception:
                print(f"FAILED {unit.name}: {traceback.format_exc(limit=-3)}", flush=True)
