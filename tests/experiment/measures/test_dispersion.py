import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
import scipy.stats

from softmax_jax import theory
from softmax_jax.experiment.measures import dispersion
from softmax_jax.experiment.measures.dispersion import resolution
from softmax_jax.experiment.measures.evaluation import evaluate, frame_of
from softmax_jax.experiment.measures.references import TRUE_ITEM
from softmax_jax.experiment.measures.sets import set_keys
from softmax_jax.experiment.measures.table import MEASURES, calibration_error
from softmax_jax.normalizers.registry import normalizer
from tests.experiment.measures.models import SEEDS, TASK, model_of, parameters_of

LENGTHS = (5, 20)
SETS = 6
NAMES = ("softmax", "adaptive", "ssmax", "softpick", "signed_l1", "hardmax")
NAMED = {name: normalizer(name) for name in NAMES}


@pytest.fixture(scope="module")
def measured():
    options = {"seeds": SEEDS, "lengths": LENGTHS, "sets": SETS, "measures": tuple(MEASURES)}
    return list(evaluate(parameters_of(), NAMED, **options, references=(TRUE_ITEM,)))


@pytest.fixture(scope="module")
def frame(measured):
    return frame_of(measured)


def sets_of(index, n):
    batches = jax.vmap(lambda key: TASK.test_batch(key, n, 1))(set_keys(SEEDS, n, SETS)[index])
    return jax.tree.map(lambda leaf: leaf[:, 0], batches)


@pytest.mark.full
def test_what_is_seen_of_a_set_is_what_a_plain_look_finds(measured, frame):
    """At a length that shares its program with longer ones, in which items beyond a set's own are masked."""
    n, index = 20, 1
    batch, model, values = sets_of(index, n), model_of(index), measured[1].values
    hidden = model.hidden(batch.items)
    logits = model.logits(hidden, batch.query)
    rho = np.asarray(batch.items[..., 0])
    z, answer = np.asarray(logits, np.float64), np.asarray(batch.answer)
    for at, name in enumerate(NAMES):
        weights = NAMED[name](logits, where=batch.mask)
        w, shares = np.asarray(weights), np.abs(np.asarray(weights, np.float64))
        scores = np.asarray(model.read(model.pool(weights, hidden), weights.sum(-1)))
        likelihoods = np.asarray(jax.nn.log_softmax(scores))
        for row in range(SETS):
            seen = {measure: numbers[index, row, at] for measure, numbers in values.items()}
            true, top = rho[row].argmax(), z[row].argmax()
            right = scores[row].argmax() == answer[row]
            assert seen["rank"] == scipy.stats.rankdata(-w[row])[true]
            assert seen["accuracy"] == 100 * right
            np.testing.assert_allclose(seen["loss"], -likelihoods[row, answer[row]], rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(seen["calibration"], [np.exp(likelihoods[row].max()), right], rtol=1e-4)
            np.testing.assert_allclose(seen["true_weight"], w[row, true], rtol=1e-4, atol=1e-7)
            np.testing.assert_allclose(seen["max_weight"], shares[row].max(), rtol=1e-4)
            entropy = np.nan_to_num(scipy.stats.entropy(shares[row]))  # 0 where all weights are 0
            np.testing.assert_allclose(seen["entropy"], entropy, atol=1e-4)
            count, _, *spreads = seen["entropy_lower"]
            assert count == n
            np.testing.assert_allclose([seen["spread"], spreads[-1]], np.ptp(z[row]), rtol=1e-4)
            np.testing.assert_allclose(spreads[1], z[row, top] - np.sort(z[row])[-4], rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(seen["critical_beta"], theory.critical_beta(z[row]), rtol=1e-3)
            order = np.argsort(-rho[row])[:16]
            np.testing.assert_array_equal(seen["top_rho"], rho[row, order])
            np.testing.assert_allclose(seen["top_weights"], w[row, order], rtol=1e-4, atol=1e-7)
        whole = frame.filter(normalizer=name, n=n, seed=SEEDS[index]).row(0, named=True)
        for measure in ("accuracy", "loss", "entropy", "max_weight"):
            assert whole[measure] == pytest.approx(values[measure][index, :, at].mean())
        assert whole["calibration"] == pytest.approx(calibration_error(values["calibration"][index, :, at]))
    alone = jnp.take_along_axis(hidden, rho.argmax(-1)[:, None, None], 1)[:, 0]
    right = np.asarray(model.read(alone, jnp.ones(SETS))).argmax(-1) == answer
    np.testing.assert_array_equal(values["accuracy"][index, :, measured[1].normalizers.index(TRUE_ITEM)], 100 * right)


@pytest.mark.full
def test_measured_weights_keep_to_the_bounds_and_beta_is_that_of_the_scale(measured, frame):
    rows = dispersion.dispersion(frame)
    assert len(rows) == (len(NAMES) + 1) * len(LENGTHS) * len(SEEDS)
    for row in rows.to_dicts():
        if row["normalizer"] not in ("softmax", "adaptive", "ssmax"):
            assert row["beta"] is row["max_weight_upper"] is None
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


def made(*rows):
    columns = ("n", "max_weight", "max_weight_upper_nearest", "beta")
    return pl.DataFrame(rows, columns, orient="row").with_columns(normalizer=pl.lit("softmax"), largest_reach=10.0)


def test_where_the_largest_weight_falls():
    frame = made((4, 0.9, 0.95, 1.0), (16, 0.6, 0.7, 1.0), (64, 0.4, 0.6, 1.0))
    found = dispersion.forced(frame)
    assert (found["measured"], found["nearest"]) == (pytest.approx(32), None)
    assert found["spread"] == theory.length_forced_below(0.5, 10.0)
    by_largest = dispersion.forced(frame.with_columns(pl.Series("largest_reach", [10.0, 30.0, 20.0])))
    assert by_largest["spread"] == theory.length_forced_below(0.5, 30.0)
    varying = dispersion.forced(made((4, 0.9, 0.9, 1.0), (16, 0.6, 0.3, 2.0)))
    assert varying["spread"] is None
    assert 4 < (varying["nearest"] or 0) < 16


@pytest.mark.parametrize(
    ("weights", "length"),
    [
        ([0.9, 0.6], None),
        ([0.3, 0.2], None),
        ([0.9, 0.4, 0.6, 0.2], 64 * 4**0.25),  # for good
        ([0.9, 0.4], 4 * 4**0.8),  # four fifths of the way in log n
    ],
)
def test_a_crossing_is_read_between_lengths(weights, length):
    found = dispersion.crossing([4, 16, 64, 256][: len(weights)], weights, 0.5)
    assert found == (length and pytest.approx(length))


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
    assert (maps.lengths, maps.seed, maps.weights.shape) == ((20,), SEEDS[0], (len(NAMES), 1, SETS, 16))
    assert (np.diff(maps.rho[0], axis=1) <= 0).all()
    assert (np.diff(maps.rho[0, :, 0]) >= 0).all()
    values = measured[1].values
    order = np.argsort(values["top_rho"][0, :, 0, 0])
    np.testing.assert_array_equal(maps.weights[2, 0], values["top_weights"][0, order, 2])
    with pytest.raises(ValueError, match="the longest of the measured sets has 5 items: measure 16 or more"):
        dispersion.attention_maps(measured[:1])


@pytest.mark.full
def test_resolution_is_the_logit_of_an_item_alone():
    found = resolution(parameters_of(), points=401)
    assert (found.logits.shape, found.rho[-1]) == ((len(SEEDS), 10, 401), 1)
    model = model_of(1)
    items = jnp.zeros((1, 1, 11)).at[0, 0, 0].set(float(found.rho[300])).at[0, 0, 1 + 4].set(1.0)
    alone = model.logits(model.hidden(items), jnp.array([[0.5]]))[0, 0]
    np.testing.assert_allclose(found.logits[1, 4, 300], alone, rtol=1e-4)
    np.testing.assert_allclose(found.offset, found.logits[:, :, -1].std(1), rtol=1e-4)
    rise = (found.logits[..., -1] - found.logits[..., -2]).mean(1) / (1 - found.rho[-2])
    np.testing.assert_allclose(found.slope, rise, rtol=0.02, atol=0.02)
