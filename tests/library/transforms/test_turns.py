"""A model whose layers run in one scan is swapped, probed and calibrated layer by layer, as if it were unrolled."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen

import softmax_jax as sj
from tests.tiers import full_except

from .models import BATCH, HEADS, LENGTH, QKV, attention, close, drawn, normal, refused, run

LAYERS, KEY_HEADS, WIDTH = 4, 2, 16


class Layered(NamedTuple):
    """A model with its layers in a scan, the same with its layers in a row, and the shape of numbers per head."""

    scanned: Callable[..., Any]
    unrolled: Callable[..., Any]
    parameters: Any
    inputs: tuple[Any, ...]
    numbers: tuple[int, ...]


def layer_of(stacked: Any, layer: int) -> Any:
    return jax.tree.map(lambda array: array[layer], stacked)


def plain() -> Layered:
    """Attention of plain arrays under scan and checkpoint, which divides after the product."""

    @jax.checkpoint
    def layer(x, weights):
        terms = jnp.exp(jnp.einsum("bhqd,bhkd->bhqk", x @ weights["query"], x @ weights["key"]))
        return x + jnp.einsum("bhqk,bhkd->bhqd", terms, x) / terms.sum(-1, keepdims=True), None

    def scanned(parameters, x):
        return jax.lax.scan(layer, x, parameters)[0]

    def unrolled(parameters, x):
        for index in range(LAYERS):
            x, _ = layer(x, layer_of(parameters, index))
        return x

    parameters = {name: normal(LAYERS, 8, 8, seed=seed) / 8 for seed, name in enumerate(("query", "key"))}
    return Layered(scanned, unrolled, parameters, QKV[:1], (HEADS, 1, 1))


class Block(linen.Module):
    """A layer in the form of MaxText: groups of heads, and a division after the product with the values."""

    @linen.compact
    def __call__(self, x, _):
        normed = linen.RMSNorm()(x)
        query = linen.DenseGeneral((KEY_HEADS, 2, 4), name="query")(normed)
        key, value = (linen.DenseGeneral((KEY_HEADS, 4), name=name)(normed) for name in ("key", "value"))
        logits = jnp.einsum("bqngd,bknd->bngqk", query, key) / 2
        logits = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool))[None, None, None], logits, -1e30)
        terms = jnp.exp(logits - jnp.max(logits, -1, keepdims=True))
        attended = jnp.einsum("bngqk,bknd->bqngd", terms, value)
        attended = attended / jnp.moveaxis(terms.sum(-1), 3, 1)[..., None]
        x = x + linen.DenseGeneral(WIDTH, axis=(-3, -2, -1), name="out")(attended)
        return x + linen.Dense(WIDTH)(jax.nn.silu(linen.Dense(2 * WIDTH)(linen.RMSNorm()(x)))), None


def maxtext() -> Layered:
    """Layers of Linen under `linen.scan` and `linen.remat`."""
    scan = linen.scan(linen.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS)
    model, x = scan(), normal(BATCH, LENGTH, WIDTH)
    parameters = drawn(jax.eval_shape(model.init, jax.random.key(0), x, None)["params"])

    def scanned(parameters, x):
        return model.apply({"params": parameters}, x, None)[0]

    def unrolled(parameters, x):
        for layer in range(LAYERS):
            x, _ = Block().apply({"params": layer_of(parameters, layer)}, x, None)
        return x

    return Layered(scanned, unrolled, parameters, (x,), (KEY_HEADS, 2, 1, 1))


MODELS = {"plain": plain, "maxtext": maxtext}


def by_layer(s: jax.Array) -> dict[int, sj.Normalizer]:
    return {layer: sj.normalizer("ssmax", s=s[layer]) for layer in range(LAYERS)}


@pytest.mark.parametrize("name", full_except(MODELS, "plain"))
def test_numbers_of_each_turn_are_those_of_the_layers_of_the_unrolled_model(name: str):
    """Values, gradients of parameters and of the numbers, and rows."""
    model = MODELS[name]()
    (site,) = sj.sites(model.scanned)(model.parameters, *model.inputs)
    assert (site.use, site.turns) == ("attention", LAYERS)
    shape = LAYERS, *(1,) * (len(site.shape) - 1 - len(model.numbers)), *model.numbers
    s = 0.3 + jax.random.uniform(jax.random.key(0), shape)

    def measured(fun, normalizers):
        def objective(parameters, s):
            output, rows = sj.probe(fun, normalizers(s))(parameters, *model.inputs)
            return (output**2).mean(), (output, [row.entropy for row in rows])

        return jax.value_and_grad(objective, (0, 1), has_aux=True)(model.parameters, s)

    def both(s):
        scanned = measured(model.scanned, lambda s: {0: sj.normalizer("ssmax", s=s)})
        swapped = sj.swap(model.scanned, {0: sj.normalizer("ssmax", s=s)})(model.parameters, *model.inputs)
        return scanned, swapped, measured(model.unrolled, by_layer)

    ((_, (output, (rows,))), gradients), swapped, ((_, (wanted, layers)), wanted_gradients) = run(both, s)
    close((output, swapped), (wanted, wanted), atol=2e-6)
    close(rows, jnp.stack(layers), atol=2e-6)
    close(gradients, wanted_gradients, atol=5e-5)  # whose largest entries are near 7
    assert np.ptp(np.asarray(gradients[1]), 0).max() > 1e-4


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
def test_calibrated_numbers_are_those_of_the_unrolled_model(name: str):
    model = MODELS[name]()
    target = run(sj.swap(model.unrolled, by_layer(jnp.linspace(0.2, 0.9, LAYERS))), model.parameters, *model.inputs)
    loss = lambda fun, _: ((fun(model.parameters, *model.inputs) - target) ** 2).mean()  # noqa: E731
    heads = tuple(range(-len(model.numbers), -2))
    options: dict[str, Any] = {"learn": ("s",), "heads": heads, "batches": [0.0] * 2, "by_turn": True}
    options |= {"optimizer": optax.sgd(1.0), "loss": loss}
    (scanned,) = sj.calibrate(model.scanned, "ssmax", **options).values()
    layers = sj.calibrate(model.unrolled, "ssmax", **options)
    wanted = jnp.stack([layers[layer].scale.s for layer in range(LAYERS)])  # pyright: ignore
    assert scanned.scale.s.shape == (LAYERS, *(1,) * (4 - wanted.ndim), *model.numbers)  # pyright: ignore
    close(scanned.scale.s.reshape(wanted.shape), wanted, atol=1e-5)  # pyright: ignore
    assert np.ptp(np.asarray(wanted), 0).max() > 1e-4


def test_fewer_axes_are_for_all_turns_and_other_numbers_compile_nothing():
    compiled, model = [], plain()

    @jax.jit
    def apply(normalizer):
        compiled.append(normalizer)
        return sj.swap(model.scanned, normalizer)(model.parameters, *model.inputs)

    numbers = jnp.array([0.3, 0.8])[:, None, None]
    alike = [apply(sj.normalizer("ssmax", s=s)) for s in (numbers, numbers[None], jnp.tile(numbers, (LAYERS, 1, 1, 1)))]
    close(alike[0], alike[1])
    close(alike[0], alike[2])
    apply(sj.normalizer("ssmax", s=jnp.linspace(0, 1, LAYERS)[:, None, None, None] + numbers[None]))
    assert len(compiled) == 3  # one for each shape
    per_entry = jnp.ones((1, BATCH, HEADS, 1, 1)) * 0.5
    close(apply(sj.normalizer("ssmax", s=per_entry)), apply(sj.normalizer("ssmax", s=0.5)))


def in_blocks(stacked, x):
    """A scan over layers whose queries come in blocks, which a map within goes through."""

    def layer(x, weights):
        block = lambda q: attention(q, x, x)  # noqa: E731
        queries = jnp.moveaxis((x @ weights).reshape(BATCH, HEADS, 3, 2, -1), 2, 0)
        return x + jnp.moveaxis(jax.lax.map(block, queries), 0, 2).reshape(x.shape), None

    return jax.lax.scan(layer, x, stacked)[0]


def written(stacked, x):
    """A scan over steps that writes, around one over layers."""

    def step(x, _):
        x, _ = jax.lax.scan(lambda x, weights: (x + attention(x @ weights, x, x), None), x, stacked)
        return x / 2, x.sum()

    return jax.lax.scan(step, x, jnp.arange(3))


def rounds(stacked, x):
    """Five rounds of the same weights."""
    return jax.lax.fori_loop(0, 5, lambda _, x: x + attention(x @ stacked[0], x, x), x)


@pytest.mark.parametrize(("function", "turns"), [(in_blocks, LAYERS), (written, LAYERS), (rounds, 1)])
def test_the_turns_are_those_of_the_scan_over_layers(function: Any, turns: int):
    stacked, x = normal(LAYERS, 8, 8) / 8, QKV[0]
    (site,) = sj.sites(function)(stacked, x)
    assert site.turns == turns
    s = jnp.linspace(0.1, 1, turns).reshape(-1, 1, 1, 1)
    swapped = run(sj.swap(function, sj.normalizer("ssmax", s=s)), stacked, x)
    firsts = run(sj.swap(function, sj.normalizer("ssmax", s=s[0])), stacked, x)
    assert all(map(np.allclose, *map(jax.tree.leaves, (swapped, firsts)))) == (turns == 1)


SHAPES = {
    (
        3,
        HEADS,
        1,
        1,
    ): "s has shape (3, 2, 1, 1) for logits of 4 axes; of 4 or more the first must be the 4 turns: give (4,",
    (4, 1, 1): "LogLength.s has shape (4, 1, 1) for logits of shape (2, 2, 6, 6); it must be a number for each row: ",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_bad_input_is_named_in_one_line(shape: tuple[int, ...]):
    model = plain()
    swapped = sj.swap(model.scanned, sj.normalizer("ssmax", s=jnp.ones(shape)))
    (site,) = sj.sites(model.scanned)(model.parameters, *model.inputs)
    refused(
        lambda: swapped(model.parameters, *model.inputs),
        f"site 0, site_0 at {site.line}, in a scan of 4 turns: {SHAPES[shape]}",
    )


@pytest.mark.full
def test_a_scan_over_time_learns_numbers_of_all_its_steps():
    """A recurrent decoder carries a state, and slices its inputs, which no program tells from parameters."""
    keys, steps = normal(2, 3, 8), 5

    def decode(inputs):
        def step(state, x):
            read = jnp.einsum("bk,bkd->bd", jax.nn.softmax(jnp.einsum("bd,bkd->bk", state + x, keys)), keys)
            return jnp.tanh(state + read), None

        return jax.lax.scan(step, jnp.zeros((2, 8)), inputs)[0]

    assert sj.sites(decode)(normal(steps, 2, 8))[0].turns == steps
    options: dict[str, Any] = {"learn": ("s",), "optimizer": optax.sgd(0.1)}
    options |= {"loss": lambda fun, inputs: fun(inputs).sum(), "batches": [normal(steps, 2, 8), normal(3, 2, 8)]}
    (fit,) = sj.calibrate(decode, "ssmax", **options).values()
    assert jnp.shape(fit.scale.s) == ()  # pyright: ignore
    (fit,) = sj.calibrate(decode, "ssmax", by_turn=True, **options | {"batches": options["batches"][:1]}).values()
    assert jnp.shape(fit.scale.s) == (steps, 1)  # pyright: ignore
