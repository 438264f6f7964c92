"""What only a GPU can show: its kernels, its rounding, its products, its numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.attention import by_queries
from softmax_jax.attention.attention import dot_product_attention
from softmax_jax.attention.fused import runs_fused
from softmax_jax.experiment.tasks import rounded_products as products
from softmax_jax.experiment.training.run import build_run
from softmax_jax.experiment.training.trainer import chunk_trainer
from softmax_jax.laws.laws import hostile
from tests.golden import numbers
from tests.library.laws.hostile_rows import broken_laws

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
RIDES = [name for name in sj.METHODS if runs_fused(sj.normalizer(name))]
WIDTH = 33


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", RIDES)
def test_cudnn_gives_what_dense_attention_gives(name, dtype):
    generator = np.random.default_rng(0)
    query, key, value = (jnp.asarray(generator.normal(size=(2, 128, 4, 64)), dtype) for _ in range(3))
    dense_attention = functools.partial(dot_product_attention, implementation="dense")

    @jax.jit
    def run(*half):
        def loss(attention, *arrays):
            output = attention(*arrays, is_causal=True, normalizer=name).astype(jnp.float32)
            weigh = jnp.cos(jnp.arange(64, dtype=jnp.float32))[None, None, None]
            return jnp.sum(weigh * output), output

        kernel = functools.partial(dot_product_attention, implementation="cudnn")
        dense = jax.grad(functools.partial(loss, dense_attention), (0, 1, 2), has_aux=True)
        return dense(*half), jax.grad(functools.partial(loss, kernel), (0, 1, 2), has_aux=True)(*half)

    (gradients, dense), (ridden_gradients, ridden) = run(query, key, value)
    np.testing.assert_allclose(ridden, dense, atol=0.05)
    for ours, theirs in zip(ridden_gradients, gradients):
        scale = float(jnp.abs(theirs).max())
        np.testing.assert_allclose(ours.astype(jnp.float32), theirs.astype(jnp.float32), atol=0.05 * scale)


@pytest.mark.parametrize("entries", [by_queries.ACCELERATOR_ENTRIES, 2**14])
@pytest.mark.parametrize("name", ["softmax", "entmax15"])
def test_one_block_or_several_give_what_dense_attention_gives(name, entries, monkeypatch):
    monkeypatch.setattr(by_queries, "entries_of_block", lambda: entries)
    monkeypatch.setattr(by_queries, "LEAST_QUERIES", 1)
    query, key, value = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 128, 4, 64)), jnp.float32)

    def gradients(implementation):
        def loss(*arrays):
            attend = functools.partial(dot_product_attention, normalizer=name, implementation=implementation)
            return jnp.sum(jnp.cos(attend(*arrays, is_causal=True)))

        jax.clear_caches()
        return jax.jit(jax.grad(loss, (0, 1, 2)))(query, key, value)

    for blocks, dense in zip(gradients("streaming"), gradients("dense")):
        np.testing.assert_allclose(blocks, dense, atol=0.01 * float(jnp.abs(dense).max()))  # as products are in TF32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", list(sj.METHODS))
def test_no_hostile_number_breaks_a_law(name, dtype):
    assert broken_laws(name, "dense", hostile(dtype, WIDTH, 200, 3), dtype) == {}


def test_the_golden_numbers_hold_here():
    kept, _ = numbers.kept(jax.__version__)
    run = build_run(numbers.TRAINING)
    trained = numbers.training(chunk_trainer(run), run.initial_state())
    assert numbers.differences({"evaluation": numbers.evaluation(), "training": trained}, kept) == []


def without_ties(precision, numbers):
    """Numbers of which none lies in the middle of two of a precision: there an H100 may round away from zero."""
    x = np.asarray(numbers, np.float32)
    rounded = np.asarray(products.rounded_to(precision, jnp.asarray(x)))
    _, bits = products.BITS[precision]
    half = np.ldexp(np.float32(1), np.frexp(x)[1] - 2 - bits)
    return jnp.asarray(np.where(np.abs(x - rounded) == half, rounded, x))


@pytest.mark.parametrize("precision", list(products.HARDWARE["gpu"]))
def test_the_products_of_the_device_are_those_that_are_emulated(precision):
    generator = np.random.default_rng(0)
    a, b = (without_ties(precision, generator.normal(size=(256, 256))) for _ in range(2))
    device = products.product(precision, "ik,kj->ij", a, b)
    rounded = [np.asarray(products.rounded_to(precision, x), np.float64) for x in (a, b)]
    exact = rounded[0] @ rounded[1]
    summed = np.abs(rounded[0]) @ np.abs(rounded[1])
    assert (np.abs(np.asarray(device, np.float64) - exact) <= 2.0**-18 * summed).all()
    assert np.abs(np.asarray(a, np.float64) @ np.asarray(b, np.float64) - exact).max() > 1e-3  # or nothing is rounded
