import copy
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx, serialization, traverse_util
from orbax.checkpoint import v1 as ocp

import softmax_jax as sj
from softmax_jax.attention.flax_layers import LinenAttention, NnxAttention, attend, attention_fn
from tests.tiers import full_except, methods

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
    assert_same(ours, stock, x)
    assert_same(ours, stock, x, mask=causal(x))
    assert_same(ours, stock, x, mask=causal(x).astype(bool))
    assert jnp.max(jnp.abs(ours(x) - ours(x, mask=causal(x)))) > 0.01


@pytest.mark.full
@both
@pytest.mark.parametrize("shape", [(LENGTH, FEATURES), (2, BATCH, LENGTH, FEATURES)])
def test_any_number_of_batch_axes(api, shape):
    ours, stock = (jax.jit(layer(api, f)) for f in (attention_fn("softmax"), None))
    x = inputs(*shape)
    assert_same(ours, stock, x, mask=causal(x))


def test_is_causal_of_nnx():
    ours, stock, x = layer("nnx", attention_fn("softmax")), layer("nnx"), inputs()
    assert_same(ours, stock, x, is_causal=True)
    np.testing.assert_array_equal(ours(x, is_causal=True), ours(x, mask=causal(x)))
    padding = jnp.arange(LENGTH)[None, None, None] < jnp.array([3, 5])[:, None, None, None]
    assert_same(ours, stock, x, is_causal=True, mask=padding)


@pytest.mark.full
@pytest.mark.parametrize("kv_heads", [2, 1])
def test_grouped_heads_of_nnx(kv_heads):
    ours, stock = (jax.jit(layer("nnx", f, num_kv_heads=kv_heads)) for f in (attention_fn("softmax"), None))
    assert_same(ours, stock, inputs(), mask=causal(inputs()))


@pytest.mark.full
@both
def test_half_precision(api):
    with jax.numpy_dtype_promotion("standard"):  # which Flax itself needs for half precision
        ours, stock = (jax.jit(layer(api, f, dtype=jnp.bfloat16))(inputs()) for f in (attention_fn("softmax"), None))
    assert ours.dtype == jnp.bfloat16
    np.testing.assert_allclose(ours.astype(jnp.float32), stock.astype(jnp.float32), atol=0.05)


@pytest.mark.parametrize("low", [-9e3, -1e9])
def test_a_low_bias_hides_as_a_mask_does_and_a_mask_that_is_added_is_refused(low):
    x, mask = inputs(BATCH, LENGTH, HEADS, 8), causal(inputs()).at[0, :, 2].set(0)
    added, weigh = jnp.where(mask != 0, 0, low), sj.normalizer("ssmax")
    wanted = attend(weigh, x, x, x, mask=mask)
    np.testing.assert_array_equal(wanted[0, 2], 0)
    layers: list[Any] = [attention_fn(weigh), NnxAttention(weigh, learn=("s",))]
    for output in attend(weigh, x, x, x, added), *(layer(x, x, x, bias=added) for layer in layers):
        np.testing.assert_allclose(output, wanted, atol=1e-6)
    with pytest.raises(ValueError, match=r"the mask of float32 holds -.* as bias="):
        attend(weigh, x, x, x, mask=added)


def test_precision_reaches_both_products():
    x = inputs(LENGTH, HEADS, 8)
    program = jax.jit(attention_fn("softmax"), static_argnames="precision").lower(x, x, x, precision="highest")
    products = [line for line in program.as_text().splitlines() if "dot_general" in line and "func" not in line]
    assert len(products) == 2
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)


# Dropout


@pytest.mark.parametrize("broadcast_dropout", [True, False])
def test_dropout_is_the_same_for_all_batch_entries_and_heads_if_it_is_broadcast(broadcast_dropout):
    """Values of one-hot rows show the weights, of which equal logits make 1/16 each, and 1/8 where half are dropped."""
    nothing = jnp.zeros((BATCH, 16, HEADS, 1))
    values = jnp.broadcast_to(jnp.eye(16)[None, :, None], (BATCH, 16, HEADS, 16))
    options = {"dropout_rate": 0.5, "dropout_rng": jax.random.key(0), "broadcast_dropout": broadcast_dropout}
    output = attend(sj.normalizer("softmax"), nothing, nothing, values, **options)
    weights = np.moveaxis(np.asarray(output), 2, 1)
    np.testing.assert_allclose(np.unique(weights), [0, 1 / 8], atol=1e-6)
    different = len({of_head.tobytes() for of_entry in weights for of_head in of_entry})
    assert different == (1 if broadcast_dropout else BATCH * HEADS)


@pytest.mark.full
@both
@pytest.mark.parametrize("broadcast_dropout", [True, False])
def test_dropout_equals_stock(api, broadcast_dropout):
    options = {"dropout_rate": 0.5, "broadcast_dropout": broadcast_dropout}
    ours, stock = layer(api, attention_fn("softmax"), **options), layer(api, **options)
    assert_same(ours, stock, inputs(), deterministic=False)
    assert_same(ours, stock, inputs(), deterministic=True)
    difference = ours(inputs(), deterministic=False) - ours(inputs(), deterministic=True)
    assert jnp.max(jnp.abs(difference)) > 0.01


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"dropout_rate": 1.0, "dropout_rng": jax.random.key(0)}, "dropout_rate is 1.0; it must be"),
        ({"dropout_rate": 0.5}, "dropout_rng is None: give a key"),
        ({"mask": jnp.ones((LENGTH, LENGTH + 1))}, r"mask has shape \(5, 6\); it must broadcast"),
        ({"bias": jnp.ones((3, LENGTH, LENGTH))}, r"bias has shape \(3, 5, 5\); it must broadcast"),
    ],
)
def test_what_does_not_fit_raises(keywords, message):
    x = inputs(BATCH, LENGTH, HEADS, 8)
    with pytest.raises(ValueError, match=message):
        attend(sj.normalizer("softmax"), x, x, x, **keywords)


# Capture of weights


@both
def test_capture_gives_the_weights_and_changes_no_number(api):
    one, x = layer(api, attention_fn("softmax")), inputs()
    output, weights = one.capture(x, mask=causal(x))
    np.testing.assert_array_equal(output, one(x, mask=causal(x)))
    assert weights.shape == (BATCH, HEADS, LENGTH, LENGTH)
    np.testing.assert_array_equal(jnp.triu(weights, 1), 0)
    np.testing.assert_allclose(weights, layer(api).capture(x, mask=causal(x))[1], atol=1e-6)


@both
def test_captured_weights_are_those_before_dropout(api):
    one = layer(api, attention_fn("softmax"), dropout_rate=0.5)
    output, weights = one.capture(inputs(), deterministic=False)
    np.testing.assert_array_equal(output, one(inputs(), deterministic=False))
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


# Transformations and decoding


@pytest.mark.full
@both
def test_jit_grad_and_vmap(api):
    one, x = layer(api, attention_fn("ssmax")), inputs()
    np.testing.assert_allclose(jax.jit(one)(x), one(x), atol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(one))(x), one(x), atol=1e-6)

    def loss(x):
        return jnp.sum(one(x, mask=causal(x)) ** 2)

    step = 1e-2 * inputs(seed=1)
    slope = (loss(x + step) - loss(x - step)) / 2
    np.testing.assert_allclose(jnp.vdot(jax.jit(jax.grad(loss))(x), step), slope, rtol=2e-2)


def decode_linen(attention, x):
    full = Linen(attention)
    decoder = linen.MultiHeadDotProductAttention(HEADS, attention_fn=attention, decode=True)
    cache = decoder.init(jax.random.key(0), x)["cache"]
    for i in range(x.shape[1]):
        variables = {"params": full.variables["params"], "cache": cache}
        output, updated = decoder.apply(variables, x[:, i : i + 1], mutable=["cache"])
        cache = updated["cache"]
        yield output


@pytest.mark.full
def test_decoding_step_by_step_equals_the_causal_pass():
    """Under SSMax this holds only if the empty places of the cache are not counted; an NNX layer decodes below."""
    attention, x = attention_fn("ssmax"), inputs()
    steps = list(decode_linen(attention, x))
    expected = layer("linen", attention)(x, mask=causal(x))
    np.testing.assert_allclose(jnp.concatenate(steps, axis=1), expected, atol=1e-5)


# Numbers that are learned


def learning_layer(api, normalizer: Any = "ssmax(s=0.5)", learn=("s",), heads: int | None = HEADS):
    return layer(api, {"linen": LinenAttention, "nnx": NnxAttention}[api](normalizer, learn, heads))


def parameters(one) -> dict[str, Any]:
    """The parameters of a layer by path, as Flax lists them."""
    tree = one.variables["params"] if isinstance(one, Linen) else nnx.to_pure_dict(nnx.state(one.layer, nnx.Param))
    return by_path(tree)


def by_path(tree) -> dict[str, Any]:
    return traverse_util.flatten_dict(tree, sep="/")


def with_number(one, name, number):
    """The layer with another number, put where the user of that library would put it."""
    if isinstance(one, Linen):
        one.variables["params"]["attention_fn"][name] = number
    else:
        getattr(one.layer.attention_fn, name)[...] = number
    return one


@both
@pytest.mark.parametrize(("heads", "shape"), [(HEADS, (HEADS, 1, 1)), (None, ())])
def test_a_learned_number_is_one_more_parameter_that_starts_at_its_value(api, heads, shape):
    learning, fixed, x = learning_layer(api, heads=heads), layer(api, attention_fn("ssmax(s=0.5)")), inputs()
    numbers = parameters(learning)
    s = numbers.pop("attention_fn/s")
    np.testing.assert_array_equal(s, np.full(shape, 0.5, np.float32))
    jax.tree.map(np.testing.assert_array_equal, numbers, parameters(fixed))
    np.testing.assert_array_equal(learning(x, mask=causal(x)), fixed(x, mask=causal(x)))


@pytest.mark.parametrize(
    ("api", "name", "number", "values"),
    [
        ("linen", "ssmax", "s", [0.1, 0.5, 1.0, 2.0]),
        ("nnx", "softpick", "eps", [1e-6, 0.1, 1.0, 10.0]),
        *full_except([("nnx", "sink_softmax", "sink", [-5.0, 0.0, 1.0, 3.0])]),
        *full_except([("nnx", "clipped_ssmax(low=0.0)", "s", [0.1, 0.5, 1.0, 2.0])]),
    ],
)
def test_each_head_uses_its_own_number_of_any_map_or_scale(api, name, number, values):
    x = inputs()
    learning = learning_layer(api, name, (number,))
    _, weights = with_number(learning, number, jnp.array(values).reshape(HEADS, 1, 1)).capture(x, mask=causal(x))
    for head, value in enumerate(values):
        fixed = layer(api, attention_fn(sj.normalizer(name, **{number: value})))
        np.testing.assert_allclose(weights[:, head], fixed.capture(x, mask=causal(x))[1][:, head], atol=1e-6)


def losses_linen(steps):
    """Losses of some steps of Optax on a Linen layer, its first gradient of s, and its last s."""
    one, optimizer = learning_layer("linen"), optax.sgd(0.2)
    params = one.variables["params"]

    def loss(params):
        return jnp.mean((one.layer.apply({"params": params}, inputs()) - inputs(seed=1)) ** 2)

    state, gradients, losses = optimizer.init(params), [], []
    step = jax.jit(jax.value_and_grad(loss))
    for _ in range(steps):
        value, gradient = step(params)
        updates, state = optimizer.update(gradient, state)
        params: Any = optax.apply_updates(params, updates)
        gradients.append(gradient["attention_fn"]["s"])
        losses.append(value)
    return losses, gradients[0], params["attention_fn"]["s"]


def test_training_moves_the_number_of_each_head():
    """The same on an NNX layer is below, with numbers of the query."""
    losses, gradient, s = losses_linen(steps=5)
    assert gradient.shape == (HEADS, 1, 1)
    assert (jnp.abs(gradient) > 1e-6).all()
    assert (jnp.abs(s - 0.5) > 1e-3).all()
    assert (np.diff(losses) < 0).all()


@both
@pytest.mark.parametrize(
    ("name", "learn", "heads"),
    methods(
        [
            ("ssmax(bias=0.2)", ("s", "bias"), HEADS),
            ("softpick", ("eps",), None),
            ("sink_softmax", ("sink",), HEADS),
            ("clipped_ssmax(low=0.1)", ("high", "low", "bias", "s"), HEADS),
            ("adaptive", ("threshold", "coefficients_0", "coefficients_4"), HEADS),
        ]
    ),
)
def test_any_number_of_a_map_or_a_scale_can_be_learned(api, name, learn, heads):
    learning = learning_layer(api, name, learn, heads)
    assert {path for path in parameters(learning) if "attention_fn" in path} == {f"attention_fn/{n}" for n in learn}
    np.testing.assert_array_equal(learning(inputs()), layer(api, attention_fn(name))(inputs()))
    moved = with_number(learning, learn[-1], parameters(learning)[f"attention_fn/{learn[-1]}"] + 0.5)
    assert jnp.max(jnp.abs(moved(inputs()) - layer(api, attention_fn(name))(inputs()))) > 1e-4


def test_a_trained_nnx_layer_takes_another_normalizer_both_ways():
    run = nnx.jit(lambda model, x: model(x))
    learning, stock = learning_layer("nnx", "ssmax", ("s",)).layer, layer("nnx", attention_fn("hardmax")).layer
    first = run(learning, inputs())
    hard, learned = attention_fn("hardmax"), learning.attention_fn
    learning.attention_fn = hard
    np.testing.assert_allclose(run(learning, inputs()), run(stock, inputs()), atol=1e-6)
    stock.attention_fn = nnx.data(learned)
    np.testing.assert_allclose(run(stock, inputs()), first, atol=1e-6)


def test_a_trained_linen_layer_takes_another_normalizer():
    learning, stock = learning_layer("linen", "ssmax", ("s",)), layer("linen", attention_fn("hardmax"))
    swapped = learning.layer.clone(attention_fn=attention_fn("hardmax"))
    run = jax.jit(lambda variables, x: swapped.apply(variables, x, deterministic=True))
    np.testing.assert_allclose(run(learning.variables, inputs()), stock(inputs()), atol=1e-6)


def test_the_same_text_costs_one_program():
    traces = []
    run = nnx.jit(lambda model, x: (traces.append(1), model(x))[1])
    for name in ("ssmax(s=0.2)", "ssmax(s=0.2)", "ssmax(s=0.3)"):
        run(layer("nnx", attention_fn(name)).layer, inputs())
    assert len(traces) == 2


def test_learned_numbers_are_saved_with_the_other_parameters(tmp_path):
    s = jnp.array([0.1, 0.5, 1.0, 2.0]).reshape(HEADS, 1, 1)
    saved = with_number(learning_layer("linen"), "s", s).variables
    loaded = serialization.from_bytes(learning_layer("linen").variables, serialization.to_bytes(saved))
    np.testing.assert_array_equal(loaded["params"]["attention_fn"]["s"], s)

    saved = nnx.state(with_number(learning_layer("nnx"), "s", s).layer, nnx.Param)
    ocp.save(tmp_path / "state", nnx.to_pure_dict(saved))
    target = learning_layer("nnx").layer
    state = nnx.state(target, nnx.Param)
    nnx.replace_by_pure_dict(state, ocp.load(tmp_path / "state", nnx.to_pure_dict(state)))
    nnx.update(target, state)
    np.testing.assert_array_equal(target.attention_fn.s[...], s)


@both
def test_numbers_that_cannot_be_learned_raise(api):
    with pytest.raises(ValueError, match=r"cannot learn 'temperature': the numbers .* are s, bias\b"):
        learning_layer(api, learn=("temperature",))
    with pytest.raises(ValueError, match=r"cannot learn 's': the numbers .* are none\b"):
        learning_layer(api, "hardmax")
    twice = sj.Normalizer(jax.tree_util.Partial(sj.softpick, eps=1e-6), sj.LengthRule())
    with pytest.raises(ValueError, match=r"cannot learn 'eps': the numbers .* are m\b"):
        learning_layer(api, twice, ("eps",))


@both
def test_numbers_for_other_heads_than_the_layer_has_raise(api):
    with pytest.raises(ValueError, match=r"numbers for 2 heads, the layer has 4: give heads=4"):
        learning_layer(api, heads=2)(inputs())


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
    logits = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(FEATURES // HEADS)
    of_query = {name: np.einsum("bqhd,hd->bhq", query, u)[..., None] for name, u in kernels().items()}
    b = np.asarray(b)
    weight, power = of_query["weight_of_query"] + b, of_query["power_of_query"] + np.arctanh(1 / 2)
    log_n = np.log(np.arange(1, LENGTH + 1))[:, None]
    with np.errstate(divide="ignore"):
        grows = np.where(log_n > 0, log_n ** (2 * np.tanh(power)), 0)
    beta = jnp.asarray(1 + np.logaddexp(0, weight) * grows, jnp.float32)
    expected = sj.entmax15(beta * jnp.asarray(logits, jnp.float32), where=jnp.tri(LENGTH, dtype=bool)[None, None])
    np.testing.assert_allclose(weights, expected, atol=1e-5)


@both
def test_numbers_of_the_query_start_as_those_of_the_normalizer(api):
    np.testing.assert_allclose(query_layer(api)(inputs()), layer(api, attention_fn("asentmax"))(inputs()), atol=1e-6)


@pytest.mark.full
def test_training_moves_the_numbers_of_the_query():
    model = query_layer("nnx").layer
    optimizer = nnx.Optimizer(model, optax.sgd(0.2), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        value, gradient = nnx.value_and_grad(lambda model: jnp.mean((model(inputs()) - inputs(seed=1)) ** 2))(model)
        optimizer.update(model, gradient)
        return value

    losses = [step(model, optimizer) for _ in range(5)]
    assert (np.diff(losses) < 0).all()
    for name in ("weight", "power", "weight_of_query", "power_of_query"):
        assert (jnp.abs(getattr(model.attention_fn, name)[...]) > 1e-6).any(), name


def test_numbers_of_the_query_need_the_layers_sizes():
    with pytest.raises(ValueError, match=r"of_query is \('s',\) with heads=4 and size=None; .* need both: give"):
        NnxAttention("ssmax", heads=4, of_query=("s",))
    with pytest.raises(ValueError, match=r"queries of size 8, the layer has 4: give size=4"):
        layer("nnx", NnxAttention("ssmax", heads=HEADS, of_query=("s",), size=8))(inputs())
    with pytest.raises(ValueError, match=r"cannot learn 'sink': the numbers of this normalizer are s, bias"):
        NnxAttention("ssmax", heads=4, of_query=("sink",), size=4)


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


@pytest.mark.parametrize("jit", [jax.jit, pytest.param(nnx.jit, marks=pytest.mark.full)])
def test_equal_nnx_layers_cost_one_program(jit):
    traces = []
    run = jit(lambda model, x: (traces.append(1), model(x))[1])
    split = nnx.merge(*nnx.split(nnx_layer()))
    for model in (nnx_layer(), nnx_layer(1), copy.deepcopy(nnx_layer()), nnx.clone(nnx_layer()), split):
        run(model, inputs())
    assert len(traces) == 1
    moved = run(nnx_layer(bias=0.5), inputs()) - run(nnx_layer(), inputs())
    assert len(traces) == 2
    assert jnp.max(jnp.abs(moved)) > 1e-3


def test_nnx_layers_meet_in_trees_and_branches():
    one, other, x = nnx_layer(), nnx_layer(1), inputs()
    average = jax.tree.map(lambda a, b: 0.75 * a + 0.25 * b, one, other)
    kernel = 0.75 * one.query.kernel[...] + 0.25 * other.query.kernel[...]
    np.testing.assert_allclose(average.query.kernel[...], kernel, rtol=1e-6)
    chosen = jax.jit(lambda first, x: jax.lax.cond(first, lambda: one, lambda: other)(x))
    np.testing.assert_allclose(chosen(False, x), other(x), atol=1e-6)
    with pytest.raises(ValueError, match="structure"):
        jax.tree.map(jnp.add, one, nnx_layer(bias=0.5))


def lifted(layer: Any, attention: Any) -> jax.Array:
    """What a Linen layer makes of the inputs, lifted by Flax or not, with the parameters it has if it is not."""
    variables = linen.MultiHeadDotProductAttention(HEADS, attention_fn=attention).init(jax.random.key(0), inputs())
    return layer(HEADS, attention_fn=attention).apply(variables, inputs())


@pytest.mark.full
@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize(
    "wrap", [linen.jit, *(pytest.param(wrap, marks=pytest.mark.full) for wrap in (linen.remat, lambda layer: layer))]
)
def test_linen_lifts_layers_with_numbers_of_any_kind(wrap, learn):
    stock = linen.MultiHeadDotProductAttention
    layer = wrap(stock)

    def output(bias):
        fixed = sj.normalizer("ssmax", bias=bias)
        return lifted(layer, LinenAttention(fixed, learn=("s",), heads=HEADS) if learn else attention_fn(fixed))

    expected = {bias: lifted(stock, attention_fn(sj.normalizer("ssmax", bias=bias))) for bias in (0.0, 0.7)}
    for kind in (float, np.array, jnp.float32, lambda b: jnp.full((HEADS, 1, 1), b)):
        for bias, right in expected.items():  # of which a stale program would give the first twice
            np.testing.assert_allclose(output(kind(bias)), right, atol=1e-5)


@pytest.mark.full
def test_a_traced_number_goes_through_linens_jit():
    stock = linen.MultiHeadDotProductAttention
    compiled = linen.jit(stock)

    def total(s, layer):
        return jnp.sum(lifted(layer, attention_fn(sj.normalizer("ssmax", s=s))) ** 2)

    for s in (jnp.float32(0.4), jnp.float32(0.8), jnp.float32(0.4)):
        slope, expected = (jax.grad(total)(s, layer) for layer in (compiled, stock))
        np.testing.assert_allclose(slope, expected, rtol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("learn", [False, True])
def test_linen_scans_and_maps_layers_with_numbers_of_any_kind(learn):
    fixed = sj.normalizer("ssmax", bias=jnp.full((HEADS, 1, 1), 0.5))
    options: Any = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}

    class Step(linen.Module):
        @linen.compact
        def __call__(self, x, _):  # pyright: ignore[reportIncompatibleMethodOverride]
            attention = LinenAttention(fixed, ("s",), HEADS) if learn else attention_fn(fixed)
            return linen.MultiHeadDotProductAttention(HEADS, attention_fn=attention)(x), None

    axes: Any = (0, None)
    scanned, mapped = linen.scan(Step, length=2, **options)(), linen.vmap(Step, in_axes=axes, **options)()
    for model, x in ((scanned, inputs()), (mapped, inputs(2, BATCH, LENGTH, FEATURES))):
        variables = model.init(jax.random.key(0), x, None)
        assert jax.jit(model.apply)(variables, x, None)[0].shape == x.shape


@pytest.mark.parametrize("learn", full_except([False, True], True))
def test_is_causal_means_the_same_when_a_layer_decodes(learn):
    attention = nnx.data(NnxAttention("ssmax", ("s",), HEADS)) if learn else attention_fn("ssmax")
    full, x = Nnx(attention), inputs()
    decoder = nnx.clone(full.layer)
    decoder.init_cache(x.shape)
    steps = [decoder(x[:, i : i + 1], decode=True, is_causal=True) for i in range(LENGTH)]
    np.testing.assert_allclose(jnp.concatenate(steps, 1), full(x, is_causal=True), atol=1e-5)


def test_is_causal_for_one_query_without_a_mask_shows_one_key():
    query, others = jnp.ones((1, 1, 1, 2)), inputs(1, 3, 1, 2)
    output = attend(sj.normalizer("softmax"), query, others, others, is_causal=True)
    np.testing.assert_allclose(output, others[:, :1], rtol=1e-6)
