"""The decoder of pretrained models, on random arrays, beside plain numpy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.experiment.language_models import decoder
from softmax_jax.experiment.language_models.arrays import LAYER_ARRAYS
from softmax_jax.experiment.language_models.decoder import Sizes, hidden, losses, scores, weigh_by
from softmax_jax.normalizers.row import weigh
from tests.experiment.language_models.plain_llama import TINY, logits_of, softmax, tiny_arrays

SIZES = Sizes(TINY["heads"], TINY["key_heads"], context=64)
TOKENS = np.random.default_rng(1).integers(0, 50, 24).astype(np.int32)


def as_parameters(arrays):
    layers = {
        own: np.stack([arrays[f"blk.{layer}.{there[0]}"] for layer in range(TINY["layers"])])
        for own, there in LAYER_ARRAYS.items()
        if f"blk.0.{there[0]}" in arrays
    }
    names = {"embed": "token_embd.weight", "norm": "output_norm.weight", "scores": "output.weight"}
    whole = {own: arrays[name] for own, name in names.items() if name in arrays}
    return jax.tree.map(jnp.asarray, whole | {"layers": layers})


@functools.partial(jax.jit, static_argnames=("weigh", "sizes"))
def all_scores(parameters, tokens, weigh=decoder.by_softmax, numbers=None, sizes=SIZES):
    return scores(parameters, hidden(parameters, sizes, tokens, weigh, numbers)[0])


def test_logits_and_losses_are_those_of_numpy():
    arrays = tiny_arrays(50, biases=True, tied=False)
    expected = logits_of(arrays, TOKENS, SIZES.heads, SIZES.key_heads)
    parameters = as_parameters(arrays)
    np.testing.assert_allclose(all_scores(parameters, TOKENS), expected, atol=1e-4)
    by_hand = -np.log(softmax(expected[:-1]))[np.arange(23), TOKENS[1:]]
    of_tokens = jax.jit(lambda tokens: losses(parameters, hidden(parameters, SIZES, tokens)[0], tokens, block=10))
    np.testing.assert_allclose(of_tokens(TOKENS), by_hand, atol=1e-4)


def test_a_matrix_that_stays_is_one_that_has_the_narrow_product_added():
    x, matrix, narrow, wide = (
        jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)
        for seed, shape in enumerate([(7, 5), (6, 5), (2, 5), (6, 2)])
    )

    def adapted(x, narrow, wide):
        return jnp.sin(decoder.product(x, decoder.Adapted(matrix, narrow, wide))).sum()

    def plain(x, narrow, wide):
        return jnp.sin(x @ (matrix + wide @ narrow).T).sum()

    found, wanted = (jax.jit(jax.value_and_grad(one, (0, 1, 2)))(x, narrow, wide) for one in (adapted, plain))
    jax.tree.map(lambda *pair: np.testing.assert_allclose(*pair, atol=1e-4), found, wanted)
    exact = jnp.broadcast_to(matrix.sum(0), x.shape)
    rounded = jax.grad(lambda x: decoder.product(x, matrix, "bfloat16").sum())(x)
    assert 0 < np.abs(rounded - exact).max() < 0.05


@pytest.mark.parametrize("equation", ["...i,oi->...o", "qkgs,nks->kgqn", "kgqn,nks->qkgs"])
@pytest.mark.parametrize(("kind", "off"), [("float32", 1e-4), ("bfloat16", 0.1)])
@pytest.mark.parametrize("keys", [3, 40])  # whichever array is the smaller
def test_gradients_of_a_product_are_those_of_einsum(equation, kind, off, keys, monkeypatch):
    sizes, random = dict(zip("qkgsnoi", (5, 2, 3, 4, keys, keys, 7))), np.random.default_rng(0)
    shapes = [[sizes[axis] for axis in axes.replace("...", "q")] for axes in equation.split("->")[0].split(",")]
    x, y = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)
    einsum, orders = jnp.einsum, []

    def recorded(equation, first, second, **more):
        orders.append(first.size <= second.size)
        return einsum(equation, first, second, **more)

    def slopes(of_product, y):
        return jax.jit(jax.grad(lambda *pair: jnp.sin(of_product(*pair)).sum(), (0, 1)))(x, y)

    wanted = slopes(lambda x, y: einsum(equation, x, y, precision="highest"), y)
    monkeypatch.setattr(decoder.jnp, "einsum", recorded)
    found = slopes(lambda x, y: decoder.rounded_product(equation, x, y, kind), y.astype(kind))
    assert orders[1:] == [True, True]  # the smaller first, which takes less time
    assert (found[0].dtype, found[1].dtype) == (jnp.float32, kind)
    for ours, theirs in zip(found, wanted):
        np.testing.assert_allclose(ours.astype(jnp.float32), theirs, atol=off * float(jnp.abs(theirs).max()))


@pytest.mark.full
def test_blocks_of_queries_change_nothing(monkeypatch):
    parameters = as_parameters(tiny_arrays(50))
    whole = all_scores(parameters, TOKENS, weigh_by("entmax15"))
    monkeypatch.setattr(decoder, "BLOCK", 2)  # so that 24 tokens take four segments of three blocks
    jax.clear_caches()
    np.testing.assert_allclose(all_scores(parameters, TOKENS, weigh_by("entmax15")), whole, atol=1e-5)
    np.testing.assert_allclose(all_scores(parameters, TOKENS[:13]), all_scores(parameters, TOKENS)[:13], atol=1e-5)
    jax.clear_caches()


def test_every_normalizer_sees_the_row_of_its_position():
    arrays = tiny_arrays(50)

    def ssmax(logits):
        return softmax(logits * 0.4 * np.log(np.maximum(1 + np.arange(logits.shape[1]), 2))[:, None])

    expected = logits_of(arrays, TOKENS, SIZES.heads, SIZES.key_heads, weigh=ssmax)
    found = all_scores(as_parameters(arrays), TOKENS, weigh_by("ssmax(s=0.4)"))
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize(
    ("sizes", "windows"),
    [
        ({"window": 3, "windowed": (False, True), "rotary": 4, "scale": 0.5}, (None, 3)),
        ({"window": 3}, (3, 3)),
        ({}, None),
    ],
)
def test_windows_of_layers_a_rotary_part_and_a_scale_are_those_of_numpy(sizes, windows):
    """Of all tokens at once, and of the last behind a cache of the first."""
    arrays, tokens, sizes = tiny_arrays(50), jnp.asarray(TOKENS), dataclasses.replace(SIZES, **sizes)
    parameters, part = as_parameters(arrays), {"rotary": sizes.rotary, "scale": sizes.scale}
    expected = logits_of(arrays, TOKENS, SIZES.heads, SIZES.key_heads, windows=windows, **part)
    np.testing.assert_allclose(all_scores(parameters, TOKENS, sizes=sizes), expected, atol=1e-4)

    @jax.jit
    def in_two_parts(tokens):
        _, before = hidden(parameters, sizes, tokens[:15])
        after, made = hidden(parameters, sizes, tokens[15:], before=before)
        return scores(parameters, after), made

    last, made = in_two_parts(tokens)
    np.testing.assert_allclose(last, expected[15:], atol=1e-4)
    assert made.key.shape == (TINY["layers"], 9, SIZES.key_heads, TINY["size"])


@pytest.mark.full
def test_numbers_per_head_have_gradients_and_a_swap_finds_the_one_site():
    parameters, tokens = as_parameters(tiny_arrays(50)), jnp.asarray(TOKENS)

    def scaled(logits, seen, beta):
        return jax.nn.softmax(logits * beta, where=seen[None])

    def loss(beta):
        return losses(parameters, hidden(parameters, SIZES, tokens, scaled, beta)[0], tokens).mean()

    beta = jnp.ones((TINY["layers"], SIZES.heads, 1, 1))
    value, slope = (loss_and_slope := jax.jit(jax.value_and_grad(loss)))(beta)
    moved, _ = loss_and_slope(beta.at[1, 2].add(1e-2))
    np.testing.assert_allclose((moved - value) / 1e-2, slope[1, 2, 0, 0], atol=2e-3)
    assert np.all(np.asarray(slope) != 0)

    plain = functools.partial(all_scores, parameters)
    assert len(sj.sites(plain)(tokens)) == 1
    np.testing.assert_array_equal(jax.jit(plain)(tokens), jax.jit(sj.swap(plain, "softmax"))(tokens))


@pytest.mark.full
@pytest.mark.parametrize("length", [24, 520])  # one block of queries, or several
def test_a_swap_with_numbers_of_each_layer_is_what_weigh_computes_with_them(length):
    parameters = as_parameters(tiny_arrays(50))
    tokens = jnp.asarray(np.random.default_rng(2).integers(0, 50, length).astype(np.int32))
    s = 0.3 + jax.random.uniform(jax.random.key(0), (TINY["layers"], TINY["heads"], 1, 1))

    def swapped(s):
        return sj.swap(lambda: hidden(parameters, SIZES, tokens)[0], sj.normalizer("ssmax", s=s))()

    def edited(s):
        by_ssmax = lambda logits, visible, s: weigh(sj.normalizer("ssmax", s=s), logits, -1, visible[None])  # noqa: E731
        return hidden(parameters, SIZES, tokens, by_ssmax, s)[0]

    def with_gradient(function):
        return jax.value_and_grad(lambda s: (jnp.sin(function(s))).mean())(s)

    found, wanted = jax.jit(lambda: (with_gradient(swapped), with_gradient(edited)))()
    jax.tree.map(lambda *pair: np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-6), found, wanted)
    assert np.ptp(np.asarray(wanted[1]), 0).max() > 1e-5
    assert {site.turns for site in sj.sites(lambda: hidden(parameters, SIZES, tokens))()} == {TINY["layers"]}
