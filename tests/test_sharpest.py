import jax
import numpy as np
import pytest

from softmax_jax import sharpest, training
from softmax_jax.config import Config
from softmax_jax.evaluation import evaluate
from softmax_jax.normalizers.registry import normalizer

NAMES = ("softmax", "temperature(0.25)", "hardmax")
SETS = 256


@pytest.fixture(scope="module")
def parameters():
    config = Config(seeds=2, sets=32, width=16, learning_rate=1e-2)
    state, _ = training.chunk_trainer(config)(training.initial_state(config), 0, 100)
    return jax.device_get(state.parameters)


@pytest.fixture(scope="module")
def found(parameters):
    named = {name: normalizer(name) for name in NAMES}
    return sharpest.compare(parameters, named, seeds=(0, 1), items=8, sets=SETS)


def test_accuracies_are_those_of_an_evaluation_of_the_same_sets(parameters, found):
    named = {name: normalizer(name) for name in NAMES}
    key = jax.random.key(sharpest.CHOICE_KEY)
    (rows,) = evaluate(parameters, named, seeds=(0, 1), lengths=(8,), sets=SETS, key=key)
    for one in found:
        assert np.isclose(one.accuracy, np.mean([row.accuracy for row in rows if row.normalizer == one.name]))
    assert len({one.accuracy for one in found}) > 1


def test_sets_lost_and_gained_explain_the_accuracies(found):
    best = max(one.accuracy for one in found)
    assert any(one.lost for one in found)
    for one in found:
        assert np.isclose(best - one.accuracy, 100 * (one.lost - one.gained) / (2 * SETS))


@pytest.mark.parametrize(
    ("lost", "gained", "p"),
    [(0, 0, 1.0), (1, 0, 0.5), (5, 0, 2**-5), (3, 3, 42 / 64)],
)
def test_the_test_is_exact(lost, gained, p):
    alone = np.array([[0, lost], [gained, 0]])
    assert sharpest.beside(alone, best=0, place=1) == (lost, gained, pytest.approx(p))
    assert sharpest.beside(alone, best=0, place=0) == (0, 0, 1.0)


def test_the_choice_is_the_sharpest_that_is_not_worse():
    def made(*ps):
        return [sharpest.Candidate(name, 99.0, 0, 0, p) for name, p in zip("abcd", ps)]

    assert sharpest.sharpest(made(0.01, 1.0, 0.2, 0.04)) == "c"
    assert sharpest.sharpest(made(1.0, 0.001, 0.001, 0.001)) == "a"
    assert sharpest.sharpest(made(1.0, 0.001, 0.001, 0.05)) == "d"
