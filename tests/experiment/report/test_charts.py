"""Charts as files: for pages by day and night, and for print; and their colours, told apart with each kind of sight."""

import itertools
import re

import altair as alt
import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.chart_files import drawn_from, fingerprint, save_chart, specification, svg
from softmax_jax.experiment.report.print_layout import WIDTHS, lay_out, size_of
from tests.experiment.report.charts import texts_of

ROWS = [("softmax", 16, 99.0), ("softmax", 256, 20.0), ("ssmax", 16, 99.0), ("ssmax", 256, 21.0)]
FRAME = pl.DataFrame([*ROWS, ("mine", 16, 99.0), ("mine", 256, 19.5)], ["normalizer", "n", "value"], orient="row")


def chart(frame=FRAME):
    x, y = charts.length_axis([16, 256]), charts.percent_axis("accuracy (% of sets)")
    return charts.named_lines(frame, x, y, charts.chart_title("Who holds?", "by softmax and others"))


def test_names_at_the_ends_keep_apart_and_text_takes_the_colour_of_the_page():
    specified = specification(chart())
    drawn = svg(specified)
    assert drawn_from(drawn) == fingerprint(specified) != drawn_from("<svg></svg>")
    names = re.findall(r'translate\([\d.]+,([\d.]+)\)"[^>]*>(softmax|ssmax|mine)<', drawn)
    heights = {text: float(height) for height, text in names}
    assert heights["ssmax"] + 15.9 < heights["softmax"] < heights["mine"] - 15.9
    assert set(re.findall(r'<text[^>]*fill="(.*?)"', drawn)) == {"currentColor"}
    assert "prefers-color-scheme: dark" in drawn
    curves = re.findall(r'<path d="M0,[^"]*" stroke="(#\w+)" stroke-width="([\d.]+)"', drawn)
    assert [float(width) for _, width in curves] == [4, 2, 2]
    assert curves[0][0] == charts.BY_NORMALIZER["softmax"]


@pytest.mark.parametrize(
    ("places", "gap", "moved"),
    [([0.1, 0.9], 0.1, [0.1, 0.9]), ([1.0] * 3, 0.1, [0.8, 0.9, 1.0]), ([0.5] * 5, 0.4, [0, 0.25, 0.5, 0.75, 1])],
)
def test_places_stay_where_nothing_is_in_the_way_and_within_the_chart(places, gap, moved):
    assert charts.apart(places, gap) == pytest.approx(moved)


@pytest.mark.full
@pytest.mark.parametrize(("paper", "points"), WIDTHS.items())
def test_paper_has_the_width_of_its_columns_and_names_for_readers_and_no_title(paper, points, tmp_path):
    long = "a normalizer whose name takes half a column"
    crowded = chart(FRAME.with_columns(pl.col("normalizer").replace({"mine": long})))
    *shown, pdf, picture, caption = save_chart(crowded, tmp_path / "accuracy", paper)
    assert {path.parent for path in shown} == {tmp_path}
    assert {path.parent for path in (pdf, picture, caption)} == {tmp_path / "paper"}
    width, _ = re.findall(rb"MediaBox ?\[0 0 ([\d.]+) ([\d.]+)\]", pdf.read_bytes())[0]
    text = picture.read_text()
    assert (float(width), size_of(text)[0]) == pytest.approx((points, points), abs=1)
    assert {"SSMax", "softmax", long} <= texts_of(text)
    assert not {"Who holds?", "ssmax"} & texts_of(text)
    assert "serif" in text
    assert ("role-legend-label" in text) == (paper == "one-column")  # no room for names at the ends
    side_by_side = specification(alt.hconcat(chart(), chart()).properties(title=charts.chart_title("Both?")))
    wide, high = size_of(lay_out(side_by_side, paper))
    assert (high > wide) == (paper == "one-column")  # panels one under the other
    assert caption.read_text() == "Who holds?\nby softmax and others\n"


WHITE, SLATE = "#ffffff", "#1e2129"
"""Of pages of the documentation by day and by night."""
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""What linear RGB looks like: Machado, Oliveira and Fernandes, 2009, at full severity."""
TO_LMS = [[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]
TO_LAB = [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]
"""Oklab: Ottosson, 2020."""
NINE = list(charts.BY_NORMALIZER.values())


def linear(colour):
    parts = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def luminance(colour):
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def least_distance(colours, sight):
    lab = [
        np.array(TO_LAB) @ np.cbrt(np.array(TO_LMS) @ np.clip(np.array(SIGHTS[sight]) @ linear(colour), 0, 1))
        for colour in colours
    ]
    return min(float(np.linalg.norm(one - other)) for one, other in itertools.combinations(lab, 2))


def test_colours_can_be_told_apart_and_stand_out_on_light_and_dark_pages_and_sizes_go_from_light_to_dark():
    for sight in SIGHTS:
        assert least_distance(NINE, sight) >= (0.15 if sight == "normal" else 0.075)
        for colours in (charts.BY_CAUSE.values(), charts.by_size("12345").values()):
            assert least_distance(colours, sight) >= 0.045
    for page, colour in itertools.product((WHITE, SLATE), (*NINE, *charts.OTHERS, charts.GREY)):
        low, high = sorted(map(luminance, (page, colour)))
        assert (high + 0.05) / (low + 0.05) >= 3
    luminances = list(map(luminance, charts.by_size("123456").values()))
    assert luminances == sorted(luminances, reverse=True)


def test_a_normalizer_has_one_colour_whatever_stands_beside_it():
    alone, among = charts.palette(["ssmax"]), charts.palette(["mine", "hardmax", "ssmax(s=0.24)", "softmax"])
    assert alone["ssmax"] == among["ssmax(s=0.24)"] == charts.BY_NORMALIZER["ssmax"]
    assert len(set(among.values())) == 4
    given = charts.palette(["temperature(0.5)", "temperature(0.25)", "adaptive, published"])
    assert given["temperature(0.5)"] == charts.BY_NORMALIZER["temperature"] != given["temperature(0.25)"]
    assert given["adaptive, published"] == charts.BY_NORMALIZER["adaptive"]
    assert len({charts.palette([*names, "mine"])["mine"] for names in ([], ["softmax"], ["hardmax", "ssmax"])}) == 1
    names = [f"mine_{index}" for index in range(12)]
    assert {*charts.palette(names[:4]).values()} == {*charts.OTHERS} == {*charts.palette(names).values()}
