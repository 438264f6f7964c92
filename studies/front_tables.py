"""Tables and pictures of what `studies.front` measured, from the files of its cells."""

import altair as alt
import polars as pl

from softmax_jax.experiment.language_models.page import heads_map
from softmax_jax.experiment.measures.significance import corrected, mcnemar, paired_p_value
from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.tables import markdown_table, number_or_dash, with_interval

SOFTMAX, LEARNED, PERMUTED, FROM_TEXT, ONE_BETA = "softmax", "learned", "permuted", "from text", "one beta"
LABELS = {LEARNED: "θ learned", PERMUTED: "θ permuted", ONE_BETA: "one β", FROM_TEXT: "θ from text"}
COLOURS = {"θ learned": "#d55e00", "θ permuted": charts.GREY, "one β": "#0072b2", "θ from text": "#009e73"}
SETTING = ("kind", "budget", "length")
MEASURES = ("right", "plain", "loss", "plain_loss")


def cells_frame(answers: pl.DataFrame, losses: pl.DataFrame) -> pl.DataFrame:
    """Returns a row for each setting, seed and length: what it finds more than softmax, and what its text costs.

    `gained` and `lost` count the questions that only one of both answers right, `net` is their difference, and `p` is
    of McNemar's exact test, which takes questions for independent, though eight share a text. `answer` is the mean
    loss of the answers; `cost` the rise of the mean loss of text, in percent.
    """
    pairs, text_base = paired_with_softmax(answers), losses.filter(kind=SOFTMAX)["loss"].mean()
    costs = losses.group_by("kind", "seed", "budget").agg(cost=100 * (pl.mean("loss") / text_base - 1))
    rows = []
    for cell, each in pairs.group_by(*SETTING, "seed", maintain_order=True):
        right, plain = (each[name].to_numpy() == 1 for name in ("right", "plain"))
        rows.append(
            dict(zip((*SETTING, "seed"), cell))
            | {"asked": len(each), "found": right.sum(), "of_softmax": plain.sum()}
            | {"gained": (right & ~plain).sum(), "lost": (plain & ~right).sum(), "p": mcnemar(right, plain)}
            | {"answer": each["loss"].mean(), "answer_of_softmax": each["plain_loss"].mean()}
        )
    cells = pl.DataFrame(rows).with_columns(net=pl.col("gained") - pl.col("lost"))
    return cells.join(costs, ["kind", "seed", "budget"], "left", maintain_order="left")


def paired_with_softmax(answers: pl.DataFrame) -> pl.DataFrame:
    """Returns the answers of all other settings, with those of softmax to the same questions beside them."""
    softmax = answers.filter(kind=SOFTMAX).select("length", "text", "question", plain="right", plain_loss="loss")
    return answers.filter(pl.col("kind") != SOFTMAX).join(softmax, ["length", "text", "question"])


def significance_frame(answers: pl.DataFrame) -> pl.DataFrame:
    """Returns a row for each budget and length of learned temperatures: paired t-tests of two means against softmax.

    `found` is the test of the facts that are found in a text, `answer` of the loss of its answers, both the mean of
    the seeds, over the texts; `seeds` is the one of the facts found by a seed, over the seeds, which share their
    questions. All are corrected by Holm for the rows of their column.
    """
    rows = []
    learned = paired_with_softmax(answers).filter(kind=LEARNED)
    for setting, each in learned.group_by("budget", "length", maintain_order=True):
        by_text, by_seed = (each.group_by(unit).agg(pl.mean(*MEASURES)) for unit in ("text", "seed"))
        tested = (("found", by_text, MEASURES[:2]), ("answer", by_text, MEASURES[2:]), ("seeds", by_seed, MEASURES[:2]))
        p_values = {name: paired_p_value(*(units[one].to_list() for one in pair)) for name, units, pair in tested}
        rows.append(dict(zip(("budget", "length"), setting)) | p_values)
    tests = pl.DataFrame(rows, schema_overrides=dict.fromkeys(("found", "answer", "seeds"), pl.Float64))
    return tests.with_columns(
        pl.Series(name, corrected(tests[name].to_list()), pl.Float64) for name in ("found", "answer", "seeds")
    )


def front_table(answers: pl.DataFrame, losses: pl.DataFrame) -> str:
    """Returns by length and budget what learned temperatures gain and cost, beside what the placebos do.

    A cell is the mean of the seeds, from two on with its 95 % interval by Student's t.
    """
    rows, cells = [], cells_frame(answers, losses)
    for row in significance_frame(answers).sort("length", "budget").rows(named=True):
        at = {"length": row["length"], "budget": row["budget"]}
        own, *others = (cells.filter(kind=kind, **at) for kind in LABELS)
        found = f"{own['found'].mean():.1f} ({own['of_softmax'][0]} of {own['asked'][0]})"
        answer = f"{own['answer'].mean():.2f} ({own['answer_of_softmax'][0]:.2f})"
        p_found, p_answer = (number_or_dash(row[name], ".2g") for name in ("found", "answer"))
        placebos = [f"{mean(each, 'net', '+.1f')} ({mean(each, 'cost', '+.2f')})" for each in others]
        setting = [f"{row['length']:,}", f"{100 * row['budget']:g} %", mean(own, "cost", "+.2f"), found]
        rows.append([*setting, mean(own, "net", "+.1f"), p_found, answer, p_answer, *placebos])
    header = ["tokens", "budget", "cost, %", "found (softmax)", "net gain", "p", "answer's loss (softmax)", "p"]
    return markdown_table([*header, *(f"{LABELS[kind]}: net gain (cost)" for kind in list(LABELS)[1:])], rows)


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
