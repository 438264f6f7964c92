"""The page without a browser: its HTML, its sentences, and all its sections on a small study."""

import dataclasses
import html.parser
import json
import re

import altair as alt
import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.report.page import Figure, Section, html as parts, write_page
from softmax_jax.experiment.report.sections import critical_sentence, forced_sentence, report_sections
from tests.experiment.report.charts import OWN_COLOURS
from tests.experiment.report.studies import LENGTHS, NORMALIZERS, small_study

VALUES = [{"a": "</script><script>alert(1)</script>", "b": 2}]
TITLE = alt.TitleParams("What is it?", subtitle=["one", "two"])
CHART = alt.layer(alt.Chart(alt.Data(values=VALUES)).mark_point().encode(x="a:N", y="b:Q")).properties(title=TITLE)
TABLE = parts.table("Some <numbers>", ["name", "16"], {"one": ["1.0 ± 0.1"], "<two>, published": ["–"]}, "t")
FIGURE = Figure("dots", CHART, pl.DataFrame({"a": ["x"], "b": [2]}))
SECTION = Section("first", "Is 1 < 2?", ["Yes & no.", "More."], [FIGURE, TABLE])


class Outline(html.parser.HTMLParser):
    """Elements with their attributes, and whether all were closed."""

    VOID = ("meta", "link", "input", "br")

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_is_whole_fetches_nothing_and_shows_what_it_was_given(tmp_path):
    written, data, *pictures = write_page(tmp_path, "A <title>", [SECTION], "made & written with")
    assert [path.name for path in pictures] == ["dots.png", "dots.svg"]
    assert data.read_text() == "a,b\nx,2\n"
    text = written.read_text()
    outline = Outline(text)
    assert outline.open == []
    elements = outline.elements
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert not [tag for tag, attributes in elements if tag == "img" or "src" in attributes]
    assert not [link for _, has in elements if re.match("(https?:)?//", link := has.get("href", ""))]
    (policy,) = (has["content"] for tag, has in elements if tag == "meta" and "http-equiv" in has)
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    shown = ('<li><a href="#first">Is 1 &lt; 2?</a></li>', '<section id="first"', "Yes &amp; no.")
    shown += ("made &amp; written with python", "<strong>What is it?</strong>one<br>two</figcaption>")
    assert all(part in text for part in shown)
    (written_in,) = re.findall(r'<script type="application/json" id="spec-dots">(.*?)</script>', text)
    specification = json.loads(written_in)
    assert "title" not in specification
    assert specification["data"]["values"] == VALUES
    assert [attributes["aria-sort"] for _, attributes in elements if attributes.get("scope") == "col"] == ["none"] * 2
    assert ("tr", {"class": "reference"}) in elements


@pytest.mark.full
def test_every_section_says_what_was_measured_of_a_small_study():
    run, study = small_study()
    sections = report_sections([run, dataclasses.replace(run, name="other")], study._replace(fits={}))
    assert [section.name for section in sections] == ["result", "dispersion", "maps", "temperature", "resolution"]
    assert all(section.sentences[-1] == "This section is about paper." for section in sections[1:])
    figures = {part.name: part for section in sections for part in section.parts if isinstance(part, Figure)}
    names = ["accuracy", "dispersion", "attention_maps", "entropy", "losses", "resolution"]
    assert list(figures) == names
    for figure in figures.values():
        chart = figure.chart.to_dict()
        assert len(figure.data)
        assert chart["title"]["text"]
        assert not any(colour in json.dumps(chart) for colour in OWN_COLOURS)
    text = str(sections[0].parts[-1])
    assert Outline(text).elements[0][1]["id"] == "table"
    names = [name for name in re.findall(r'<th scope="row">(.*?)</th>', text) if not name.endswith("published")]
    assert names == [f"{of}: {name}" for of in ("paper", "other") for name in NORMALIZERS]
    (cells,) = re.findall(r'scope="row">other: softmax</th>\n<td>(.*?)</td>\n<td>(.*?)</td>', text)
    for n, cell in zip(LENGTHS, cells):
        assert cell.startswith(f"{run.frame.filter(normalizer='softmax', n=n)['accuracy'].mean():.1f}±")


@pytest.mark.parametrize(("spread", "words"), [(5.0, "about 150 items"), (17334.0, "more than 10³⁰⁸ items")])
def test_the_lengths_that_theory_forces_and_the_critical_beta_are_numbers_that_one_can_read(spread, words):
    with np.errstate(over="ignore"):
        forced = {"measured": None, "nearest": None, "spread": float(1 + np.ceil(np.exp(spread)))}
    sentence = forced_sentence(forced, pl.DataFrame({"n": [16, 1024], "spread": [spread, spread]}))
    assert f"{spread:.0f} on average, from {words}." in sentence
    assert "at no length up to 1,024" in sentence
    for beta, end in ((1.0, ", where softmax has 1."), (None, "in the median.")):
        start, last = ({"n": n, "critical_beta": n / 64, "beta": beta} for n in (16, 4096))
        sentence = critical_sentence("softmax", start, last)
        assert "0.25 at 16 items and 64 at 4,096" in sentence
        assert sentence.endswith(end)
