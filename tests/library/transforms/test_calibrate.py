from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import softmax_jax as sj

from .models import HEADS, QKV, attention, normal, refused

TRUE = sj.normalizer("ssmax", s=jnp.array([0.3, 0.8])[:, None, None])


def distance(apply, batch):
    """How far a function is from attention with one number per head."""
    return ((apply(*batch) - attention(*batch, softmax=TRUE)) ** 2).mean()


def calibrate(fun: Any = attention, normalizer: Any = "ssmax", **options: Any) -> dict[int, sj.Normalizer]:
    defaults = {"learn": ("s",), "loss": distance, "batches": [QKV], "optimizer": optax.adam(0.03)}
    with jax.numpy_dtype_promotion("standard"):  # which Adam itself needs
        return sj.calibrate(fun, normalizer, **defaults | options)


def test_numbers_per_head_are_found_by_gradient():
    found = calibrate(batches=[QKV] * 150)
    assert found.keys() == {0}
    numbers: Any = found[0].scale
    assert numbers.s.shape == (HEADS, 1, 1)
    np.testing.assert_allclose(numbers.s.ravel(), [0.3, 0.8], atol=0.02)
    assert jax.jit(lambda *qkv: distance(sj.swap(attention, found), qkv))(*QKV) < 1e-4


@pytest.mark.full
def test_every_batch_is_a_step_in_its_order():
    loss = lambda apply, batch: batch[0] * distance(apply, batch[1])  # noqa: E731
    batches = [(jnp.float32(weight), QKV) for weight in (1.0, 5.0, 2.0)]
    (found,) = calibrate(batches=batches, loss=loss, optimizer=optax.sgd(0.5)).values()
    numbers = jnp.full((HEADS, 1, 1), sj.normalizer("ssmax").scale.s)  # pyright: ignore

    @jax.jit
    def step(s, batch):
        return s - 0.5 * jax.grad(lambda s: loss(sj.swap(attention, sj.normalizer("ssmax", s=s)), batch))(s)

    for batch in batches:
        numbers = step(numbers, batch)
    np.testing.assert_allclose(found.scale.s, numbers, rtol=1e-5)  # pyright: ignore


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"learn": ("t",)}, "cannot learn 't': the numbers of this normalizer are s, bias"),
        ({"normalizer": "hardmax"}, "cannot learn 's': the numbers of this normalizer are none"),
        ({"batches": []}, "batches is empty; it must hold at least one batch: give one per step"),
        ({"loss": lambda apply, batch: batch[0].sum()}, "loss never calls the function that it is given"),
        ({"where": lambda site: site.index == 5}, "no site is chosen among 0: site_0 (attention)"),
    ],
)
def test_bad_input_is_named_in_one_line(options: dict[str, Any], line: str):
    refused(lambda: calibrate(**options), line)


@pytest.mark.full
def test_sites_of_fewer_axes_have_one_number():
    pool = lambda q: jax.nn.softmax(QKV[0][0, 0] @ q) @ QKV[1][0, 0]  # noqa: E731
    found: Any = calibrate(pool, loss=lambda apply, q: (apply(q) ** 2).sum(), batches=[normal(8)])
    assert found[0].scale.s.shape == ()


def test_a_row_that_sees_nothing_is_as_empty_says():
    """The loss is a product with what that row attends to: nothing is learned where this is 0."""
    seen = jnp.array([[True] * 3, [False] * 3])
    attend = lambda z, v: jax.nn.softmax(jnp.where(seen, z, -1e30)) @ v  # noqa: E731
    loss = lambda apply, batch: jnp.prod(apply(*batch))  # noqa: E731
    batch, options = (jnp.array([[1.0, 0.0, 0.0]] * 2), jnp.array([[1.0], [2.0], [3.0]])), {"optimizer": optax.sgd(0.1)}
    scales: Any = (
        calibrate(attend, loss=loss, batches=[batch], heads=None, empty=empty, **options)[0].scale
        for empty in ("model", "zeros")
    )
    as_the_model, zeros = scales
    initial: Any = sj.normalizer("ssmax").scale
    assert zeros.s == initial.s
    assert as_the_model.s > initial.s + 0.01
