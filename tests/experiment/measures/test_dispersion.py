from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
import scipy.stats
from flax import nnx

from softmax_jax import theory
from softmax_jax.experiment.measures import dispersion
from softmax_jax.experiment.measures.dispersion import resolution
from softmax_jax.experiment.measures.evaluation import evaluate, frame_of
from softmax_jax.experiment.measures.references import TRUE_ITEM
from softmax_jax.experiment.measures.sets import set_keys
from softmax_jax.experiment.measures.table import MEASURES, Seen, rank
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.run import build_model
from softmax_jax.normalizers.registry import normalizer

SEEDS = (4, 5)
LENGTHS = (5, 20)
SETS = 6
NAMES = ("softmax", "adaptive", "ssmax", "hardmax")
NAMED = {name: normalizer(name) for name in NAMES}
TASK = MaxRetrieval(width=8)


@pytest.fixture(scope="module")
def parameters():
    _, initialize = build_model(MaxRetrieval(width=8))
    # Larger than at the start of training, so that weights differ.
    return jax.tree.map(lambda leaf: 3 * leaf, jax.vmap(initialize)(jax.random.split(jax.random.key(0), len(SEEDS))))


@pytest.fixture(scope="module")
def measured(parameters):
    options = {"seeds": SEEDS, "lengths": LENGTHS, "sets": SETS, "measures": tuple(MEASURES)}
    options["references"] = (TRUE_ITEM,)
    return list(evaluate(parameters, NAMED, **options))


@pytest.fixture(scope="module")
def frame(measured):
    return frame_of(measured)


def sets_of(task, index, n):
    of_key = jax.vmap(lambda key: task.test_batch(key, n, 1))
    return jax.tree.map(lambda leaf: leaf[:, 0], of_key(set_keys(SEEDS, n, SETS)[index]))


def model_of(parameters, index):
    structure, _ = build_model(MaxRetrieval(width=8))
    return nnx.merge(structure, jax.tree.map(lambda leaf: leaf[index], parameters))


@pytest.mark.full
def test_what_is_seen_of_a_set_is_what_a_plain_look_finds(parameters, measured):
    n, index = 20, 1
    batch = sets_of(TASK, index, n)
    model = model_of(parameters, index)
    hidden = model.hidden(batch.items)
    logits = model.logits(hidden, batch.query)
    rho = np.asarray(batch.items[..., 0])
    z, answer = np.asarray(logits, np.float64), np.asarray(batch.answer)
    for at, name in enumerate(NAMES):
        weights = NAMED[name](logits, where=batch.mask)
        w = np.asarray(weights, np.float64)
        scores = np.asarray(model.read(model.pool(weights, hidden), weights.sum(-1)))
        for row in range(SETS):
            seen = {name: values[index, row, at] for name, values in measured[1].values.items()}
            true, top = rho[row].argmax(), z[row].argmax()
            ranks = scipy.stats.rankdata(-np.asarray(weights)[row])
            assert seen["rank"] == ranks[true]
            np.testing.assert_allclose(seen["true_weight"], w[row, true], rtol=1e-4, atol=1e-7)
            np.testing.assert_allclose(seen["max_weight"], w[row].max(), rtol=1e-4)
            shares = w[row][w[row] > 0] / w[row].sum()
            np.testing.assert_allclose(seen["entropy"], -(shares * np.log(shares)).sum(), atol=1e-4)
            assert seen["accuracy"] == 100 * (scores[row].argmax() == answer[row])
            count, _, *spreads = seen["entropy_lower"]
            assert count == n
            np.testing.assert_allclose([seen["spread"], spreads[-1]], np.ptp(z[row]), rtol=1e-4)
            np.testing.assert_allclose(spreads[1], z[row, top] - np.sort(z[row])[-4], rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(seen["critical_beta"], theory.critical_beta(z[row]), rtol=1e-3)
            order = np.argsort(-rho[row])[:16]
            np.testing.assert_array_equal(seen["top_rho"], rho[row, order])
            np.testing.assert_allclose(seen["top_weights"], w[row, order], rtol=1e-4, atol=1e-7)


@pytest.mark.full
def test_all_weight_on_one_item_is_read_as_that_item_alone(parameters, measured):
    batch = sets_of(TASK, 0, 5)
    model = model_of(parameters, 0)
    hidden = model.hidden(batch.items)
    logits = model.logits(hidden, batch.query)
    right = dict(zip(measured[0].normalizers, measured[0].values["accuracy"][0].T))
    for name, choice in (("hardmax", logits), (TRUE_ITEM, batch.items[..., 0])):
        alone = jnp.take_along_axis(hidden, choice.argmax(-1)[:, None, None], 1)
        answers = np.asarray(model.read(alone[:, 0], jnp.ones(SETS))).argmax(-1)
        np.testing.assert_array_equal(right[name], 100 * (answers == np.asarray(batch.answer)))


@pytest.mark.full
def test_measured_weights_keep_to_the_bounds_and_beta_is_that_of_the_scale(measured, frame):
    rows = dispersion.dispersion(frame)
    assert len(rows) == (len(NAMES) + 1) * len(LENGTHS) * len(SEEDS)
    for row in rows.to_dicts():
        if row["normalizer"] in ("hardmax", TRUE_ITEM):
            assert row["beta"] is None
            assert row["max_weight_upper"] is None
            continue
        assert row["max_weight_lower"] <= row["max_weight"] <= row["max_weight_upper_nearest"] + 1e-6
        assert row["max_weight_upper_nearest"] <= row["max_weight_upper"]
        assert row["entropy_lower"] - 1e-5 <= row["entropy"] <= row["entropy_upper"]
        assert row["entropy_upper"] == np.log(row["n"])
        of_seed = measured[LENGTHS.index(row["n"])].values["critical_beta"][SEEDS.index(row["seed"])]
        assert row["critical_beta"] == np.median(of_seed[:, 0])
        if row["normalizer"] in ("softmax", "ssmax"):
            beta = 1 if row["normalizer"] == "softmax" else np.log(row["n"]) / np.log(16)
            np.testing.assert_allclose(row["beta"], beta, rtol=1e-5)
            assert row["spread"] <= row["largest_reach"] / beta + 1e-4


def test_equal_weights_share_their_mean_rank():
    weights, rho = jnp.array([0.2, 0.1, 0.2, 0.3, 0.2]), jnp.array([0.9, 0.8, 0.1, 0.2, -jnp.inf])
    unread: Any = None
    seen = Seen(*[unread] * 4, where=rho > -jnp.inf, weights=weights, rho=rho)
    assert rank(seen) == scipy.stats.rankdata(-np.asarray(weights)[:4])[0] == 2.5


def made(*rows):
    columns = ("n", "max_weight", "max_weight_upper_nearest", "beta")
    return pl.DataFrame(rows, columns, orient="row").with_columns(normalizer=pl.lit("softmax"), largest_reach=10.0)


def test_where_the_largest_weight_falls():
    frame = made((4, 0.9, 0.95, 1.0), (16, 0.6, 0.7, 1.0), (64, 0.4, 0.6, 1.0))
    found = dispersion.forced(frame)
    assert found["measured"] == pytest.approx(32)
    assert found["nearest"] is None
    assert found["spread"] == theory.length_forced_below(0.5, 10.0)
    reaches = pl.Series("largest_reach", [10.0, 30.0, 20.0])
    by_largest = dispersion.forced(frame.with_columns(reaches))
    assert by_largest["spread"] == theory.length_forced_below(0.5, 30.0)
    varying = dispersion.forced(made((4, 0.9, 0.9, 1.0), (16, 0.6, 0.3, 2.0)))
    assert varying["spread"] is None
    assert varying["nearest"] is not None
    assert 4 < varying["nearest"] < 16
    assert dispersion.crossing([4, 16], [0.9, 0.6], 0.5) is None
    assert dispersion.crossing([4, 16, 64, 256], [0.9, 0.4, 0.6, 0.2], 0.5) == pytest.approx(64 * 4**0.25)  # for good
    assert dispersion.crossing([4, 16], [0.3, 0.2], 0.5) is None
    assert dispersion.crossing([4, 16], [0.9, 0.4], 0.5) == pytest.approx(4 * 4**0.8)  # four fifths of the way in log n


@pytest.mark.full
def test_losses_add_up_to_what_is_lost(frame):
    losses = dispersion.losses(frame)
    shares = losses.select(pl.sum_horizontal("accuracy", "value", "key", "dispersion"))
    np.testing.assert_allclose(shares.to_numpy(), 100)
    assert (losses.filter(normalizer="hardmax")["dispersion"] == 0).all()
    keys = ["normalizer", "n", "seed"]
    assert losses.join(frame, keys)["accuracy"].equals(losses.join(frame, keys)["accuracy_right"])


@pytest.mark.full
def test_attention_maps_are_sorted(measured):
    maps = dispersion.attention_maps(measured, NAMES)
    assert (maps.lengths, maps.seed) == ((20,), SEEDS[0])
    assert maps.weights.shape == (len(NAMES), 1, SETS, 16)
    assert (np.diff(maps.rho[0], axis=1) <= 0).all()
    assert (np.diff(maps.rho[0, :, 0]) >= 0).all()
    values = measured[1].values
    order = np.argsort(values["top_rho"][0, :, 0, 0])
    np.testing.assert_array_equal(maps.weights[2, 0], values["top_weights"][0, order, 2])
    with pytest.raises(ValueError, match="the longest of the measured sets has 5 items: measure 16 or more"):
        dispersion.attention_maps(measured[:1])


@pytest.mark.full
def test_resolution_is_the_logit_of_an_item_alone(parameters):
    found = resolution(parameters, points=401)
    assert found.logits.shape == (len(SEEDS), 10, 401)
    assert found.rho[-1] == 1
    model, rho = model_of(parameters, 1), float(found.rho[300])
    items = jnp.zeros((1, 1, 11)).at[0, 0, 0].set(rho).at[0, 0, 1 + 4].set(1.0)
    alone = model.logits(model.hidden(items), jnp.array([[0.5]]))[0, 0]
    np.testing.assert_allclose(found.logits[1, 4, 300], alone, rtol=1e-4)
    np.testing.assert_allclose(found.offset, found.logits[:, :, -1].std(1), rtol=1e-4)
    rise = (found.logits[..., -1] - found.logits[..., -2]).mean(1) / (1 - found.rho[-2])
    np.testing.assert_allclose(found.slope, rise, rtol=0.02, atol=0.02)
