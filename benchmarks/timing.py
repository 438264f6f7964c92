"""What the tables of the benchmarks share."""

import os
import platform
import statistics
import time
from collections.abc import Sequence

import jax


def milliseconds(seconds: Sequence[float], digits: int) -> list[str]:
    """Cells with the least, the median and the most of some times."""
    return [f"{1000 * value:.{digits}f}" for value in (min(seconds), statistics.median(seconds), max(seconds))]


def machine() -> str:
    """The day and the machine, as a line under a table."""
    return f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs, {platform.machine()}, jax {jax.__version__}"
