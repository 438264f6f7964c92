"""The study of precision as Markdown tables and as charts."""

import altair as alt
import polars as pl

from softmax_jax.measures.evaluation import summarize
from softmax_jax.measures.statistics import over_seeds
from softmax_jax.report import charts, markdown
from softmax_jax.report.accuracy import accuracy_chart, compare, published_cells, verdict
from softmax_jax.report.colours import BASELINE, palette
from softmax_jax.studies.ablation import SOFT_TO_SHARP
from softmax_jax.tasks import products, published

TABLES = ("cells", "precisions")
"""Marks of the page."""
CHOSEN_BY = (16, 64, 256, 1024, 4096)
"""Lengths whose published accuracies under softmax chose the recipe of `paper`, on sets of another key."""
BEST = "best constant θ"
RECIPE = ["precision", "rounded", "rate"]


def cells_table(accuracy: pl.DataFrame, ceiling: pl.DataFrame) -> str:
    """The published rows beside ours, cell by cell, with the ceiling; and the verdict."""
    compared, rows = {}, []
    of_ceiling = dict(ceiling.group_by("n").agg(pl.mean("ceiling")).rows())
    summary = summarize(accuracy.sort("n", maintain_order=True))
    for name, row in published.ACCURACY.items():
        ours = summary.filter(normalizer=name)
        compared[name] = compare(ours, row)
        cells = published_cells(row, ours["n"].to_list())
        means = dict(ours.select("n", "accuracy").rows())
        for n, difference, agrees, half in compared[name]:
            used = "choice" if name == BASELINE and n in CHOSEN_BY else "test"
            our = f"{means[n]:.1f} ± {half:.1f}"
            said = "yes" if agrees else "**no**"
            rows.append(
                [name, str(n), used, cells[n], our, f"{round(difference, 1) + 0.0:+.1f}", said, f"{of_ceiling[n]:.1f}"]
            )
    columns = ["normalizer", "items", "used for", "published", "ours", "difference", "agrees", "ceiling"]
    return markdown.table(columns, rows) + f"\n\n{verdict(compared)}."


def recipes_table(recipes: pl.DataFrame, ceilings: pl.DataFrame) -> str:
    """Accuracy of every recipe under softmax, the adaptive temperature and the best constant one, by length."""
    lengths = sorted(set(recipes["n"]))
    columns = ["products", "rounded", "rate", *(f"{n:,} items" for n in lengths)]
    ceiling = {(precision, n): mean for precision, n, mean in _means(ceilings, ["precision", "n"], "ceiling")}
    rows = []
    for (precision, *recipe), of_recipe in with_best(recipes).group_by(RECIPE, maintain_order=True):
        if precision not in {row[0] for row in rows}:
            rows.append([str(precision), "", "*ceiling*", *(f"*{ceiling[precision, n]:.1f}*" for n in lengths)])
        means = {(name, n): mean for name, n, mean in _means(of_recipe, ["normalizer", "n"], "accuracy")}
        shown = [" / ".join(f"{means[name, n]:.1f}" for name in ("softmax", "adaptive", BEST)) for n in lengths]
        rows.append([str(precision), *map(str, recipe), *shown])
    return markdown.table(columns, rows)


def _means(frame: pl.DataFrame, keys: list[str], field: str) -> list[tuple]:
    return over_seeds(frame, keys, field).select(*keys, "value").rows()


def with_best(recipes: pl.DataFrame) -> pl.DataFrame:
    """Softmax, adaptive, and at each length that constant temperature whose mean over seeds is the best of nine."""
    sharp = recipes.filter(pl.col("normalizer").is_in(SOFT_TO_SHARP))
    mean = pl.mean("accuracy").over([*RECIPE, "n", "normalizer"])
    best = sharp.with_columns(mean=mean).filter(pl.col("mean") == pl.max("mean").over([*RECIPE, "n"]))
    best = best.unique([*RECIPE, "n", "seed"], keep="first", maintain_order=True)
    named = best.drop("mean").with_columns(normalizer=pl.lit(BEST))
    return pl.concat([recipes.filter(pl.col("normalizer").is_in(["softmax", "adaptive"])), named])


def published_chart(accuracy: pl.DataFrame, ceiling: pl.DataFrame) -> charts.Chart:
    """Both published rows, ours, and the ceiling, by number of items."""
    precision = ceiling["precision"][0]
    top = ceiling.select(pl.lit(f"ceiling of {precision}").alias("normalizer"), "n", "seed", accuracy=pl.col("ceiling"))
    ours = accuracy.filter(pl.col("normalizer").is_in(list(published.ACCURACY))).select(top.columns)
    return accuracy_chart(pl.concat([ours, top]), f"How much of the published table is {precision}?")


def steps_chart(recipes: pl.DataFrame, ceilings: pl.DataFrame) -> charts.Chart:
    """Accuracy by the number of items times the spacing of ρ: all precisions on one axis, at a falling rate."""
    falling = with_best(recipes).filter(pl.col("rate") == "falling", pl.col("rounded") == products.PLACES[-1])
    names = [name for name in products.PRECISIONS if name in set(falling["precision"]) - {products.FLOAT32}]
    colour = charts.colour_by("precision", palette(names), "products")
    panels = []
    for name in ("softmax", BEST):
        ours = over_seeds(falling.filter(normalizer=name), ["precision", "n"], "accuracy").drop("low", "high")
        top = over_seeds(ceilings, ["precision", "n"], "ceiling").drop("low", "high")
        drawn = [
            *charts.lines(in_steps(ours), steps_axis(), charts.percent_axis("accuracy (% of sets)"), colour),
            *charts.lines(
                in_steps(top),
                steps_axis(),
                charts.percent_axis("accuracy (% of sets)"),
                colour,
                point=False,
                width=1.0,
            ),
        ]
        panels.append(alt.layer(*drawn).properties(width=330, height=300, title=charts.panel_title(name)))
    title = charts.chart_title(
        "Is it one curve in items times spacing?",
        f"mean of {falling['seed'].n_unique()} seeds; thin: the ceiling; products all rounded, a falling rate",
    )
    return alt.hconcat(*panels).properties(title=title)


def in_steps(frame: pl.DataFrame) -> pl.DataFrame:
    """With the items of a set times the spacing of ρ near 1 as `steps`; without float32, which has none to speak of."""
    spacing = pl.col("precision").replace_strict(products.SPACING, default=None, return_dtype=pl.Float64)
    return frame.with_columns(steps=pl.col("n") * spacing).drop_nulls("steps")


def steps_axis() -> alt.X:
    """The column `steps`, on a scale of powers of two."""
    return alt.X("steps:Q", title="items × spacing of ρ below 1", scale=alt.Scale(type="log", base=2))
