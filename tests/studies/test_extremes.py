import math

import polars as pl
import pytest

from softmax_jax.experiment.tasks.max_retrieval import QUANTILES
from softmax_jax.experiment.training.config import changed
from studies import extremes
from studies.extremes import BETAS, COLUMNS, growth, half_weight, least_loss

LENGTHS = (256, 1024, 4096)


def frame_of(rows):
    return pl.DataFrame(rows, COLUMNS, orient="row")


def test_the_largest_weight_is_one_half_where_it_is_and_the_least_loss_lies_between_the_temperatures():
    gap = 0.3  # a row of two logits: the weight is 1/2 at β = 0 alone, of ten others at log(9)/gap
    weights = [1 / (1 + 9 * math.exp(-beta * gap)) for beta in BETAS]
    assert half_weight(BETAS, weights) == pytest.approx(math.log(9) / gap, rel=0.02)
    assert math.isnan(half_weight(BETAS, [0.1] * len(BETAS)))
    losses = [(math.log(beta) - 1.1) ** 2 for beta in BETAS]
    assert least_loss(BETAS, losses) == pytest.approx(math.exp(1.1), rel=1e-9)
    assert math.isnan(least_loss(BETAS, [float(index) for index in range(len(BETAS))]))


@pytest.mark.full
@pytest.mark.parametrize(
    ("priority", "power"), [("uniform", 1.0), ("beta_2", 0.5), ("beta_4", 0.25), ("exponential", 0)]
)
def test_a_perfect_key_needs_the_growth_that_extreme_values_say(priority, power):
    rows = extremes.measure_perfect_key(priority, LENGTHS, 200)
    (found,) = growth(frame_of(rows), "half", 256)["power"]
    assert found == pytest.approx(power, abs=0.06)


@pytest.mark.full
def test_a_needle_needs_the_logarithm():
    rows = extremes.measure_perfect_key("needle", LENGTHS, 20)
    # The others are uniform below 1: their terms sum to n·exp(-β·lead)·(1 - exp(-β))/β.
    for _, _, n, beta, _ in rows:
        others = (n - 1) * math.exp(-beta * 0.2) * (1 - math.exp(-beta)) / beta
        assert others == pytest.approx(1, rel=0.15)


@pytest.mark.rare
def test_the_study_trains_measures_and_draws(tmp_path, monkeypatch, typed):
    config = extremes.Arguments.config
    shorter = {"steps": 8, "width": 8, "seeds": 2}
    monkeypatch.setattr(extremes, "QUANTILES", {"needle": QUANTILES["needle"]})
    monkeypatch.setattr(extremes.Arguments, "config", lambda asked, name: changed(config(asked, name), **shorter))
    sizes = ["--lengths", 16, 64, "--sets", 4]
    assert "wrote" in typed(extremes, *sizes, "--output", tmp_path, "--workdir", tmp_path / "runs")
    assert pl.read_csv(tmp_path / "betas.csv").shape == (6, 5)
    assert (tmp_path / "growth.png").is_file()
