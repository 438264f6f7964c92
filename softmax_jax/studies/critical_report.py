"""What two rules for the temperature of long sets choose and cost, as Markdown tables and as a chart."""

import altair as alt
import numpy as np
import polars as pl

from softmax_jax.measures.statistics import over_seeds
from softmax_jax.report import charts, markdown
from softmax_jax.report.colours import BY_NORMALIZER
from softmax_jax.studies.ablation import SOFT_TO_SHARP
from softmax_jax.studies.sharpest import sharpest

TABLES = ("near_tie_rule", "critical_rule")
"""Marks of the page."""
RULE = "critical rule"
"""In the place of a normalizer's name: softmax at the β that the critical rule gives for the length."""
CHOICES = {
    "checkpoint": pl.String,
    "nearest_of": pl.Int64,
    "normalizer": pl.String,
    "seed": pl.Int64,
    "accuracy": pl.Float64,
}
BETAS = {"checkpoint": pl.String, "n": pl.Int64, "seed": pl.Int64, "critical": pl.Float64, "rule": pl.Float64}
ACCURACIES = {
    "checkpoint": pl.String,
    "n": pl.Int64,
    "normalizer": pl.String,
    "seed": pl.Int64,
    "accuracy": pl.Float64,
}


def chosen(choices: pl.DataFrame) -> dict[tuple[str, int], str]:
    """The candidate that the rule of `sharpest` takes, by checkpoint and by how many draws a set is the nearest of."""
    means = choices.group_by("checkpoint", "nearest_of", "normalizer", maintain_order=True).agg(pl.mean("accuracy"))
    return {
        (checkpoint, count): sharpest(dict(of_one.select("normalizer", "accuracy").rows()))
        for (checkpoint, count), of_one in means.group_by("checkpoint", "nearest_of", maintain_order=True)
    }


def behind(accuracies: pl.DataFrame) -> pl.DataFrame:
    """Accuracy by checkpoint, n and normalizer, mean over seeds; `best`, the candidate that is most accurate there; and
    by how many points each is `ahead` of it, below 0 where it is behind.
    """
    keys = ["checkpoint", "n"]
    means = accuracies.group_by(*keys, "normalizer", maintain_order=True).agg(pl.mean("accuracy"))
    constants = means.filter(pl.col("normalizer").is_in(SOFT_TO_SHARP)).sort("accuracy", descending=True)
    best = constants.group_by(keys, maintain_order=True).first().rename({"normalizer": "best", "accuracy": "most"})
    return means.join(best, keys, maintain_order="left").with_columns(ahead=pl.col("accuracy") - pl.col("most"))


def choices_table(choices: pl.DataFrame, accuracies: pl.DataFrame) -> str:
    """For each checkpoint and number of draws: how far the candidates lie apart, which is chosen, and what it costs."""
    found, means = chosen(choices), behind(accuracies)
    lengths = means["n"].unique().sort().to_list()
    rows = []
    for (checkpoint, count), name in found.items():
        of_one = choices.filter(checkpoint=checkpoint, nearest_of=count)
        spread = of_one.group_by("normalizer").agg(pl.mean("accuracy"))["accuracy"].to_numpy()
        cost = means.filter(checkpoint=checkpoint, normalizer=name).sort("n")["ahead"].to_list()
        rows.append([checkpoint, str(count), f"{np.ptp(spread):.3f}", name, *(f"{points:+.2f}" for points in cost)])
    columns = ["checkpoint", "nearest of", "candidates lie within", "chosen", *(f"at {n:,}" for n in lengths)]
    return markdown.table(columns, rows)


def ahead_of(accuracies: pl.DataFrame, name: str, other: str) -> pl.DataFrame:
    """By how many points a normalizer is `ahead` of another, by n and seed."""
    keys = ["n", "seed"]
    both = accuracies.filter(normalizer=name).join(accuracies.filter(normalizer=other), keys, suffix="_other")
    return both.select(*keys, ahead=pl.col("accuracy") - pl.col("accuracy_other"))


def rules_table(betas: pl.DataFrame, accuracies: pl.DataFrame) -> str:
    """For each checkpoint and length: the critical β, median of the seeds, that of the rule, and the accuracies."""
    keys = ["checkpoint", "n", "best", "most"]
    rows = []
    for (checkpoint, n, best, most), means in behind(accuracies).group_by(keys, maintain_order=True):
        of_rule = betas.filter(checkpoint=checkpoint, n=n)
        accuracy = dict(means["normalizer", "accuracy"].rows())
        against = ahead_of(accuracies.filter(checkpoint=checkpoint, n=n), RULE, str(best))
        ((ahead, high),) = over_seeds(against, ["n"], "ahead")["value", "high"].rows()
        cells = [f"{np.median(of_rule['critical'].to_numpy()):.3g}", f"{of_rule['rule'][0]:.3g}"]
        cells += [f"{accuracy[name]:.2f}" for name in ("softmax", "adaptive")]
        cells += [f"{most:.2f} ({best})", f"{accuracy[RULE]:.2f}", f"{ahead:+.2f} ± {high - ahead:.2f}"]
        rows.append([str(checkpoint), f"{n:,}", *cells])
    columns = ["checkpoint", "items", "critical β", "β of the rule", "softmax", "adaptive", "best constant"]
    return markdown.table([*columns, RULE, "against the best constant"], rows)


def rules_chart(choices: pl.DataFrame, accuracies: pl.DataFrame) -> charts.Chart:
    """By how many points each rule is ahead of the best constant at each length: a panel for each checkpoint."""
    found, most = chosen(choices), int(choices["nearest_of"].to_numpy().max())
    means = behind(accuracies)
    parts = []
    for checkpoint in means["checkpoint"].unique(maintain_order=True):
        ways = {
            "no rule: softmax": "softmax",
            "no rule: adaptive temperature": "adaptive",
            "the sharpest on ordinary sets": found[checkpoint, min(choices["nearest_of"])],
            f"the sharpest on nearest ties of {most}": found[checkpoint, most],
            "β by the critical rule": RULE,
        }
        of_one = means.filter(checkpoint=checkpoint)
        parts += [of_one.filter(normalizer=name).with_columns(way=pl.lit(way)) for way, name in ways.items()]
    frame = pl.concat(parts).select("checkpoint", "n", "way", value="ahead")
    names = frame["way"].unique(maintain_order=True).to_list()
    x = charts.length_axis(sorted(set(frame["n"])))
    drawn = frame["value"].to_numpy()
    scale = alt.Scale(type="symlog", constant=1, domain=[1.2 * drawn.min(), 1.5 * max(1, drawn.max())], nice=False)
    y = alt.Y("value:Q", title="points", scale=scale, axis=alt.Axis(values=[-50, -20, -10, -5, -2, -1, 0, 1, 2]))
    colours = dict(zip(names, (BY_NORMALIZER[of] for of in ("softmax", "adaptive", "hardmax", "softpick", "ssmax"))))
    colour = charts.colour_by("way", colours, "").legend(orient="top", columns=3, labelLimit=300)
    panels = [
        alt.layer(*charts.lines(of_one, x, y, colour)).properties(
            width=230, height=170, title=charts.panel_title(str(checkpoint))
        )
        for (checkpoint,), of_one in frame.group_by("checkpoint", maintain_order=True)
    ]
    title = charts.chart_title(
        "Can the temperature for long sets be told from sets of 16 items?",
        "accuracy against that of the best constant β, which is chosen on the long sets themselves; mean of the seeds",
    )
    return alt.concat(*panels, columns=2).properties(title=title)
