"""The pictures of the documentation are those that their data give."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from docs.pictures import DOCS, PICTURES, of_normalizer
from softmax_jax.experiment.report.chart_files import STYLE, drawn_from, fingerprint, specification, svg
from softmax_jax.experiment.report.charts import BY_NORMALIZER, palette
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
