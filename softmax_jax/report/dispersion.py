"""Charts of how attention disperses, beside what theory allows, and of what else costs accuracy.

Each takes what `softmax_jax.measures.dispersion` measures and answers the question in its title; bands are 95 %
intervals over seeds by Student's t. Neither texts nor background have a colour of their own: a page gives its theme.

- `dispersion_chart(rows, forced)`: from `dispersion_rows` and `forced_rows`
- `attention_map_chart(maps, lengths)`: from `attention_maps`
- `resolution_chart(found, seeds, seed)`: from `resolution`
- `gap_chart(rows, found, normalizers)`: from `gap_rows`, with the marks of `resolution`
- `loss_split_chart(rows)`: from `loss_rows`
- `table(rows)`, `attention_map_table(maps)`, `resolution_table(found, seeds)`: the data of each as dicts, for CSV
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import polars as pl

from softmax_jax.measures.dispersion import AttentionMaps, DispersionRow, ForcedRow, GapRow, LossRow, Resolution
from softmax_jax.measures.statistics import half_width
from softmax_jax.report.charts import (
    GREY,
    PALETTE,
    Chart,
    chart_title,
    colour_by,
    length_axis,
    line_legend,
    lying_on_another,
    palette,
    panel_title,
)

BASELINE = "softmax"
"""The normalizer whose bounds are drawn."""
WIDTH, HEIGHT = 620, 230
BOUNDS = {
    "at most, by the whole spread": [2, 3],
    "at most, by the nearest logits": [9, 4],
    "at least": [1, 0],
    "a random item": [9, 3, 2, 3],
}
LEAST_SETS = 30
"""A bin of gaps with fewer sets of a length is not drawn."""
GAP_LENGTHS = (16, 256, 1024, 4096, 16384)
LOSSES = {
    "dispersion": ("weight spread over other items", "#e45756"),
    "key": ("another item has the largest logit", "#f58518"),
    "value": ("the true item's value is misread", "#b279a2"),
}
Record = dict[str, Any]


def table(rows: Iterable[Any]) -> list[Record]:
    """Rows as dicts."""
    return [row._asdict() for row in rows]


def over_seeds(rows: Iterable[Any], keys: Sequence[str], field: str) -> list[Record]:
    """Mean and 95 % interval over seeds of a field, for each combination of the keys; None values are left out.

    >>> rows = [GapRow("softmax", 4, seed, 0.1, 0.2, 1, missed, 0.0) for seed, missed in enumerate((1.0, 3.0))]
    >>> over_seeds(rows, ["n"], "missed")[0]["value"]
    2.0
    """
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if getattr(row, field) is not None:
            groups.setdefault(tuple(getattr(row, key) for key in keys), []).append(getattr(row, field))
    found = []
    for at, values in groups.items():
        mean, half = float(np.mean(values)), half_width(values) or 0.0
        found.append(dict(zip(keys, at)) | {"value": mean, "low": mean - half, "high": mean + half})
    return found


def bounded(records: Iterable[Record], low: float, high: float = np.inf) -> list[Record]:
    """The records with their bands cut to what the quantity can be."""
    return [r | {"low": max(r["low"], low), "high": min(r["high"], high)} for r in records]


def band_and_line(
    records: Sequence[Record], x: alt.X, y: alt.Y, colour: alt.Color, tooltip: Sequence[Any]
) -> list[alt.Chart]:
    """The band and the line of the means; `y` says how to draw a field named `value`."""
    base = alt.Chart(alt.Data(values=list(records))).encode(x=x, color=colour)
    low = y.copy()
    low.shorthand = "low:Q"
    band = base.mark_area(opacity=0.2).encode(y=low, y2="high:Q")
    return [band, base.mark_line(point=True).encode(y=y, tooltip=list(tooltip))]


class Panel(NamedTuple):
    """A quantity by n, with the bounds that it has."""

    field: str
    title: str
    question: str
    logarithmic: bool
    least: float
    """The least that the quantity can be, where its band is cut."""
    bounds: Mapping[str, str]


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
    Panel("rank", "mean rank", "Where does the true item's weight rank? Equal weights share theirs", True, 1.0, {}),
]


def dispersion_chart(rows: Sequence[DispersionRow], forced: Sequence[ForcedRow]) -> Chart:
    """Entropy, largest weight and rank of the true item by n, with softmax's bounds and where they fall to 0.5."""
    subtitle = [f"mean over sets and {len({row.seed for row in rows})} seeds, 95 % band"]
    own = [row for row in rows if row.normalizer == BASELINE]
    if own:
        spread, allowed = (np.mean([getattr(row, name) for row in own]) for name in ("spread", "max_weight_upper"))
        subtitle.append(
            f"bounds of {BASELINE}, set by set: a logit spread of {spread:.0f} allows a weight of {allowed:.2g},"
        )
        subtitle.append("but the largest logits lie so close together that it has to fall")
    subtitle += lying_on_another(pl.DataFrame(over_seeds(rows, ("normalizer", "n"), "entropy")), within=0.02)
    return alt.vconcat(*(panel_chart(panel, rows, own, forced) for panel in PANELS)).properties(
        title=chart_title("Why does attention fail on long sets?", *subtitle)
    )


def panel_chart(
    panel: Panel, rows: Sequence[DispersionRow], own: Sequence[DispersionRow], forced: Sequence[ForcedRow]
) -> Any:
    """One panel: bands and lines of every normalizer, grey lines for the bounds of the baseline, `own`."""
    names = list(dict.fromkeys(row.normalizer for row in rows))
    lengths = sorted({row.n for row in rows})
    measured = bounded(over_seeds(rows, ("normalizer", "n"), panel.field), panel.least)
    bounds = bound_records(own, panel.bounds)
    if panel.field == "rank":
        bounds = [{"bound": "a random item", "n": n, "value": (n + 1) / 2} for n in lengths]
    ends = [record["value"] for record in (*measured, *bounds)]
    scale, axis = alt.Scale(zero=True), alt.Axis()
    if panel.logarithmic:
        low, high = min(ends) / 1.3, max(ends) * 1.3
        scale = alt.Scale(type="log", domain=[low, high], nice=False, clamp=True)
        # Every line of a logarithmic grid would be more grid than chart.
        decades = (10.0**power for power in range(-9, 10))
        axis = alt.Axis(values=[decade for decade in decades if low <= decade <= high], format="~g")
    y = alt.Y("value:Q", title=panel.title, scale=scale, axis=axis)
    tooltip = ["normalizer:N", "n:Q", alt.Tooltip("value:Q", title=panel.title, format=".4g")]
    colour, x = colour_by("normalizer", palette(names), "normalizer"), length_axis(lengths)
    layers = [*band_and_line(measured, x, y, colour, tooltip), bound_lines(bounds, x, y)]
    if panel.field == "max_weight":
        layers += forced_layers(forced, lengths)
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=panel_title(panel.question))


def bound_records(own: Sequence[DispersionRow], fields: Mapping[str, str]) -> list[Record]:
    """The means over seeds of the bounds of the baseline."""
    return [
        {"bound": bound, "n": record["n"], "value": record["value"]}
        for bound, field in fields.items()
        for record in over_seeds(own, ("n",), field)
    ]


def bound_lines(records: Sequence[Record], x: alt.X, y: alt.Y) -> alt.Chart:
    """Grey lines, told apart by their dashes."""
    scale = alt.Scale(domain=list(BOUNDS), range=list(BOUNDS.values()))
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=2, symbolSize=400, labelLimit=260)
    return (
        alt.Chart(alt.Data(values=list(records)))
        .mark_line(color=GREY, strokeWidth=2)
        .encode(
            x=x,
            y=y,
            strokeDash=alt.StrokeDash("bound:N", title=f"theory, for {BASELINE}", scale=scale, legend=legend),
        )
    )


def forced_layers(forced: Sequence[ForcedRow], lengths: Sequence[int]) -> list[alt.Chart]:
    """Where the largest weight of the baseline falls to the threshold, measured and forced, if within the lengths."""
    marks = [
        {"n": at, "text": f"{text} n = {at:.0f}", "row": row}
        for found in forced
        if found.normalizer == BASELINE
        for row, (text, at) in enumerate(
            [
                (f"measured: {found.threshold:g} at", found.measured),
                (f"forced below {found.threshold:g} from", found.nearest),
            ]
        )
        if at is not None and at <= max(lengths)
    ]
    base = alt.Chart(alt.Data(values=marks)).encode(x="n:Q")
    left = min((mark["n"] for mark in marks), default=1.0)
    texts = [
        alt.Chart(alt.Data(values=[mark | {"n": left}]))
        .mark_text(align="right", dx=-6, dy=-8 - 16 * (1 - mark["row"]), baseline="bottom")
        .encode(x="n:Q", y=alt.value(HEIGHT), text="text:N")
        for mark in marks
    ]
    return [base.mark_rule(color=GREY), *texts] if marks else []


def attention_map_chart(maps: AttentionMaps, lengths: Sequence[int] | None = None) -> Chart:
    """The weights of the largest items of every set: a panel for each normalizer and length, one colour scale."""
    lengths = maps.lengths if lengths is None else lengths
    sets, items = maps.weights.shape[2:]
    values = [
        {"normalizer": name, "n": n, "set": place + 1, "weight": [float(f"{w:.3g}") for w in row]}
        for name, by_length in zip(maps.normalizers, maps.weights)
        for n, panel in zip(maps.lengths, by_length)
        if n in lengths
        for place, row in enumerate(panel)
    ]
    hidden = alt.Axis(labels=False, ticks=False, domain=False, grid=False, title=None)
    header = alt.Header(labelExpr="'n = ' + datum.value", labelFontSize=9, labelPadding=3)
    chart = (
        alt.Chart(alt.Data(values=values))
        .transform_calculate(item=f"sequence(1, {items + 1})")
        .transform_flatten(["weight", "item"])
        .mark_rect()
        .encode(
            x=alt.X("item:O", axis=hidden, scale=alt.Scale(padding=0)),
            y=alt.Y("set:O", axis=hidden, scale=alt.Scale(padding=0)),
            color=alt.Color("weight:Q", title="weight", scale=alt.Scale(scheme="viridis", domain=[0, 1])),
            tooltip=["normalizer:N", "n:Q", "set:O", "item:O", alt.Tooltip("weight:Q", format=".3g")],
        )
        .properties(width=4 * items, height=3 * sets)
    )
    return chart.facet(
        row=alt.Row(
            "normalizer:N", title=None, sort=list(maps.normalizers), header=alt.Header(labelAngle=0, labelAlign="left")
        ),
        column=alt.Column("n:O", title=None, sort=list(lengths), header=header),
        spacing=4,
    ).properties(
        title=chart_title(
            "How does attention lose the largest item?",
            f"left to right: the {items} items with the largest ρ, from the largest down; top to bottom: {sets} sets "
            "by the ρ of their best item",
            f"one trained seed ({maps.seed}); one colour scale for all panels",
        )
    )


def resolution_chart(found: Resolution, seeds: Sequence[int], seed: int | None = None) -> Chart:
    """Logit against ρ for each class: over the whole range, and near ρ = 1, where classes begin to differ."""
    at = 0 if seed is None else list(seeds).index(seed)
    classes = found.logits.shape[1]
    colour = alt.Color("class:N", title="class κ", scale=alt.Scale(scheme="category10", domain=list(range(classes))))

    def panel(rho: np.ndarray, logits: np.ndarray, question: str, form: str) -> alt.Chart:
        values = [
            {"class": kappa, "rho": float(x), "logit": float(y)}
            for kappa, curve in enumerate(logits)
            for x, y in zip(rho, curve)
        ]
        axis = alt.Axis(format=form, tickCount=5)
        return (
            alt.Chart(alt.Data(values=values))
            .mark_line(strokeWidth=1.5)
            .encode(
                x=alt.X("rho:Q", title="ρ", axis=axis, scale=alt.Scale(domain=[float(rho[0]), 1.0], nice=False)),
                y=alt.Y("logit:Q", title="logit", scale=alt.Scale(zero=False)),
                color=colour,
                tooltip=["class:N", alt.Tooltip("rho:Q", format=".8f"), alt.Tooltip("logit:Q", format=".4f")],
            )
            .properties(width=290, height=280, title=panel_title(question))
        )

    nat, key = tell_apart(found, at)
    digits = 1 + math.ceil(-math.log10(1 - found.near_rho[0]))
    return alt.hconcat(
        panel(found.rho, found.logits[at], "the whole range", ".1f"),
        panel(found.near_rho, found.near_logits[at], "near the top, where classes differ", f".{digits}f"),
    ).properties(
        title=chart_title(
            "What can the key tell apart?",
            f"seed {seeds[at]}; at ρ = 1 the logit grows by {found.slope[at]:.0f} per unit of ρ, so one nat is "
            f"{nat:.2g} in ρ: softmax blurs closer items",
            f"the class moves the logit by ± {found.offset[at]:.2g}, which is {key:.2g} in ρ: closer items may change "
            "places",
        )
    )


def tell_apart(found: Resolution, at: int) -> tuple[float, float]:
    """The difference in ρ that makes one nat, and the one that the offsets between classes stand for, of one seed."""
    slope = abs(float(found.slope[at]))
    return 1 / slope, float(found.offset[at]) / slope


def gap_chart(
    rows: Sequence[GapRow], found: Resolution | None = None, normalizers: Sequence[str] = (BASELINE,)
) -> Chart:
    """Errors against the gap between the two best items: of the largest logit, and of the answers of normalizers."""
    lengths = [n for n in sorted({row.n for row in rows}) if n in GAP_LENGTHS] or sorted({row.n for row in rows})[:5]
    first = rows[0].normalizer
    colours = alt.Scale(domain=lengths, range=PALETTE[: len(lengths)])
    colour = alt.Color("n:O", title="items in the set", scale=colours, legend=line_legend())
    axis = alt.Axis(values=[10.0**power for power in range(-6, 1)], format="~e", labelOverlap=True)
    x = alt.X("gap:Q", title="gap in ρ", scale=alt.Scale(type="log", domain=[1e-6, 1], nice=False), axis=axis)

    def panel(name: str, field: str, question: str) -> Any:
        own = [row for row in rows if row.normalizer == name and row.n in lengths]
        counts: dict[tuple[int, float], int] = {}
        for row in own:
            counts[row.n, row.gap_low] = counts.get((row.n, row.gap_low), 0) + row.sets
        records = [
            record
            | {"gap": (record["gap_low"] * record["gap_high"]) ** 0.5, "sets": counts[record["n"], record["gap_low"]]}
            for record in bounded(over_seeds(own, ("n", "gap_low", "gap_high"), field), 0.0, 100.0)
            if counts[record["n"], record["gap_low"]] >= LEAST_SETS
        ]
        tooltip = ["n:O", alt.Tooltip("gap:Q", format=".1e"), alt.Tooltip("value:Q", format=".1f"), "sets:Q"]
        y = alt.Y("value:Q", title="error (% of sets)", scale=alt.Scale(domain=[0, 100]))
        layers = band_and_line(records, x, y, colour, tooltip)
        if found is not None:
            layers.append(resolution_rule(found, 1 if field == "missed" else 0))
        return alt.layer(*layers).properties(width=215, height=240, title=panel_title(question))

    named = [panel(name, "wrong", f"{name}: the answer is wrong") for name in normalizers]
    subtitle = [f"mean of {len({row.seed for row in rows})} seeds, 95 % band; bins of at least {LEAST_SETS} sets"]
    if found is not None:
        key, nat = (np.mean([tell_apart(found, at)[i] for at in range(len(found.slope))]) for i in (1, 0))
        subtitle.append(
            f"vertical: left, what the class does to the key ({key:.1g} in ρ); else what makes one nat of logit "
            f"({nat:.1g})"
        )
    return alt.hconcat(panel(first, "missed", "the largest logit is another item's"), *named).properties(
        title=chart_title("How close may the two best items be?", *subtitle)
    )


def resolution_rule(found: Resolution, which: int) -> alt.Chart:
    """A vertical line at the mean over seeds of what `tell_apart` gives."""
    mean = float(np.mean([tell_apart(found, at)[which] for at in range(len(found.slope))]))
    return alt.Chart(alt.Data(values=[{"gap": mean}])).mark_rule(color=GREY, strokeDash=[4, 3]).encode(x="gap:Q")


def loss_split_chart(rows: Sequence[LossRow]) -> Chart:
    """Accuracy lost to dispersion, to the key and to the value by n: a panel for each normalizer."""
    names = list(dict.fromkeys(row.normalizer for row in rows))
    lengths = sorted({row.n for row in rows})
    labels = {cause: f"{cause}: {text}" for cause, (text, _) in LOSSES.items()}
    values = [
        record | {"cause": labels[cause], "order": order, "lost": max(record["value"], 0.0)}
        for order, cause in enumerate(("value", "key", "dispersion"))
        for record in over_seeds(rows, ("normalizer", "n"), cause)
    ]
    colours = alt.Scale(domain=list(labels.values()), range=[colour for _, colour in LOSSES.values()])
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_area(opacity=0.85)
        .encode(
            x=length_axis(lengths),
            y=alt.Y("lost:Q", title="lost (% of sets)", stack="zero", scale=alt.Scale(domain=[0, 100])),
            color=alt.Color(
                "cause:N",
                title="what costs accuracy",
                sort=None,
                scale=colours,
                legend=alt.Legend(orient="bottom", direction="vertical", labelLimit=400),
            ),
            order="order:Q",
            tooltip=["normalizer:N", "n:Q", "cause:N", alt.Tooltip("value:Q", title="lost (%)", format=".2f")],
        )
        .properties(width=200, height=150)
    )
    return (
        chart.facet(facet=alt.Facet("normalizer:N", title=None, sort=names), columns=3)
        .resolve_axis(x="independent", y="independent")
        .properties(
            title=chart_title(
                "Is it dispersion that costs accuracy, or the key?",
                f"mean of {len({row.seed for row in rows})} seeds; key: what hardmax loses too; dispersion: what the "
                "normalizer loses beyond that",
                "a normalizer that does better than hardmax loses nothing to dispersion here",
            )
        )
    )


def attention_map_table(maps: AttentionMaps) -> list[Record]:
    """A dict per normalizer, length, set and item."""
    return [
        {
            "normalizer": name,
            "n": n,
            "seed": maps.seed,
            "set": place + 1,
            "item": item + 1,
            "rho": float(rho),
            "weight": float(w),
        }
        for name, by_length in zip(maps.normalizers, maps.weights)
        for n, panel, rhos in zip(maps.lengths, by_length, maps.rho)
        for place, (row, row_rhos) in enumerate(zip(panel, rhos))
        for item, (w, rho) in enumerate(zip(row, row_rhos))
    ]


def resolution_table(found: Resolution, seeds: Sequence[int]) -> list[Record]:
    """A dict per seed, class and ρ of both grids."""
    return [
        {"range": name, "seed": seed, "class": kappa, "rho": float(x), "logit": float(y)}
        for name, rho, logits in (("whole", found.rho, found.logits), ("near", found.near_rho, found.near_logits))
        for seed, by_class in zip(seeds, logits)
        for kappa, curve in enumerate(by_class)
        for x, y in zip(rho, curve)
    ]
