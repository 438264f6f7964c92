"""Runs to be measured: loaded together, with the normalizers and the lengths to show of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from softmax_jax.experiment.measures.evaluation import named_normalizers
from softmax_jax.experiment.training.config import Config, changed
from softmax_jax.experiment.training.run import Parameters
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.refusal import Refusal

COLUMNS = 6
"""Lengths that a table shows side by side."""
SHORTEST = 16
"""Of a task's own lengths, the least to show unless others are asked for."""
CALLED = {SHIPPED.resolve() / "paper": "our replication"}
"""Names of runs, where not those of their directories."""


class Loaded(NamedTuple):
    """A run with the normalizers to show of it."""

    name: str
    path: Path
    config: Config
    parameters: Parameters
    normalizers: dict[str, Normalizer | None]


def load_runs(
    paths: Sequence[Path], specs: Sequence[str], fits_by_default: bool = True, **changes: Any
) -> list[Loaded]:
    """Loads runs, with changed settings, before anything is measured, as one may be damaged or missing.

    Raises ValueError for that, and unless all are of one task. The normalizers are those of `named_normalizers`.
    """
    runs = []
    for name, path in zip(names_of(paths), paths):
        config, parameters = load_checkpoint(path)
        named = named_normalizers(specs, path, parameters, config.normalizer, fits_by_default)
        runs.append(Loaded(name, path, changed(config, **changes), parameters, named))
    tasks = list(dict.fromkeys(run.config.task.name for run in runs))
    if len(tasks) > 1:
        raise Refusal(f"the runs are of {' and '.join(tasks)}: they must be of one task, so leave one out")
    return runs


def names_of(paths: Sequence[Path]) -> list[str]:
    """Returns names for the runs: those of their directories, or whole paths where those are the same."""
    short = [CALLED.get(path.resolve(), path.resolve().name) for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def lengths_to_show(lengths: Sequence[int], asked: Sequence[int] = (), most: int = 2**20) -> list[int]:
    """Returns the lengths without short ones that nobody asked for, or at most so many, with the first and the last.

    >>> lengths_to_show([2**power for power in range(1, 15)], most=6)
    [16, 64, 256, 1024, 4096, 16384]
    """
    lengths = [n for n in lengths if n in asked or n >= SHORTEST] or lengths
    places = np.linspace(0, len(lengths) - 1, min(len(lengths), most)).round()
    return [lengths[int(place)] for place in places]
