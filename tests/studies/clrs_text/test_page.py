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


def test_base_models_that_lack_a_regime_do_not_count():
    part = answers().filter((pl.col("seed") < 2) | (pl.col("regime") != "constant"))
    assert set(page.contrasts(part)["models"]) == {2}


def test_a_directory_without_answers_is_named(tmp_path):
    with pytest.raises(Refusal, match=r"answers\.csv cannot be read: No such file or directory"):
        page.write(page.Arguments(data=tmp_path))
