from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen
from jax.experimental import pallas as pl

import softmax_jax as sj
from softmax_jax.transforms.sites import check_callable
from tests.tiers import full_except

from .models import CAUSAL, LENGTH, QKV, attention, normal, refused, same

X, W = normal(4, 8), normal(8, 8, seed=1)
EXPERTS = normal(4, 8, 3, seed=2)
Z = normal(2, 3, 5, 5)


def weigh(w, v=None):
    return jnp.einsum("bhqk,bhkd->bhqd", w, normal(*w.shape[:2], w.shape[-1], 4) if v is None else v)


def one_hot_router(g):
    top, index = jax.lax.top_k(g, 2)
    weights = (jax.nn.one_hot(index, 8) * jax.nn.softmax(top)[..., None]).sum(-2)
    return jnp.einsum("te,ted->td", weights, EXPERTS)


def sorted_router(g):
    index = jnp.argsort(-g, -1)[:, :2]
    weights = jax.nn.softmax(jnp.take_along_axis(g, index, -1))
    return jnp.einsum("tk,tkd->td", weights, jnp.take_along_axis(EXPERTS, index[..., None], 1))


def switch_router(g, beside=0.0):
    """A product with the largest weights, and one with all where `beside` is not 0."""
    weights = jax.nn.softmax(g)
    routed = jnp.einsum("te,ted->td", weights * jax.nn.one_hot(weights.argmax(-1), 8), EXPERTS)
    return routed + beside * jnp.einsum("te,ted->td", weights, EXPERTS) if beside else routed


def convolve(w, kernel, **options):
    return jax.lax.conv_general_dilated(w, kernel, (1, 1), "SAME", **options)


def convolved_over_the_last(z):
    options = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    return weigh(convolve(jax.nn.softmax(z).transpose(0, 2, 3, 1), normal(3, 3, 3, 3), **options).transpose(0, 3, 1, 2))


def dynamic_convolution(z):
    """Weights are the kernel, arXiv 1901.10430."""
    kernel = jnp.tile(jax.nn.softmax(z[0, 0, 0, :3])[None, None, None], (3, 1, 1, 1))
    return convolve(z, kernel, feature_group_count=3)


def slots(x, update):
    """Slot attention, arXiv 2006.15055: softmax over the slots, then sums over the inputs, in rounds."""
    s = X[:3]
    for _ in range(3):
        w = jax.nn.softmax(x @ (s / jnp.sqrt((s**2).sum(-1, keepdims=True))).T) + 1e-8
        s = update(s, (w / w.sum(0, keepdims=True)).T @ x)
    return s


def value_head(x, sum_of):
    e = jnp.exp(x)
    return sum_of(e) / e.sum(-1)


soft = jax.nn.softmax
RANGE = jnp.arange(8.0)
ATTENTION: dict[str, tuple[Any, Any]] = {
    "dense mixture": (lambda g: jnp.einsum("te,ted->td", soft(g), EXPERTS), X),
    "largest logits": (lambda z: weigh(soft(jnp.where(z >= jax.lax.top_k(z, 3)[0][..., -1:], z, -1e9))), Z),
    "dense mixture beside a routed one": (lambda g: switch_router(g, beside=1.0), X),
    "talking heads": (lambda z: weigh(jnp.einsum("bhqk,hg->bgqk", soft(z), W[:3, :3])), Z),
    "second of a split": (lambda z: weigh(jnp.split(soft(z), [2], -1)[1]), Z),
    "groups in one axis": (lambda x: soft(x.reshape(4, 2, 4)).reshape(4, 8) @ W, X),
    "tiled": (lambda x: jnp.tile(soft(x), (2, 1)) @ W, X),
    "weights out of a map": (lambda z: weigh(jax.lax.map(soft, z)), Z),
    "convolved": (lambda z: weigh(convolve(soft(z), normal(3, 3, 3, 3))), Z),
    "convolved head by head": (lambda z: weigh(convolve(soft(z), normal(3, 1, 3, 3), feature_group_count=3)), Z),
    "convolved, heads last": (convolved_over_the_last, Z),
    "smoothed": (lambda z: weigh(jax.lax.reduce_window(soft(z), 0.0, jax.lax.add, (1, 1, 1, 3), (1,) * 4, "SAME")), Z),
    "kernel of a convolution": (dynamic_convolution, Z),
    "sum of scaled vectors": (lambda x: (soft(x)[..., None] * W[None]).sum(1), X),
    "scaled and split": (lambda x: jnp.einsum("ijk,il->jkl", (soft(x) * 0.5).T.reshape(8, 2, 2), W), X),
    "dropped sink": (lambda z: weigh(soft(jnp.pad(z, [(0, 0)] * 3 + [(0, 1)]))[..., :-1]), Z),
}
OTHER: dict[str, tuple[str, Any]] = {
    "top k, then softmax": ("choice", one_hot_router),
    "sorted, then softmax": ("choice", sorted_router),
    "softmax, then the largest": ("choice", switch_router),
    "largest weights": ("choice", lambda x: jax.lax.top_k(soft(x), 2)),
    "value head": ("expectation", lambda x: soft(x) @ RANGE),
    "value head, summed": ("expectation", lambda x: (soft(x) * RANGE[None]).sum(-1)),
    "distillation": ("expectation", lambda x: jnp.einsum("bv,bv->b", soft(x), x @ W)),
    "summed and divided after": ("expectation", lambda x: value_head(x, lambda e: (e * RANGE[None]).sum(-1))),
    "product of the other axis": ("other", lambda x: soft(x, 0) @ W),
    "sum over rows": ("other", lambda x: soft(x).sum(0).max()),
    "classifier": ("output", soft),
    "likelihood": ("log", lambda x: -jax.nn.log_softmax(x)[:, 0].mean()),
}
USES = {name: ("attention", *case) for name, case in ATTENTION.items()}
USES |= {name: (*case, X) for name, case in OTHER.items()}


@pytest.mark.parametrize("name", USES)
def test_the_use_of_weights_that_meet_other_things_first(name: str):
    use, function, x = USES[name]
    (site,) = sj.sites(function)(x)
    assert site.use == use
    if use == "attention":
        jax.eval_shape(sj.swap(function, "entmax15"), x)
    else:
        with pytest.raises(ValueError, match="no site is chosen"):
            jax.eval_shape(sj.swap(function, "entmax15"), x)


@pytest.mark.parametrize("update", [lambda s, u: jnp.tanh(s + u), lambda s, u: s + u], ids=["bent", "added"])
def test_all_rounds_have_the_same_use(update: Any):
    for function in (slots, lambda x, update: (jax.nn.relu(slots(x, update)) * W[:3]).sum(0)):
        assert [(site.use, site.axis) for site in sj.sites(function)(X, update)] == [("other", -1)] * 3


IDS = jnp.array([0, 0, 1, 2])
BODIES: dict[str, Any] = {
    "multiply": lambda x: x.at[0].multiply(2),
    "segment_sum": lambda x: jax.ops.segment_sum(x, IDS, 3),
    "bincount": lambda x: jnp.bincount(IDS, length=3),
    "inv": lambda x: jnp.linalg.inv(x[:, :4]),
    "reduce": lambda x: jax.lax.reduce(x, 0.0, lambda a, b: a + 2 * b, (1,)),
    "gradient of a gather": lambda x: jax.grad(lambda y: (y[IDS] ** 2).sum())(x),
    "linear attention": lambda x: (jnp.exp(x) @ (jnp.exp(x).T @ x)) / (jnp.exp(x) @ jnp.exp(x).sum(0))[:, None],
    "linear attention, summed": lambda x: (
        (jnp.exp(x) @ (jnp.exp(x).T @ x)) / (jnp.exp(x) * jnp.exp(x).sum(0)[None]).sum(-1, keepdims=True)
    ),
    "logsumexp": lambda x: (jax.nn.logsumexp(x, -1) - x[:, 0]).mean(),
}


@pytest.mark.parametrize("name", full_except(BODIES, "segment_sum", "linear attention"))
def test_what_is_no_softmax_is_not_listed_and_not_refused(name: str):
    function = BODIES[name]
    model = lambda x: (jax.nn.softmax(x) @ W, function(x))  # noqa: E731
    (site,) = sj.sites(model)(X)
    assert site.use == "attention"
    same(sj.swap(model, "hardmax"), lambda x: (sj.hardmax(x) @ W, function(x)), X)


def test_a_body_that_is_not_read_and_takes_exponentials_is_listed():
    model = lambda x: jax.lax.reduce(jax.nn.softmax(x) @ W, -jnp.inf, jnp.logaddexp, (1,))  # noqa: E731
    assert [(site.use, site.what) for site in sj.sites(model)(X)] == [("attention", "softmax"), ("kernel", "reduce")]


EVERY_SECOND = slice(None, None, 2)


def strided(exponentials, totals):
    return lambda z: (e := jnp.exp(z))[exponentials] / e.sum(-1)[totals, None]


@pytest.mark.parametrize(
    "divide",
    [
        lambda z: (e := jnp.exp(z)) / (e.sum(-1, keepdims=True) + -1.0),
        lambda z: (e := jnp.exp(z)) / (e.sum(-1, keepdims=True) + -1e-3),
        strided(EVERY_SECOND, slice(2)),
        strided(slice(2), EVERY_SECOND),
    ],
    ids=["1 taken off", "a little taken off", "every second row", "sums of every second row"],
)
def test_a_divisor_that_is_not_the_sum_of_the_row_is_unread(divide: Any):
    assert [(site.use, site.what) for site in sj.sites(divide)(X)] == [("unread", "exponentials over a sum")]
    assert [site.what for site in sj.sites(strided(EVERY_SECOND, EVERY_SECOND))(X)] == ["softmax"]


def test_the_line_is_that_of_the_call_of_a_layer_and_the_scope_that_of_the_user():
    layer = linen.MultiHeadDotProductAttention(4)
    variables = jax.eval_shape(layer.init, jax.random.key(0), X[None])
    apply: Any = layer.apply
    loss = lambda v: apply(v, X[None]).sum()  # noqa: E731
    for function in (loss, jax.grad(loss)):
        (site,) = sj.sites(function)(variables)
        assert (site.line[:14], site.scope) == ("test_sites.py:", "MultiHeadDotProductAttention")
    (site,) = sj.sites(jax.grad(lambda x: jax.vmap(jax.nn.softmax)(x).max()))(X)
    assert site.scope == "site_0"


@pytest.mark.parametrize(
    ("hide", "mask"),
    [
        (lambda z: z, "none"),
        (lambda z: 2 * jnp.tanh(z / 2), "none"),
        (lambda z: jnp.where(CAUSAL, z, -1e30), "select"),
        (lambda z: jnp.where(CAUSAL, z, -100.0), "select"),
        (lambda z: jnp.where(CAUSAL, z, -99.0), "values"),
        (lambda z: jnp.where(CAUSAL, z, jnp.finfo(z.dtype).min), "select"),
        (lambda z: z + jnp.where(CAUSAL, 0, -1e9), "select and values"),
        (lambda z: jnp.where(CAUSAL, z + normal(1, 1, LENGTH, LENGTH), -jnp.inf), "select and values"),
    ],
)
def test_what_hides_logits_is_named(hide: Any, mask: str):
    assert sj.sites(attention)(*QKV, hide=hide)[0].mask == mask


def test_sites_lie_in_any_body_and_have_scopes_and_a_table():
    softmax = jax.checkpoint(lambda z: jax.jit(jax.nn.softmax)(z))

    @jax.jit
    def function(q, k, v):
        with jax.named_scope("block_0"):
            q = jax.lax.fori_loop(0, 2, lambda _, q: attention(q, k, v, softmax=softmax), q)
        with jax.named_scope("block_1"):
            q = jax.lax.cond(q[0, 0, 0, 0] > 0, lambda q: attention(q, k, v), lambda q: q, q)
        return jax.vmap(lambda q: jax.lax.map(lambda q: attention(q[None, None], k[:1, :1], v[:1, :1]), q))(q)

    found = sj.sites(function)(*QKV)
    assert [(site.index, site.use) for site in found] == [(0, "attention"), (1, "attention"), (2, "attention")]
    assert [site.scope for site in found] == ["block_0", "block_1", "site_2"]
    head, *rows = repr(found).splitlines()
    assert head.split() == ["index", "scope", "line", "shape", "axis", "dtype", "mask", "use", "what"]
    assert len(rows) == 3
    assert "block_1" in rows[1]
    assert hash(found[0]) != hash(found[1])
    assert [found[1].matches(pattern) for pattern in ("*_1", 1, "block_0")] == [True, True, False]


def test_kernels_and_rows_in_blocks_are_named():
    def kernel(x):
        def body(x_ref, o_ref):
            o_ref[...] = jnp.exp(x_ref[...])

        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)

    (site,) = sj.sites(kernel)(normal(8, 8))
    assert (site.use, site.what) == ("kernel", "pallas_call")

    def in_blocks(q, k, v):
        def step(carry, block):
            top, total, output = carry
            logits = q @ block[0].T
            new = jnp.maximum(top, logits.max(-1))
            p = jnp.exp(logits - new[:, None])
            shrink = jnp.exp(top - new)
            return (new, shrink * total + p.sum(-1), shrink[:, None] * output + p @ block[1]), None

        start = jnp.full(4, -1e30), jnp.zeros(4), jnp.zeros((4, 3))
        (_, total, output), _ = jax.lax.scan(step, start, (k, v))
        return output / total[:, None]

    (site,) = sj.sites(in_blocks)(normal(4, 3), normal(5, 6, 3), normal(5, 6, 3))
    assert (site.use, site.shape, site.axis) == ("blocks", (4, 6), -1)


def test_bad_input_is_named_in_one_line():
    with pytest.raises(TypeError, match="fun is 3; it must be a function"):
        check_callable(3)
    for function in (lambda z: z / z.sum(-1, keepdims=True), jax.nn.logsumexp, jax.nn.sigmoid):
        with pytest.raises(ValueError, match="there is no softmax"):
            sj.sites(function)(normal(3, 4))

    def f(x):
        return jax.jit(lambda x: jnp.exp(x) + x)(x) * 2

    looked = "looked at 4 equations, within jit too; 1 take exponentials"
    refused(lambda: sj.sites(f)(normal(3)), f"there is no softmax in the function f: {looked}")
