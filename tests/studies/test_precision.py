from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.measures.ceiling import expected_ceiling
from softmax_jax.experiment.measures.sets import set_keys
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.rounded_products import BITS, PRECISIONS
from studies.ceilings import ceilings
from studies.precision import equivalent, models_of_all_runs, ties

ROUNDED = {"bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


@pytest.mark.full
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_ties_are_what_counting_finds_in_the_sets_that_an_evaluation_draws(precision):
    task, seeds, n, sets = MaxRetrieval(), (0, 3), 64, 48
    found = ties(task, precision, seeds=seeds, n=n, sets=sets)
    items = jax.vmap(lambda key: task.test_batch(key, n, 1).items[0])(set_keys(seeds, n, sets).ravel())
    rho, kappa = np.asarray(items[..., 0]).astype(ROUNDED[precision]), np.asarray(items[..., 1:]).argmax(-1)
    for of_set, chance, tied in zip(zip(rho, kappa), found.chance.ravel(), found.tied.ravel()):
        classes = of_set[1][of_set[0] == of_set[0].max()]
        assert chance == np.float32(np.bincount(classes).max()) / np.float32(len(classes))
        assert tied == (len(classes) > 1)


@pytest.mark.full
def test_the_ceiling_falls_with_length_and_with_spacing():
    found = ceilings(MaxRetrieval(), PRECISIONS, seeds=(0, 1), lengths=(16, 256), sets=128)
    mean = {(precision, n): value for precision, n, value in found.group_by("precision", "n").agg("ceiling").rows()}
    short, long = ([np.mean(mean[precision, n]) for precision in PRECISIONS] for n in (16, 256))
    assert sorted(short) == [short[3], short[1], short[2], short[0]]
    assert all(np.less_equal(long, short))
    assert short[0] == 100
    assert abs(short[1] - 98.6) < 3  # by an independent count over many sets; five deviations of 256


DATA = Path(__file__).parents[2] / "docs" / "data" / "precision_study"


def kept(name: str) -> Any:
    return pl.read_csv(DATA / f"{name}.csv")


def test_the_ceiling_of_drawn_sets_is_the_expected_one():
    of_seeds = pl.concat([kept("ceilings").drop("run"), kept("recipe_ceilings")])
    for (precision, n), drawn in of_seeds.filter(pl.col("precision").is_in(list(BITS))).group_by("precision", "n"):
        # A set's chance to be guessed has at most this deviation, as it lies between 0 and 1.
        deviation = 50 / (512 * drawn.height) ** 0.5
        assert abs(drawn["ceiling"].mean() - expected_ceiling(str(precision), int(n))) < 4 * deviation


def test_a_cell_is_equivalent_only_if_its_interval_lies_within_the_margin():
    near, wide = np.array([50.9, 51.0, 51.1]), np.array([48.0, 51.0, 54.0])
    assert equivalent(near, 50.0)
    assert not equivalent(wide, 50.0)
    assert not equivalent(near, 48.0)


def test_models_of_all_runs_are_rows_in_the_order_of_runs_and_seeds():
    accuracy = kept("accuracy")
    lengths, models = models_of_all_runs(accuracy.sort("accuracy"))
    assert models["softmax"].shape == (20, len(lengths))
    first = accuracy.filter(run="paper", normalizer="softmax", seed=3).sort("n")["accuracy"]
    assert models["softmax"][3].tolist() == first.to_list()
