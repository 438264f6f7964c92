"""The common parts of all charts: colours and names, lines with bands and labels, axes and titles.

The nine colours are the project's own. They were searched for among all with a contrast of at least 3 to white and to
the dark pages of the documentation, and of moderate chroma, so that the least distance of two of them, as seen with
normal sight and with each of the three dichromacies (Machado et al., 2009), is as large as nine colours allow. What
this leaves hard to tell apart, the names at the ends of the curves tell apart.
"""

import itertools
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl
import scipy  # whose parts load when they are first used, as some take seconds

from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.report.print_layout import FOR_WIDE

BY_NORMALIZER = {
    BASELINE: "#2d96ff",
    "adaptive": "#ff5a69",
    "adaptive_refit": "#c32d78",
    "adaptive_refit_train": "#d269d2",
    "ssmax": "#2da51e",
    "softpick": "#876900",
    "hardmax": "#879696",
    "entmax15": "#874bd2",
    "temperature": "#007896",
}
OTHERS = ("#dc7800", "#b450b4", "#6478f0", "#507850")
"""For all other names, picked by a checksum of the name; with the contrast of the nine, and as far from them as that
leaves room for."""
BY_CAUSE = {"accuracy": "#8db5a5", "dispersion": "#e08a3c", "key": "#5d6fae", "both": "#a04632", "value": "#9a9a9a"}
"""A set is answered right, or lost to dispersion, to the key, to both at once, or to the value."""
GREY = "#8a8a8a"
"""For references: visible on white and on black."""
SIZES = ("#4fc27f", "#2a9d8f", "#2b7fa3", "#4a63ad")
"""From small to large: the middle of viridis, which white and dark pages both show."""
PUBLISHED = ", published"
"""How the name of a published row ends."""
NAMES = {
    "adaptive": "adaptive temperature",
    "adaptive_refit": "adaptive, refit to all lengths",
    "adaptive_refit_train": "adaptive, refit to training lengths",
    "adaptive_entmax15": "adaptive 1.5-entmax",
    "asentmax": "ASEntmax",
    "as_stieltjes": "AS-Stieltjes",
    "clipped_ssmax": "clipped SSMax",
    "entmax15": "1.5-entmax",
    "scalable_softpick": "scalable Softpick",
    "signed_l1": "signed L1",
    "softpick": "Softpick",
    "ssmax": "SSMax",
    "stieltjes": "Stieltjes",
    "top_k": "top-k",
}
"""Names for readers, where these are not the name with spaces."""


def normalizer_of(name: str) -> str:
    """Returns the normalizer of a row, without its numbers and its origin.

    >>> [normalizer_of(name) for name in ("ssmax(s=0.43)", "softpick, as trained", "softmax, published")]
    ['ssmax', 'softpick', 'softmax']
    """
    return re.split(r"[(,]", name)[0]


def palette(names: Iterable[str]) -> dict[str, str]:
    """Returns a colour for each name, the same in every chart: that of its normalizer, or one of `OTHERS`.

    A published row has the colour of its normalizer. Of several rows of one normalizer the first has its colour. If
    the checksums of two names pick the same colour, the second name gets the next free one.

    >>> palette(["mine", "softmax", "softmax, published"])
    {'mine': '#507850', 'softmax': '#2d96ff', 'softmax, published': '#2d96ff'}
    """
    colours: dict[str, str] = {}
    taken = set()
    for name in dict.fromkeys(names):
        colour, published = BY_NORMALIZER.get(normalizer_of(name)), name.endswith(PUBLISHED)
        if colour is None or (colour in taken and not published):
            start = zlib.crc32(name.encode()) % len(OTHERS)
            turned = OTHERS[start:] + OTHERS[:start]
            colour = next((free for free in turned if free not in taken), turned[0])
        colours[name] = colour
        if not published:
            taken.add(colour)
    return colours


def by_size(names: Sequence[str]) -> dict[str, str]:
    """Returns a colour for each of these sizes, from the smallest to the largest, along one sequence.

    >>> list(by_size(["16", "256", "4096"]))
    ['16', '256', '4096']
    """
    anchors = np.array([[int(colour[start : start + 2], 16) for start in (1, 3, 5)] for colour in SIZES])
    places = np.linspace(0, len(SIZES) - 1, len(names))
    mixed = np.stack([np.interp(places, range(len(SIZES)), channel) for channel in anchors.T], -1).round().astype(int)
    return {name: "#{:02x}{:02x}{:02x}".format(*parts) for name, parts in zip(names, mixed)}


def reader_name(name: str) -> str:
    """Returns the name of a row for readers.

    >>> [reader_name(name) for name in ("ssmax(s=0.43)", "adaptive, published", "length_scaled")]
    ['SSMax (s=0.43)', 'adaptive temperature, published', 'length scaled']
    """
    normalizer = normalizer_of(name)
    rest = name[len(normalizer) :]
    return NAMES.get(normalizer, normalizer.replace("_", " ")) + (f" {rest}" if rest.startswith("(") else rest)


Chart = alt.LayerChart | alt.FacetChart | alt.HConcatChart | alt.VConcatChart | alt.ConcatChart
FAIR = "adaptive_refit saw every length, adaptive_refit_train only those up to the longest of training"
"""The subtitle of every chart that shows the refit to all lengths."""
DASHES = [6, 4]
"""The dashes of a reference without a model, and of nothing else."""
DIGITS = 6
"""Significant digits of the numbers in a chart."""
SHORT = "datum.value % 1024 ? datum.value : datum.value / 1024 + 'k'"
"""Labels of an axis of lengths: 16k for 16,384."""
LINE_HEIGHT = 16
"""Height of the names at the ends of lines, in pixels."""


def lines(
    frame: pl.DataFrame,
    x: alt.X,
    y: alt.Y,
    colour: alt.Color,
    *,
    dash: Any = alt.Undefined,
    point: bool = True,
    width: float = 2.0,
) -> list[alt.Chart]:
    """Returns a line of the column `value` for each colour, over its band if the frame has one, as `over_seeds` gives.

    The baseline is drawn first and widest, so that it is seen behind a curve that coincides with it. Tooltips show the
    colour's field, x and y.
    """
    wide: Any = alt.value(width)
    if "normalizer" in frame.columns:
        frame = frame.sort(pl.col("normalizer") != BASELINE, maintain_order=True)
        wide = alt.condition(alt.datum.normalizer == BASELINE, alt.value(2 * width), wide)
    tooltip = [colour.shorthand, x.shorthand, alt.Tooltip("value:Q", title=y["title"], format=".6g")]
    # Cutting would halve points on the edge of the chart.
    marks = alt.Chart(data(frame)).mark_line(point=point, clip=not point)
    drawn = marks.encode(
        x=x, y=y, color=colour, opacity=alt.value(1.0), tooltip=tooltip, strokeDash=dash, strokeWidth=wide
    )
    return [band(frame, x, y, colour), drawn] if "low" in frame.columns else [drawn]


def named_lines(
    frame: pl.DataFrame,
    x: alt.X,
    y: alt.Y,
    title: alt.TitleParams,
    *,
    field: str = "normalizer",
    colours: Mapping[str, str] | None = None,
    text: str = "",
    under: Sequence[alt.Chart] = (),
    width: int = 560,
    height: int = 320,
    **options: Any,
) -> Chart:
    """Returns a whole chart of `lines`, one for each value of a field, with its name at its end, over other layers.

    Arguments:
        frame: Rows with the columns of `x` and `field`, `value`, and for bands `low` and `high`
        x: The axis of the lengths
        y: The axis of the values, whose scale has a domain
        title: The title of the chart
        field: The column of the names
        colours: A colour for each name, by default those of `palette`
        text: The column of the texts at the ends of the lines, by default `field`
        under: Layers below the lines
        width: Pixels of the panel
        height: Pixels of the panel
        options: Those of `lines`
    """
    colour = colour_by(field, colours or palette(frame[field]), legend=False)
    layers = [*under, *lines(frame, x, y, colour, **options), *ends(frame, x, y, colour, height, text)]
    return alt.layer(*layers).properties(width=width, height=height, title=title)


def ends(frame: pl.DataFrame, x: alt.X, y: alt.Y, colour: alt.Color, height: int, text: str = "") -> list[alt.Chart]:
    """Returns the names of lines at the right of the chart, each joined to its last point, without overlaps.

    The names are those of the colour's field, or in the column `text`. The scale of `y` has a domain, and is linear
    unless its type is "log".
    """
    field, along = colour.shorthand.split(":")[0], x.shorthand.split(":")[0]
    last = frame.sort(along, maintain_order=True).unique(field, keep="last", maintain_order=True)
    scale = y["scale"].to_dict()
    bend, straighten = (math.log, math.exp) if scale.get("type") == "log" else (float, float)
    low, high = map(bend, scale["domain"])
    heights = [(bend(value) - low) / (high - low) for value in last["value"].clip(*scale["domain"])]
    places = {"end": heights, "place": apart(heights, LINE_HEIGHT / height)}
    values = {name: [straighten(low + place * (high - low)) for place in ends] for name, ends in places.items()}
    last = last.select(field, along, pl.col(text or field).alias("text")).hstack(pl.DataFrame(values))
    start, place = (renamed(y, f"{name}:Q") for name in values)
    base = alt.Chart(data(last)).encode(x=x, opacity=alt.value(1.0))
    joints = base.mark_rule(xOffset=3, x2Offset=14, strokeWidth=1.5)
    names = base.mark_text(xOffset=17, align="left", baseline="middle")
    return [
        joints.encode(x2=along, y=start, y2="place", color=colour).properties(description=FOR_WIDE),
        names.encode(y=place, text="text:N").properties(description=FOR_WIDE),
    ]


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Moves places from 0 to 1 as little as it takes for neighbours to be a gap apart; their order stays.

    >>> [round(place, 2) for place in apart([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    gap = min(gap, 1 / max(1, len(places) - 1))
    order = np.argsort(places, kind="stable")
    steps = gap * np.arange(len(places))
    moved = scipy.optimize.isotonic_regression(np.asarray(places, np.float64)[order] - steps).x
    moved = np.clip(moved, 0, 1 - steps[-1]) + steps
    return moved[np.argsort(order)].tolist()


def band(frame: pl.DataFrame, x: alt.X, y: alt.Y, colour: alt.Color) -> alt.Chart:
    """Returns the area from `low` to `high`, on the scale of `y`."""
    area = alt.Chart(data(frame)).mark_area(clip=True)
    return area.encode(x=x, y=renamed(y, "low:Q"), y2="high:Q", color=colour, opacity=alt.value(0.15))


def renamed(y: alt.Y, field: str) -> alt.Y:
    """Returns an axis for another column on the same scale."""
    axis = y.copy()
    axis.shorthand = field
    return axis


def data(frame: pl.DataFrame) -> alt.Data:
    """Returns the rows of a frame, rounded so that another machine writes the same into the chart."""
    return alt.Data(values=frame.with_columns(pl.selectors.float().round_sig_figs(DIGITS)).to_dicts())


def long_frame(places: Mapping[str, Iterable[Any]], **columns: np.ndarray) -> pl.DataFrame:
    """Returns a row for each cell of arrays whose axes have these names and places.

    >>> long_frame({"n": [4, 8], "seed": [0, 1]}, value=np.eye(2)).rows()
    [(4, 0, 1.0), (4, 1, 0.0), (8, 0, 0.0), (8, 1, 1.0)]
    """
    keys = pl.DataFrame(list(itertools.product(*places.values())), list(places), orient="row")
    return keys.with_columns(pl.Series(name, array.ravel()) for name, array in columns.items())


def mean_of(seeds: int, band: str = "") -> str:
    """Returns for a subtitle how a curve comes from seeds.

    >>> mean_of(10, ", 95 % band"), mean_of(1, ", 95 % band")
    ('mean of 10 seeds, 95 % band', 'one seed')
    """
    return f"mean of {seeds} seeds{band}" if seeds > 1 else "one seed"


def colour_by(
    field: str, colours: Mapping[str, str], title: str | None = None, legend: bool = True, **more: Any
) -> alt.Color:
    """Returns these colours, with a legend in their order that has the options `more`."""
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color(f"{field}:N", title=title, sort=None, legend=line_legend(**more) if legend else None, scale=scale)


def dash_by(field: str, dashes: Mapping[str, Sequence[int]]) -> alt.StrokeDash:
    """Returns these dashes by name, without a legend."""
    scale = alt.Scale(domain=list(dashes), range=list(dashes.values()))
    return alt.StrokeDash(f"{field}:N", sort=None, scale=scale, legend=None)


def line_legend(**more: Any) -> alt.Legend:
    """Returns a legend of strokes, as wide as lines and opaque, whatever the marks are."""
    return alt.Legend(symbolOpacity=1, symbolType="stroke", symbolStrokeWidth=3, symbolSize=300, labelLimit=260, **more)


def length_axis(lengths: Sequence[int], title: str = "items in the set") -> alt.X:
    """Returns the column `n` on a scale of powers of two that begins and ends with the lengths; 1k is 1,024."""
    scale = alt.Scale(type="log", base=2, domain=[min(lengths), max(lengths)], nice=False)
    return alt.X(
        "n:Q", title=title, scale=scale, axis=alt.Axis(values=list(lengths), labelOverlap=True, labelExpr=SHORT)
    )


def percent_axis(title: str) -> alt.Y:
    """Returns the column `value` on a scale from 0 to 100."""
    return alt.Y("value:Q", title=title, scale=alt.Scale(domain=[0, 100]))


def log_axis(title: str, values: Iterable[float], base: float = 10.0) -> alt.Y:
    """Returns the column `value` on a logarithmic scale that these values fill, with a few lines of its grid."""
    values = [value for value in values if value > 0] or [1.0]
    domain = [min(values) / 1.3, max(values) * 1.3]
    scale = alt.Scale(type="log", base=base, domain=domain, nice=False, clamp=True)
    return alt.Y("value:Q", title=title, scale=scale, axis=alt.Axis(tickCount=3))


def chart_title(title: str, *subtitle: str) -> alt.TitleParams:
    """Returns a statement at the left, and under it what one must know to read the chart."""
    return alt.TitleParams(title, subtitle=list(subtitle) or alt.Undefined, anchor="start", offset=12)


def panel_title(title: str) -> alt.TitleParams:
    """Returns the title of one of several panels, above its left edge."""
    return alt.TitleParams(title, anchor="start", frame="group", fontSize=13)
