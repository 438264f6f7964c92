"""The page without a browser: its HTML, its sentences, and all its sections on a small study."""

import dataclasses
import html.parser
import json
import re
from pathlib import Path

import altair as alt
import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.measures.references import TRUE_ITEM
from softmax_jax.experiment.measures.runs import names_of
from softmax_jax.experiment.report.findings import Evaluated, helps, said
from softmax_jax.experiment.report.page import (
    Figure,
    Section,
    critical_sentence,
    forced_sentence,
    html as parts,
    report_sections,
    write_page,
)
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.run_directory import SHIPPED
from tests.experiment.report.charts import OWN_COLOURS
from tests.experiment.report.studies import NORMALIZERS, small_study

VALUES = [{"a": "</script><script>alert(1)</script>", "b": 2}]
TITLE = alt.TitleParams("What is it?", subtitle=["one", "two"])
CHART = alt.layer(alt.Chart(alt.Data(values=VALUES)).mark_point().encode(x="a:N", y="b:Q")).properties(title=TITLE)
ROWS = {"one": ["1.0 ± 0.1"], "<two>, published": ["–"]}
TABLE = parts.table("Some <numbers>", ["name", "16"], ROWS, "t")
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
    assert '<li><a href="#first">Is 1 &lt; 2?</a></li>' in text
    assert '<section id="first"' in text
    assert "Yes &amp; no." in text
    assert "made &amp; written with python" in text
    found = re.search(r'<script type="application/json" id="spec-dots">(.*?)</script>', text)
    assert found is not None
    specification = json.loads(found[1])
    assert "title" not in specification
    assert specification["data"]["values"] == VALUES
    assert "<strong>What is it?</strong>one<br>two</figcaption>" in text
    assert [attributes["aria-sort"] for _, attributes in elements if attributes.get("scope") == "col"] == ["none"] * 2
    assert ("tr", {"class": "reference"}) in elements


@pytest.mark.full
def test_every_section_says_what_was_measured_of_a_small_study():
    run, study = small_study()
    sections = report_sections([run, dataclasses.replace(run, name="other")], study)
    assert [section.name for section in sections] == ["result", "dispersion", "maps", "temperature", "resolution"]
    assert all(section.sentences[-1] == "This section is about paper." for section in sections[1:])
    figures = [part for section in sections for part in section.parts if isinstance(part, Figure)]
    names = ["accuracy", "published", "dispersion", "attention_maps", "entropy", "losses", "resolution"]
    assert [figure.name for figure in figures] == names
    for figure in figures:
        assert len(figure.data)
        assert figure.chart.to_dict()["title"]["text"]
        assert not any(colour in figure.chart.to_json(indent=None) for colour in OWN_COLOURS)
    table = Outline(text := str(sections[0].parts[-1]))
    assert table.elements[0][1]["id"] == "table"
    names = [name for name in re.findall(r'<th scope="row">(.*?)</th>', text) if not name.endswith("published")]
    assert names == [f"{of}: {name}" for of in ("paper", "other") for name in NORMALIZERS]
    (cells,) = re.findall(r'scope="row">other: softmax</th>\n<td>(.*?)</td>\n<td>(.*?)</td>', text)
    for n, cell in zip((16, 256), cells):
        assert cell.startswith(f"{run.frame.filter(normalizer='softmax', n=n)['accuracy'].mean():.1f}±")


@pytest.mark.full
def test_a_run_that_nothing_was_fitted_to_has_every_section():
    run, study = small_study()
    sections = report_sections([run], study._replace(fits={}))
    assert [section.name for section in sections] == ["result", "dispersion", "maps", "temperature", "resolution"]
    (curves,) = [part for part in sections[3].parts if isinstance(part, Figure)]
    assert "nothing is fitted to these models yet" in curves.chart.to_dict()["title"]["text"]


@pytest.mark.full
@pytest.mark.parametrize(("spread", "words"), [(5.0, "about 150 items"), (17334.0, "more than 10³⁰⁸ items")])
def test_the_length_that_the_spread_forces_is_a_number_that_one_can_read(spread, words):
    with np.errstate(over="ignore"):
        forced = {"measured": None, "nearest": None, "spread": float(1 + np.ceil(np.exp(spread)))}
    told = forced_sentence(forced, pl.DataFrame({"n": [16, 1024], "spread": [spread, spread]}))
    assert f"{spread:.0f} on average, from {words}." in told
    assert "at no length up to 1,024" in told


@pytest.mark.full
@pytest.mark.parametrize(("beta", "words"), [(1.0, ", where softmax has 1."), (None, "in the median.")])
def test_the_critical_beta_is_told_beside_that_of_the_normalizer(beta, words):
    start, end = ({"n": n, "critical_beta": n / 64, "beta": beta} for n in (16, 4096))
    told = critical_sentence("softmax", start, end)
    assert "0.25 at 16 items and 64 at 4,096" in told
    assert told.endswith(words)


def run_of(rows, task=MaxRetrieval()):  # noqa: B008
    """A run of these rows (normalizer, n, seed, accuracy), asked about all normalizers but the true item."""
    frame = pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy"], orient="row")
    names = tuple(dict.fromkeys(name for name, *_ in rows if name != TRUE_ITEM))
    return Evaluated("paper", task, names, [], frame)


@pytest.mark.parametrize(
    ("accuracies", "words"),
    [
        ({"hardmax": (59.0, 60.0, 61.0)}, "hardmax wins back most: 10.0 points at 16 items"),
        ({"hardmax": (41.0, 51.0, 59.0)}, "is shown to win anything back"),
        ({"hardmax": (70.0,), "softpick": (90.0,)}, "hardmax wins back most: 20.0"),  # softpick rests on an offset
        ({"hardmax": (60.0,), "ssmax": (61.0,)}, "Hardmax answers 60.0 %"),
        ({"hardmax": (60.0, 50.0, 40.0)}, "points at one length would have been found in 4 of 5 tests."),
        ({"softpick": (90.0,)}, None),
    ],
)
def test_a_gain_is_named_if_it_is_beyond_chance_and_rests_on_no_offset(accuracies, words):
    rows = [(name, 16, seed, value) for name, values in accuracies.items() for seed, value in enumerate(values)]
    rows += [("softmax", 16, seed, 50.0) for seed in {seed for _, _, seed, _ in rows}]
    told = helps(run_of(rows))
    assert told is None if words is None else words in (told or "")


def test_what_is_lost_adds_up_where_half_is_lost_and_rounding_is_named():
    accuracies = {"softmax": (99.0, 52.0), "hardmax": (99.0, 90.0), TRUE_ITEM: (100.0, 99.0)}
    rows = [(name, n, 0, value) for name, values in accuracies.items() for n, value in zip((16, 1024), values)]
    told = said(run_of(rows))
    assert list(told) == ["What falls", "Why", "What helps", "The paper"]
    assert "99.0 % of the sets of 16 items right, and 52.0 % of those of 1,024" in told["What falls"]
    assert (
        "At 1,024 items it answers 52.0 % of the sets right. All weight on the largest logit (hardmax) answers 38.0"
        in told["Why"]
    )
    assert "largest logit, loses 9.0 points" in told["Why"]
    assert told["Why"].endswith("which is misread under any weights, 1.0.")
    rounded = said(run_of(rows, MaxRetrieval(matmul="bfloat16")))["Why"]
    assert "rounded to bfloat16: items whose ρ lie within 0.004" in rounded


@pytest.mark.full
def test_our_models_of_the_paper_are_called_a_replication():
    assert names_of([SHIPPED / "paper", SHIPPED / "frontier"]) == ["our replication", "frontier"]
    assert names_of([Path("runs/paper")]) == ["paper"]
