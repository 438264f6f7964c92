"""What do rounded products leave of max retrieval? The ceiling for any model, and what models answer.

    python -m studies.precision --checkpoints checkpoints/paper runs/paper_10_19
    python -m studies.ablation --groups precision --seeds 2 --sets 512 --lengths 16 64 256 1024 4096 16384 \
        --output recipes
    python -m studies.precision --recipes recipes

`studies.ceilings` has the formula of the ceiling.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import altair as alt
import numpy as np
import polars as pl
from jaxtyping import Float

from softmax_jax.experiment.commands.parse import UnlessGiven
from softmax_jax.experiment.measures.agreement import MARGIN, Agreement, Rows, with_nulls
from softmax_jax.experiment.measures.ceiling import accuracy_of_ties, significant_bits
from softmax_jax.experiment.measures.evaluation import evaluate
from softmax_jax.experiment.measures.frames import read_csv
from softmax_jax.experiment.measures.references import REFERENCES
from softmax_jax.experiment.measures.significance import corrected, half_width, over_seeds, paired_p_value
from softmax_jax.experiment.measures.table import BASELINE, KEYS
from softmax_jax.experiment.report import charts, tables
from softmax_jax.experiment.report.accuracy import ACCURACY, LENGTHS, published_cells
from softmax_jax.experiment.report.charts import GREY, palette
from softmax_jax.experiment.report.tables import number_or_dash, with_interval
from softmax_jax.experiment.tasks import rounded_products as products
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.run_directory import SHIPPED
from softmax_jax.files import read_json
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.refusal import Refusal
from studies.ceilings import ceilings, ties
from studies.common import BEST, SOFT_TO_SHARP, RunOptions, TrainedRun, load_runs, start
from studies.recipes import BASE, PRECISION

NORMALIZERS = ("softmax", "adaptive", "ssmax", "hardmax")
PUBLISHED_P = {16: 0.4, 64: 0.002, 256: 2e-4, 1024: 1e-4, 4096: 0.02, 16384: 4e-3}
"""Published p of the paired t-test over ten seeds, second-hand like the accuracies."""
ROUNDED, NO_MODEL = "bfloat16", "no model"
RECIPE = ["precision", "rounded", "rate"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(RunOptions):
    """Options of the command line."""

    tables: ClassVar[tuple[str, ...]] = ("cells", "nulls", "gains")

    recipes: UnlessGiven[Path | None] = None
    """Directory that `python -m studies.ablation --groups precision` wrote, to write its data and chart as well."""
    checkpoints: tuple[Path, ...] = (SHIPPED / "paper",)
    """Directories of the runs to hold against the published table, of different seeds."""
    lengths: tuple[int, ...] = LENGTHS
    """Items per set to test them at."""
    sets: int = 2048
    """Sets per seed and length."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not published_lengths(self.lengths):
            raise Refusal(f"--lengths is {self.lengths}: one must be among the published, {LENGTHS}")


def published_lengths(lengths: Iterable[int]) -> list[int]:
    """Returns those of these lengths at which accuracies are published, in order."""
    measured = set(lengths)
    return [n for n in LENGTHS if n in measured]


def accuracies(run: TrainedRun[MaxRetrieval], lengths: Sequence[int], sets: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Returns the accuracy of a run with its errors in sets without ties, in percent of sets, and its ceilings."""
    task, seeds = run.task, run.seeds
    named = {name: normalizer(name) for name in NORMALIZERS}
    frames = []
    for measured in evaluate(
        run.parameters, named, seeds=seeds, lengths=lengths, sets=sets, measures=("accuracy",), task=task
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


def models_of_all_runs(accuracy: pl.DataFrame) -> tuple[list[int], dict[str, Rows]]:
    """Returns the published lengths, and by normalizer the accuracies of all runs: a row a seed, a column a length."""
    lengths = published_lengths(accuracy["n"])
    ordered = accuracy.filter(pl.col("n").is_in(lengths)).sort("n", "run", "seed")
    shape = (len(lengths), -1)
    by_name = {name: ordered.filter(normalizer=name)["accuracy"].to_numpy().reshape(shape).T for name in NORMALIZERS}
    return lengths, by_name


def cells_table(accuracy: pl.DataFrame, ceiling: pl.DataFrame) -> str:
    """Returns both published rows beside those of all models, the ceiling, and the reference without a model.

    A cell that chose the recipe is marked †, one without a source *; ours is bold where its 90 % interval over seeds
    leaves `MARGIN` points around the published number.
    """
    lengths, models = models_of_all_runs(accuracy)
    means = dict(ceiling.group_by("n").agg(pl.mean("ceiling")).rows())
    columns = {"items": [f"{n:,}" for n in lengths], "ceiling": [f"{means[n]:.1f}" for n in lengths]}
    columns[NO_MODEL] = [f"{without_model(n):.1f}" for n in lengths]
    for name, row in ACCURACY.items():
        columns[f"published {name}"] = list(published_cells(name, row, lengths).values())
        columns[f"ours, {name}"] = [
            shown if equivalent(values, row[n]) else f"**{shown}**"
            for n, values in zip(lengths, models[name].T)
            for shown in [with_interval(values.tolist())]
        ]
    return tables.markdown_table(list(columns), zip(*columns.values()))


def without_model(n: int) -> float:
    """Returns the accuracy of one of the items that tie after rounding to `ROUNDED`, in percent."""
    return accuracy_of_ties(significant_bits(ROUNDED), n)


def equivalent(accuracies: Float[np.ndarray, " seeds"], published: float) -> bool:
    """Says whether the 90 % interval of the mean over seeds lies within `MARGIN` of the published accuracy."""
    half = half_width(accuracies.tolist(), level=0.9) or 0.0
    return bool(abs(accuracies.mean() - published) + half < MARGIN)


def nulls_table(accuracy: pl.DataFrame) -> str:
    """Returns how near the models lie to the published rows, and how near rows lie that replicate nothing."""
    lengths, models = models_of_all_runs(accuracy)
    baseline, method = ([row[n] for n in lengths] for row in ACCURACY.values())
    rows = [
        [name, f"{row.baseline:.2f}", f"{row.method:.2f}", shown_gain(row), f"{row.equivalent} of {row.cells}"]
        for name, row in with_nulls(models, lengths, (baseline, method)).items()
    ]
    heads = ["distance, softmax", "distance, adaptive", "mean gain", f"cells within {MARGIN}"]
    return tables.markdown_table(["", *heads], rows)


def shown_gain(row: Agreement) -> str:
    """Returns the mean gain with its interval, which one row without seeds lacks."""
    return f"{row.gain:+.2f}" + (f" ± {row.gain_interval:.2f}" if row.seeds > 1 else "")


def gains_table(gained: pl.DataFrame) -> str:
    """Returns what the adaptive temperature gains by length, with p by the paired t-test beside the published p."""
    adaptive = gained.filter(normalizer="adaptive").select("n", "gain", "gain_interval", "p_single", "p_value")
    rows = [
        [
            f"{n:,}",
            f"{gain:+.2f} ± {number_or_dash(half, '.2f')}",
            *(number_or_dash(p, ".1g") for p in p_values),
            f"{PUBLISHED_P[n]:g}" if n in PUBLISHED_P else "",
        ]
        for n, gain, half, *p_values in adaptive.rows()
    ]
    return tables.markdown_table(["items", "gain (points)", "p", f"p (Holm, {len(rows)} lengths)", "published p"], rows)


def gains(accuracy: pl.DataFrame) -> pl.DataFrame:
    """Returns what each normalizer gains over softmax by length, with its interval and its tests, over all models.

    `p_single` is of each test by itself, `p_value` corrected by Holm for the lengths of a normalizer.
    """
    lengths, models = models_of_all_runs(accuracy)
    rows = []
    for name in NORMALIZERS[1:]:
        differences = (models[name] - models[BASELINE]).T
        single = [
            paired_p_value(ours.tolist(), base.tolist()) for ours, base in zip(models[name].T, models[BASELINE].T)
        ]
        rows += [
            (name, n, float(gain.mean()), half_width(gain.tolist()), *p_values)
            for n, gain, *p_values in zip(lengths, differences, single, corrected(single))
        ]
    return pl.DataFrame(rows, ["normalizer", "n", "gain", "gain_interval", "p_single", "p_value"], orient="row")


def with_best(recipes: pl.DataFrame) -> pl.DataFrame:
    """Returns softmax, adaptive, and at each length the constant temperature with the best mean over seeds."""
    sharp = recipes.filter(pl.col("normalizer").is_in(SOFT_TO_SHARP))
    mean = pl.mean("accuracy").over([*RECIPE, "n", "normalizer"])
    best = sharp.with_columns(mean=mean).filter(pl.col("mean") == pl.max("mean").over([*RECIPE, "n"]))
    best = best.unique([*RECIPE, "n", "seed"], keep="first", maintain_order=True)
    named = best.drop("mean").with_columns(normalizer=pl.lit(BEST))
    return pl.concat([recipes.filter(pl.col("normalizer").is_in(["softmax", "adaptive"])), named])


def published_chart(accuracy: pl.DataFrame) -> charts.Chart:
    """Draws both published rows as crosses, those of all models with bands, and the reference without a model.

    Below, how far each lies above the published row that it is compared with.
    """
    lengths = published_lengths(accuracy["n"])
    shown = accuracy.filter(pl.col("normalizer").is_in(ACCURACY.keys()), pl.col("n").is_in(lengths))
    ours, ties = over_seeds(shown, ["normalizer", "n"], "accuracy"), list(map(without_model, lengths))
    reference = pl.DataFrame({"normalizer": NO_MODEL, "n": lengths, "value": ties, "low": ties, "high": ties})
    drawn = pl.concat([ours, reference.select(ours.columns)])
    rows = [(name, *cell) for name, row in ACCURACY.items() for cell in row.items()]
    published = pl.DataFrame(rows, ["normalizer", "n", "published"], orient="row")
    compared = pl.col("normalizer").replace({NO_MODEL: "adaptive"})
    apart = drawn.with_columns(compared=compared).join(
        published, left_on=["compared", "n"], right_on=["normalizer", "n"]
    )
    apart = apart.select("normalizer", "n", *(pl.col(end) - pl.col("published") for end in ("value", "low", "high")))
    colours = palette(ACCURACY) | {NO_MODEL: GREY}
    colour = charts.colour_by("normalizer", colours, legend=False)
    dash = charts.dash_by("normalizer", {name: [2, 3] if name == NO_MODEL else [1, 0] for name in colours})
    x, y = charts.length_axis(lengths), charts.percent_axis("accuracy (% of sets)")
    marks = alt.Chart(charts.data(published)).mark_point(
        shape="M-1,-1L1,1M-1,1L1,-1", size=110, strokeWidth=2, opacity=1
    )
    crosses = marks.encode(x=x, y=charts.renamed(y, "published:Q"), color=colour)
    options: dict[str, Any] = {"colours": colours, "dash": dash, "point": False, "width": 300}
    upper = charts.named_lines(drawn, x, y, charts.panel_title(""), under=[crosses], height=230, **options)
    points = alt.Y("value:Q", title="ours less published", scale=alt.Scale(domain=[-2, 3]))
    within = alt.Chart(alt.Data(values=[{"low": -MARGIN, "high": MARGIN}])).mark_rect(color=GREY, opacity=0.2)
    within = within.encode(y=charts.renamed(points, "low:Q"), y2="high:Q")
    panel = charts.panel_title(f"points above the published row (grey: ± {MARGIN})")
    lower = charts.named_lines(apart, x, points, panel, under=[within], height=120, **options)
    most = ours.join(published, on=["normalizer", "n"]).select((pl.col("value") - pl.col("published")).abs().max())
    title = charts.chart_title(
        f"Rounded to {ROUNDED}, {accuracy['seed'].n_unique()} models lie within {most.item():.1f} points of the paper",
        "crosses: published, second-hand; bands: our models, mean and 95 % over seeds;",
        "dotted: no model, one of the items that tie after rounding, at random",
    )
    return alt.vconcat(upper, lower).properties(title=title)


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
    runs = load_runs(arguments.checkpoints, MaxRetrieval)
    run_frames = [accuracies(run, arguments.lengths, arguments.sets) for run in runs]
    accuracy, ceiling = (
        pl.concat(frame.select(pl.lit(run.name).alias("run"), pl.all()) for run, frame in zip(runs, frames))
        for frames in zip(*run_frames)
    )
    frames = {"accuracy": accuracy, "ceilings": ceiling, "gains": gains(accuracy)}
    drawn = {"published": published_chart(accuracy)}
    written = {"cells": cells_table(accuracy, ceiling), "nulls": nulls_table(accuracy)}
    written["gains"] = gains_table(frames["gains"])
    if recipes:
        frames |= dict(zip(("recipes", "recipe_ceilings"), recipes))
        drawn["steps"] = steps_chart(*recipes)
    arguments.write("precision", frames, drawn, written)


if __name__ == "__main__":
    start(Arguments, __doc__, study)
