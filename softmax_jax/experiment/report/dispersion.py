"""Charts of how attention disperses, beside what theory allows, and of where it looks.

Bands are 95 % intervals over seeds by Student's t. Neither texts nor background have a colour of their own: a page
gives its theme.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from softmax_jax.experiment.measures.dispersion import AttentionMaps, Resolution
from softmax_jax.experiment.measures.significance import over_seeds
from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.charts import BY_CAUSE, GREY, by_size, palette
from softmax_jax.experiment.tasks.retrieval_model import CLASSES

KEYS = ("normalizer", "n")
WIDTH, HEIGHT = 480, 230
BOUNDS = {
    "entropy": {"softmax at most, by the whole spread": "entropy_upper", "softmax at least": "entropy_lower"},
    "max_weight": {
        "softmax at most, by the whole spread": "max_weight_upper",
        "softmax at most, by the nearest logits": "max_weight_upper_nearest",
        "softmax at least": "max_weight_lower",
    },
    "rank": {"a random item": "random_rank"},
    "beta": {"critical, median of the sets": "critical_beta"},
}
"""The columns that bound each measure of the baseline, or that it must reach, by what they are called."""
STROKES = ([1, 4], [1, 0], [5, 2, 1, 2])
"""Of its bounds in this order: dots, a line, dots and dashes."""
LOSSES = {
    "dispersion": "hardmax answers more",
    "key": "only the true item alone answers",
    "value": "nothing answers",
}


def dispersion_chart(frame: pl.DataFrame) -> charts.Chart:
    """Draws entropy, largest weight, rank of the true item and β by n, with the bounds of softmax.

    Beside β, which only scales of softmax have, stands the critical β of the rows.
    """
    panels = [
        panel(frame, "entropy", "entropy (nats)", "Entropy of the weights", least=0.0),
        panel(frame, "max_weight", "largest weight", "Largest weight, which dispersion drives to 0", 1e-9),
    ]
    if "rank" in frame.columns:
        called = "Rank of the true item's weight; equal weights share theirs"
        panels.append(panel(frame, "rank", "mean rank", called, 1.0))
    if frame["beta"].count():
        panels.append(
            panel(frame, "beta", "inverse temperature β", "β of the normalizer beside the critical β of the row", 1e-9)
        )
    seeds = charts.mean_of(frame["seed"].n_unique(), ", 95 % band")
    title = charts.chart_title("Why attention fails on long sets", f"mean over sets; {seeds}")
    return alt.vconcat(*panels).resolve_scale(color="independent", strokeDash="independent").properties(title=title)


def panel(frame: pl.DataFrame, measure: str, title: str, called: str, least: float) -> Any:
    """Draws a line with its band for every normalizer, cut at the least that the measure can be, and its bounds.

    The axis is logarithmic unless the measure can be 0.
    """
    measured = over_seeds(frame, KEYS, measure, low=least)
    bounds = bound_means(frame, BOUNDS[measure])
    drawn = pl.concat([bounds, measured])
    names = bounds["normalizer"].unique(maintain_order=True).to_list()
    strokes = {name: [1, 0] for name in measured["normalizer"]} | dict(zip(names, STROKES))
    linear = alt.Y("value:Q", title=title, scale=alt.Scale(domain=[0, 1.05 * max(drawn["value"]) or 1.0]))
    return charts.named_lines(
        drawn,
        charts.length_axis(sorted(set(frame["n"]))),
        charts.log_axis(title, drawn["value"]) if least > 0 else linear,
        charts.panel_title(called),
        colours=palette(measured["normalizer"]) | dict.fromkeys(names, GREY),
        dash=charts.dash_by("normalizer", strokes),
        width=WIDTH,
        height=HEIGHT,
    )


def bound_means(frame: pl.DataFrame, columns: Mapping[str, str]) -> pl.DataFrame:
    """Returns the means over seeds of the bounds of the baseline, as `over_seeds` does, where all seeds have one."""
    rows = frame.filter(normalizer=BASELINE).with_columns(random_rank=(pl.col("n") + 1) / 2)
    long = rows.select("n", **columns).unpivot(index="n", variable_name="normalizer", value_name="bound")
    return over_seeds(long.filter(pl.col("bound").is_finite().all().over(KEYS)), KEYS, "bound")


def attention_map_chart(maps: AttentionMaps) -> charts.Chart:
    """The weights of the largest items of every set: a panel for each normalizer and length, one colour scale."""
    sets, items = maps.weights.shape[2:]
    # A row of the data holds a whole set, and the chart takes it apart: a tenth of the page's size.
    by_set = [
        {"normalizer": name, "n": n, "set": place, "weight": [float(f"{weight:.3g}") for weight in weights]}
        for name, by_length in zip(maps.normalizers, maps.weights)
        for n, panel in zip(maps.lengths, by_length)
        for place, weights in enumerate(panel, 1)
    ]
    bare: dict[str, Any] = {"axis": None, "scale": alt.Scale(padding=0)}
    cells = (
        alt.Chart(alt.Data(values=by_set))
        .transform_calculate(item=f"sequence(1, {items + 1})")
        .transform_flatten(["weight", "item"])
        .mark_rect()
        .encode(
            x=alt.X("item:O", **bare),
            y=alt.Y("set:O", **bare),
            color=alt.Color("weight:Q", title="weight", scale=alt.Scale(scheme="viridis", domain=[0, 1])),
            tooltip=["normalizer:N", "n:Q", "set:O", "item:O", alt.Tooltip("weight:Q", format=".3g")],
        )
        .properties(width=4 * items, height=3 * sets)
    )
    row_header = alt.Header(labelAngle=0, labelAlign="left")
    column_header = alt.Header(labelExpr="'n = ' + datum.value", labelFontSize=9, labelPadding=3)
    return cells.facet(
        row=alt.Row("normalizer:N", title=None, sort=list(maps.normalizers), header=row_header),
        column=alt.Column("n:O", title=None, sort=list(maps.lengths), header=column_header),
        spacing=4,
    ).properties(
        title=charts.chart_title(
            "How attention loses the largest item",
            f"left to right: the {items} items with the largest ρ, from the largest down; top to bottom: {sets} sets "
            "by the ρ of their best item",
            f"one trained seed ({maps.seed}); one colour scale for all panels",
        )
    )


def attention_map_frame(maps: AttentionMaps) -> pl.DataFrame:
    """The data of the maps: a row per normalizer, length, set and item."""
    sets, items = (range(1, size + 1) for size in maps.weights.shape[2:])
    places = {"normalizer": maps.normalizers, "n": maps.lengths, "seed": [maps.seed], "set": sets, "item": items}
    return charts.long_frame(places, rho=np.broadcast_to(maps.rho, maps.weights.shape), weight=maps.weights)


def resolution_frame(resolution: Resolution, seeds: Sequence[int]) -> pl.DataFrame:
    """Returns the logit of an item alone, near the top of the range of ρ: a row per seed, class and ρ."""
    return charts.long_frame({"seed": seeds, "class": range(CLASSES), "rho": resolution.rho}, logit=resolution.logits)


def resolution_chart(resolution: Resolution, seeds: Sequence[int]) -> charts.Chart:
    """Draws logit against ρ for each class, of the first seed, near ρ = 1, where classes differ."""
    curves = resolution_frame(resolution, seeds).filter(seed=seeds[0]).rename({"logit": "value"})
    classes = sorted(set(curves["class"]))
    colours = by_size(list(map(str, classes)))
    colour = alt.Color("class:N", title="class κ", scale=alt.Scale(domain=classes, range=list(colours.values())))
    digits = 1 + math.ceil(-math.log10(1 - resolution.rho[0]))
    scale = alt.Scale(domain=[resolution.rho[0], 1.0], nice=False)
    x = alt.X("rho:Q", title="ρ", axis=alt.Axis(format=f".{digits}f", tickCount=5), scale=scale)
    y = alt.Y("value:Q", title="logit", scale=alt.Scale(zero=False))
    (drawn,) = charts.lines(curves, x, y, colour, point=False, width=1.5)
    nat, key = (by_seed[0] for by_seed in tell_apart(resolution))
    title = charts.chart_title(
        "What the key can tell apart",
        f"seed {seeds[0]}; at ρ = 1 the logit grows by {resolution.slope[0]:.0f} per unit of ρ, so one nat is "
        f"{nat:.2g} in ρ: softmax blurs closer items",
        f"the class moves the logit by ± {resolution.offset[0]:.2g}, which is {key:.2g} in ρ: closer items may "
        "change places",
    )
    return alt.layer(drawn).properties(width=WIDTH, height=280, title=title)


def tell_apart(resolution: Resolution) -> tuple[np.ndarray, np.ndarray]:
    """Returns by seed the difference in ρ that makes one nat, and the one that offsets between classes stand for."""
    slope = np.abs(resolution.slope)
    return 1 / slope, resolution.offset / slope


def loss_split_chart(losses: pl.DataFrame) -> charts.Chart:
    """Draws the sets lost by n, by what answers them: hardmax, the true item alone, nothing. A panel a normalizer."""
    labels = {cause: f"{cause}: {text}" for cause, text in LOSSES.items()}
    by_cause = losses.unpivot(list(LOSSES), index=["normalizer", "n", "seed"], variable_name="cause", value_name="lost")
    means = over_seeds(by_cause, ["normalizer", "n", "cause"], "lost").with_columns(
        cause=pl.col("cause").replace(labels),
        order=-pl.col("cause").replace_strict(list(LOSSES), range(len(LOSSES))),
        lost=pl.col("value").clip(0.0),
    )
    colour = charts.colour_by("cause", {labels[cause]: BY_CAUSE[cause] for cause in LOSSES}, "sets lost")
    areas = alt.Chart(charts.data(means)).mark_area(opacity=0.85)
    chart = areas.encode(
        x=charts.length_axis(sorted(set(losses["n"]))),
        y=alt.Y("lost:Q", title="lost (% of sets)", stack="zero", scale=alt.Scale(domain=[0, 100])),
        color=colour.legend(orient="bottom", direction="vertical", labelLimit=400),
        order="order:Q",
        tooltip=["normalizer:N", "n:Q", "cause:N", alt.Tooltip("value:Q", title="lost (%)", format=".2f")],
    ).properties(width=200, height=150)
    title = charts.chart_title(
        "Which sets are lost, and what answers them",
        f"{charts.mean_of(losses['seed'].n_unique())}; hardmax puts all weight on the largest logit",
        "a normalizer may answer sets that hardmax does not: hardmax bounds the weight, not the accuracy",
    )
    facet = alt.Facet("normalizer:N", title=None, sort=losses["normalizer"].unique(maintain_order=True).to_list())
    return chart.facet(facet, columns=3).resolve_axis(x="independent", y="independent").properties(title=title)
