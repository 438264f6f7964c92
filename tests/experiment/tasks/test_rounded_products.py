"""Rounded products against ml_dtypes and masked bits; the model against itself written out with rounded operands."""

import functools
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
from softmax_jax.normalizers.maps import softmax

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


def scores(parameters: Any, batch: Any, matmul: str, place: str) -> Any:
    """The scores of the model under softmax, each product written out with operands rounded before."""

    def times(at, product, a, b):
        if matmul == "float32" or products.PLACES.index(at) > products.PLACES.index(place):
            return product(a, b)
        return product(jnp.asarray(rounded(matmul, a)), jnp.asarray(rounded(matmul, b)))

    def layer(name, x, at="dense"):
        return times(at, jnp.matmul, x, parameters[name]["kernel"]) + parameters[name]["bias"][None]

    def over_items(indices, a, b):
        return times("all", functools.partial(jnp.einsum, indices), a, b)

    sets, count, _ = batch.items.shape
    hidden = nnx.gelu(layer("item_in", batch.items.reshape(sets * count, -1), "inputs"))
    hidden = nnx.gelu(layer("item_out", hidden)).reshape(sets, count, -1)
    query = nnx.gelu(layer("query_out", nnx.gelu(layer("query_in", batch.query, "inputs"))))
    query = layer("attention_query", query)
    key, value = parameters["attention_key"], parameters["attention_value"]
    folded, shift = (times("dense", jnp.matmul, query, x) for x in (key["kernel"].T, key["bias"]))
    logits = (over_items("snw,sw->sn", hidden, folded) + shift[:, None]) / folded.shape[1] ** 0.5
    weights = softmax(logits, where=batch.mask)
    pooled = times("dense", jnp.matmul, over_items("sn,snw->sw", weights, hidden), value["kernel"])
    pooled += times("dense", jnp.matmul, weights.sum(-1)[:, None], value["bias"][None, :])
    return layer("read_out", nnx.gelu(layer("read_in", layer("attention_out", pooled))))


@pytest.fixture(scope="module")
def model():
    """Parameters and a batch."""
    parameters = jax.jit(build_model(MaxRetrieval(width=16))[1])(jax.random.key(0))
    parameters = jax.tree.map(lambda leaf: leaf + 0.1, parameters)  # no bias is 0
    return parameters, sample(jax.random.key(1), 8, 6)


def scores_at(parameters: Any, batch: Any, matmul: str, place: str) -> Any:
    """Those of the model itself."""
    task = MaxRetrieval(width=16, matmul=matmul, rounded=place)
    return task.scores(nnx.merge(build_model(task)[0], parameters), batch, None)


@pytest.mark.full
@pytest.mark.parametrize("place", products.PLACES)
def test_the_model_rounds_the_operands_of_the_products_at_a_place(model, place):
    parameters, batch = model
    ours = scores_at(parameters, batch, "bfloat16", place)
    off = {at: np.abs(ours - scores(parameters, batch, "bfloat16", at)).max() for at in products.PLACES}
    assert all(100 * off[place] < off[other] for other in off if other != place)


@pytest.mark.full
def test_float32_leaves_every_bit_of_the_scores_and_the_gradient_but_for_its_sums(model):
    (ours, gradient), (plain, expected) = (
        jax.jit(jax.value_and_grad(lambda p, batch, of=of: (of(p, batch, "float32", "all") ** 2).sum()))(*model)
        for of in (scores_at, scores)
    )
    np.testing.assert_array_equal(ours, plain)
    # Sums over the rows of a layer are taken in another order.
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), gradient, expected)


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
