import numpy as np
import polars as pl
import pytest

from docs.pictures import causes_chart
from softmax_jax.measures.dispersion import Resolution
from softmax_jax.report import dispersion
from softmax_jax.report.charts import BY_CAUSE
from tests.report.charts import values_of

NAMES, LENGTHS, SEEDS = ("softmax", "hardmax"), (16, 256, 16384), (0, 1, 2)
GAPS = pl.DataFrame(
    [
        {"normalizer": name, "n": n, "seed": seed, "gap_low": 10.0**-power, "gap_high": 10.0**-power * 3}
        | {"sets": sets, "missed": 10.0 * power, "wrong": 12.0 * power}
        for name in NAMES
        for n in LENGTHS
        for seed in SEEDS
        for power, sets in ((2, 50), (3, 10), (4, 9))
    ]
)
LOSSES = pl.DataFrame(
    [
        {"normalizer": name, "n": n, "seed": seed, "value": 1.0 + seed, "key": 20.0, "dispersion": lost}
        for name, lost in zip(NAMES, (19.0, -0.5))
        for n in LENGTHS
        for seed in SEEDS
    ]
)
ACCURACIES = pl.DataFrame(
    [
        {"normalizer": name, "n": n, "seed": seed, "accuracy": reached + seed - 1}
        for name, of_lengths in (("softmax", (90.0, 60.0)), ("hardmax", (95.0, 80.0)))
        for n, reached in zip((16, 64), of_lengths)
        for seed in SEEDS
    ]
)
RESOLUTION = Resolution(
    np.linspace(0, 1, 3),
    np.arange(60.0).reshape(2, 10, 3),
    np.linspace(0.998, 1, 3),
    np.arange(60.0).reshape(2, 10, 3),
    np.array([200.0, 100.0]),
    np.array([0.04, 0.06]),
    np.zeros((2, 10)),
)


@pytest.mark.full
def test_bins_of_few_sets_are_not_drawn():
    drawn = {
        record["gap_low"] for record in values_of(dispersion.gap_chart(GAPS, RESOLUTION, NAMES)) if "gap_low" in record
    }
    assert drawn == {0.01, 0.001}  # of three seeds: 30 sets are enough, 27 are not


@pytest.mark.full
def test_each_panel_marks_what_can_be_told_apart():
    missed, wrong = dispersion.gap_chart(GAPS, RESOLUTION, NAMES[:1]).to_dict()["hconcat"]
    assert missed["layer"][-1]["data"]["values"] == [{"gap": pytest.approx((0.04 / 200 + 0.06 / 100) / 2)}]
    assert wrong["layer"][-1]["data"]["values"] == [{"gap": pytest.approx((1 / 200 + 1 / 100) / 2)}]


def test_a_normalizer_better_than_hardmax_loses_nothing():
    records = [
        record for record in values_of(dispersion.loss_split_chart(LOSSES)) if record.get("normalizer") == "hardmax"
    ]
    assert {record["cause"]: record["lost"] for record in records} == {
        "dispersion: weight spread over other items": 0,
        "key: another item has the largest logit": 20,
        "value: the true item's value is misread": 2,
    }


@pytest.mark.full
def test_each_cause_of_a_loss_has_its_own_colour_wherever_it_is_drawn():
    split = dispersion.loss_split_chart(LOSSES).to_dict()["spec"]
    (causes, _) = causes_chart(ACCURACIES, ["softmax"], "A title").to_dict()["layer"]
    for chart in (split, causes):
        scale = chart["encoding"]["color"]["scale"]
        of_cause = {name.split(":")[0].split()[-1]: colour for name, colour in zip(scale["domain"], scale["range"])}
        assert of_cause == {cause: BY_CAUSE[cause] for cause in of_cause}
        assert {"dispersion", "key"} <= of_cause.keys()


def test_what_softmax_loses_beyond_hardmax_is_lost_to_dispersion_and_the_rest_to_the_key():
    values = values_of(causes_chart(ACCURACIES, ["softmax"], "A title"))
    areas = {(row["cause"], row["n"]): (row["low"], row["high"]) for row in values if "cause" in row}
    dispersion = "to dispersion: the weight is spread over other items"
    key = "to the key: another item has the largest logit"
    assert areas == {(dispersion, 16): (90, 95), (dispersion, 64): (60, 80), (key, 16): (95, 100), (key, 64): (80, 100)}


@pytest.mark.full
def test_the_table_of_the_logits_holds_what_is_drawn():
    frame = dispersion.resolution_frame(RESOLUTION, (3, 4))
    assert len(frame) == 120
    assert frame.row(-1, named=True) == {"range": "near", "seed": 4, "class": 9, "rho": 1.0, "logit": 59.0}


@pytest.mark.full
@pytest.mark.parametrize("width", [0.002, 4e-5])
def test_the_axis_near_the_top_has_digits_enough_to_tell_its_ends_apart(width):
    near = RESOLUTION._replace(near_rho=np.linspace(1 - width, 1, 3))
    axis = dispersion.resolution_chart(near, (3, 4)).to_dict()["hconcat"][1]["encoding"]["x"]["axis"]
    first, last = (format(rho, axis["format"]) for rho in near.near_rho[[0, -1]])
    assert float(last) - float(first) == pytest.approx(width, rel=0.2)
