import itertools

import numpy as np
import pytest

from softmax_jax.studies import scaling_law
from softmax_jax.studies.scaling_law import Point

NUMBERS = (np.log(3e-5), 0.7, 0.4)
GRID = tuple(itertools.product((1e11, 1e12, 1e13), (32, 128), (1024, 16384), (0, 1, 2)))


def points(noise: float = 0.0, seed: int = 1):
    random = np.random.default_rng(seed)
    return [Point(*at, float(scaling_law.accuracy(NUMBERS, *at[:3])) + noise * random.standard_normal()) for at in GRID]


def test_a_law_is_found_again_from_its_own_points():
    law = scaling_law.fit(points(), draws=5)
    assert np.allclose(law.numbers, NUMBERS, rtol=1e-4)
    said, low, high = law.predict(1e13, 64, 4096)
    assert np.isclose(said, scaling_law.accuracy(NUMBERS, 1e13, 64, 4096), rtol=1e-4)
    assert low <= said + 1e-6
    assert high >= said - 1e-6


def test_noise_widens_the_intervals():
    quiet, loud = (scaling_law.fit(points(noise), draws=60).interval() for noise in (0.1, 3.0))
    assert (np.diff(loud) > 5 * np.diff(quiet)).all()


def test_most_intervals_hold_the_truth():
    intervals = np.stack([scaling_law.fit(points(2.0, seed), draws=40).interval() for seed in range(12)])
    held = (intervals[..., 0] < NUMBERS) & (intervals[..., 1] > NUMBERS)
    assert held.mean() > 0.75


def test_accuracy_falls_from_all_to_chance():
    accuracy = scaling_law.accuracy(NUMBERS, 1e12, 128, np.array([0, 1e3, 1e13]))
    assert accuracy[0] == 100
    assert 10 < accuracy[1] < 100
    assert np.isclose(accuracy[2], 10)


def test_dependent_points_are_refused():
    with pytest.raises(ValueError, match="independently"):
        scaling_law.fit([Point(1e12, width, 64, 0, 50.0) for width in (32, 64, 128, 256)])
    with pytest.raises(ValueError, match="independently"):
        scaling_law.fit([point._replace(width=point.compute**0.5) for point in points()])
