"""Programs that compute the logits, weigh them and use the weights at once, as every model does.

A compiler may compute the logits anew at each use, and round them differently there: with a multiplication and an
addition in one step, say. What a normalizer gives must not hang on that.
"""

import functools
import os
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import softmax_jax as sj
from softmax_jax.normalizers.arithmetic import reaches
from softmax_jax.normalizers.sampling import min_p_mask, top_k_mask, top_p_mask
from softmax_jax.normalizers.sparse import TopKSoftmax

ROWS, N, SIZE = 12, 64, 8
PAIR = 7
"""In every third row the largest logit stands twice: there, and so many places on."""


class Arrays(NamedTuple):
    """What logits are made from: a query for each row, all else for each entry, and values to weigh."""

    query: Any
    key: Any
    bias: Any
    x: Any
    position: Any
    value: Any
    where: Any


def product(a):
    return jnp.einsum("rd,rnd->rn", a.query, a.key)


def rotated(a):
    """Rotary embedding of the keys, then their product with the query."""
    angle = a.position[..., None] * 10.0 ** -jnp.arange(SIZE // 2, dtype=jnp.float32).reshape(1, 1, -1)
    left, right = jnp.split(a.key, 2, -1)
    turned = [left * jnp.cos(angle) - right * jnp.sin(angle), right * jnp.cos(angle) + left * jnp.sin(angle)]
    return (a.query[:, None] * jnp.concatenate(turned, -1)).sum(-1)


PRODUCERS = {
    "scaled, with a bias": lambda a: product(a) * 0.3 + a.bias,
    "gelu chain": lambda a: jax.nn.gelu(jax.nn.gelu(a.x * 2.1) * a.bias + a.x) * 3.7,
    "divided by the root of d": lambda a: product(a) / SIZE**0.5,
    "soft cap": lambda a: 5 * jnp.tanh(product(a) / 5),
    "times 1e4": lambda a: a.x * a.bias * 1e4,
    "from bfloat16": lambda a: a.x.astype(jnp.bfloat16).astype(jnp.float32) * 0.3,
    "rotary": rotated,
}


def arrays(producer):
    """Arrays of normal numbers with the largest logit of some rows twice, and a mask."""
    rng = np.random.default_rng(0)
    shapes = {"query": (SIZE,), "key": (N, SIZE), "bias": (N,), "x": (N,), "value": (N, 3)}
    drawn = {name: rng.normal(size=(ROWS, *shape)).astype(np.float32) for name, shape in shapes.items()}
    position = np.tile(np.arange(N, dtype=np.float32), (ROWS, 1))
    drawn |= {"position": position, "where": rng.random((ROWS, N)) < 0.8}
    z = np.where(drawn["where"], producer(Arrays(**drawn)), -np.inf)
    for row in range(0, ROWS, 3):
        best = z[row].argmax()
        for name in ("key", "bias", "x", "position", "where"):
            drawn[name][row, (best + PAIR) % N] = drawn[name][row, best]
    return jax.tree.map(jnp.asarray, Arrays(**drawn))


def used(weights, a):
    """What is done with weights: each number for a row, in a dictionary."""
    return {
        "values": jnp.einsum("rn,rnf->rf", weights, a.value),
        "entropy": jax.scipy.special.entr(jnp.abs(weights)).sum(-1),
        "sum": weights.sum(-1),
        "largest": jnp.max(weights, -1, where=a.where, initial=-jnp.inf),
    }


def dense(normalizer, producer, a):
    return used(normalizer(producer(a), where=a.where), a)


def uneven(values):
    """A sum in which every number counts otherwise."""
    return jnp.sum(values * jnp.cos(jnp.arange(values.size, dtype=jnp.float32)).reshape(values.shape))


def gradient(normalizer, producer, a):
    """Of an uneven sum of what the weights weigh, in all that the logits are made from."""
    made_from = a._replace(value=None, where=None)

    def loss(made_from):
        return uneven(dense(normalizer, producer, made_from._replace(value=a.value, where=a.where))["values"])

    return jax.grad(loss)(made_from)._asdict()


def mapped(normalizer, producer, a):
    """By `vmap` over rows of one each."""
    one = jax.vmap(lambda row: dense(normalizer, producer, jax.tree.map(lambda leaf: leaf[None], row)))
    return jax.tree.map(lambda leaf: leaf[:, 0], one(a))


def scanned(normalizer, producer, a):
    """Row by row in a loop."""

    def step(_, row):
        return None, dense(normalizer, producer, jax.tree.map(lambda leaf: leaf[None], row))

    return jax.tree.map(lambda leaf: leaf[:, 0], jax.lax.scan(step, None, a)[1])


def computed_again(normalizer, producer, a):
    """The gradient with the logits computed again."""
    return gradient(normalizer, jax.checkpoint(producer), a)


def keeping(mask):
    """A mask found from logits in the place of a normalizer: a weight of 1 to all that it keeps."""
    return jax.tree_util.Partial(lambda logits, where: mask(logits, where=where).astype(logits.dtype))


ALL = {name: sj.normalizer(name) for name in sj.METHODS}
BY_COMPARISON = {
    "hardmax": sj.normalizer("hardmax"),
    "hardmax at a temperature": sj.Normalizer(sj.hardmax, sj.ConstantTemperature(0.37)),
    "hardmax at an adaptive temperature": sj.Normalizer(sj.hardmax, sj.normalizer("adaptive").scale),
    "the largest": sj.normalizer("top_k(k=1)"),
    "the three largest at a temperature": sj.Normalizer(TopKSoftmax(k=3), sj.ConstantTemperature(0.37)),
}
"""Normalizers that compare logits with a number found from them, where the last bit decides."""
MASKS = {
    "what reaches the largest": keeping(lambda z, where: reaches(z, jnp.max(z, -1, keepdims=True)) & where),
    "mask of the largest": keeping(functools.partial(top_k_mask, k=1)),
    "mask of the three largest": keeping(functools.partial(top_k_mask, k=3)),
    "mask of the nucleus": keeping(functools.partial(top_p_mask, p=0.3)),
    "mask of the smallest nucleus": keeping(functools.partial(top_p_mask, p=1e-6)),
    "mask of the largest by min-p": keeping(functools.partial(min_p_mask, p_base=1.0)),
}
EXACT = {name for name in (*BY_COMPARISON, *MASKS) if "three largest at" not in name}
"""What the last bit of a logit changes in no row here."""

FORMS = {form.__name__: form for form in (dense, mapped, scanned, gradient, computed_again)}


@functools.partial(jax.jit, static_argnums=(0, 1))
def together(form, producer, normalizers, a):
    """One program for all normalizers."""
    return {name: form(normalizer, producer, a) for name, normalizer in normalizers.items()}


@functools.partial(jax.jit, static_argnums=0)
def step_by_step(producer, normalizers, logits, a):
    """The same of logits that are there already: what is done with the weights, and the gradients."""

    def of_one(normalizer):
        def loss(z):
            return uneven(jnp.einsum("rn,rnf->rf", normalizer(z, where=a.where), a.value))

        made_from = a._replace(value=None, where=None)
        _, pull = jax.vjp(lambda made_from: producer(made_from), made_from)
        (in_arrays,) = pull(jax.grad(loss)(logits))
        return used(normalizer(logits, where=a.where), a) | in_arrays._asdict()

    return {name: of_one(normalizer) for name, normalizer in normalizers.items()}


def check(normalizers, producer, form="dense"):
    """Raises unless each gives in one program with its logits what it gives for logits that are there already.

    They may differ as far as logits do that lie two units in the last place of the largest away.
    """
    made, a = PRODUCERS[producer], arrays(PRODUCERS[producer])
    logits = np.asarray(jax.jit(made)(a))
    moves = np.random.default_rng(1).choice([-2, 2], logits.shape) * np.spacing(np.abs(logits).max())
    given, moved = (step_by_step(made, normalizers, jnp.asarray(z), a) for z in (logits, logits + moves))
    got = together(FORMS[form], made, normalizers, a)
    for name in normalizers:
        for use in (use for use, value in got[name].items() if value is not None):
            result, wanted, other = (np.asarray(of[name][use]).reshape(ROWS, -1) for of in (got, given, moved))
            # What is handed back through bfloat16 is rounded to it.
            relative = 2.0**-6 if use in Arrays._fields and "bfloat16" in producer else 2e-5
            moved_by = 0 if name in EXACT else 10 * np.abs(other - wanted).max(-1, keepdims=True)
            wrong = ~(np.abs(result - wanted) <= 1e-6 + relative * np.abs(wanted).max() + moved_by)
            assert not wrong.any(), f"{name}, {producer}, {form}: {use} is {result[wrong]}, not {wanted[wrong]}"


def as_if_on_another_machine(script):
    """Runs a script where the compiler hands no reductions to a library, which it does not do on every CPU."""
    flags = os.environ["XLA_FLAGS"] + " --xla_cpu_experimental_ynn_fusion_type="
    return subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True
    )
