"""What all charts share: their data, a line with its band and its name at the end, axes, colours and titles."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from softmax_jax.report.colours import BASELINE, PUBLISHED, palette

Chart = alt.LayerChart | alt.FacetChart | alt.HConcatChart | alt.VConcatChart | alt.ConcatChart
FAIR = "adaptive_refit saw every length, adaptive_refit_train only those up to the longest of training"
"""What to say wherever the refit to all lengths is shown."""
DASHES = [6, 4]
"""Of published rows, and of nothing else."""
DIGITS = 6
"""Significant digits of the numbers in a chart."""
FOR_WIDE = "for wide charts alone"
"""The description of layers that a narrow page leaves out; for names at the ends of lines it shows a legend."""
SHORT = "datum.value % 1024 ? datum.value : datum.value / 1024 + 'k'"
"""Labels of an axis of lengths: 16k for 16,384."""
LINE_HEIGHT = 16
"""Of the names at the ends of lines, in pixels."""


def lines(
    frame: pl.DataFrame,
    x: alt.X,
    y: alt.Y,
    colour: alt.Color,
    *,
    dash: Any = alt.Undefined,
    switch: alt.Parameter | None = None,
    tooltip: Sequence[Any] = (),
    point: bool = True,
    width: float = 2.0,
) -> list[alt.Chart]:
    """The column `value` as a line for each colour, over its band if the frame has one, as `over_seeds` makes it.

    The baseline is drawn last and widest. Tooltips tell the colour's field, x, y, and `tooltip`. What the switch has
    off is faint.
    """
    wide: Any = alt.value(width)
    if "normalizer" in frame.columns:
        frame = frame.sort(pl.col("normalizer") == BASELINE, maintain_order=True)  # drawn last, so that none hides it
        wide = alt.condition(alt.datum.normalizer == BASELINE, alt.value(2 * width), wide)
    told = [colour.shorthand, x.shorthand, alt.Tooltip("value:Q", title=y["title"], format=".6g"), *tooltip]
    # Cutting would halve points on the edge of the chart.
    marks = alt.Chart(data(frame)).mark_line(point=point, clip=not point)
    drawn = marks.encode(x=x, y=y, color=colour, opacity=shown(switch), tooltip=told, strokeDash=dash, strokeWidth=wide)
    return [band(frame, x, y, colour, switch), drawn] if "low" in frame.columns else [drawn]


def of_normalizers(frame: pl.DataFrame, x: alt.X, y: alt.Y, *title: str, point: bool = True) -> Chart:
    """A whole chart of `lines`, one for each normalizer, with its name at its end. The scale of `y` has a domain."""
    colour = colour_by("normalizer", palette(frame["normalizer"]), legend=False)
    height = 320
    layers = [*lines(frame, x, y, colour, point=point), *ends(frame, x, y, colour, height)]
    return alt.layer(*layers).properties(width=560, height=height, title=chart_title(*title))


def ends(
    frame: pl.DataFrame,
    x: alt.X,
    y: alt.Y,
    colour: alt.Color,
    height: int,
    switch: alt.Parameter | None = None,
    text: str = "",
) -> list[alt.Chart]:
    """The names of lines at the right of the chart, each joined to its last point; apart, as far as they must be.

    The names are those of the colour's field, or in the column `text`. The scale of `y` has a domain, and is linear
    unless its type is "log".
    """
    field, along = colour.shorthand.split(":")[0], x.shorthand.split(":")[0]
    last = frame.sort(along, maintain_order=True).unique(field, keep="last", maintain_order=True)
    scale = y["scale"].to_dict()
    bend, straighten = (math.log, math.exp) if scale.get("type") == "log" else (float, float)
    low, high = map(bend, scale["domain"])
    inner = last["value"].clip(*scale["domain"])
    wanted = [(bend(value) - low) / (high - low) for value in inner]
    placed = [straighten(low + place * (high - low)) for place in apart(wanted, LINE_HEIGHT / height)]
    inside = [straighten(low + place * (high - low)) for place in wanted]
    last = last.with_columns(text=pl.col(text or field), end=pl.Series(inside), place=pl.Series(placed))
    start, place = y.copy(), y.copy()
    start.shorthand, place.shorthand = "end:Q", "place:Q"
    base = alt.Chart(data(last.select(field, along, "text", "end", "place")))
    joints = base.mark_rule(xOffset=3, x2Offset=14, strokeWidth=1.5)
    names = base.mark_text(xOffset=17, align="left", baseline="middle")
    seen = {"opacity": shown(switch)}
    return [
        joints.encode(x=x, x2=along, y=start, y2="place", color=colour, **seen).properties(description=FOR_WIDE),
        names.encode(x=x, y=place, text="text:N", **seen).properties(description=FOR_WIDE),
    ]


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Places from 0 to 1 in the same order, moved as little as it takes for neighbours to be a gap apart.

    >>> [round(place, 2) for place in apart([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    from scipy.optimize import isotonic_regression  # here, for it takes as long to load as a chart to draw

    gap = min(gap, 1 / max(1, len(places) - 1))
    order = np.argsort(places, kind="stable")
    steps = gap * np.arange(len(places))
    moved = isotonic_regression(np.asarray(places, np.float64)[order] - steps).x
    moved = np.clip(moved, 0, 1 - steps[-1]) + steps
    return moved[np.argsort(order)].tolist()


def band(frame: pl.DataFrame, x: alt.X, y: alt.Y, colour: alt.Color, switch: alt.Parameter | None = None) -> alt.Chart:
    """The area from `low` to `high`, on the scale of `y`."""
    low = y.copy()
    low.shorthand = "low:Q"
    area = alt.Chart(data(frame)).mark_area(clip=True)
    return area.encode(x=x, y=low, y2="high:Q", color=colour, opacity=shown(switch, 0.15, 0.0))


def data(frame: pl.DataFrame) -> alt.Data:
    """The rows of a frame, written into the chart, so that another machine rounds them alike."""
    return alt.Data(values=frame.with_columns(pl.selectors.float().round_sig_figs(DIGITS)).to_dicts())


def long_frame(places: Mapping[str, Iterable[Any]], **columns: np.ndarray) -> pl.DataFrame:
    """A row for each cell of arrays whose axes have these names and places.

    >>> long_frame({"n": [4, 8], "seed": [0, 1]}, value=np.eye(2)).rows()
    [(4, 0, 1.0), (4, 1, 0.0), (8, 0, 0.0), (8, 1, 1.0)]
    """
    keys = pl.DataFrame(list(itertools.product(*places.values())), list(places), orient="row")
    return keys.with_columns(pl.Series(name, array.ravel()) for name, array in columns.items())


def mean_of(seeds: int, band: str = "") -> str:
    """What a curve over seeds is, for a subtitle.

    >>> mean_of(10, ", 95 % band"), mean_of(1, ", 95 % band")
    ('mean of 10 seeds, 95 % band', 'one seed')
    """
    return f"mean of {seeds} seeds{band}" if seeds > 1 else "one seed"


def colour_by(
    field: str, colours: Mapping[str, str], title: str | None = None, legend: bool = True, **more: Any
) -> alt.Color:
    """These colours, with a legend in their order, of which `more` may be said."""
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color(f"{field}:N", title=title, sort=None, legend=line_legend(**more) if legend else None, scale=scale)


def dash_by(field: str, names: Iterable[str], title: str, legend: bool = False, **more: Any) -> alt.StrokeDash:
    """Dashes for published rows; in one legend with the colour of the same field and title."""
    names = list(names)
    scale = alt.Scale(domain=names, range=[DASHES if name.endswith(PUBLISHED) else [1, 0] for name in names])
    return alt.StrokeDash(
        f"{field}:N", title=title, sort=None, scale=scale, legend=line_legend(**more) if legend else None
    )


def line_legend(**more: Any) -> alt.Legend:
    """Strokes, as wide as lines and opaque, whatever the marks are."""
    return alt.Legend(symbolOpacity=1, symbolType="stroke", symbolStrokeWidth=3, symbolSize=300, labelLimit=260, **more)


def length_axis(lengths: Sequence[int], title: str = "items in the set") -> alt.X:
    """The column `n`, on a scale of powers of two that begins and ends with the lengths; 1k is 1,024."""
    scale = alt.Scale(type="log", base=2, domain=[min(lengths), max(lengths)], nice=False)
    return alt.X(
        "n:Q", title=title, scale=scale, axis=alt.Axis(values=list(lengths), labelOverlap=True, labelExpr=SHORT)
    )


def percent_axis(title: str) -> alt.Y:
    """The column `value`, from 0 to 100."""
    return alt.Y("value:Q", title=title, scale=alt.Scale(domain=[0, 100]))


def log_axis(title: str, values: Iterable[float], base: float = 10.0) -> alt.Y:
    """The column `value`, on a logarithmic scale that these fill."""
    values = [value for value in values if value > 0] or [1.0]
    domain = [min(values) / 1.1, max(values) * 1.1]
    return alt.Y("value:Q", title=title, scale=alt.Scale(type="log", base=base, domain=domain, nice=False))


def chart_title(title: str, *subtitle: str) -> alt.TitleParams:
    """The question at the left, with what one must know to read the chart under it."""
    return alt.TitleParams(title, subtitle=list(subtitle) or alt.Undefined, anchor="start", offset=12)


def panel_title(title: str) -> alt.TitleParams:
    """What one of several panels shows, above its left edge."""
    return alt.TitleParams(title, anchor="start", frame="group", fontSize=13)


def legend_switch(field: str, names: Sequence[str]) -> alt.Parameter:
    """A selection of names, all of them at first; each click in the legend takes one out or puts it back."""
    everything: Any = [{field: name} for name in names]
    return alt.selection_point(fields=[field], bind="legend", toggle="true", empty=False, value=everything)


def shown(switch: alt.Parameter | None, on: float = 1.0, off: float = 0.04) -> Any:
    """The opacity of what the switch leaves on or has switched off; without a switch everything is on."""
    return alt.value(on) if switch is None else alt.condition(switch, alt.value(on), alt.value(off), empty=False)
