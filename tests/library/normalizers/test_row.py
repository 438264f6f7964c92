import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax import theory
from softmax_jax.normalizers import arithmetic, row as row_module
from softmax_jax.normalizers.arithmetic import as_pivot, place_of_largest
from softmax_jax.normalizers.row import Row, axis_and_mask, critical_beta
from tests.tiers import full_except


def test_logits_must_be_real_floating_point():
    for dtype in jnp.int32, jnp.bool_, jnp.complex64:
        with pytest.raises(TypeError, match=r"logits have dtype .*; they must be floating point: call"):
            inspect.unwrap(axis_and_mask)(jnp.ones(3, dtype), -1, None)


SEEN = jnp.array([True, True, False])
Z = jnp.array([2.0, 0.0, 5.0])
READERS = {
    "a map": sj.sigmoid,
    "a method": sj.ssmax,
    "a normalizer": sj.normalizer("adaptive"),
    "a function": sj.Normalizer(jax.nn.softmax, sj.LogLength()),
    "a scale": lambda z, where: sj.LogLength()(z, -1, where),
    "entropy": sj.entropy,
    "log_softmax": sj.log_softmax,
    "soft_cross_entropy": lambda z, where: sj.soft_cross_entropy(z, jnp.array([0.25, 0.75, 0.0]), where=where),
    "softmax_jvp": lambda z, where: sj.softmax_jvp(z, z, where=where),
    "top_k_mask": lambda z, where: sj.top_k_mask(z, 3, where=where),
    "top_p_mask": lambda z, where: sj.top_p_mask(z, 1.0, where=where),
    "min_p_mask": lambda z, where: sj.min_p_mask(z, 0.0, where=where),
    "gumbel_softmax": lambda z, where: sj.gumbel_softmax(jax.random.key(0), z, where=where, temperature=1e6),
    "critical_beta": lambda z, where: critical_beta(z, where),
    "theory": lambda z, where: theory.critical_beta(np.asarray(z), where),
}
LOGARITHMS = {"log_softmax", "soft_cross_entropy", "softmax_jvp"}
"""What a low logit hides nothing from: its logarithm is what it is, and a vector of weights has none."""
every_reader = pytest.mark.parametrize("reader", READERS)


@every_reader
def test_a_mask_of_0_and_1_is_taken_and_one_to_be_added_refused_with_a_remedy_that_is_right(reader):
    read, wanted = READERS[reader], READERS[reader](Z, where=SEEN)
    for mask in SEEN.astype(int), SEEN.astype(jnp.bfloat16), [1, 1, 0], [True, True, False]:
        np.testing.assert_array_equal(read(Z, where=mask), wanted)
    for added in jnp.where(SEEN, 0.0, -1e9), jnp.where(SEEN, 0.0, -jnp.inf), jnp.array([0, 0, -10_000]):
        with pytest.raises(ValueError, match=r"holds -\S+; it must be bool.*add a mask .* where=mask > -9000"):
            read(Z, where=added)
        if reader not in LOGARITHMS:
            np.testing.assert_array_equal(read(Z + added.astype(Z.dtype), where=None), wanted)
    with pytest.raises(ValueError, match=r"holds 0 alone; .* mask != 0 if all is hidden"):
        read(Z, where=jnp.zeros(3))
    if reader != "theory":
        compiled = jax.jit(lambda mask: read(Z, where=mask))
        with pytest.raises(TypeError, match=r"float32 and is traced; .* mask != 0 if it holds 0 and 1"):
            compiled(jnp.ones(3))
        np.testing.assert_allclose(compiled(SEEN.astype(int)), wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", full_except(["float16", "float64"], "float16"))
def test_a_low_number_hides_in_every_type(dtype):
    with jax.enable_x64(dtype == "float64"):
        z = jnp.array([2.0, -1.0, 0.5], dtype)
        for low in -1e4, float("-inf"), jnp.finfo(dtype).min:
            added = jnp.array([0.0, 0.0, low], dtype)
            for weigh in sj.ssmax, sj.signed_l1, sj.normalizer("stieltjes"):
                np.testing.assert_array_equal(weigh(z + added), weigh(z, where=SEEN))


def test_a_logit_hides_from_minus_9000_on_and_8000_below_the_largest_on():
    hidden = {(2.0, -9000.0): True, (2.0, -8999.0): False, (-1000.0, -9000.0): True, (-1001.0, -9000.0): False}
    for row, hides in hidden.items():
        weights = sj.signed_l1(jnp.array(row), where=jnp.array([True, not hides]))
        np.testing.assert_allclose(sj.signed_l1(jnp.array(row)), weights)


@pytest.mark.full
def test_rows_that_are_low_throughout_are_weighed_as_they_stand_and_a_scale_hides_nothing():
    likelihoods = jnp.asarray(np.random.default_rng(0).normal(-1e5, 3.0, (3, 9)), jnp.float32)
    for weigh in sj.softmax, sj.normalizer("temperature"):
        np.testing.assert_allclose(weigh(likelihoods), jax.nn.softmax(likelihoods), rtol=1e-5)
    lowest = jnp.full(4, jnp.finfo("float32").min)
    np.testing.assert_array_equal(sj.normalizer("temperature")(lowest), jnp.full(4, 0.25))
    np.testing.assert_allclose(sj.sigmoid(jnp.array([1e9, -8e3, 0.0])), [1, 0, 0.25], rtol=1e-6)
    sharp = sj.Normalizer(sj.sigmoid, sj.InverseTemperature(1e3))
    np.testing.assert_allclose(sharp(jnp.array([0.0, -20.0, -30.0])), [0.25, 0, 0], rtol=1e-6)


def test_plain_numpy_of_double_precision_is_taken_without_a_warning(symbols_pass):
    x: Any = np.array([1.0, 2.0])
    with jax.numpy_dtype_promotion("standard"):
        for weights in sj.softmax(x), sj.ssmax(x), sj.log_softmax(x), sj.softmax_jvp(x, x):
            assert weights.dtype == jnp.float32


# The row

LOGITS, MASK = jnp.zeros((4, 16)), jnp.ones((4, 16), bool)


@pytest.mark.parametrize(("name", "most"), [("softmax", 2), ("ssmax", 8)])
def test_a_masked_call_chooses_no_more_often_than_it_must(name, most):
    """A masked SSMax chooses by the mask, the low logits, the pivot, three bounds, what is not finite, and the mask."""
    weigh = sj.normalizer(name)
    jaxpr = jax.make_jaxpr(lambda logits, mask: weigh(logits, -1, mask))(LOGITS, MASK)
    assert 0 < str(jaxpr).count("= select_n") <= most


def test_a_mask_is_checked_once(monkeypatch):
    calls, read_mask = [], row_module.read_mask
    monkeypatch.setattr(row_module, "read_mask", lambda *args: calls.append(1) or read_mask(*args))
    sj.normalizer("ssmax")(LOGITS, where=MASK)
    assert len(calls) == 1


def test_a_row_says_what_hides():
    logits = jnp.array([0.0, -9e3, 5.0, -jnp.inf])
    row = Row.of(logits, -1, jnp.array([True, True, False, True]))
    assert row.logits.tolist() == [0.0, -jnp.inf, -jnp.inf, -jnp.inf]
    assert row.where is not None
    assert row.where.tolist() == [True, False, False, False]
    assert Row.of(logits, -1, None, low_hides=False).logits.tolist() == logits.tolist()


def test_the_pivot_of_a_row_without_weights_is_nan_and_that_of_an_empty_row_the_lowest_number():
    lowest = np.finfo(np.float32).min
    np.testing.assert_array_equal(as_pivot(jnp.array([jnp.inf, -jnp.inf, 2.0])), [np.nan, lowest, 2])


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("compiled", [lambda f: f, jax.jit, jax.vmap])
def test_the_place_of_the_largest_is_that_of_argmax(compiled, on_cpu, monkeypatch):
    monkeypatch.setattr(arithmetic, "on_cpu", lambda: on_cpu)
    rows = np.random.default_rng(0).integers(0, 5, (4, 9)).astype(np.float32)  # with ties
    rows[1], rows[2, 4:], rows[3, 5] = -np.inf, -np.inf, np.inf
    find = compiled(lambda values: place_of_largest(values))  # a function of its own, which no trace is kept of
    np.testing.assert_array_equal(find(jnp.asarray(rows)), rows.argmax(1))
