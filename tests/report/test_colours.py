"""The colours of all charts: seen on white and on dark, and told apart with each kind of sight."""

import itertools

import numpy as np
import pytest

from softmax_jax.report import charts as colours
from tests.tiers import full_except

WHITE, SLATE = "#ffffff", "#1e2129"
"""Of pages of the documentation by day and by night."""
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""What linear RGB looks like: Machado, Oliveira and Fernandes, 2009, at full severity."""
TO_LMS = [
    [0.41222147, 0.53633254, 0.05144599],
    [0.2119035, 0.68069955, 0.10739696],
    [0.08830246, 0.28171884, 0.6299787],
]
TO_LAB = [
    [0.21045426, 0.79361779, -0.00407205],
    [1.9779985, -2.42859221, 0.45059371],
    [0.0259040, 0.78277177, -0.80867577],
]
"""Oklab: Ottosson, 2020."""
NINE = list(colours.BY_NORMALIZER.values())


def linear(colour):
    parts = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def seen(colour, sight):
    lms = np.cbrt(np.array(TO_LMS) @ np.clip(np.array(SIGHTS[sight]) @ linear(colour), 0, 1))
    return np.array(TO_LAB) @ lms


@pytest.mark.full
@pytest.mark.parametrize("page", [WHITE, SLATE])
def test_every_line_stands_out_on_light_and_dark_pages(page):
    assert min(contrast(colour, page) for colour in (*NINE, colours.GREY)) >= 3


@pytest.mark.parametrize(
    ("sight", "least"), full_except([("normal", 0.15), *((sight, 0.075) for sight in list(SIGHTS)[1:])], "normal")
)
def test_no_two_of_nine_look_alike(sight, least):
    pairs = itertools.combinations([seen(colour, sight) for colour in NINE], 2)
    assert min(float(np.linalg.norm(one - other)) for one, other in pairs) >= least


@pytest.mark.full
@pytest.mark.parametrize("sight", SIGHTS)
def test_causes_and_sizes_can_be_told_apart(sight):
    for some in (colours.BY_CAUSE.values(), colours.by_size("12345").values()):
        pairs = itertools.combinations([seen(colour, sight) for colour in some], 2)
        assert min(float(np.linalg.norm(one - other)) for one, other in pairs) >= 0.045


def test_a_normalizer_has_one_colour_whatever_stands_beside_it():
    alone, among = colours.palette(["ssmax"]), colours.palette(["mine", "hardmax", "ssmax(s=0.24)", "softmax"])
    assert alone["ssmax"] == among["ssmax(s=0.24)"] == colours.BY_NORMALIZER["ssmax"]
    assert len(set(among.values())) == 4


@pytest.mark.full
def test_others_get_the_colours_left_over_in_turn():
    names = [f"mine_{index}" for index in range(12)]
    given = colours.palette(["softmax", *names])
    left = [colour for colour in NINE if colour != given["softmax"]]
    assert [given[name] for name in names] == [*left, *left[:4]]


@pytest.mark.full
def test_rows_of_one_normalizer_share_no_colour_unless_one_is_published():
    given = colours.palette(["temperature(0.5)", "temperature(0.25)", "adaptive, published"])
    assert given["temperature(0.5)"] == colours.BY_NORMALIZER["temperature"] != given["temperature(0.25)"]
    assert given["adaptive, published"] == colours.BY_NORMALIZER["adaptive"]


@pytest.mark.full
def test_sizes_go_from_light_to_dark():
    luminances = [float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in colours.by_size("123456").values()]
    assert luminances == sorted(luminances, reverse=True)
