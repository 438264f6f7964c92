"""`calibrate`: numbers of a normalizer per site and head, learned for a function whose weights stay as they are."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
from jaxtyping import Array, Float

from softmax_jax.normalizers import checks
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.parameters import initial_numbers, with_numbers
from softmax_jax.normalizers.registry import NormalizerLike, as_normalizer
from softmax_jax.refusal import Refusal
from softmax_jax.transforms.nnx_state import OUTSIDE, refuse_writes, transformations
from softmax_jax.transforms.program import trace
from softmax_jax.transforms.replacement import Empty
from softmax_jax.transforms.sites import Site, check_callable, find_sites
from softmax_jax.transforms.swap import Where, choose, swap

LearnedNumbers = dict[int, dict[str, Float[Array, "..."]]]
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
    by_turn: bool = False,
    where: Where = None,
    empty: Empty = "model",
) -> dict[int, Normalizer]:
    """Learns numbers of a normalizer for each site and head of a function, whose own weights stay as they are.

    Every site starts at the numbers of `normalizer`. A site in a loop has numbers for all its turns. With `by_turn`, a
    site in a scan over layers has numbers for each layer.

    Arguments:
        fun: Any JAX function.
        normalizer: A `Normalizer`, its name, or what else `swap` takes for one site.
        learn: The names of the numbers that are learned; the others stay.
        loss: Called as `loss(fun, batch)`. It calls the function that it is given as it would call `fun`, and returns
            one number to minimize; the parameters that it passes stay as they are.
        batches: Pytrees of arrays, each of them one step of the optimizer.
        optimizer: A pair as optax makes them, `init(numbers)` and `update(gradient, state, numbers)`, which returns
            what is added to the numbers and the next state.
        heads: The axis, or axes, of the logits that tells heads apart; None for one number of all heads. A site without
            that axis has one number.
        by_turn: Whether a site with more than one of `Site.turns` learns numbers for each turn, as
            (layers, heads, 1, 1). A scan over time that carries a state and slices inputs of floating point, as a
            recurrent decoder does, looks like one over layers: with `by_turn` it learns numbers for each time step.
        where: Says of a `Site` whether it is chosen, as in `swap`.
        empty: What a row with nothing visible gets, as in `swap`.

    Returns:
        A normalizer for each site by its index, which `swap` takes: `swap(fun, calibrate(fun, ...))`.

    Raises:
        ValueError: `learn` names what the normalizer lacks, `batches` is empty, `loss` never calls the function, or
            as in `swap`.

    Example:
        >>> import jax.numpy as jnp
        >>> from collections import namedtuple
        >>> descent = namedtuple("Descent", "init update")(
        ...     lambda numbers: None, lambda grads, state, _: (jax.tree.map(lambda g: -5.0 * g, grads), state)
        ... )
        >>> attend = lambda z, v: jax.nn.softmax(z) @ v
        >>> z, v = jnp.array([[1.0, 0.0]]), jnp.eye(2)
        >>> def loss(attend, batch):  # the first of two should get 0.9
        ...     return (attend(*batch)[0, 0] - 0.9) ** 2
        >>> fits = calibrate(attend, "ssmax", learn=("s",), loss=loss, batches=[(z, v)] * 200, optimizer=descent)
        >>> round(float(swap(attend, fits)(z, v)[0, 0]), 2)
        0.9
    """
    check_callable(fun)
    checks.flag("by_turn", by_turn)
    base = as_normalizer(normalizer)
    initial_numbers(base, learn, None)
    steps = iter(batches)
    batch = next(steps, None)
    if batch is None:
        raise Refusal("batches is empty; it must hold at least one batch: give one per step")
    sites = _find_sites_in_loss(fun, loss, batch, where)
    shapes = {site.index: _number_shape(site, heads, by_turn) for site in sites}
    numbers: LearnedNumbers = {index: initial_numbers(base, learn, shape) for index, shape in shapes.items()}
    state = optimizer.init(numbers)

    def fit(numbers: LearnedNumbers) -> dict[int, Normalizer]:
        return {index: with_numbers(base, learned) for index, learned in numbers.items()}

    lifted = transformations(batch)

    @lifted.jit
    def step(numbers: LearnedNumbers, state: Any, batch: Any) -> tuple[LearnedNumbers, Any]:
        def objective(numbers: LearnedNumbers, batch: Any) -> Float[Array, ""]:
            return loss(swap(fun, fit(numbers), empty=empty), batch)

        grads = lifted.grad(objective)(numbers, batch)
        # Optax raises floats to the integer step, which strict promotion forbids.
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(grads, state, numbers)
        return jax.tree.map(lambda number, update: number + update, numbers, updates), state

    while batch is not None:
        numbers, state = step(numbers, state, batch)
        batch = next(steps, None)
    return fit(numbers)


def _find_sites_in_loss(fun: Callable[..., Any], loss: Callable[..., Any], batch: Any, where: Where) -> list[Site]:
    """Returns the chosen sites of a function, for the arguments that the loss calls it with."""
    chosen: list[Site] = []

    def list_sites(*args: Any, **kwargs: Any) -> Any:
        chosen[:] = [traced.site for traced in choose(find_sites(trace(fun, args, kwargs), fun), {"*": None}, where)]
        with refuse_writes(fun, OUTSIDE):
            return fun(*args, **kwargs)

    transformations(batch).eval_shape(lambda batch: loss(list_sites, batch), batch)
    if not chosen:
        raise Refusal("loss never calls the function that it is given: let it call its first argument")
    return chosen


def _number_shape(site: Site, heads: int | tuple[int, ...] | None, by_turn: bool) -> tuple[int, ...] | None:
    """Returns the shape of numbers for each head of a site: that of its logits, other axes 1, no leading ones.

    With `by_turn` the turns come first, before as many axes as the logits have, less one.
    """
    rank = len(site.shape)
    head_axes = heads if isinstance(heads, tuple) else () if heads is None else (heads,)
    axes = {axis % rank for axis in head_axes if -rank <= axis < rank}
    first = min(axes, default=rank)
    shape = tuple(size if axis in axes else 1 for axis, size in enumerate(site.shape))[first:]
    if by_turn and site.turns > 1:
        return (site.turns, *(1,) * (rank - 1 - len(shape)), *shape)
    return shape if axes else None
