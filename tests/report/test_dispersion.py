import numpy as np
import pytest

from softmax_jax.measures.dispersion import AttentionMaps, DispersionRow, ForcedRow, GapRow, LossRow, Resolution
from softmax_jax.measures.evaluation import half_width
from softmax_jax.report import dispersion as report
from softmax_jax.report.charts import save_chart
from tests.report.svg import texts_of

NAMES, LENGTHS, SEEDS = ("softmax", "hardmax"), (16, 256, 16384), (0, 1, 2)


def dispersion_row(name, n, seed):
    weight = 1.0 if name == "hardmax" else 8 / n + 0.01 * seed
    bounds = [None] * 7 if name == "hardmax" else [1.0, 150.0, 0.1, np.log(n), 1 / n, 1.0, min(1.0, 12 / n)]
    return DispersionRow(name, n, seed, np.log(n) / 2, weight, 1.0 + n / 100, weight, 140.0, 150.0, *bounds)


ROWS = [dispersion_row(name, n, seed) for name in NAMES for n in LENGTHS for seed in SEEDS]
FORCED = [ForcedRow("softmax", 0.5, 20.4, 90.2, 1e65), ForcedRow("hardmax", 0.5, None, None, None)]
GAPS = [
    GapRow(name, n, seed, 10.0**-power, 10.0**-power * 3, sets, 10.0 * power, 12.0 * power)
    for name in NAMES
    for n in LENGTHS
    for seed in SEEDS
    for power, sets in ((2, 50), (3, 5))
]
LOSSES = [
    LossRow(name, n, seed, 60.0, 1.0 + seed, 20.0, lost)
    for name, lost in zip(NAMES, (19.0, -0.5))
    for n in LENGTHS
    for seed in SEEDS
]
MAPS = AttentionMaps(
    NAMES, LENGTHS, 7, np.linspace(0, 1, 2 * 3 * 4 * 16).reshape(2, 3, 4, 16), np.linspace(1, 0, 192).reshape(3, 4, 16)
)
FOUND = Resolution(
    np.linspace(0, 1, 3),
    np.arange(60.0).reshape(2, 10, 3),
    np.linspace(0.998, 1, 3),
    np.arange(60.0).reshape(2, 10, 3),
    np.array([200.0, 100.0]),
    np.array([0.04, 0.06]),
)
CHARTS = {
    "dispersion": lambda: report.dispersion_chart(ROWS, FORCED),
    "maps": lambda: report.attention_map_chart(MAPS),
    "resolution": lambda: report.resolution_chart(FOUND, (3, 4), 4),
    "gap": lambda: report.gap_chart(GAPS, FOUND, NAMES),
    "losses": lambda: report.loss_split_chart(LOSSES),
}
TEXTS = {
    "dispersion": {
        "entropy (nats)",
        "largest weight",
        "measured: 0.5 at n = 20",
        "forced below 0.5 from n = 90",
        "at least",
    },
    "maps": {"n = 16384", "softmax", "hardmax", "weight"},
    "resolution": {"ρ", "logit", "class κ"},
    "gap": {"gap in ρ", "error (% of sets)", "hardmax: the answer is wrong", "16384"},
    "losses": {"lost (% of sets)", "items in the set", "what costs accuracy", "hardmax"},
}


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_asks_its_question_with_units_and_legends(name, tmp_path):
    chart = CHARTS[name]()
    _, svg = save_chart(chart, tmp_path / name)
    texts = texts_of(svg.read_text())
    assert TEXTS[name] <= texts
    assert chart.to_dict()["title"]["text"].endswith("?")


@pytest.mark.parametrize("name", CHARTS)
def test_a_page_may_give_the_chart_its_theme(name):
    text = CHARTS[name]().to_json(indent=None)
    assert not any(colour in text for colour in ('"#000', '"#fff', '"black"', '"white"', '"background"'))


def values_of(chart):
    """The records of every layer of a chart, by what they hold."""
    found = []

    def visit(part):
        if isinstance(part, dict):
            found.extend(part["values"] if isinstance(part.get("values"), list) and "values" in part else [])
            for inner in part.values():
                visit(inner)
        elif isinstance(part, list):
            for inner in part:
                visit(inner)

    visit(chart.to_dict())
    return [record for record in found if isinstance(record, dict)]


def test_bands_are_students_intervals_over_seeds():
    records = report.over_seeds(ROWS, ("normalizer", "n"), "max_weight")
    (record,) = (record for record in records if (record["normalizer"], record["n"]) == ("softmax", 16))
    values = [0.5, 0.51, 0.52]
    assert record["value"] == pytest.approx(0.51)
    assert record["high"] - record["value"] == pytest.approx(half_width(values))


def test_methods_without_bounds_have_none_drawn():
    records = report.bound_records([row for row in ROWS if row.normalizer == "hardmax"], {"at least": "entropy_lower"})
    assert records == []


def test_a_length_beyond_the_chart_is_not_marked():
    far = [ForcedRow("softmax", 0.5, None, 1e5, None)]
    assert not any("forced" in str(record) for record in values_of(report.dispersion_chart(ROWS, far)))


def test_bins_of_few_sets_are_not_drawn():
    drawn = {record["gap_low"] for record in values_of(report.gap_chart(GAPS)) if "gap_low" in record}
    assert drawn == {0.01}


def test_a_normalizer_better_than_hardmax_loses_nothing():
    records = [record for record in values_of(report.loss_split_chart(LOSSES)) if record.get("normalizer") == "hardmax"]
    lost = {record["cause"].split(":")[0]: record["lost"] for record in records}
    assert lost == {"dispersion": 0, "key": 20, "value": 2}


def test_tables_hold_what_is_drawn():
    assert report.table(LOSSES)[0] == LOSSES[0]._asdict()
    maps = report.attention_map_table(MAPS)
    assert len(maps) == MAPS.weights.size
    assert maps[-1] == {"normalizer": "hardmax", "n": 16384, "seed": 7, "set": 4, "item": 16, "rho": 0.0, "weight": 1.0}
    logits = report.resolution_table(FOUND, (3, 4))
    assert len(logits) == 120
    assert logits[-1] == {"range": "near", "seed": 4, "class": 9, "rho": 1.0, "logit": 59.0}


@pytest.mark.parametrize("width", [0.002, 4e-5])
def test_the_axis_near_the_top_has_digits_enough_to_tell_its_ends_apart(width):
    found = FOUND._replace(near_rho=np.linspace(1 - width, 1, 3))
    axis = report.resolution_chart(found, (3, 4), 4).to_dict()["hconcat"][1]["encoding"]["x"]["axis"]
    first, last = (format(rho, axis["format"]) for rho in found.near_rho[[0, -1]])
    assert float(last) - float(first) == pytest.approx(width, rel=0.2)
