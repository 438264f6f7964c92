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
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.temperature import LOG_THETA, Rows, checkpoint_sha256, target_beta
from tests.experiment.measures.models import SEEDS, TASK, parameters_of
from tests.library.test_temperature import rows_alike

KEYS = [jax.random.key(1), jax.random.key(2)]
ONE = int(np.abs(LOG_THETA).argmin())


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(TASK, id="float32", marks=pytest.mark.full),
        pytest.param(Sort(batch=2, length=4, hidden=8, heads=2, layers=1), id="many rows", marks=pytest.mark.full),
    ],
)
def test_rows_at_temperature_one_are_those_of_the_evaluation(task):
    """The rows of a set share a temperature, and its entropy is the mean over them."""
    options = {"seeds": SEEDS, "lengths": (20,), "sets": 3, "task": task}
    ((rows, fresh),) = refit.search_lengths(parameters_of(task), **options, keys=KEYS)
    assert not np.allclose(rows.entropy, fresh.entropy)  # another key, other sets
    assert rows.losses.shape == (2, 3, len(LOG_THETA))
    (measured,) = evaluate(parameters_of(task), {"softmax": normalizer("softmax")}, **options, key=KEYS[0])
    ours = rows.losses[..., ONE], 100 - 100 * rows.errors[..., ONE], rows.entropy
    for values, measure in zip(ours, ("loss", "accuracy", "entropy")):
        theirs = measured.values[measure][:, :, 0].reshape(2, 3, -1).mean(-1)
        np.testing.assert_allclose(values, theirs, rtol=1e-4, atol=1e-4)


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
    """The least loss, and the fewest errors where they are few around: not where no set has one by chance."""
    grid = np.arange(len(LOG_THETA))
    valley = np.abs(grid - 40) < 5
    chosen_on = rows_alike((grid - 10.0) ** 2, np.select([grid == 10, valley], [0.0, 0.25], 1.0))
    fresh = rows_alike(grid * 1.0, np.where(valley, 0.25, 1.0))
    found = refit.oracles(8, {"constant": chosen_on}, fresh, (7,)).rows()
    assert found == [("constant", 8, 7, 75, 10), (refit.BEST_FOR_SET, 8, 7, 75, 0)]


def test_constants_for_one_half_of_the_seeds_are_those_of_the_other_half(monkeypatch):
    """At a length of training and one beyond; a single seed has those of its own rows."""
    grid = np.arange(len(LOG_THETA)) * 1.0
    short, long = ([rows_alike((grid - best) ** 2, grid) for best in pair] for pair in ((10, 30), (20, 40)))
    types = {"normalizer": pl.String, "n": pl.Int64, "seed": pl.Int64, "accuracy": pl.Float64, "loss": pl.Float64}
    nothing = [SimpleNamespace(n=n, frame=lambda: pl.DataFrame(schema=types)) for n in (8, 16)]
    monkeypatch.setattr(refit, "Evaluation", lambda *_, **__: SimpleNamespace(over=lambda lengths: nothing))

    def chosen(seeds, longest):
        rows, fresh = (
            {n: Rows(*map(np.concatenate, zip(*seed_rows[: len(seeds)]))) for n, seed_rows in by_length.items()}
            for by_length in ({8: short, 16: long}, dict.fromkeys((8, 16), 2 * [rows_alike(grid, grid)]))
        )
        options: dict[str, Any] = {"seeds": seeds, "sets": 2, "key": KEYS[0], "task": TASK}
        compared = pl.concat(refit.compare({}, rows, fresh, longest, **options)).filter(n=16)
        return [
            compared.filter(normalizer=name).sort("seed")["loss"].to_list()
            for name in (refit.BEST_FOR_LENGTH, refit.BEST_OF_TRAINING)
        ]

    assert chosen((7, 9), 8) == [[40, 20], [30, 10]]
    assert chosen((7, 9), 5) == [[40, 20], []]  # where training saw none of the lengths
    assert chosen((7,), 8) == [[20], [10]]


def test_a_digest_follows_numbers_names_and_shapes():
    parameters = {"a": {"bias": jnp.arange(4.0)}}
    others = {"a": {"bias": jnp.arange(4.0) + 1e-3}}, {"b": parameters["a"]}, {"a": {"bias": jnp.arange(4.0)[None]}}
    digest, again, *changed = map(checkpoint_sha256, (parameters, jax.tree.map(np.asarray, parameters), *others))
    assert digest == again
    assert len({digest, *changed}) == 4


def test_short_sets_are_drawn_more_often():
    assert [refit.sets_of(TASK, length, 3) for length in (16, 17)] == [3 * refit.SHORT_FACTOR, 3]
    assert refit.sets_of(TASK, 4096) == refit.SETS
    assert refit.sets_of(Sort(), 4096) == Sort().test_sets(4096) < refit.SETS
