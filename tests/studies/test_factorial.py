import numpy as np
import pytest

from studies.common import SOFT_TO_SHARP, best_of_others
from studies.factorial import SHARES, split


def outcomes(softmax: list[int], sharp: list[int]) -> np.ndarray:
    """Two seeds alike: right under softmax, and right at the temperature of place 3, on each set."""
    right = np.zeros((2, len(softmax), len(SOFT_TO_SHARP)), bool)
    right[..., 0], right[..., 3] = softmax, sharp
    return right


def test_the_temperature_of_a_seed_is_the_best_of_the_others():
    right = np.zeros((3, 4, len(SOFT_TO_SHARP)), bool)
    right[0, :, 2] = True
    right[1:, :3, 5] = True
    assert best_of_others(right.mean(1)).tolist() == [5, 2, 2]


def test_each_set_has_one_share():
    # One set of each kind: right, mended by exact products, by sharpness, by either, by both together, by nothing.
    rounded = outcomes([1, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0])
    exact = outcomes([1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 1, 0])
    shares = split(rounded, exact)
    assert list(shares) == list(SHARES)
    assert np.allclose(list(shares.values()), 100 / 6)


@pytest.mark.parametrize("seed", range(3))
def test_shares_add_up(seed: int):
    random = np.random.default_rng(seed)
    rounded, exact = (random.random((4, 50, len(SOFT_TO_SHARP))) < 0.5 for _ in range(2))
    assert np.allclose(sum(split(rounded, exact).values()), 100)
