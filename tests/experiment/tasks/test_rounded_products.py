"""Rounded products against ml_dtypes and masked bits, and which products of the model are rounded."""

import functools
import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from softmax_jax.experiment.tasks import rounded_products as products
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval, sample
from softmax_jax.experiment.training.config import Config, from_settings, settings_of
from softmax_jax.experiment.training.run import build_model

EMULATED = [name for name in products.PRECISIONS if name != "float32"]


def rounded(precision: str, x: Any) -> Any:
    """The same without JAX."""
    x = np.asarray(x, np.float32)
    if precision == "bfloat16":
        return x.astype(ml_dtypes.bfloat16).astype(np.float32)
    if precision == "float8_e4m3":
        return np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    if precision == "tensorfloat32":  # 13 of the 23 bits of the mantissa go, to the nearest, ties to even
        bits = x.view(np.uint32)
        return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~np.uint32(0x1FFF)).view(np.float32)
    return x


@pytest.mark.parametrize("precision", EMULATED)
def test_numbers_of_any_size_round_to_the_nearest(precision):
    generator = np.random.default_rng(0)
    numbers = generator.normal(size=10_000) * np.exp(generator.uniform(-20, 20, 10_000))
    ties = np.arange(-2, 2, 2.0**-12)  # halfway between two numbers of any of the precisions
    x = np.concatenate([numbers, ties, [0.0, -0.0, 448, 1e30]]).astype(np.float32)
    np.testing.assert_array_equal(jax.jit(products.rounded_to, static_argnums=0)(precision, x), rounded(precision, x))


@pytest.mark.parametrize("precision", products.PRECISIONS)
def test_value_and_gradient_are_products_of_rounded_operands(precision):
    generator = np.random.default_rng(1)
    a, b, cotangent = (generator.normal(size=size).astype(np.float32) for size in ((6, 9), (9, 4), (6, 4)))

    @jax.jit
    def ours(a, b):
        value, pull = jax.vjp(functools.partial(products.product, precision, "ij,jk->ik"), a, b)
        return value, *pull(jnp.asarray(cotangent))

    a_, b_, cotangent_ = (rounded(precision, x) for x in (a, b, cotangent))
    for product, expected in zip(ours(a, b), (a_ @ b_, cotangent_ @ b_.T, a_.T @ cotangent_)):
        np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-6)


def rounded_shapes(place: str, matmul: str = "bfloat16") -> Counter[str]:
    """How many arrays of each shape the model rounds."""
    task = MaxRetrieval(width=16, matmul=matmul, rounded=place)
    structure, initialize = build_model(task)
    like = jax.eval_shape(lambda key: (initialize(key), sample(key, 8, 6)), jax.random.key(0))
    program = jax.make_jaxpr(lambda both: task.scores(nnx.merge(structure, both[0]), both[1], None))(like)
    return Counter(re.findall(r"f32\[([\d,]+)\] = reduce_precision", str(program)))


def test_the_model_rounds_the_operands_of_the_products_at_a_place():
    inputs, dense, everything = map(rounded_shapes, products.PLACES)
    assert inputs == Counter(["48,11", "11,16", "8,1", "1,16"])
    assert (inputs - dense, dense.total()) == (Counter(), 24)
    assert everything - dense == Counter({"8,6,16": 2, "8,6": 1, "8,16": 1})
    assert rounded_shapes("all", "float32").total() == 0


def test_a_checkpoint_that_names_no_precision_is_float32():
    settings = settings_of(Config(MaxRetrieval(matmul="bfloat16", rounded="dense")))
    assert from_settings(settings).task == MaxRetrieval(matmul="bfloat16", rounded="dense")
    del settings["matmul"], settings["rounded"]
    assert from_settings(settings).task == MaxRetrieval(matmul="float32")


def test_a_precision_that_the_device_lacks_is_named(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert products.precisions("bfloat16", "all") == ("bfloat16",) * 3
    with pytest.raises(ValueError, match="'tensorfloat32', which this tpu lacks: it must be one of float32, bfloat16"):
        products.precisions("tensorfloat32", "all")


@pytest.mark.parametrize(
    ("precision", "words"), [("float32", "HIGHEST"), ("bfloat16", "BF16_BF16_F32"), ("tensorfloat32", "TF32_TF32_F32")]
)
def test_a_device_with_a_precision_of_its_own_multiplies_at_it_forward_and_backward(monkeypatch, precision, words):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    square = jnp.ones((3, 3))
    gradient = jax.grad(lambda a, b: products.product(precision, "ij,jk->ik", a, b).sum(), (0, 1))
    program = jax.make_jaxpr(gradient)(square, square)
    multiplied = [equation for equation in program.jaxpr.eqns if equation.primitive.name == "dot_general"]
    assert len(multiplied) >= 2
    assert all(words in str(equation.params["precision"]) for equation in multiplied)
    assert "reduce_precision" not in str(program)
