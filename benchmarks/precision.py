"""Error of the weights of every normalizer by the length of the row: float32 against float64, in ulp.

    python -m benchmarks.precision
    python -m benchmarks.precision --write docs/data/precision.csv

The first prints the table, the second writes it. An ulp is the distance from a float32 to the next. The logits are
float32, drawn from N(0, 3²), the same for all; `jax.nn.softmax` takes part as the peer.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl

import softmax_jax as sj
from softmax_jax.experiment.commands.parse import parse
from softmax_jax.experiment.commands.process import one_line_errors
from softmax_jax.files import write_csv

LENGTHS = (1, 16, 256, 4096, 65536)
ENTRIES = 2**18
"""Logits of each length: so many rows as make them up, but at most `ROWS`."""
ROWS = 256
PEER = "jax.nn.softmax"
MATTERS = 1e-3
"""Share of the largest weight of its row from which on the error of a weight counts in its own ulp."""


@dataclasses.dataclass(frozen=True)
class Error:
    """The worst errors of some rows, in ulp."""

    of_largest: float
    """Of any weight, in ulp of the largest of its row."""
    own: float
    """Of the weights that matter, in their own ulp."""


def logits_of(n: int) -> np.ndarray:
    """The rows of a length."""
    rows = max(1, min(ROWS, ENTRIES // n))
    return np.random.default_rng(n).normal(scale=3, size=(rows, n)).astype(np.float32)


def in_float64(weigh: Callable[[jax.Array], jax.Array], logits: np.ndarray) -> np.ndarray:
    """The weights of these logits, computed in float64."""
    with jax.enable_x64(True):
        return np.asarray(jax.jit(weigh)(jnp.asarray(logits, jnp.float64)))


def error(weigh: Callable[[jax.Array], jax.Array], logits: np.ndarray) -> Error:
    """The worst error of the float32 weights of these logits."""
    expected = in_float64(weigh, logits)
    miss = np.abs(np.asarray(jax.jit(weigh)(jnp.asarray(logits)), np.float64) - expected)
    largest = np.abs(expected).max(-1, keepdims=True)
    matters = np.abs(expected) >= MATTERS * largest
    return Error(float((miss / ulp(largest)).max()), float((miss / ulp(expected))[matters].max()))


def ulp(weights: np.ndarray) -> np.ndarray:
    """The distance from a weight to the next float32.

    >>> float(ulp(np.array(1.0))) == 2.0**-23
    True
    """
    return np.spacing(np.abs(weights).astype(np.float32)).astype(np.float64)


def contenders() -> Mapping[str, Callable[[jax.Array], jax.Array]]:
    """By name, the peer first."""
    ours: dict[str, Callable[[jax.Array], jax.Array]] = {name: sj.normalizer(name) for name in sj.METHODS}
    return {PEER: jax.nn.softmax, **ours}


def table() -> pl.DataFrame:
    """Returns the errors by normalizer and length."""
    rows = [
        (name, n, *(round(ulp, 1) for ulp in dataclasses.astuple(error(weigh, logits_of(n)))))
        for name, weigh in contenders().items()
        for n in LENGTHS
    ]
    return pl.DataFrame(rows, ["normalizer", "n", "of_largest", "own"], orient="row")


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    write: Path | None = None
    """File to write the table to, instead of printing it."""


def main() -> None:
    """Measures, and prints or writes the table."""
    arguments = parse(Arguments, description=__doc__)
    with one_line_errors():
        errors = table()
        if arguments.write is None:
            print(errors.write_csv())
        else:
            write_csv(arguments.write, errors.columns, errors.rows())


if __name__ == "__main__":
    main()
