"""The ablation as Markdown tables and as charts."""

from collections.abc import Sequence

import altair as alt
import numpy as np
import polars as pl

from softmax_jax.measures.evaluation import summarize
from softmax_jax.normalizers.registry import METHODS
from softmax_jax.report.charts import PALETTE, Chart, chart_title, data, palette, panel_title
from softmax_jax.studies import scaling_law
from softmax_jax.studies.ablation import BASE, Outcome, losses
from softmax_jax.studies.scaling_law import Law, Point

PAIRS = "normalizer in training"
KINDS = {"accuracy": PALETTE[2], "dispersion": PALETTE[1], "key": PALETTE[0], "value": PALETTE[4]}
"""What a set's share of a bar may be, with its colour; from left to right."""


def losses_table(outcomes: Sequence[Outcome]) -> str:
    """A Markdown table: accuracy under softmax and the three losses of every recipe, by length."""
    lengths = outcomes[0].frame["n"].unique().sort().to_list()
    head = ["varied", "recipe", *[f"n = {n}: softmax ±" for n in lengths]]
    head += [f"{n}: dispersion / key / value" for n in lengths]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for (group, name, _), frame in outcomes:
        cells = [
            f"{accuracy:.1f}" + (f" ± {interval:.1f}" if interval is not None else "")
            for accuracy, interval in summarize(frame.filter(normalizer="softmax").sort("n"))[
                "accuracy", "interval"
            ].rows()
        ]
        cells += [
            f"{dispersion:.1f} / {key:.1f} / {value:.1f}"
            for dispersion, key, value in losses(frame)["dispersion", "key", "value"].rows()
        ]
        lines.append(f"| {group} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def losses_chart(outcomes: Sequence[Outcome]) -> Chart:
    """A bar of 100 % for every recipe and length: answered right, and lost in each of three ways."""
    by_recipe = [losses(outcome.frame).with_columns(recipe=pl.lit(label(outcome))) for outcome in outcomes]
    shares = pl.concat(by_recipe).unpivot(list(KINDS), index=["recipe", "n"], variable_name="kind", value_name="share")
    order = pl.col("kind").replace_strict(list(KINDS), range(len(KINDS)))
    shares = shares.with_columns(pl.col("share").clip(0), order=order)
    colour = alt.Color(
        "kind:N",
        title="sets",
        sort=None,
        scale=alt.Scale(domain=list(KINDS), range=list(KINDS.values())),
        legend=alt.Legend(orient="top"),
    )
    panels = [
        alt.Chart(data(of_length))
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="% of sets", scale=alt.Scale(domain=[0, 100]), stack="zero"),
            y=alt.Y("recipe:N", title=None, sort=None, axis=alt.Axis(labelLimit=320, labels=index == 0)),
            color=colour,
            order="order:Q",
        )
        .properties(width=220, height=alt.Step(14), title=panel_title(f"{n} items"))
        for index, ((n,), of_length) in enumerate(
            shares.sort("n", maintain_order=True).group_by("n", maintain_order=True)
        )
    ]
    title = chart_title("Where does softmax attention lose, recipe by recipe?", "mean over seeds; trained on few items")
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
    title = chart_title(f"Trained under one, tested under another: accuracy at {n} items", "mean over seeds")
    return alt.layer(cells, text).properties(title=title, **size)


def pairs_table(outcomes: Sequence[Outcome], n: int) -> str:
    """A Markdown table: for each normalizer in training the accuracy under itself, under softmax, and the best."""
    means = pair_means(outcomes, n)
    lines = [f"| trained under (tested at n = {n}) | itself | softmax | best in the test |", "|---|---|---|---|"]
    for train in dict.fromkeys(train for train, _ in means):
        best = max(METHODS, key=lambda test: means[train, test])
        itself = f"{means[train, train]:.1f}" if (train, train) in means else ""
        lines.append(f"| {train} | {itself} | {means[train, 'softmax']:.1f} | {means[train, best]:.1f} ({best}) |")
    return "\n".join(lines)


def scaling_chart(law: Law, seen: Sequence[Point], unseen: Sequence[Point]) -> Chart:
    """Accuracy against compute, a panel for each length: a point per seed, lines for the law, rings for the unseen."""
    widths = sorted({point.width for point in seen})
    colours = palette([str(width) for width in widths])
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    everything = [*seen, *unseen]
    least, most = min(point.compute for point in everything), max(point.compute for point in everything)
    grid = np.geomspace(least, most, 60)
    x = alt.X("compute:Q", title="multiply-adds of training", scale=alt.Scale(type="log"), axis=alt.Axis(format="~e"))
    y = alt.Y("accuracy:Q", title="accuracy (% of sets)", scale=alt.Scale(domain=[0, 100]))
    colour = alt.Color("width:N", title="width", sort=None, scale=scale)
    panels = []
    for n in sorted({point.n for point in everything}):
        curve = [
            {"compute": float(compute), "width": str(width), "accuracy": law.predict(compute, width, n)[0]}
            for width in widths
            for compute in grid
        ]
        layers = [alt.Chart(alt.Data(values=curve)).mark_line().encode(x=x, y=y, color=colour)]
        for points, filled, size in ((seen, True, 30), (unseen, False, 90)):
            drawn = [
                {"compute": point.compute, "width": str(point.width), "accuracy": point.accuracy}
                for point in points
                if point.n == n
            ]
            chart = alt.Chart(alt.Data(values=drawn)).mark_point(filled=filled, size=size, opacity=1)
            layers.append(chart.encode(x=x, y=y, color=colour))
        panels.append(alt.layer(*layers).properties(width=240, height=240, title=panel_title(f"{n} items")))
    title = chart_title("Accuracy by compute and width", "a point per seed; lines: the law; rings: not used to fit it")
    return alt.hconcat(*panels).properties(title=title)


def scaling_table(law: Law, unseen: Sequence[Point]) -> str:
    """The law's numbers with their intervals, and what it said of runs that it was not fitted to."""
    names = (f"ln δ₀ (at {scaling_law.COMPUTE:g} multiply-adds, width {scaling_law.WIDTH:g})", "a", "b")
    lines = ["| number | value | 95 % interval |", "|---|---|---|"]
    for name, value, (low, high) in zip(names, law.numbers, law.interval()):
        lines.append(f"| {name} | {value:.3f} | {low:.3f} to {high:.3f} |")
    lines += ["", "| n | predicted | 95 % interval | measured | miss |", "|---|---|---|---|---|"]
    for n in sorted({point.n for point in unseen}):
        points = [point for point in unseen if point.n == n]
        said, low, high = law.predict(points[0].compute, points[0].width, n)
        measured = float(np.mean([point.accuracy for point in points]))
        lines.append(f"| {n} | {said:.1f} | {low:.1f} to {high:.1f} | {measured:.1f} | {measured - said:+.1f} |")
    return "\n".join(lines)
