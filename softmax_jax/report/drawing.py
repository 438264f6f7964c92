"""Charts as files: SVG that follows light and dark pages, PNG on white, and for print PDF and SVG in columns.

A picture holds the SHA-256 of the chart that it was drawn from, so that one can tell whether the chart has changed.
Pixels would not do: fonts differ by machine.
"""

import hashlib
import json
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
import vl_convert

from softmax_jax.files import write_whole
from softmax_jax.normalizers.registry import METHODS
from softmax_jax.report.charts import FOR_WIDE, Chart
from softmax_jax.report.colours import NAMES, normalizer_of, reader_name

PNG_SCALE = 2
INK = "currentColor"
"""The colour of the text around a picture, which its style sheet sets for light and dark pages."""
STYLE = "<style>svg { color: #333 } @media (prefers-color-scheme: dark) { svg { color: #ddd } }</style>"
SPOKEN = re.compile(r' (?:aria-[\w-]+|role)="[^"]*"')
"""What a picture says to readers aloud mark by mark; the page's own words stand beside it."""
SOURCE = re.compile(r"<!-- chart (\w+) -->")

Paper = Literal["one-column", "two-column"]
PaperOption = Annotated[
    Paper | None,
    tyro.conf.arg(
        help="Write every chart for print too, into the directory paper: PDF and SVG as wide as one column (3.25 "
        "inches) or two (6.75), in a serif font, with names for readers, and the title as text for a caption."
    ),
]
"""What commands that draw take as --paper."""
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


THEMED = config(INK, background="transparent", padding={"left": 5, "top": 5, "bottom": 5, "right": 30})
"""With room at the right for readers whose fonts are wider than those here."""
LIGHT = config("#333", background="white")
PRINT = config("#000", "Times New Roman, Liberation Serif, serif", 15, background="transparent", padding=2)
UNDER = {"orient": "bottom", "direction": "vertical", "columns": 1}
STROKES = {"symbolOpacity": 1, "symbolType": "stroke", "symbolStrokeWidth": 3}
LETTER = 8
"""Width of a letter of a panel's title, in pixels."""


def specification(chart: Any) -> dict[str, Any]:
    """The chart as Vega-Lite, without what altair sets for every chart."""
    found = chart.to_dict()
    found.pop("config", None)
    found.pop("$schema", None)
    return found


def fingerprint(chart: Any) -> str:
    """The SHA-256 of what the chart is drawn from."""
    return hashlib.sha256(json.dumps(specification(chart), sort_keys=True).encode()).hexdigest()


def drawn_from(svg: str) -> str | None:
    """The fingerprint of the chart that a picture was drawn from, if it has one."""
    found = SOURCE.search(svg)
    return found[1] if found else None


def svg(chart: Any, *, readers: bool = False) -> str:
    """The chart without a background, its text in the colour that `STYLE` gives it, with its fingerprint.

    With the names that the command line knows, or for readers.
    """
    found = for_readers(specification(chart)) if readers else specification(chart)
    drawn = vl_convert.vegalite_to_svg(found | {"config": THEMED})
    drawn = SPOKEN.sub("", drawn)
    end_of_tag = drawn.index(">") + 1
    return f"{drawn[:end_of_tag]}<!-- chart {fingerprint(chart)} -->{STYLE}{drawn[end_of_tag:]}\n"


def save_chart(chart: Chart, path: Path | str, paper: Paper | None = None) -> list[Path]:
    """Writes the chart as PNG and SVG, and for print into the directory `paper` beside them; `path` has no suffix.

    For print that is a PDF, an SVG, and its title as text. Returns the files.
    """
    path = Path(path)
    png = vl_convert.vegalite_to_png(specification(chart) | {"config": LIGHT}, scale=PNG_SCALE)
    contents = {path.with_suffix(".png"): png, path.with_suffix(".svg"): svg(chart)}
    if paper:
        name, drawn = path.parent / "paper" / path.name, printed(chart, paper)
        contents |= {name.with_suffix(".pdf"): vl_convert.svg_to_pdf(drawn), name.with_suffix(".svg"): drawn}
        contents[name.with_suffix(".txt")] = caption(chart)
    for file, content in contents.items():
        write_whole(file, content)
    return list(contents)


def caption(chart: Chart) -> str:
    """What stands over a chart, to be set under it in print."""
    title = for_readers(specification(chart)["title"])
    return "\n".join([title["text"], *title.get("subtitle", [])]) + "\n"


def printed(chart: Chart, paper: Paper) -> str:
    """The chart as SVG at the width of one or two columns: serif, with names for readers, without its title.

    Where panels would get too narrow they go one under the other, and a legend below takes the place of names at the
    ends of lines.
    """
    wanted = COLUMNS[paper] / PRINT_SCALE
    found = specification(chart)
    found.pop("title", None)
    if "params" not in found:  # which compute with the names
        found = for_readers(found)
    drawn, panel = fitted(found, wanted)
    if panel < LEAST_PANEL:
        drawn, _ = fitted(narrow(found, wanted), wanted)
    width, height = size_of(drawn)
    scale = COLUMNS[paper] / width
    sized = f'width="{COLUMNS[paper]:g}" height="{scale * height:.2f}"'
    return re.sub('width="[^"]+" height="[^"]+"', sized, drawn, count=1)


def fitted(found: Mapping[str, Any], wanted: float) -> tuple[str, float]:
    """The picture with panels so wide that all of it is as wide as wanted, and how wide a panel is then.

    A panel is at least half of `LEAST_PANEL` wide, so the picture may be wider.
    """
    panel = panel_width(found)
    low, high = LEAST_PANEL / 2 / panel, 3 * wanted / panel

    def width_at(factor: float) -> float:
        return size_of(print_svg(widened(found, factor)))[0]

    low_width, high_width = width_at(low), width_at(high)
    for _ in range(3):  # the width is linear in the factor once panels are wider than the text around them
        if low_width < wanted < high_width:
            low += (high - low) * (wanted - low_width) / (high_width - low_width)
            low_width = width_at(low)
    return print_svg(widened(found, low)), low * panel


def narrow(found: Mapping[str, Any], wanted: float) -> dict[str, Any]:
    """Panels one under the other, or as many beside each other as fit, and a legend below for names at the ends."""
    changed = with_legends(found) if FOR_WIDE in json.dumps(found) else dict(found)
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


def print_svg(found: Mapping[str, Any]) -> str:
    """A specification drawn for print, twice as large."""
    return SPOKEN.sub("", vl_convert.vegalite_to_svg({**found, "config": found.get("config", PRINT)}))


def size_of(drawn: str) -> tuple[float, float]:
    """Width and height of a picture in pixels."""
    width, height = re.findall(r' (?:width|height)="([\d.]+)"', drawn[: drawn.index(">")])
    return float(width), float(height)


def widened(part: Any, factor: float) -> Any:
    """A part of a specification with the widths of its panels multiplied."""
    if isinstance(part, list):
        return [widened(value, factor) for value in part]
    inner = {key: widened(part[key], factor) for key in ("hconcat", "vconcat", "spec", "layer") if key in part}
    if isinstance(width := part.get("width"), dict):  # so many pixels for each step of an axis
        inner["width"] = {"step": factor * width["step"]}
    elif width is not None:
        inner["width"] = factor * width
    return {**part, **inner}
