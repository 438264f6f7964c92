import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from tests.tiers import methods

# The rows on which the shoot-out shows each method.
MIXED = [0.5, -0.3, 0.1, 2.5, -0.1, 0.3, 0.0, 2.0, -0.5, 0.2]
CONCENTRATED = [0.1, 0.0, 0.2, 5.0, 0.1, -0.1, 0.0, 0.1, 0.0, 0.1]
DIFFUSE = [1.0, 0.9, 1.1, 1.0, 0.8, 1.2, 0.9, 1.1, 1.0, 0.95]
INF, NAN = float("inf"), float("nan")
every_row = pytest.mark.parametrize("row", [MIXED, CONCENTRATED, DIFFUSE], ids=["mixed", "concentrated", "diffuse"])


@pytest.mark.parametrize("axis", [0, -1])
def test_softmax_equals_that_of_jax(axis):
    rng = np.random.default_rng(0)
    logits, where = jnp.asarray(5 * rng.normal(size=(5, 7)), jnp.float32), jnp.asarray(rng.random((5, 7)) < 0.6)
    where = where.at[0].set(False).at[:, 0].set(False)
    np.testing.assert_allclose(sj.softmax(logits, axis), jax.nn.softmax(logits, axis), rtol=1e-6)
    np.testing.assert_allclose(
        sj.softmax(logits, axis, where), jax.nn.softmax(logits, axis, where=where), rtol=1e-6, atol=1e-9
    )


def test_softmax_jacobian_is_its_closed_form():
    z = jnp.array(MIXED)
    p = np.asarray(sj.softmax(z))
    np.testing.assert_allclose(jax.jacrev(sj.softmax)(z), np.diag(p) - np.outer(p, p), atol=1e-7)


@every_row
def test_shoot_out_rows(row):
    z = np.array(row)
    np.testing.assert_allclose(sj.softmax(jnp.array(row)), np.exp(z) / np.exp(z).sum(), rtol=1e-5)
    rectified = np.maximum(np.exp(z) - 1, 0) / np.abs(np.exp(z) - 1).sum()
    np.testing.assert_allclose(sj.softpick(jnp.array(row)), rectified, rtol=1e-5)


@pytest.mark.parametrize(("row", "total"), [(MIXED, 6.5), (CONCENTRATED, 5.7), (DIFFUSE, 9.95)])
def test_signed_l1_divides_the_raw_scores_by_one_plus_their_absolute_sum(row, total):
    np.testing.assert_allclose(sj.signed_l1(jnp.array(row)), np.array(row) / (1 + total), rtol=1e-6)


def test_softpick_jacobian_is_its_closed_form():
    z = np.array(MIXED)[np.array(MIXED) != 0]
    m = z.max()
    total = np.abs(np.exp(z - m) - np.exp(-m)).sum() + 1e-6
    s = np.maximum(np.exp(z - m) - np.exp(-m), 0) / total
    wanted = np.exp(z - m) / total * (np.diag(z > 0) - np.outer(s, np.sign(z)))
    np.testing.assert_allclose(jax.jacrev(sj.softpick)(jnp.array(z, jnp.float32)), wanted, atol=2e-6)


def test_softpick_of_negative_logits_is_zero_yet_they_count():
    np.testing.assert_array_equal(sj.softpick(jnp.array([-1.0, -500.0, -3e38])), [0, 0, 0])
    np.testing.assert_allclose(sj.softpick(jnp.array([jnp.log(2.0), -8e3])), [0.5, 0], rtol=1e-5)


def test_softpick_keeps_the_digits_of_small_logits():
    z = np.array([1e-4, 3e-4, -2e-4])
    wanted = np.maximum(np.expm1(z), 0) / (np.abs(np.expm1(z)).sum() + 1e-12)
    np.testing.assert_allclose(sj.softpick(jnp.array(z, jnp.float32), eps=1e-12), wanted, rtol=1e-5)


@pytest.mark.parametrize("eps", [0.0, -1.0, float("nan")])
def test_softpick_refuses_an_eps_that_is_not_positive(eps):
    with pytest.raises(ValueError, match=r"eps is .*; it must be a finite number above 0, at least 1e-37, such as"):
        sj.softpick(jnp.zeros(3), eps=eps)


def test_sigmoid_weighs_each_entry_by_itself():
    z = jnp.array([0.0, np.log(2), -np.log(4)])
    np.testing.assert_allclose(sj.sigmoid(z), [1 / 4, 2 / 5, 1 / 13], rtol=1e-6)
    np.testing.assert_allclose(sj.sigmoid(z, bias=0.0), [1 / 2, 2 / 3, 1 / 5], rtol=1e-6)
    # n is the number of visible entries.
    np.testing.assert_allclose(sj.sigmoid(z, where=jnp.array([True, True, False])), [1 / 3, 1 / 2, 0], rtol=1e-6)


def test_softmax1_may_attend_to_nothing():
    np.testing.assert_allclose(sj.softmax1(jnp.array([-200.0, -200.0])), [0, 0], atol=1e-30)
    np.testing.assert_allclose(sj.softmax1(jnp.array([200.0, 200.0])), [0.5, 0.5], rtol=1e-6)


def test_softmax1_is_a_sink_of_zero():
    z = jnp.array([MIXED, CONCENTRATED, DIFFUSE])
    np.testing.assert_array_equal(sj.sink_softmax(z), sj.softmax1(z))


@pytest.mark.parametrize("offset", [0.0, 500.0, -500.0])
@pytest.mark.parametrize("sink", [-3.0, 0.5, 600.0])
def test_a_sink_is_a_logit_whose_weight_is_dropped(sink, offset):
    z = jnp.array(MIXED) + offset
    with_one_more = sj.softmax(jnp.append(z, sink))
    np.testing.assert_allclose(sj.sink_softmax(z, sink=sink), with_one_more[:-1], rtol=1e-6)


def test_a_low_sink_leaves_softmax_and_empty_rows_zero():
    z = jnp.array([MIXED, [-jnp.inf] * 10])
    where = jnp.array([[True] * 10, [False] * 10])
    for visible in None, where:
        for sink in -200.0, -1e37:
            np.testing.assert_allclose(sj.sink_softmax(z, where=visible, sink=sink), sj.softmax(z), rtol=1e-6)
            gradients = jax.jacrev(lambda z, s, v=visible: sj.sink_softmax(z, where=v, sink=s), (0, 1))(z, sink)
            assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("sink", [-3e38, 3e38])
@pytest.mark.parametrize("row", [[3e38, -3e38], [3e38, 3e38], [-3e38, -3e38]], ids=str)
def test_a_sink_of_any_size_is_finite(sink, row):
    weights, pull = jax.vjp(lambda z, s: sj.sink_softmax(z, sink=s), jnp.array(row), jnp.float32(sink))
    assert np.isfinite(weights).all()
    assert all(np.isfinite(gradient).all() for gradient in pull(jnp.array([1.0, -2.0])))


def test_one_sink_per_head():
    z = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4, 5)), jnp.float32)
    sinks = jnp.array([-1.0, 0.0, 2.0])[:, None, None]
    weights = sj.sink_softmax(z, sink=sinks)
    for head in range(3):
        np.testing.assert_allclose(weights[:, head], sj.sink_softmax(z[:, head], sink=sinks[head, 0, 0]), rtol=1e-6)


def test_the_gradient_in_the_sink_is_minus_its_weight_times_each():
    z, sink = jnp.array(MIXED), 0.7
    w = np.asarray(sj.sink_softmax(z, sink=sink), np.float64)
    for derivative in jax.jacfwd, jax.jacrev:
        slope = derivative(lambda sink: sj.sink_softmax(z, sink=sink))(sink)
        np.testing.assert_allclose(slope, -w * (1 - w.sum()), rtol=1e-5)


@pytest.mark.parametrize("sink", [INF, -INF, NAN])
def test_a_sink_that_is_not_finite_is_refused(sink):
    with pytest.raises(ValueError, match=r"sink is .*; it must be a finite number such as 1\.0"):
        sj.sink_softmax(jnp.zeros(3), sink=sink)


def test_hardmax_is_the_limit_of_temperature_to_zero():
    z = jnp.array([[0.0, 2.0, -1.0, 1.9], [3.0, 3.0, 1.0, 3.0], [-5.0, -5.0, -5.0, -5.0]])
    np.testing.assert_allclose(sj.hardmax(z), sj.temperature_softmax(z, theta=1e-4), rtol=1e-6)
    np.testing.assert_allclose(sj.hardmax(z)[1], [1 / 3, 1 / 3, 0, 1 / 3], rtol=1e-6)


def test_hardmax_has_zero_gradient():
    assert not jax.jacrev(sj.hardmax)(jnp.array([1.0, 3.0, 3.0])).any()


@pytest.mark.parametrize("s", [-2.0, 0.43, 7.0])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_shifted_softmax_is_softmax(s, offset):
    z = jnp.array(MIXED) + offset
    np.testing.assert_allclose(sj.shifted_softmax(z, s=s), sj.softmax(z), rtol=2e-6)


def test_shifted_softmax_has_zero_gradient_in_s():
    jacobian = jax.jacfwd(lambda s: sj.shifted_softmax(jnp.array(MIXED), s=s))(0.43)
    np.testing.assert_allclose(jacobian, np.zeros(10), atol=1e-7)


@pytest.mark.parametrize(
    "name", methods(["softmax", "hardmax", "shifted_softmax", "softpick", "softmax1", "sink_softmax", "signed_l1"])
)
def test_a_map_marked_shift_invariant_is_and_the_others_are_not(name):
    weigh = getattr(sj, name)
    unchanged = np.allclose(weigh(jnp.array(MIXED) + 1.0), weigh(jnp.array(MIXED)), atol=1e-6)
    assert unchanged == weigh.shift_invariant
