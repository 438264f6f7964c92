"""Charts as files: for pages by day and night, and for print."""

import re

import polars as pl
import pytest

from softmax_jax.report import charts
from softmax_jax.report.charts import BY_NORMALIZER
from tests.report.charts import NAMESPACE, texts_of

FRAME = pl.DataFrame(
    [
        {"normalizer": name, "n": n, "value": value}
        for name, end in (("softmax", 20.0), ("ssmax", 21.0), ("mine", 19.5))
        for n, value in ((16, 99.0), (256, end))
    ]
)


def chart(frame=FRAME):
    x, y = charts.length_axis([16, 256]), charts.percent_axis("accuracy (% of sets)")
    return charts.of_normalizers(frame, x, y, "Who holds?", "by softmax and others")


def test_names_at_the_ends_do_not_overlap_and_keep_the_order_of_the_lines():
    drawn = charts.svg(chart())
    heights = {
        text: float(height)
        for height, text in re.findall(r'translate\([\d.]+,([\d.]+)\)"[^>]*>(softmax|ssmax|mine)<', drawn)
    }
    assert heights["ssmax"] + 15.9 < heights["softmax"] < heights["mine"] - 15.9


@pytest.mark.full
def test_places_stay_where_nothing_is_in_the_way_and_within_the_chart():
    assert charts.apart([0.1, 0.9], 0.1) == pytest.approx([0.1, 0.9])
    assert charts.apart([1.0, 1.0, 1.0], 0.1) == pytest.approx([0.8, 0.9, 1.0])
    assert charts.apart([0.5] * 5, 0.4) == pytest.approx([0, 0.25, 0.5, 0.75, 1])


@pytest.mark.full
def test_the_baseline_is_drawn_last_and_widest():
    drawn = re.findall(r'<path d="M0,[^"]*" stroke="(#\w+)" stroke-width="([\d.]+)"', charts.svg(chart()))
    assert [float(width) for _, width in drawn] == [2, 2, 4]
    assert drawn[-1][0] == BY_NORMALIZER["softmax"]


@pytest.mark.full
def test_a_picture_says_what_it_was_drawn_from():
    drawn = charts.svg(chart())
    assert charts.drawn_from(drawn) == charts.fingerprint(chart())
    other = chart(FRAME.with_columns(pl.col("value") + 0.01))
    assert charts.fingerprint(other) != charts.fingerprint(chart())
    nearly = chart(FRAME.with_columns(pl.col("value") * (1 + 1e-14)))
    assert charts.fingerprint(nearly) == charts.fingerprint(chart())
    assert charts.drawn_from("<svg></svg>") is None


@pytest.mark.full
@pytest.mark.parametrize(("paper", "points"), charts.COLUMNS.items())
def test_paper_has_the_width_of_its_columns_and_names_for_readers_and_no_title(paper, points, tmp_path):
    png, shown, *for_print = charts.save_chart(chart(), tmp_path / "accuracy", paper)
    assert {path.parent for path in (png, shown)} == {tmp_path}
    assert {path.parent for path in for_print} == {tmp_path / "paper"}
    pdf, svg, caption = for_print
    width, _ = re.findall(rb"MediaBox ?\[0 0 ([\d.]+) ([\d.]+)\]", pdf.read_bytes())[0]
    assert float(width) == pytest.approx(points, abs=1)
    text = svg.read_text()
    assert charts.size_of(text)[0] == pytest.approx(points, abs=1)
    assert {"SSMax", "softmax", "mine"} <= texts_of(text)
    assert not {"Who holds?", "ssmax"} & texts_of(text)
    assert "serif" in text
    assert caption.read_text() == "Who holds?\nby softmax and others\n"


@pytest.mark.full
def test_panels_go_under_each_other_where_a_column_is_too_narrow():
    side_by_side = charts.alt.hconcat(chart(), chart()).properties(title=charts.chart_title("Both?"))
    sizes = {paper: charts.size_of(charts.printed(side_by_side, paper)) for paper in charts.COLUMNS}
    assert sizes["one-column"][1] > 1.8 * sizes["two-column"][1]
    assert sizes["one-column"][0] == pytest.approx(234, abs=1)


@pytest.mark.full
def test_text_takes_the_colour_of_the_page():
    drawn = charts.svg(chart())
    assert "prefers-color-scheme: dark" in drawn
    fills = re.findall(r'<text[^>]*fill="(.*?)"', drawn)
    assert set(fills) == {"currentColor"}
    assert NAMESPACE[1:-1] in drawn


@pytest.mark.full
def test_names_go_into_a_legend_where_a_column_has_no_room_for_them():
    long = {"mine": "a normalizer whose name takes half a column"}
    crowded = chart(FRAME.with_columns(pl.col("normalizer").replace(long)))
    sizes = {paper: charts.printed(crowded, paper) for paper in charts.COLUMNS}
    assert "role-legend" in sizes["one-column"]
    assert "role-legend-label" not in sizes["two-column"]
    for drawn, points in zip(sizes.values(), charts.COLUMNS.values()):
        assert long["mine"] in texts_of(drawn)
        assert charts.size_of(drawn)[0] == pytest.approx(points)
