r"""Which law of β do normalised keys need? Three are published; extreme values of a cosine say where each holds.

    python -m studies.normalised_keys --page docs/sharpness.md

Takes half an hour of CPU time; `--quick` a tenth of it.

Keys and a query lie on the unit sphere in d dimensions, and logits are β times their cosine. β½ gives one key half
the weight in the mean of rows: the *nearest* of n random keys, or a *planted* one that equals the query.

A cosine t of random directions has the density ∝ (1 - t²)^(a - 1) with a = (d - 1) / 2, and so the tail (1 - t²)^a, but
for a factor. The largest of n lies near u, the quantile of 1 - 1/n. There s = 1 - t² falls as fast as 2u t rises, and
about (s / (1 - u²))^a keys are nearer than s: one law for all n, and so with a number C of d alone

$$\beta_{1/2} = \frac{2 u\, C_d}{1 - u^2}, \qquad 1 - u^2 \approx n^{-2/(d - 1)} .$$

For log n far below d this is about √(2 d log n) · 2C/(d - 1), and far above it 2C n^(2/(d - 1)); C / a rises from 0.97
at d = 4 to 1.55. A planted key leads by a gap that does not shrink until the crowd reaches it, so there log n is right.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import altair as alt
import numpy as np
import polars as pl
import scipy.optimize
import scipy.stats
from jaxtyping import Float
from rich.console import Console

from softmax_jax.experiment.commands.output import check_directory
from softmax_jax.experiment.commands.parse import each_within, within
from softmax_jax.experiment.report import charts, tables
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.experiment.training.run_directory import read_metrics
from softmax_jax.experiment.training.train import train
from studies import extremes
from studies.common import Options, kept, start
from studies.normalised_head import NormalisedKeys

NEAREST, PLANTED = "nearest", "planted"
RHO = ("uniform", "needle")
"""The distributions of ρ that heads are trained on."""
CLASSES = 10
RIGHT = 0.9
"""The share of rows whose class is read right, at the β that is called that of the accuracy."""
STEPS = np.exp2(np.arange(-24, 9) / 4)
"""The β of a row as shares of the derived one."""
COPIES = 200
"""Draws of the bootstrap over rows."""
SHORTEST = 256
"""From this length on laws are fitted."""
Rows = list[tuple[str, int, int, list[float]]]
"""What has half the weight, d, n, and the weights of each row by β, one row after the other."""
BETAS = {
    "key": pl.String,
    "size": pl.Int64,
    "n": pl.Int64,
    "half": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "right": pl.Float64,
}
LAWS = {"key": pl.String, "size": pl.Int64, "law": pl.String, "factor": pl.Float64, "error": pl.Float64}
MODELS = {
    "priority": pl.String,
    "size": pl.Int64,
    "seed": pl.Int64,
    "right": pl.Float64,
    "n": pl.Int64,
    "half": pl.Float64,
    "best": pl.Float64,
}
LEARNED = 95.0
"""Percent of the last training batches that a head must answer right to be one that learned its task."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(Options):
    """Options of the command line."""

    tables: ClassVar[tuple[str, ...]] = ("normalised_keys", "normalised_heads")

    quick: bool = False
    """A look in a few minutes: up to 16,384 keys and 4,096 items, two seeds, a tenth of the steps."""
    sizes: tuple[int, ...] = (4, 8, 16, 32, 64, 128)
    """Dimensions d of random keys."""
    rows: int = 128
    """Rows of random keys, for each size and length."""
    trained_sizes: tuple[int, ...] = (8, 128)
    """Dimensions of the keys of trained heads."""
    workdir: Path = Path("runs") / "normalised_keys"
    """Directory for what is measured and for the runs, so that the study continues where it was stopped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, sizes in {"--sizes": self.sizes, "--trained-sizes": self.trained_sizes}.items():
            each_within(option, sizes, 4, 4096, 64)
        within("--rows", self.rows, 8, 2**14, 128)
        check_directory("--workdir", self.workdir)

    def config(self, priority: str, size: int) -> Config:
        """Returns the recipe of `studies.extremes` for a head with normalised keys."""
        recipe = extremes.Arguments(quick=self.quick).config(priority)
        task = {field.name: getattr(recipe.task, field.name) for field in dataclasses.fields(recipe.task)}  # pyright: ignore[reportArgumentType]
        return dataclasses.replace(recipe, task=NormalisedKeys(size=size, **task))


def largest_share(beta: float, power: float) -> float:
    r"""Returns the mean largest weight of logits -β s where on average s^a of them lie below s, for any s.

    $$\int_0^1 dv \int_0^\infty d\lambda\, e^{-\lambda} \exp\Big(-\int_{s(v)}^\infty
    \big(1 - e^{-\lambda e^{-\beta (x - s)}}\big)\, a x^{a - 1} dx\Big), \qquad s(v) = (-\log v)^{1/a}$$

    As 1/x = ∫ e^(-λx) dλ, and as e^(-s^a) is the share of rows without a logit before s.

    >>> round(largest_share(100.0, 1.0), 2)  # only the first counts
    0.99
    """
    (rates, of_rates), (steps, of_steps) = (np.polynomial.laguerre.laggauss(count) for count in (60, 120))
    places, of_places = np.polynomial.legendre.leggauss(60)
    first = (-np.log((places + 1) / 2)) ** (1 / power)
    density = power * (first[:, None] + steps / beta) ** (power - 1) / beta
    others = -np.expm1(-rates[:, None] * np.exp(-steps)) * np.exp(steps) * of_steps
    return float(of_rates @ np.exp(-others @ density.T) @ of_places / 2)


@functools.cache
def constant(size: int) -> float:
    """Returns C of d: the β at which the mean of `largest_share` is one half.

    >>> [round(constant(size) / ((size - 1) / 2), 2) for size in (4, 16, 128)]
    [0.97, 1.35, 1.52]
    """
    power = (size - 1) / 2
    return scipy.optimize.root_scalar(lambda beta: largest_share(beta, power) - 0.5, bracket=(0.1, 4 * size)).root


@functools.cache
def derived(n: int, size: int) -> float:
    """Returns β½ of the nearest of n keys in so many dimensions, as extreme values have it: nothing is fitted.

    >>> round(float(derived(256, 128)), 1)
    47.5
    """
    power = (size - 1) / 2
    below = float(scipy.stats.beta(power, power).ppf(1 / n))  # (1 - u) / 2, with all its digits near 0
    return 2 * (1 - 2 * below) * constant(size) / (4 * below * (1 - below))


PUBLISHED: Mapping[str, Callable[[int, int], float]] = {
    "√(2 log n)": lambda n, size: math.sqrt(2 * math.log(n)),
    "n^(2/(d-1))": lambda n, size: n ** (2 / (size - 1)),
    "log n": lambda n, size: math.log(n),
}
"""Laws of β from n and d, each up to a factor."""
DERIVED = "derived"


def row_weights(size: int, n: int, row: int) -> Float[np.ndarray, "3 betas"]:
    """Returns the weights of the nearest and of a planted key of one row, and whether its class is read right.

    The class that weighs most is read, of ten; the β are `STEPS` of the derived one.
    """
    random = np.random.default_rng((size, n, row))
    below = 2 * random.beta((size - 1) / 2, (size - 1) / 2, n)  # 1 - cosine, with all its digits near 0
    nearest = below.min()
    gaps, classes = below - nearest, random.integers(CLASSES, size=n)
    answer = classes[gaps.argmin()]
    results = []
    for beta in derived(n, size) * STEPS:
        shares = np.exp(-beta * gaps)
        total = shares.sum()
        by_class = np.bincount(classes, shares, CLASSES)
        results.append((1 / total, 1 / (1 + total * math.exp(-beta * nearest)), by_class.argmax() == answer))
    return np.array(results, float).T


def measure_keys(size: int, n: int, rows: int) -> list[tuple[float, ...]]:
    """Returns a tuple for each row: `row_weights`, flat."""
    return [tuple(row_weights(size, n, row).ravel().tolist()) for row in range(rows)]


def half_beta(size: int, n: int, weights: Float[np.ndarray, "rows betas"]) -> float:
    """Returns the β at which the mean weight is one half."""
    return extremes.half_weight((derived(n, size) * STEPS).tolist(), weights.mean(0).tolist())


def right_beta(size: int, n: int, right: Float[np.ndarray, "rows betas"]) -> float:
    """Returns the least β from which on `RIGHT` of the rows are read right."""
    enough = right.mean(0) >= RIGHT
    first = len(enough) - int(np.argmin(enough[::-1])) if not enough.all() else 0
    return float(derived(n, size) * STEPS[first]) if first < len(STEPS) else math.nan


def keys_frame(measured: Mapping[tuple[int, int], Float[np.ndarray, "rows 3 betas"]]) -> pl.DataFrame:
    """Returns β½ with the 95 % interval of a bootstrap over rows, and the β of the accuracy, by size and length."""
    rows = []
    for (size, n), weights in measured.items():
        draws = np.random.default_rng(n).integers(len(weights), size=(COPIES, len(weights)))
        right = right_beta(size, n, weights[:, 2])
        for place, key in enumerate((NEAREST, PLANTED)):
            copies = [half_beta(size, n, weights[draw, place]) for draw in draws]
            ends = np.nanquantile(copies, (0.025, 0.975)).tolist()
            beta_right = right if key == NEAREST else None
            rows.append((key, size, n, half_beta(size, n, weights[:, place]), *ends, beta_right))
    return pl.DataFrame(rows, BETAS, orient="row")


def laws_frame(betas: pl.DataFrame) -> pl.DataFrame:
    """Returns how each law fits the lengths from `SHORTEST` on.

    `factor` is the one number that fits a published law best to log β½ (of the derived one none is fitted, and it is
    1); `error` the factor by which the law misses the longest length, right at the shortest: above 1 too sharp.
    """
    rows = []
    long = betas.filter(pl.col("n") >= min(SHORTEST, betas["n"].to_numpy().max()))
    for (key, size), part in long.group_by("key", "size", maintain_order=True):
        n, half = part["n"].to_list(), part["half"].to_numpy()
        laws = {**PUBLISHED, DERIVED: derived} if key == NEAREST else PUBLISHED  # it speaks of the nearest key alone
        for name, law in laws.items():
            values = np.array([law(length, int(str(size))) for length in n])
            ratio = half / values
            factor = 1.0 if name == DERIVED else float(np.exp(np.log(ratio).mean()))
            rows.append((str(key), int(str(size)), name, factor, float(ratio[0] / ratio[-1])))
    return pl.DataFrame(rows, LAWS, orient="row")


def keys_table(betas: pl.DataFrame, laws: pl.DataFrame) -> str:
    """Returns β½ at the longest length, and by which factor each law misses it."""
    n = betas["n"].to_numpy().max()
    rows = []
    for key, size, _, half, low, high, _ in betas.filter(n=n).sort("key", "size").rows():
        errors = dict(laws.filter(key=key, size=size)["law", "error"].rows())
        against = f"{derived(n, size) / half:.2f}" if key == NEAREST else "–"
        cells = [f"{errors[name]:.2f}" for name in PUBLISHED]
        half, low, high = (f"{beta:,.0f}" if beta >= 100 else f"{beta:.1f}" for beta in (half, low, high))
        rows.append([key, str(size), f"{half} ({low} – {high})", *cells, against])
    columns = ["key", "d", f"β½ at {n:,}", *PUBLISHED, "derived / measured"]
    return tables.markdown_table(columns, rows)


def head_slopes(models: pl.DataFrame, field: str) -> dict[tuple[str, int], list[Any]]:
    """Returns the slopes of log β in log n of the trained heads that learned their task, by distribution and size."""
    shortest = extremes.growth_start(models["n"].to_list())
    learned = models.filter(pl.col("right") >= LEARNED).group_by("priority", "size", maintain_order=True)
    return {
        (str(rho), int(str(size))): extremes.growth(part, field, shortest)["power"].to_list()
        for (rho, size), part in learned
    }


def heads_table(models: pl.DataFrame) -> str:
    """Returns the slopes of the heads that learned, with their intervals."""
    slopes = [head_slopes(models, field) for field in extremes.MEASURED]
    counts = {cell: models.filter(priority=cell[0], size=cell[1])["seed"].n_unique() for cell in slopes[0]}
    rows = [
        [
            rho,
            str(size),
            f"{len(slopes[0][rho, size])} of {count}",
            *(extremes.mean_of(each[rho, size]) for each in slopes),
        ]
        for (rho, size), count in counts.items()
    ]
    return tables.markdown_table(["ρ", "d", "learned", *extremes.MEASURED.values()], rows)


def keys_chart(betas: pl.DataFrame) -> charts.Chart:
    """Draws β½ of the nearest key by length, a line for each size, and the derived law dashed."""
    nearest = betas.filter(key=NEAREST).with_columns(dimensions=pl.format("d = {}", "size"))
    law = nearest.with_columns(
        half=pl.struct("n", "size").map_elements(lambda cell: derived(cell["n"], cell["size"]), pl.Float64)
    )
    names = nearest["dimensions"].unique(maintain_order=True).to_list()
    x = charts.length_axis(nearest["n"].unique().sort().to_list())
    colour = charts.colour_by("dimensions", charts.by_size(names), "dimensions")
    y = alt.Y("half:Q", title="β½ of the nearest key (log scale)", scale=alt.Scale(type="log", nice=False))
    measured = alt.Chart(charts.data(nearest)).mark_line(point=True).encode(x=x, y=y, color=colour)
    dashed = alt.Chart(charts.data(law)).mark_line(strokeDash=[4, 3]).encode(x=x, y=y, color=colour)
    title = charts.chart_title(
        "Normalised keys: how sharp a row must be", "β that gives the nearest key half the weight; dashed: derived"
    )
    return alt.layer(measured, dashed).properties(width=330, title=title)


def powers_of_four(longest: int) -> list[int]:
    """Returns the lengths from 16 to the longest.

    >>> powers_of_four(256)
    [16, 64, 256]
    """
    return [4**power for power in range(2, 11) if 4**power <= longest]


def measure_heads(arguments: Arguments, console: Console) -> Iterator[tuple[Any, ...]]:
    """Trains the heads that are missing and yields their rows."""
    for priority in RHO:
        for size in arguments.trained_sizes:
            console.print(f"heads with keys of {size} numbers, ρ {priority}")
            directory = arguments.workdir / f"{priority}_{size}{'_quick' if arguments.quick else ''}"
            train(arguments.config(priority, size), directory, console)
            right = {line["seed"]: line["accuracy"] for line in read_metrics(directory)}  # the last of each seed
            lengths, sets = (powers_of_four(4**6), 16) if arguments.quick else (powers_of_four(4**8), 64)
            measure = functools.partial(extremes.measure_model, directory, priority, lengths, sets)
            for _, seed, *betas in kept(directory / "betas.json", {"lengths": lengths, "sets": sets}, measure):
                yield priority, size, seed, right[seed], *betas


def study(arguments: Arguments) -> None:
    """Measures, trains, draws, writes."""
    console, measured = plain_console(), {}
    for size in arguments.sizes:
        for n in powers_of_four(4**7 if arguments.quick else 4**10):
            console.print(f"{n:,} keys in {size} dimensions")
            path = arguments.workdir / f"keys_{size}_{n}.json"
            settings = {"rows": arguments.rows, "steps": STEPS.tolist()}
            rows = kept(path, settings, functools.partial(measure_keys, size, n, arguments.rows))
            measured[size, n] = np.array(rows).reshape(len(rows), 3, len(STEPS))
    betas = keys_frame(measured)
    laws = laws_frame(betas)
    models = pl.DataFrame(list(measure_heads(arguments, console)), MODELS, orient="row")
    frames = {"betas": betas, "laws": laws, "models": models}
    shown = {"normalised_keys": keys_table(betas, laws), "normalised_heads": heads_table(models)}
    arguments.write("normalised_keys", frames, {"keys": keys_chart(betas)}, shown)


if __name__ == "__main__":
    start(Arguments, __doc__, study)
