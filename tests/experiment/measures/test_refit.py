from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.measures import refit
from softmax_jax.experiment.measures.evaluation import evaluate
from softmax_jax.experiment.measures.one_set import HeadRows
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.retrieval import Sort
from softmax_jax.experiment.training.run import build_model
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.temperature import LOG_THETA, Rows, checkpoint_sha256, target_beta
from tests.library.test_temperature import rows_alike

SEEDS = (4, 5)
KEYS = [jax.random.key(1), jax.random.key(2)]
ONE = int(np.abs(LOG_THETA).argmin())


@pytest.fixture(scope="module")
def parameters():
    _, initialize = build_model(MaxRetrieval(width=8))
    # Larger than at the start of training, so that entropies differ.
    return jax.tree.map(lambda leaf: 3 * leaf, jax.vmap(initialize)(jax.random.split(jax.random.key(0), len(SEEDS))))


def search(parameters, task=None):
    """(length, rows of the first key, rows of the second)."""
    searched = refit.search_lengths(parameters, seeds=SEEDS, lengths=(5, 20), sets=2, keys=KEYS, task=task)
    return [(n, *rows) for n, rows in zip((5, 20), searched)]


@pytest.fixture(scope="module")
def found(parameters):
    return search(parameters)


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(None, id="float32", marks=pytest.mark.full),
        pytest.param(MaxRetrieval(width=8, matmul="bfloat16"), id="bfloat16", marks=pytest.mark.rare),
    ],
)
def test_rows_at_temperature_one_are_those_of_the_evaluation(parameters, task):
    for n, rows, fresh in search(parameters, task):
        assert not np.allclose(rows.entropy, fresh.entropy)  # another key, other sets
        assert rows.losses.shape == (2, refit.sets_of(MaxRetrieval(), n, 2), len(LOG_THETA))
        (measured,) = evaluate(
            parameters,
            {"softmax": normalizer("softmax")},
            seeds=SEEDS,
            lengths=(n,),
            sets=refit.sets_of(MaxRetrieval(), n, 2),
            key=KEYS[0],
            task=task,
        )
        for index, row in enumerate(measured.frame().to_dicts()):
            np.testing.assert_allclose(rows.losses[index, :, ONE].mean(), row["loss"], rtol=1e-4)
            np.testing.assert_allclose(100 - 100 * rows.errors[index, :, ONE].mean(), row["accuracy"], atol=1e-3)
            np.testing.assert_allclose(rows.entropy[index].mean(), row["entropy"], rtol=1e-4)


class Loud(MaxRetrieval):
    """A task whose largest priority lies behind the mask."""

    def priorities(self, batch):
        return jnp.array([[1.0, 2.0, 0.5, 9.0]])


def test_the_true_item_is_the_largest_that_is_visible():
    logits, where = jnp.array([[1.0, 2.2, 3.0, 0.0]]), jnp.array([[True, True, True, False]])
    rows = HeadRows(logits, where, logits)
    expected = target_beta(logits, jnp.array([1]), where=where)
    assert np.isfinite(expected).all()
    assert np.array_equal(refit.beta_of_true_item(Loud(), None, rows), expected)


def test_a_constant_is_chosen_for_what_it_is_measured_by():
    """Of two temperatures one has the least loss, and one far off the fewest errors, on rows to choose by."""
    grid = np.arange(len(LOG_THETA))
    chosen_on = rows_alike((grid - 10.0) ** 2, np.abs(grid - 40) > 3)
    fresh = rows_alike(grid * 1.0, np.where(grid < 25, 1.0, 0.25))
    found = refit.oracles(8, {"constant": chosen_on}, fresh, (7,)).rows()
    assert found == [("constant", 8, 7, 75, 10), (refit.BEST_FOR_SET, 8, 7, 75, 0)]


def test_a_constant_is_chosen_by_smoothed_errors_not_where_few_sets_have_none_by_chance():
    grid = np.arange(len(LOG_THETA))
    lone, valley = grid == 10, np.abs(grid - 40) < 5
    chosen_on = rows_alike(grid * 1.0, np.select([lone, valley], [0.0, 0.25], 1.0))
    fresh = rows_alike(grid * 1.0, np.where(valley, 0.25, 1.0))
    constant, _ = refit.oracles(8, {"constant": chosen_on}, fresh, (7,)).rows()
    assert constant == ("constant", 8, 7, 75, 0)


@pytest.mark.full
def test_oracles_know_the_length_or_the_answer(found):
    n, rows, fresh = found[0]
    oracles = refit.oracles(n, {refit.BEST_FOR_LENGTH: rows}, fresh, SEEDS)
    for_length, for_set = (oracles.filter(normalizer=name) for name in (refit.BEST_FOR_LENGTH, refit.BEST_FOR_SET))
    constant = rows.losses.mean((0, 1)).argmin()
    for index in range(len(SEEDS)):
        assert for_length["loss"][index] == pytest.approx(fresh.losses[index, :, constant].mean())
        assert for_set["loss"][index] <= for_length["loss"][index]
        assert for_set["accuracy"][index] >= 100 - 100 * fresh.errors[index].mean(0).min() - 1e-3


def test_a_constant_for_one_half_of_the_seeds_is_that_of_the_other_half(monkeypatch):
    """At a length beyond those of training, to which nothing is fitted then."""
    grid = np.arange(len(LOG_THETA)) * 1.0
    first, second = (rows_alike((grid - best) ** 2, grid) for best in (10, 30))
    rows, fresh = Rows(*map(np.concatenate, zip(first, second))), rows_alike(grid, grid)
    types = {"normalizer": pl.String, "n": pl.Int64, "seed": pl.Int64, "accuracy": pl.Float64, "loss": pl.Float64}
    nothing = SimpleNamespace(n=8, frame=lambda: pl.DataFrame(schema=types))
    monkeypatch.setattr(refit, "Evaluation", lambda *_, **__: SimpleNamespace(over=lambda lengths: [nothing]))
    options: dict[str, Any] = {"seeds": (7, 9), "sets": 2, "key": KEYS[0], "task": MaxRetrieval(width=8)}
    both = Rows(*(np.concatenate([column, column]) for column in fresh))
    compared = pl.concat(refit.compare({}, {8: rows}, {8: both}, 5, **options))
    chosen = compared.filter(normalizer=refit.BEST_FOR_LENGTH).select("seed", "loss").rows()
    assert chosen == [(7, 30), (9, 10)]


@pytest.mark.full
def test_each_half_of_the_seeds_is_compared_under_what_the_other_half_chose(parameters, found):
    rows, fresh = ({n: pair[at] for n, *pair in found} for at in (0, 1))
    options: dict[str, Any] = {"seeds": SEEDS, "sets": 2, "key": KEYS[1], "criterion": "inputs", "degree": 1}
    compared = pl.concat(refit.compare(parameters, rows, fresh, 5, **options))
    assert compared["seed"].unique().sort().to_list() == list(SEEDS)
    for index, seed in enumerate(SEEDS):
        for name, chosen_at in ((refit.BEST_FOR_LENGTH, 20), (refit.BEST_OF_TRAINING, 5)):
            constant = rows[chosen_at].losses[1 - index].mean(0).argmin()
            (loss,) = compared.filter(normalizer=name, n=20, seed=seed)["loss"]
            assert loss == pytest.approx(fresh[20].losses[index, :, constant].mean())
    one = jax.tree.map(lambda leaf: leaf[:1], parameters)
    alone = {n: refit.of_seeds(some, np.array([0])) for n, some in ((5, rows), (20, fresh))}
    options["seeds"] = SEEDS[:1]
    assert pl.concat(refit.compare(one, alone[5], alone[20], 5, **options))["seed"].unique().to_list() == [SEEDS[0]]


@pytest.mark.full
def test_a_digest_follows_numbers_names_and_shapes(parameters):
    digest = checkpoint_sha256(parameters)
    assert digest == checkpoint_sha256(jax.tree.map(jnp.array, parameters))
    changed = jax.tree.map(jnp.array, parameters)
    changed["read_out"]["bias"] = changed["read_out"]["bias"].at[0, 0].add(1e-3)
    assert digest != checkpoint_sha256(changed)
    renamed = {name.replace("item_in", "item_zzz"): leaf for name, leaf in parameters.items()}
    assert digest != checkpoint_sha256(renamed)


def test_short_sets_are_drawn_more_often():
    assert refit.sets_of(MaxRetrieval(), 16, 3) == 3 * refit.SHORT_FACTOR
    assert refit.sets_of(MaxRetrieval(), 17, 3) == 3
    assert refit.sets_of(MaxRetrieval(), 4096) == refit.SETS
    assert refit.sets_of(Sort(), 4096) == Sort().test_sets(4096) < refit.SETS


@pytest.mark.full
def test_sets_with_many_rows_share_a_temperature():
    """At θ = 1 a set has the loss of the model, and its entropy is the mean over its rows."""
    task = Sort(batch=2, length=4, hidden=8, heads=2, layers=2)
    parameters = jax.vmap(build_model(task)[1])(jax.random.split(jax.random.key(0), len(SEEDS)))
    (rows,), *_ = refit.search_lengths(parameters, seeds=SEEDS, lengths=(20,), sets=3, keys=KEYS[:1], task=task)
    options = {"seeds": SEEDS, "lengths": (20,), "sets": 3, "key": KEYS[0], "task": task}
    (measured,) = evaluate(parameters, {"softmax": normalizer("softmax")}, **options)
    np.testing.assert_allclose(rows.losses[..., ONE], measured.values["loss"][..., 0], rtol=1e-4)
    np.testing.assert_allclose(rows.entropy, measured.values["entropy"][..., 0, :].mean(-1), rtol=1e-4)
