r"""How fast must β grow with n? As the inverse of the gap between the largest logits, which their distribution decides.

    python -m studies.extremes

Takes 15 minutes on 2 cores.

The weight of the largest logit is one half where the others sum to as much as it does:

$$\operatorname{mean}_{\text{rows}} \Big(\sum_j e^{-\beta_{1/2} (z_{(1)} - z_j)}\Big)^{-1} = \tfrac12 .$$

A head is trained on sets of 16 items whose ρ has one of several distributions, and β½ is measured at each length.
It is compared with that of a perfect key, whose logits are ρ itself: nothing is trained there and nothing fitted.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import altair as alt
import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Float
from rich.console import Console

from softmax_jax.experiment.commands.output import check_directory
from softmax_jax.experiment.commands.parse import each_within, within
from softmax_jax.experiment.configs import load_preset
from softmax_jax.experiment.measures.evaluation import evaluate
from softmax_jax.experiment.measures.significance import over_seeds
from softmax_jax.experiment.report import charts, tables
from softmax_jax.experiment.report.charts import by_size
from softmax_jax.experiment.report.tables import with_interval
from softmax_jax.experiment.tasks.max_retrieval import NEEDLE, QUANTILES
from softmax_jax.experiment.training.config import Config, changed
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.experiment.training.run_directory import load_checkpoint
from softmax_jax.experiment.training.train import train
from softmax_jax.normalizers.maps import softmax
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.scales import InverseTemperature
from studies.common import Options, start

BETAS = tuple(2.0 ** (power / 2) for power in range(-24, 33))
"""From 1/4,096, for models, whose logits are steep, to 65,536, for a perfect key; β½ is found between them.

A grid that ended at 1/16 would end above the β½ of most models.
"""
RULES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda n: 1.0,
    "(log n)^½": lambda n: math.log(n) ** 0.5,
    "log n": math.log,
    "(log n)²": lambda n: math.log(n) ** 2,
    "n^¼": lambda n: n**0.25,
    "n^½": lambda n: n**0.5,
    "n": float,
}
"""How β grows by the rules that are in use, and by those of extreme values."""
Row = tuple[str, int, int, float, float]
"""A priority, a seed (-1 for the perfect key), n, β½, and the β of the least loss, NaN where there is none."""
COLUMNS = {"priority": pl.String, "seed": pl.Int64, "n": pl.Int64, "half": pl.Float64, "best": pl.Float64}
PERFECT = -1
EXPECTED = {
    "uniform": "n",
    "beta_2": "n^½",
    "beta_4": "n^¼",
    "gaussian": "(log n)^½",
    "exponential": "constant",
    "needle": "log n",
}
"""What extreme values say of each distribution, as n grows without bound."""
MEASURED = {"half": "β½", "best": "β of the least loss"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(Options):
    """Options of the command line."""

    tables: ClassVar[tuple[str, ...]] = ("growth",)

    quick: bool = False
    """A look in a few minutes: two seeds, a tenth of the steps, up to 4,096 items."""
    lengths: tuple[int, ...] = tuple(4**power for power in range(2, 9))
    """Items per set, from 16 to 65,536."""
    sets: int = 64
    """Sets per seed and length; of the perfect key four times as many."""
    workdir: Path = Path("runs") / "extremes"
    """Directory for the runs, which are continued where they were stopped; finished ones are kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        each_within("--lengths", self.lengths, 16, 2**20, 1024)
        within("--sets", self.sets, 1, 2**14, 64)
        check_directory("--workdir", self.workdir)

    def config(self, priority: str) -> Config:
        """Returns the recipe of a model: that of the frontier, shorter."""
        steps, seeds = (2_000, 2) if self.quick else (20_000, 4)
        return changed(load_preset("frontier"), steps=steps, batch=32, seeds=seeds, priority=priority)


def half_weight(betas: Sequence[float], weights: Sequence[float]) -> float:
    """Returns the β at which the mean largest weight, which rises with β, is one half; NaN beyond these β.

    Linear in log β and in the log odds of the weight between two of them.

    >>> half_weight((1.0, 4.0), (0.25, 0.75))
    2.0
    """
    odds = [math.log(max(weight, 1e-9) / max(1 - weight, 1e-9)) for weight in weights]
    if not odds[0] <= 0 <= odds[-1]:
        return math.nan
    return float(np.exp(np.interp(0.0, odds, np.log(betas))))


def least_loss(betas: Sequence[float], losses: Sequence[float]) -> float:
    """Returns the β of the least loss, by the parabola in log β through it and its neighbours; NaN at either end.

    >>> least_loss((0.5, 1.0, 2.0), (2.0, 1.0, 2.0))
    1.0
    """
    at = int(np.argmin(losses))
    if at in (0, len(losses) - 1):
        return math.nan
    below, least, above = losses[at - 1 : at + 2]
    step = math.log(betas[at + 1] / betas[at])
    return betas[at] * math.exp(step * (below - above) / 2 / (below - 2 * least + above))


def measure_perfect_key(priority: str, lengths: Sequence[int], sets: int) -> list[Row]:
    """Returns β½ of logits that are ρ itself, by length."""
    rows = []
    for n in lengths:
        weights = np.mean([largest_weights(priority, n, index) for index in range(sets)], 0)
        rows.append((priority, PERFECT, n, half_weight(BETAS, weights.tolist()), math.nan))
    return rows


def largest_weights(priority: str, n: int, index: int) -> Float[np.ndarray, " betas"]:
    """Returns the largest weight of one row of n draws of ρ, for each of `BETAS`."""
    draws = np.random.default_rng((n, index)).random(n)
    if priority == NEEDLE:
        draws[0] = 1.0
    with jax.enable_x64(True):
        rho = np.asarray(QUANTILES[priority](jnp.asarray(draws)), np.float64)
    gaps = rho.max() - rho
    return np.array([1 / np.exp(-beta * gaps).sum() for beta in BETAS])


def growth(frame: pl.DataFrame, field: str, shortest: int) -> pl.DataFrame:
    """Returns the growth of a β from `shortest` to the longest: `power`, its slope in log n, `log_power`, in log log n.

    Least squares over the lengths, for each priority and seed; null where a β is missing.
    """
    rows = []
    long = frame.filter(pl.col("n") >= shortest)
    for (priority, seed), seed_rows in long.group_by("priority", "seed", maintain_order=True):
        log_beta, log_n = np.log(seed_rows[field].to_numpy()), np.log(seed_rows["n"].to_numpy())
        missing = np.isnan(log_beta).any() or len(log_n) < 2
        slopes = [None if missing else float(np.polyfit(x, log_beta, 1)[0]) for x in (log_n, np.log(log_n))]
        rows.append((priority, seed, *slopes))
    columns = {"priority": pl.String, "seed": pl.Int64, "power": pl.Float64, "log_power": pl.Float64}
    return pl.DataFrame(rows, columns, orient="row")


def off_by(frame: pl.DataFrame, field: str, shortest: int) -> pl.DataFrame:
    """Returns the factor by which each rule misses the β of the longest length if it is right at `shortest`.

    Above 1 it is too sharp, below 1 too soft.
    """
    longest = max(frame["n"].to_list())
    ends = frame.filter(pl.col("n").is_in([shortest, longest])).pivot("n", index=["priority", "seed"], values=field)
    grown = ends[str(longest)] / ends[str(shortest)]
    rules = {name: rule(longest) / rule(shortest) for name, rule in RULES.items()}
    return ends.select("priority", "seed").with_columns(**{name: factor / grown for name, factor in rules.items()})


def measure_model(checkpoint: Path, priority: str, lengths: Sequence[int], sets: int) -> list[Row]:
    """Returns β½ and the best constant β of each seed of a run, by length."""
    config, parameters = load_checkpoint(checkpoint)
    named = {f"{beta:g}": Normalizer(softmax, InverseTemperature(beta)) for beta in BETAS}
    measured = evaluate(
        parameters,
        named,
        seeds=config.all_seeds,
        lengths=lengths,
        sets=sets,
        measures=("accuracy", "loss", "max_weight"),
        task=config.task,
    )
    rows = []
    for at_length in measured:
        for (seed,), frame in at_length.frame().group_by("seed", maintain_order=True):
            betas = half_weight(BETAS, frame["max_weight"].to_list()), least_loss(BETAS, frame["loss"].to_list())
            rows.append((priority, int(str(seed)), at_length.n, *betas))
    return rows


def measure_all(arguments: Arguments, lengths: Sequence[int], console: Console) -> Iterable[Row]:
    """Trains what is missing and yields the rows of each distribution, those of the perfect key first."""
    for priority in QUANTILES:
        console.print(f"ρ {priority}")
        yield from measure_perfect_key(priority, lengths, 4 * arguments.sets)
        directory = arguments.workdir / f"{priority}{'_quick' if arguments.quick else ''}"
        train(arguments.config(priority), directory, console)
        yield from measure_model(directory, priority, lengths, arguments.sets)


def growth_start(lengths: Sequence[int]) -> int:
    """Returns the length from which growth is measured: the shortest of at least 256 items, or the shortest of all."""
    return min((n for n in lengths if n >= 256), default=min(lengths))


def growth_frame(frame: pl.DataFrame, shortest: int) -> pl.DataFrame:
    """Returns the slopes of log β in log n and in log log n, of a perfect key and of each seed, by distribution."""
    slopes = (growth(frame, field, shortest).with_columns(beta=pl.lit(name)) for field, name in MEASURED.items())
    return pl.concat(slopes).select("priority", "beta", "seed", "power", "log_power")


def growth_table(slopes: pl.DataFrame) -> str:
    """Returns the slopes of log β in log n: of a perfect key, and of the models with their intervals."""
    rows = []
    for (priority,), priority_slopes in slopes.group_by("priority", maintain_order=True):
        perfect = priority_slopes.filter(seed=PERFECT, beta=MEASURED["half"])["power"].to_list()
        models = priority_slopes.filter(pl.col("seed") != PERFECT)
        cells = [models.filter(beta=name)["power"].to_list() for name in MEASURED.values()]
        rows.append([str(priority), EXPECTED[str(priority)], *map(mean_of, (perfect, *cells))])
    columns = ["ρ", "expected", "perfect key, β½", *(f"models, {name}" for name in MEASURED.values())]
    return tables.markdown_table(columns, rows)


def mean_of(values: Sequence[float | None], form: str = ".2f") -> str:
    """Returns the mean of the seeds, with half its interval where there are several; a dash where one is missing."""
    known = [value for value in values if value is not None and np.isfinite(value)]
    return with_interval(known, form) if known and len(known) == len(values) else "–"


def growth_chart(frame: pl.DataFrame) -> charts.Chart:
    """Draws β½ by length, relative to the shortest: a line for each distribution, thin for a perfect key."""
    shortest = frame["n"].min()
    first = frame.filter(n=shortest).select("priority", "seed", first="half")
    relative = frame.join(first, on=["priority", "seed"]).with_columns(relative=pl.col("half") / pl.col("first"))
    relative = relative.filter(pl.col("relative").is_finite())
    scale = alt.Scale(type="log", base=2, domain=[0.5, float(relative["relative"].to_numpy().max())], nice=False)
    x = charts.length_axis(sorted(set(frame["n"])))
    y = alt.Y("value:Q", title=f"β½ relative to that at {shortest} items (log scale)", scale=scale)
    perfect, models = (
        over_seeds(part, ["priority", "n"], "relative", 0.0)
        for _, part in relative.group_by(pl.col("seed") != PERFECT, maintain_order=True)
    )
    ranked = models.filter(n=frame["n"].max()).sort("value", descending=True)
    (fast, factor), (slow, least) = (ranked.select("priority", "value").row(place) for place in (0, -1))
    colours = by_size(ranked["priority"].to_list())
    colour = charts.colour_by("priority", colours, legend=False)
    thin = charts.lines(perfect.drop("low", "high"), x, y, colour, point=False, width=1.0)
    title = charts.chart_title(
        f"β½ grows {factor:,.0f}-fold under {fast} ρ, {least:.1f}-fold under {slow} ρ",
        "β½ gives the largest weight one half; models trained on 16 items,",
        "mean and 95 % band; thin: a perfect key, nothing fitted",
    )
    return charts.named_lines(models, x, y, title, field="priority", colours=colours, under=thin, width=330)


def study(arguments: Arguments) -> None:
    """Trains, measures, draws, writes."""
    lengths = sorted(n for n in arguments.lengths if n <= 4096 or not arguments.quick)
    frame = pl.DataFrame(list(measure_all(arguments, lengths, plain_console())), COLUMNS, orient="row")
    shortest = growth_start(lengths)
    slopes = growth_frame(frame, shortest)
    frames = {"betas": frame, "growth": slopes, "rules": off_by(frame, "half", shortest)}
    arguments.write("extremes", frames, {"growth": growth_chart(frame)}, {"growth": growth_table(slopes)})


if __name__ == "__main__":
    start(Arguments, __doc__, study)
