"""One self-contained page of sections, each a question, with the charts' pictures and data saved beside it.

The page asks nothing of any network: scripts, styles and data lie within, and its content security policy forbids the
rest. Its HTML, style and script are the templates in `assets`; what they are filled with is plain text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import polars as pl
import vl_convert

from softmax_jax.files import write_csv
from softmax_jax.report.charts import Chart
from softmax_jax.report.drawing import Paper, save_chart

TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("softmax_jax.report", "assets"), autoescape=True, trim_blocks=True, lstrip_blocks=True
)
TEMPLATES.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
html: Any = TEMPLATES.get_template("parts.html").module
"""The macros `heading`, `facts`, `table`, `choice` and `frame`, for the parts of a section that are no figures."""


class Figure(NamedTuple):
    """A chart and what it was made from; saved beside the page as `name`.png, .svg and .csv."""

    name: str
    chart: Chart
    data: pl.DataFrame
    renderer: str = "svg"
    """Or "canvas", for charts of more marks than a page should hold elements."""
    on_page: Chart | None = None
    """What the page shows in place of the chart, if it can do more there."""


class Section(NamedTuple):
    """A question, what one sees in a few sentences of which the first leads, and the figures and other HTML below."""

    name: str
    question: str
    sentences: Sequence[str]
    parts: Sequence[Figure | str]


class TableRow(NamedTuple):
    """A row of a table; that of a reference is set apart."""

    name: str
    cells: Sequence[str]
    reference: bool = False


def page(title: str, sections: Sequence[Section], note: str) -> str:
    """The page as HTML."""
    vega = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return TEMPLATES.get_template("page.html").render(title=title, sections=sections, note=note, vega=vega)


def write_figure(directory: Path, figure: Figure, paper: Paper | None = None) -> list[Path]:
    """Writes the data and the pictures of a figure, and returns their paths."""
    data = directory / f"{figure.name}.csv"
    write_csv(data, figure.data.columns, figure.data.rows())
    return [data, *save_chart(figure.chart, directory / figure.name, paper)]
