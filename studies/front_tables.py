"""Tables and pictures of what `studies.front` measured, from the files of its cells."""

from collections.abc import Sequence
from pathlib import Path

import altair as alt
import polars as pl

from softmax_jax.experiment.language_models.page import heads_map
from softmax_jax.experiment.measures.significance import corrected, mcnemar
from softmax_jax.experiment.measures.units import read
from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.tables import markdown_table, with_interval
from softmax_jax.files import write_csv
from softmax_jax.refusal import Refusal

SOFTMAX, LEARNED, PERMUTED, FROM_TEXT, ONE_BETA = "softmax", "learned", "permuted", "from text", "one beta"
LABELS = {LEARNED: "θ learned", PERMUTED: "θ permuted", ONE_BETA: "one β", FROM_TEXT: "θ from text"}
COLOURS = {"θ learned": "#d55e00", "θ permuted": charts.GREY, "one β": "#0072b2", "θ from text": "#009e73"}
CELL = ("kind", "seed", "budget", "length")


def collect(output: Path, directory: Path, kinds: Sequence[str]) -> None:
    """Writes one CSV file of each kind of unit. Raises Refusal where a kind is missing."""
    for kind in kinds:
        if not (paths := sorted(output.glob(f"{kind}_*.csv"))):
            raise Refusal(f"{output} has no {kind} to put together: name the --output of a run")
        frame = pl.concat(map(read, paths))
        write_csv(directory / f"{kind}.csv", frame.columns, frame.rows())


def cells_frame(answers: pl.DataFrame, losses: pl.DataFrame) -> pl.DataFrame:
    """Returns a row for each setting and length: what it finds more than softmax, and what its text costs.

    `gained` and `lost` count the questions that only one of both answers right, `net` is their difference, and `p` is
    of McNemar's exact test, which takes questions for independent, though eight share a text. `holm` is p corrected
    for all cells of learned temperatures. `cost` is the rise of the mean loss of text, in percent.
    """
    keys = ["length", "text", "question"]
    softmax = answers.filter(kind=SOFTMAX).select(*keys, plain=pl.col("right") == 1)
    others = answers.filter(pl.col("kind") != SOFTMAX).with_columns(right=pl.col("right") == 1)
    groups = others.join(softmax, keys).group_by(CELL, maintain_order=True)
    right, plain = pl.col("right"), pl.col("plain")
    counts = groups.agg(
        pl.len().alias("asked"),
        right.sum().alias("found"),
        plain.sum().alias("of_softmax"),
        gained=(right & ~plain).sum(),
        lost=(plain & ~right).sum(),
        p=pl.struct("right", "plain").implode(),
    )
    p_values = [mcnemar(*(pairs.struct.field(name).to_numpy() for name in ("right", "plain"))) for pairs in counts["p"]]
    counts = counts.with_columns(p=pl.Series(p_values, dtype=pl.Float64))
    counts = counts.with_columns(net=pl.col("gained").cast(pl.Int64) - pl.col("lost").cast(pl.Int64))
    means = losses.group_by("kind", "seed", "budget", maintain_order=True).agg(pl.mean("loss"))
    base = means.filter(kind=SOFTMAX)["loss"].item()
    costs = means.select("kind", "seed", "budget", cost=100 * (pl.col("loss") / base - 1))
    cells = counts.join(costs, ["kind", "seed", "budget"], "left", maintain_order="left")
    learned = cells.filter(kind=LEARNED)
    tests = learned.select(*CELL, holm=pl.Series(corrected(learned["p"].to_list()), dtype=pl.Float64))
    return cells.join(tests, CELL, "left", maintain_order="left")


def front_table(cells: pl.DataFrame) -> str:
    """Returns by length and budget what learned temperatures gain and cost, beside what the placebos do.

    A cell is the mean of the seeds, from two on with its 95 % interval by Student's t.
    """
    rows, learned = [], cells.filter(kind=LEARNED)
    for length, budget in learned.select("length", "budget").unique().sort("length", "budget").rows():
        each = {kind: cells.filter(kind=kind, length=length, budget=budget) for kind in (LEARNED, PERMUTED, ONE_BETA)}
        own = each[LEARNED]
        p = ", ".join(f"{value:.2g}" for value in own["holm"])
        nets = [mean(each[kind], "net", "+.1f") for kind in (PERMUTED, ONE_BETA)]
        found = f"{own['found'].mean():.1f} ({own['of_softmax'][0]} of {own['asked'][0]})"
        costs = [mean(each[kind], "cost", "+.2f") for kind in (LEARNED, PERMUTED)]
        own_cells = [f"{100 * budget:g} %", f"{length:,}", found, mean(own, "net", "+.1f"), p, costs[0]]
        rows.append([*own_cells, f"{nets[0]} ({costs[1]})", nets[1]])
    header = ["budget", "tokens", "found (under softmax)", "net gain", "p (Holm)", "cost, %"]
    return markdown_table([*header, "permuted: net (cost, %)", "one β: net"], rows)


def mean(cells: pl.DataFrame, column: str, form: str) -> str:
    """Returns the mean of a column over seeds, with its interval where there is one; a dash for no number."""
    values = cells[column].drop_nulls().cast(pl.Float64).to_list()
    return with_interval(values, form) if values else "–"


def front_chart(cells: pl.DataFrame, *title: str) -> charts.Chart:
    """Draws what each kind of temperatures finds at the shortest length by what it costs, means over seeds."""
    shortest = cells.filter(pl.col("length") == pl.col("length").min())
    share = 100 * pl.col("found") / pl.col("asked")
    means = shortest.group_by("kind", "budget", maintain_order=True).agg(share.mean().alias("value"), pl.mean("cost"))
    softmax = 100 * shortest["of_softmax"][0] / shortest["asked"][0]
    starts = pl.DataFrame({"kind": means["kind"].unique(maintain_order=True)}).with_columns(
        value=pl.lit(softmax), cost=pl.lit(0.0)
    )
    points = pl.concat([starts, means.select("kind", "value", "cost")]).with_columns(
        kind=pl.col("kind").replace_strict(LABELS)
    )
    low, high = (points.select(end).item() for end in (pl.min("cost"), pl.max("cost")))
    x = alt.X("cost:Q", title="rise of the loss of text (%)", scale=alt.Scale(domain=[low, high], nice=False))
    y = charts.percent_axis("questions answered right (%)")
    colours = {kind: colour for kind, colour in COLOURS.items() if kind in set(points["kind"])}
    options = {"field": "kind", "colours": colours, "width": 300, "height": 260}
    return charts.named_lines(points.sort("cost"), x, y, charts.chart_title(*title), **options)


def theta_frame(theta: pl.DataFrame, shares: pl.DataFrame, budget: float) -> pl.DataFrame:
    """Returns log θ of every head as learned and scaled to a budget, the mean of the seeds."""
    scaled = theta.filter(kind=LEARNED).join(shares.filter(budget=budget), ["kind", "seed"])
    mean = (pl.col("log_theta") * pl.col("share")).mean()
    return scaled.group_by("layer", "head", maintain_order=True).agg(log_theta=mean)


def theta_chart(theta: pl.DataFrame, *title: str) -> alt.Chart:
    """Draws log θ of every head, layers by heads."""
    scale = alt.Scale(scheme="blueorange", domainMid=0)
    return heads_map(theta, "log_theta", scale, 2).properties(title=charts.chart_title(*title))
