"""The findings of `softmax_jax.probe` in a model at several lengths: a frame, charts of it, and a page.

- `of_heads(probed)`: means for each length, layer and head
- `critical_betas(probed)`: the critical inverse temperature of each layer, by the number of visible entries
- `model_page(probed, directory, title)`: a page that opens offline, with its charts and data beside it
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from softmax_jax.files import versions, write_whole
from softmax_jax.measures.statistics import over_seeds
from softmax_jax.report import charts
from softmax_jax.report.charts import GREY, SIZES, by_size
from softmax_jax.report.page import Figure, Section, page, write_figure
from softmax_jax.transforms.probe import Probed, SiteRows

MEASURES = ("entropy", "uniform", "largest", "first")
REST = "#c4c8cc"
HEADS = SIZES[2]
COLUMNS = 3
"""Of small multiples."""


def of_heads(probed: Mapping[int, Probed], heads: int = -2) -> pl.DataFrame:
    """Means over the rows of each head: `n`, `layer`, `head`, and a column for each measure.

    `probed` has what was found by the length n of the input. `entropy` is in nats, `uniform` is that of equal weights
    on what a row sees, `largest` and `first` are weights. `heads` is the axis of the heads among those of the rows: by
    default the last but one, as in (batch, heads, queries); without such an axis there is one head. A layer is a site,
    or a turn of the loop it is in. Rows that were not weighed are left out.

    >>> import jax, softmax_jax as sj
    >>> attend = lambda x: jax.nn.softmax(x @ x.T) @ x
    >>> _, found = sj.probe(attend)(np.eye(4, dtype=np.float32))
    >>> of_heads({4: found}).select("n", "layer", "head", pl.col("uniform").round(3)).rows()
    [(4, 'site_0', 0, 1.386)]
    """
    frames = [_of_site(n, site, heads) for n, found in probed.items() for site in found]
    return pl.concat(frames).filter(pl.col("entropy").is_not_nan())


def critical_betas(probed: Mapping[int, Probed]) -> pl.DataFrame:
    """The critical inverse temperatures of each layer: `layer`, `n`, `rows`, `value`, `low`, `high`, `sharp`.

    Rows are taken together by the number of entries they see: those of n to 2n - 1 have the power of two `n`. Of these
    `value` is the median, `low` and `high` the quartiles, and `sharp` the percentage below 1, at the β of the model.
    Rows that were not weighed and that see one entry or none are left out. Empty unless `probe` was asked for them.

    >>> import jax, softmax_jax as sj
    >>> attend = lambda x: jax.nn.softmax(8 * x @ x.T) @ x
    >>> _, found = sj.probe(attend, critical=True)(np.eye(4, dtype=np.float32))
    >>> critical_betas({4: found}).select("layer", "n", "rows", pl.col("value").round(3), "sharp").rows()
    [('site_0', 4, 4, 0.173, 100.0)]
    """
    columns = {"layer": pl.String, "visible": pl.Int64, "critical": pl.Float64}
    frames = [pl.DataFrame(schema=columns)]
    frames += [_critical_of_site(site) for found in probed.values() for site in found if site.critical is not None]
    rows = pl.concat(frames).filter(pl.col("visible") > 1, pl.col("critical").is_not_nan())
    by_power = rows.with_columns(n=2 ** pl.col("visible").log(2).floor().cast(pl.Int64))
    critical = pl.col("critical")
    return by_power.group_by("layer", "n", maintain_order=True).agg(
        rows=pl.len(),
        value=critical.median(),
        low=critical.quantile(0.25, "nearest"),
        high=critical.quantile(0.75, "nearest"),
        sharp=100 * (critical < 1).mean(),
    )


def _critical_of_site(rows: SiteRows) -> pl.DataFrame:
    visible, critical = np.asarray(rows.visible, np.int64), np.asarray(rows.critical, np.float64)
    turns = critical.reshape(_turns(rows), -1)
    names = np.repeat(_names(rows.site.scope, len(turns)), turns.shape[1])
    return pl.DataFrame({"layer": names, "visible": visible.ravel(), "critical": critical.ravel()})


def _turns(rows: SiteRows) -> int:
    """How often the loops around a site ran; 1 outside of any."""
    axes = rows.site.axis if isinstance(rows.site.axis, tuple) else (rows.site.axis,)
    own = len(rows.site.shape) - len(axes)
    return math.prod(rows.entropy.shape[: rows.entropy.ndim - own])


def _names(scope: str, turns: int) -> list[str]:
    """Returns a name for each turn of a site, as each is a layer."""
    return [scope] if turns == 1 else [f"{scope}, turn {turn}" for turn in range(turns)]


def _of_site(n: int, rows: SiteRows, heads: int) -> pl.DataFrame:
    visible = np.asarray(rows.visible, np.float64)
    uniform = np.log(np.where(visible > 0, visible, np.nan))
    columns = {"entropy": rows.entropy, "uniform": uniform, "largest": rows.largest, "first": rows.first}
    numbers = np.stack([np.asarray(columns[name], np.float64) for name in MEASURES])
    axes = rows.site.axis if isinstance(rows.site.axis, tuple) else (rows.site.axis,)
    own = numbers.shape[numbers.ndim - len(rows.site.shape) + len(axes) :]
    by_turn = numbers.reshape(len(MEASURES), _turns(rows), *(own if len(own) > 1 else (1, *own)))
    by_head = np.moveaxis(by_turn, heads if len(own) > 1 else 2, 2)
    by_head = by_head.reshape(*by_head.shape[:3], -1)
    weighed = ~np.isnan(by_head)
    means = np.divide(
        np.where(weighed, by_head, 0).sum(-1), weighed.sum(-1), where=weighed.any(-1), out=by_head[..., 0]
    )
    turns, count = means.shape[1:]
    places: dict[str, Any] = {"n": [n], "layer": _names(rows.site.scope, turns), "head": range(count)}
    return charts.long_frame(places, **dict(zip(MEASURES, means)))


def entropy_chart(frame: pl.DataFrame) -> charts.Chart:
    """The entropy of each head by n, a panel for each layer, below that of equal weights."""
    x = charts.length_axis(frame["n"].unique().sort().to_list(), "tokens")
    entropy = alt.Y("entropy:Q", title="entropy (nats)")
    shared = alt.Chart(charts.data(frame))
    of_heads = shared.mark_line(opacity=0.7, color=HEADS).encode(
        x=x, y=entropy, detail="head:N", tooltip=["head:N", "n:Q", alt.Tooltip("entropy:Q", format=".3f")]
    )
    equal = shared.mark_line(color=GREY).encode(x=x, y=alt.Y("mean(uniform):Q"))
    title = charts.chart_title(
        "Does attention disperse as the input grows?", "one line a head; grey: equal weights on all that a row sees"
    )
    return _by_layer(alt.layer(of_heads, equal).properties(width=210, height=150), frame).properties(title=title)


def evenness_chart(frame: pl.DataFrame) -> charts.Chart:
    """Heads by lengths, a panel for each layer: the entropy as a share of that of equal weights."""
    shares = frame.with_columns(share=pl.col("entropy") / pl.col("uniform"))
    cells = alt.Chart(charts.data(shares)).mark_rect()
    chart = cells.encode(
        x=alt.X("n:O", title="tokens", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("head:O", title="head"),
        color=alt.Color("share:Q", title="share", scale=alt.Scale(domain=[0, 1], scheme="viridis")),
        tooltip=["head:N", "n:Q", alt.Tooltip("share:Q", format=".3f")],
    )
    title = charts.chart_title(
        "Which heads disperse?", "entropy as a share of that of equal weights: 1 looks at all alike"
    )
    return _by_layer(chart.properties(width=210, height=150), frame).properties(title=title)


def first_chart(frame: pl.DataFrame) -> charts.Chart:
    """The weight of the first token by n, a panel for each layer."""
    x = charts.length_axis(frame["n"].unique().sort().to_list(), "tokens")
    weight = alt.Y("first:Q", title="weight of the first token", scale=alt.Scale(domain=[0, 1]))
    lines = alt.Chart(charts.data(frame)).mark_line(opacity=0.7, color=HEADS)
    chart = lines.encode(
        x=x, y=weight, detail="head:N", tooltip=["head:N", "n:Q", alt.Tooltip("first:Q", format=".3f")]
    )
    title = charts.chart_title("Is the first token a sink?", "mean over queries; one line a head")
    return _by_layer(chart.properties(width=210, height=150), frame).properties(title=title)


def critical_chart(frame: pl.DataFrame) -> charts.Chart:
    """The critical inverse temperature by the number of visible entries, a panel for each layer; the model's own."""
    drawn = frame.filter(pl.all_horizontal(pl.col("value", "low", "high").is_between(0, math.inf, closed="none")))
    x = charts.length_axis(frame["n"].unique().sort().to_list(), "visible entries, at least")
    y = charts.log_axis("critical β", [1.0, *drawn["low"], *drawn["high"]])
    shared = alt.Chart(charts.data(drawn))
    told = ["n:Q", "rows:Q", *(alt.Tooltip(f"{name}:Q", format=".3g") for name in ("value", "low", "high", "sharp"))]
    low = y.copy()
    low.shorthand = "low:Q"
    band = shared.mark_area(opacity=0.25, color=HEADS).encode(x=x, y=low, y2="high:Q")
    line = shared.mark_line(color=HEADS, point=alt.OverlayMarkDef(color=HEADS)).encode(x=x, y=y, tooltip=told)
    own = shared.mark_rule(color=GREY).encode(y=alt.datum(1))
    title = charts.chart_title(
        "How sharp would each layer have to be?",
        "median and quartiles of its rows; grey: β = 1, that of the model, under which rows above it are not sharp",
    )
    layers = alt.layer(band, own, line).properties(width=210, height=150)
    return _by_layer(layers, frame).properties(title=title)


def mass_chart(frame: pl.DataFrame, shares: Mapping[str, str]) -> charts.Chart:
    """Draws where the weight goes: these columns in percent as bars by `n`, the last grey, a panel a `normalizer`."""
    means = frame.group_by("normalizer", "n", maintain_order=True).agg(pl.mean(*shares))
    long = means.unpivot(list(shares), index=["normalizer", "n"], variable_name="share", value_name="value")
    order = pl.col("share").replace_strict(list(shares), range(len(shares)))
    long = long.with_columns(order=order, share=pl.col("share").replace_strict(dict(shares)))
    *named, rest = shares.values()
    colours = by_size(named) | {rest: REST}
    bars = alt.Chart(charts.data(long)).mark_bar()
    chart = bars.encode(
        x=alt.X(
            "value:Q",
            title="% of the weight",
            scale=alt.Scale(domain=[0, 100]),
            stack="zero",
            axis=alt.Axis(values=[0, 50, 100]),
        ),
        y=alt.Y("n:O", title="tokens"),
        color=charts.colour_by("share", colours, "weight on").legend(orient="top"),
        order="order:Q",
        tooltip=["share:N", "n:Q", alt.Tooltip("value:Q", format=".2f")],
    ).properties(width=150, height=100)
    title = charts.chart_title("Who gets the weight?", "mean over layers, heads, queries and texts")
    facet = alt.Facet("normalizer:N", title=None, sort=means["normalizer"].unique(maintain_order=True).to_list())
    return chart.facet(facet, columns=COLUMNS + 1).properties(title=title)


def found_chart(found: pl.DataFrame, *title: str) -> charts.Chart:
    """Questions answered right by `n`, a line for each `normalizer`, over the columns round and accuracy."""
    x = charts.length_axis(found["n"].unique(maintain_order=True).to_list(), "tokens")
    frame = over_seeds(found, ["normalizer", "n"], "accuracy", 0.0, 100.0)
    return charts.of_normalizers(frame, x, charts.percent_axis("questions answered right (%)"), *title)


def _by_layer(chart: Any, frame: pl.DataFrame) -> Any:
    """The chart once for each layer of the frame."""
    layers = frame["layer"].unique(maintain_order=True).to_list()
    return chart.facet(alt.Facet("layer:N", title=None, sort=layers), columns=COLUMNS)


def critical_section(frame: pl.DataFrame) -> Section:
    """Says from which inverse temperature on the rows of each layer are sharp, by what `critical_betas` gives."""
    ends = (
        frame.group_by("n").agg(sharp=(pl.col("sharp") * pl.col("rows")).sum() / pl.col("rows").sum()).sort("n").rows()
    )
    (short, few), (long, many) = ends[0], ends[-1]
    sentences = [
        "A row is sharp only at an inverse temperature above its critical one, which its largest logits give.",
        f"The model's own is 1. It is above the critical one in {few:.0f} % of the rows with about {short} visible "
        f"entries, and in {many:.0f} % of those with about {long}.",
    ]
    return Section("critical", "Are the rows sharp?", sentences, [Figure("critical", critical_chart(frame), frame)])


def model_page(probed: Mapping[int, Probed], directory: Path | str, title: str, heads: int = -2) -> list[Path]:
    """Writes a page on a model with its charts beside it, as PNG, SVG and CSV; returns the paths, the page's first.

    The arguments are those of `of_heads`. It says how sharp the rows must be if `probe` was asked for what is critical.
    """
    frame, directory = of_heads(probed, heads), Path(directory)
    ends = frame.group_by("n").agg(pl.mean("entropy", "uniform", "first")).sort("n").rows()
    (short, low, few, sink), (long, high, many, sunk) = ends[0], ends[-1]
    sections = [
        Section(
            "entropy",
            "Does attention disperse?",
            [
                f"From {short} to {long} tokens the mean entropy goes from {low:.2f} to {high:.2f} nats.",
                f"That of equal weights goes from {few:.2f} to {many:.2f}.",
            ],
            [Figure("entropy", entropy_chart(frame), frame)],
        ),
        Section(
            "heads",
            "Which heads do?",
            ["A share of 1 looks at everything alike; a head that keeps its share small stays sharp."],
            [Figure("evenness", evenness_chart(frame), frame)],
        ),
        Section(
            "first",
            "How much goes to the first token?",
            [f"Of all weight, {100 * sink:.1f} % at {short} tokens and {100 * sunk:.1f} % at {long}."],
            [Figure("first", first_chart(frame), frame)],
        ),
    ]
    if len(critical := critical_betas(probed)):
        sections.append(critical_section(critical))
    figures = [part for section in sections for part in section.parts if isinstance(part, Figure)]
    saved = [path for figure in figures for path in write_figure(directory, figure)]
    note = f"Made by softmax_jax.probe. {', '.join(f'{name} {version}' for name, version in versions().items())}."
    write_whole(directory / "index.html", page(title, sections, note))
    return [directory / "index.html", *saved]
