"""`calibrate`: numbers of a normalizer per site and head, learned for a function whose weights stay as they are."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
from jaxtyping import Array, Float

from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.parameters import initial_numbers, with_numbers
from softmax_jax.normalizers.registry import NormalizerLike, as_normalizer
from softmax_jax.refusal import Refusal
from softmax_jax.transforms.nnx_state import OUTSIDE, refusing, transformations
from softmax_jax.transforms.program import trace
from softmax_jax.transforms.sites import Site, check_callable, places
from softmax_jax.transforms.swap import Empty, Where, choose, swap

Numbers = dict[int, dict[str, Float[Array, "..."]]]
"""By the index of the site, then by name."""


def calibrate(
    fun: Callable[..., Any],
    normalizer: NormalizerLike,
    *,
    learn: tuple[str, ...],
    loss: Callable[[Callable[..., Any], Any], Float[Array, ""]],
    batches: Iterable[Any],
    optimizer: Any,
    heads: int | tuple[int, ...] | None = -3,
    where: Where = None,
    empty: Empty = "model",
) -> dict[int, Normalizer]:
    """Returns a normalizer for each site of `fun`, whose numbers named by `learn` minimize a loss.

    `loss(fun, batch)` calls the function that it is given as it would call `fun`, and returns one number; the
    parameters that it passes stay as they are. Each of the `batches`, pytrees of arrays, is one step of `optimizer`: a
    pair as optax makes them, `init(numbers)` and `update(gradient, state, numbers)`, which returns what is added to
    the numbers and the next state. Every site starts at the numbers of `normalizer`, and has one for each head:
    `heads` is the axis, or axes, of the logits that tells them apart, None for one number of all heads. A site without
    that axis has one number, and so has a site in a loop for all its turns. `where` and `empty` are those of `swap`,
    which takes the result: `swap(fun, calibrate(fun, ...))`.

    Raises ValueError for a name that the normalizer lacks, for no batches, and as `swap` does.

    >>> import jax.numpy as jnp
    >>> from collections import namedtuple
    >>> descent = namedtuple("Descent", "init update")(
    ...     lambda numbers: None, lambda grads, state, _: (jax.tree.map(lambda g: -5.0 * g, grads), state)
    ... )
    >>> attend = lambda z, v: jax.nn.softmax(z) @ v
    >>> z, v = jnp.array([[1.0, 0.0]]), jnp.eye(2)
    >>> def loss(attend, batch):  # the first of two should get 0.9
    ...     return (attend(*batch)[0, 0] - 0.9) ** 2
    >>> found = calibrate(attend, "ssmax", learn=("s",), loss=loss, batches=[(z, v)] * 200, optimizer=descent)
    >>> round(float(swap(attend, found)(z, v)[0, 0]), 2)
    0.9
    """
    check_callable(fun)
    base = as_normalizer(normalizer)
    initial_numbers(base, learn, None)
    steps = iter(batches)
    batch = next(steps, None)
    if batch is None:
        raise Refusal("batches is empty; it must hold at least one batch: give one per step")
    sites = _sites_within(fun, loss, batch, where)
    numbers: Numbers = {site.index: initial_numbers(base, learn, _per_head(site, heads)) for site in sites}
    state = optimizer.init(numbers)

    def with_learned(numbers: Numbers) -> dict[int, Normalizer]:
        return {index: with_numbers(base, own) for index, own in numbers.items()}

    lifted = transformations(batch)

    @lifted.jit
    def step(numbers: Numbers, state: Any, batch: Any) -> tuple[Numbers, Any]:
        def objective(numbers: Numbers, batch: Any) -> Float[Array, ""]:
            return loss(swap(fun, with_learned(numbers), empty=empty), batch)

        grads = lifted.grad(objective)(numbers, batch)
        # Optax raises floats to the integer step, which strict promotion forbids.
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(grads, state, numbers)
        return jax.tree.map(lambda number, update: number + update, numbers, updates), state

    while batch is not None:
        numbers, state = step(numbers, state, batch)
        batch = next(steps, None)
    return with_learned(numbers)


def _sites_within(fun: Callable[..., Any], loss: Callable[..., Any], batch: Any, where: Where) -> list[Site]:
    """Returns the chosen sites of a function, for the arguments that the loss calls it with."""
    found: list[Site] = []

    def seen(*args: Any, **kwargs: Any) -> Any:
        located = places(trace(fun, args, kwargs), fun)
        found[:] = [place.site for place in choose(located, {"*": None}, where)]
        with refusing(fun, OUTSIDE):
            return fun(*args, **kwargs)

    transformations(batch).eval_shape(lambda batch: loss(seen, batch), batch)
    if not found:
        raise Refusal("loss never calls the function that it is given: let it call its first argument")
    return found


def _per_head(site: Site, heads: int | tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Returns the shape of numbers for each head of a site: that of its logits, other axes 1, no leading ones."""
    if heads is None:
        return None
    rank = len(site.shape)
    axes = {axis % rank for axis in (heads if isinstance(heads, tuple) else (heads,)) if -rank <= axis < rank}
    shape = tuple(size if axis in axes else 1 for axis, size in enumerate(site.shape))
    return shape[min(axes) :] if axes else None
