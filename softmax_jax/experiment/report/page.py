"""The shell of a page: sections with figures, in one self-contained file with the data and the charts beside it.

A page asks nothing of any network: scripts, styles and data lie within, and its content security policy forbids the
rest. Its HTML, style and script are the templates in `assets`; what they are filled with is plain text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from softmax_jax.display import templates
from softmax_jax.experiment.report.chart_files import save_chart
from softmax_jax.experiment.report.charts import Chart
from softmax_jax.experiment.report.drawing import draw
from softmax_jax.experiment.report.print_layout import Paper
from softmax_jax.experiment.training.progress import with_progress
from softmax_jax.files import versions, write_csv, write_whole

TEMPLATES = templates("softmax_jax.experiment.report")
html: Any = TEMPLATES.get_template("parts.html").module
"""The macros `heading`, `facts` and `table`, for the parts of a section that are no figures."""


class Figure(NamedTuple):
    """A chart and its data; saved beside the page as `name`.png, .svg and .csv."""

    name: str
    chart: Chart
    data: pl.DataFrame
    renderer: str = "svg"
    """Or "canvas", for charts of more marks than a page should hold elements."""


class Section(NamedTuple):
    """A statement as heading, sentences of which the first leads, and the figures and other HTML below."""

    name: str
    heading: str
    sentences: Sequence[str]
    parts: Sequence[Figure | str]


def page(title: str, sections: Sequence[Section], note: str) -> str:
    """Returns the page as HTML."""
    vega = draw("javascript_bundle", "window.vegaEmbed = vegaEmbed;")
    return TEMPLATES.get_template("page.html").render(title=title, sections=sections, note=note, vega=vega)


def write_page(
    directory: Path, title: str, sections: Sequence[Section], note: str, paper: Paper | None = None
) -> list[Path]:
    """Writes the page, and beside it the pictures and data of its figures; returns the paths, the page's first."""
    paths = [directory / "index.html"]
    figures = [part for section in sections for part in section.parts if isinstance(part, Figure)]
    for figure in figures:
        paths.append(directory / f"{figure.name}.csv")
        write_csv(paths[-1], figure.data.columns, figure.data.rows())
    names = [f"{figure.name} ({place} of {len(figures)})" for place, figure in enumerate(figures, 1)]
    for figure in with_progress(figures, [1] * len(figures), "drawing", names):
        paths += save_chart(figure.chart, directory / figure.name, paper)
    made_by = ", ".join(f"{name} {version}" for name, version in versions().items())
    write_whole(paths[0], page(title, sections, f"{note} {made_by}."))
    return paths
