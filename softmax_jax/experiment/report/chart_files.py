"""Charts as files: PNG and SVG for pages by day and night, and PDF and SVG for print.

A picture keeps the SHA-256 of what it was drawn from, so that one can tell whether the chart has changed. Pixels would
not do: fonts differ by machine.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softmax_jax.experiment.report.charts import NAMES, Chart, normalizer_of, reader_name
from softmax_jax.experiment.report.drawing import draw
from softmax_jax.experiment.report.print_layout import Paper, config, draw_svg, lay_out
from softmax_jax.files import write_whole
from softmax_jax.normalizers.registry import METHODS
from softmax_jax.refusal import Refusal

PNG_SCALE = 2
INK = "currentColor"
"""The colour of the text around a picture, which its style sheet sets for light and dark pages."""
STYLE = "<style>svg { color: #333 } @media (prefers-color-scheme: dark) { svg { color: #ddd } }</style>"
SOURCE = re.compile(r"<!-- chart (\w+) -->")
THEMED = config(INK, background="transparent", padding={"left": 5, "top": 5, "bottom": 5, "right": 20})
"""The look on pages, with room at the right for readers whose fonts are wider than those here."""
LIGHT = config("#333", background="white")


def specification(chart: Any) -> dict[str, Any]:
    """Returns the chart as Vega-Lite, without what altair sets for every chart."""
    spec = chart.to_dict()
    spec.pop("config", None)
    spec.pop("$schema", None)
    return spec


def fingerprint(spec: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of the specification that a chart is drawn from."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()


def drawn_from(svg: str) -> str | None:
    """Returns the fingerprint of the chart that a picture was drawn from, if it has one."""
    source = SOURCE.search(svg)
    return source[1] if source else None


def svg(spec: Mapping[str, Any], *, readers: bool = False) -> str:
    """Draws a specification without a background, its text in the colour that `STYLE` gives it, with its fingerprint.

    Normalizers have the names that the command line knows, or those for `readers`.
    """
    drawn = draw_svg(for_readers(spec) if readers else spec, THEMED)
    end_of_tag = drawn.index(">") + 1
    return f"{drawn[:end_of_tag]}<!-- chart {fingerprint(spec)} -->{STYLE}{drawn[end_of_tag:]}\n"


def save_chart(chart: Chart, path: Path | str, paper: Paper | None = None) -> list[Path]:
    """Writes the chart as PNG and SVG, and for print into the directory `paper` beside them; `path` has no suffix.

    For print these are a PDF, an SVG, and its title as text. Returns the files. Raises Refusal if drawing fails.
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
        # The expressions of a chart with sliders compute with the names of its columns.
        drawn = lay_out(spec if "params" in spec else for_readers(spec), paper)
        name, title = path.parent / "paper" / path.name, for_readers(spec["title"])
        contents |= {name.with_suffix(".pdf"): draw("svg_to_pdf", drawn), name.with_suffix(".svg"): drawn}
        contents[name.with_suffix(".txt")] = "\n".join([title["text"], *title.get("subtitle", [])]) + "\n"
    return contents


def for_readers(part: Any) -> Any:
    """Returns a part of a specification with every normalizer called as readers call it."""
    if isinstance(part, dict):
        return {key: for_readers(value) for key, value in part.items()}
    if isinstance(part, list):
        return [for_readers(value) for value in part]
    is_name = isinstance(part, str) and normalizer_of(part) in (*METHODS, *NAMES)
    return reader_name(part) if is_name else part
