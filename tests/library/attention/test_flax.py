import copy
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx, traverse_util

import softmax_jax as sj
from softmax_jax.attention.flax_layers import LinenAttention, NnxAttention, attend, attention_fn
from tests.tiers import full_except

BATCH, LENGTH, HEADS, FEATURES = 2, 5, 4, 16

both = pytest.mark.parametrize("api", ["linen", "nnx"])


def inputs(*shape, seed=0):
    # From NumPy, because JAX would compile a program for each shape.
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape or (BATCH, LENGTH, FEATURES)).astype(np.float32))


def causal(x):
    """A causal mask as Flax makes it, in float32."""
    return linen.make_causal_mask(x[..., 0])


class Linen:
    """A Linen layer with its variables, called as an NNX layer is; all start at the same parameters."""

    def __init__(self, attention=None, **options):
        chosen = {} if attention is None else {"attention_fn": attention}
        self.layer = linen.MultiHeadDotProductAttention(HEADS, **chosen, **options)
        self.variables = self.layer.init(jax.random.key(0), inputs(), deterministic=True)
        self.dropout = {"dropout": jax.random.key(1)}

    def __call__(self, x, **keywords):
        return self.layer.apply(self.variables, x, rngs=self.dropout, **keywords)

    def capture(self, x, **keywords) -> tuple[Any, Any]:
        output, state = self(x, sow_weights=True, mutable="intermediates", **keywords)
        (weights,) = state["intermediates"]["attention_weights"]
        return output, weights


class Nnx:
    """An NNX layer, made and called as a Linen layer is."""

    def __init__(self, attention=None, **options):
        chosen = {} if attention is None else {"attention_fn": attention}
        self.layer = nnx.MultiHeadAttention(
            HEADS, FEATURES, decode=False, rngs=nnx.Rngs(0, dropout=1), **chosen, **options
        )

    def __call__(self, x, **keywords):
        return nnx.clone(self.layer)(x, **keywords)

    def capture(self, x, **keywords) -> tuple[Any, Any]:
        layer = nnx.clone(self.layer)
        output, state = nnx.capture(layer, nnx.Intermediate)(x, sow_weights=True, **keywords)
        captured: Any = state["attention_weights"]
        (weights,) = captured
        return output, weights


def layer(api, attention=None, **options):
    return {"linen": Linen, "nnx": Nnx}[api](attention, **options)


def assert_same(ours, stock, x, **keywords):
    np.testing.assert_allclose(ours(x, **keywords), stock(x, **keywords), atol=1e-6, rtol=0)


@both
def test_softmax_equals_stock_and_masks_reach_it(api):
    ours, stock, x = layer(api, attention_fn("softmax")), layer(api), inputs()
    for mask in None, causal(x), causal(x).astype(bool):
        assert_same(ours, stock, x, mask=mask)
    assert jnp.max(jnp.abs(ours(x) - ours(x, mask=causal(x)))) > 0.01
    if api == "nnx":
        padding = jnp.arange(LENGTH)[None, None, None] < jnp.array([3, 5])[:, None, None, None]
        assert_same(ours, stock, x, is_causal=True, mask=padding)
        np.testing.assert_array_equal(ours(x, is_causal=True), ours(x, mask=causal(x)))


@pytest.mark.full
@pytest.mark.parametrize(
    ("api", "options", "shape"),
    [
        ("linen", {}, (2, BATCH, LENGTH, FEATURES)),
        ("nnx", {}, (LENGTH, FEATURES)),
        ("nnx", {"num_kv_heads": 1}, ()),
        ("linen", {"dtype": jnp.bfloat16}, ()),
    ],
)
def test_batch_axes_grouped_heads_and_half_precision_equal_stock(api, options, shape):
    x, atol = inputs(*shape), 0.05 if "dtype" in options else 1e-6
    with jax.numpy_dtype_promotion("standard"):  # which Flax itself needs for half precision
        ours, stock = (jax.jit(layer(api, f, **options))(x, mask=causal(x)) for f in (attention_fn("softmax"), None))
    assert ours.dtype == options.get("dtype", jnp.float32)
    np.testing.assert_allclose(ours.astype(jnp.float32), stock.astype(jnp.float32), atol=atol)


def test_a_low_bias_hides_as_a_mask_does_and_a_mask_that_is_added_is_refused():
    x, mask = inputs(BATCH, LENGTH, HEADS, 8), causal(inputs()).at[0, :, 2].set(0)
    added, weigh = jnp.where(mask != 0, 0, -9e3), sj.normalizer("ssmax")
    wanted = attend(weigh, x, x, x, mask=mask)
    np.testing.assert_array_equal(wanted[0, 2], 0)
    layers: list[Any] = [attention_fn(weigh), NnxAttention(weigh, learn=("s",))]
    for output in attend(weigh, x, x, x, added), *(layer(x, x, x, bias=added) for layer in layers):
        np.testing.assert_allclose(output, wanted, atol=1e-6)
    with pytest.raises(ValueError, match=r"the mask of float32 holds -.* as bias="):
        attend(weigh, x, x, x, mask=added)
    with pytest.raises(ValueError, match="the mask of float32 holds -1; "):
        attend(weigh, x, x, x, mask=-mask)


def test_precision_reaches_both_products():
    x = inputs(LENGTH, HEADS, 8)
    program = jax.jit(attention_fn("softmax"), static_argnames="precision").lower(x, x, x, precision="highest")
    products = [line for line in program.as_text().splitlines() if "dot_general" in line and "func" not in line]
    assert len(products) == 2
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)


# Dropout


@pytest.mark.parametrize(("api", "broadcast_dropout"), full_except([("nnx", False), ("linen", True)], "nnx"))
def test_dropout_equals_stock(api, broadcast_dropout):
    options = {"dropout_rate": 0.5, "broadcast_dropout": broadcast_dropout}
    ours, stock = layer(api, attention_fn("softmax"), **options), layer(api, **options)
    assert_same(ours, stock, inputs(), deterministic=False)
    assert_same(ours, stock, inputs(), deterministic=True)
    difference = ours(inputs(), deterministic=False) - ours(inputs(), deterministic=True)
    assert jnp.max(jnp.abs(difference)) > 0.01


def refused(**keywords):
    x = inputs(BATCH, LENGTH, HEADS, 8)
    return lambda: attend(sj.normalizer("softmax"), x, x, x, **keywords)


TWICE = sj.Normalizer(jax.tree_util.Partial(sj.softpick, eps=1e-6), sj.LengthRule())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (refused(dropout_rate=1.0, dropout_rng=jax.random.key(0)), "dropout_rate is 1.0; it must be"),
        (refused(mask=jnp.ones((LENGTH, LENGTH + 1))), r"mask has shape \(5, 6\); it must broadcast"),
        (refused(bias=jnp.ones((3, LENGTH, LENGTH))), r"bias has shape \(3, 5, 5\); it must broadcast"),
        (lambda: learning_layer("linen", learn=("temperature",)), r"cannot learn 'temperature': .* are s, bias\b"),
        (lambda: learning_layer("nnx", "hardmax"), r"cannot learn 's': the numbers .* are none\b"),
        (lambda: learning_layer("nnx", TWICE, ("eps",)), r"cannot learn 'eps': the numbers .* are m\b"),
        (lambda: learning_layer("linen", heads=2)(inputs()), r"numbers for 2 heads, .* has 4: give heads=4"),
        (lambda: learning_layer("nnx", heads=2)(inputs()), r"numbers for 2 heads, .* has 4: give heads=4"),
        (lambda: NnxAttention("ssmax", heads=4, of_query=("s",)), r"of_query is \('s',\) .* size=None; .* both: give"),
        (lambda: NnxAttention("ssmax", heads=4, of_query=("sink",), size=4), r"cannot learn 'sink': .* s, bias"),
        (
            lambda: layer("nnx", NnxAttention("ssmax", heads=HEADS, of_query=("s",), size=8))(inputs()),
            r"queries of size 8, the layer has 4: give size=4",
        ),
    ],
)
def test_what_does_not_fit_raises(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Capture of weights


@both
def test_captured_weights_are_those_before_dropout_and_change_no_number(api):
    one, x = layer(api, attention_fn("softmax"), dropout_rate=0.5), inputs()
    output, weights = one.capture(x, mask=causal(x), deterministic=False)
    np.testing.assert_array_equal(output, one(x, mask=causal(x), deterministic=False))
    assert weights.shape == (BATCH, HEADS, LENGTH, LENGTH)
    np.testing.assert_allclose(weights, layer(api).capture(x, mask=causal(x), deterministic=True)[1], atol=1e-6)


# Numbers that are learned


def learning_layer(api, normalizer: Any = "ssmax(s=0.5)", learn=("s",), heads: int | None = HEADS):
    return layer(api, {"linen": LinenAttention, "nnx": NnxAttention}[api](normalizer, learn, heads))


def parameters(one) -> dict[str, Any]:
    """The parameters of a layer by path, as Flax lists them."""
    tree = one.variables["params"] if isinstance(one, Linen) else nnx.to_pure_dict(nnx.state(one.layer, nnx.Param))
    return traverse_util.flatten_dict(tree, sep="/")


@both
@pytest.mark.parametrize(("heads", "shape"), [(HEADS, (HEADS, 1, 1)), (None, ())])
def test_a_learned_number_is_one_more_parameter_that_starts_at_its_value(api, heads, shape):
    learning, fixed, x = learning_layer(api, heads=heads), layer(api, attention_fn("ssmax(s=0.5)")), inputs()
    numbers = parameters(learning)
    s = numbers.pop("attention_fn/s")
    np.testing.assert_array_equal(s, np.full(shape, 0.5, np.float32))
    jax.tree.map(np.testing.assert_array_equal, numbers, parameters(fixed))
    np.testing.assert_array_equal(learning(x, mask=causal(x)), fixed(x, mask=causal(x)))


@both
def test_each_head_uses_its_own_number(api):
    values, x = [1e-6, 0.1, 1.0, 10.0], inputs()
    numbers = sj.normalizer("softpick", eps=jnp.array(values).reshape(HEADS, 1, 1))
    _, weights = learning_layer(api, numbers, ("eps",), None).capture(x, mask=causal(x))
    for head, value in enumerate(values):
        fixed = layer(api, attention_fn(sj.normalizer("softpick", eps=value)))
        np.testing.assert_allclose(weights[:, head], fixed.capture(x, mask=causal(x))[1][:, head], atol=1e-6)


def test_a_trained_layer_takes_another_normalizer():
    trained, stock = learning_layer("linen", "ssmax", ("s",)), layer("linen", attention_fn("hardmax"))
    swapped = trained.layer.clone(attention_fn=attention_fn("hardmax"))
    np.testing.assert_allclose(swapped.apply(trained.variables, inputs()), stock(inputs()), atol=1e-6)

    run = nnx.jit(lambda model, x: model(x))
    learning, stock = learning_layer("nnx", "ssmax", ("s",)).layer, layer("nnx", attention_fn("hardmax")).layer
    first = run(learning, inputs())
    hard, learned = attention_fn("hardmax"), learning.attention_fn
    learning.attention_fn = hard
    np.testing.assert_allclose(run(learning, inputs()), run(stock, inputs()), atol=1e-6)
    stock.attention_fn = nnx.data(learned)
    np.testing.assert_allclose(run(stock, inputs()), first, atol=1e-6)


# Numbers that are linear in the query


def query_layer(api, **parameters):
    """A layer of ASEntmax whose two numbers are linear in the query, with these parameters."""
    names = {"heads": HEADS, "of_query": ("weight", "power")}
    if api == "linen":
        one = layer(api, LinenAttention("asentmax", **names))
        one.variables["params"]["attention_fn"] |= parameters
        return one
    one = layer(api, NnxAttention("asentmax", **names, size=FEATURES // HEADS))
    for name, value in parameters.items():
        getattr(one.layer.attention_fn, name)[...] = value
    return one


def kernels():
    return {f"{name}_of_query": inputs(HEADS, FEATURES // HEADS, seed=i) for i, name in enumerate(("weight", "power"))}


def projected(one, name, x):
    """The queries or keys of a layer, in float64."""
    parameters: Any = one.variables["params"] if isinstance(one, Linen) else nnx.state(one.layer, nnx.Param)
    kernel, bias = (np.asarray(parameters[name][part], np.float64) for part in ("kernel", "bias"))
    return np.einsum("bld,dhf->blhf", np.asarray(x), kernel) + bias


@pytest.mark.full
@both
def test_each_query_and_head_has_its_own_numbers(api):
    b, x = inputs(HEADS, 1, 1, seed=2), inputs()
    one = query_layer(api, weight=b, **kernels())
    _, weights = one.capture(x, mask=causal(x))
    query, key = (projected(one, name, x) for name in ("query", "key"))
    logits = jnp.asarray(np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(FEATURES // HEADS), jnp.float32)
    weight, power = (np.einsum("bqhd,hd->bhq", query, u)[..., None] for u in kernels().values())
    numbers = {"weight": weight + np.asarray(b), "power": power + np.arctanh(1 / 2)}
    expected = sj.normalizer("asentmax", **numbers)(logits, where=jnp.tri(LENGTH, dtype=bool)[None, None])
    np.testing.assert_allclose(weights, expected, atol=1e-5)


@pytest.mark.full
@both
def test_numbers_of_the_query_start_as_those_of_the_normalizer_and_have_gradients(api):
    one = query_layer(api)
    np.testing.assert_allclose(one(inputs()), layer(api, attention_fn("asentmax"))(inputs()), atol=1e-6)

    def loss(output):
        return jnp.mean((output - inputs(seed=1)) ** 2)

    if api == "linen":
        parameters = one.variables["params"]
        gradients = jax.grad(lambda parameters: loss(one.layer.apply({"params": parameters}, inputs())))(parameters)
    else:
        gradients = nnx.to_pure_dict(nnx.grad(lambda model: loss(model(inputs())))(one.layer))
    for name in ("weight", "power", "weight_of_query", "power_of_query"):
        gradient = gradients["attention_fn"][name]
        assert gradient.shape[0] == HEADS
        assert (jnp.abs(gradient) > 1e-7).all(), name


def learning():
    return LinenAttention("ssmax", ("s",), HEADS)


class TwoLayers(linen.Module):
    attention: Callable[..., Any]
    """What both layers share, or makes one for each."""
    own: bool = False

    @linen.compact
    def __call__(self, x):
        for _ in range(2):
            x = linen.MultiHeadAttention(HEADS, attention_fn=self.attention() if self.own else self.attention)(x)
        return x


class OneLayerTwice(linen.Module):
    def setup(self):
        self.layer = linen.MultiHeadAttention(HEADS, attention_fn=learning())

    def __call__(self, x):
        return self.layer(self.layer(x))


@pytest.mark.full
def test_numbers_that_layers_share_unasked_are_warned_of():
    x = inputs(1, 3, 8)
    with pytest.warns(UserWarning, match=r"at attention, serves several layers, which share its s: give each layer"):
        shared = TwoLayers(learning()).init(jax.random.key(0), x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TwoLayers(learning()).apply(shared, x)  # init has said it
        own = TwoLayers(learning, own=True).init(jax.random.key(0), x)
        twice = OneLayerTwice().init(jax.random.key(0), x)
    assert [sum(name[-1] == "s" for name in traverse_util.flatten_dict(of)) for of in (shared, own, twice)] == [1, 2, 1]


# Layers as arguments of compiled functions, in trees and under Flax's own transformations


def nnx_layer(seed: int = 0, bias: float = 0.0) -> nnx.MultiHeadAttention:
    fixed = sj.normalizer("ssmax", s=0.5, bias=jnp.full((HEADS, 1, 1), bias))
    attention = nnx.data(NnxAttention(fixed, learn=("s",), heads=HEADS))
    return nnx.MultiHeadAttention(HEADS, FEATURES, decode=False, rngs=nnx.Rngs(seed), attention_fn=attention)


def test_equal_nnx_layers_cost_one_program_and_meet_in_trees_and_branches():
    traces, one, other, x = [], nnx_layer(), nnx_layer(1), inputs()
    run = nnx.jit(lambda model, x: (traces.append(1), model(x))[1])
    outputs = [run(model, x) for model in (one, other, copy.deepcopy(one), nnx.merge(*nnx.split(one)))]
    assert len(traces) == 1
    assert jnp.max(jnp.abs(run(nnx_layer(bias=0.5), x) - outputs[0])) > 1e-3
    assert len(traces) == 2
    average = jax.tree.map(lambda a, b: 0.75 * a + 0.25 * b, one, other)
    kernel = 0.75 * one.query.kernel[...] + 0.25 * other.query.kernel[...]
    np.testing.assert_allclose(average.query.kernel[...], kernel, rtol=1e-6)
    chosen = jax.jit(lambda first, x: jax.lax.cond(first, lambda: one, lambda: other)(x))
    np.testing.assert_allclose(chosen(False, x), outputs[1], atol=1e-6)
    with pytest.raises(ValueError, match="structure"):
        jax.tree.map(jnp.add, one, nnx_layer(bias=0.5))


def lifted(layer: Any, attention: Any) -> jax.Array:
    """What a Linen layer makes of the inputs, lifted by Flax or not, with the parameters it has if it is not."""
    variables = linen.MultiHeadDotProductAttention(HEADS, attention_fn=attention).init(jax.random.key(0), inputs())
    return layer(HEADS, attention_fn=attention).apply(variables, inputs())


STOCK = linen.MultiHeadDotProductAttention


@pytest.mark.full
@pytest.mark.parametrize(("wrap", "learn"), [(linen.jit, False), (linen.jit, True), (linen.remat, True)])
def test_linen_lifts_layers_with_numbers_of_any_kind(wrap, learn):
    layer = wrap(STOCK)

    def output(bias):
        fixed = sj.normalizer("ssmax", bias=bias)
        return lifted(layer, LinenAttention(fixed, learn=("s",), heads=HEADS) if learn else attention_fn(fixed))

    expected = {bias: lifted(STOCK, attention_fn(sj.normalizer("ssmax", bias=bias))) for bias in (0.0, 0.7)}
    for kind in (float, jnp.float32, lambda b: jnp.full((HEADS, 1, 1), b)):
        for bias, right in expected.items():  # of which a stale program would give the first twice
            np.testing.assert_allclose(output(kind(bias)), right, atol=1e-5)


@pytest.mark.full
def test_a_traced_number_goes_through_linens_jit():
    compiled = linen.jit(STOCK)

    def total(s, layer):
        return jnp.sum(lifted(layer, attention_fn(sj.normalizer("ssmax", s=s))) ** 2)

    slope_of = jax.jit(jax.grad(total), static_argnums=1)
    for s in (jnp.float32(0.4), jnp.float32(0.8)):
        slope, expected = (slope_of(s, layer) for layer in (compiled, STOCK))
        np.testing.assert_allclose(slope, expected, rtol=1e-4)


@both
def test_decoding_step_by_step_equals_the_causal_pass(api):
    """Under SSMax this holds only if the empty places of the cache are not counted."""
    whole, x = learning_layer(api, "ssmax"), inputs()
    steps: list[Any] = []
    if isinstance(whole, Linen):
        decoder = whole.layer.clone(decode=True)
        cache = decoder.init(jax.random.key(0), x)["cache"]
        for i in range(LENGTH):
            variables = {"params": whole.variables["params"], "cache": cache}
            output, updated = decoder.apply(variables, x[:, i : i + 1], mutable=["cache"])
            cache, steps = updated["cache"], [*steps, output]
    else:
        decoder = nnx.clone(whole.layer)
        decoder.init_cache(x.shape)
        steps = [decoder(x[:, i : i + 1], decode=True, is_causal=True) for i in range(LENGTH)]
    assert_close: Any = np.testing.assert_allclose
    assert_close(jnp.concatenate(steps, 1), whole(x, mask=causal(x)), atol=1e-5)
