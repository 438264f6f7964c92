from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.measures.ceiling import expected_ceiling
from softmax_jax.experiment.measures.sets import set_keys
from softmax_jax.experiment.measures.summary import summarize
from softmax_jax.experiment.report.accuracy import ACCURACY
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.rounded_products import BITS, PRECISIONS
from studies.ceilings import ceilings
from studies.precision import compare, read_recipes, ties

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


def test_a_directory_without_recipes_of_precision_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"--recipes is .*: it must hold what studies.ablation --groups precision"):
        read_recipes(tmp_path)


DATA = Path(__file__).parents[2] / "docs" / "data" / "precision_study"


@pytest.fixture(scope="module")
def kept():
    """What the page is made from."""
    return {path.stem: pl.read_csv(path) for path in DATA.glob("*.csv")}


def test_the_ceiling_of_drawn_sets_is_the_expected_one(kept):
    of_seeds = pl.concat([kept["ceilings"].drop("run"), kept["recipe_ceilings"]])
    for (precision, n), drawn in of_seeds.filter(pl.col("precision").is_in(list(BITS))).group_by("precision", "n"):
        # A set's chance to be guessed has at most this deviation, as it lies between 0 and 1.
        deviation = 50 / (512 * drawn.height) ** 0.5
        assert abs(drawn["ceiling"].mean() - expected_ceiling(str(precision), int(n))) < 4 * deviation


@pytest.mark.full
def test_nothing_answers_more_than_its_ceiling_beyond_chance(kept):
    of_paper = kept["accuracy"].join(kept["ceilings"], on=["n", "seed"])
    read_recipes = kept["recipes"].join(kept["recipe_ceilings"], on=["precision", "n", "seed"])
    for both in (of_paper, read_recipes):
        # Some thousand cells, of which one may lie four and a half deviations beyond.
        assert (both["accuracy"] - both["ceiling"] <= 4.5 * both["deviation"] + 1e-3).all()


@pytest.mark.full
def test_errors_at_short_lengths_are_ties(kept):
    softmax = kept["accuracy"].filter(normalizer="softmax").group_by("n").agg(pl.mean("wrong_untied", "accuracy"))
    for n, wrong_untied, accuracy in softmax.rows():
        assert wrong_untied < 0.1 * (100 - accuracy), n


@pytest.mark.full
def test_both_published_rows_are_met_as_fixed_before(kept):
    summary = summarize(kept["accuracy"].filter(run="paper").drop("run"))
    cells = {name: compare(summary.filter(normalizer=name), row) for name, row in ACCURACY.items()}
    assert sum(cell.agrees for row in cells.values() for cell in row) >= 20
    for row in cells.values():
        assert np.mean([cell.difference**2 for cell in row]) < 2
