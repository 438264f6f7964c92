"""The laws that every registered method obeys, in float32 and bfloat16: a new name is tested by being registered."""

import functools
import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.laws.counterexamples import weigh, weigher
from softmax_jax.laws.derivatives import jacobians
from softmax_jax.laws.laws import Claims, Rounding, Rows, broken
from tests.library.laws.references import expected
from tests.tiers import HEART, full_except, methods, rare_except

ROWS, N = 4, 12

every_method = pytest.mark.parametrize("name", methods())
some_methods = pytest.mark.parametrize("name", HEART)
"""For promises that `check` holds every method to, in more detail."""
DTYPES = ["float32", "bfloat16"]
every_type = pytest.mark.parametrize(
    ("name", "dtype"), methods((name, dtype) for dtype in DTYPES for name in sj.METHODS)
)
every_dtype = pytest.mark.parametrize("dtype", full_except(DTYPES, "float32"))


def from_bytes(dtype, change):
    """Arrays of (ROWS, N) made from raw bytes, which are drawn much faster than numbers one by one."""
    size = ROWS * N * np.dtype(dtype).itemsize
    return st.binary(min_size=size, max_size=size).map(lambda raw: change(np.frombuffer(raw, dtype).reshape(ROWS, N)))


# Multiples of 1/16 up to 8: both types hold them exactly, so that only the arithmetic can be wrong. Ties are frequent.
logits_strategy = from_bytes(np.int8, lambda k: k / 16)
masks = from_bytes(np.int8, lambda k: k >= 0) | st.sampled_from([True, False]).map(lambda v: np.full((ROWS, N), v))
# Of all bit patterns, so that every size is as likely; those that are not finite stand for the ends of the type.
any_size = from_bytes(np.float32, np.nan_to_num)
HIDING = np.tile(np.array([0.0] * (N - 2) + [-0.125, -32768.0], np.float32), (ROWS, 1))
"""Rows whose lowest number hides its entry, which a map of signed weights would give less than nothing."""
# Generic rows: with probability 1 no kink of a piecewise map is near.
generic = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).normal(size=6))


# Numbers are arguments, so each method is one program for each type and shape.
weights_alone = jax.jit(lambda normalizer, logits: normalizer(logits))
weights_along = jax.jit(lambda normalizer, logits, axis, where: normalizer(logits, axis, where), static_argnums=2)


by_name = functools.cache(sj.normalizer)


def evaluate(name, logits, where, dtype):
    """Weights and gradient as numpy, in float64 so that comparisons add no rounding."""
    outputs = weigh(by_name(name), jnp.asarray(logits, dtype), jnp.asarray(where))
    assert all(output.shape == np.shape(logits) and output.dtype == dtype for output in outputs)
    return tuple(np.asarray(output, np.float64) for output in outputs)


def assert_close(actual, wanted, dtype, rtol=2e-5, rounded=1):
    """Within the rounding of the weights' type, or within that of float32 under the exponential where that is more.

    `rounded` says how many of the two were rounded to that type: 2, where neither is the formula in float64.
    """
    rtol = max(rtol, {"float32": 0, "bfloat16": rounded * 2.0**-8}[dtype])
    np.testing.assert_allclose(actual, wanted, rtol=rtol, atol=2e-7)


@every_type
@hypothesis.given(logits_strategy, masks)
def test_agrees_with_the_formula_in_float64(name, dtype, logits, where):
    assert_close(evaluate(name, logits, where, dtype)[0], expected(name, logits, where), dtype)


@every_type
@hypothesis.given(logits_strategy | any_size, masks)
@hypothesis.example(HIDING, np.ones((ROWS, N), bool))
def test_no_row_breaks_a_law(name, dtype, logits, where):
    """Multiples of 1/16 are exact in both types; numbers of any size are held to the laws that say so."""
    largest = float(jnp.finfo(dtype).max)
    rows = Rows(np.clip(np.asarray(logits, np.float64), -largest, largest), where, ["drawn"] * ROWS)
    claims = Claims.of(by_name(name))._replace(monotone=True)
    any_size = logits.dtype == np.float32
    found = broken(weigher(by_name(name), dtype), rows, Rounding.of(dtype), claims, any_size)
    assert {promise: rows.logits[found.broken] for promise, found in found} == {}


def test_a_nan_is_far_from_a_number_and_equal_infinities_are_near():
    got = np.array([[np.nan, 1], [np.nan, 1], [np.inf, 1], [1, 1]])
    wanted = np.array([[1, 1], [np.nan, 1], [np.inf, 1], [np.nan, 1]])
    assert Rounding.of("float32").far(got, wanted).tolist() == [True, False, False, True]


ONE_PER_MAP = "softpick", "sparsemax", "entmax", "top_k", "sink_softmax", "sigmoid", "signed_l1", "stieltjes", "ssmax"
"""Methods that stand for the others, whose promises the laws above try one by one."""


@pytest.mark.parametrize(
    "name",
    [*full_except(HEART, "adaptive"), *rare_except((name for name in sj.METHODS if name not in HEART), *ONE_PER_MAP)],
)
def test_every_promise_is_kept(name):
    assert sj.check(name).broken == []


@some_methods
def test_a_visible_nan_or_infinity_makes_its_long_row_nan_and_no_other(name):
    logits = np.random.default_rng(0).normal(size=(8, 1000)).astype(np.float32)
    for bad in np.nan, np.inf:
        logits[1, 700] = bad
        weights = weights_alone(by_name(name), jnp.asarray(logits))
        assert np.isnan(weights[1]).all()
        assert np.isfinite(np.delete(weights, 1, 0)).all()


@every_dtype
@some_methods
@hypothesis.given(logits_strategy, masks, st.sampled_from([-1, 1]))
def test_a_shift_changes_what_the_definition_says_and_nothing_else(name, dtype, logits, where, sign):
    # Steps of 1/2 and a shift of 64 are what bfloat16 carries without rounding.
    logits, shift = (logits, 1e4) if dtype == "float32" else (np.round(2 * logits) / 2, 64)
    shifted = logits + sign * shift
    weights, _ = evaluate(name, shifted, where, dtype)
    if by_name(name).shift_invariant:
        assert_close(weights, evaluate(name, logits, where, dtype)[0], dtype, rounded=2)
        assert_close(weights, expected(name, shifted, where), dtype)
    else:
        # Where a scale multiplies the 1e4 itself, float32 rounds the product by up to 1e-3.
        rounded = sj.METHODS[name].scale is not None
        assert_close(weights, expected(name, shifted, where), dtype, rtol=4e-3 if rounded else 2e-5)


@jax.jit
def all_slopes(normalizer, rows, cotangent):
    """Derivatives along one direction, and gradients in the numbers and the logits."""
    along = jax.jvp(normalizer, (rows,), (cotangent,))[1]
    return along, jax.grad(lambda n, z: jnp.sum(n(z) * cotangent), (0, 1), allow_int=True)(normalizer, rows)


@pytest.mark.full
@some_methods
def test_derivatives_are_finite_where_logits_lie_far_apart(name):
    lows = [-8999.0, -1e38, -2.4e38, float(jnp.finfo("float32").min)]
    near = jnp.linspace(0, 1, 8)  # of an entropy that moves β
    rows = jnp.stack([jnp.append(near, far) for low in lows for far in (low, -low)])
    rows = jnp.concatenate([rows, -jnp.sign(rows) * lows[-1]])
    for slope in jax.tree.leaves(
        all_slopes(by_name(name), rows, 1e3 * jnp.cos(jnp.arange(float(rows.size))).reshape(rows.shape))
    ):
        assert slope.dtype == jax.dtypes.float0 or np.isfinite(slope).all()


@pytest.mark.full
@every_method
def test_a_long_row(name):
    n = 4096
    logits = jnp.asarray(np.random.default_rng(n).normal(size=(1, n)), jnp.float32)
    weights = np.asarray(weights_alone(by_name(name), logits), np.float64)
    assert_close(weights, expected(name, logits, np.ones((1, n), bool)), "float32")


@pytest.mark.full
@every_dtype
@some_methods
@pytest.mark.parametrize("axis", [0, -1, (0, 2)])
def test_axis_equals_moving_the_axis_to_the_end(name, dtype, axis):
    rng = np.random.default_rng(0)
    logits, where = rng.integers(-64, 64, size=(2, 3, 4)) / 32, rng.random((2, 3, 4)) < 0.7
    axes = axis if isinstance(axis, tuple) else (axis,)
    last = tuple(range(-len(axes), 0))
    moved = np.moveaxis(logits, axes, last)
    rows = [
        np.moveaxis(array, axes, last).reshape(-1, math.prod(moved.shape[-len(axes) :])) for array in (logits, where)
    ]
    wanted = np.moveaxis(expected(name, *rows).reshape(moved.shape), last, axes)
    weights = weights_along(by_name(name), jnp.asarray(logits, dtype), axis, jnp.asarray(where))
    assert_close(np.asarray(weights, np.float64), wanted, dtype, rounded=2)


@every_dtype
@some_methods
def test_no_mask_equals_a_mask_that_hides_nothing(name, dtype):
    logits = np.random.default_rng(0).normal(size=(ROWS, N))
    unmasked = weights_alone(by_name(name), jnp.asarray(logits, dtype))
    assert_close(
        np.asarray(unmasked, np.float64), evaluate(name, logits, np.ones((ROWS, N), bool), dtype)[0], dtype, rounded=2
    )


@some_methods
@hypothesis.given(generic)
def test_gradients_equal_central_differences(name, row):
    """In the logits, and then in the numbers."""
    with jax.enable_x64(True):
        found = jacobians(sj.normalizer(name), jnp.asarray(row))
    assert found.forward is not None
    assert found.reverse is not None
    np.testing.assert_allclose(found.forward, found.reverse, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.forward[:, :6], found.moved[:, :6], atol=1e-8)
    np.testing.assert_allclose(found.forward, found.moved, atol=1e-7)


@every_method
def test_changing_a_number_recompiles_nothing(name):
    traces = []

    @jax.jit
    def weigh(normalizer, row):
        traces.append(name)
        return normalizer(row)

    normalizer = sj.normalizer(name)
    weigh(normalizer, jnp.arange(3.0))
    weigh(jax.tree.map(lambda number: type(number)(1.5 * number), normalizer), jnp.arange(3.0))
    assert len(traces) == 1
