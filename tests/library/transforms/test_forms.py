"""Forms of softmax that models have: which are read, and swapped as if edited by hand; which are listed and refused."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from tests.tiers import full_except

from .models import close, normal, run

X = normal(2, 3, 5, 4)
SINK = 0.3


def scores(x):
    return jnp.einsum("bhqd,bhkd->bhqk", x, x)


def weigh(w, x):
    return jnp.einsum("bhqk,bhkd->bhqd", w, x)


def exponentials(z, axis: int = -1):
    e = jnp.exp(z - z.max(axis, keepdims=True))
    return e, e.sum(axis, keepdims=True)


def quotient(z):
    e, s = exponentials(z)
    return e / s


def without_maximum(z):
    return jnp.exp(z) / jnp.sum(jnp.exp(z), -1, keepdims=True)


def reciprocal(z):
    e = jnp.exp(z - jax.lax.stop_gradient(jnp.max(z, -1, keepdims=True)))
    return e * (1 / (jnp.sum(e, -1, keepdims=True) + 1e-9))


def base_two(z):
    e = jnp.exp2((z - jnp.max(z, -1, keepdims=True)) * np.log2(np.e))
    return e / jnp.sum(e, -1, keepdims=True)


def with_rule(z):
    with jax.softmax_custom_jvp(True):
        return jax.nn.softmax(z)


SOFTMAXES: dict[str, Callable[[Any], Any]] = {
    "jax.nn.softmax": jax.nn.softmax,
    "quotient": quotient,
    "without a maximum": without_maximum,
    "reciprocal": reciprocal,
    "base two": base_two,
    "log_sum_exp": lambda z: jnp.exp(z - jax.nn.logsumexp(z, -1, keepdims=True)),
    "exponential of log_softmax": lambda z: jnp.exp(jax.nn.log_softmax(z)),
    "with JAX's rule": with_rule,
    "row by row": lambda z: jax.vmap(lambda row: jax.nn.softmax(row, -1), in_axes=1, out_axes=1)(z),
    "stable in half": lambda z: jax.nn.softmax(z.astype(jnp.float32)).astype(z.dtype),
}


def grouped(x):
    """Grouped keys: the exponentials are reshaped before the product, and what comes out after it."""
    e, s = exponentials(scores(x))
    values = jnp.einsum("bngqk,bnkd->bngqd", e.reshape(2, 1, 3, 5, 5), x[:, :1])
    return values.reshape(2, 3, 5, 4) / s


def grouped_by_hand(x, softmax):
    return jnp.einsum("bhqk,bkd->bhqd", softmax(scores(x)), x[:, 0])


def moved_sum(x):
    """As in a decoder of five axes: sum and product are brought to the layout of the output, then divided."""
    z = jnp.einsum("bngqd,bnkd->bngqk", x.reshape(2, 1, 3, 5, 4), x[:, :1])
    e, s = exponentials(z)
    s = jnp.moveaxis(s, 3, 1).reshape(2, 5, 3, 1)
    return (jnp.einsum("bngqk,bnkd->bqngd", e, x[:, :1]).reshape(2, 5, 3, 4) / s).transpose(0, 2, 1, 3)


def moved_sum_by_hand(x, softmax):
    return jnp.einsum("bhqk,bkd->bhqd", softmax(jnp.einsum("bhqd,bkd->bhqk", x, x[:, 0])), x[:, 0])


def transposed(x):
    e, s = exponentials(scores(x))
    return jnp.einsum("bhkq,bhkd->bhqd", e.mT, x) * (1 / s)


def other_axis(x):
    e, s = exponentials(scores(x), -2)
    return jnp.einsum("bhkq,bhkd->bqhd", e, x).transpose(0, 2, 1, 3) / s.mT


def other_axis_by_hand(x, softmax):
    return weigh(softmax(scores(x).mT), x)


def quotient_after_reshape(x):
    e, s = exponentials(scores(x))
    w = e.reshape(6, 5, 5) / s.reshape(6, 5, 1)
    return jnp.einsum("nqk,nkd->nqd", w, x.reshape(6, 5, 4)).reshape(x.shape)


def sliced(x):
    """A sink as one more column, dropped before the division."""
    z = jnp.concatenate([scores(x), jnp.full((2, 3, 5, 1), SINK)], -1)
    e, s = exponentials(z)
    return weigh(e[..., :-1], x) / s


def sink_by_hand(x, softmax):
    z = jnp.concatenate([scores(x), jnp.full((2, 3, 5, 1), SINK)], -1)
    return weigh(softmax(z)[..., :-1], x)


def half(x):
    e, s = exponentials(scores(x))
    return weigh(e.astype(jnp.bfloat16).reshape(2, 3, 5, 5), x.astype(jnp.bfloat16)).astype(x.dtype) / s


def half_by_hand(x, softmax):
    return weigh(softmax(scores(x)).astype(jnp.bfloat16), x.astype(jnp.bfloat16)).astype(x.dtype)


def by_hand(x, softmax):
    return weigh(softmax(scores(x)), x)


def divided_last(x):
    e, s = exponentials(scores(x))
    return weigh(e, x) / s


def summed_product(x):
    e, s = exponentials(scores(x))
    return (e[..., None] * x[:, :, None]).sum(-2) / s


GATE = jax.nn.sigmoid(normal(1, 3, 5, 5, seed=7))
KEPT = jnp.asarray(np.random.default_rng(0).random((2, 3, 5, 5)) < 0.7)


def gated_by_hand(x, softmax):
    return weigh(softmax(scores(x)) * GATE, x)


def dropped(w):
    return jnp.where(KEPT, w / 0.7, 0)


def gate_in_quotient(x):
    e, s = exponentials(scores(x))
    return weigh(e * GATE / s, x)


def gate_before_division(x):
    e, s = exponentials(scores(x))
    return weigh(e * GATE, x) / s


def dropout_before_division(x):
    e, s = exponentials(scores(x))
    return weigh(dropped(e), x) / s


def power(z):
    e = jnp.power(2.5, z)
    return e / e.sum(-1, keepdims=True)


def base_of(number: float):
    return lambda x, softmax: weigh(softmax(jnp.float32(np.log(number)) * scores(x)), x)


def computed_twice(x):
    return weigh(jnp.exp(scores(x)) / jnp.exp(scores(x)).sum(-1, keepdims=True), x)


def convolved(x, softmax=jax.nn.softmax):
    """Multi-token attention, arXiv 2504.00927: weights are convolved over queries, keys and heads."""
    return weigh(jax.lax.conv_general_dilated(softmax(scores(x)), normal(3, 3, 3, 3), (1, 1), "SAME"), x)


FORMS: dict[str, tuple[Callable[[Any], Any], Callable[..., Any]]] = {
    **{name: (lambda x, form=form: by_hand(x, form), by_hand) for name, form in SOFTMAXES.items()},
    "divided last": (divided_last, by_hand),
    "grouped": (grouped, grouped_by_hand),
    "sum moved": (moved_sum, moved_sum_by_hand),
    "transposed": (transposed, by_hand),
    "other axis": (other_axis, other_axis_by_hand),
    "quotient after a reshape": (quotient_after_reshape, by_hand),
    "sliced": (sliced, sink_by_hand),
    "half": (half, half_by_hand),
    "grouped under vmap": (jax.vmap(lambda x: grouped(jnp.stack([x, x]))[0]), grouped_by_hand),
    "grouped under remat": (jax.checkpoint(grouped), grouped_by_hand),
    "moved under jit": (jax.jit(moved_sum), moved_sum_by_hand),
    "summed product": (summed_product, by_hand),
    "gate in the quotient": (gate_in_quotient, gated_by_hand),
    "gate before the division": (gate_before_division, gated_by_hand),
    "dropout before the division": (
        dropout_before_division,
        lambda x, softmax: weigh(dropped(softmax(scores(x))), x),
    ),
    "powers of a constant": (lambda x: by_hand(x, power), base_of(2.5)),
    "computed twice": (computed_twice, by_hand),
    "convolved": (convolved, convolved),
}


def swapped_as_edited(model, edited, names=("ssmax(s=0.7)",), atol: float = 2e-6):
    """One site of attention; a swap to softmax changes no bit, and other swaps are the model edited by hand."""
    (site,) = sj.sites(model)(X)
    assert (site.use, site.dtype) == ("attention", "float32")
    assert site.line.startswith("test_forms.py:")

    def every(x):
        zeros = sj.swap(model, "softmax", empty="zeros")(x), edited(x, jax.nn.softmax)
        pairs = [(sj.swap(model, name)(x), edited(x, sj.normalizer(name))) for name in names]
        return model(x), sj.swap(model, "softmax")(x), [zeros, *pairs]

    one, same, pairs = run(every, X)
    np.testing.assert_array_equal(one, same)
    for got, wanted in pairs:
        close(got, wanted, atol)
    return site


AT_ONCE = ("jax.nn.softmax", "log_sum_exp", "sum moved", "sliced", "summed product", "convolved")
WHOLE = {*SOFTMAXES, "quotient after a reshape", "powers of a constant", "computed twice", "convolved"}
WHOLE |= {"gate in the quotient"}
"""The forms that divide before the product with the values."""


@pytest.mark.parametrize("name", full_except(FORMS, *AT_ONCE))
def test_any_form_is_swapped_as_if_edited_by_hand(name: str):
    model, edited = FORMS[name]
    names = ("ssmax(s=0.7)", "hardmax", "entmax15")[: 3 if name in ("divided last", "base two") else 1]
    site = swapped_as_edited(model, edited, names, atol=2e-2 if name == "half" else 2e-6)
    assert site.mask == "none"
    assert site.what == ("softmax" if name in WHOLE else "divided after the product")


def denominator(z, sink: Any = SINK):
    m = jnp.maximum(z.max(-1, keepdims=True), sink)
    e = jnp.exp(z - m)
    return e / (e.sum(-1, keepdims=True) + jnp.exp(sink - m))


def softmax1(z):
    m = jnp.maximum(jax.lax.stop_gradient(z.max(-1, keepdims=True)), 0)
    e = jnp.exp(z - m)
    return e / (e.sum(-1, keepdims=True) + jnp.exp(-m))


def softmax1_plain(z):
    return jnp.exp(z) / (1 + jnp.exp(z).sum(-1, keepdims=True))


def log_add_exp(z, sink=SINK):
    return jnp.exp(z - jnp.logaddexp(jax.nn.logsumexp(z, -1, keepdims=True), sink))


def soft_plus(z):
    return jnp.exp(z - jax.nn.softplus(jax.nn.logsumexp(z, -1, keepdims=True)))


def base_two_with_sink(z, sink=SINK):
    m = z.max(-1, keepdims=True)
    e = jnp.exp2((z - m) * np.log2(np.e))
    return e * (1 / (e.sum(-1, keepdims=True) + jnp.exp2((sink - m) * np.log2(np.e)) + 1e-9))


def per_head(z, sink=None):
    return denominator(z, jnp.array([0.1, -0.2, 0.5])[:, None, None][None])


EXTRA: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "sink": (denominator, SINK),
    "softmax1": (softmax1, 0.0),
    "softmax1 without a maximum": (softmax1_plain, 0.0),
    "logaddexp": (log_add_exp, SINK),
    "softplus": (soft_plus, 0.0),
    "base two": (base_two_with_sink, SINK),
    "sink of each head": (per_head, jnp.array([0.1, -0.2, 0.5])[:, None, None]),
    "under remat": (jax.checkpoint(denominator), SINK),
}


def with_column(z, softmax, sink):
    column = jnp.broadcast_to(jnp.asarray(sink, z.dtype), (*z.shape[:-1], 1))
    return softmax(jnp.concatenate([z, column], -1))[..., :-1]


@pytest.mark.parametrize("name", full_except(EXTRA, "logaddexp"))
def test_an_extra_logit_is_one_more_entry(name: str):
    softmax, sink = EXTRA[name]
    model = lambda x: weigh(softmax(scores(x)), x)  # noqa: E731
    site = swapped_as_edited(model, lambda x, other: weigh(with_column(scores(x), other, sink), x))
    assert (site.what, site.shape) == ("softmax with an extra logit", (2, 3, 5, 6))
    _, (rows,) = run(sj.probe(model, also=lambda w: w.sum(-1)), X)
    np.testing.assert_allclose(rows.also, 1, rtol=1e-6)
    np.testing.assert_array_equal(rows.visible, 6)


@pytest.mark.full
def test_the_gradient_of_a_sink_is_that_of_the_model_edited_by_hand():
    normalizer = sj.normalizer("ssmax(s=0.7)")

    def gradients(x):
        swapped = [sj.swap(lambda x, softmax=softmax: by_hand(x, softmax), normalizer) for softmax, _ in EXTRA.values()]
        edited = [lambda x, one=one: weigh(with_column(scores(x), normalizer, one), x) for _, one in EXTRA.values()]
        return [[jax.grad(lambda x, f=f: (f(x) ** 2).sum())(x) for f in functions] for functions in (swapped, edited)]

    close(*run(gradients, X), atol=1e-5)


SEEN = jnp.tril(jnp.ones((1, 1, 5, 5), bool))
VALID = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
OUTER = (VALID[:, :, None] & VALID[:, None])[:, None]


def column(z):
    return jnp.concatenate([z, jnp.full((2, 3, 5, 1), SINK)], -1)


HIDES: dict[str, tuple[Callable[..., Any], Any]] = {
    "product of numbers": (lambda z, m: z + (1 - jnp.einsum("bq,bk->bqk", m, m))[:, None] * -1e9, OUTER),
    "outer product": (lambda z, m: z - 1e9 * (1 - m[:, None, :, None] * m[:, None, None, :]), OUTER),
    "product of two sides": (lambda z, m: z * m[:, None, None] - 1e10 * (1 - m[:, None, None]), VALID[:, None, None]),
    "logarithm": (lambda z, m: z + jnp.log(m)[:, None, None], VALID[:, None, None]),
    "select before a sink": (lambda z, m: column(jnp.where(SEEN, z, -1000.0)), SEEN),
    "select before a pad": (lambda z, m: jnp.pad(jnp.where(SEEN, z, -1000.0), [(0, 0)] * 3 + [(0, 1)]), SEEN),
    "select before a transpose": (
        lambda z, m: column(
            jnp.where(SEEN, z, -1000.0).reshape(6, 5, 5).transpose(1, 0, 2).swapaxes(0, 1).reshape(z.shape)
        ),
        SEEN,
    ),
    "half of the row": (
        lambda z, m: jnp.concatenate([jnp.where(SEEN[..., :3], z[..., :3], -1000.0), z[..., 3:]], -1),
        SEEN | (jnp.arange(5) > 2)[None, None, None],
    ),
    "added where a predicate says": (lambda z, m: z + jnp.where(SEEN, 0, -200.0), SEEN),
}


@pytest.mark.parametrize("name", full_except(HIDES, "select before a sink"))
def test_a_mask_is_seen_however_it_is_made(name: str):
    hide, visible = HIDES[name]
    m = VALID.astype(jnp.float32)
    normalizer = sj.normalizer("ssmax(s=0.7)")

    def model(x, softmax=jax.nn.softmax):
        return weigh(softmax(hide(scores(x), m))[..., :5], x)

    def where(z):
        beside = jnp.ones((*z.shape[:-1], z.shape[-1] - 5), bool)
        return jnp.concatenate([jnp.broadcast_to(visible, (*z.shape[:-1], 5)), beside], -1)

    by_hand = lambda x: model(x, lambda z: normalizer(z, where=where(z)))  # noqa: E731
    swapped = sj.swap(model, normalizer, empty="zeros")
    got, wanted, (_, (rows,)) = run(lambda x: (swapped(x), by_hand(x), sj.probe(model)(x)), X)
    close(got, wanted)
    np.testing.assert_array_equal(rows.visible, where(jnp.zeros((2, 3, 5, hide(scores(X), m).shape[-1]))).sum(-1))


def test_low_numbers_that_end_up_visible_hide_nothing():
    hides: list[Callable[[Any], Any]] = [
        lambda z: z + 1e-3 * jnp.where(SEEN, 0, -200.0),
        lambda z: z - jnp.where(SEEN, 0, -200.0),
        lambda z: jnp.where(SEEN, z, -200.0) / 100,
    ]
    probes = [sj.probe(lambda x, hide=hide: weigh(jax.nn.softmax(hide(scores(x))), x)) for hide in hides]
    for _, (rows,) in run(lambda x: [probe(x) for probe in probes], X):
        np.testing.assert_array_equal(rows.visible, 5)


def log_sum_exp(z, **options):
    return jax.nn.logsumexp(z, -1, keepdims=True, **options)


MASKED: dict[str, Callable[[Any], Any]] = {
    "select before and after": lambda z: jnp.where(SEEN, jnp.exp(z - log_sum_exp(jnp.where(SEEN, z, -1e9))), 0),
    "where=": lambda z: jnp.where(SEEN, jnp.exp(z - log_sum_exp(z, where=SEEN)), 0),
    "b=": lambda z: jnp.exp(z - log_sum_exp(z, b=SEEN.astype(z.dtype))) * SEEN.astype(z.dtype),
    "select between": lambda z: jnp.exp(jnp.where(SEEN, z - log_sum_exp(z, where=SEEN), -jnp.inf)),
    "select before and between": lambda z: jnp.exp(
        jnp.where(SEEN, jax.nn.log_softmax(jnp.where(SEEN, z, -jnp.inf)), -jnp.inf)
    ),
    "sum alone": lambda z: jnp.where(SEEN, jnp.exp(z) / jnp.exp(z).sum(-1, where=SEEN, keepdims=True), 0),
}


@pytest.mark.parametrize("name", full_except(MASKED, "where=", "sum alone"))
def test_a_mask_of_the_sum_may_come_after_the_exponentials(name: str):
    model = lambda x: weigh(MASKED[name](scores(x)), x)  # noqa: E731
    normalizer = sj.normalizer("ssmax(s=0.7)")
    (site,) = sj.sites(model)(X)
    assert (site.use, site.what) == ("attention", "softmax")
    probe = sj.probe(model, also=lambda w: w.sum(-1))
    by_hand = lambda x: weigh(normalizer(scores(x), where=SEEN), x)  # noqa: E731
    got, wanted, (_, (rows,)) = run(lambda x: (sj.swap(model, normalizer)(x), by_hand(x), probe(x)), X)
    close(got, wanted)
    np.testing.assert_allclose(rows.also, 1, rtol=1e-6)
    np.testing.assert_array_equal(rows.visible, jnp.broadcast_to(SEEN.sum(-1), (2, 3, 5)))


@pytest.mark.parametrize("name", ["returned", "another mask", "no mask", "numbers"])
def test_a_mask_of_the_sum_alone_is_not_read(name: str):
    def model(x):
        z = scores(x)
        if name == "numbers":
            return weigh(GATE * jnp.exp(z - log_sum_exp(z, b=GATE)), x)
        w = jnp.exp(z - log_sum_exp(z, where=SEEN))
        masks = {"returned": SEEN, "another mask": ~SEEN, "no mask": True}
        return weigh(jnp.where(masks[name], w, 0), x), w if name == "returned" else 0

    assert [site.use for site in sj.sites(model)(X)] == ["unread"]


def test_a_row_of_one_constant_is_a_row():
    def first_round_of_routing(x, softmax=jax.nn.softmax):
        return jnp.einsum("bhqk,bhqd->bhkd", softmax(jnp.zeros((2, 3, 5, 4))), x)

    (site,) = sj.sites(first_round_of_routing)(X)
    assert (site.use, site.shape) == ("other", (2, 3, 5, 4))
    normalizer = sj.normalizer("softpick")
    close(
        *run(lambda x: [sj.swap(first_round_of_routing, {0: normalizer})(x), first_round_of_routing(x, normalizer)], X)
    )


def e_over(total: Any):
    return lambda z, v: jnp.exp(z) / total(z, v)


def unrolled_blocks(z, v):
    one, other = jnp.split(jnp.exp(z), 2, -1)
    return (one @ v[:2] + other @ v[2:]) / (one.sum(-1, keepdims=True) + other.sum(-1, keepdims=True))


def with_ones_appended(z, v):
    output = jnp.exp(z) @ jnp.concatenate([v, jnp.ones((4, 1))], -1)
    return output[:, :-1] / output[:, -1:]


def attention_free(z, v, over=jnp.divide):
    """AFT, arXiv 2105.14103: the softmax of z_ij + v_jc, logits that are never added."""
    e = jnp.exp(v)
    return over(jnp.exp(z) @ (e * v), jnp.exp(z) @ e)


def three_blocks(z, v):
    """Blocks with a maximum and a sum of their own row, as in GraphCast's tri-block-diagonal attention."""
    parts = jnp.split(z, [1, 3], -1)
    m = jnp.stack([part.max(-1, keepdims=True) for part in parts]).max(0)
    e = [jnp.exp(part - m) for part in parts]
    total = sum(part.sum(-1, keepdims=True) for part in e)
    return sum(part / total @ values for part, values in zip(e, jnp.split(v, [1, 3])))


def pooled(z, v):
    """SoftPool, arXiv 2101.00440."""
    pool = lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2), (1, 2), "VALID")  # noqa: E731
    return pool(jnp.exp(z) * z) / pool(jnp.exp(z))


def filtered(z, v):
    kernel = jnp.exp(-(jnp.arange(-1.0, 2) ** 2))[None, None]
    smooth = lambda x: jax.lax.conv_general_dilated(x[:, None], kernel, (1,), "SAME")  # noqa: E731
    return smooth(jnp.exp(z) * z) / smooth(jnp.exp(z))


def by_one_hot(z, v):
    one_hot = jax.nn.one_hot(jnp.array([0, 0, 1, 1]), 2)
    return (jnp.exp(z) @ one_hot) @ one_hot.T


def sum_over_other_segments(z, v):
    e = jnp.exp(z[0])
    ids = jnp.array([0, 0, 1, 1])
    return e / (jax.ops.segment_sum(e, ids, 2)[ids[::-1]] + 1e-9)


UNREAD = {
    "another exponential": e_over(lambda z, v: jnp.exp(2 * z).sum(-1, keepdims=True)),
    "the sum of another row": e_over(lambda z, v: jnp.exp(z).sum(-1)[None]),
    "two sums": e_over(lambda z, v: jnp.exp(z).sum(-1, keepdims=True) + jnp.exp(2 * z).sum(-1, keepdims=True)),
    "a sum less one": e_over(lambda z, v: jnp.exp(z).sum(-1, keepdims=True) - 1),
    "a product with ones": e_over(lambda z, v: (jnp.exp(z) @ jnp.ones(4))[:, None]),
    "ones appended": with_ones_appended,
    "blocks written out": unrolled_blocks,
    "three blocks": three_blocks,
    "attention-free": attention_free,
    "attention-free, by the reciprocal": lambda z, v: attention_free(z, v, lambda n, s: n * (1 / s)),
    "pooled": pooled,
    "filtered": filtered,
    "segments by a product": e_over(by_one_hot),
    "a norm": e_over(lambda z, v: jnp.abs(jnp.exp(z)).sum(-1, keepdims=True)),
    "a number added before": lambda z, v: (jnp.exp(z) + 1e-8) / (jnp.exp(z) + 1e-8).sum(-1, keepdims=True),
    "a mask that the sum alone has": e_over(lambda z, v: jnp.exp(z).sum(-1, where=z > 0, keepdims=True)),
    "a weighted mean": lambda z, v: (jnp.exp(z) @ (v * v[:, :1])) / (jnp.exp(z) @ v[:, :1]),
    "a prior": lambda z, v: (v[:, :1] * jnp.exp(z)) / (v[:, :1] * jnp.exp(z)).sum(-1, keepdims=True),
    "a running sum": e_over(lambda z, v: jnp.cumsum(jnp.exp(z), -1)),
    "logarithms over parts": lambda z, v: jnp.exp(z - jax.nn.logsumexp(z.reshape(4, 2, 2), (1, 2))[:, None]),
    "a maximum that was not added": lambda z, v: jnp.exp(
        z - jnp.log(jnp.exp(z - z.max(-1, keepdims=True)).sum(-1, keepdims=True))
    ),
    "another scale": lambda z, v: jnp.exp(z - jnp.log(jnp.exp(0.5 * z).sum(-1, keepdims=True))),
    "a product used besides": lambda z, v: (lambda n: (n.max(), n / jnp.exp(z).sum(-1)[:, None]))(jnp.exp(z) @ v),
    "a product returned too": lambda z, v: (lambda n: (n, n / jnp.exp(z).sum(-1)[:, None]))(jnp.exp(z) @ v),
    "segments": sum_over_other_segments,
    "stacked": lambda z, v: (lambda e: e / e.sum(0, keepdims=True))(jnp.stack([jnp.exp(z[:, 0]), jnp.exp(v[:, 0])])),
}


REASONS = {"segments": "segments", "three blocks": "blocks", "blocks written out": "blocks", "two sums": "blocks"}
UNREAD_AT_ONCE = (
    "another exponential",
    "the sum of another row",
    "segments",
    "three blocks",
    "attention-free",
    "filtered",
)


@pytest.mark.parametrize("name", full_except(UNREAD, *UNREAD_AT_ONCE))
def test_an_exponential_whose_sum_divides_is_listed_and_refused(name: str):
    form = UNREAD[name]

    def model(z, v):
        return jax.nn.softmax(z) @ v, form(z, v)

    z, v = normal(4, 4), normal(4, 3, seed=1)
    found = sj.sites(model)(z, v)
    assert found[0].use == "attention"
    assert {site.use for site in found[1:]} == {REASONS.get(name, "unread")}
    with pytest.raises(ValueError, match=r"site \d at test_forms.py:\d+ is .*: choose the model's plain attention"):
        jax.eval_shape(sj.swap(model, "hardmax"), z, v)
    left = sj.swap(model, "hardmax", where=lambda site: site.use == "attention")
    close(*run(lambda z, v: (left(z, v), (sj.hardmax(z) @ v, form(z, v))), z, v))
