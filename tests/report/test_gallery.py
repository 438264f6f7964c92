"""The pictures of the normalizers."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.report import gallery

PICTURES = Path(__file__).parents[2] / "docs" / "images" / "normalizers"
NAMES = ("ssmax", "signed_l1")
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


@pytest.fixture(scope="module")
def drawn():
    return gallery.pictures(NAMES)


def test_there_is_a_picture_of_every_method():
    assert {path.name for path in PICTURES.iterdir()} == {f"{name}.svg" for name in sj.METHODS}


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_of_the_documentation_is_current(name, drawn):
    """Up to half a pixel, which another machine may round otherwise."""
    kept = (PICTURES / f"{name}.svg").read_text()
    assert NUMBER.sub("#", kept) == NUMBER.sub("#", drawn[name])
    before, now = ([float(number) for number in NUMBER.findall(text)] for text in (kept, drawn[name]))
    np.testing.assert_allclose(now, before, atol=0.5)


def test_a_picture_has_ten_bars_as_high_as_the_weights(drawn):
    """130 pixels of the picture are a weight of 1.1."""
    bars = re.findall(r'd="M[\d.]+,[-\d.]+h[\d.]+v([-\d.]+)h-[\d.]+Z" fill="#4c78a8"', drawn["signed_l1"])
    weights = np.asarray(sj.normalizer("signed_l1")(jnp.asarray(gallery.SCORES, jnp.float32)))
    np.testing.assert_allclose(sorted(map(float, bars)), sorted(np.abs(weights) * 130 / 1.1), atol=0.02)


def test_a_picture_takes_its_colours_from_the_page(drawn):
    for picture in drawn.values():
        colours = set(re.findall(r'(?:fill|stroke)="(.*?)"', picture)) - {"none", "transparent"}
        assert colours == {"currentColor", gallery.OWN}
        assert gallery.STYLE in picture
