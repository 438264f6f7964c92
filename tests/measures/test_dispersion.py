import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from flax import nnx

from softmax_jax import theory
from softmax_jax.measures import dispersion
from softmax_jax.measures.dispersion import DispersionRow
from softmax_jax.measures.evaluation import KEY, draw_fresh, evaluate, fresh_batches
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.training.trainer import build_model

SEEDS = (4, 5)
LENGTHS = (5, 20)
SETS = 6
NAMES = ("softmax", "adaptive", "ssmax", "hardmax")
NAMED = {name: normalizer(name) for name in NAMES}


@pytest.fixture(scope="module")
def parameters():
    _, initialize = build_model(MaxRetrieval(width=8))
    # Larger than at the start of training, so that weights differ.
    return jax.tree.map(lambda leaf: 3 * leaf, jax.vmap(initialize)(jax.random.split(jax.random.key(0), len(SEEDS))))


@pytest.fixture(scope="module")
def measured(parameters):
    return dispersion.measure_sets(parameters, NAMED, seeds=SEEDS, lengths=LENGTHS, sets=SETS)


@pytest.fixture(scope="module")
def rows(measured):
    return dispersion.dispersion_rows(measured)


def model_of(parameters, index):
    structure, _ = build_model(MaxRetrieval(width=8))
    return nnx.merge(structure, jax.tree.map(lambda leaf: leaf[index], parameters))


def test_what_is_seen_of_a_set_is_what_a_plain_look_finds(parameters, measured):
    n, index = 20, 1
    keys = fresh_batches(jax.random.key(KEY), jnp.asarray(SEEDS), n, SETS)[index].reshape(-1)
    batch = draw_fresh(keys, items=n)
    model = model_of(parameters, index)
    hidden, logits = model.encode(batch.items, batch.query)
    rho = np.asarray(batch.items[..., 0])
    z, answer = np.asarray(logits, np.float64), np.asarray(batch.answer)
    for at, name in enumerate(NAMES):
        weights = NAMED[name](logits, where=batch.mask)
        w = np.asarray(weights, np.float64)
        scores = np.asarray(model.read(hidden, weights))
        for row in range(SETS):
            seen = dispersion.Sets(*(column[index, row] for column in measured.by_length[n]))
            true, top = rho[row].argmax(), z[row].argmax()
            ranks = scipy.stats.rankdata(-np.asarray(weights)[row])
            assert seen.rank[at] == ranks[true]
            np.testing.assert_allclose(seen.true_weight[at], w[row, true], rtol=1e-4, atol=1e-7)
            np.testing.assert_allclose(seen.max_weight[at], w[row].max(), rtol=1e-4)
            shares = w[row][w[row] > 0] / w[row].sum()
            np.testing.assert_allclose(seen.entropy[at], -(shares * np.log(shares)).sum(), atol=1e-4)
            assert seen.right[at] == (scores[row].argmax() == answer[row])
            assert seen.found == (true == top)
            np.testing.assert_allclose(seen.spreads[-1], np.ptp(z[row]), rtol=1e-4)
            np.testing.assert_allclose(seen.spreads[1], z[row, top] - np.sort(z[row])[-4], rtol=1e-3, atol=1e-5)
            order = np.argsort(-rho[row])[:16]
            np.testing.assert_array_equal(seen.top_rho, rho[row, order])
            np.testing.assert_allclose(seen.top_weights[at], w[row, order], rtol=1e-4, atol=1e-7)


def test_all_weight_on_one_item_is_read_as_that_item_alone(parameters, measured):
    keys = fresh_batches(jax.random.key(KEY), jnp.asarray(SEEDS), 5, SETS)[0].reshape(-1)
    batch = draw_fresh(keys, items=5)
    model = model_of(parameters, 0)
    hidden, logits = model.encode(batch.items, batch.query)
    for choice, right in (
        (logits.argmax(-1), measured.by_length[5].right_hardmax[0]),
        (batch.items[..., 0].argmax(-1), measured.by_length[5].right_value[0]),
    ):
        alone = jnp.take_along_axis(hidden, choice[:, None, None], 1)
        answers = np.asarray(model.read(alone, jnp.ones((SETS, 1)))).argmax(-1)
        np.testing.assert_array_equal(right, answers == np.asarray(batch.answer))


def test_the_sets_are_those_of_the_evaluation(parameters, measured):
    (expected,) = evaluate(parameters, NAMED, seeds=SEEDS, lengths=(5,), sets=SETS)
    found = [row for row in dispersion.evaluation_rows(measured) if row.n == 5]
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    np.testing.assert_allclose([row[3:] for row in found], [row[3:] for row in expected], rtol=1e-4, atol=1e-4)


def test_measured_weights_keep_to_the_bounds(rows):
    assert len(rows) == len(NAMES) * len(LENGTHS) * len(SEEDS)
    for row in rows:
        if row.normalizer == "hardmax":
            assert row.beta is None
            assert row.max_weight_upper is None
            continue
        assert row.max_weight_lower <= row.max_weight <= row.max_weight_upper_nearest + 1e-6
        assert row.max_weight_upper_nearest <= row.max_weight_upper
        assert row.entropy_lower - 1e-5 <= row.entropy <= row.entropy_upper
        assert row.entropy_upper == np.log(row.n)
        assert row.spread <= row.largest_spread


def test_the_inverse_temperature_is_that_of_the_scale(rows):
    for row in rows:
        if row.normalizer == "softmax":
            assert row.beta == 1
            assert row.largest_reach == row.largest_spread
        if row.normalizer == "ssmax":
            np.testing.assert_allclose(row.beta, np.log(row.n) / np.log(16), rtol=1e-5)


def row_of(n, max_weight, nearest, seed=0, beta=1.0):
    return DispersionRow("softmax", n, seed, 1, max_weight, 1, 1, 9, 10, beta, 10.0, 0, 1, 0, 1, nearest)


def test_where_the_largest_weight_falls():
    rows = [row_of(4, 0.9, 0.95), row_of(16, 0.6, 0.7), row_of(64, 0.4, 0.6)]
    (found,) = dispersion.forced_rows(rows)
    assert found.measured == pytest.approx(32)
    assert found.nearest is None
    assert found.spread == theory.length_forced_below(0.5, 10.0)
    (varying,) = dispersion.forced_rows([row_of(4, 0.9, 0.9), row_of(16, 0.6, 0.3, beta=2.0)])
    assert varying.spread is None
    assert varying.nearest is not None
    assert 4 < varying.nearest < 16


def test_a_weight_that_never_falls_or_was_never_high_crosses_nowhere():
    assert dispersion.crossing([4, 16], [0.9, 0.6], 0.5) is None
    assert dispersion.crossing([4, 16], [0.3, 0.2], 0.5) is None


def test_losses_add_up_to_what_is_lost(measured):
    accuracies = [row.accuracy for row in dispersion.evaluation_rows(measured)]
    by_row = {row[:3]: row for row in dispersion.loss_rows(measured)}
    for row, accuracy in zip(dispersion.evaluation_rows(measured), accuracies):
        loss = by_row[row[:3]]
        assert loss.accuracy == pytest.approx(accuracy)
        assert loss.accuracy + loss.value + loss.key + loss.dispersion == pytest.approx(100)
        if loss.normalizer == "hardmax":
            assert loss.dispersion == 0


def test_every_set_is_in_a_bin_of_its_gap(measured):
    rows = [row for row in dispersion.gap_rows(measured) if row.normalizer == "softmax"]
    for n, sets in measured.by_length.items():
        own = [row for row in rows if row.n == n]
        assert sum(row.sets for row in own) == len(SEEDS) * SETS
        missed = sum(row.sets * row.missed for row in own) / (len(SEEDS) * SETS)
        assert missed == pytest.approx(100 * (1 - sets.found.mean()))
        for at, seed in enumerate(SEEDS):
            gaps = sets.top_rho[at, :, 0] - sets.top_rho[at, :, 1]
            for row in own:
                if row.seed == seed:
                    assert row.sets == ((row.gap_low <= gaps) & (gaps < row.gap_high)).sum()


def test_attention_maps_are_sorted(measured):
    maps = dispersion.attention_maps(measured, seed=5, sets=6)
    assert maps.lengths == (20,)
    assert maps.weights.shape == (len(NAMES), 1, 6, 16)
    assert (np.diff(maps.rho[0], axis=1) <= 0).all()
    assert (np.diff(maps.rho[0, :, 0]) >= 0).all()
    sets = measured.by_length[20]
    order = np.argsort(sets.top_rho[1, :6, 0])
    np.testing.assert_array_equal(maps.weights[2, 0], sets.top_weights[1, order, 2])


def test_maps_need_a_measured_seed_and_long_sets(measured):
    with pytest.raises(ValueError, match="seed is 3: it must be one of 4, 5"):
        dispersion.attention_maps(measured, seed=3)
    short = measured._replace(by_length={5: measured.by_length[5]})
    with pytest.raises(ValueError, match="the longest of the measured sets has 5 items: measure 16 or more"):
        dispersion.attention_maps(short)


def test_one_item_has_no_second_best(parameters):
    with pytest.raises(ValueError, match="each of lengths is 1; it must be from 2 to 1048576"):
        dispersion.measure_sets(parameters, NAMED, seeds=SEEDS, lengths=(1, 4))


def test_resolution_is_the_logit_of_an_item_alone(parameters):
    found = dispersion.resolution(parameters, query=0.3, points=401)
    assert found.logits.shape == (len(SEEDS), 10, 401)
    model = model_of(parameters, 1)
    items = jnp.zeros((1, 1, 11)).at[0, 0, 0].set(0.75).at[0, 0, 1 + 4].set(1.0)
    np.testing.assert_allclose(found.logits[1, 4, 300], model.encode(items, jnp.array([[0.3]])).logits[0, 0], rtol=1e-4)
    np.testing.assert_allclose(found.offset, found.logits[:, :, -1].std(1), rtol=1e-4)
    rise = (found.logits[..., -1] - found.logits[..., -2]).mean(1) * 400
    np.testing.assert_allclose(found.slope, rise, rtol=0.02, atol=0.02)
    assert found.near_rho[-1] == 1
    np.testing.assert_allclose(found.near_logits[..., -1], found.logits[..., -1], rtol=1e-5)
