"""The ablation as Markdown tables and as charts."""

from collections.abc import Sequence

import altair as alt
import numpy as np
import polars as pl

from softmax_jax.measures.evaluation import summarize
from softmax_jax.normalizers.registry import METHODS
from softmax_jax.report import charts, markdown
from softmax_jax.report.charts import PALETTE, Chart
from softmax_jax.studies import scaling_law
from softmax_jax.studies.ablation import BASE, Outcome, losses
from softmax_jax.studies.scaling_law import Law, Point

PAIRS = "normalizer in training"
KINDS = {"accuracy": PALETTE[2], "dispersion": PALETTE[1], "key": PALETTE[0], "value": PALETTE[4]}
"""What a set's share of a bar may be, with its colour; from left to right."""


def losses_table(outcomes: Sequence[Outcome]) -> str:
    """A Markdown table: accuracy under softmax and the three losses of every recipe, by length."""
    lengths = outcomes[0].frame["n"].unique().sort().to_list()
    columns = ["varied", "recipe", *(f"n = {n}: softmax ±" for n in lengths)]
    columns += [f"{n}: dispersion / key / value" for n in lengths]
    rows = []
    for (group, name, _), frame in outcomes:
        softmax = summarize(frame.filter(normalizer="softmax").sort("n")).select("accuracy", "interval")
        accuracies = [f"{mean:.1f}" + ("" if half is None else f" ± {half:.1f}") for mean, half in softmax.rows()]
        lost = losses(frame).select("dispersion", "key", "value")
        rows.append(
            [group, name, *accuracies, *("{:.1f} / {:.1f} / {:.1f}".format(*of_length) for of_length in lost.rows())]
        )
    return markdown.table(columns, rows)


def losses_chart(outcomes: Sequence[Outcome]) -> Chart:
    """A bar of 100 % for every recipe and length: answered right, and lost in each of three ways."""
    by_recipe = [losses(outcome.frame).with_columns(recipe=pl.lit(label(outcome))) for outcome in outcomes]
    shares = pl.concat(by_recipe).unpivot(list(KINDS), index=["recipe", "n"], variable_name="kind", value_name="share")
    order = pl.col("kind").replace_strict(list(KINDS), range(len(KINDS)))
    shares = shares.with_columns(pl.col("share").clip(0), order=order)
    colour = charts.colour_by("kind", KINDS, "sets").legend(orient="top")
    panels = [
        alt.Chart(charts.data(of_length))
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="% of sets", scale=alt.Scale(domain=[0, 100]), stack="zero"),
            y=alt.Y("recipe:N", title=None, sort=None, axis=alt.Axis(labelLimit=320, labels=index == 0)),
            color=colour,
            order="order:Q",
        )
        .properties(width=220, height=alt.Step(14), title=charts.panel_title(f"{n} items"))
        for index, ((n,), of_length) in enumerate(
            shares.sort("n", maintain_order=True).group_by("n", maintain_order=True)
        )
    ]
    title = charts.chart_title(
        "Where does softmax attention lose, recipe by recipe?", "mean over seeds; trained on few items"
    )
    return alt.hconcat(*panels, spacing=10).properties(title=title)


def label(outcome: Outcome) -> str:
    """The name of a recipe on an axis."""
    group, name, _ = outcome.recipe
    return name if group == BASE or group in name else f"{group}: {name}"


def pair_means(outcomes: Sequence[Outcome], n: int) -> dict[tuple[str, str], float]:
    """Mean accuracy at n for each pair of a normalizer in training and one in the test."""
    means = {}
    for (group, _, config), frame in outcomes:
        if group in (BASE, PAIRS):
            of_test = dict(frame.filter(n=n).group_by("normalizer").agg(pl.mean("accuracy")).rows())
            means |= {(config.normalizer, test): of_test[test] for test in METHODS}
    return means


def pairs_chart(outcomes: Sequence[Outcome], n: int) -> Chart | None:
    """A heat map of the pairs at one length; nothing if training has been under one normalizer alone."""
    means = pair_means(outcomes, n)
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
    title = charts.chart_title(f"Trained under one, tested under another: accuracy at {n} items", "mean over seeds")
    return alt.layer(cells, text).properties(title=title, **size)


def pairs_table(outcomes: Sequence[Outcome], n: int) -> str:
    """A Markdown table: for each normalizer in training the accuracy under itself, under softmax, and the best."""
    means = pair_means(outcomes, n)
    rows = []
    for train in dict.fromkeys(train for train, _ in means):
        best = max(METHODS, key=lambda test: means[train, test])
        itself = f"{means[train, train]:.1f}" if (train, train) in means else ""
        rows.append([train, itself, f"{means[train, 'softmax']:.1f}", f"{means[train, best]:.1f} ({best})"])
    return markdown.table([f"trained under (tested at n = {n})", "itself", "softmax", "best in the test"], rows)


def scaling_chart(law: Law, seen: Sequence[Point], unseen: Sequence[Point]) -> Chart:
    """Accuracy against compute, a panel for each length: a point per seed, lines for the law, rings for the unseen."""
    points = pl.DataFrame([*seen, *unseen], orient="row").with_columns(
        pl.col("width").cast(pl.Int64).cast(pl.String), pl.Series("seen", [True] * len(seen) + [False] * len(unseen))
    )
    widths = sorted({point.width for point in seen})
    computes = [point.compute for point in (*seen, *unseen)]
    grid = np.geomspace(min(computes), max(computes), 60)
    x = alt.X("compute:Q", title="multiply-adds of training", scale=alt.Scale(type="log"), axis=alt.Axis(format="~e"))
    y = charts.percent_axis("accuracy (% of sets)")
    colour = charts.colour_by("width", charts.palette([f"{width:g}" for width in widths]), "width")
    panels = []
    for n in sorted(set(points["n"])):
        law_at_n = [(compute, f"{width:g}", *law.predict(compute, width, n)) for width in widths for compute in grid]
        curve = pl.DataFrame(law_at_n, ["compute", "width", "value", "low", "high"], orient="row")
        layers = charts.lines(curve, x, y, colour, point=False)
        for was_seen, size in ((True, 30), (False, 90)):
            measured = points.filter(n=n, seen=was_seen).rename({"accuracy": "value"})
            marks = alt.Chart(charts.data(measured)).mark_point(filled=was_seen, size=size, opacity=1)
            layers.append(marks.encode(x=x, y=y, color=colour))
        panels.append(alt.layer(*layers).properties(width=240, height=240, title=charts.panel_title(f"{n} items")))
    title = charts.chart_title(
        "Accuracy by compute and width",
        "a point per seed; lines: the law, with its 95 % band; rings: not used to fit it",
    )
    return alt.hconcat(*panels).properties(title=title)


def scaling_table(law: Law, unseen: Sequence[Point]) -> str:
    """The law's numbers with their intervals, and what it said of runs that it was not fitted to."""
    names = (f"ln δ₀ (at {scaling_law.COMPUTE:g} multiply-adds, width {scaling_law.WIDTH:g})", "a", "b")
    numbers = [
        (name, f"{value:.3f}", f"{low:.3f} to {high:.3f}")
        for name, value, (low, high) in zip(names, law.numbers, law.interval())
    ]
    predictions = []
    for n in sorted({point.n for point in unseen}):
        points = [point for point in unseen if point.n == n]
        predicted, low, high = law.predict(points[0].compute, points[0].width, n)
        measured = float(np.mean([point.accuracy for point in points]))
        cells = (f"{predicted:.1f}", f"{low:.1f} to {high:.1f}", f"{measured:.1f}", f"{measured - predicted:+.1f}")
        predictions.append((str(n), *cells))
    tables = [
        markdown.table(["number", "value", "95 % interval"], numbers),
        markdown.table(["n", "predicted", "95 % interval", "measured", "miss"], predictions),
    ]
    return "\n\n".join(tables)
