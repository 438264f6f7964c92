"""A chart for print: as wide as one column of a paper or two, in serif type, without its title.

A chart is drawn twice as large as it is printed, so that its marks have the sizes of other charts. Where panels would
get too narrow they go one under the other, and a legend below takes the place of names at the ends of lines.
"""

import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any, Literal

from softmax_jax.experiment.report.drawing import draw

Paper = Literal["one-column", "two-column"]
"""Widths that a chart can be printed in."""
WIDTHS: Mapping[Paper, float] = {"one-column": 234.0, "two-column": 487.0}
"""Widths in points: 3.25 and 6.76 inches."""
PRINT_SCALE = 0.5
LEAST_PANEL = 200.0
"""Width in pixels below which panels go one under the other and names go into a legend."""
LETTER = 8
"""Width of a letter of a panel's title, in pixels."""
FOR_WIDE = "for wide charts alone"
"""The description of layers that a narrow page leaves out; for names at the ends of lines it shows a legend."""
SPOKEN = re.compile(r' (?:aria-[\w-]+|role)="[^"]*"')
"""Words for screen readers, mark by mark; the page's own words stand beside a picture."""


def config(ink: str, font: str = "Arial, Liberation Sans, sans-serif", size: int = 12, **more: Any) -> dict[str, Any]:
    """Returns the look of a chart whose text and axes have this colour, as a configuration of Vega-Lite."""
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


PRINT = config("#000", "Times New Roman, Liberation Serif, serif", 15, background="transparent", padding=2)
LEGEND_BELOW = {"orient": "bottom", "direction": "vertical", "columns": 1}
STROKES = {"symbolOpacity": 1, "symbolType": "stroke", "symbolStrokeWidth": 3}


def draw_svg(spec: Mapping[str, Any], look: Mapping[str, Any]) -> str:
    """Draws a specification with a configuration as SVG, without the words for screen readers."""
    return SPOKEN.sub("", draw("vegalite_to_svg", {**spec, "config": look}))


def lay_out(spec: Mapping[str, Any], paper: Paper) -> str:
    """Draws a specification as SVG at the width of one or two columns, without its title."""
    target = WIDTHS[paper] / PRINT_SCALE
    spec = {name: part for name, part in spec.items() if name != "title"}
    drawn, panel = fit_width(spec, target)
    if panel < LEAST_PANEL:
        drawn, _ = fit_width(narrowed(spec, target), target)
    width, height = size_of(drawn)
    scale = WIDTHS[paper] / width
    sized = f'width="{WIDTHS[paper]:g}" height="{scale * height:.2f}"'
    return re.sub('width="[^"]+" height="[^"]+"', sized, drawn, count=1)


def fit_width(spec: Mapping[str, Any], target: float) -> tuple[str, float]:
    """Draws a specification about as wide as the target; returns the picture and the width of a panel in it.

    The width of the text beside the panels stays, so the width of the whole is linear in that of a panel: two drawings
    tell the line. A panel is at least half of `LEAST_PANEL` wide, so the picture may be wider.
    """
    panel, look = panel_width(spec), spec.get("config", PRINT)
    once, twice = (size_of(draw_svg(widened(spec, factor), look))[0] for factor in (1.0, 2.0))
    factor = max(1 + (target - once) / (twice - once), LEAST_PANEL / 2 / panel)
    return draw_svg(widened(spec, factor), look), factor * panel


def narrowed(spec: Mapping[str, Any], target: float) -> dict[str, Any]:
    """Returns a specification with panels under each other, or as many side by side as fit, and a legend below."""
    changed = with_legends(spec) if FOR_WIDE in json.dumps(spec) else dict(spec)
    changed["config"] = PRINT | {"legend": PRINT["legend"] | LEGEND_BELOW | {"labelLimit": target - 30}}
    if "hconcat" in changed:
        changed["vconcat"] = changed.pop("hconcat")
    if "columns" in changed:
        changed["columns"] = max(1, int(target // LEAST_PANEL))
    for index, panel in enumerate(changed.get("vconcat", ())):
        if title := panel.get("title"):
            lines = textwrap.wrap(title["text"], int((target - 60) / LETTER))
            changed["vconcat"][index] = panel | {"title": title | {"text": lines}}
    return changed


def with_legends(part: Any) -> Any:
    """Returns a part of a specification without the layers for wide charts, and with a legend for every colour."""
    if isinstance(part, list):
        layers = [layer for layer in part if not (isinstance(layer, dict) and layer.get("description") == FOR_WIDE)]
        return [with_legends(layer) for layer in layers]
    if not isinstance(part, dict):
        return part
    changed = {key: with_legends(value) if key != "data" else value for key, value in part.items()}
    if "scale" in part and part.get("legend", ...) is None:
        changed |= {"title": None, "legend": STROKES}
    return changed


def panel_width(part: Mapping[str, Any]) -> float | int:
    """Returns the width of a chart's first panel."""
    if isinstance(width := part.get("width"), int | float):
        return width
    panels = [*part.get("hconcat", ()), *part.get("vconcat", ()), *([part["spec"]] if "spec" in part else [])]
    return panel_width(panels[0]) if panels else LEAST_PANEL


def size_of(drawn: str) -> tuple[float, float]:
    """Returns width and height of a picture in pixels."""
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
