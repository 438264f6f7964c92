"""The common parts of all charts: colours and names, lines with bands and labels, axes, titles, and their files.

The nine colours are the project's own. They were searched for among all with a contrast of at least 3 to white and to
the dark pages of the documentation, and of moderate chroma, so that the least distance of two of them, as seen with
normal sight and with each of the three dichromacies (Machado et al., 2009), is as large as nine colours allow. What
this leaves hard to tell apart, the names at the ends of the curves tell apart.

A picture keeps the SHA-256 of what it was drawn from, so that one can tell whether the chart has changed. Pixels would
not do: fonts differ by machine.
"""

import hashlib
import itertools
import json
import math
import re
import textwrap
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl
import scipy  # whose parts load when they are first used, as some take seconds

from softmax_jax.experiment.report import Paper
from softmax_jax.experiment.report.drawing import draw
from softmax_jax.files import write_whole
from softmax_jax.normalizers.registry import METHODS
from softmax_jax.refusal import Refusal

BASELINE = "softmax"
"""The normalizer that others are compared with."""
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
"""For all other names, which a checksum of the name picks from; with the contrast of the nine, and as far from them as
that leaves room for."""
BY_CAUSE = {"accuracy": "#8db5a5", "dispersion": "#e08a3c", "key": "#5d6fae", "both": "#a04632", "value": "#9a9a9a"}
"""What becomes of a set: it is answered right, or lost to dispersion, to the key, to both at once, or to the value."""
GREY = "#8a8a8a"
"""For references: to be seen on white and on black."""
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
"""What readers call a normalizer, where that is not its name with spaces."""


def normalizer_of(name: str) -> str:
    """The normalizer that a row is about, whatever its numbers and wherever it comes from.

    >>> [normalizer_of(name) for name in ("ssmax(s=0.43)", "softpick, as trained", "softmax, published")]
    ['ssmax', 'softpick', 'softmax']
    """
    return re.split(r"[(,]", name)[0]


def palette(names: Iterable[str]) -> dict[str, str]:
    """Returns a colour for each name, in every chart the same: that of its normalizer, or one of `OTHERS` by its name.

    A published row has the colour of its normalizer. Of several rows of one normalizer the first has its colour. Where
    the checksums of two names pick one colour, the second name gets the next that is free.

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
    """A colour for each of these sizes, from the smallest to the largest, along one sequence.

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
    point: bool = True,
    width: float = 2.0,
) -> list[alt.Chart]:
    """Returns a line of the column `value` for each colour, over its band if the frame has one, as `over_seeds` gives.

    The baseline is drawn first and widest, so that it is seen behind a curve that coincides with it. Tooltips tell the
    colour's field, x and y.
    """
    wide: Any = alt.value(width)
    if "normalizer" in frame.columns:
        frame = frame.sort(pl.col("normalizer") != BASELINE, maintain_order=True)
        wide = alt.condition(alt.datum.normalizer == BASELINE, alt.value(2 * width), wide)
    told = [colour.shorthand, x.shorthand, alt.Tooltip("value:Q", title=y["title"], format=".6g")]
    # Cutting would halve points on the edge of the chart.
    marks = alt.Chart(data(frame)).mark_line(point=point, clip=not point)
    drawn = marks.encode(
        x=x, y=y, color=colour, opacity=alt.value(1.0), tooltip=told, strokeDash=dash, strokeWidth=wide
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

    The scale of `y` has a domain. The colours are those of `palette` unless given, the text is that of `ends`, and the
    options are those of `lines`.
    """
    colour = colour_by(field, colours or palette(frame[field]), legend=False)
    layers = [*under, *lines(frame, x, y, colour, **options), *ends(frame, x, y, colour, height, text)]
    return alt.layer(*layers).properties(width=width, height=height, title=title)


def ends(frame: pl.DataFrame, x: alt.X, y: alt.Y, colour: alt.Color, height: int, text: str = "") -> list[alt.Chart]:
    """Returns the names of lines at the right of the chart, each joined to its last point; apart, as they must be.

    The names are those of the colour's field, or in the column `text`. The scale of `y` has a domain, and is linear
    unless its type is "log".
    """
    field, along = colour.shorthand.split(":")[0], x.shorthand.split(":")[0]
    last = frame.sort(along, maintain_order=True).unique(field, keep="last", maintain_order=True)
    scale = y["scale"].to_dict()
    bend, straighten = (math.log, math.exp) if scale.get("type") == "log" else (float, float)
    low, high = map(bend, scale["domain"])
    wanted = [(bend(value) - low) / (high - low) for value in last["value"].clip(*scale["domain"])]
    placed = {"end": wanted, "place": apart(wanted, LINE_HEIGHT / height)}
    heights = {name: [straighten(low + place * (high - low)) for place in places] for name, places in placed.items()}
    last = last.select(field, along, pl.col(text or field).alias("text")).hstack(pl.DataFrame(heights))
    start, place = (renamed(y, f"{name}:Q") for name in heights)
    base = alt.Chart(data(last)).encode(x=x, opacity=alt.value(1.0))
    joints = base.mark_rule(xOffset=3, x2Offset=14, strokeWidth=1.5)
    names = base.mark_text(xOffset=17, align="left", baseline="middle")
    return [
        joints.encode(x2=along, y=start, y2="place", color=colour).properties(description=FOR_WIDE),
        names.encode(y=place, text="text:N").properties(description=FOR_WIDE),
    ]


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Places from 0 to 1 in the same order, moved as little as it takes for neighbours to be a gap apart.

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
    """Says for a subtitle how a curve comes from seeds.

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


def dash_by(field: str, dashes: Mapping[str, Sequence[int]]) -> alt.StrokeDash:
    """Returns these dashes by name, without a legend."""
    scale = alt.Scale(domain=list(dashes), range=list(dashes.values()))
    return alt.StrokeDash(f"{field}:N", sort=None, scale=scale, legend=None)


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
    """Returns the column `value`, on a logarithmic scale that these fill; of its grid only a few lines."""
    values = [value for value in values if value > 0] or [1.0]
    domain = [min(values) / 1.3, max(values) * 1.3]
    scale = alt.Scale(type="log", base=base, domain=domain, nice=False, clamp=True)
    return alt.Y("value:Q", title=title, scale=scale, axis=alt.Axis(tickCount=3))


def chart_title(title: str, *subtitle: str) -> alt.TitleParams:
    """The statement at the left, with what one must know to read the chart under it."""
    return alt.TitleParams(title, subtitle=list(subtitle) or alt.Undefined, anchor="start", offset=12)


def panel_title(title: str) -> alt.TitleParams:
    """The title of one of several panels, above its left edge."""
    return alt.TitleParams(title, anchor="start", frame="group", fontSize=13)


PNG_SCALE = 2
INK = "currentColor"
"""The colour of the text around a picture, which its style sheet sets for light and dark pages."""
STYLE = "<style>svg { color: #333 } @media (prefers-color-scheme: dark) { svg { color: #ddd } }</style>"
SPOKEN = re.compile(r' (?:aria-[\w-]+|role)="[^"]*"')
"""What a picture says to readers aloud mark by mark; the page's own words stand beside it."""
SOURCE = re.compile(r"<!-- chart (\w+) -->")

COLUMNS: Mapping[Paper, float] = {"one-column": 234.0, "two-column": 487.0}
"""Widths in points: 3.25 and 6.76 inches."""
PRINT_SCALE = 0.5
"""A chart for print is drawn twice as large as it is printed, so that its marks have the sizes of other charts."""
LEAST_PANEL = 200.0
"""Pixels. Where a panel would get narrower for print, panels go one under the other and names into a legend."""


def config(ink: str, font: str = "Arial, Liberation Sans, sans-serif", size: int = 12, **more: Any) -> dict[str, Any]:
    """The look of a chart whose text and axes have this colour."""
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": size, "titleFontSize": size}
    axis = {"domainColor": ink, "tickColor": ink, "gridColor": ink, "gridOpacity": 0.15, "titleFontWeight": "normal"}
    return {
        "font": font,
        "axis": text | axis,
        "legend": text | {"titleFontWeight": "normal"},
        "header": text,
        "title": {"color": ink, "subtitleColor": ink, "anchor": "start"},
        "text": {"color": ink, "fontSize": size},
        "rule": {"color": ink},
        "view": {"stroke": None},
    } | more


THEMED = config(INK, background="transparent", padding={"left": 5, "top": 5, "bottom": 5, "right": 20})
"""With room at the right for readers whose fonts are wider than those here."""
LIGHT = config("#333", background="white")
PRINT = config("#000", "Times New Roman, Liberation Serif, serif", 15, background="transparent", padding=2)
UNDER = {"orient": "bottom", "direction": "vertical", "columns": 1}
STROKES = {"symbolOpacity": 1, "symbolType": "stroke", "symbolStrokeWidth": 3}
LETTER = 8
"""Width of a letter of a panel's title, in pixels."""


def specification(chart: Any) -> dict[str, Any]:
    """The chart as Vega-Lite, without what altair sets for every chart."""
    spec = chart.to_dict()
    spec.pop("config", None)
    spec.pop("$schema", None)
    return spec


def fingerprint(spec: Mapping[str, Any]) -> str:
    """The SHA-256 of the specification that a chart is drawn from."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()


def drawn_from(svg: str) -> str | None:
    """The fingerprint of the chart that a picture was drawn from, if it has one."""
    found = SOURCE.search(svg)
    return found[1] if found else None


def svg(spec: Mapping[str, Any], *, readers: bool = False) -> str:
    """The specified chart without a background, its text in the colour that `STYLE` gives it, with its fingerprint.

    With the names that the command line knows, or for readers.
    """
    drawn = draw("vegalite_to_svg", {**(for_readers(spec) if readers else spec), "config": THEMED})
    drawn = SPOKEN.sub("", drawn)
    end_of_tag = drawn.index(">") + 1
    return f"{drawn[:end_of_tag]}<!-- chart {fingerprint(spec)} -->{STYLE}{drawn[end_of_tag:]}\n"


def save_chart(chart: Chart, path: Path | str, paper: Paper | None = None) -> list[Path]:
    """Writes the chart as PNG and SVG, and for print into the directory `paper` beside them; `path` has no suffix.

    For print that is a PDF, an SVG, and its title as text. Returns the files.
    """
    path = Path(path)
    try:
        contents = pictures(specification(chart), path, paper)
    except Refusal as refusal:
        raise Refusal(f"{path}.png is not drawn, and its data are in {path.parent}: {refusal}") from None
    for file, content in contents.items():
        write_whole(file, content)
    return list(contents)


def pictures(spec: Mapping[str, Any], path: Path, paper: Paper | None) -> dict[Path, str | bytes]:
    """Returns the content of each file of `save_chart`."""
    png = draw("vegalite_to_png", {**spec, "config": LIGHT}, scale=PNG_SCALE)
    contents = {path.with_suffix(".png"): png, path.with_suffix(".svg"): svg(spec)}
    if paper:
        name, drawn = path.parent / "paper" / path.name, printed(spec, paper)
        contents |= {name.with_suffix(".pdf"): draw("svg_to_pdf", drawn), name.with_suffix(".svg"): drawn}
        contents[name.with_suffix(".txt")] = caption(spec)
    return contents


def caption(spec: Mapping[str, Any]) -> str:
    """Returns the text over a chart, to be set under it in print."""
    title = for_readers(spec["title"])
    return "\n".join([title["text"], *title.get("subtitle", [])]) + "\n"


def printed(spec: Mapping[str, Any], paper: Paper) -> str:
    """The specified chart as SVG at the width of one or two columns: serif, with names for readers, without its title.

    Where panels would get too narrow they go one under the other, and a legend below takes the place of names at the
    ends of lines.
    """
    wanted = COLUMNS[paper] / PRINT_SCALE
    spec = {name: part for name, part in spec.items() if name != "title"}
    if "params" not in spec:  # which compute with the names
        spec = for_readers(spec)
    drawn, panel = fitted(spec, wanted)
    if panel < LEAST_PANEL:
        drawn, _ = fitted(narrow(spec, wanted), wanted)
    width, height = size_of(drawn)
    scale = COLUMNS[paper] / width
    sized = f'width="{COLUMNS[paper]:g}" height="{scale * height:.2f}"'
    return re.sub('width="[^"]+" height="[^"]+"', sized, drawn, count=1)


def fitted(spec: Mapping[str, Any], wanted: float) -> tuple[str, float]:
    """Returns the picture with panels so wide that all of it is about as wide as wanted, and how wide a panel then is.

    Beside the panels stands text, of which the width stays, so the width of the whole is linear in that of a panel. A
    panel is at least half of `LEAST_PANEL` wide, so the picture may be wider.
    """
    panel = panel_width(spec)
    once, twice = (size_of(print_svg(widened(spec, factor)))[0] for factor in (1.0, 2.0))
    factor = max(1 + (wanted - once) / (twice - once), LEAST_PANEL / 2 / panel)
    return print_svg(widened(spec, factor)), factor * panel


def narrow(spec: Mapping[str, Any], wanted: float) -> dict[str, Any]:
    """Panels one under the other, or as many beside each other as fit, and a legend below for names at the ends."""
    changed = with_legends(spec) if FOR_WIDE in json.dumps(spec) else dict(spec)
    changed["config"] = PRINT | {"legend": PRINT["legend"] | UNDER | {"labelLimit": wanted - 30}}
    if "hconcat" in changed:
        changed["vconcat"] = changed.pop("hconcat")
    if "columns" in changed:
        changed["columns"] = max(1, int(wanted // LEAST_PANEL))
    for index, panel in enumerate(changed.get("vconcat", ())):
        if title := panel.get("title"):
            lines = textwrap.wrap(title["text"], int((wanted - 60) / LETTER))
            changed["vconcat"][index] = panel | {"title": title | {"text": lines}}
    return changed


def with_legends(part: Any) -> Any:
    """A part of a specification without the layers for wide charts, and with a legend for every colour."""
    if isinstance(part, list):
        kept = [one for one in part if not (isinstance(one, dict) and one.get("description") == FOR_WIDE)]
        return [with_legends(one) for one in kept]
    if not isinstance(part, dict):
        return part
    changed = {key: with_legends(value) if key != "data" else value for key, value in part.items()}
    if "scale" in part and part.get("legend", ...) is None:
        changed |= {"title": None, "legend": STROKES}
    return changed


def panel_width(part: Mapping[str, Any]) -> float | int:
    """The width of a chart's first panel."""
    if isinstance(width := part.get("width"), int | float):
        return width
    inner = [*part.get("hconcat", ()), *part.get("vconcat", ()), *([part["spec"]] if "spec" in part else [])]
    return panel_width(inner[0]) if inner else LEAST_PANEL


def for_readers(part: Any) -> Any:
    """A part of a specification with every normalizer called as readers call it."""
    if isinstance(part, dict):
        return {key: for_readers(value) for key, value in part.items()}
    if isinstance(part, list):
        return [for_readers(value) for value in part]
    named = isinstance(part, str) and normalizer_of(part) in (*METHODS, *NAMES)
    return reader_name(part) if named else part


def print_svg(spec: Mapping[str, Any]) -> str:
    """A specification drawn for print, twice as large."""
    return SPOKEN.sub("", draw("vegalite_to_svg", {**spec, "config": spec.get("config", PRINT)}))


def size_of(drawn: str) -> tuple[float, float]:
    """Width and height of a picture in pixels."""
    width, height = re.findall(r' (?:width|height)="([\d.]+)"', drawn[: drawn.index(">")])
    return float(width), float(height)


def widened(part: Any, factor: float) -> Any:
    """Returns a part of a specification with the widths of its panels multiplied."""
    if isinstance(part, list):
        return [widened(value, factor) for value in part]
    inner = {key: widened(part[key], factor) for key in ("hconcat", "vconcat", "spec", "layer") if key in part}
    match part.get("width"):
        case {"step": step}:  # so many pixels for each step of an axis
            inner["width"] = {"step": factor * step}
        case int(width) | float(width):
            inner["width"] = factor * width
    return part | inner
