import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax import theory
from softmax_jax.normalizers.row import critical_beta
from tests.library.laws.references import entropy, power_beta

INF, NAN = float("inf"), float("nan")
PUBLISHED = (-0.037, 0.481, -2.3, 4.917, -1.791)
RANGED = sj.EntropyPolynomial(entropy_range=(1.5, 4.0))


def uniform(n):
    return jnp.zeros((1, n))


@jax.jit
def beta(scale, logits, where=None):
    return scale(logits, -1, where)


def test_entropy_of_uniform_one_hot_empty_and_bfloat16_rows():
    entropy_of = jax.jit(lambda z, where=None: sj.entropy(z, where=where))
    np.testing.assert_allclose(entropy_of(uniform(1000)), [[math.log(1000)]], rtol=1e-6)
    assert entropy_of(jnp.array([0.0, 3e38, -3e38])) == 0
    assert entropy_of(jnp.array([NAN, INF]), jnp.zeros(2, bool)) == 0
    z = jnp.asarray(np.random.default_rng(0).normal(size=4096), jnp.bfloat16)
    np.testing.assert_allclose(entropy_of(z), [entropy(np.asarray(z, np.float64))], rtol=1e-5)


@pytest.mark.full
def test_the_critical_beta_is_that_of_the_theory():
    rng = np.random.default_rng(0)
    z, where = 3 * rng.normal(size=(2, 6, 40)), rng.random((2, 6, 40)) < 0.5
    for dtype in (jnp.float32, jnp.bfloat16):
        logits = jnp.asarray(z, dtype)
        found = jax.jit(critical_beta)(logits, jnp.asarray(where))
        np.testing.assert_allclose(found, theory.critical_beta(np.asarray(logits, np.float64), where), rtol=1e-5)
        np.testing.assert_array_equal(found, critical_beta(jnp.where(where, logits, -jnp.inf)))


def test_the_critical_beta_of_ties_lone_entries_and_bad_rows():
    z = jnp.array(
        [[1.0, 1.0, 0.0], [1.0, -INF, -INF], [-INF] * 3, [NAN, 0.0, 1.0], [INF, 0.0, 1.0], [3e38, -3e38, -1e38]]
    )
    bound = jax.jit(critical_beta)
    np.testing.assert_array_equal(bound(z), [INF, 0, 0, NAN, NAN, 0])
    hidden = jnp.array([[True, True, True]] * 3 + [[False, True, True]] * 3)
    np.testing.assert_allclose(bound(z, hidden)[3:5], np.log(2), rtol=1e-6)
    np.testing.assert_array_equal(bound(jnp.zeros((2, 1))), 0)


@pytest.mark.full
def test_clipped_log_length_follows_log_length_between_its_bounds():
    scale, slopes = sj.ClippedLogLength(s=0.5, bias=0.1, low=0.7, high=2.0), []
    for n, wanted in (1, 0.7), (2, 0.7), (4, 0.5 * math.log(4) + 0.1), (64, 2.0), (4096, 2.0):
        value, slope = jax.value_and_grad(lambda scale, n=n: beta(scale, uniform(n))[0, 0])(scale)
        assert value == pytest.approx(wanted, rel=1e-6)
        slopes.append([float(slope.low), float(slope.bias), float(slope.high)])
    assert slopes[1:4] == np.eye(3).tolist()


def test_log_position_steps_at_every_multiple_of_its_length_by_its_offset():
    for length in 3, 4096:
        ends = jnp.arange(1, 2000) * length - 1
        betas = beta(sj.LogPosition(floor_scale=length, positions=ends[:, None]), jnp.zeros((1999, 1)))
        np.testing.assert_allclose(betas[:, 0], 1 + 0.1 * np.log(np.arange(2, 2001)), rtol=1e-6)
    # 1 as in Llama 4, and 0 as in Mistral 3.
    positions = jnp.array([6, 7, 8])[:, None]
    for offset, steps in (1.0, [1, 1, 1]), (0.0, [0, 1, 1]):
        wanted = 1 + 0.3 * np.log1p(steps)
        for given, where in (positions, None), (np.asarray(positions), None), (None, jnp.arange(9)[None] <= positions):
            found = beta(sj.LogPosition(0.3, 7.0, given, offset), jnp.zeros((3, 9)), where)
            np.testing.assert_allclose(found.ravel(), wanted, rtol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize(
    ("weight", "power"),
    [(0.0, math.atanh(0.5)), (-1.3, 0.4), (2.0, -0.8), (0.5, 0.0), (30.0, 9.0), (0.3, -5.0)],
)
def test_log_length_power_equals_its_formula_and_learns_from_every_row(weight, power):
    counts, h, numbers = [0, 1, 2, 3, 16], 1e-6, [weight, power, 0.5]
    for n in 1, 4096:
        found = beta(sj.LogLengthPower(*numbers), uniform(n))
        np.testing.assert_allclose(found, [[power_beta(n, *numbers)]], rtol=2e-6)

    def of_rows(scale):
        return beta(scale, jnp.zeros((5, 16)), jnp.arange(16)[None] < jnp.array(counts)[:, None])[:, 0]

    with jax.enable_x64(True):
        scale = sj.LogLengthPower(*numbers)
        np.testing.assert_allclose(of_rows(scale), [power_beta(n, *numbers) for n in counts], rtol=2e-6)
        slopes = [jax.tree.leaves(derivative(of_rows)(scale)) for derivative in (jax.jacfwd, jax.jacrev)]
    for place, pair in enumerate(zip(*slopes)):
        up, down = ([*numbers[:place], numbers[place] + step, *numbers[place + 1 :]] for step in (h, -h))
        wanted = np.array([(power_beta(n, *up) - power_beta(n, *down)) / (2 * h) for n in counts])
        for slope in pair:
            np.testing.assert_allclose(slope, wanted, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize(("k", "each", "others"), [(1.0, 0.0280, 0.72), (2.0, 0.074, 0.25)])
def test_length_rule_on_its_example(k, each, others):
    # 200 entries, of which the ten that matter have logit +1 and the others -1.
    logits = jnp.array([1.0] * 10 + [-1.0] * 190)
    weights = np.asarray(sj.temperature_softmax(logits, theta=1 / k), np.float64)
    mass = weights[10:].sum()
    assert weights[0] == pytest.approx(each, rel=5e-3)
    assert mass == pytest.approx(others, abs=1e-2)
    assert beta(sj.LengthRule(m=10, eps=float(mass)), logits) == pytest.approx(k, rel=1e-5)


@pytest.mark.full
def test_published_polynomial_is_active_only_from_0_849_to_5_945_nats():
    # One item ever further above 599 others: entropies from log(600) = 6.4 down to 0.
    logits = jnp.zeros((4000, 600)).at[:, 0].set(jnp.linspace(0, 16, 4000))
    entropies, betas = sj.entropy(logits), beta(sj.EntropyPolynomial(), logits)
    active = betas > 1
    assert (entropies.min() < 0.01) & (entropies.max() > 6.39)
    assert [entropies[active].min(), entropies[active].max()] == pytest.approx([0.849, 5.945], abs=5e-3)
    assert ((entropies > 0.86) & (entropies < 5.94) <= active).all()
    assert (betas[~active] == 1).all()
    assert betas.max() == pytest.approx(2.42, abs=5e-3)
    assert entropies[betas.argmax(0), 0] == pytest.approx(4.41, abs=2e-2)


@pytest.mark.parametrize(
    ("scale", "n", "expected"),
    [
        (sj.ConstantTemperature(0.25), 3, 4),
        (sj.InverseTemperature(), 3, 1),
        (sj.EntropyPolynomial((3.0,)), 2, 3),  # of an entropy of 0.69 nats
        (sj.EntropyPolynomial((3.0,), threshold=0.7), 2, 1),
        (sj.EntropyPolynomial((0.2,)), 2, 1),
        (sj.EntropyPolynomial((0.2,), floor=0.5), 2, 0.5),
        *[(RANGED, n, np.polyval(PUBLISHED, h)) for n, h in ((2, 1.5), (20, math.log(20)), (1000, 4.0))],
        *[(sj.LengthRatio(ratio), 9, (0.1 * math.log(ratio) + 1) ** 2) for ratio in (1.0, 16.0, 1e6)],
        *[(sj.LogLength(0.43, 0.1), n, 0.43 * math.log(n) + 0.1) for n in (1, 2)],
        *[(sj.LengthRule(m=10, eps=eps), n, 0) for eps, n in ((0.05, 10), (0.05, 7), (0.9, 20))],
    ],
)
def test_simple_scales_equal_their_formulas(scale, n, expected):
    assert float(beta(scale, uniform(n)).squeeze()) == pytest.approx(expected, rel=1e-4)


def test_an_entropy_at_the_threshold_is_not_above_it_and_one_at_an_end_of_the_range_not_beyond():
    alone = uniform(1)  # whose entropy is 0
    assert beta(sj.EntropyPolynomial((3.0,), threshold=0.0), alone) == 1
    for ends, beyond in (((-1.0, 0.0), False), ((0.0, 1.0), False), ((0.5, 1.0), True), ((-1.0, -0.5), True)):
        scale = sj.EntropyPolynomial((1.0,), threshold=-2.0, entropy_range=ends)
        assert scale.extrapolates(alone, -1, None) == beyond
    assert not sj.EntropyPolynomial((1.0,), entropy_range=(1.0, 3.0)).extrapolates(alone, -1, None)  # by the threshold
    assert not sj.EntropyPolynomial().extrapolates(uniform(1000), -1, None)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sj.ConstantTemperature(0), r"theta is 0\.0; it must be a finite number above 0, such as 1\.0"),
        (lambda: sj.LogLength(s=INF), r"s is inf; it must be a finite number such as"),
        (lambda: sj.ClippedLogLength(low=2, high=1.5), r"low is 2\.0 and high is 1\.5; low must lie below high: give"),
        (lambda: sj.LengthRule(m=0.0), r"m is 0\.0; it must be"),
        (lambda: sj.LengthRule(eps=2), r"eps is 2\.0; it must be a finite number between 0 and 1, such as"),
        (lambda: sj.LogPosition(floor_scale=0.5), r"floor_scale is 0\.5; it must be .* at least 1, such as"),
        (lambda: sj.LogPosition(positions=-1), r"positions is -1\.0; it must be .* at least 0, such as"),
        (lambda: sj.LengthRatio(0.5), r"ratio is 0\.5; it must be a finite number at least 1, such as 4\.0"),
        (lambda: sj.EntropyPolynomial(()), r"coefficients is \(\); it must hold at least one number"),
        (lambda: sj.EntropyPolynomial((1.0, NAN)), r"each of coefficients is nan; it must be"),
        (lambda: sj.EntropyPolynomial(entropy_range=(NAN, 1.0)), r"each of entropy_range is nan; it must be"),
        (
            lambda: sj.Normalizer(sj.softmax, sj.LogPosition(positions=jnp.arange(5)[:, None]))(jnp.zeros((4, 8))),
            r"LogPosition has shape \(5, 1\) for logits .* a number for each row: give",
        ),
        (lambda: sj.EntropyPolynomial(entropy_range=(3, 2)), r"entropy_range is \(3\.0, 2\.0\); .* low below high"),
    ],
)
def test_a_bad_number_is_refused_in_one_line(build, message):
    with pytest.raises(ValueError, match=rf"^.*{message}.*$"):
        build()


def test_traced_numbers_are_not_checked():
    assert jax.jit(lambda theta: beta(sj.ConstantTemperature(theta), uniform(3)))(0.5) == 2
    ends = jax.jit(lambda low, high: beta(sj.EntropyPolynomial(entropy_range=(low, high)), uniform(20)))
    assert ends(1.5, 2.0) == pytest.approx(np.polyval(PUBLISHED, 2.0), rel=1e-4)


@pytest.mark.full
def test_interpolation_goes_through_its_knots_and_stays_at_the_ends():
    logits = jnp.stack([jnp.where(jnp.arange(64) < n, 0.0, -jnp.inf) for n in (1, 2, 4, 8, 16, 64)])
    entropies = jnp.log(jnp.array([4.0, 16.0]))
    for knots, wanted in ([2.0, 3.0], [1.0, 2.0, 2.0, 2.5, 3.0, 3.0]), ([0.2, 0.3], [1.0] * 6):
        found = beta(sj.EntropyInterpolation(entropies, jnp.array(knots)), logits)
        np.testing.assert_allclose(found[:, 0], wanted, rtol=1e-5)
    steep = sj.EntropyInterpolation(jnp.array([1.0, 2.0]), jnp.array([2.0, 3.0]))
    learned = jax.grad(lambda scale: sj.Normalizer(sj.softmax, scale)(jnp.arange(6.0) / 3)[0])(steep).betas
    assert np.isfinite(learned).all()
    assert (np.asarray(learned) != 0).all()


def test_the_change_of_a_masked_logit_changes_no_entropy():
    """Here it is infinite: the logarithm of 0 has that slope."""
    x, along = jnp.array([0.0, 1.0, 2.0]), jnp.ones(3)
    slope = jax.jit(lambda x, along: jax.jvp(lambda x: sj.entropy(jnp.log(x)), (x,), (along,)))
    masked, visible = (slope(x[first:], along[first:]) for first in (0, 1))
    np.testing.assert_allclose(masked, visible, rtol=1e-6)
