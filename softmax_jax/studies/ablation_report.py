"""The ablation as Markdown tables and as charts."""

from collections.abc import Sequence

import altair as alt
import numpy as np
import polars as pl

from softmax_jax.measures.statistics import half_width
from softmax_jax.normalizers.registry import METHODS
from softmax_jax.report import charts, markdown
from softmax_jax.report.charts import Chart
from softmax_jax.report.colours import BY_CAUSE
from softmax_jax.studies.ablation import BASE, LOSSES, PAIRS


def losses_table(lost: pl.DataFrame) -> str:
    """A Markdown table: accuracy under softmax of every recipe and where the rest goes, by length."""
    lengths = lost["n"].unique().sort().to_list()
    causes = LOSSES[1:]
    columns = ["varied", "recipe", *(f"n = {n}: softmax ±" for n in lengths)]
    columns += [f"{n}: {' / '.join(causes)}" for n in lengths]
    rows = []
    for (group, recipe), of_lengths in lost.group_by("group", "recipe", maintain_order=True):
        cells = {name: [_mean_of(values) for values in _by_length(of_lengths, name)] for name in LOSSES}
        rows.append([group, recipe, *cells["accuracy"], *map(" / ".join, zip(*(cells[name] for name in causes)))])
    return markdown.table(columns, rows)


def _by_length(frame: pl.DataFrame, name: str) -> list[list[float]]:
    """The values of the seeds, length by length."""
    return frame.group_by("n", maintain_order=True).agg(name)[name].to_list()


def _mean_of(values: Sequence[float]) -> str:
    """The mean of the seeds with half its interval."""
    return f"{np.mean(values):.1f} ± {half_width(values):.1f}"


def losses_chart(lost: pl.DataFrame) -> Chart:
    """A bar of 100 % for every recipe and length: answered right, and what would regain the rest."""
    shares = (
        lost.group_by("group", "recipe", "n", maintain_order=True)
        .agg(pl.mean(*LOSSES))
        .with_columns(label())
        .unpivot(list(BY_CAUSE), index=["recipe", "n"], variable_name="kind", value_name="share")
    )
    order = pl.col("kind").replace_strict(list(BY_CAUSE), range(len(BY_CAUSE)))
    shares = shares.with_columns(pl.col("share").clip(0), order=order)
    colour = charts.colour_by("kind", BY_CAUSE, "answered right, and lost to").legend(orient="top")
    panels = [
        alt.Chart(charts.data(of_length))
        .mark_bar(clip=True)
        .encode(
            x=alt.X("share:Q", title="% of sets", scale=alt.Scale(domain=[0, 100]), stack="zero"),
            y=alt.Y("recipe:N", title=None, sort=None, axis=alt.Axis(labelLimit=320, labels=index == 0)),
            color=colour,
            order="order:Q",
        )
        .properties(width=220, height=alt.Step(14), title=charts.panel_title(f"{n:,} items"))
        for index, ((n,), of_length) in enumerate(
            shares.sort("n", maintain_order=True).group_by("n", maintain_order=True)
        )
    ]
    title = charts.chart_title(
        "Where does softmax attention lose, recipe by recipe?", "mean over seeds; trained on few items"
    )
    return alt.hconcat(*panels, spacing=10).properties(title=title)


def label() -> pl.Expr:
    """The name of a recipe on an axis."""
    named = (pl.col("group") == BASE) | pl.col("recipe").str.contains(pl.col("group"), literal=True)
    return pl.when(named).then("recipe").otherwise(pl.concat_str("group", "recipe", separator=": ")).alias("recipe")


def pair_means(accuracies: pl.DataFrame, n: int) -> dict[tuple[str, str], float]:
    """Mean accuracy at n for each pair of a normalizer in training and one in the test."""
    rows = accuracies.filter(pl.col("group").is_in([BASE, PAIRS]), pl.col("normalizer").is_in(METHODS.keys()), n=n)
    means = rows.group_by("trained", "normalizer", maintain_order=True).agg(pl.mean("accuracy"))
    return {(train, test): mean for train, test, mean in means.iter_rows()}


def pairs_chart(accuracies: pl.DataFrame, n: int) -> Chart | None:
    """A heat map of the pairs at one length; nothing if training has been under one normalizer alone."""
    means = pair_means(accuracies, n)
    trained = list(dict.fromkeys(train for train, _ in means))
    if len(trained) < 2:
        return None
    records = [{"train": train, "test": test, "accuracy": value} for (train, test), value in means.items()]
    base = alt.Chart(alt.Data(values=records)).encode(
        x=alt.X("test:N", title="normalizer in the test", sort=None, axis=alt.Axis(labelAngle=-60, labelLimit=200)),
        y=alt.Y("train:N", title="normalizer in training", sort=None, axis=alt.Axis(labelLimit=200)),
    )
    scale = alt.Scale(domain=[10, 100], scheme="viridis")
    cells = base.mark_rect().encode(color=alt.Color("accuracy:Q", title="accuracy (%)", scale=scale))
    dark = alt.condition("datum.accuracy < 60", alt.value("white"), alt.value("black"))
    text = base.mark_text(fontSize=8).encode(text=alt.Text("accuracy:Q", format=".0f"), color=dark)
    size = {"width": alt.Step(22), "height": alt.Step(18)}
    title = charts.chart_title(f"Trained under one, tested under another: accuracy at {n:,} items", "mean over seeds")
    return alt.layer(cells, text).properties(title=title, **size)


def pairs_table(accuracies: pl.DataFrame, n: int) -> str:
    """A Markdown table: for each normalizer in training the accuracy under itself, under softmax, and the best."""
    means = pair_means(accuracies, n)
    rows = []
    for train in dict.fromkeys(train for train, _ in means):
        best = max(METHODS, key=lambda test: means[train, test])
        itself = f"{means[train, train]:.1f}" if (train, train) in means else ""
        rows.append([train, itself, f"{means[train, 'softmax']:.1f}", f"{means[train, best]:.1f} ({best})"])
    return markdown.table([f"trained under (tested at n = {n})", "itself", "softmax", "best in the test"], rows)
