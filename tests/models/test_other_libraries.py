"""Models of Equinox and Haiku, swapped as if edited by hand, as `pytest -m models` runs them."""

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from tests.transforms.models import close, normal, run, visible

pytestmark = pytest.mark.models
eqx: Any = importlib.import_module("equinox")
hk: Any = importlib.import_module("haiku")

X = normal(6, 16)
CAUSAL = jnp.tril(jnp.ones((6, 6), bool))


def equinox() -> tuple[Callable[..., Any], Any]:
    """A function of arrays, and the arrays of the model."""
    model = eqx.nn.MultiheadAttention(4, 16, key=jax.random.key(0))
    arrays, rest = eqx.partition(model, eqx.is_array)
    return lambda arrays, x: eqx.combine(arrays, rest)(x, x, x, mask=CAUSAL), arrays


def haiku() -> tuple[Callable[..., Any], Any]:
    def forward(x):
        layer = hk.MultiHeadAttention(4, 4, w_init=hk.initializers.VarianceScaling(1.0), name="attention")
        return layer(x, x, x, mask=CAUSAL[None])

    model = hk.without_apply_rng(hk.transform(forward))
    return model.apply, model.init(jax.random.key(0), X)


MODELS = {"equinox": equinox, "haiku": haiku}


@pytest.fixture(autouse=True)
def promotion():
    """What these libraries need of JAX."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("library", MODELS)
def test_attention_is_found(library: str):
    apply, parameters = MODELS[library]()
    (site,) = sj.sites(apply)(parameters, X)
    assert (site.shape, site.use, site.mask) == ((4, 6, 6), "attention", "select")


@pytest.mark.parametrize("library", MODELS)
@pytest.mark.parametrize("name", ["hardmax", "entmax15", "adaptive"])
def test_it_is_swapped_as_if_edited_by_hand(library: str, name: str, monkeypatch: pytest.MonkeyPatch):
    apply, parameters = MODELS[library]()
    stock, same, got = run(
        lambda *a: (apply(*a), sj.swap(apply, "softmax")(*a), sj.swap(apply, name)(*a)), parameters, X
    )
    np.testing.assert_array_equal(stock, same)
    gradient = run(jax.grad(lambda p: (sj.swap(apply, name)(p, X) ** 2).sum()), parameters)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    monkeypatch.setattr(jax.nn, "softmax", lambda z, axis=-1: sj.normalizer(name)(z, axis, visible(z)))
    edited, _ = MODELS[library]()
    close(got, run(edited, parameters, X))


def test_a_module_of_equinox_is_a_function():
    model = eqx.nn.MultiheadAttention(4, 16, key=jax.random.key(0))
    swapped = sj.swap(lambda model, x: model(x, x, x), "hardmax")
    assert not np.allclose(swapped(model, X), model(X, X, X))
    assert sj.sites(model)(X, X, X)[0].use == "attention"
