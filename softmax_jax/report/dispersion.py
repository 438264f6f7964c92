"""How attention disperses, beside what theory allows, and where it looks: charts of `softmax_jax.measures.dispersion`.

Bands are 95 % intervals over seeds by Student's t. Neither texts nor background have a colour of their own: a page
gives its theme.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from softmax_jax.measures.dispersion import AttentionMaps, Resolution
from softmax_jax.measures.statistics import over_seeds
from softmax_jax.report import charts
from softmax_jax.report.charts import BASELINE, BY_CAUSE, GREY, by_size, palette
from softmax_jax.tasks.max_retrieval import CLASSES

KEYS = ("normalizer", "n")
KEYS_OF_LINE = (*KEYS, "value")
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

LEAST_SETS = 30
"""A bin of gaps with fewer sets of a length is not drawn."""
GAP_LENGTHS = (16, 256, 1024, 4096, 16384)
LOSSES = {
    "dispersion": "weight spread over other items",
    "key": "another item has the largest logit",
    "value": "the true item's value is misread",
}


def dispersion_chart(frame: pl.DataFrame, forced: pl.DataFrame) -> charts.Chart:
    """Entropy, largest weight, rank of the true item and β by n; with softmax's bounds, and where they fall to 0.5.

    Beside β, which only scales of softmax have, stands the critical β of the rows.
    """
    subtitle = [f"mean over sets; {charts.mean_of(frame['seed'].n_unique(), ', 95 % band')}"]
    baseline = frame.filter(normalizer=BASELINE)
    if len(baseline):
        spread, allowed = baseline.select(pl.mean("spread", "max_weight_upper")).row(0)
        subtitle.append(
            f"bounds of {BASELINE}, set by set: a logit spread of {spread:.0f} allows a weight of {allowed:.2g},"
        )
        subtitle.append("but the largest logits lie so close together that it has to fall")
    marks = forced_layers(forced, max(frame["n"]))
    panels = [
        panel(frame, "entropy", "entropy (nats)", "How flat do the weights get?", least=0.0),
        panel(frame, "max_weight", "largest weight", "How much is left for the item that gets most?", 1e-9, marks),
    ]
    if "rank" in frame.columns:
        question = "Where does the true item's weight rank? Equal weights share theirs"
        panels.append(panel(frame, "rank", "mean rank", question, 1.0))
    if frame["beta"].count():
        panels.append(panel(frame, "beta", "inverse temperature β", "Is it as sharp as the row asks for?", 1e-9))
    return (
        alt.vconcat(*panels)
        .resolve_scale(color="independent", strokeDash="independent")
        .properties(title=charts.chart_title("Why does attention fail on long sets?", *subtitle))
    )


def panel(
    frame: pl.DataFrame, measure: str, title: str, question: str, least: float, marks: Sequence[alt.Chart] = ()
) -> Any:
    """A line with its band for every normalizer, cut at the least that the measure can be, and the baseline's bounds.

    The axis is logarithmic unless the measure can be 0.
    """
    measured = over_seeds(frame, KEYS, measure, low=least)
    bounds = bound_means(frame, BOUNDS[measure])
    x, drawn = charts.length_axis(sorted(set(frame["n"]))), [*measured["value"], *bounds["value"]]
    linear = alt.Y("value:Q", title=title, scale=alt.Scale(domain=[0, 1.05 * max(drawn)]))
    y = logarithmic(title, drawn) if least > 0 else linear
    names = pl.concat([measured.select(KEYS_OF_LINE), bounds.rename({"bound": "normalizer"}).select(KEYS_OF_LINE)])
    grey = dict.fromkeys(bounds["bound"].unique(maintain_order=True), GREY)
    colour = charts.colour_by("normalizer", palette(measured["normalizer"]) | grey, legend=False)
    strokes = {name: [1, 0] for name in measured["normalizer"]} | dict(zip(grey, STROKES))
    scale = alt.Scale(domain=list(strokes), range=list(strokes.values()))
    dash = alt.StrokeDash("normalizer:N", sort=None, legend=None, scale=scale)
    layers = [bound_lines(bounds, x, y, dash), *charts.lines(measured, x, y, colour, dash=dash), *marks]
    layers += charts.ends(names, x, y, colour, HEIGHT)
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=charts.panel_title(question))


def logarithmic(title: str, values: Sequence[float]) -> alt.Y:
    """An axis with a scale that these values fill; of its grid the powers of ten alone, as all would hide the chart."""
    low, high = min(values) / 1.3, max(values) * 1.3
    powers = [10.0**power for power in range(-9, 10) if low <= 10.0**power <= high]
    scale = alt.Scale(type="log", domain=[low, high], nice=False, clamp=True)
    return alt.Y("value:Q", title=title, scale=scale, axis=alt.Axis(values=powers, format="~g"))


def bound_means(frame: pl.DataFrame, columns: Mapping[str, str]) -> pl.DataFrame:
    """The mean over seeds of each bound of the baseline, where all are finite: the columns bound, n and value."""
    rows = frame.filter(normalizer=BASELINE).with_columns(random_rank=(pl.col("n") + 1) / 2)
    means = [
        over_seeds(rows.filter(pl.col(column).is_finite().all().over("n")), ["n"], column).select(
            pl.lit(bound).alias("bound"), "n", "value"
        )
        for bound, column in columns.items()
    ]
    return pl.concat(means)


def bound_lines(bounds: pl.DataFrame, x: alt.X, y: alt.Y, dash: alt.StrokeDash) -> alt.Chart:
    """Grey lines, told apart by their strokes and the names at their ends."""
    named = charts.data(bounds.rename({"bound": "normalizer"}))
    return alt.Chart(named).mark_line(color=GREY, strokeWidth=1.5).encode(x=x, y=y, strokeDash=dash)


def forced_layers(forced: pl.DataFrame, longest: int) -> list[alt.Chart]:
    """Marks where the largest weight of the baseline falls to the threshold, measured and forced, in the lengths."""
    baseline = forced.filter(normalizer=BASELINE).select("threshold", "measured", "nearest")
    marks = [
        {"n": n, "text": f"{text} n = {n:.0f}", "row": row}
        for threshold, *lengths in baseline.rows()
        for row, text, n in zip((0, 1), (f"measured: {threshold:g} at", f"forced below {threshold:g} from"), lengths)
        if n is not None and n <= longest
    ]
    if not marks:
        return []
    at = [mark["n"] for mark in marks]
    early = min(at) ** 2 < longest  # in the left half there is more room at the right of the marks
    side = {"align": "left", "dx": 6} if early else {"align": "right", "dx": -6}
    texts = [
        alt.Chart(alt.Data(values=[mark | {"n": max(at) if early else min(at)}]))
        .mark_text(**side, dy=-8 - 16 * (1 - mark["row"]), baseline="bottom")
        .encode(x="n:Q", y=alt.value(HEIGHT), text="text:N")
        .properties(description=charts.FOR_WIDE)
        for mark in marks
    ]
    return [alt.Chart(alt.Data(values=marks)).mark_rule(color=GREY).encode(x="n:Q"), *texts]


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
    bare = alt.Axis(labels=False, ticks=False, domain=False, grid=False, title=None)
    cells = (
        alt.Chart(alt.Data(values=by_set))
        .transform_calculate(item=f"sequence(1, {items + 1})")
        .transform_flatten(["weight", "item"])
        .mark_rect()
        .encode(
            x=alt.X("item:O", axis=bare, scale=alt.Scale(padding=0)),
            y=alt.Y("set:O", axis=bare, scale=alt.Scale(padding=0)),
            color=alt.Color("weight:Q", title="weight", scale=alt.Scale(scheme="viridis", domain=[0, 1])),
            tooltip=["normalizer:N", "n:Q", "set:O", "item:O", alt.Tooltip("weight:Q", format=".3g")],
        )
        .properties(width=4 * items, height=3 * sets)
    )
    of_row = alt.Header(labelAngle=0, labelAlign="left")
    of_column = alt.Header(labelExpr="'n = ' + datum.value", labelFontSize=9, labelPadding=3)
    return cells.facet(
        row=alt.Row("normalizer:N", title=None, sort=list(maps.normalizers), header=of_row),
        column=alt.Column("n:O", title=None, sort=list(maps.lengths), header=of_column),
        spacing=4,
    ).properties(
        title=charts.chart_title(
            "How does attention lose the largest item?",
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
    """The logit of an item alone: a row per seed, class and ρ, over the whole range and near its top."""
    grids = {"whole": (resolution.rho, resolution.logits), "near": (resolution.near_rho, resolution.near_logits)}
    of_grids = [
        charts.long_frame({"range": [name], "seed": seeds, "class": range(CLASSES), "rho": rho}, logit=logits)
        for name, (rho, logits) in grids.items()
    ]
    return pl.concat(of_grids)


def resolution_chart(resolution: Resolution, seeds: Sequence[int]) -> charts.Chart:
    """Logit against ρ for each class, of the first seed: over the whole range, and near 1, where classes differ."""
    curves = resolution_frame(resolution, seeds).filter(seed=seeds[0]).rename({"logit": "value"})
    classes = sorted(set(curves["class"]))
    colours = by_size(list(map(str, classes)))
    colour = alt.Color("class:N", title="class κ", scale=alt.Scale(domain=classes, range=list(colours.values())))
    y = alt.Y("value:Q", title="logit", scale=alt.Scale(zero=False))

    def panel(name: str, question: str, form: str) -> alt.Chart:
        shown = curves.filter(range=name)
        ends = alt.Scale(domain=[shown["rho"][0], 1.0], nice=False)
        x = alt.X("rho:Q", title="ρ", axis=alt.Axis(format=form, tickCount=5), scale=ends)
        (drawn,) = charts.lines(shown, x, y, colour, point=False, width=1.5)
        return drawn.properties(width=290, height=280, title=charts.panel_title(question))

    nat, key = (of_seeds[0] for of_seeds in tell_apart(resolution))
    digits = 1 + math.ceil(-math.log10(1 - resolution.near_rho[0]))
    return alt.hconcat(
        panel("whole", "the whole range", ".1f"),
        panel("near", "near the top, where classes differ", f".{digits}f"),
    ).properties(
        title=charts.chart_title(
            "What can the key tell apart?",
            f"seed {seeds[0]}; at ρ = 1 the logit grows by {resolution.slope[0]:.0f} per unit of ρ, so one nat is "
            f"{nat:.2g} in ρ: softmax blurs closer items",
            f"the class moves the logit by ± {resolution.offset[0]:.2g}, which is {key:.2g} in ρ: closer items may "
            "change places",
        )
    )


def tell_apart(resolution: Resolution) -> tuple[np.ndarray, np.ndarray]:
    """Returns by seed the difference in ρ that makes one nat, and the one that offsets between classes stand for."""
    slope = np.abs(resolution.slope)
    return 1 / slope, resolution.offset / slope


def gap_chart(gaps: pl.DataFrame, resolution: Resolution, normalizers: Sequence[str]) -> charts.Chart:
    """Errors against the gap between the two best items: of the largest logit, and of the answers of normalizers."""
    measured = sorted(set(gaps["n"]))
    lengths = [n for n in measured if n in GAP_LENGTHS] or measured[:5]
    nat, key = (float(of_seeds.mean()) for of_seeds in tell_apart(resolution))
    drawn = gaps.filter(pl.col("n").is_in(lengths))
    panels = [gap_panel(drawn, gaps["normalizer"][0], "missed", "the largest logit is another item's", key)]
    panels += [gap_panel(drawn, name, "wrong", f"{name}: the answer is wrong", nat) for name in normalizers]
    title = charts.chart_title(
        "How close may the two best items be?",
        f"{charts.mean_of(gaps['seed'].n_unique(), ', 95 % band')}; bins of at least {LEAST_SETS} sets",
        f"upright: on the left, the gap that the class can make up for ({key:.1g} in ρ); elsewhere, the gap that makes "
        f"one nat of logit ({nat:.1g})",
    )
    return alt.hconcat(*panels).properties(title=title)


def are_enough(gaps: pl.DataFrame) -> bool:
    """Whether any bin has as many sets as one must have to be drawn."""
    sets = gaps.group_by("normalizer", "n", "gap_low").agg(pl.sum("sets"))["sets"]
    return (sets >= LEAST_SETS).any()


def gap_panel(gaps: pl.DataFrame, normalizer: str, field: str, question: str, mark: float) -> Any:
    """One kind of error under one normalizer by the gap, a line for each length, and an upright line at the mark."""
    edges = ["n", "gap_low", "gap_high"]
    errors = gaps.filter(normalizer=normalizer)
    sets = errors.group_by(edges).agg(pl.sum("sets"))
    means = over_seeds(errors, edges, field, 0.0, 100.0).join(sets, on=edges, maintain_order="left")
    means = means.filter(pl.col("sets") >= LEAST_SETS).with_columns(
        pl.col("n").cast(pl.String), gap=(pl.col("gap_low") * pl.col("gap_high")).sqrt().round_sig_figs(3)
    )
    axis = alt.Axis(values=[10.0**power for power in range(-6, 1)], format="~e", labelOverlap=True)
    x = alt.X("gap:Q", title="gap in ρ", scale=alt.Scale(type="log", domain=[1e-6, 1], nice=False), axis=axis)
    colour = charts.colour_by("n", by_size([str(n) for n in sorted(set(gaps["n"]))]), "items in the set")
    lines = charts.lines(means, x, charts.percent_axis("error (% of sets)"), colour, tooltip=["sets:Q"])
    rule = alt.Chart(alt.Data(values=[{"gap": mark}])).mark_rule(color=GREY)
    return alt.layer(*lines, rule.encode(x="gap:Q")).properties(
        width=215, height=240, title=charts.panel_title(question)
    )


def loss_split_chart(losses: pl.DataFrame) -> charts.Chart:
    """Accuracy lost to dispersion, to the key and to the value by n: a panel for each normalizer."""
    names = list(dict.fromkeys(losses["normalizer"]))
    labels = {cause: f"{cause}: {text}" for cause, text in LOSSES.items()}
    by_cause = losses.unpivot(
        list(LOSSES), index=["normalizer", "n", "seed"], variable_name="cause", value_name="share"
    )
    order = -pl.col("cause").replace_strict(list(LOSSES), range(len(LOSSES)))
    means = over_seeds(by_cause, ["normalizer", "n", "cause"], "share").with_columns(
        pl.col("cause").replace(labels), order=order, lost=pl.col("value").clip(0.0)
    )
    colours = alt.Scale(domain=list(labels.values()), range=[BY_CAUSE[cause] for cause in LOSSES])
    legend = alt.Legend(orient="bottom", direction="vertical", labelLimit=400)
    areas = (
        alt.Chart(charts.data(means))
        .mark_area(opacity=0.85)
        .encode(
            x=charts.length_axis(sorted(set(losses["n"]))),
            y=alt.Y("lost:Q", title="lost (% of sets)", stack="zero", scale=alt.Scale(domain=[0, 100])),
            color=alt.Color("cause:N", title="what costs accuracy", sort=None, scale=colours, legend=legend),
            order="order:Q",
            tooltip=["normalizer:N", "n:Q", "cause:N", alt.Tooltip("value:Q", title="lost (%)", format=".2f")],
        )
        .properties(width=200, height=150)
    )
    title = charts.chart_title(
        "Is it dispersion that costs accuracy, or the key?",
        f"{charts.mean_of(losses['seed'].n_unique())}; key: what hardmax loses too; dispersion: what the normalizer "
        "loses beyond that",
        "a normalizer that does better than hardmax loses nothing to dispersion here",
    )
    panels = areas.facet(facet=alt.Facet("normalizer:N", title=None, sort=names), columns=3)
    return panels.resolve_axis(x="independent", y="independent").properties(title=title)
