"""The findings of `softmax_jax.probe` in a model at several lengths: a frame, charts of it, and a page.

- `head_means(probed)`: means for each length, layer and head
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

from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.charts import BY_NORMALIZER, GREY
from softmax_jax.experiment.report.page import Figure, Section, write_page
from softmax_jax.refusal import Refusal
from softmax_jax.transforms.probe import Probed, SiteRows

MEASURES = ("entropy", "uniform", "largest", "first")
HEADS = BY_NORMALIZER[BASELINE]
COLUMNS = 3
"""Small multiples side by side."""
WIDTH, MARGIN = 720, 55
"""Pixels of a chart that is as wide as the text, and those of a panel's axis."""
SPREADS = 0.8
"""A head spreads over what it sees if its entropy is a larger share than this of that of equal weights."""
RESTS = 0.3
"""A head rests on the first token if that has more weight than this."""
NAMED = 5
"""Heads that a sentence names, those furthest beyond the bound first."""


def head_means(probed: Mapping[int, Probed], heads: int = -2) -> pl.DataFrame:
    """Means over the rows of each head: `n`, `layer`, `head`, and a column for each measure.

    `probed` has what was found by the length n of the input. `entropy` is in nats, `uniform` is that of equal weights
    on what a row sees, `largest` and `first` are weights. `heads` is the axis of the heads among those of the rows: by
    default the last but one, as in (batch, heads, queries); without such an axis there is one head. A layer is a site,
    named by its scope or else its index, or a turn of the loop it is in. Rows that were not weighed are left out.
    Raises Refusal where there are no others.

    >>> import jax, softmax_jax as sj
    >>> attend = lambda x: jax.nn.softmax(x @ x.T) @ x
    >>> _, found = sj.probe(attend)(np.eye(4, dtype=np.float32))
    >>> head_means({4: found}).select("n", "layer", "head", pl.col("uniform").round(3)).rows()
    [(4, 'layer 0', 0, 1.386)]
    """
    by_head = [
        _rows_of(n, site, heads).group_by("n", "layer", "head", maintain_order=True).agg(pl.mean(*MEASURES))
        for n, sites in probed.items()
        for site in sites
    ]
    frame = pl.concat(by_head).drop_nulls("entropy") if by_head else pl.DataFrame()
    if frame.is_empty():
        raise Refusal(
            "there are no rows of attention: give {n: rows} for one length n or more, each as softmax_jax.probe gives "
            "them for a function that holds a softmax"
        )
    return frame


def critical_betas(probed: Mapping[int, Probed]) -> pl.DataFrame:
    """The critical inverse temperatures of each layer: `layer`, `n`, `rows`, `value`, `low`, `high`, `sharp`.

    Rows are taken together by the number of entries they see: those of n to 2n - 1 have the power of two `n`. Of these
    `value` is the median, `low` and `high` the quartiles, and `sharp` the percentage below 1, at the β of the model.
    Rows that were not weighed and that see one entry or none are left out. Empty unless `probe` was asked for them.

    >>> import jax, softmax_jax as sj
    >>> attend = lambda x: jax.nn.softmax(8 * x @ x.T) @ x
    >>> _, found = sj.probe(attend, critical=True)(np.eye(4, dtype=np.float32))
    >>> critical_betas({4: found}).select("layer", "n", "rows", pl.col("value").round(3), "sharp").rows()
    [('layer 0', 4, 4, 0.173, 100.0)]
    """
    head_means(probed)  # which refuses where there are none
    rows = pl.concat(_rows_of(n, site, -2) for n, sites in probed.items() for site in sites)
    rows = rows.drop_nulls("critical").filter(pl.col("visible") > 1)
    by_power = rows.with_columns(n=2 ** pl.col("visible").log(2).floor().cast(pl.Int64))
    critical = pl.col("critical")
    return by_power.group_by("layer", "n", maintain_order=True).agg(
        rows=pl.len(),
        value=critical.median(),
        low=critical.quantile(0.25, "nearest"),
        high=critical.quantile(0.75, "nearest"),
        sharp=100 * (critical < 1).mean(),
    )


def _rows_of(n: int, rows: SiteRows, heads: int) -> pl.DataFrame:
    """Returns the numbers of each row of a site, null where it has none, by its n, layer and head.

    Each turn of the loops around a site is a layer.
    """
    axes = rows.site.axis if isinstance(rows.site.axis, tuple) else (rows.site.axis,)
    shape = rows.entropy.shape[rows.entropy.ndim - len(rows.site.shape) + len(axes) :]
    turns = rows.entropy.size // max(1, math.prod(shape))
    turn, *places = np.indices((turns, *shape)).reshape(1 + len(shape), -1)
    head = places[heads] if len(shape) > 1 else np.zeros_like(turn)
    visible = np.asarray(rows.visible, np.float64)
    numbers = {"visible": visible, "uniform": np.log(np.where(visible > 0, visible, np.nan))}
    numbers |= {"entropy": rows.entropy, "largest": rows.largest, "first": rows.first}
    numbers["critical"] = np.full(visible.shape, np.nan) if rows.critical is None else rows.critical
    columns = {name: np.asarray(values, np.float64).ravel() for name, values in numbers.items()}
    index, scope = rows.site.index, rows.site.scope
    name = pl.lit(f"layer {index}" if scope == f"site_{index}" else scope)
    layer = name if turns == 1 else pl.format("{}, turn {}", name, "turn")
    frame = pl.DataFrame({"turn": turn, "head": head, **columns}).fill_nan(None)
    return frame.select(pl.lit(n).alias("n"), layer.alias("layer"), "head", *columns)


def entropy_chart(frame: pl.DataFrame) -> charts.Chart:
    """Draws the entropy of each head by n, a panel for each layer, below that of equal weights."""
    y = alt.Y("entropy:Q", title="entropy (nats)")
    subtitle = "one line a head; grey: equal weights on all that a row sees"
    title = _at_ends(frame, "entropy", "At {} tokens the mean entropy is {:.1f} nats, at {} it is {:.1f}")
    return _by_head(frame, y, title, subtitle, grey="mean(uniform):Q")


def first_chart(frame: pl.DataFrame) -> charts.Chart:
    """Draws the weight of the first token by n, a line for each head, a panel for each layer."""
    y = alt.Y("first:Q", title="weight of the first token", scale=alt.Scale(domain=[0, 1]))
    title = _at_ends(frame, "first", "At {} tokens the first has a weight of {:.2f}, at {} of {:.2f}")
    return _by_head(frame, y, title, "mean over queries; one line a head")


def _at_ends(frame: pl.DataFrame, field: str, form: str) -> str:
    """Says the means of a column at the shortest and at the longest n."""
    rows = frame.group_by("n").agg(pl.mean(field)).sort("n").rows()
    return form.format(*rows[0], *rows[-1])


def _by_head(frame: pl.DataFrame, y: alt.Y, *title: str, grey: str = "") -> charts.Chart:
    """Draws a line for each head by n, and a grey one, a panel for each layer."""
    base = alt.Chart(charts.data(frame)).encode(x=_length_axis(frame, "tokens"))
    tooltip = ["head:N", "n:Q", alt.Tooltip(y.shorthand, format=".3f")]
    layers = [base.mark_line(opacity=0.8, color=HEADS, strokeWidth=1.5).encode(y=y, detail="head:N", tooltip=tooltip)]
    if grey:
        layers.append(base.mark_line(color=GREY).encode(y=grey))
    return _by_layer(alt.layer(*layers), frame, *title)


def evenness_chart(frame: pl.DataFrame) -> charts.Chart:
    """Draws heads by lengths, a panel for each layer: the entropy as a share of that of equal weights."""
    shares = frame.with_columns(share=pl.col("entropy") / pl.col("uniform"))
    chart = (
        alt.Chart(charts.data(shares))
        .mark_rect(stroke=GREY, strokeWidth=0.5)  # for dark cells on a dark page
        .encode(
            x=alt.X("n:O", title="tokens", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("head:O", title="head"),
            color=alt.Color("share:Q", title="share", scale=alt.Scale(domain=[0, 1], scheme="viridis")),
            tooltip=["head:N", "n:Q", alt.Tooltip("share:Q", format=".3f")],
        )
    )
    subtitle = "entropy as a share of that of equal weights"
    return _by_layer(chart, frame, "Heads near 1 look at everything alike", subtitle)


def critical_chart(frame: pl.DataFrame) -> charts.Chart:
    """Draws the critical inverse temperature by the number of visible entries, a panel for each layer."""
    drawn = frame.filter(pl.all_horizontal(pl.col("value", "low", "high").is_between(0, math.inf, closed="none")))
    x = _length_axis(frame, "visible entries, at least")
    y = charts.log_axis("critical β", [1.0, *drawn["low"], *drawn["high"]])
    base = alt.Chart(charts.data(drawn))
    tooltip = ["n:Q", "rows:Q", *(alt.Tooltip(f"{name}:Q", format=".3g") for name in ("value", "low", "high", "sharp"))]
    band = base.mark_area(opacity=0.25, color=HEADS).encode(x=x, y=charts.renamed(y, "low:Q"), y2="high:Q")
    line = base.mark_line(color=HEADS, point=alt.OverlayMarkDef(color=HEADS)).encode(x=x, y=y, tooltip=tooltip)
    model = base.mark_rule(color=GREY).encode(y=alt.datum(1))
    subtitle = "median and quartiles of its rows; grey: β = 1, that of the model"
    return _by_layer(alt.layer(band, model, line), frame, "A layer is sharp where β exceeds its critical β", subtitle)


def _length_axis(frame: pl.DataFrame, title: str) -> alt.X:
    return charts.length_axis(sorted(set(frame["n"])), title)


def _by_layer(chart: Any, frame: pl.DataFrame, *title: str) -> charts.Chart:
    """Returns the chart once for each layer of the frame."""
    facet = alt.Facet("layer:N", title=None, sort=frame["layer"].unique(maintain_order=True).to_list())
    columns = min(COLUMNS, frame["layer"].n_unique())
    panels = chart.properties(width=WIDTH // columns - MARGIN, height=170).facet(facet, columns=columns)
    return panels.properties(title=charts.chart_title(*title))


def critical_section(frame: pl.DataFrame) -> Section:
    """Says from which inverse temperature on the rows of each layer are sharp, by what `critical_betas` gives."""
    share = (pl.col("sharp") * pl.col("rows")).sum() / pl.col("rows").sum()
    ends = frame.group_by("n").agg(share).sort("n").rows()
    (short, few), (long, many) = ends[0], ends[-1]
    sentence = (
        "The largest logits of a row give its critical β. Your model has β = 1, which is above that in "
        f"{few:.0f} % of the rows with about {short} visible entries and in {many:.0f} % of those with about {long}."
    )
    return Section("critical", "How sharp the rows are", [sentence], [Figure("critical", critical_chart(frame), frame)])


def heads_in_words(heads: pl.DataFrame) -> list[str]:
    """Says which heads spread over what they see, and which rest on the first token.

    Each row is of a head: `layer`, `head`, its `share` of the entropy of equal weights, the weight of the `first`.

    >>> heads = pl.DataFrame({"layer": ["a", "a"], "head": [0, 1], "share": [0.9, 0.2], "first": [0.1, 0.7]})
    >>> print(*heads_in_words(heads), sep=chr(10))
    1 of 2 heads spread over what they see, with an entropy above 80 % of that of equal weights: a head 0.
    1 of 2 heads rest on the first token, which has more than 0.3 of their weight: a head 1.
    """
    count, sentences = len(heads), []
    for measure, bound, words in (
        ("share", SPREADS, f"spread over what they see, with an entropy above {SPREADS:.0%} of that of equal weights"),
        ("first", RESTS, f"rest on the first token, which has more than {RESTS:g} of their weight"),
    ):
        beyond = heads.filter(pl.col(measure) > bound).sort(measure, descending=True, maintain_order=True)
        names = [f"{layer} head {head}" for layer, head in beyond.select("layer", "head").head(NAMED).rows()]
        more = " and others" if len(beyond) > NAMED else ""
        which = f": {', '.join(names)}{more}" if names else ""
        sentences.append(f"{len(beyond) or 'None'} of {count} heads {words.replace('%', ' %')}{which}.")
    return sentences


def model_page(probed: Mapping[int, Probed], directory: Path | str, title: str, heads: int = -2) -> list[Path]:
    """Writes a page on a model with its charts beside it, as PNG, SVG and CSV; returns the paths, the page's first.

    Prints which heads spread and which rest on the first token, with which the page begins, and where it is. The
    arguments are those of `head_means`. It says how sharp the rows must be if `probe` was asked for what is critical.
    """
    frame = head_means(probed, heads)
    frame_of_shares = frame.with_columns(share=pl.col("entropy") / pl.col("uniform"))
    shares = frame_of_shares.group_by("n").agg(100 * pl.mean("share")).sort("n").rows()
    (short, few), (long, many) = shares[0], shares[-1]
    summary = [
        *heads_in_words(frame_of_shares.filter(n=long)),
        f"From {short} to {long} tokens the mean share of that entropy goes from {few:.0f} to {many:.0f} %.",
    ]
    spreading = "A line that rises with the grey one is a head that spreads over all it sees; a flat one stays sharp."
    even = "Bright heads spread, dark heads stay sharp."
    resting = "Heads that look for nothing often rest on the first token: weight there is no dispersion."
    sections = [Section("heads", f"What its heads do at {long} tokens", summary, [])]
    sections += [
        Section(name, question, [sentence], [Figure(name, chart(frame), frame)])
        for name, question, sentence, chart in (
            ("entropy", "Entropy of each head by length", spreading, entropy_chart),
            ("evenness", "Heads that spread evenly", even, evenness_chart),
            ("first", "Weight of the first token", resting, first_chart),
        )
    ]
    if len(critical := critical_betas(probed)):
        sections.append(critical_section(critical))
    paths = write_page(Path(directory), title, sections, "Made by softmax_jax.probe.")
    print(*summary, f"wrote {paths[0]}", sep="\n")
    return paths
