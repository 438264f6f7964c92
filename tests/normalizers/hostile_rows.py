"""Rows of logits that break what is written for ordinary ones, and the laws that no normalizer may break on them."""

import functools
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import softmax_jax as sj
from softmax_jax.attention.fused import READ_ENTROPY, WITH_SINK
from softmax_jax.normalizers.masking import HIDDEN

DTYPES = "float16", "bfloat16", "float32", "float64"
Form = Literal["dense", "xla"]


class Rows(NamedTuple):
    """Rows of logits with their masks; `kinds` says in messages what each is."""

    logits: np.ndarray
    where: np.ndarray
    kinds: list[str]

    def turned(self) -> "Rows":
        """The same rows in the opposite order of their entries."""
        return Rows(self.logits[:, ::-1], self.where[:, ::-1], self.kinds)


def joined(*parts: Rows) -> Rows:
    """All rows, in the type of the first."""
    dtype = parts[0].logits.dtype
    logits = np.concatenate([part.logits.astype(dtype) for part in parts])
    return Rows(logits, np.concatenate([part.where for part in parts]), [kind for part in parts for kind in part.kinds])


def finite_kinds(dtype: str, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """By name, a row each of finite logits or some of -inf."""
    limits = jnp.finfo(dtype)
    top, least = float(limits.max), float(limits.smallest_subnormal)
    below_top = float(np.nextafter(np.asarray(top, jnp.dtype(dtype)), np.asarray(0, jnp.dtype(dtype))))
    one = np.arange(n) == rng.integers(n)
    signs, unit, power = rng.choice([-1.0, 1.0], n), rng.normal(size=n), 10.0 ** rng.integers(-3, 4)
    size = top ** rng.uniform(-1, 1, n)
    return {
        "all the largest": np.full(n, top),
        "all the lowest": np.full(n, -top),
        "both ends": signs * top,
        "the largest among the lowest": np.where(one, top, -top),
        "the lowest among the largest": np.where(one, -top, top),
        "the largest among zeros": top * one,
        "the lowest among zeros": -top * one,
        "the largest and its neighbour": rng.choice([top, below_top], n),
        "the lowest and its neighbour": -rng.choice([top, below_top], n),
        "subnormal": signs * least * rng.integers(1, 100, n),
        "the smallest normal": signs * float(limits.tiny),
        "any size": signs * size,
        "any negative": -size,
        "all equal": np.full(n, unit[0] * power),
        "one above equals": unit[0] + power * one,
        "one finite among -inf": np.where(one, rng.choice([0.0, 1.0, -1.0, top, -top]), -np.inf),
        "ordinary and -inf": np.where(rng.random(n) < 0.5, -np.inf, unit),
        "all -inf": np.full(n, -np.inf),
        "ordinary": power * unit,
    }


def poisoned_kinds(dtype: str, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """By name, a row each that holds NaN or +inf."""
    one, row = np.arange(n) == rng.integers(n), rng.normal(size=n)
    ends = np.where(rng.random(n) < 0.5, -np.inf, float(jnp.finfo(dtype).max))
    return {
        "one NaN": np.where(one, np.nan, row),
        "one +inf": np.where(one, np.inf, row),
        "all NaN": np.full(n, np.nan),
        "all +inf": np.full(n, np.inf),
        "one NaN among -inf and the largest": np.where(one, np.nan, ends),
        "one +inf among -inf and the largest": np.where(one, np.inf, ends),
    }


def hostile(dtype: str, n: int, rows: int, seed: int = 0) -> Rows:
    """So many rows of all kinds in turn: full masks, random ones, almost empty ones, lengths from 1 on, and empty."""
    rng = np.random.default_rng(seed)
    logits, kinds = [], []
    while len(logits) < rows:
        made = finite_kinds(dtype, n, rng) | poisoned_kinds(dtype, n, rng)
        logits += made.values()
        kinds += made
    lengths = rng.integers(1, n + 1, (rows, 1))
    masks = [
        np.ones((rows, n), bool),
        rng.random((rows, n)) < 0.7,
        np.arange(n) < lengths,
        rng.random((rows, n)) < 0.1,
        np.zeros((rows, n), bool),
    ]
    turn = rng.choice(len(masks), (rows, 1), p=[0.4, 0.2, 0.2, 0.1, 0.1])
    where = np.select([turn == place for place in range(len(masks))], masks, False)
    return Rows(np.asarray(logits[:rows]).astype(jnp.dtype(dtype)), where, kinds[:rows])


class Weighed(NamedTuple):
    """What attention made of rows, one query each; all in float64."""

    output: np.ndarray
    weights: np.ndarray
    gradient: np.ndarray
    second: np.ndarray | None


def through_keys(form: Form, name: str) -> bool:
    """Whether the logits come from the keys: in a bias low ones would be hidden. A mean of the keys must be finite."""
    normalizer = sj.normalizer(name)
    return form != "xla" or isinstance(normalizer.scale, READ_ENTROPY) or type(normalizer.map) in WITH_SINK


@functools.partial(jax.jit, static_argnames=("form", "keys"))
def weigh(normalizer: sj.Normalizer, logits: jax.Array, where: jax.Array, *, form: Form, keys: bool) -> Any:
    """Output, weights, gradient and second derivative of rows: each is a batch entry of attention with one query.

    The weights are the gradient in the values.
    """
    rows, n = logits.shape
    query, zeros = jnp.ones((rows, 1, 1, 1), logits.dtype), jnp.zeros((rows, n, 1, 1), logits.dtype)
    values = jnp.broadcast_to(jnp.cos(jnp.arange(n)).astype(logits.dtype)[:, None, None], zeros.shape)
    mask = where[:, None, None, :]

    def derivatives(logits: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        def output(logits: jax.Array, values: jax.Array) -> jax.Array:
            key, bias = (logits[:, :, None, None], None) if keys else (zeros, logits[:, None, None, :])
            out = sj.dot_product_attention(
                query, key, values, bias, mask, scale=1.0, normalizer=normalizer, implementation=form
            )
            return out.reshape(rows)

        out, pull = jax.vjp(output, logits, values)
        gradient, weights = pull(jnp.ones_like(out))
        return gradient, (out, weights.reshape(rows, n))

    if form != "dense":
        gradient, (out, weights) = derivatives(logits)
        return out, weights, gradient
    gradient, second, (out, weights) = jax.jvp(derivatives, (logits,), (values.reshape(rows, n),), has_aux=True)
    return out, weights, gradient, second


def weighed(name: str, form: Form, rows: Rows) -> Weighed:
    """The rows under a registered normalizer, in one program."""
    with jax.enable_x64(rows.logits.dtype == np.float64):
        arrays = jnp.asarray(rows.logits), jnp.asarray(rows.where)
        made = weigh(sj.normalizer(name), *arrays, form=form, keys=through_keys(form, name))
    output, weights, gradient, *second = (np.asarray(array, np.float64) for array in made)
    return Weighed(output, weights, gradient, second[0] if second else None)


def broken_laws(name: str, form: Form, rows: Rows, dtype: str) -> dict[str, set[str]]:
    """By law, the kinds of rows on which it is broken, of these and the same rows turned round."""
    both = joined(rows, rows.turned())
    found = weighed(name, form, both)
    broken: dict[str, set[str]] = {}
    for law, marked in check(name, form, both, found, dtype):
        if marked.any():
            broken.setdefault(law, set()).update(np.array(both.kinds)[marked])
    return broken


def check(name: str, form: Form, rows: Rows, found: Weighed, dtype: str) -> Iterator[tuple[str, np.ndarray]]:
    """Each law with the rows that break it."""
    z, keys = rows.logits.astype(np.float64), through_keys(form, name)
    where = rows.where if keys else rows.where & ~(z <= HIDDEN)
    facts: Any = sj.METHODS[name].map
    poisoned = (where & (np.isnan(z) | (z == np.inf))).any(-1)
    above = where & (z != -np.inf)
    empty = ~above.any(-1)
    derivatives = {"gradient": found.gradient} | ({} if found.second is None else {"second derivative": found.second})
    # A key that is not finite has no mean with others, whatever its weight.
    lawful = ~poisoned & (np.isfinite(z).all(-1) | (not keys) | (form != "xla"))
    w, limits = found.weights, jnp.finfo(dtype)
    size, n = np.abs(w).sum(-1), z.shape[-1]
    rounding = n * float(limits.smallest_subnormal) + (4 + n**0.5) * max(float(limits.eps), 1e-6 * (form != "dense"))
    yield "a masked entry has weight 0", lawful & (~where & (w != 0)).any(-1)
    yield "a logit of -inf has weight 0", lawful & (where & ~above & (w != 0)).any(-1)
    yield "an empty row gives 0", lawful & empty & ((found.output != 0) | (w != 0).any(-1))
    yield "output and weights are finite", lawful & ~(np.isfinite(found.output) & np.isfinite(w).all(-1))
    most = n if facts is sj.sigmoid else 1  # which weighs each entry by itself
    yield "weights sum to at most 1", lawful & (size > most + rounding)
    if facts.sums_to_one:
        yield "weights sum to 1", lawful & ~empty & (np.abs(w.sum(-1) - 1) > rounding)
    if not facts.signed:
        yield "no weight is negative", lawful & (w < 0).any(-1)
    order = np.argsort(np.where(above, z, -np.inf), -1, kind="stable")
    rising = np.diff(np.take_along_axis(w, order, -1), axis=-1) >= -rounding
    counted = np.take_along_axis(above, order, -1)[:, :-1]
    yield "a larger logit has no smaller weight", lawful & ~(rising | ~counted).all(-1)
    half = len(w) // 2
    moved = np.abs(w[half:, ::-1] - w[:half]).max(-1, initial=0) > rounding
    yield "a permuted row has its weights permuted", lawful & np.concatenate([moved, moved])
    for title, derivative in derivatives.items():
        steep = dtype == "float16" and "softpick" in name  # a slope of 1/ε is beyond the type
        if not steep:
            yield f"the {title} is finite", lawful & ~np.isfinite(derivative).all(-1)
        yield f"the {title} of a masked entry is 0", lawful & (~where & (derivative != 0)).any(-1)
        yield f"the {title} of an empty row is 0", lawful & empty & (derivative != 0).any(-1)
    yield "NaN or +inf makes the output of its row NaN", poisoned & ~np.isnan(found.output)
