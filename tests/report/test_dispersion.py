import json

import numpy as np
import polars as pl
import pytest

from softmax_jax.measures.dispersion import AttentionMaps
from softmax_jax.report import charts, dispersion
from tests.report.charts import values_of

NAMES, LENGTHS, SEEDS = ("softmax", "hardmax"), (16, 256, 16384), (0, 1, 2)
BOUNDS = ("entropy_lower", "entropy_upper", "max_weight_lower", "max_weight_upper", "max_weight_upper_nearest")


def measured(name, n, seed):
    bounds = (0.1, np.log(n), 1 / n, 1.0, min(1.0, 12 / n)) if name == "softmax" else [None] * 5
    weight = 8 / n + 0.01 * seed if name == "softmax" else 1.0
    row = {"normalizer": name, "n": n, "seed": seed, "entropy": np.log(n) / 2, "max_weight": weight}
    row |= {"rank": 1.0 + n / 100, "spread": 140.0, "beta": 1.0 if name == "softmax" else None}
    return row | {"critical_beta": n / 100 if n < 16384 else np.inf} | dict(zip(BOUNDS, bounds))


FRAME = pl.DataFrame([measured(name, n, seed) for name in NAMES for n in LENGTHS for seed in SEEDS])
FORCED = pl.DataFrame(
    {"normalizer": NAMES, "threshold": 0.5, "measured": [20.4, None], "nearest": [90.2, None], "spread": [1e65, None]}
)
MAPS = AttentionMaps(
    NAMES, LENGTHS, 7, np.linspace(0, 1, 2 * 3 * 4 * 16).reshape(2, 3, 4, 16), np.linspace(1, 0, 192).reshape(3, 4, 16)
)


def test_each_panel_draws_its_quantity_with_the_bounds_of_softmax_alone():
    entropy, weight, rank, beta = dispersion.dispersion_chart(FRAME, FORCED).to_dict()["vconcat"]
    for panel, value in ((entropy, np.log(16) / 2), (weight, 0.51), (rank, 1.16)):
        drawn = [point for point in panel["layer"][2]["data"]["values"] if point["normalizer"] == "softmax"]
        assert drawn[0]["value"] == pytest.approx(value, rel=1e-5)
    assert {record["normalizer"] for record in weight["layer"][0]["data"]["values"]} == {
        "softmax at most, by the whole spread",
        "softmax at most, by the nearest logits",
        "softmax at least",
    }
    assert [record["value"] for record in rank["layer"][0]["data"]["values"]] == [8.5, 128.5, 8192.5]
    assert [(record["n"], record["value"]) for record in beta["layer"][0]["data"]["values"]] == [
        (16, 0.16),
        (256, 2.56),
    ]
    assert {record["normalizer"] for record in beta["layer"][2]["data"]["values"]} == {"softmax"}
    hardmax = dispersion.dispersion_chart(FRAME.filter(normalizer="hardmax"), FORCED)
    assert len(hardmax.to_dict()["vconcat"]) == 3
    assert "softmax" not in {record.get("normalizer") for record in values_of(hardmax)}


@pytest.mark.full
def test_no_two_bounds_have_one_stroke_nor_any_that_of_published_rows():
    weight = dispersion.dispersion_chart(FRAME, FORCED).to_dict()["vconcat"][1]
    scale = weight["layer"][0]["encoding"]["strokeDash"]["scale"]
    strokes = {name: tuple(stroke) for name, stroke in zip(scale["domain"], scale["range"])}
    assert strokes["softmax"] == strokes["hardmax"] == (1, 0)
    of_bounds = [strokes[name] for name in dispersion.BOUNDS["max_weight"]]
    assert len(set(of_bounds)) == 3
    assert tuple(charts.DASHES) not in of_bounds
    # In a legend, where there is no room for names at the ends, colours and strokes are one.
    narrow = json.dumps(charts.with_legends(weight))
    assert narrow.count('"legend": null') == 0


@pytest.mark.full
def test_a_length_beyond_the_chart_is_not_marked():
    far = FORCED.with_columns(measured=None, nearest=1e5)
    assert not any("forced" in str(record) for record in values_of(dispersion.dispersion_chart(FRAME, far)))


@pytest.mark.full
def test_the_table_of_the_maps_holds_what_is_drawn():
    frame = dispersion.attention_map_frame(MAPS)
    assert len(frame) == MAPS.weights.size
    last = {"normalizer": "hardmax", "n": 16384, "seed": 7, "set": 4, "item": 16, "rho": 0.0, "weight": 1.0}
    assert frame.row(-1, named=True) == last
