"""Forms of softmax that models have: which are read, and swapped as if edited by hand; which are listed and refused."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj

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


def split(x):
    z = jnp.concatenate([scores(x), jnp.full((2, 3, 5, 1), SINK)], -1)
    e, s = exponentials(z)
    return weigh(jnp.split(e, [5], -1)[0], x) / s


def by_hand(x, softmax):
    return weigh(softmax(scores(x)), x)


def half(x):
    e, s = exponentials(scores(x))
    return weigh(e.astype(jnp.bfloat16).reshape(2, 3, 5, 5), x.astype(jnp.bfloat16)).astype(x.dtype) / s


def half_by_hand(x, softmax):
    return weigh(softmax(scores(x)).astype(jnp.bfloat16), x.astype(jnp.bfloat16)).astype(x.dtype)


LAID_OUT = {
    "grouped": (grouped, grouped_by_hand),
    "sum moved": (moved_sum, moved_sum_by_hand),
    "transposed": (transposed, by_hand),
    "other axis": (other_axis, other_axis_by_hand),
    "quotient after a reshape": (quotient_after_reshape, by_hand),
    "sliced": (sliced, sink_by_hand),
    "split": (split, sink_by_hand),
    "half": (half, half_by_hand),
    "grouped under vmap": (jax.vmap(lambda x: grouped(jnp.stack([x, x]))[0]), grouped_by_hand),
    "grouped under remat": (jax.checkpoint(grouped), grouped_by_hand),
    "moved under jit": (jax.jit(moved_sum), moved_sum_by_hand),
}


def denominator(z, sink=SINK):
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


def base_two(z, sink=SINK):
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
    "base two": (base_two, SINK),
    "sink of each head": (per_head, jnp.array([0.1, -0.2, 0.5])[:, None, None]),
    "under remat": (jax.checkpoint(denominator), SINK),
}


def with_column(z, softmax, sink):
    column = jnp.broadcast_to(jnp.asarray(sink, z.dtype), (*z.shape[:-1], 1))
    return softmax(jnp.concatenate([z, column], -1))[..., :-1]


def swapped_as_edited(model, edited, names=("softmax", "ssmax(s=0.7)", "hardmax", "softpick"), atol=2e-6):
    """One site of attention; swaps are the model edited by hand, softmax changes no bit."""
    (site,) = sj.sites(model)(X)
    assert site.use == "attention"

    def every(x):
        pairs = [(sj.swap(model, name)(x), edited(x, sj.normalizer(name))) for name in names]
        zeros = sj.swap(model, "softmax", empty="zeros")(x)
        return model(x), sj.swap(model, "softmax")(x), zeros, edited(x, jax.nn.softmax), pairs

    one, same, zeros, wanted, pairs = run(every, X)
    np.testing.assert_array_equal(one, same)
    close((one, zeros), (wanted, wanted), atol)
    for got, by_hand in pairs:
        close(got, by_hand, atol)
    return site


@pytest.mark.parametrize(
    "name",
    [n if n in ("grouped", "sum moved", "sliced") else pytest.param(n, marks=pytest.mark.full) for n in LAID_OUT],
)
def test_exponentials_and_sum_may_be_laid_out_otherwise(name: str):
    model, edited = LAID_OUT[name]
    swapped_as_edited(model, edited, atol=2e-2 if name == "half" else 2e-6)


@pytest.mark.parametrize(
    "name", [n if n in ("sink", "softmax1", "logaddexp") else pytest.param(n, marks=pytest.mark.full) for n in EXTRA]
)
def test_an_extra_logit_is_one_more_entry(name: str):
    softmax, sink = EXTRA[name]
    model = lambda x: weigh(softmax(scores(x)), x)  # noqa: E731
    site = swapped_as_edited(model, lambda x, other: weigh(with_column(scores(x), other, sink), x))
    assert (site.what, site.shape) == ("softmax with an extra logit", (2, 3, 5, 6))
    _, (rows,) = run(sj.probe(model, also=lambda w: w.sum(-1)), X)
    np.testing.assert_allclose(rows.also, 1, rtol=1e-6)
    np.testing.assert_array_equal(rows.visible, 6)
