import jax
import numpy as np
import pytest

from softmax_jax.experiment.measures.ceiling import accuracy_of_ties
from softmax_jax.experiment.report.accuracy import ACCURACY


@pytest.mark.parametrize(("bits", "items"), [(2, 3), (8, 16), (8, 256), (5, 1000), (8, 4096)])
def test_the_accuracy_of_ties_is_what_drawing_them_gives(bits: int, items: int):
    sets, random = 4000, np.random.default_rng(0)
    priorities = random.random((sets, items), np.float32)
    classes = random.integers(0, 10, (sets, items), np.int32)
    rounded = np.asarray(jax.lax.reduce_precision(priorities, 8, bits - 1))
    ties = rounded == rounded.max(-1, keepdims=True)
    chosen = np.argmax(ties * random.random((sets, items), np.float32), -1, keepdims=True)
    true = priorities.argmax(-1, keepdims=True)
    right = np.take_along_axis(classes, chosen, -1) == np.take_along_axis(classes, true, -1)
    share = accuracy_of_ties(bits, items) / 100
    assert abs(right.mean() - share) < 4 * np.sqrt(share * (1 - share) / sets)


def test_with_as_many_bits_as_bfloat16_it_is_nearest_to_the_published_row():
    lengths, published = zip(*ACCURACY["adaptive"].items())
    squares = {
        bits: np.mean(np.subtract([accuracy_of_ties(bits, items) for items in lengths], published) ** 2)
        for bits in (7, 8, 9)
    }
    assert [round(squares[bits], 1) for bits in (7, 8, 9)] == [95.7, 0.8, 96.6]
