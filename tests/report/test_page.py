"""What the page holds, without a browser."""

import html.parser
import json
import re

import altair as alt
import polars as pl
import pytest

from softmax_jax.report.page import Figure, Section, TableRow, html as parts, page, write_figure

VALUES = [{"a": "</script><script>alert(1)</script>", "b": 2}]
TITLE = alt.TitleParams("What is it?", subtitle=["one", "two"])
CHART = alt.layer(alt.Chart(alt.Data(values=VALUES)).mark_point().encode(x="a:N", y="b:Q")).properties(title=TITLE)
FIGURE = Figure("dots", CHART, pl.DataFrame({"a": ["x"], "b": [2]}))
ROWS = [TableRow("one", ["1.0 ± 0.1"]), TableRow("<two>", ["–"], reference=True)]
SECTION = Section(
    "first",
    "Is 1 < 2?",
    ["Yes & no.", "More."],
    [FIGURE, parts.table("Some <numbers>", ["name", "16"], ROWS, name="t")],
)


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

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def text():
    return page("A <title>", [SECTION], "made & written")


@pytest.fixture(scope="module")
def outline(text):
    return Outline(text)


@pytest.mark.full
def test_every_element_is_closed_and_every_id_is_unique(outline):
    assert outline.open == []
    ids = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.full
def test_nothing_is_fetched(outline, text):
    for tag, attributes in outline.elements:
        assert tag != "img"
        assert "src" not in attributes
        assert not re.match("(https?:)?//", attributes.get("href", ""))
    (policy,) = (meta["content"] for meta in outline.all("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert len(text) < 1.2e6


@pytest.mark.full
def test_the_contents_lead_to_each_section_by_its_question(text):
    assert '<li><a href="#first">Is 1 &lt; 2?</a></li>' in text
    assert '<section id="first"' in text
    assert "Yes &amp; no." in text
    assert "made &amp; written" in text


@pytest.mark.full
def test_a_chart_lies_within_as_its_specification_with_its_title_as_text(text):
    found = re.search(r'<script type="application/json" id="spec-dots">(.*?)</script>', text)
    assert found is not None
    specification = json.loads(found[1])
    assert "title" not in specification
    assert specification["data"]["values"] == VALUES
    assert "<strong>What is it?</strong>one<br>two</figcaption>" in text
    assert [suffix in text for suffix in ('"dots.csv"', '"dots.png"', '"dots.svg"')] == [True] * 3


@pytest.mark.full
def test_a_table_has_headings_that_sort_and_sets_its_references_apart(outline):
    headings = [attributes for attributes in outline.all("th") if attributes.get("scope") == "col"]
    assert [heading["aria-sort"] for heading in headings] == ["none", "none"]
    assert {"class": "reference"} in outline.all("tr")


def test_a_choice_shows_the_first_of_its_tables():
    radios = Outline(parts.choice("Show", {"a": "A", "b": "B"})).all("input")
    assert [("checked" in radio, radio["value"]) for radio in radios] == [(True, "a"), (False, "b")]
    assert len({radio["name"] for radio in radios}) == 1


def test_a_page_within_the_page_is_shut_in():
    (frame,) = Outline(parts.frame("open", "title", '<p class="x">&</p>')).all("iframe")
    assert frame["srcdoc"] == '<p class="x">&</p>'
    assert frame["sandbox"] == "allow-scripts"


@pytest.mark.full
def test_a_figure_is_written_as_pictures_and_data(tmp_path):
    paths = write_figure(tmp_path, FIGURE)
    assert [path.name for path in paths] == ["dots.csv", "dots.png", "dots.svg"]
    assert paths[0].read_text() == "a,b\nx,2\n"
