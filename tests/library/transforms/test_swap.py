import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import softmax_jax as sj
from tests.tiers import full_except

from .models import BATCH, CAUSAL, HEADS, LENGTH, QKV, apply_bert, attention, bert, close, normal, refused, run, same
from .test_forms import SOFTMAXES, with_rule

IDENTITY = jnp.broadcast_to(jnp.eye(LENGTH)[None, None], (BATCH, HEADS, LENGTH, LENGTH))
LARGEST = float(np.finfo(np.float32).max)
MASKS = -np.inf, -LARGEST, float(jnp.finfo(jnp.bfloat16).min), -0.7 * LARGEST, -2.3819763e38, -1e10, -65504.0, -1e4
"""What models hide logits with, chosen or added."""


def test_the_mask_is_that_of_the_model():
    normalizer = sj.normalizer("ssmax", s=1.5)
    hides = [lambda z, low=low: jnp.where(CAUSAL, z, low) for low in MASKS]
    hides += [lambda z, low=low: z + jnp.where(CAUSAL, 0.0, low) for low in MASKS]
    swapped = lambda *qkv: [sj.swap(attention, normalizer)(*qkv, hide=hide) for hide in hides]  # noqa: E731
    edited = lambda *qkv: [attention(*qkv, softmax=lambda z: normalizer(z, where=CAUSAL))] * len(hides)  # noqa: E731
    same(swapped, edited, *QKV)


def masked_exponentials(z):
    exponentials = jnp.where(CAUSAL, jnp.exp(z - z.max(-1, keepdims=True)), 0)
    return exponentials / exponentials.sum(-1, keepdims=True)


def multiplied_exponentials(z, seen=CAUSAL):
    exponentials = jnp.exp(z) * seen.astype(z.dtype)
    return exponentials / (exponentials.sum(-1, keepdims=True) + 1e-9)


def divided_last_and_masked(q, k, v):
    exponentials = jnp.exp(jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(jnp.float32(q.shape[-1])))
    exponentials = jnp.where(CAUSAL, exponentials, 0)
    return jnp.einsum("bhqk,bhkd->bhqd", exponentials, v) / exponentials.sum(-1)[..., None]


def test_a_mask_of_the_exponentials_alone():
    masked = [lambda *qkv, f=f: attention(*qkv, softmax=f) for f in (masked_exponentials, multiplied_exponentials)]
    models = [sj.swap(model, "ssmax") for model in (*masked, divided_last_and_masked)]
    edited = lambda *qkv: [attention(*qkv, softmax=lambda z: sj.ssmax(z, where=CAUSAL))] * 3  # noqa: E731
    same(lambda *qkv: [model(*qkv) for model in models], edited, *QKV)
    assert sj.sites(attention)(*QKV, softmax=masked_exponentials)[0].mask == "select"


@pytest.mark.full
@pytest.mark.parametrize("name", ["ssmax", "entmax15"])
def test_a_row_that_two_masks_empty_together(name: str):
    """One chooses by a predicate, the other adds a low number: the model gives all weight to what is less low."""
    first, second = (jnp.arange(LENGTH) < 2)[None, None, None], CAUSAL.at[..., 1, :].set(jnp.arange(LENGTH) >= 2)
    hide = lambda z: jnp.where(first, z + jnp.where(second, 0.0, -1e9), -1e30)  # noqa: E731

    def every(q, k):
        swapped = [sj.swap(attention, name, empty=empty)(q, k, IDENTITY, hide=hide) for empty in ("model", "zeros")]
        by_where = attention(q, k, IDENTITY, softmax=lambda z: sj.normalizer(name)(z, where=first & second))
        return *swapped, attention(q, k, IDENTITY, hide=hide), by_where

    as_the_model, zeros, model, by_where = run(every, *QKV[:2])
    close(as_the_model[:, :, 1], model[:, :, 1])
    np.testing.assert_allclose(model[:, :, 1, :2].sum(-1), 1, rtol=1e-6)
    close(np.delete(as_the_model, 1, 2), np.delete(by_where, 1, 2))
    close(zeros, by_where)
    assert not np.any(zeros[:, :, 1])


SEEN = CAUSAL.at[..., 2, :].set(False)


@pytest.mark.parametrize("name", full_except(("softmax", "ssmax", "softpick", "entmax15"), "ssmax"))
def test_a_row_with_nothing_visible(name: str):
    def weights(q, empty):
        swapped = sj.swap(attention, name, empty=empty)
        return swapped(q, QKV[1], IDENTITY, hide=lambda z: jnp.where(SEEN, z, -2.3819763e38))

    def every(q):
        gradients = [jax.grad(lambda q, e=empty: (weights(q, e) ** 2).sum())(q) for empty in ("model", "zeros")]
        return weights(q, "model"), weights(q, "zeros"), gradients

    as_the_model, zeros, gradients = run(every, QKV[0])
    close(as_the_model[:, :, 2], np.full((BATCH, HEADS, LENGTH), 1 / LENGTH, np.float32))
    assert not np.any(zeros[:, :, 2])
    close(np.delete(as_the_model, 2, 2), np.delete(zeros, 2, 2))
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_a_row_of_only_minus_infinity_gets_0_and_sends_nothing_back():
    """The model gives it NaN, whether -inf is chosen or added."""
    hides = (lambda z: jnp.where(SEEN, z, -jnp.inf), lambda z: z + jnp.where(SEEN, 0.0, -jnp.inf))

    def weights_and_gradients(q):
        swapped = [lambda q, h=h: sj.swap(attention, "ssmax")(q, QKV[1], IDENTITY, hide=h) for h in hides]
        return [(f(q), jax.grad(lambda q, f=f: (f(q) ** 2).sum())(q)) for f in swapped]

    for weights, gradient in run(weights_and_gradients, QKV[0]):
        assert not np.any(weights[:, :, 2])
        np.testing.assert_allclose(np.delete(weights, 2, 2).sum(-1), 1, rtol=1e-6)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize(("dtype", "above", "rtol"), [("float32", 8999, 1e-6), ("float16", 8992, 1e-3)])
def test_a_number_hides_from_minus_9000_on(dtype, above, rtol):
    attend = lambda z: jax.nn.softmax(z) @ jnp.eye(2, dtype=dtype)  # noqa: E731
    weights = run(sj.swap(attend, "signed_l1"), jnp.array([[1, -9000], [1, -above]], dtype))
    assert weights.dtype == dtype
    np.testing.assert_allclose(weights, [[0.5, 0], [1 / (above + 2), -above / (above + 2)]], rtol=rtol)


FIRST = jnp.broadcast_to(jnp.arange(LENGTH) < 2, CAUSAL.shape)
HIDDEN_FIRST = jnp.ones(CAUSAL.shape, bool).at[..., 2, :2].set(False)
LOW = jnp.where(HIDDEN_FIRST, 0.0, -1e9)
EMPTIED = {
    "one mask, and low numbers of an argument": lambda z, low: jax.nn.softmax(jnp.where(FIRST, z + low, -1e30)),
    "two masks": lambda z, low: jax.nn.softmax(jnp.where(FIRST, jnp.where(HIDDEN_FIRST, z, -1e9), -1e30)),
    "a mask of the exponentials": lambda z, low: multiplied_exponentials(z, FIRST & HIDDEN_FIRST),
}
"""Softmaxes that show the first two entries of a row, and in one row none."""


def test_an_empty_row_is_as_the_model_has_it_unless_one_low_number_hides_all():
    def of_all(q, low):
        weights = []
        for softmax in EMPTIED.values():
            model = lambda q, low, softmax=softmax: attention(q, QKV[1], IDENTITY, softmax=lambda z: softmax(z, low))  # noqa: E731
            weights.append((sj.swap(model, "ssmax")(q, low), model(q, low)))
        return weights

    for name, (swapped, model) in zip(EMPTIED, run(of_all, QKV[0], LOW)):
        close(swapped[:, :, 2], model[:, :, 2])
        assert not np.allclose(model[:, :, 2, :2], 1 / LENGTH), name
        assert not np.allclose(swapped[:, :, 3], model[:, :, 3]), name


FACTORS = {
    3: lambda z: jnp.exp((z - z.max(-1, keepdims=True)) * 3),
    2 / 0.7 * np.log(2): lambda z: jnp.exp2((z - z.max(-1, keepdims=True)) / 0.7 * 2),
    np.log(2): jnp.exp2,
    1 / 4: lambda z: jnp.exp(z / 4),
}
"""What a model multiplies its logits by, and how it does: before or after the maximum is taken off, or by the base."""


def test_the_factor_of_the_logits_is_that_of_the_model():
    models = [lambda z, f=f: f(z) / f(z).sum(-1, keepdims=True) for f in FACTORS.values()]
    swapped = [sj.swap(model, {0: "ssmax(s=1.5)"}) for model in models] + [sj.swap(jax.nn.log_softmax, {0: "ssmax"})]
    edited: list[Any] = [lambda z, factor=factor: sj.ssmax(jnp.float32(factor) * z, s=1.5) for factor in FACTORS]
    edited.append(lambda z: jnp.log(sj.ssmax(z)))
    same(lambda z: [f(z) for f in swapped], lambda z: [f(z) for f in edited], normal(2, 6), atol=1e-5)


@pytest.mark.full
def test_it_composes_with_scan_checkpoint_and_gradients():
    tokens, present = jnp.arange(12).reshape(BATCH, LENGTH), jnp.arange(LENGTH)[None] < jnp.array([[4], [6]])
    by_hand = lambda z: sj.normalizer("adaptive")(z, where=z > -1e4)  # noqa: E731

    def gradient(apply, softmax=jax.nn.softmax):
        return jax.value_and_grad(lambda parameters: (apply(parameters, tokens, present, softmax) ** 2).mean())

    same(gradient(sj.swap(apply_bert, "adaptive")), gradient(apply_bert, by_hand), bert(), atol=1e-5)


@pytest.mark.full
def test_it_is_sharded_as_the_model_is():
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = tuple(jax.device_put(array, jax.NamedSharding(mesh, jax.P("batch"))) for array in QKV)
    wanted = run(lambda *qkv: attention(*qkv, softmax=sj.hardmax), *QKV)
    result = jax.jit(sj.swap(attention, "hardmax"))(*sharded)
    close(result, wanted)
    assert result.sharding.spec[0] == "batch"

    def per_device(*qkv):
        return jax.shard_map(attention, mesh=mesh, in_specs=jax.P("batch"), out_specs=jax.P("batch"))(*qkv)

    close(run(sj.swap(per_device, "hardmax"), *QKV), wanted)
    with pytest.raises(ValueError, match="within shard_map cannot be probed"):
        sj.probe(per_device)(*QKV)


def test_a_changed_number_compiles_nothing():
    compiled = []

    @jax.jit
    def run(normalizer, *qkv):
        compiled.append(normalizer)
        return sj.swap(attention, normalizer)(*qkv)

    outputs = [run(sj.normalizer("ssmax", s=s), *QKV) for s in (0.3, 0.5)]
    per_head = run(sj.normalizer("ssmax", s=jnp.array([0.3, 0.5])[:, None, None]), *QKV)
    close(per_head, jnp.stack([outputs[0][:, 0], outputs[1][:, 1]], 1))
    assert len(compiled) == 2


def two_blocks(q, k, v):
    for layer in range(2):
        with jax.named_scope(f"block_{layer}"):
            q = attention(q, k, v)
    return jax.nn.softmax(q)


def test_sites_are_chosen_by_pattern_index_and_predicate():
    soft, hard, first = jax.nn.softmax, sj.hardmax, sj.normalizer("temperature(0.5)")

    def edited(one, other, last):
        return last(attention(attention(*QKV, softmax=one), *QKV[1:], softmax=other))

    cases: Any = [
        ("hardmax", None, (hard, hard, soft)),
        ({"*_1": "hardmax"}, None, (soft, hard, soft)),
        ({0: first, "*": "hardmax"}, None, (first, hard, soft)),
        ({2: "hardmax"}, None, (soft, soft, hard)),
        ("hardmax", lambda site: site.use == "output", (soft, soft, hard)),
    ]
    swapped = lambda *qkv: [sj.swap(two_blocks, normalizers, where=where)(*qkv) for normalizers, where, _ in cases]  # noqa: E731
    same(swapped, lambda *qkv: [edited(*softmaxes) for *_, softmaxes in cases], *QKV)


@pytest.mark.usefixtures("symbols_pass")
def test_sizes_may_be_symbolic_or_zero():
    symbolic = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 2, n, 8"), jnp.float32)
    jax.export.export(jax.jit(sj.swap(attention, "hardmax")))(*[symbolic] * 3)
    for shape in ((0, 2, 6, 8), (2, 2, 0, 8)):
        assert jax.eval_shape(sj.swap(attention, "hardmax"), *[jnp.zeros(shape)] * 3).shape == shape


def test_a_rule_for_derivatives_is_named_gives_way_to_a_normalizer_and_else_is_kept():
    @jax.custom_vjp
    def with_rule(z):
        return jax.nn.softmax(z)

    with_rule.defvjp(lambda z: (jax.nn.softmax(z), None), lambda _, g: (0 * g,))
    model = lambda *qkv: attention(*qkv, softmax=with_rule)  # noqa: E731
    edited = lambda *qkv: attention(*qkv, softmax=sj.normalizer("ssmax(s=1.0)"))  # noqa: E731
    kept = model, sj.swap(model, "softmax"), lambda *qkv: sj.probe(model)(*qkv)[0]
    functions = (sj.swap(model, "ssmax(s=1.0)"), edited, *kept)
    got, wanted, *zeros = run(lambda q: [jax.grad(lambda q, f=f: f(q, *QKV[1:]).sum())(q) for f in functions], QKV[0])
    close(got, wanted)
    assert not np.any(zeros)
    assert np.any(wanted)
    assert [site.what for site in sj.sites(model)(*QKV)] == ["softmax, whose custom_vjp a swap drops"]


def test_a_kernel_is_refused_or_left():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    def with_kernel(q, k, v):
        shape = jax.ShapeDtypeStruct(q.shape, q.dtype)
        return pl.pallas_call(body, out_shape=shape, interpret=True)(attention(q, k, v))

    with pytest.raises(ValueError, match=r"site 1 at test_swap.py:\d+ is pallas_call, a kernel, whose inside cannot"):
        jax.eval_shape(sj.swap(with_kernel, "hardmax"), *QKV)
    left = sj.swap(with_kernel, "hardmax", where=lambda site: site.use == "attention")
    assert "pallas_call" in str(jax.make_jaxpr(left)(*QKV))


@pytest.mark.full
def test_an_identity_with_a_rule_for_derivatives_keeps_it():
    """It returns its second operand, with twice the gradient."""
    doubled = jax.custom_vjp(lambda low, x: x)
    doubled.defvjp(lambda low, x: (x, None), lambda _, g: (None, 2 * g))
    rule, soft, x = functools.partial(doubled, jnp.float32(0)), jax.nn.softmax, normal(6, 4)
    models = [lambda x: soft(rule(x) @ x.T) @ x, lambda x: rule(soft(x @ x.T)) @ x, lambda x: soft(x @ x.T) @ rule(x)]
    models.append(lambda x: jax.lax.scan(lambda c, _: (soft(jax.jit(rule)(c) @ c.T) @ c, None), x, None, 2)[0])
    for model in models:
        functions = sj.swap(model, "softmax", empty="zeros"), lambda x, f=model: sj.probe(f)(x)[0], model
        slopes = [jax.grad(lambda x, f=f: (f(x) ** 2).sum()) for f in functions]
        swapped, probed, wanted = run(lambda x, slopes=slopes: [slope(x) for slope in slopes], x)
        close((swapped, probed), (wanted, wanted), atol=1e-5)
        assert [site.use for site in sj.sites(model)(x)] == ["attention"]


ENERGIES: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: jax.nn.softmax(x @ x.T) @ x,
    "JAX's rule": lambda x: with_rule(x @ x.T) @ x,
    "log_sum_exp": lambda x: SOFTMAXES["log_sum_exp"](x @ x.T) @ x,
    "divided after": lambda x: (jnp.exp(x @ x.T) @ x) / jnp.exp(x @ x.T).sum(-1, keepdims=True),
    "scan": lambda x: jax.lax.scan(lambda c, _: (jax.nn.softmax(c @ c.T) @ c, None), x, None, 2)[0],
    "checkpoint": jax.checkpoint(lambda x: jax.nn.softmax(x @ x.T) @ x),
}
DERIVATIVES: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "grad": jax.grad,
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,))[1],
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](jnp.float32(1)),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](x),
    "grad of grad": lambda f: jax.grad(lambda x: (jax.grad(f)(x) ** 2).sum()),
    "laplacian": lambda f: lambda x: jnp.einsum("ijij->", jax.hessian(f)(x)),
    "local energy": lambda f: lambda x: jnp.einsum("ijij->", jax.hessian(f)(x)) + (jax.grad(f)(x) ** 2).sum() + f(x),
    "compiled": lambda f: jax.jit(jax.grad(jax.jit(f))),
}
PAIRS = [("softmax", name) for name in DERIVATIVES] + [(one, "grad") for one in ENERGIES] + [("divided after", "jvp")]
TAKEN = {f"{name} of {energy}": (energy, name) for energy, name in PAIRS}
AT_ONCE = ("grad of softmax", "jvp of softmax", "grad of JAX's rule", "grad of scan")


@pytest.mark.parametrize("case", full_except(TAKEN, *AT_ONCE))
def test_a_derivative_that_the_function_takes_itself_is_refused_and_not_left(case: str):
    energy, name = TAKEN[case]
    f = lambda x: (ENERGIES[energy](x) ** 2).sum()  # noqa: E731
    x, derivative = normal(3, 2), DERIVATIVES[name]
    found = sj.sites(derivative(f))(x)
    taken = [site.use == "derivative" or site.what.endswith(", whose derivative is taken here") for site in found]
    assert taken == [True] * len(found) if name != "local energy" else sorted(taken) == [False, True, True]
    with pytest.raises(ValueError, match="the function takes itself") as error:
        jax.eval_shape(sj.swap(derivative(f), "ssmax"), x)
    assert "swap inside, before the derivative is taken, as in jax.grad(sj.swap(f, ...))" in str(error.value)
    assert "\n" not in str(error.value)
    jax.eval_shape(derivative(sj.swap(f, "ssmax")), x)
    if (energy, name) != ("divided after", "jvp"):  # whose product the tangent uses too
        assert found[0].use == "attention"
        jax.eval_shape(lambda x: sj.probe(derivative(f))(x)[0], x)
        jax.eval_shape(sj.swap(derivative(f), "softmax"), x)


def test_the_derivative_of_a_sum_of_exponentials_is_named():
    loss = lambda x: jax.jvp(lambda x: jax.nn.logsumexp(x, -1).sum(), (x,), (x,))[1]  # noqa: E731
    (site,) = sj.sites(loss)(normal(3, 4))
    assert (site.use, site.what) == ("derivative", "the derivative of a sum of exponentials")
    with pytest.raises(ValueError, match="which the function takes itself: swap inside, before the derivative"):
        jax.eval_shape(sj.swap(loss, "ssmax"), normal(3, 4))
    with pytest.raises(ValueError, match="except by a derivative that the function takes itself"):
        sj.sites(jax.grad(lambda x: jax.nn.logsumexp(x, -1).sum()))(normal(3, 4))


def test_derivatives_that_lead_around_a_softmax_leave_it_to_be_swapped():
    """Of the values alone, and of a layer after frozen attention."""
    q, values = normal(4, 3), normal(4, 2, seed=1)

    def of_values(q, v, softmax=jax.nn.softmax):
        return jax.grad(lambda v: ((softmax(q @ q.T) @ v) ** 2).sum())(v)

    def of_a_head(q, v, softmax=jax.nn.softmax):
        return jax.grad(lambda w: jnp.tanh(softmax(q @ q.T) @ q @ w).sum())(v[:3])

    normalizer = sj.normalizer("ssmax(s=0.7)")
    for function in (of_values, of_a_head):
        swapped, edited = sj.swap(function, normalizer), functools.partial(function, softmax=normalizer)
        same(swapped, edited, q, values)


def bad(*arguments: Any, **options: Any):
    return lambda: sj.swap(two_blocks, *arguments, **options)(*QKV)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (bad({"blok_1": "hardmax"}), "no site matches 'blok_1'; the scopes are 'block_1', 'block_0', 'site_2'"),
        (bad({7: "hardmax"}), "there is no site 7: the sites are 0 to 2"),
        (bad("sofmax"), "unknown normalizer 'sofmax': did you mean 'softmax', "),
        (bad("softmax", where=lambda site: False), "no site is chosen among 0: block_0 (attention), 1: block_1"),
        (bad(sj.normalizer("ssmax", s=jnp.ones((3, 1, 1)))), "site 0, block_0 at models.py:"),
        (lambda: sj.swap(jnp.sin, "ssmax")(QKV[0]), "there is no softmax in the function sin: looked at 1 equations"),
    ],
)
def test_bad_input_is_named_in_one_line(call: Any, line: str):
    refused(call, line)
