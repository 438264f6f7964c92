import numpy as np
import polars as pl
import pytest

from softmax_jax.refusal import Refusal
from studies.clrs_text import page
from studies.clrs_text.task import TEST_LENGTHS

ANSWERS = ["stage", "regime", "seed", "run", "algorithm", "n", "right", "sets"]
GAINS = {0: 5, 1: 10, 2: 15}


def answers(gains=GAINS):
    """Of base models that learn two algorithms, and gain answers to sorting when they are tuned under `adaptive`."""
    rows = []
    for seed, gain in gains.items():
        for algorithm in ("minimum", "insertion_sort", "kmp_matcher"):
            within = 20 if algorithm == "kmp_matcher" else 95
            for n in TEST_LENGTHS:
                right = within if n <= 31 else 40
                rows += [("swapped", name, seed, 0, algorithm, n, right - loss, 100) for name, loss in SWAPPED.items()]
                for regime in ("softmax", "ssmax", "constant", "sharp_constant", "adaptive"):
                    more = gain * (regime == "adaptive" and algorithm == "insertion_sort" and n > 31)
                    # The two runs of a base model differ by four sets.
                    rows += [("tuned", regime, seed, run, algorithm, n, right + more + 4 * run, 100) for run in (0, 1)]
    return pl.DataFrame(rows, ANSWERS, orient="row")


SWAPPED = {"softmax": 0, "adaptive": 12}


def test_a_base_model_is_one_sample_however_many_its_runs():
    found = page.contrasts(answers()).filter(
        regime="adaptive", against="softmax", algorithm="insertion_sort", lengths="40 to 64"
    )
    (row,) = found.to_dicts()
    assert row["models"] == 3
    assert row["mean"] == pytest.approx(10)
    assert row["high"] - row["mean"] == pytest.approx(4.3027 * 5 / np.sqrt(3), abs=1e-3)  # t of 2 degrees of freedom
    assert 3 < row["boot_low"] < 6  # of models that gain 5 to 15, in runs that differ by 4
    line = page.contrasts_table(page.contrasts(answers())).splitlines()[2]
    assert line.startswith("| adaptive temperature | softmax | +10.0 ± 12.4 |")


def test_gains_are_told_from_the_untuned_model():
    found = page.contrasts(answers())
    against = found.filter(against=page.UNTUNED, algorithm="insertion_sort", lengths="40 to 64")
    assert dict(against.select("regime", "mean").rows()) == {"softmax": 2, "adaptive": 12}


def test_algorithms_that_are_not_learned_take_no_part():
    assert set(page.contrasts(answers())["algorithm"]) == {"minimum", "insertion_sort"}
    losses = page.swapped_losses(answers())
    assert set(losses["algorithm"]) == {"minimum", "insertion_sort"}
    assert set(losses["gain"].round(6)) == {-12.0}


def test_base_models_that_lack_a_regime_do_not_count():
    part = answers().filter((pl.col("seed") < 2) | (pl.col("regime") != "constant"))
    assert set(page.contrasts(part)["models"]) == {2}


def test_the_bootstrap_is_of_base_models_and_runs():
    one, other = np.array([[10.0, 10.0], [20.0, 20.0]]), np.zeros((2, 2))
    assert page.bootstrap(one, other) == (10.0, 20.0)
    assert page.bootstrap(np.array([[0.0, 8.0]]), np.zeros((1, 2))) == (0.0, 8.0)


def test_a_directory_without_answers_is_named(tmp_path):
    with pytest.raises(Refusal, match=r"answers\.csv cannot be read: No such file or directory"):
        page.write(page.Arguments(data=tmp_path))
