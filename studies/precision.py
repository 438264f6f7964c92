r"""What rounded products leave of max retrieval: the best that any model can answer, beside what models do answer.

A product that reads ρ rounded to a spacing δ cannot tell items of one step apart. The answer is then the class of one
of those that share the highest step, and the best guess is the commonest class among them:

$$\text{ceiling} = \operatorname{mean}_{\text{sets}} \; \max_c \frac{\#\{i \text{ at the top}: \kappa_i = c\}}{\#\{i
\text{ at the top}\}}.$$

It is computed on the very sets that models are tested on, with nothing trained and nothing fitted.

    python -m studies.precision --checkpoints checkpoints/paper runs/paper_10_19
    python -m studies.ablation --groups precision --seeds 2 --sets 512 --lengths 16 64 256 1024 4096 16384 \
        --output recipes
    python -m studies.precision --recipes recipes
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import altair as alt
import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Array, Bool, Float, Key
from scipy.optimize import least_squares

from softmax_jax.experiment.commands.parse import UnlessGiven
from softmax_jax.experiment.measures.evaluation import REFERENCES, evaluate, set_keys, summarize
from softmax_jax.experiment.measures.frames import read_csv
from softmax_jax.experiment.measures.significance import over_seeds
from softmax_jax.experiment.measures.table import KEYS
from softmax_jax.experiment.report import charts, tables
from softmax_jax.experiment.report.accuracy import (
    ACCURACY,
    LENGTHS,
    MARGIN,
    UNCONFIRMED,
    compare,
    mean_gain,
    published_cells,
    verdict,
)
from softmax_jax.experiment.report.charts import BASELINE, palette
from softmax_jax.experiment.tasks import rounded_products as products
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.run_directory import SHIPPED
from softmax_jax.files import read_json
from softmax_jax.normalizers.masking import reaches
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.refusal import Refusal
from studies.ablation import BASE, PRECISION
from studies.common import BEST, SOFT_TO_SHARP, Loaded, RunOptions, load_runs, start

NORMALIZERS = ("softmax", "adaptive", "ssmax", "hardmax")
CHOSEN_BY = (16, 64, 256, 1024, 4096)
"""Lengths whose published accuracies under softmax chose the recipe of `paper`, on sets of another key."""
GAIN = ("gain", "gain_interval", "p_value", "p_max_t", "detectable")
RECIPE = ["precision", "rounded", "rate"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(RunOptions):
    """Options of the command line."""

    tables: ClassVar[tuple[str, ...]] = ("cells",)

    recipes: UnlessGiven[Path | None] = None
    """Directory that `python -m studies.ablation --groups precision` wrote, to write its data and chart as well."""
    checkpoints: tuple[Path, ...] = (SHIPPED / "paper",)
    """Directories of the runs to hold against the published table, of different seeds."""
    lengths: tuple[int, ...] = LENGTHS
    """Items per set to test them at."""
    sets: int = 2048
    """Sets per seed and length."""


class Ties(NamedTuple):
    """What rounding leaves of each set."""

    chance: Float[np.ndarray, "*sets"]
    """That the best guess is right: the share of the commonest class among the items that share the largest ρ."""
    tied: Bool[np.ndarray, "*sets"]
    """Whether there is more than one such item."""


def ties(task: MaxRetrieval, precision: str, *, seeds: Sequence[int], n: int, sets: int) -> Ties:
    """Of the sets that an evaluation draws, in its order: arrays over seeds and sets."""
    keys = set_keys(seeds, n, sets)
    found = _ties(task, precision, n, keys.ravel())
    return Ties(*(np.asarray(values).reshape(keys.shape) for values in found))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _ties(
    task: MaxRetrieval, precision: str, n: int, keys: Key[Array, " sets"]
) -> tuple[Float[Array, " sets"], Bool[Array, " sets"]]:
    def of_set(key: Key[Array, ""]) -> tuple[Array, Array]:
        items = task.test_batch(key, n, 1).items[0]
        rho = items[:, 0] if precision == products.FLOAT32 else products.rounded_to(precision, items[:, 0])
        at_top = jnp.where(reaches(rho, rho.max())[:, None], items[:, 1:], 0).sum(0)
        return at_top.max() / at_top.sum(), at_top.sum() > 1

    return jax.lax.map(of_set, keys, batch_size=task.at_once(n))


def ceilings(
    task: MaxRetrieval, precisions: Sequence[str], *, seeds: Sequence[int], lengths: Sequence[int], sets: int
) -> pl.DataFrame:
    """By precision, n and seed in percent of sets: the `ceiling`, its standard `deviation` by chance, and those `tied`.

    The best guesser of all is right in each set by chance, so it may exceed the ceiling by a few deviations.
    """
    rows = []
    for precision in precisions:
        for n in lengths:
            chance, tied = ties(task, precision, seeds=seeds, n=n, sets=sets)
            deviation = 100 * np.sqrt((chance * (1 - chance)).sum(1)) / sets
            of_seeds = zip(seeds, 100 * chance.mean(1), deviation, 100 * tied.mean(1))
            rows += [(precision, n, *map(float, of_seed)) for of_seed in of_seeds]
    columns = {"precision": pl.String, "n": pl.Int64, "seed": pl.Int64}
    columns |= dict.fromkeys(("ceiling", "deviation", "tied"), pl.Float64)
    return pl.DataFrame(rows, columns, orient="row")


def accuracies(run: Loaded, lengths: Sequence[int], sets: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Accuracy of a run and errors in sets that rounding leaves decidable, in percent of sets; and its ceilings."""
    _, task, parameters, seeds = run
    named = {name: normalizer(name) for name in NORMALIZERS}
    frames = []
    for measured in evaluate(
        parameters, named, seeds=seeds, lengths=lengths, sets=sets, measures=("accuracy",), task=task
    ):
        tied = ties(task, task.matmul, seeds=seeds, n=measured.n, sets=sets).tied
        wrong = 100 - measured.values["accuracy"]
        untied = np.where(tied[..., None], 0, wrong).mean(1).T.ravel()
        frames.append(measured.frame().with_columns(wrong_untied=pl.Series(untied, dtype=pl.Float64)))
    return pl.concat(frames), ceilings(task, [task.matmul], seeds=seeds, lengths=lengths, sets=sets)


def of_recipes(directory: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The accuracies that `studies.ablation --groups precision` wrote, and the ceilings of their sets.

    Raises ValueError for a directory that holds none.
    """
    try:
        measured = read_csv(directory / "accuracy.csv", "group", "recipe", *KEYS, "accuracy").filter(
            pl.col("group").is_in([BASE, PRECISION])
        )
        measured = measured.filter(~pl.col("normalizer").is_in(REFERENCES))  # which is told by the exact ρ
        written = read_json(directory / "ablation.json", "recipes", "settings")
    except Refusal:
        measured, written = pl.DataFrame({"group": []}), {}
    if PRECISION not in measured["group"]:
        raise Refusal(f"--recipes is {directory}: it must hold what studies.ablation --groups {PRECISION} wrote")
    recipe = measured.select(pl.format("{}: {}", "group", "recipe")).to_series()
    settings = {name: written["recipes"][name] for name in recipe.unique()}
    rates = {name: "constant" if "constant" in one["schedule"] else "falling" for name, one in settings.items()}
    frame = measured.select(
        precision=recipe.replace_strict({name: one["matmul"] for name, one in settings.items()}),
        rounded=recipe.replace_strict({name: one["rounded"] for name, one in settings.items()}),
        rate=recipe.replace_strict(rates),
        **{name: pl.col(name) for name in ("normalizer", "n", "seed", "accuracy")},
    )
    asked: dict[str, Any] = {"lengths": written["settings"]["lengths"], "sets": written["settings"]["sets"]}
    seeds, precisions = (frame[name].unique(maintain_order=True).to_list() for name in ("seed", "precision"))
    return frame, ceilings(MaxRetrieval(), precisions, seeds=seeds, **asked)


def without_model() -> dict[int, float]:
    """Returns a curve of two numbers through the five cells that chose the recipe, from 100 % down to chance.

    accuracy(n) = 10 + 90 / (1 + (n / n₀)ᵏ), by least squares: what agreement is worth that needs no model.
    """

    def curve(numbers: np.ndarray, n: Sequence[int]) -> np.ndarray:
        return 10 + 90 / (1 + (np.asarray(n) / np.exp(numbers[0])) ** numbers[1])

    published = [ACCURACY[BASELINE][n] for n in CHOSEN_BY]
    found = least_squares(lambda numbers: curve(numbers, CHOSEN_BY) - published, (7.0, 1.0))
    return dict(zip(LENGTHS, curve(found.x, LENGTHS).tolist()))


def without_model_says() -> str:
    """Says in how many of the cells that chose nothing that curve agrees, put into both rows."""
    curve = without_model()
    cells = [(name, n) for name in ACCURACY for n in LENGTHS if name != BASELINE or n not in CHOSEN_BY]
    agree = {cell: abs(curve[cell[1]] - ACCURACY[cell[0]][cell[1]]) < MARGIN for cell in cells}
    sourced = [agrees for (_, n), agrees in agree.items() if n not in UNCONFIRMED]
    return (
        f"A curve of two numbers through the five cells that chose the recipe, put into both rows, agrees in "
        f"{sum(agree.values())} of the other {len(cells)}; in {sum(sourced)} of the {len(sourced)} with a source."
    )


def cells_table(accuracy: pl.DataFrame, ceiling: pl.DataFrame) -> str:
    """Returns both published rows beside those of each run, with the ceiling of the first; and the verdicts.

    A cell that chose the recipe is marked †, one without a source *; ours is bold where it does not agree.
    """
    runs = accuracy["run"].unique(maintain_order=True).to_list()
    means = ceiling.filter(run=runs[0]).group_by("n").agg(pl.mean("ceiling"))
    rows = {n: [f"{n:,}", f"{mean:.1f}"] for n, mean in means.sort("n").rows()}
    for name, row in ACCURACY.items():
        for n, cell in published_cells(row, list(rows)).items():
            rows[n].append(cell + ("†" if name == BASELINE and n in CHOSEN_BY else ""))
    verdicts, columns = [], ["items", "ceiling", *(f"published {name}" for name in ACCURACY)]
    for run in runs:
        of_run = accuracy.filter(run=run).drop("run")
        summary = summarize(of_run.sort("n", maintain_order=True))
        compared = {name: compare(summary.filter(normalizer=name), row) for name, row in ACCURACY.items()}
        for name, cells in compared.items():
            columns.append(f"{run}, {name}")
            for mean, cell in zip(summary.filter(normalizer=name)["accuracy"], cells):
                shown = f"{mean:.1f} ± {cell.interval:.1f}"
                rows[cell.n].append(shown if cell.agrees else f"**{shown}**")
        verdicts.append(f"{run}: {verdict(compared)}. {mean_gain(of_run, LENGTHS)}.")
    return "\n\n".join([tables.markdown_table(columns, rows.values()), *verdicts, without_model_says()])


def gains(accuracy: pl.DataFrame) -> pl.DataFrame:
    """Returns what each normalizer gains over softmax, with its interval and its tests, by run and length."""
    summaries = [
        summarize(of_run.drop("run")).select(pl.lit(run).alias("run"), "normalizer", "n", *GAIN)
        for (run,), of_run in accuracy.group_by("run", maintain_order=True)
    ]
    return pl.concat(summaries).filter(pl.col("normalizer") != BASELINE)


def with_best(recipes: pl.DataFrame) -> pl.DataFrame:
    """Softmax, adaptive, and at each length that constant temperature whose mean over seeds is the best of nine."""
    sharp = recipes.filter(pl.col("normalizer").is_in(SOFT_TO_SHARP))
    mean = pl.mean("accuracy").over([*RECIPE, "n", "normalizer"])
    best = sharp.with_columns(mean=mean).filter(pl.col("mean") == pl.max("mean").over([*RECIPE, "n"]))
    best = best.unique([*RECIPE, "n", "seed"], keep="first", maintain_order=True)
    named = best.drop("mean").with_columns(normalizer=pl.lit(BEST))
    return pl.concat([recipes.filter(pl.col("normalizer").is_in(["softmax", "adaptive"])), named])


def published_chart(accuracy: pl.DataFrame, ceiling: pl.DataFrame) -> charts.Chart:
    """Draws both published rows as crosses, those of the first run with bands, and the ceiling in grey, by items."""
    first = accuracy["run"][0]
    accuracy, ceiling = (frame.filter(run=first).drop("run") for frame in (accuracy, ceiling))
    top = ceiling.select("n", "seed", normalizer=pl.lit("ceiling of rounding"), accuracy="ceiling")
    ours = accuracy.filter(pl.col("normalizer").is_in(ACCURACY.keys())).select(top.columns)
    drawn = over_seeds(pl.concat([ours, top]), ["normalizer", "n"], "accuracy")
    rows = [(name, *cell) for name, row in ACCURACY.items() for cell in row.items()]
    published = pl.DataFrame(rows, ["normalizer", "n", "value"], orient="row")
    x, y = charts.length_axis(sorted(set(ours["n"]))), charts.percent_axis("accuracy (% of sets)")
    colours = palette(ACCURACY) | {"ceiling of rounding": charts.GREY}
    colour = charts.colour_by("normalizer", colours, legend=False)
    crosses = alt.Chart(charts.data(published)).mark_point(shape="M-1,-1L1,1M-1,1L1,-1", size=90, opacity=1)
    summary = summarize(accuracy.sort("n", maintain_order=True))
    cells = [cell for name, row in ACCURACY.items() for cell in compare(summary.filter(normalizer=name), row)]
    title = charts.chart_title(
        f"Products rounded to {ceiling['precision'][0]} give {sum(cell.agrees for cell in cells)} of "
        f"{len(cells)} published accuracies",
        "crosses: published (arXiv 2410.01104, Table 1, second-hand);",
        f"lines: ours, {charts.mean_of(accuracy['seed'].n_unique(), ', 95 % band')}",
    )
    options: dict[str, Any] = {"colours": colours, "under": [crosses.encode(x=x, y=y, color=colour)], "point": False}
    return charts.named_lines(drawn, x, y, title, **options, width=300, height=300)


def steps_chart(recipes: pl.DataFrame, ceilings: pl.DataFrame) -> charts.Chart:
    """Draws accuracy by the number of items times the spacing of ρ, a panel for each precision, at a falling rate.

    The ceiling, which is nearly one curve for all, is grey.
    """
    falling = with_best(recipes).filter(pl.col("rate") == "falling", pl.col("rounded") == products.PLACES[-1])
    ours = over_seeds(in_steps(falling), ["precision", "normalizer", "steps"], "accuracy").drop("low", "high")
    top = over_seeds(in_steps(ceilings), ["precision", "steps"], "ceiling").drop("low", "high")
    top = top.with_columns(normalizer=pl.lit("ceiling"))
    steps = top["steps"].to_list()
    scale = alt.Scale(type="log", base=2, domain=[min(steps), max(steps)], nice=False)
    fractions = "datum.value < 1 ? '1/' + 1 / datum.value : datum.value"
    axis = alt.Axis(values=[2.0**power for power in range(-6, 11, 2)], labelExpr=fractions)
    x = alt.X("steps:Q", title="items × rounding step of ρ (log scale)", scale=scale, axis=axis)
    y = charts.percent_axis("accuracy (% of sets)")
    colours = {"softmax": palette(["softmax"])["softmax"], BEST: palette(["temperature"])["temperature"]}
    colours |= {"ceiling": charts.GREY}
    drawn = pl.concat([top.select(ours.columns), ours]).filter(pl.col("normalizer").is_in(colours))
    size: dict[str, Any] = {"width": 310, "height": 150}
    panels = [
        charts.named_lines(of_one, x, y, charts.panel_title(f"products in {name}"), colours=colours, **size)
        for (name,), of_one in drawn.group_by("precision", maintain_order=True)
    ]
    title = charts.chart_title(
        "Accuracy follows items × rounding step while the key is precise",
        f"mean of {falling['seed'].n_unique()} seeds; every product rounded, a falling rate",
    )
    return alt.vconcat(*panels).properties(title=title)


def in_steps(frame: pl.DataFrame) -> pl.DataFrame:
    """With the items of a set times the spacing of ρ near 1 as `steps`; without float32, which has none to speak of."""
    spacing = pl.col("precision").replace_strict(products.SPACING, default=None, return_dtype=pl.Float64)
    return frame.with_columns(steps=pl.col("n") * spacing).drop_nulls("steps")


def study(asked: Arguments) -> None:
    """Measures, draws, writes."""
    recipes = of_recipes(asked.recipes) if asked.recipes else ()
    runs = load_runs(asked.checkpoints)
    found = [accuracies(run, asked.lengths, asked.sets) for run in runs]
    accuracy, ceiling = (
        pl.concat(frame.select(pl.lit(run.name).alias("run"), pl.all()) for run, frame in zip(runs, frames))
        for frames in zip(*found)
    )
    frames = {"accuracy": accuracy, "ceilings": ceiling, "gains": gains(accuracy)}
    drawn = {"published": published_chart(accuracy, ceiling)}
    written = {"cells": cells_table(accuracy, ceiling)}
    if recipes:
        frames |= dict(zip(("recipes", "recipe_ceilings"), recipes))
        drawn["steps"] = steps_chart(*recipes)
    asked.write("precision", frames, drawn, written)


if __name__ == "__main__":
    start(Arguments, __doc__, study)
