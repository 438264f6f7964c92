"""Models of other libraries are found, swapped and probed as if edited by hand."""

import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from tests.models.zoo import MODELS, Model, generating, library, normal

pytestmark = pytest.mark.filterwarnings("ignore")
IN_BFLOAT16 = ["transformers FlaxGPT2", "keras-hub GptOss", "equimo ViT", "MaxText's plain attention, its form"]
WITH_GRADIENT = [*IN_BFLOAT16, "transformers FlaxT5"]
"""One model of each way to hide logits; the gradients of the others are rare, as they take minutes to compile."""
HIDDEN = -9000
"""Models hide logits by numbers below this."""
Record = Callable[[str, Any], None]
QUICKLY = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""Compiles in half the time."""


@pytest.fixture(autouse=True)
def promotion():
    """What these libraries need of JAX."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return MODELS[request.param](jnp.float32)


@contextlib.contextmanager
def softmax_replaced(softmax: Callable[..., Any]) -> Iterator[None]:
    """Puts another function wherever a module has `jax.nn.softmax`."""
    stock = jax.nn.softmax
    with contextlib.ExitStack() as patches:
        for module in [*sys.modules.values()]:
            for name in [name for name, value in vars(module).items() if value is stock]:
                patches.enter_context(mock.patch.object(module, name, softmax))
        yield


def edited(model: Model, normalizer: str, calls: list[Any] | None = None) -> Callable[..., Any]:
    """The model edited by hand: its attention calls a normalizer in the place of softmax.

    `calls` is filled with weights and numbers of visible entries, in the order in which softmax is called.
    """
    stock = jax.nn.softmax

    def softmax(logits, axis=-1, **named):
        if logits.shape[-1] == model.experts:
            return stock(logits, axis, **named)
        where = logits > HIDDEN
        weights = sj.normalizer(normalizer)(logits, axis, where)
        if calls is None:
            return weights
        calls.append(call := [])

        def record(*seen):
            call[:] = map(np.asarray, seen)
            return call[0]

        return jax.pure_callback(record, weights, weights, where.sum(axis), vmap_method="broadcast_all")

    def apply(*arguments):
        if model.edited:
            return model.edited(softmax)(*arguments)
        with jax.disable_jit(), softmax_replaced(softmax):  # a function compiled before would keep its softmax
            return model.apply(*arguments)

    return apply


def with_gradient(apply: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns what a function returns, and the gradient of the sum of its squares."""

    def of_squares(*arguments):
        output = apply(*arguments)
        return sum((leaf.astype(jnp.float32) ** 2).sum() for leaf in jax.tree.leaves(output)), output

    def both(*arguments):
        gradient, output = jax.grad(of_squares, has_aux=True)(*arguments)
        return output, gradient

    return both


def difference(got: Any, wanted: Any) -> float:
    """The largest difference of two trees of arrays, each relative to its largest entry where that is above 1."""
    pairs = [
        [np.asarray(leaf, np.float64) for leaf in pair]
        for pair in zip(*map(jax.tree.leaves, (got, wanted)), strict=True)
    ]
    return max(float(np.abs(one - other).max() / max(1, np.abs(other).max())) for one, other in pairs)


def test_each_softmax_is_found_for_what_it_is(model: Model, record_property: Record):
    found = sj.sites(model.apply)(model.parameters, *model.inputs)
    assert [site.use for site in found] == [*model.uses]
    assert {site.mask for site in found if site.use == "attention"} == model.masks
    record_property("uses", ", ".join(f"{number} {use}" for use, number in Counter(model.uses).items()))
    record_property("masks", ", ".join(sorted(model.masks)))


def test_a_swap_to_softmax_changes_no_bit(model: Model):
    arguments = model.parameters, *model.inputs
    swapped, stock = (QUICKLY(one)(*arguments) for one in (sj.swap(model.apply, "softmax"), model.apply))
    jax.tree.map(np.testing.assert_array_equal, swapped, stock)


@pytest.mark.rare  # whose kin under entmax15 and SSMax are tested always
def test_a_swap_to_hardmax_is_the_edited_model(model: Model, record_property: Record):
    arguments = model.parameters, *model.inputs
    output, wanted = (QUICKLY(one)(*arguments) for one in (sj.swap(model.apply, "hardmax"), edited(model, "hardmax")))
    record_property("hardmax", off := difference(output, wanted))
    assert off < 1e-5


@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=[pytest.mark.rare] * (name not in WITH_GRADIENT)) for name in MODELS],
    indirect=True,
)
def test_the_gradient_under_entmax15_is_that_of_the_edited_model(model: Model, record_property: Record):
    arguments = model.parameters, *model.inputs
    output, gradient = QUICKLY(with_gradient(sj.swap(model.apply, "entmax15")))(*arguments)
    wanted, wanted_gradient = QUICKLY(with_gradient(edited(model, "entmax15")))(*arguments)
    record_property("entmax15", off := difference(output, wanted))
    record_property("gradient", off_gradient := difference(gradient, wanted_gradient))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert off < 1e-5
    assert off_gradient < 1e-4


def test_a_probe_under_ssmax_returns_the_weights_of_the_edited_model(model: Model, record_property: Record):
    arguments = model.parameters, *model.inputs
    calls = []
    wanted = jax.block_until_ready(QUICKLY(edited(model, "ssmax", calls))(*arguments))
    output, rows = QUICKLY(sj.probe(model.apply, "ssmax", also=lambda weights: weights))(*arguments)
    record_property("ssmax", off := difference(output, wanted))
    assert off < 1e-5
    for one, (weights, visible) in zip(rows, calls, strict=True):
        np.testing.assert_allclose(one.also, weights.reshape(one.also.shape), atol=1e-5)
        np.testing.assert_array_equal(one.visible, visible.reshape(one.visible.shape))


@pytest.mark.parametrize("name", IN_BFLOAT16)
def test_it_is_the_edited_model_in_bfloat16_too(name: str):
    model = MODELS[name](jnp.bfloat16)
    arguments = model.parameters, *model.inputs
    functions = (model.apply, sj.swap(model.apply, "softmax"), sj.swap(model.apply, "ssmax"), edited(model, "ssmax"))
    stock, same, output, wanted = (QUICKLY(function)(*arguments) for function in functions)
    jax.tree.map(np.testing.assert_array_equal, same, stock)
    off = difference(output, wanted)
    assert off < 0.02


@pytest.mark.parametrize("beams", [1, 2])
def test_a_model_that_writes_is_swapped_as_if_edited_by_hand(beams: int):
    writer = generating(beams)
    arguments = writer.parameters, *writer.inputs
    assert [site.use for site in sj.sites(writer.apply)(*arguments)] == [*writer.uses]
    functions = (writer.apply, *(sj.swap(writer.apply, name) for name in ("softmax", "ssmax(s=3)")))
    stock, same, swapped = (np.asarray(QUICKLY(function)(*arguments)) for function in functions)
    with softmax_replaced(lambda logits, axis=-1: sj.normalizer("ssmax", s=3.0)(logits, axis, logits > HIDDEN)):
        wanted = QUICKLY(lambda *arguments: writer.apply(*arguments))(*arguments)
    np.testing.assert_array_equal(same, stock)
    np.testing.assert_array_equal(swapped, wanted)
    assert (swapped != stock).any()
    assert len({*swapped[0]} - {0}) > 2


@pytest.mark.parametrize("name", ["equinox MultiheadAttention", "dm-haiku MultiHeadAttention"])
def test_a_temperature_may_depend_on_the_row(name: str):
    layer = MODELS[name](jnp.float32)
    functions = sj.swap(layer.apply, "adaptive"), edited(layer, "adaptive")
    output, wanted = (QUICKLY(function)(layer.parameters, *layer.inputs) for function in functions)
    np.testing.assert_allclose(output, wanted, atol=1e-6)


def test_a_module_of_equinox_is_a_function():
    layer = library("equinox").nn.MultiheadAttention(4, 16, key=jax.random.key(0))
    x = normal(6, 16)
    swapped = sj.swap(lambda layer, x: layer(x, x, x), "hardmax")
    assert not np.allclose(swapped(layer, x), layer(x, x, x))
    assert sj.sites(layer)(x, x, x)[0].use == "attention"


@pytest.mark.full
@pytest.mark.parametrize("name", ["keras-hub Mixtral", "keras-hub GptOss"])
def test_a_named_router_is_swapped_as_if_edited_by_hand(name: str):
    model = MODELS[name](jnp.float32)
    arguments = model.parameters, *model.inputs
    stock = jax.nn.softmax

    def softmax(logits, axis=-1, **named):
        return (sj.sparsemax if logits.shape[-1] == model.experts else stock)(logits, axis, **named)

    def edited(*arguments):
        with jax.disable_jit(), softmax_replaced(softmax):
            return model.apply(*arguments)

    swapped = sj.swap(model.apply, "sparsemax", where=lambda site: site.use == "choice")
    output, wanted, before = (QUICKLY(apply)(*arguments) for apply in (swapped, edited, model.apply))
    assert difference(output, wanted) < 1e-5
    assert difference(output, before) > 1e-3
