"""Routers, pointers, values and classifiers are swapped where they are named, and equal the edited code."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import softmax_jax as sj
from tests.tiers import full_except

from .models import attention, close, normal, refused, run

TOKENS, EXPERTS, WIDTH = 5, 4, 6
MIXED = normal(EXPERTS, WIDTH, WIDTH, seed=1) / 3
GATE, QUERY, KEY = normal(WIDTH, EXPERTS, seed=2), normal(WIDTH, WIDTH, seed=3), normal(WIDTH, WIDTH, seed=4)
RETURNS = jnp.linspace(-1.0, 1.0, EXPERTS)
X = normal(TOKENS, WIDTH)


def routed(x, softmax):
    """Two experts of four, with the weights of the two best."""
    with jax.named_scope("moe/router"):
        best, experts = jax.lax.top_k(softmax(x @ GATE), 2)
        best = best / (best.sum(-1, keepdims=True) + 1e-6)
    outputs = jnp.einsum("td,edf->tef", x, MIXED)
    return jnp.einsum("tk,tkf->tf", best, jnp.take_along_axis(outputs, experts[..., None], 1))


def routed_after(x, softmax):
    """As Mixtral: the softmax of the two largest logits."""
    with jax.named_scope("moe/router"):
        largest, experts = jax.lax.top_k(x @ GATE, 2)
        weights = (jax.nn.one_hot(experts, EXPERTS) * softmax(largest)[..., None]).sum(-2)
    return jnp.einsum("te,td,edf->tf", weights, x, MIXED)


def pointed(x, softmax):
    """A pointer network that visits each entry once, and returns its weights and its tour."""

    def step(state, _):
        query, free = state
        with jax.named_scope("pointer"):
            logits = jnp.where(free, jnp.tanh(x @ KEY + (query @ QUERY)[None]).sum(-1), -1e9)
            weights = softmax(logits)
            place = jnp.argmax(weights)
        return (query + x[place], free.at[place].set(False)), (weights, place)

    return jax.lax.scan(step, (x[0], jnp.ones(TOKENS, bool)), length=TOKENS - 1)[1]


def valued(x, softmax):
    """The expected return of a distribution over returns."""
    with jax.named_scope("value"):
        return softmax(x @ GATE) @ RETURNS


def classified(x, softmax):
    with jax.named_scope("head"):
        return softmax(x @ GATE)


MODELS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "router": (routed, "choice", "*/router"),
    "router of the largest logits": (routed_after, "choice", "moe/*"),
    "pointer network": (pointed, "choice", "pointer"),
    "value": (valued, "expectation", "value"),
    "classifier": (classified, "output", "h*d"),
}


def edited_softmax(normalizer: Any) -> Callable[..., Any]:
    return lambda z: normalizer(z, where=z > -1e8)


@pytest.mark.parametrize("name", full_except(MODELS, "router"))
def test_a_named_site_is_swapped_as_if_edited_by_hand_and_never_by_default(name: str):
    model, use, scope = MODELS[name]
    stock = lambda x: model(x, jax.nn.softmax)  # noqa: E731
    (site,) = sj.sites(stock)(X)
    assert site.use == use
    for pattern in ("ssmax", {"*": "ssmax"}, {"**": "ssmax"}):
        refused(
            lambda pattern=pattern: sj.swap(stock, pattern)(X), f"no site is chosen among 0: {site.scope} ({use}): "
        )
    for normalizer in (sj.normalizer("ssmax(s=0.7)"), sj.normalizer("entmax15")):
        swaps = [sj.swap(stock, {pattern: normalizer}) for pattern in (0, scope)]
        swaps.append(sj.swap(stock, normalizer, where=lambda site: site.use == use))
        edited = lambda x, normalizer=normalizer: model(x, edited_softmax(normalizer))  # noqa: E731

        def with_gradient(function):
            def objective(x):
                output = function(x)
                return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(output) if leaf.dtype == X.dtype), output

            return lambda x: jax.value_and_grad(objective, has_aux=True)(x)

        functions = [with_gradient(function) for function in (edited, *swaps)]
        wanted, *found = run(lambda x, functions=functions: [function(x) for function in functions], X)
        for outputs in found:
            close(outputs, wanted, atol=2e-6)


def test_a_scope_with_attention_names_its_attention_alone():
    def layer(x, attending, routing):
        with jax.named_scope("block"):
            x = attention(x[None, None], x[None, None], x[None, None], softmax=attending)[0, 0]
            return routed(x, routing)

    stock = lambda x: layer(x, jax.nn.softmax, jax.nn.softmax)  # noqa: E731
    cases = {"block*": (sj.hardmax, jax.nn.softmax), "block/moe/router": (jax.nn.softmax, sj.hardmax)}
    swapped = [sj.swap(stock, {pattern: "hardmax"}) for pattern in cases]
    outputs = run(lambda x: [(swap(x), layer(x, *case)) for swap, case in zip(swapped, cases.values())], X)
    for found, wanted in outputs:
        close(found, wanted)


def test_a_named_site_that_cannot_be_right_is_refused_with_its_reason():
    """Classes in two parts, whose softmaxes are merged by their log-sum-exps."""

    def in_parts(x):
        logits = x @ GATE[:, :2], x @ GATE[:, 2:]
        totals = [jax.nn.logsumexp(part, -1, keepdims=True) for part in logits]
        total = jnp.logaddexp(*totals)
        return jnp.concatenate([jax.nn.softmax(z) * jnp.exp(own - total) for z, own in zip(logits, totals)], -1)

    last = sj.sites(in_parts)(X)[-1]
    line = f"site {last.index} at {last.line} is softmax over part of a row, merged by its log-sum-exp, of rows that "
    refused(lambda: sj.swap(in_parts, {last.index: "ssmax"})(X), line)
