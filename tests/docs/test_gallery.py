"""The pictures of the normalizers."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.report import gallery
from softmax_jax.report.colours import BY_NORMALIZER, palette
from softmax_jax.report.drawing import STYLE, drawn_from, svg

PICTURES = Path(__file__).parents[2] / "docs" / "images" / "normalizers"
NAMES = ("ssmax", "signed_l1")
OWN = palette(["softmax", "signed_l1"])["signed_l1"]


@pytest.fixture(scope="module")
def drawn():
    return {name: svg(picture) for name, picture in gallery.pictures(NAMES).items()}


def test_there_is_a_picture_of_every_method():
    assert {path.name for path in PICTURES.iterdir()} == {f"{name}.svg" for name in sj.METHODS}


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_the_picture_of_the_documentation_is_current(name, drawn):
    kept = (PICTURES / f"{name}.svg").read_text()
    assert drawn_from(kept) == drawn_from(drawn[name]) is not None


@pytest.mark.full
def test_a_picture_has_ten_bars_as_high_as_the_weights(drawn):
    """130 pixels of the picture are a weight of 1.1."""
    bars = re.findall(rf'd="M[\d.]+,[-\d.]+h[\d.]+v([-\d.]+)h-[\d.]+Z" fill="{OWN}"', drawn["signed_l1"])
    weights = np.asarray(sj.normalizer("signed_l1")(jnp.asarray(gallery.SCORES, jnp.float32)))
    np.testing.assert_allclose(sorted(map(float, bars)), sorted(np.abs(weights) * 130 / 1.1), atol=0.02)


@pytest.mark.full
def test_a_picture_takes_its_colours_from_the_page(drawn):
    for picture in drawn.values():
        colours = set(re.findall(r'(?:fill|stroke)="(.*?)"', picture)) - {"none", "transparent"}
        assert {"currentColor", BY_NORMALIZER["softmax"]} < colours
        assert len(colours) == 3
        assert STYLE in picture
