"""Tables, statistics and the picture of what `studies.dilution` measured."""

from pathlib import Path

import polars as pl

from softmax_jax.experiment.measures.units import read
from softmax_jax.files import write_csv
from softmax_jax.refusal import Refusal

CLASSES = {"rank": (True, False), "dilution": (False, True), "both": (True, True), "neither": (False, False)}
"""Why a question is answered wrong: whether the heads' rows are outranked, and diluted."""


def collect(output: Path, directory: Path) -> None:
    """Writes one CSV file of the cells and one of the heads. Raises Refusal where there are none."""
    for kind in ("cells", "heads"):
        if not (paths := sorted(output.glob(f"{kind}_*.csv"))):
            raise Refusal(f"{output} has no {kind} to put together: name the --output of a run")
        frame = pl.concat(map(read, paths))
        write_csv(directory / f"{kind}.csv", frame.columns, frame.rows())
