import dataclasses
import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import softmax_jax as sj
from softmax_jax import temperature
from softmax_jax.normalizers.fit_file import KEYS
from softmax_jax.refusal import Refusal
from softmax_jax.temperature import GRID_SIZE, LOG_THETA, SPACING, Rows, fit, search

TRUTH = np.array([0.02, -0.3, 1.4, -1.2, 2.0])
"""A polynomial between 1.8 and 4.6 over the entropies drawn here."""
ITEMS, PART = 32, 500


softmax64 = functools.partial(scipy.special.softmax, axis=-1)


def entropy64(z):
    return scipy.special.entr(softmax64(z)).sum(-1)


def drawn_rows(seed, seeds=8, rows=2500, beta=lambda entropy: np.polyval(TRUTH, entropy), classes=ITEMS):
    """Rows whose items are drawn from softmax(β(H) z), for the search to find β(H) again from the classes of items.

    They are searched in parts of one size, the last of which is filled up, so that one program is compiled.
    """
    random = np.random.default_rng(seed)
    z = random.normal(size=(seeds * rows, ITEMS)) * random.uniform(0.05, 3.0, (seeds * rows, 1))
    p = softmax64(beta(entropy64(z))[:, None] * z)
    items = (p.cumsum(1) < random.uniform(size=(len(p), 1))).sum(1).clip(0, ITEMS - 1)
    parts = -(-len(z) // PART)
    z, items = np.resize(z.astype(np.float32), (parts, PART, ITEMS)), np.resize(items, (parts, PART))
    columns = zip(*(searched(*part, classes) for part in zip(z, items)))
    return Rows(*(np.concatenate(c)[: len(p)].reshape(seeds, rows, *c[0].shape[1:]) for c in columns))


@functools.partial(jax.jit, static_argnums=2)
def searched(z, items, classes):
    """The search over rows of logits, of which those with the classes of the drawn items are right."""
    values = jnp.broadcast_to(jax.nn.one_hot(jnp.arange(ITEMS) % classes, classes), (len(z), ITEMS, classes))
    answers = items % classes
    loss = lambda attended: -jnp.log(jnp.take_along_axis(attended, answers[:, None], 1)[:, 0] + 1e-30)  # noqa: E731
    error = lambda attended: (attended.argmax(-1) != answers).astype(jnp.float32)  # noqa: E731
    return search(z, values, loss, error=error, target=items)


@pytest.fixture(scope="module")
def rows():
    return drawn_rows(0)


@pytest.fixture(scope="module")
def held_out():
    return drawn_rows(1, seeds=8, rows=500)


@pytest.fixture(scope="module")
def found(rows, held_out):
    return fit({ITEMS: rows}, {ITEMS: held_out}, seeds=range(8))


@pytest.mark.full
def test_the_search_finds_what_a_fine_grid_in_float64_finds():
    random = np.random.default_rng(3)
    z, values = random.normal(size=(40, 12)) * 2, random.normal(size=(40, 12, 5))
    target = random.normal(size=(40, 5)) * 0.7
    single = [jnp.asarray(array, jnp.float32) for array in (z, values, target)]
    found = search(single[0], single[1], lambda attended: ((attended - single[2]) ** 2).sum(-1))
    log_theta = np.linspace(LOG_THETA[0], LOG_THETA[-1], 10001)
    attended = (np.einsum("rn,rnd->rd", softmax64(z / np.exp(x)), values) for x in log_theta)
    losses = np.stack([((one - target) ** 2).sum(-1) for one in attended], 1)
    best = losses.argmin(1)
    above = np.minimum(losses[:, 0], losses[:, -1]) - losses.min(1)
    on_border = above <= temperature.TIE
    clear = (above < 1e-8) | (above > 1e-5)
    assert np.array_equal(np.asarray(found.border)[clear], on_border[clear])
    assert clear.mean() > 0.8
    assert 0.1 < on_border.mean() < 0.9
    inside = ~on_border
    # Where the valley is flat float32 cannot place its bottom; its depth it can.
    reached = np.take_along_axis(losses, np.abs(log_theta - np.log(found.theta)[:, None]).argmin(1)[:, None], 1)[:, 0]
    np.testing.assert_allclose(reached[inside], losses.min(1)[inside], atol=1e-6)
    sharp = inside & (np.asarray(found.curvature) > 0.5)
    assert sharp.sum() >= 5
    assert np.abs(np.log(found.theta) - log_theta[best])[sharp].max() < 1.5e-3
    np.testing.assert_allclose(found.entropy, entropy64(z), atol=1e-5)


@pytest.mark.full
def test_masked_entries_do_not_count():
    z = jnp.array([[1.0, 0.3, -1.0]])
    values = jnp.broadcast_to(jnp.eye(3), (1, 3, 3))

    def loss(attended):
        return ((attended[:, :2] - jnp.array([[0.6, 0.4]])) ** 2).sum(-1)

    short = search(z[:, :2], values[:, :2], loss)
    masked = search(z.at[0, 2].set(jnp.nan), values, loss, where=jnp.array([[True, True, False]]))
    for ours, theirs in zip(masked, short):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_a_known_polynomial_is_recovered(found):
    assert found.intervals is not None
    assert all(low <= truth <= high for truth, (low, high) in zip(TRUTH, found.intervals))
    entropies = np.linspace(0.8, found.entropy_range[1], 50)
    np.testing.assert_allclose(found.curve(entropies), np.polyval(TRUTH, entropies), rtol=0.1)
    assert found.r_squared > 0.5


def test_a_fit_says_what_it_covers_and_how_well_it_does_on_rows_held_out(rows, held_out, found):
    low, high = found.entropy_range
    by_rule = held_out.entropy <= temperature.THRESHOLD
    covered = by_rule | (low <= held_out.entropy) & (held_out.entropy <= high)
    assert 0 < by_rule.mean() < covered.mean()
    assert found.coverage == {str(ITEMS): pytest.approx(100 * covered.mean())}
    assert found.border == {str(ITEMS): pytest.approx(100 * rows.border.mean())}
    points = temperature.points(held_out, "bins")(np.ones(8))
    assert found.r_squared == pytest.approx(temperature.r_squared(found.curve, points))
    assert found.beta_at_ends == pytest.approx(np.polyval(found.coefficients, found.entropy_range))


@pytest.mark.parametrize(
    ("numbers", "half"),
    [(np.arange(100.0), 1.96 * np.arange(100.0).std() / 10), ([1.0, 2.0, 6.0], 4.3027 * (7 / 3) ** 0.5)],
)
def test_intervals_and_band_hold_95_percent_of_the_draws_of_seeds(numbers, half):
    """The curve is a constant, the mean of a number of each seed: normal for a hundred, of the t distribution for 3."""
    seeds = len(numbers)

    def by_copies(copies):
        return temperature.Points(
            np.arange(2.0), np.full(2, copies @ np.array(numbers) / seeds), np.ones(2), (0.0, 1.0)
        )

    intervals, band = temperature.bootstrap(by_copies, 0, seeds, np.array([0.5]))
    assert intervals is not None
    assert band is not None
    np.testing.assert_allclose(intervals, [np.mean(numbers) + np.array([-half, half])], atol=0.07 * half)
    np.testing.assert_allclose([band["low"] + band["high"]], intervals, rtol=1e-12)
    assert temperature.bootstrap(by_copies, 0, 1, np.array([0.5])) == (None, None)


def rows_alike(losses, errors, count=300):
    """Rows of one seed and of one entropy, all with these losses and errors on the grid."""
    at = np.full((1, count), 1.02)
    losses, errors = (np.broadcast_to(of.astype(np.float32), (1, count, GRID_SIZE)) for of in (losses, errors))
    return Rows(at, np.exp(0 * at), at < 0, np.ones_like(at), losses, errors, np.nan * at)


def test_the_accuracy_criterion_finds_fewest_errors_and_the_others_least_loss(rows):
    found = temperature.points(rows, "accuracy")(np.ones(8))
    assert (np.diff(found.entropy) > 0).all()
    grid = np.arange(GRID_SIZE)
    alike = rows_alike((grid - 20.0) ** 2, np.abs(grid - 30) > 3)
    for criterion, least in (("bins", 20), ("accuracy", 30)):
        np.testing.assert_allclose(
            temperature.points(alike, criterion)(np.ones(1)).beta, np.exp(-LOG_THETA[least]), rtol=1e-3
        )


def test_a_row_alone_is_worth_its_curvature_in_beta_as_often_as_its_seed_counts(rows):
    """The search gives the curvature in log θ: with β = 1/θ it is that over β²."""
    two = Rows(*(column[:2] for column in rows))
    found = temperature.points(two, "inputs")(np.array([1.0, 3.0]))
    inside = ~two.border & (two.curvature > 0) & (two.entropy > temperature.THRESHOLD)
    worth = two.curvature * two.theta**2 * np.array([[1], [3]])
    np.testing.assert_allclose(found.weight, worth[inside], rtol=1e-5)
    found = temperature.points(two._replace(target=np.full(two.theta.shape, 1.5)), "target")(np.array([1.0, 3.0]))
    above = two.entropy > temperature.THRESHOLD
    np.testing.assert_array_equal(found.weight, np.broadcast_to([[1], [3]], above.shape)[above])


def test_a_row_is_on_the_border_where_its_loss_is_least_at_either_end():
    best = jnp.array([LOG_THETA[0] - 1, LOG_THETA[20], LOG_THETA[-1] + 1], jnp.float32)

    def losses(log_theta):
        return (log_theta - best[:, None]) ** 2, (log_theta - best[:, None]) ** 2

    found = jax.jit(lambda entropies: temperature.search_at(losses, entropies))(jnp.ones(3))
    assert found.border.tolist() == [True, False, True]
    np.testing.assert_allclose(found.theta[1], np.exp(LOG_THETA[20]), rtol=1e-4)
    np.testing.assert_allclose(found.curvature, 2, rtol=1e-2)


def test_a_bin_on_the_border_joins_the_next():
    grid = np.arange(GRID_SIZE)
    sums = np.stack([grid, 2.0 * (grid - 20) ** 2, (grid - 30.0) ** 2])[None]
    counts, at = np.full((1, 3), 500.0), np.array([1.0, 2.0, 3.0])
    found = temperature.points_of_bins(temperature.Bins(counts, counts * at, at - 0.1, at + 0.1, sums), np.ones(1))
    np.testing.assert_allclose(found.entropy, [1.5, 3.0])
    np.testing.assert_allclose(found.beta[1], np.exp(-LOG_THETA[30]), rtol=1e-6)
    assert found.entropy_range == (0.9, 3.1)


def test_a_thin_bin_joins_the_next_and_the_last_thin_one_joins_the_one_below():
    counts, minima, at = np.array([[199.0, 1, 300, 199], [20, 20, 25, 40], [1, 2, 3, 4]])
    sums = counts[:, None] * (np.arange(GRID_SIZE) - minima[:, None]) ** 2
    bins = temperature.Bins(counts[None], (counts * at)[None], at - 0.1, at + 0.1, sums[None])
    found = temperature.points_of_bins(bins, np.ones(1))
    np.testing.assert_allclose(found.entropy, [(199 + 2) / 200, (900 + 796) / 499])
    places = np.array([20, (300 * 25 + 199 * 40) / 499])
    np.testing.assert_allclose(found.beta, np.exp(-np.interp(places, np.arange(GRID_SIZE), LOG_THETA)), rtol=1e-5)
    assert found.entropy_range == (0.9, 4.1)
    np.testing.assert_allclose(found.weight * found.beta**2, 2 * np.array([200, 499]) / SPACING**2, rtol=1e-6)


@pytest.mark.parametrize(
    ("criterion", "entropies", "message"),
    [
        ("best", 1, "the criterion is 'best'; it must be one of 'inputs', 'bins', 'accuracy', 'target'"),
        ("bins", 0, "no rows have a best temperature between 0.0156 and 8"),
    ],
)
def test_what_cannot_be_fitted_is_refused(rows, criterion, entropies, message):
    scaled = {ITEMS: rows._replace(entropy=entropies * rows.entropy)}
    with pytest.raises(ValueError, match=message):
        fit(scaled, {ITEMS: rows}, seeds=range(8), criterion=criterion)


def test_points_that_do_not_vary_have_no_r_squared():
    flat = temperature.Points(np.arange(3.0), np.full(3, 2.0), np.ones(3), (0.0, 2.0))
    assert temperature.r_squared(lambda entropy: np.full_like(entropy, 2.0), flat) is None
    rising = flat._replace(beta=np.arange(3.0))
    assert temperature.r_squared(lambda entropy: np.ones_like(entropy), rising) == 0
    assert temperature.r_squared(lambda entropy: entropy, rising) == 1


def test_few_points_get_a_lower_degree(rows):
    narrow = rows._replace(entropy=np.where(rows.entropy < 1.5, rows.entropy, 0.0))
    found = temperature.fit_polynomial({ITEMS: narrow})
    np.testing.assert_array_equal(*found.curve(np.array([[99.0], [found.entropy_range[1]]])))
    count = len(temperature.points(narrow, "bins")(np.ones(8)).beta)
    assert 3 < count < 15
    assert len(found.coefficients) == count // 3
    assert found.entropy_range[1] < 1.5


@pytest.mark.parametrize(
    ("coefficients", "place"), [([-90.0], "β = -90 at H = 0.5"), ([80.0, 20.0], "β = 180 at H = 2")]
)
def test_a_curve_that_no_reader_would_accept_is_refused_before_its_intervals(coefficients, place, monkeypatch):
    steep = temperature.Polynomial(np.array(coefficients), (0.5, 2.0), lambda copies: pytest.fail("too early"))
    monkeypatch.setattr(temperature, "fit_polynomial", lambda *arguments: steep)
    numbers, by_theta = np.ones((2, 9), np.float32), np.ones((2, 9, 3), np.float32)
    rows = {4: Rows(numbers, numbers, numbers > 1, numbers, by_theta, by_theta, numbers)}
    with pytest.raises(
        Refusal, match=rf"criterion target reaches {place} nats, and .* at most 64: .* give more --sets"
    ):
        fit(rows, rows, seeds=[0, 1], criterion="target")
    temperature.check_steepness(steep._replace(coefficients=np.array([64.0])), "target")


def test_a_saved_fit_is_an_argument_of_the_adaptive_method_and_one_that_no_reader_would_accept_is_not_written(
    found, tmp_path
):
    path = tmp_path / "temperature.json"
    with pytest.raises(ValueError, match=r"the fit by 'bins': the polynomial gives β = 9"):
        dataclasses.replace(found, coefficients=[900.0]).save(path)
    assert list(tmp_path.iterdir()) == []
    found.save(str(path))
    scale: Any = sj.normalizer(f"adaptive(fit={path})").scale
    assert scale == found.scale
    assert {*KEYS, "criterion", "lengths", "seeds", "versions"} <= json.loads(path.read_text()).keys()
    np.testing.assert_allclose(scale(jnp.zeros((1, 4000)), -1, None), found.beta_at_ends[1], rtol=1e-5)
