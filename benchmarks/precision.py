"""Error of the weights of every normalizer by the length of the row: float32 against float64, in ulp.

    python -m benchmarks.precision
    python -m benchmarks.precision --write docs/precision.md

The first prints the page, the second writes it. An ulp is the distance from a float32 to the next. The logits are
float32, drawn from N(0, 3²), the same for all; `jax.nn.softmax` takes part as the peer.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import softmax_jax as sj
from benchmarks.timing import machine
from softmax_jax.commands.options import one_line_errors, parse
from softmax_jax.files import write_whole

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

    def cell(self) -> str:
        """Both, as the table has them.

        >>> Error(0.53, 12.4).cell()
        '0.5 · 12'
        """
        return " · ".join(f"{ulp:.1f}" if ulp < 9.95 else f"{ulp:.0f}" for ulp in (self.of_largest, self.own))


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
    wanted = in_float64(weigh, logits)
    miss = np.abs(np.asarray(jax.jit(weigh)(jnp.asarray(logits)), np.float64) - wanted)
    largest = np.abs(wanted).max(-1, keepdims=True)
    matters = np.abs(wanted) >= MATTERS * largest
    return Error(float((miss / ulp(largest)).max()), float((miss / ulp(wanted))[matters].max()))


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


def page() -> str:
    """The page of the documentation."""
    lines = [
        "# Precision",
        "",
        "How far float32 weights are from those in float64, in ulp: the distance from one float32 to the next, which",
        "is 1.2e-7 of a number at most. In each cell first the worst error of any weight in ulp of the largest weight",
        "of its row, then the worst error in its own ulp of the weights that matter, which are at least a thousandth",
        f"of the largest. The logits are float32, drawn from N(0, 3²): {ROWS} rows, fewer where they are longer than",
        f"{ENTRIES // ROWS:,} (4 at 65,536). `{PEER}` takes part as the peer. Half-precision logits are computed in",
        "float32 too, so that the rounding of the result to their type is all that is added.",
        "",
        f"| n = | {' | '.join(f'{n:,}' for n in LENGTHS)} |",
        f"|---|{'---|' * len(LENGTHS)}",
    ]
    for name, weigh in contenders().items():
        lines.append(f"| `{name}` | {' | '.join(error(weigh, logits_of(n)).cell() for n in LENGTHS)} |")
    lines += [
        "",
        "Where the errors come from: an exponential turns the rounding of its argument into a relative error, which",
        "so grows with the distance to the largest logit, times β. The terms of the polynomial in `adaptive` nearly",
        "cancel, as 60 - 58 + 25 - 23 - 2 at H = 5, and β carries their rounding. A map that a shift changes, as in",
        "`scalable_softpick`, has its logits scaled before the largest is subtracted. Sparse weights near their",
        "threshold are differences of nearly equal numbers: far from right in their own ulp, and near in that of",
        "the largest.",
        "",
        f"Measured by `python -m benchmarks.precision --write docs/precision.md`: {machine()}.",
        "",
    ]
    return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    write: Path | None = None
    """File to write the page to, instead of printing it."""


def main() -> None:
    """Measures, and prints or writes the page."""
    arguments = parse(Arguments, description=__doc__)
    with one_line_errors():
        if arguments.write is None:
            print(page())
        else:
            write_whole(arguments.write, page())


if __name__ == "__main__":
    main()
