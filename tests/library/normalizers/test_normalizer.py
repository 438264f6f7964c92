import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.normalizers.normalizer import SoftCapped
from softmax_jax.normalizers.registry import as_normalizer
from tests.tiers import full_except

ROW = [0.5, -0.3, 2.5, 2.0]


def test_a_normalizer_is_a_map_over_a_scale_or_any_functions_called_alike():
    z, where = jnp.array(ROW), jnp.array([True, True, False, True])
    scaled = sj.Normalizer(sj.softpick, sj.LogLength(s=0.43, bias=0.1))(z)
    np.testing.assert_allclose(scaled, sj.softpick((0.43 * np.log(4) + 0.1) * z), rtol=1e-5)
    cold = sj.Normalizer(jax.nn.softmax, sj.ConstantTemperature(0.5))
    np.testing.assert_allclose(cold(z, where=where), jax.nn.softmax(2 * z, where=where), rtol=1e-6)
    sharp = sj.Normalizer(sj.softmax, jax.tree_util.Partial(lambda beta, z, axis, where: beta, 3.0))
    np.testing.assert_allclose(sharp(z), sj.softmax(3 * z), rtol=1e-6)
    assert jax.tree.leaves(sharp) == [3.0]
    plain = sj.Normalizer(sj.softmax, lambda z, axis, where: jnp.float32(3))  # an argument of a program, as any other
    np.testing.assert_allclose(jax.jit(lambda normalizer: normalizer(z))(plain), sharp(z), rtol=1e-6)
    assert jax.tree.leaves(plain) == []
    flat = sj.Normalizer(sj.softmax, sj.LogLength(s=0.0))
    np.testing.assert_array_equal(flat(jnp.array([1.0, -jnp.inf, 2.0])), [0.5, 0, 0.5])


@pytest.mark.parametrize(
    "scale", [sj.EntropyPolynomial((1.0, 2.0)), *full_except([sj.LogLength(), sj.LengthRule()])], ids=repr
)
def test_numbers_have_a_finite_gradient_whatever_is_behind_the_mask_and_none_where_nothing_is_visible(scale):
    z = jnp.array([1.0, jnp.nan, 2.0, jnp.inf])
    gradient = jax.jit(jax.grad(lambda n, where: n(z, where=where)[2]))
    for where in jnp.array([True, False, True, False]), jnp.zeros(4, bool):
        slopes = jax.tree.leaves(gradient(sj.Normalizer(sj.softmax, scale), where))
        assert all(np.isfinite(slope) and (where.any() or slope == 0) for slope in slopes)


def test_any_positive_temperature_is_finite_and_at_last_hardmax_and_large_logits_lose_no_digits():
    z = jnp.array([1.0, 3.0, 3.0])
    for theta in 1e-30, 1e-45, 1e-300:
        np.testing.assert_array_equal(sj.temperature_softmax(z, theta=theta), sj.hardmax(z))
    z, cold = jnp.array([0.0, 0.25, 0.5]), sj.normalizer("temperature(0.1)")
    np.testing.assert_allclose(cold(z + 1e5), cold(z), rtol=1e-6)


@pytest.mark.parametrize(("axis", "same"), [(None, (0, 1, 2)), *full_except([([0, -1], (0, 2)), (np.int64(1), 1)])])
def test_axes_are_given_as_to_jax(axis, same):
    z = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4)), jnp.float32)
    functions = sj.softmax, sj.normalizer("ssmax"), sj.entmax15, sj.entropy, sj.log_softmax
    stock, *wanted = jax.jit(lambda z: (jax.nn.softmax(z, same), *(weigh(z, same) for weigh in functions)))(z)
    found = jax.jit(lambda z: [weigh(z, axis) for weigh in functions])(z)
    np.testing.assert_allclose(found[0], stock, rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_both_modes_of_differentiation_are_finite_for_logits_of_any_size():
    z = jnp.array([float(jnp.finfo(jnp.float32).max), -1e38, 0.5])
    for mode in jax.jacfwd, jax.jacrev:
        jacobian = jax.jit(mode(lambda z, cap: sj.normalizer("softmax", cap=cap)(z), (0, 1)))
        for cap in 0.01, 1.0, 50.0:
            assert all(np.isfinite(slopes).all() for slopes in jacobian(z, cap))


@pytest.mark.full
@pytest.mark.parametrize(
    "built",
    [sj.normalizer("temperature", theta=jnp.array([0.5, 2.0])), sj.normalizer("ssmax", cap=jnp.array([2.0, 5]))],
)
def test_vmap_over_its_numbers(built):
    numbers = jax.tree.map(lambda number: jnp.broadcast_to(number, 2), built)
    weigh = jax.jit(lambda normalizer, logits: normalizer(logits))
    together = jax.jit(jax.vmap(weigh, in_axes=(0, None)))(numbers, jnp.array(ROW))
    for place, weights in enumerate(together):
        alone = jax.tree.map(lambda number, place=place: number[place], numbers)
        np.testing.assert_allclose(weights, weigh(alone, jnp.array(ROW)), rtol=1e-6)


@pytest.mark.parametrize("name", full_except(("softmax", "adaptive", "ssmax", "sigmoid", jax.nn.softmax), "adaptive"))
def test_a_cap_comes_before_everything_else_along_any_axis_and_keeps_what_is_not_finite(name):
    z = jnp.asarray(np.random.default_rng(0).normal(scale=20, size=(3, 8)), jnp.float32)
    where = jnp.asarray(np.random.default_rng(1).random((3, 8)) < 0.7)
    odd = jnp.array([[1.0, -jnp.inf, 1.0], [1.0, jnp.inf, 1.0], [1.0, jnp.nan, 1.0]])
    normalizer = as_normalizer(name)
    capped = sj.Normalizer(SoftCapped(7.0, normalizer))
    assert not capped.shift_invariant
    by_hand, along_columns, of_odd = jax.jit(
        lambda z, where, odd: (
            normalizer(7 * jnp.tanh(z / 7), where=where),
            capped(z.T, 0, where.T).T,
            capped(odd),
        )
    )(z, where, odd)
    np.testing.assert_allclose(along_columns, by_hand, rtol=2e-5, atol=1e-7)
    assert of_odd[0, 1] == 0
    assert np.isnan(of_odd[1:]).all()
