"""`swap`: any JAX function with other normalizers in the place of its softmaxes."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.maps import Softmax
from softmax_jax.normalizers.masking import Axis
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import as_normalizer
from softmax_jax.transforms.sites import Place, Site, checks_callable
from softmax_jax.transforms.weighing import Rows, Weigh, Where, apply, matching, meant, some

Normalizers = Normalizer | str | Mapping[Any, Normalizer | str]
"""One for all sites that are meant, or by index, or by scope, in which `*` stands for anything."""
Empty = Literal["model", "zeros"]
Look = Callable[[Rows, Float[Array, "*shape"]], Any]
"""From the rows of a site and the weights that they get to a record."""


def swap(
    fun: Callable[..., Any], normalizer: Normalizers, *, where: Where = None, empty: Empty = "model"
) -> Callable[..., Any]:
    r"""The function with a normalizer in the place of the softmax of its attention; same arguments, same results.

    $$w = \operatorname{softmax}(z) \quad\to\quad w = \operatorname{normalizer}(z)$$

    `normalizer` is a `Normalizer`, its name, or several by pattern: `{"*/block_3": "ssmax(s=0.4)", 7: "entmax15"}`,
    of which the first that matches a site counts, and a site that none matches stays. A pattern is an index in
    `sites(fun)(...)`, or a scope in which `*` stands for anything. `where` says of a `Site` whether it is meant;
    without it those are whose use is attention, and those that are named by index. Per-head numbers have the shape
    (heads, 1, 1) for logits of shape (batch, heads, queries, keys).

    The mask is that of the model: entries that it hides with a predicate or a large negative number are hidden before
    any scale multiplies, get weight 0, and do not count in n. `empty` is for a row with nothing visible: "model" leaves
    it as the model has it, often uniform; "zeros" gives it no weight. A row of -inf alone gets 0. Under "model", a swap
    to softmax leaves a site as it stands.

    The function is traced at every call, as under `jax.grad`: wrap the result in `jax.jit`. It composes with `jit`,
    `grad`, `vmap`, `scan` and `checkpoint`. Swap first and differentiate after: of a gradient only the forward pass
    would change. A rule for derivatives around a swapped softmax gives way to derivatives of the new
    one. A normalizer that is an argument of the compiled function may change without a new compilation. Objects of
    `flax.nnx` among the arguments keep what `fun` writes to them, such as a cache.

    Raises ValueError for a function without a softmax, a pattern that matches nothing, what cannot be read among what
    is meant, numbers that do not fit a site, and an object of NNX that `fun` writes to and is not given; TypeError for
    what is no function or normalizer.

    >>> import jax
    >>> attend = lambda q, k, v: jax.nn.softmax(q @ k.T) @ v
    >>> x = jnp.array([[1.0, 0.0], [0.0, 2.0]])
    >>> swap(attend, "hardmax")(x, x, x)
    Array([[1., 0.],
           [0., 2.]], dtype=float32)
    """
    checks_callable(fun)
    choose = chooser(normalizer, where, empty)

    @functools.wraps(fun, updated=())
    def swapped(*args: Any, **kwargs: Any) -> Any:
        return apply(fun, args, kwargs, choose)[0]

    return swapped


def chooser(
    normalizers: Normalizers, where: Where, empty: Empty, look: Look | None = None
) -> Callable[[list[Place]], dict[Place, Weigh]]:
    """Chooses the sites of a function and says what weighs each; `look` makes a record of rows and weights.

    Raises as `swap` does for what it is given.
    """
    checks.one_of("empty", empty, get_args(Empty))
    given = normalizers if isinstance(normalizers, Mapping) else {"*": normalizers}
    by_pattern = {pattern: as_normalizer(one) for pattern, one in given.items()}

    def choose(found: list[Place]) -> dict[Place, Weigh]:
        chosen: dict[Place, Weigh] = {}
        for pattern, normalizer in by_pattern.items():
            for place in meant(matching(found, pattern), where, asked=isinstance(pattern, int)):
                chosen.setdefault(place, _weigher(normalizer, empty, place.site, look))
        some(list(chosen), found)
        return chosen

    return choose


def _weigher(normalizer: Normalizer, empty: Empty, site: Site, look: Look | None) -> Weigh:
    """Weighs the rows of a site by a normalizer."""

    def weigh(rows: Rows) -> tuple[Float[Array, "*shape"] | None, Any]:
        try:
            unchanged = type(normalizer.map) is Softmax and normalizer.scale is None
            if unchanged and empty == "model":
                return None, look(rows, rows.original()) if look else None  # it is what stands there
            weights = weights_of(normalizer, empty, rows)
        except (TypeError, ValueError) as error:
            raise type(error)(f"site {site.index}, {site.scope} at {site.line}: {error}") from None
        return weights, look(rows, weights) if look else None

    return weigh


def weights_of(normalizer: Normalizer, empty: Empty, rows: Rows) -> Float[Array, "*shape"]:
    """The weights of rows; those of a row with nothing visible are as `empty` says."""
    logits, axis, where = rows.logits, rows.axis, rows.where
    if where is None or empty == "zeros":
        return normalizer.weigh(logits, axis, where)
    weights = normalizer.weigh(logits, axis, where)
    kept = ~jnp.any(where, axis, keepdims=True) & jnp.any(logits > -jnp.inf, axis, keepdims=True)
    if rows.hidden.one_number:  # so softmax weighs them all alike
        return jnp.where(kept, jnp.asarray(1 / _size(logits, axis), weights.dtype), weights)
    return jnp.where(kept, rows.original().astype(weights.dtype), weights)


def _size(logits: Float[Array, "*shape"], axis: Axis) -> int:
    """Number of entries of a row."""
    return math.prod(logits.shape[one] for one in (axis if isinstance(axis, tuple) else (axis,)))
