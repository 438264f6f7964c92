"""How β must grow by the distribution of the logits, as Markdown tables and as a chart."""

from collections.abc import Sequence

import altair as alt
import numpy as np
import polars as pl

from softmax_jax.measures.statistics import half_width, over_seeds
from softmax_jax.report import charts, markdown
from softmax_jax.report.colours import palette
from softmax_jax.studies.extremes_growth import PERFECT, RULES, growth, off_by

TABLES = ("growth", "rules")
"""Marks of the page."""
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


def shortest_of(lengths: Sequence[int]) -> int:
    """From where growth is measured: 256 items, or the shortest length there is beyond."""
    return min((n for n in lengths if n >= 256), default=min(lengths))


def growth_table(frame: pl.DataFrame, shortest: int) -> str:
    """The slopes of log β in log n and in log log n: of a perfect key, and of the models with their intervals."""
    columns = ["ρ", "expected", "slope in", "perfect key, β½", *(f"models, {name}" for name in MEASURED.values())]
    found = {field: growth(frame, field, shortest) for field in MEASURED}
    rows = []
    for priority in frame["priority"].unique(maintain_order=True):
        for slope, name in (("power", "log n"), ("log_power", "log log n")):
            of_priority = {field: table.filter(priority=priority) for field, table in found.items()}
            perfect = of_priority["half"].filter(seed=PERFECT)[slope].to_list()
            models = [table.filter(pl.col("seed") != PERFECT)[slope].to_list() for table in of_priority.values()]
            rows.append([priority, EXPECTED[priority], name, mean_of(perfect), *map(mean_of, models)])
    return markdown.table(columns, rows)


def rules_table(frame: pl.DataFrame, shortest: int) -> str:
    """By which factor each rule misses β½ at the longest length, if it is right at the shortest."""
    missed = off_by(frame, "half", shortest).filter(pl.col("seed") != PERFECT)
    rows = [
        [str(priority), *(mean_of(of_priority[rule].to_list(), ".2g") for rule in RULES)]
        for (priority,), of_priority in missed.group_by("priority", maintain_order=True)
    ]
    return markdown.table(["ρ", *RULES], rows)


def mean_of(values: Sequence[float | None], form: str = ".2f") -> str:
    """The mean of the seeds, with half its interval where there are several; a dash where one is missing."""
    known = [value for value in values if value is not None and np.isfinite(value)]
    if len(known) < len(values) or not known:
        return "–"
    half = half_width(known)
    return f"{np.mean(known):{form}}" + (f" ± {half:{form}}" if half is not None else "")


def growth_chart(frame: pl.DataFrame) -> charts.Chart:
    """β½ by length, relative to that at the shortest: a line for each distribution, thin for a perfect key."""
    shortest = frame["n"].min()
    first = frame.filter(n=shortest).select("priority", "seed", first="half")
    relative = frame.join(first, on=["priority", "seed"]).with_columns(relative=pl.col("half") / pl.col("first"))
    relative = relative.filter(pl.col("relative").is_finite())
    colours = palette(frame["priority"].unique(maintain_order=True))
    colour, height = charts.colour_by("priority", colours, legend=False), 380
    scale = alt.Scale(type="log", base=2, domain=[0.5, float(relative["relative"].to_numpy().max())], nice=False)
    x = charts.length_axis(sorted(set(frame["n"])))
    y = alt.Y("value:Q", title=f"β½, relative to that at {shortest} items", scale=scale)
    perfect, models = (
        over_seeds(part, ["priority", "n"], "relative", 0.0)
        for _, part in relative.group_by(pl.col("seed") != PERFECT, maintain_order=True)
    )
    layers = charts.lines(perfect.drop("low", "high"), x, y, colour, point=False, width=1.0)
    layers += [*charts.lines(models, x, y, colour), *charts.ends(models, x, y, colour, height)]
    title = charts.chart_title(
        "How must β grow for the largest weight to stay at one half?",
        "models trained on 16 items, mean and 95 % band; thin: a perfect key, nothing fitted",
    )
    return alt.layer(*layers).properties(width=520, height=height, title=title)
