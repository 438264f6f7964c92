"""The pictures of the documentation are those that their data give."""

import json
import re

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

import softmax_jax as sj
from docs.pictures import DOCS, PICTURES, causes_chart, of_normalizer
from softmax_jax.experiment.report.chart_files import STYLE, drawn_from, fingerprint, specification, svg
from softmax_jax.experiment.report.charts import BY_CAUSE, BY_NORMALIZER, palette
from softmax_jax.experiment.report.shootout import SCORES
from tests.tiers import full_except

IMAGES = DOCS / "images"
CURRENT = [
    name for name in PICTURES if name.split("/")[-1] not in sj.METHODS or name.endswith(("/ssmax", "/signed_l1"))
]


def test_there_is_a_picture_of_each_name_and_no_other():
    assert {str(path.relative_to(IMAGES))[: -len(".svg")] for path in IMAGES.rglob("*.svg")} == set(PICTURES)
    assert {name.split("/")[1] for name in PICTURES if name.startswith("normalizers/")} == set(sj.METHODS)


@pytest.mark.parametrize("name", full_except(CURRENT, "extremes"))
def test_a_picture_is_drawn_from_what_the_code_makes_of_the_data(name):
    kept = drawn_from((IMAGES / f"{name}.svg").read_text())
    assert kept == fingerprint(specification(PICTURES[name]())), f"run python -m docs.pictures {name}"


@pytest.mark.full
def test_a_picture_of_a_normalizer_has_ten_bars_as_high_as_the_weights_in_colours_of_the_page():
    """90 pixels of the picture are a weight of 1.1."""
    picture, fill = svg(specification(of_normalizer("signed_l1"))), palette(["softmax", "signed_l1"])["signed_l1"]
    bars = re.findall(rf'd="M[\d.]+,[-\d.]+h[\d.]+v([-\d.]+)h-[\d.]+Z" fill="{fill}"', picture)
    weights = np.asarray(sj.normalizer("signed_l1")(jnp.asarray(SCORES, jnp.float32)))
    np.testing.assert_allclose(sorted(map(float, bars)), sorted(np.abs(weights) * 90 / 1.1), atol=0.02)
    colours = set(re.findall(r'(?:fill|stroke)="(.*?)"', picture)) - {"none", "transparent"}
    assert {"currentColor", BY_NORMALIZER["softmax"]} < colours
    assert len(colours) == 3
    assert STYLE in picture


def test_what_softmax_loses_beyond_hardmax_is_lost_to_dispersion_and_the_rest_to_the_key():
    rows = [("softmax", 16, 90.0), ("softmax", 64, 60.0), ("hardmax", 16, 95.0), ("hardmax", 64, 80.0)]
    frame = pl.DataFrame([(*row, 0) for row in rows], ["normalizer", "n", "accuracy", "seed"], orient="row")
    chart = causes_chart(frame, ["softmax"], at=64).to_dict()
    dispersion, key, *_ = chart["layer"]
    (rows,) = {json.dumps(area["data"]["values"]) for area in (dispersion, key)}
    assert [(row["n"], row["softmax"], row["hardmax"], row["all"]) for row in json.loads(rows)] == [
        (16, 90, 95, 100),
        (64, 60, 80, 100),
    ]
    for area, cause, *ends in ((dispersion, "dispersion", "softmax", "hardmax"), (key, "key", "hardmax", "all")):
        assert [area["encoding"][channel]["field"] for channel in ("y", "y2")] == ends
        assert area["mark"]["color"] == BY_CAUSE[cause]
    assert key["mark"]["opacity"] > 2 * dispersion["mark"]["opacity"]  # told apart in grey
    assert chart["title"]["text"] == "Dispersion costs softmax 20.0 points at 64 items, the key 20.0"
