import re
import subprocess
import sys

import pytest

from softmax_jax.studies.ablation import SOFT_TO_SHARP
from softmax_jax.studies.sharpest import sharpest


@pytest.mark.parametrize(
    ("accuracies", "tolerance", "choice"),
    [
        ((99.0, 99.9, 99.85, 99.7), 0.1, "c"),
        ((99.9, 99.85, 99.9, 99.85), 0.0, "c"),
        ((50.0, 50.0, 50.0, 50.0), 0.0, "d"),
    ],
)
def test_the_choice_is_the_sharpest_within_the_tolerance_of_the_best(accuracies, tolerance, choice):
    assert sharpest(dict(zip("abcd", accuracies)), tolerance) == choice


def test_temperatures_are_in_order_from_soft_to_sharp():
    thetas = [float(found.group(1)) for name in SOFT_TO_SHARP if (found := re.search(r"\((.*)\)", name))]
    assert thetas == sorted(thetas, reverse=True)
    assert (SOFT_TO_SHARP[0], SOFT_TO_SHARP[-1]) == ("softmax", "hardmax")


@pytest.mark.slow
def test_the_command_names_its_choice():
    ran = subprocess.run(
        [sys.executable, "-m", "softmax_jax.studies.sharpest", "--sets", "512"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"16 items, 5,120 sets; the sharpest within 0.1 points of the best: \S+", ran.stdout)
    assert "hardmax" in ran.stdout
    assert "below the best" in ran.stdout
