"""What do rounded products leave of max retrieval? The ceiling for any model, and what models answer.

    python -m studies.precision --checkpoints checkpoints/paper runs/paper_10_19
    python -m studies.ablation --groups precision --seeds 2 --sets 512 --lengths 16 64 256 1024 4096 16384 \
        --output recipes
    python -m studies.precision --recipes recipes

`studies.ceilings` has the formula of the ceiling.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import altair as alt
import numpy as np
import polars as pl
from scipy.optimize import least_squares

from softmax_jax.experiment.commands.parse import UnlessGiven
from softmax_jax.experiment.measures.agreement import MARGIN
from softmax_jax.experiment.measures.evaluation import evaluate
from softmax_jax.experiment.measures.frames import read_csv
from softmax_jax.experiment.measures.references import REFERENCES
from softmax_jax.experiment.measures.significance import over_seeds, paired_p_value
from softmax_jax.experiment.measures.summary import summarize
from softmax_jax.experiment.measures.table import BASELINE, KEYS
from softmax_jax.experiment.report import charts, tables
from softmax_jax.experiment.report.accuracy import ACCURACY, CHOSEN_BY, LENGTHS, UNCONFIRMED, published_cells
from softmax_jax.experiment.report.charts import palette
from softmax_jax.experiment.tasks import rounded_products as products
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.run_directory import SHIPPED
from softmax_jax.files import read_json
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.refusal import Refusal
from studies.ceilings import ceilings, ties
from studies.common import BEST, SOFT_TO_SHARP, Loaded, RunOptions, load_runs, start
from studies.recipes import BASE, PRECISION

NORMALIZERS = ("softmax", "adaptive", "ssmax", "hardmax")
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


def accuracies(run: Loaded, lengths: Sequence[int], sets: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Returns the accuracy of a run with its errors in sets without ties, in percent of sets, and its ceilings."""
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


def read_recipes(directory: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Returns the accuracies that `studies.ablation --groups precision` wrote, and the ceilings of their sets.

    Raises Refusal for a directory that holds none.
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
    rates = {
        name: "constant" if "constant" in recipe_settings["schedule"] else "falling"
        for name, recipe_settings in settings.items()
    }
    frame = measured.select(
        precision=recipe.replace_strict(
            {name: recipe_settings["matmul"] for name, recipe_settings in settings.items()}
        ),
        rounded=recipe.replace_strict({name: recipe_settings["rounded"] for name, recipe_settings in settings.items()}),
        rate=recipe.replace_strict(rates),
        **{name: pl.col(name) for name in ("normalizer", "n", "seed", "accuracy")},
    )
    evaluation: dict[str, Any] = {"lengths": written["settings"]["lengths"], "sets": written["settings"]["sets"]}
    seeds, precisions = (frame[name].unique(maintain_order=True).to_list() for name in ("seed", "precision"))
    return frame, ceilings(MaxRetrieval(), precisions, seeds=seeds, **evaluation)


def without_model() -> dict[int, float]:
    """Returns a curve of two numbers through the five cells that chose the recipe, from 100 % down to chance.

    accuracy(n) = 10 + 90 / (1 + (n / n₀)ᵏ), by least squares: what agreement is worth that needs no model.
    """

    def curve(numbers: np.ndarray, n: Sequence[int]) -> np.ndarray:
        return 10 + 90 / (1 + (np.asarray(n) / np.exp(numbers[0])) ** numbers[1])

    published = [ACCURACY[BASELINE][n] for n in CHOSEN_BY]
    fit = least_squares(lambda numbers: curve(numbers, CHOSEN_BY) - published, (7.0, 1.0))
    return dict(zip(LENGTHS, curve(fit.x, LENGTHS).tolist()))


def say_curve() -> str:
    """Returns in words in how many of the cells that chose nothing this curve agrees, put into both rows."""
    curve = without_model()
    cells = [(name, n) for name in ACCURACY for n in LENGTHS if name != BASELINE or n not in CHOSEN_BY]
    agree = {cell: abs(curve[cell[1]] - ACCURACY[cell[0]][cell[1]]) < MARGIN for cell in cells}
    sourced = [agrees for (_, n), agrees in agree.items() if n not in UNCONFIRMED]
    return (
        f"A curve of two numbers through the five cells that chose the recipe, put into both rows, agrees in "
        f"{sum(agree.values())} of the other {len(cells)}; in {sum(sourced)} of the {len(sourced)} with a source."
    )


class Compared(NamedTuple):
    """A published accuracy beside ours."""

    n: int
    difference: float
    """Ours less the published, in points."""
    agrees: bool
    """Says whether the 95 % interval of ours holds the published, or they lie less than `MARGIN` apart."""
    interval: float
    """Half of that interval; 0 for a single seed."""


def compare(summary: pl.DataFrame, row: Mapping[int, float]) -> list[Compared]:
    """Compares a published row with the summary of one normalizer, at the lengths of both."""
    ours = summary.filter(pl.col("n").is_in(list(row))).select("n", "accuracy", "interval").rows()
    apart = [(n, accuracy - row[n], interval or 0.0) for n, accuracy, interval in ours]
    return [Compared(n, off, abs(off) < max(MARGIN, interval), interval) for n, off, interval in apart]


def verdict(compared: Mapping[str, Sequence[Compared]]) -> str:
    """Says how many cells agree, counts those without a source apart, and says how far each row is off."""
    cells = [cell for row in compared.values() for cell in row]
    squares = {name: [cell.difference**2 for cell in row] for name, row in compared.items() if row}
    apart = ", ".join(f"{name} {sum(row) / len(row):.1f}" for name, row in squares.items())
    sourced, others = (
        [cell.agrees for cell in cells if (cell.n in UNCONFIRMED) == unconfirmed] for unconfirmed in (False, True)
    )
    unread = f", and {sum(others)} of {len(others)} without a source that could be read" if others else ""
    return f"{sum(sourced)} of {len(sourced)} cells agree with the published{unread}; mean squared difference: {apart}"


def mean_gain(frame: pl.DataFrame, row: Iterable[int], name: str = "adaptive") -> str | None:
    """Says what a normalizer gains over softmax in the mean of the published lengths, by one test.

    None where the frame has no such lengths, or not both normalizers.
    """
    shown = frame.filter(pl.col("normalizer").is_in([BASELINE, name]), pl.col("n").is_in(list(row)))
    means = shown.group_by("normalizer", "seed", maintain_order=True).agg(pl.mean("accuracy"))
    ours, baseline = (means.filter(normalizer=which)["accuracy"].to_list() for which in (name, BASELINE))
    p = paired_p_value(ours, baseline)
    if p is None:
        return None
    gains = np.subtract(ours, baseline).tolist()
    return (
        f"{name} gains {tables.with_interval(gains, '.2f')} points over {BASELINE} in the mean of "
        f"{shown['n'].n_unique()} lengths, from {shown['n'].min()} to {shown['n'].max()} items: p = {p:.1g}, "
        f"{sum(gain > 0 for gain in gains)} of {len(gains)} seeds gain"
    )


def cells_table(accuracy: pl.DataFrame, ceiling: pl.DataFrame) -> str:
    """Returns both published rows beside those of each run, with the ceiling of the first; and the verdicts.

    A cell that chose the recipe is marked †, one without a source *; ours is bold where it does not agree.
    """
    runs = accuracy["run"].unique(maintain_order=True).to_list()
    means = ceiling.filter(run=runs[0]).group_by("n").agg(pl.mean("ceiling"))
    rows = {n: [f"{n:,}", f"{mean:.1f}"] for n, mean in means.sort("n").rows()}
    for name, row in ACCURACY.items():
        for n, cell in published_cells(name, row, list(rows)).items():
            rows[n].append(cell)
    verdicts, columns = [], ["items", "ceiling", *(f"published {name}" for name in ACCURACY)]
    for run in runs:
        run_accuracy = accuracy.filter(run=run).drop("run")
        summary = summarize(run_accuracy.sort("n", maintain_order=True))
        compared = {name: compare(summary.filter(normalizer=name), row) for name, row in ACCURACY.items()}
        for name, cells in compared.items():
            columns.append(f"{run}, {name}")
            for mean, cell in zip(summary.filter(normalizer=name)["accuracy"], cells):
                shown = f"{mean:.1f} ± {cell.interval:.1f}"
                rows[cell.n].append(shown if cell.agrees else f"**{shown}**")
        verdicts.append(f"{run}: {verdict(compared)}. {mean_gain(run_accuracy, LENGTHS)}.")
    return "\n\n".join([tables.markdown_table(columns, rows.values()), *verdicts, say_curve()])


def gains(accuracy: pl.DataFrame) -> pl.DataFrame:
    """Returns what each normalizer gains over softmax, with its interval and its tests, by run and length."""
    summaries = [
        summarize(run_accuracy.drop("run")).select(pl.lit(run).alias("run"), "normalizer", "n", *GAIN)
        for (run,), run_accuracy in accuracy.group_by("run", maintain_order=True)
    ]
    return pl.concat(summaries).filter(pl.col("normalizer") != BASELINE)


def with_best(recipes: pl.DataFrame) -> pl.DataFrame:
    """Returns softmax, adaptive, and at each length the constant temperature with the best mean over seeds."""
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
        charts.named_lines(panel_rows, x, y, charts.panel_title(f"products in {name}"), colours=colours, **size)
        for (name,), panel_rows in drawn.group_by("precision", maintain_order=True)
    ]
    title = charts.chart_title(
        "Accuracy follows items × rounding step while the key is precise",
        f"mean of {falling['seed'].n_unique()} seeds; every product rounded, a falling rate",
    )
    return alt.vconcat(*panels).properties(title=title)


def in_steps(frame: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows of rounded precisions with `steps`, the items of a set times the spacing of ρ near 1."""
    spacing = pl.col("precision").replace_strict(products.SPACING, default=None, return_dtype=pl.Float64)
    return frame.with_columns(steps=pl.col("n") * spacing).drop_nulls("steps")


def study(arguments: Arguments) -> None:
    """Measures, draws, writes."""
    recipes = read_recipes(arguments.recipes) if arguments.recipes else ()
    runs = load_runs(arguments.checkpoints)
    run_frames = [accuracies(run, arguments.lengths, arguments.sets) for run in runs]
    accuracy, ceiling = (
        pl.concat(frame.select(pl.lit(run.name).alias("run"), pl.all()) for run, frame in zip(runs, frames))
        for frames in zip(*run_frames)
    )
    frames = {"accuracy": accuracy, "ceilings": ceiling, "gains": gains(accuracy)}
    drawn = {"published": published_chart(accuracy, ceiling)}
    written = {"cells": cells_table(accuracy, ceiling)}
    if recipes:
        frames |= dict(zip(("recipes", "recipe_ceilings"), recipes))
        drawn["steps"] = steps_chart(*recipes)
    arguments.write("precision", frames, drawn, written)


if __name__ == "__main__":
    start(Arguments, __doc__, study)
