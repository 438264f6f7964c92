"""Tables and pictures of what `studies.front` measured, from the files of its cells."""

from collections.abc import Sequence
from pathlib import Path

import altair as alt
import polars as pl

from softmax_jax.experiment.language_models.page import heads_map
from softmax_jax.experiment.measures.significance import corrected, mcnemar, paired_p_value
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
    of McNemar's exact test, which takes questions for independent, though eight share a text. `answer` is the mean
    loss of the answers, and `p_answer` of its paired t-test over the texts. `holm` and `holm_answer` are these p,
    corrected for all cells of learned temperatures. `cost` is the rise of the mean loss of text, in percent.
    """
    softmax = answers.filter(kind=SOFTMAX).select("length", "text", "question", plain="right", plain_loss="loss")
    pairs = answers.filter(pl.col("kind") != SOFTMAX).join(softmax, ["length", "text", "question"])
    text_base = losses.filter(kind=SOFTMAX)["loss"].mean()
    costs = losses.group_by("kind", "seed", "budget").agg(cost=100 * (pl.mean("loss") / text_base - 1))
    rows = []
    for cell, each in pairs.group_by(CELL, maintain_order=True):
        right, plain = (each[name].to_numpy() == 1 for name in ("right", "plain"))
        texts = each.group_by("text", maintain_order=True).agg(pl.mean("loss", "plain_loss"))
        rows.append(
            dict(zip(CELL, cell))
            | {"asked": len(each), "found": right.sum(), "of_softmax": plain.sum()}
            | {"gained": (right & ~plain).sum(), "lost": (plain & ~right).sum(), "p": mcnemar(right, plain)}
            | {"answer": each["loss"].mean(), "answer_of_softmax": each["plain_loss"].mean()}
            | {"p_answer": paired_p_value(texts["loss"].to_list(), texts["plain_loss"].to_list())}
        )
    floats = {"p": pl.Float64, "p_answer": pl.Float64}
    cells = pl.DataFrame(rows, schema_overrides=floats).with_columns(net=pl.col("gained") - pl.col("lost"))
    learned = cells.filter(kind=LEARNED)
    corrections = {
        f"holm{name}": pl.Series(corrected(learned[f"p{name}"].to_list()), dtype=pl.Float64) for name in ("", "_answer")
    }
    cells = cells.join(learned.select(CELL).with_columns(**corrections), CELL, "left", maintain_order="left")
    return cells.join(costs, ["kind", "seed", "budget"], "left", maintain_order="left")


def front_table(cells: pl.DataFrame) -> str:
    """Returns by length and budget what learned temperatures gain and cost, beside what the placebos do.

    A cell is the mean of the seeds, from two on with its 95 % interval by Student's t.
    """
    rows, learned = [], cells.filter(kind=LEARNED)
    for length, budget in learned.select("length", "budget").unique().sort("length", "budget").rows():
        each = {kind: cells.filter(kind=kind, length=length, budget=budget) for kind in (LEARNED, PERMUTED, ONE_BETA)}
        own = each[LEARNED]
        p, p_answer = (", ".join(f"{value:.2g}" for value in own[name]) for name in ("holm", "holm_answer"))
        net, placebo, beta = (mean(cells_of_kind, "net", "+.1f") for cells_of_kind in each.values())
        cost, placebo_cost, beta_cost = (mean(cells_of_kind, "cost", "+.2f") for cells_of_kind in each.values())
        found = f"{own['found'].mean():.1f} ({own['of_softmax'][0]} of {own['asked'][0]})"
        answer = f"{own['answer'].mean():.2f} ({own['answer_of_softmax'][0]:.2f})"
        setting = [f"{length:,}", f"{100 * budget:g} %", cost, found, net, p, answer, p_answer]
        rows.append([*setting, f"{placebo} ({placebo_cost})", f"{beta} ({beta_cost})"])
    header = ["tokens", "budget", "cost, %", "found (softmax)", "net gain", "p", "answer's loss (softmax)", "p"]
    return markdown_table([*header, "permuted: net gain (cost)", "one β: net gain (cost)"], rows)


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
