"""How attention disperses, beside what theory allows, and where it looks: charts of `softmax_jax.measures.dispersion`.

Bands are 95 % intervals over seeds by Student's t. Neither texts nor background have a colour of their own: a page
gives its theme.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import polars as pl

from softmax_jax.measures.dispersion import AttentionMaps
from softmax_jax.measures.statistics import over_seeds
from softmax_jax.report.charts import (
    BASELINE,
    GREY,
    Chart,
    chart_title,
    colour_by,
    data,
    length_axis,
    line_with_band,
    lying_on_another,
    palette,
    panel_title,
)

KEYS = ("normalizer", "n")
WIDTH, HEIGHT = 620, 230
BOUNDS = {
    "at most, by the whole spread": [2, 3],
    "at most, by the nearest logits": [9, 4],
    "at least": [1, 0],
    "a random item": [9, 3, 2, 3],
}
"""The bounds with their dashes."""


class Panel(NamedTuple):
    """A quantity by n, with the bounds that it has."""

    field: str
    title: str
    question: str
    logarithmic: bool
    least: float
    """The least that the quantity can be, where its band is cut."""
    bounds: Mapping[str, str]
    """The column of each."""


PANELS = [
    Panel(
        "entropy",
        "entropy (nats)",
        "How flat do the weights get?",
        False,
        0.0,
        {"at most, by the whole spread": "entropy_upper", "at least": "entropy_lower"},
    ),
    Panel(
        "max_weight",
        "largest weight",
        "How much is left for the item that gets most?",
        True,
        1e-9,
        {
            "at most, by the whole spread": "max_weight_upper",
            "at most, by the nearest logits": "max_weight_upper_nearest",
            "at least": "max_weight_lower",
        },
    ),
    Panel(
        "rank",
        "mean rank",
        "Where does the true item's weight rank? Equal weights share theirs",
        True,
        1.0,
        {"a random item": "random_rank"},
    ),
]


def dispersion_chart(frame: pl.DataFrame, forced: pl.DataFrame) -> Chart:
    """Entropy, largest weight and rank of the true item by n, with softmax's bounds and where they fall to 0.5."""
    subtitle = [f"mean over sets and {frame['seed'].n_unique()} seeds, 95 % band"]
    baseline = frame.filter(normalizer=BASELINE)
    if len(baseline):
        spread, allowed = baseline.select(pl.mean("spread", "max_weight_upper")).row(0)
        subtitle.append(
            f"bounds of {BASELINE}, set by set: a logit spread of {spread:.0f} allows a weight of {allowed:.2g},"
        )
        subtitle.append("but the largest logits lie so close together that it has to fall")
    subtitle += lying_on_another(over_seeds(frame, KEYS, "entropy"), within=0.02)
    return alt.vconcat(*(panel_chart(panel, frame, forced) for panel in PANELS)).properties(
        title=chart_title("Why does attention fail on long sets?", *subtitle)
    )


def panel_chart(panel: Panel, frame: pl.DataFrame, forced: pl.DataFrame) -> Any:
    """One panel: a line with its band for every normalizer, grey lines for the bounds of the baseline."""
    measured = over_seeds(frame, KEYS, panel.field, low=panel.least)
    bounds = bound_means(frame, panel.bounds)
    lengths = sorted(set(frame["n"]))
    x, y = length_axis(lengths), alt.Y("value:Q", title=panel.title)
    if panel.logarithmic:
        y = logarithmic(y, [*measured["value"], *bounds["value"]])
    colour = colour_by("normalizer", palette(list(dict.fromkeys(frame["normalizer"]))), "normalizer")
    layers = [*line_with_band(measured, x, y, colour), bound_lines(bounds, x, y)]
    if panel.field == "max_weight":
        layers += forced_layers(forced, max(lengths))
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=panel_title(panel.question))


def logarithmic(y: alt.Y, values: Sequence[float]) -> alt.Y:
    """The axis on a scale that these values fill; of its grid the powers of ten alone, as all would hide the chart."""
    low, high = min(values) / 1.3, max(values) * 1.3
    powers = [10.0**power for power in range(-9, 10) if low <= 10.0**power <= high]
    return y.scale(type="log", domain=[low, high], nice=False, clamp=True).axis(values=powers, format="~g")


def bound_means(frame: pl.DataFrame, columns: Mapping[str, str]) -> pl.DataFrame:
    """The mean over seeds of each bound of the baseline: the columns bound, n and value."""
    rows = frame.filter(normalizer=BASELINE).with_columns(random_rank=(pl.col("n") + 1) / 2)
    means = [
        over_seeds(rows, ["n"], column).select(pl.lit(bound).alias("bound"), "n", "value")
        for bound, column in columns.items()
    ]
    return pl.concat(means)


def bound_lines(bounds: pl.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    """Grey lines, told apart by their dashes."""
    scale = alt.Scale(domain=list(BOUNDS), range=list(BOUNDS.values()))
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=2, symbolSize=400, labelLimit=260)
    dash = alt.StrokeDash("bound:N", title=f"theory, for {BASELINE}", scale=scale, legend=legend)
    return alt.Chart(data(bounds)).mark_line(color=GREY, strokeWidth=2).encode(x=x, y=y, strokeDash=dash)


def forced_layers(forced: pl.DataFrame, longest: int) -> list[alt.Chart]:
    """Where the largest weight of the baseline falls to the threshold, measured and forced, if within the lengths."""
    marks = [
        {"n": n, "text": f"{text} n = {n:.0f}", "row": row}
        for threshold, *lengths in forced.filter(normalizer=BASELINE).select("threshold", "measured", "nearest").rows()
        for row, text, n in zip((0, 1), (f"measured: {threshold:g} at", f"forced below {threshold:g} from"), lengths)
        if n is not None and n <= longest
    ]
    left = min((mark["n"] for mark in marks), default=1.0)
    texts = [
        alt.Chart(alt.Data(values=[mark | {"n": left}]))
        .mark_text(align="right", dx=-6, dy=-8 - 16 * (1 - mark["row"]), baseline="bottom")
        .encode(x="n:Q", y=alt.value(HEIGHT), text="text:N")
        for mark in marks
    ]
    return [alt.Chart(alt.Data(values=marks)).mark_rule(color=GREY).encode(x="n:Q"), *texts] if marks else []


def attention_map_chart(maps: AttentionMaps) -> Chart:
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
        title=chart_title(
            "How does attention lose the largest item?",
            f"left to right: the {items} items with the largest ρ, from the largest down; top to bottom: {sets} sets "
            "by the ρ of their best item",
            f"one trained seed ({maps.seed}); one colour scale for all panels",
        )
    )


def attention_map_frame(maps: AttentionMaps) -> pl.DataFrame:
    """The data of the maps: a row per normalizer, length, set and item."""
    rows = [
        (name, n, maps.seed, place, item, float(rho), float(weight))
        for name, by_length in zip(maps.normalizers, maps.weights)
        for n, panel, rho_of_panel in zip(maps.lengths, by_length, maps.rho)
        for place, (weights, rhos) in enumerate(zip(panel, rho_of_panel), 1)
        for item, (weight, rho) in enumerate(zip(weights, rhos), 1)
    ]
    return pl.DataFrame(rows, ["normalizer", "n", "seed", "set", "item", "rho", "weight"], orient="row")
