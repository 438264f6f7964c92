"""One self-contained page of sections, each a question, with the charts' pictures and data saved beside it.

The page asks nothing of any network: scripts, styles and data lie within, and its content security policy forbids the
rest. Its static parts are the files in `assets`.
"""

import importlib.resources
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import polars as pl
import vl_convert

from softmax_jax.files import write_csv
from softmax_jax.report.charts import Chart, save_chart


class Figure(NamedTuple):
    """A chart and what it was made from; saved beside the page as `name`.png, .svg and .csv."""

    name: str
    chart: Chart
    data: pl.DataFrame | None = None
    """Without data no CSV file is written."""
    renderer: str = "svg"
    """Or "canvas", for charts of more marks than a page should hold elements."""


class Section(NamedTuple):
    """A question, what one sees in a few sentences, and the figures and other HTML that show it."""

    name: str
    question: str
    sentences: Sequence[str]
    parts: Sequence[Figure | str]


class Cell(NamedTuple):
    """A cell of a table: what is printed, a smaller remark, and the number to sort by, None if it is missing."""

    text: str
    value: float | None = None
    remark: str = ""


class TableRow(NamedTuple):
    """A row of a table; that of a reference is set apart."""

    name: str
    cells: Sequence[Cell]
    reference: bool = False


def page(title: str, sections: Sequence[Section], note: str) -> str:
    """The page as HTML. `title`, `note` and all sentences are plain text."""
    template = Template(asset("page.html"))
    contents = (f'<li><a href="#{section.name}">{escape(section.question)}</a></li>' for section in sections)
    return template.substitute(
        title=escape(title),
        note=escape(note),
        contents="\n".join(contents),
        sections="\n".join(map(section_html, sections)),
        style=asset("page.css"),
        vega=vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"),
        script=asset("page.js"),
    )


def asset(name: str) -> str:
    """The text of a static file of the page."""
    return importlib.resources.files("softmax_jax.report").joinpath("assets", name).read_text("utf-8")


def section_html(section: Section) -> str:
    """A section with its heading; its first sentences lead."""
    first, *others = (escape(sentence) for sentence in section.sentences)
    lines = [f'<section id="{section.name}" aria-labelledby="{section.name}-question">']
    lines.append(f'<h2 id="{section.name}-question">{escape(section.question)}</h2>')
    lines.append(f'<p class="lead">{first}</p>')
    lines += [f"<p>{sentence}</p>" for sentence in others]
    lines += [part if isinstance(part, str) else figure_html(part) for part in section.parts]
    return "\n".join([*lines, "</section>"])


def figure_html(figure: Figure) -> str:
    """A chart under its title and subtitle, which wrap as text does, and links to its files."""
    specification = figure.chart.to_dict()
    title = specification.pop("title")
    name, caption = figure.name, "<br>".join(map(escape, title.get("subtitle", [])))
    suffixes = (*(["csv"] if figure.data is not None else []), "png", "svg")
    links = " · ".join(f'<a href="{name}.{suffix}">{suffix.upper()}</a>' for suffix in suffixes)
    return f"""<figure>
<figcaption id="caption-{name}"><strong>{escape(title["text"])}</strong>{caption}</figcaption>
<div class="controls" id="controls-{name}"></div>
<div class="chart" tabindex="0" role="group" aria-labelledby="caption-{name}" data-chart="{name}" \
data-renderer="{figure.renderer}"></div>
<script type="application/json" id="spec-{name}">{script_json(specification)}</script>
<p class="files">Beside this page: {links}</p>
</figure>"""


def script_json(value: Any) -> str:
    r"""A value as JSON that may stand within a script element.

    >>> script_json({"text": "</script>"})
    '{"text":"\\u003c/script>"}'
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def table_html(
    caption: str, columns: Sequence[str], rows: Iterable[TableRow], *, name: str, hidden: bool = False
) -> str:
    """A table that sorts by any of its columns, the first of which holds the names of the rows."""
    headings = (
        f'<th scope="col" aria-sort="none"><button type="button">{escape(column)}</button></th>' for column in columns
    )
    lines = []
    for row in rows:
        kind = ' class="reference"' if row.reference else ""
        lines.append(f'<tr{kind}><th scope="row">{escape(row.name)}</th>{"".join(map(cell_html, row.cells))}</tr>')
    body = "\n".join(lines)
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}" id="{name}"\
{" hidden" if hidden else ""}>
<table class="sortable"><caption>{escape(caption)}</caption>
<thead><tr>{"".join(headings)}</tr></thead>
<tbody>
{body}
</tbody></table></div>"""


def cell_html(cell: Cell) -> str:
    """A cell, with the number that it sorts by."""
    value = "" if cell.value is None else repr(float(cell.value))
    remark = f"<small>{escape(cell.remark)}</small>" if cell.remark else ""
    return f'<td data-value="{value}">{escape(cell.text)}{remark}</td>'


def choice_html(legend: str, options: Mapping[str, str]) -> str:
    """Radio buttons that show one of several parts of the page: from the names of the parts to what they are called."""
    first = next(iter(options))
    group = f"choice-{first}"
    labels = (
        f'<label><input type="radio" name="{group}" value="{name}"{" checked" if name == first else ""}> '
        f"{escape(text)}</label>"
        for name, text in options.items()
    )
    return f'<fieldset class="choice"><legend>{escape(legend)}</legend>{"".join(labels)}</fieldset>'


def frame_html(summary: str, title: str, document: str) -> str:
    """Another whole page, opened within this one; its scripts and styles stay in there."""
    return (
        f"<details><summary>{escape(summary)}</summary>"
        f'<iframe title="{escape(title)}" sandbox="allow-scripts" loading="lazy" srcdoc="{escape(document)}"></iframe>'
        "</details>"
    )


def write_figure(directory: Path, figure: Figure) -> list[Path]:
    """Writes the pictures and the data of a figure, and returns their paths."""
    paths = save_chart(figure.chart, directory / figure.name)
    if figure.data is None:
        return paths
    write_csv(directory / f"{figure.name}.csv", figure.data.columns, figure.data.rows())
    return [directory / f"{figure.name}.csv", *paths]
