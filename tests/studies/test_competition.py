import numpy as np
import pytest

from softmax_jax.experiment.training.run_directory import SHIPPED
from studies.competition import compared, key_accuracy
from tests.tiers import full_except

BIAS = np.random.default_rng(1).normal(size=10) * 1e-3


@pytest.mark.parametrize("spacing", [0.0, 2.0**-8, 2.0**-11])
@pytest.mark.parametrize("n", full_except([16, 256, 4096], 16))
def test_the_formula_is_what_a_drawn_competition_gives(n, spacing):
    gaps = np.random.default_rng(n).exponential(10 / n, (100_000, 10))
    rounded = spacing * np.round(gaps / spacing) if spacing else gaps
    drawn = 100 * np.mean((BIAS - rounded).argmax(1) == gaps.argmin(1))
    assert abs(key_accuracy(BIAS, n, spacing) - drawn) < 0.8  # five standard errors of the draws


@pytest.mark.full
def test_no_bias_loses_nothing_and_a_long_row_goes_to_the_class_of_the_largest():
    assert key_accuracy(np.zeros(10), 10**6) == 100
    assert np.isclose(key_accuracy(BIAS, 10**9), 10)
    assert np.isclose(key_accuracy(BIAS, 1024, 1e-7), key_accuracy(BIAS, 1024), atol=0.01)


@pytest.mark.full
def test_the_shipped_models_reach_as_far_as_their_biases_say():
    _, rows = compared(SHIPPED / "frontier", (1024,), 32)
    for n, predicted, measured, half in rows:
        assert half is not None
        assert abs(measured - predicted) < half + 0.5, n
