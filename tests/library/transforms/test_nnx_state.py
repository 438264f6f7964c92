"""What a function writes to objects of NNX among its arguments is there after a swap, as it is without one."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import softmax_jax as sj
from tests.tiers import full_except

from .models import normal

X = normal(2, 5, 16)


class Block(nnx.Module):
    """Attention beside state: a parameter, a count, a plain number, a sown value."""

    def __init__(self, seed: int = 0) -> None:
        self.weight = nnx.Param(normal(16, 16, seed=seed) / 4)
        self.seen = nnx.Variable(jnp.zeros((), jnp.int32))
        self.calls = 0

    def attention(self, x: jax.Array) -> jax.Array:
        return jax.nn.softmax(x @ self.weight[...] @ x.mT) @ x

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x + self.attention(x)
        self.seen[...] += 1
        self.calls += 1
        self.last = nnx.Intermediate(y)
        return y


class Layers(Block):
    """Layers of Flax with dropout and statistics."""

    def __init__(self) -> None:
        super().__init__()
        rngs = nnx.Rngs(0)
        options: Any = {"dropout_rate": 0.5, "deterministic": False, "decode": False, "rngs": rngs}
        self.layer = nnx.MultiHeadAttention(4, 16, **options)
        self.norm = nnx.BatchNorm(16, rngs=rngs)

    def attention(self, x: jax.Array) -> jax.Array:
        return self.norm(self.layer(x))


def call(model, x):
    return model(x)


def loss(model, x):
    return jnp.sum(model(x) ** 2)


def in_turn(first, second, x):
    return second(first(x))


def grown(variable: nnx.Variable) -> jax.Array:
    variable[...] += 1
    return variable[...]


def sharing() -> tuple[Block, Block]:
    first, second = Block(), Block(1)
    second.weight = first.weight
    second.seen = first.seen
    return first, second


def decoder() -> nnx.MultiHeadAttention:
    layer = nnx.MultiHeadAttention(4, 16, decode=True, rngs=nnx.Rngs(0))
    layer.init_cache(X.shape)
    return layer


def content(*objects: Any) -> tuple[Any, list[Any]]:
    """The structure of objects and all that they hold."""
    structure, state = nnx.split(objects)
    return structure, numbers(state)


def numbers(tree: Any) -> list[Any]:
    keys = lambda a: jnp.issubdtype(a.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [jax.random.key_data(leaf) if keys(leaf) else leaf for leaf in jax.tree.leaves(tree)]


def assert_same(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


RUNS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], Callable[..., Any]]] = {
    "nnx.jit": (call, lambda: (Block(),), nnx.jit),
    "layers": (call, lambda: (Layers(),), nnx.jit),
    "plain": (call, lambda: (Block(),), lambda fun: fun),
    "trees": (call, lambda: (Block(),), functools.partial(nnx.jit, graph_updates=False)),
    "nnx.grad": (loss, lambda: (Block(),), lambda fun: nnx.jit(nnx.grad(fun))),
    "sharing": (in_turn, sharing, nnx.jit),
    "nested": (lambda d, x: d["a"][0](x), lambda: ({"a": [Block()], "name": "b", "number": 3},), lambda fun: fun),
    "random numbers": (lambda m, r, x: m.layer(x, rngs=r), lambda: (Layers(), nnx.Rngs(5)), nnx.jit),
    "a variable": (lambda m, v, x: m(x) * grown(v), lambda: (Block(), nnx.Variable(jnp.ones(()))), nnx.jit),
    "captured": (lambda m, x: nnx.capture(m, nnx.Intermediate)(x), lambda: (Block(),), nnx.jit),
    "decoding": (lambda m, x: m(x[:, :1]), lambda: (decoder(),), nnx.jit),
}


@pytest.mark.parametrize("name", full_except(RUNS, "nnx.jit"))
def test_state_is_written_as_without_a_swap(name: str):
    fun, make, transform = RUNS[name]

    def run(fun):
        objects, transformed = make(), transform(fun)
        return [numbers(transformed(*objects, X)) for _ in range(2)], content(*objects)

    (outputs, state), (stock, expected) = run(sj.swap(fun, "softmax")), run(fun)
    assert_same(outputs, stock)
    assert state[0] == expected[0]
    assert_same(state[1], expected[1])


@pytest.mark.full
def test_a_module_may_be_the_function_or_bound_to_it_or_returned_or_closed_over_if_it_is_only_read():
    ours, stock = Block(), Block()
    for fun in (ours, ours.__call__, functools.partial(call, ours)):
        assert_same(sj.swap(fun, "softmax")(X), stock(X))
        assert_same(sj.probe(fun)(X)[0], stock(X))
        assert_same(content(ours)[1], content(stock)[1])
    same, new = sj.swap(lambda block, x: (block, nnx.Variable(block(x))), "softmax")(ours, X)
    assert same is ours
    assert_same(new[...], stock(X))
    model = nnx.MultiHeadAttention(4, 16, decode=False, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(nnx.jit(sj.swap(lambda x: model(x), "softmax"))(X), model(X), atol=1e-6)


@pytest.mark.full
def test_calibrate_carries_the_objects_of_its_batches():
    block = Block()
    options: Any = {"learn": ("s",), "optimizer": optax.sgd(0.1), "batches": [(block, X)] * 3}
    sj.calibrate(call, "ssmax", loss=lambda fun, batch: loss(lambda x: fun(batch[0], x), batch[1]), **options)
    assert [int(block.seen[...]), block.calls] == [3, 3]


@pytest.mark.full
def test_a_cache_fills_and_another_normalizer_is_swapped_in():
    def decode(fun):
        layer: Any = decoder()
        return jnp.concatenate([fun(layer, X[:, i : i + 1]) for i in range(5)], 1), layer.cache_index[...]

    swapped, at = decode(nnx.jit(sj.swap(call, "ssmax")))
    layer = decoder()
    layer.attention_fn = sj.attention_fn("ssmax")
    np.testing.assert_allclose(swapped, layer(X, mask=nnx.make_causal_mask(X[..., 0]), decode=False), atol=1e-5)
    assert at == 5


def refusals(given: Block) -> dict[str, Callable[[], Any]]:
    closed, options = sj.swap(lambda x: given(x), "ssmax"), {"learn": ("s",), "optimizer": optax.sgd(0.1)}
    return {
        "is none of its arguments (it holds given): pass it": lambda: closed(X),
        "is none of its arguments (it holds given): pass": lambda: nnx.jit(closed)(X),
        "is none of its arguments (it holds given)": lambda: sj.sites(lambda x: given(x))(X),
        "was made outside of a transformation": lambda: nnx.jit(lambda x: sj.swap(call, "ssmax")(given, x))(X),
        "was made outside of a transformation around it": lambda: jax.jit(sj.swap(given, "ssmax"))(X),
        "in nnx.jit(lambda model, x: swapped(model, x))": lambda: jax.eval_shape(
            lambda x: sj.swap(lambda one, x: (jax.nn.softmax(x) @ x.mT, grown(one)), "ssmax")(given.seen, x), X
        ),
        "and calibrate in each batch": lambda: sj.calibrate(
            call, "ssmax", loss=lambda fun, x: loss(functools.partial(fun, given), x), batches=[X], **options
        ),
    }


@pytest.mark.parametrize("line", refusals(Block()))
def test_an_object_that_is_not_given_is_refused_and_stays_as_it_is(line: str):
    block = Block()
    before = content(block)[1]
    with pytest.raises(ValueError) as error:  # noqa: PT011
        refusals(block)[line]()
    assert line in str(error.value)
    assert "\n" not in str(error.value)
    assert_same(content(block)[1], before)
