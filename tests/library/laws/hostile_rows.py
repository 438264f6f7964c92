"""Rows of logits that break what is written for ordinary ones, and the laws that no normalizer may break on them."""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import softmax_jax as sj
from softmax_jax.attention.fused import WITH_SINK
from softmax_jax.laws import laws
from softmax_jax.laws.laws import Claims, Rounding, Rows, Weighed, joined
from softmax_jax.normalizers.row import HIDDEN
from softmax_jax.normalizers.scales import EntropyInterpolation, EntropyPolynomial

DTYPES = "float16", "bfloat16", "float32", "float64"
Form = Literal["dense", "xla"]


class Attended(NamedTuple):
    """What attention made of rows, one query each; all in float64."""

    output: np.ndarray
    weights: np.ndarray
    gradient: np.ndarray
    second: np.ndarray | None


def through_keys(form: Form, name: str) -> bool:
    """Whether the logits come from the keys: in a bias low ones would be hidden. A mean of the keys must be finite."""
    normalizer = sj.normalizer(name)
    return (
        form != "xla"
        or isinstance(normalizer.scale, EntropyPolynomial | EntropyInterpolation)
        or type(normalizer.map) in WITH_SINK
    )


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


def weighed(name: str, form: Form, rows: Rows) -> Attended:
    """The rows under a registered normalizer, in one program."""
    with jax.enable_x64(rows.logits.dtype == np.float64):
        arrays = jnp.asarray(rows.logits), jnp.asarray(rows.where)
        made = weigh(sj.normalizer(name), *arrays, form=form, keys=through_keys(form, name))
    output, weights, gradient, *second = (np.asarray(array, np.float64) for array in made)
    return Attended(output, weights, gradient, second[0] if second else None)


def broken_laws(name: str, form: Form, rows: Rows, dtype: str) -> dict[str, set[str]]:
    """By law, the kinds of rows on which it is broken, of these and the same rows turned round."""
    both = joined(rows, rows.turned())
    found, keys, z = weighed(name, form, both), through_keys(form, name), both.logits.astype(np.float64)
    hidden = both._replace(logits=z, where=both.where if keys else both.where & ~(z <= HIDDEN))
    finite = np.isfinite(z).all(-1) | (not keys) | (form != "xla")  # a key that is not finite has no mean with others
    rounding = Rounding.of(dtype)._replace(eps=max(float(jnp.finfo(dtype).eps), 1e-6 * (form != "dense")))
    claims = Claims.of(sj.normalizer(name))._replace(monotone=True)
    steep = dtype == "float16" and "softpick" in name  # a slope of 1/ε is beyond the type
    broken: dict[str, set[str]] = {}

    def mark(law: str, marked: np.ndarray) -> None:
        if (marked := marked & finite).any():
            broken.setdefault(law, set()).update(np.array(both.kinds)[marked])

    for order, gradient in enumerate((found.gradient, found.second)):
        if gradient is None:
            continue
        weights = Weighed(found.weights, gradient)
        turned = Weighed(*(np.roll(one, len(z) // 2, 0) for one in weights))
        for law in laws.LAWS:
            left_out = law.find in (laws.behind, laws.poisoned) or (law.find is laws.smooth and steep)
            if law.any_size and claims.include(law) and not left_out:
                given = law.find(lambda asked, own=(weights, turned): own[asked is not hidden], hidden, rounding)
                mark(f"{law.promise} ({order + 1})", given.broken)
    empty = hidden.lawful() & ~hidden.visible().any(-1)
    mark("an empty row gives 0", empty & (found.output != 0))
    mark("the output is finite", hidden.lawful() & ~np.isfinite(found.output))
    most = z.shape[-1] if sj.METHODS[name].map is sj.sigmoid else 1  # which weighs each entry by itself
    size = np.abs(found.weights).sum(-1)
    mark("weights sum to at most 1", hidden.lawful() & (size > most + rounding.total(z.shape[-1])))
    unmarked = ~hidden.lawful() & ~np.isnan(found.output)
    if unmarked.any():
        broken["NaN or +inf makes the output of its row NaN"] = set(np.array(both.kinds)[unmarked])
    return broken


def changed_by_others(name: str, form: Form, dtype: str, n: int) -> dict[str, list[int]]:
    """Places of ordinary rows that change with the rows beside them, by what changes: derivatives or the output."""
    rows, rounding = laws.ordinary(n, 20), Rounding.of(dtype)

    def changed(part: str) -> list[int]:
        def weigh_all(asked: Rows) -> Weighed:
            found = weighed(name, form, asked._replace(logits=asked.logits.astype(jnp.dtype(dtype))))
            shown = getattr(found, part)
            return Weighed(found.weights, np.broadcast_to(shown.reshape(len(asked.logits), -1), found.weights.shape))

        return np.flatnonzero(laws.alone(weigh_all, rows, rounding).broken).tolist()

    parts = ["gradient", "output", *(["second"] if form == "dense" else [])]
    return {part: places for part in parts if (places := changed(part))}
