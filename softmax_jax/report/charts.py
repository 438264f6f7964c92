"""What all charts share: their data, a line with its band, axes, colours, titles, and their files."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl
import vl_convert

from softmax_jax.files import write_whole

Chart = alt.LayerChart | alt.FacetChart | alt.HConcatChart | alt.VConcatChart
PNG_SCALE = 2
BASELINE = "softmax"
"""The normalizer that others are compared with."""
FAIR = "adaptive_refit saw every length, adaptive_refit_train only those up to the longest of training"
"""What to say wherever the refit to all lengths is shown."""
PALETTE = ["#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#eeca3b", "#79706e"]
GREY = "#8a8a8a"
"""For references: to be seen on white and on black."""
DASHES = [6, 4]


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

    Tooltips tell the colour's field, x, y, and `tooltip`. What the switch has off is faint.
    """
    if "normalizer" in frame.columns:
        frame = frame.sort(pl.col("normalizer") == BASELINE, maintain_order=True)  # drawn last, so that none hides it
    told = [colour.shorthand, x.shorthand, alt.Tooltip("value:Q", title=y["title"], format=".6g"), *tooltip]
    # Cutting would halve points on the edge of the chart.
    marks = alt.Chart(data(frame)).mark_line(point=point, clip=not point, strokeWidth=width)
    drawn = marks.encode(x=x, y=y, color=colour, opacity=shown(switch), tooltip=told, strokeDash=dash)
    return [band(frame, x, y, colour, switch), drawn] if "low" in frame.columns else [drawn]


def of_normalizers(frame: pl.DataFrame, x: alt.X, y: alt.Y, *title: str, point: bool = True) -> Chart:
    """A whole chart of `lines`, one for each normalizer; every other one is dashed, so that none hides another."""
    names = list(dict.fromkeys(frame["normalizer"]))
    dash = dash_by("normalizer", {name: index % 2 == 1 for index, name in enumerate(names)}, "normalizer")
    layers = lines(frame, x, y, colour_by("normalizer", palette(names), "normalizer"), dash=dash, point=point)
    return alt.layer(*layers).properties(width=620, height=320, title=chart_title(*title))


def band(frame: pl.DataFrame, x: alt.X, y: alt.Y, colour: alt.Color, switch: alt.Parameter | None = None) -> alt.Chart:
    """The area from `low` to `high`, on the scale of `y`."""
    low = y.copy()
    low.shorthand = "low:Q"
    area = alt.Chart(data(frame)).mark_area(clip=True)
    return area.encode(x=x, y=low, y2="high:Q", color=colour, opacity=shown(switch, 0.2, 0.0))


def data(frame: pl.DataFrame) -> alt.Data:
    """The rows of a frame, written into the chart."""
    return alt.Data(values=frame.to_dicts())


def long_frame(places: Mapping[str, Iterable[Any]], **columns: np.ndarray) -> pl.DataFrame:
    """A row for each cell of arrays whose axes have these names and places.

    >>> long_frame({"n": [4, 8], "seed": [0, 1]}, value=np.eye(2)).rows()
    [(4, 0, 1.0), (4, 1, 0.0), (8, 0, 0.0), (8, 1, 1.0)]
    """
    keys = pl.DataFrame(list(itertools.product(*places.values())), list(places), orient="row")
    return keys.with_columns(pl.Series(name, array.ravel()) for name, array in columns.items())


def lying_on_another(frame: pl.DataFrame, within: float) -> list[str]:
    """A line of text on the normalizers whose `value` is within so much of an earlier one's at every n.

    >>> frame = pl.DataFrame({"normalizer": ["a", "b", "c"], "n": [4, 4, 4], "value": [1.0, 2.0, 1.0]})
    >>> lying_on_another(frame, within=0.1)
    ['c lies on a']
    """
    curves = frame.group_by("normalizer", maintain_order=True).agg("n", "value").rows()
    under: dict[str, str] = {}
    for (earlier, lengths, values), (name, own_lengths, own_values) in itertools.combinations(curves, 2):
        if own_lengths == lengths and np.allclose(own_values, values, rtol=0, atol=within):
            under.setdefault(name, earlier)
    return [", ".join(f"{name} lies on {earlier}" for name, earlier in under.items())] if under else []


def palette(names: Sequence[str], first: int = 0) -> dict[str, str]:
    """A colour for each name, in turn from the `first` of the palette."""
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(names, first)}


def colour_by(field: str, colours: Mapping[str, str], title: str, legend: bool = True) -> alt.Color:
    """These colours, with a legend in their order."""
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color(f"{field}:N", title=title, sort=None, legend=line_legend() if legend else None, scale=scale)


def dash_by(field: str, dashed: Mapping[str, bool], title: str) -> alt.StrokeDash:
    """Dashes for the names that ask for them; in one legend with the colour of the same field and title."""
    scale = alt.Scale(domain=list(dashed), range=[DASHES if wanted else [1, 0] for wanted in dashed.values()])
    return alt.StrokeDash(f"{field}:N", title=title, sort=None, scale=scale, legend=line_legend())


def line_legend() -> alt.Legend:
    """Strokes, as wide as lines and opaque, whatever the marks are."""
    return alt.Legend(symbolOpacity=1, symbolType="stroke", symbolStrokeWidth=3, symbolSize=300, labelLimit=260)


def length_axis(lengths: Sequence[int], title: str = "items in the set") -> alt.X:
    """The column `n`, on a scale of powers of two that begins and ends with the lengths."""
    scale = alt.Scale(type="log", base=2, domain=[min(lengths), max(lengths)], nice=False)
    return alt.X("n:Q", title=title, scale=scale, axis=alt.Axis(values=list(lengths), labelOverlap=True))


def percent_axis(title: str) -> alt.Y:
    """The column `value`, from 0 to 100."""
    return alt.Y("value:Q", title=title, scale=alt.Scale(domain=[0, 100]))


def chart_title(title: str, *subtitle: str) -> alt.TitleParams:
    """The question at the left, with what one must know to read the chart under it."""
    return alt.TitleParams(title, subtitle=list(subtitle) or alt.Undefined, anchor="start", offset=12)


def panel_title(title: str) -> alt.TitleParams:
    """What one of several panels shows, above its left edge."""
    return alt.TitleParams(title, anchor="start", frame="group", fontSize=12)


def legend_switch(field: str, names: Sequence[str]) -> alt.Parameter:
    """A selection of names, all of them at first; each click in the legend takes one out or puts it back."""
    everything: Any = [{field: name} for name in names]
    return alt.selection_point(fields=[field], bind="legend", toggle="true", empty=False, value=everything)


def shown(switch: alt.Parameter | None, on: float = 1.0, off: float = 0.04) -> Any:
    """The opacity of what the switch leaves on or has switched off; without a switch everything is on."""
    return alt.value(on) if switch is None else alt.condition(switch, alt.value(on), alt.value(off), empty=False)


def save_chart(chart: Chart, path: Path | str) -> list[Path]:
    """Writes the chart as PNG and SVG; `path` has no suffix. Returns the files."""
    specification = chart.to_json()
    png, svg = (Path(path).with_suffix(suffix) for suffix in (".png", ".svg"))
    write_whole(png, vl_convert.vegalite_to_png(specification, scale=PNG_SCALE))
    write_whole(svg, vl_convert.vegalite_to_svg(specification))
    return [png, svg]
