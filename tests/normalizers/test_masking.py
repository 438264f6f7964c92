import inspect
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax.normalizers import masking

INF = np.inf


def test_hide_puts_zero_where_the_mask_is_false():
    values = jnp.array([1.0, jnp.nan, jnp.inf])
    np.testing.assert_array_equal(masking.hide(values, jnp.array([True, False, False])), [1, 0, 0])
    assert masking.hide(values, None) is values


def test_hide_broadcasts_the_mask():
    hidden = masking.hide(jnp.ones((2, 3)), jnp.array([[True, False, True]]))
    np.testing.assert_array_equal(hidden, [[1, 0, 1], [1, 0, 1]])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_arithmetic_is_in_float32(dtype):
    assert masking.visible_logits(jnp.ones(3, dtype)).dtype == jnp.float32


def test_float64_stays():
    with jax.enable_x64(True):
        assert masking.visible_logits(jnp.ones(3, jnp.float64)).dtype == jnp.float64


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.bool_, jnp.complex64])
def test_logits_must_be_real_floating_point(dtype):
    with pytest.raises(TypeError, match=r"logits have dtype .*; they must be floating point: call"):
        inspect.unwrap(masking.visible_logits)(jnp.ones(3, dtype))


def test_an_additive_mask_is_refused():
    with pytest.raises(TypeError, match=r"the mask has dtype float32; it must be bool.*`mask == 0`"):
        inspect.unwrap(masking.visible_logits)(jnp.ones(3), jnp.array([0.0, 0.0, -1e9]))


def test_visible_count():
    where = jnp.array([[True, True, False], [False, False, False]])
    logits = masking.visible_or_lowest(jnp.array([[1.0, jnp.nan, jnp.inf]] * 2), where)
    np.testing.assert_array_equal(masking.visible_count(logits, -1), [[2], [0]])
    np.testing.assert_array_equal(masking.visible_count(logits, (0, 1)), [[2]])
    np.testing.assert_array_equal(masking.visible_count(jnp.ones((2, 3)), 0), [[2, 2, 2]])


def test_row_maximum_sees_visible_entries_and_is_zero_for_an_empty_row():
    logits = jnp.array([[-3.0, -2.0, 9.0], [5.0, 5.0, 5.0], [-INF, -INF, 1.0]])
    where = jnp.array([[True, True, False], [False, False, False], [True, True, False]])
    np.testing.assert_array_equal(masking.row_maximum(logits, -1, where), [[-2], [0], [0]])


def test_centre_is_finite_for_logits_at_both_ends_of_the_type():
    largest = jnp.finfo(jnp.float32).max
    np.testing.assert_array_equal(masking.centre(jnp.array([largest, -largest]), -1, None), [0, -largest])


def test_centre_hides_what_is_masked():
    where = jnp.array([True, True, False])
    np.testing.assert_array_equal(masking.centre(jnp.array([1.0, 3.0, jnp.nan]), -1, where), [-2, 0, 0])


def test_row_sum_is_one_for_an_empty_row():
    np.testing.assert_array_equal(masking.row_sum(jnp.array([[2.0, 3.0], [0.0, 0.0]]), -1), [[5], [1]])


PLAIN = """
import numpy as np, softmax_jax as sj
x = np.array([1.0, 2.0])
print(*(weights.dtype for weights in (sj.softmax(x), sj.ssmax(x), sj.log_softmax(x), sj.softmax_jvp(x, x))))
"""


@pytest.mark.full
def test_plain_numpy_of_double_precision_is_taken_without_a_warning():
    done = subprocess.run([sys.executable, "-W", "error", "-c", PLAIN], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["float32"] * 4, "")
