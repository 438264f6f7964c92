import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.measures.dispersion import AttentionMaps
from softmax_jax.experiment.report import charts, dispersion
from tests.experiment.report.charts import values_of
from tests.experiment.report.studies import RESOLUTION

NAMES, LENGTHS, SEEDS = ("softmax", "hardmax"), (16, 256, 16384), (0, 1, 2)
BOUNDS = ("entropy_lower", "entropy_upper", "max_weight_lower", "max_weight_upper", "max_weight_upper_nearest")


def measured(name, n, seed):
    bounds = (0.1, np.log(n), 1 / n, 1.0, min(1.0, 12 / n)) if name == "softmax" else [None] * 5
    weight = 8 / n + 0.01 * seed if name == "softmax" else 1.0
    row = {"normalizer": name, "n": n, "seed": seed, "entropy": np.log(n) / 2, "max_weight": weight}
    row |= {"rank": 1.0 + n / 100, "spread": 140.0, "beta": 1.0 if name == "softmax" else None}
    return row | {"critical_beta": n / 100 if n < 16384 else np.inf} | dict(zip(BOUNDS, bounds))


FRAME = pl.DataFrame([measured(name, n, seed) for name in NAMES for n in LENGTHS for seed in SEEDS])


MAPS = AttentionMaps(
    NAMES, LENGTHS, 7, np.linspace(0, 1, 2 * 3 * 4 * 16).reshape(2, 3, 4, 16), np.linspace(1, 0, 192).reshape(3, 4, 16)
)
LOSSES = pl.DataFrame(
    [
        {"normalizer": name, "n": n, "seed": seed, "value": 1.0 + seed, "key": 20.0, "dispersion": lost}
        for name, lost in zip(NAMES, (19.0, -0.5))
        for n in LENGTHS
        for seed in SEEDS
    ]
)


def curves(panel):
    """The values of each line of a panel, by its name."""
    rows = panel["layer"][1]["data"]["values"]
    return {row["normalizer"]: [one["value"] for one in rows if one["normalizer"] == row["normalizer"]] for row in rows}


def test_each_panel_draws_its_quantity_with_the_bounds_of_softmax_alone():
    drawn = dispersion.dispersion_chart(FRAME).to_dict()["vconcat"]
    entropy, weight, rank, beta = map(curves, drawn)
    for panel, value in ((entropy, np.log(16) / 2), (weight, 0.51), (rank, 1.16)):
        assert panel["softmax"][0] == pytest.approx(value, rel=1e-5)
    bounds = {"softmax at most, by the whole spread", "softmax at most, by the nearest logits", "softmax at least"}
    assert set(weight) == bounds | set(NAMES)
    assert rank["a random item"] == [8.5, 128.5, 8192.5]
    assert beta == {"softmax": [1, 1, 1], "critical, median of the sets": [0.16, 2.56]}
    strokes = drawn[1]["layer"][1]["encoding"]["strokeDash"]["scale"]
    by_name = {name: tuple(stroke) for name, stroke in zip(strokes["domain"], strokes["range"])}
    assert by_name["softmax"] == by_name["hardmax"] == (1, 0)
    assert len({by_name[name] for name in bounds} - {tuple(charts.DASHES)}) == 3
    hardmax = dispersion.dispersion_chart(FRAME.filter(normalizer="hardmax").with_columns(entropy=0.0))
    assert {record.get("normalizer") for record in values_of(hardmax)} == {"hardmax"}
    assert len(hardmax.to_dict()["vconcat"]) == 3
    assert '"domain": [0, 1.0]' in hardmax.to_json(indent=None)  # of an entropy that is 0 everywhere


def test_a_normalizer_better_than_hardmax_loses_nothing_to_dispersion():
    chart = dispersion.loss_split_chart(LOSSES)
    lost = {row["cause"].split(":")[0]: row["lost"] for row in values_of(chart) if row["normalizer"] == "hardmax"}
    assert lost == {"dispersion": 0, "key": 20, "value": 2}
    scale = chart.to_dict()["spec"]["encoding"]["color"]["scale"]
    assert scale["range"] == [charts.BY_CAUSE[cause] for cause in dispersion.LOSSES]


@pytest.mark.full
def test_the_tables_of_maps_and_logits_hold_what_is_drawn():
    maps, logits = dispersion.attention_map_frame(MAPS), dispersion.resolution_frame(RESOLUTION, (3, 4))
    assert (len(maps), len(logits)) == (MAPS.weights.size, RESOLUTION.logits.size)
    last = {"normalizer": "hardmax", "n": 16384, "seed": 7, "set": 4, "item": 16, "rho": 0.0, "weight": 1.0}
    assert maps.row(-1, named=True) == last
    assert logits.row(-1, named=True) == {"seed": 4, "class": 9, "rho": 1.0, "logit": 59.0}


@pytest.mark.full
@pytest.mark.parametrize("width", [0.002, 4e-5])
def test_the_axis_near_the_top_has_digits_enough_to_tell_its_ends_apart(width):
    near = RESOLUTION._replace(rho=np.linspace(1 - width, 1, 3))
    axis = dispersion.resolution_chart(near, (3, 4)).to_dict()["layer"][0]["encoding"]["x"]["axis"]
    first, last = (format(rho, axis["format"]) for rho in near.rho[[0, -1]])
    assert float(last) - float(first) == pytest.approx(width, rel=0.2)
