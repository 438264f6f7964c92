"""The temperature at which the loss of each row of attention logits is least, and that loss at any temperature."""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from softmax_jax.normalizers.fit_file import LARGEST_BETA
from softmax_jax.normalizers.maps import softmax
from softmax_jax.normalizers.row import entropy

THETA_RANGE = (1 / LARGEST_BETA, 8.0)
GRID_SIZE = 49
LOG_THETA = np.linspace(math.log(THETA_RANGE[0]), math.log(THETA_RANGE[1]), GRID_SIZE)
"""The coarse grid of log θ, from the sharpest to the flattest."""
SPACING = float(LOG_THETA[1] - LOG_THETA[0])
GOLDEN = (math.sqrt(5) - 1) / 2
GOLDEN_STEPS = math.ceil(math.log(1e-3 / (2 * SPACING)) / math.log(GOLDEN))
"""Golden-section steps from two grid cells to 1e-3 in log θ."""
TIE = 1e-6
"""Losses within this many nats of the best are as good: float32 tells them no further apart."""

AnyArray = Any
"""The search returns JAX arrays; the fit works on them as numpy arrays."""


class Rows(NamedTuple):
    """What the search finds about each row of logits; losses and entropies in nats, errors 0 or 1."""

    entropy: Float[AnyArray, "*rows"]
    theta: Float[AnyArray, "*rows"]
    border: Bool[AnyArray, "*rows"]
    curvature: Float[AnyArray, "*rows"]
    losses: Float[AnyArray, "*rows grid"]
    errors: Float[AnyArray, "*rows grid"]


Measure = Callable[[Float[Array, "rows size"]], Float[Array, " rows"]]


def search(
    logits: Float[Array, "rows n"],
    values: Float[Array, "rows n size"],
    loss: Measure,
    *,
    error: Measure | None = None,
    where: Bool[Array, "rows n"] | None = None,
    pool: Callable[[Array, Array], Array] = functools.partial(jnp.einsum, "rkn,rns->rks"),  # noqa: B008
) -> Rows:
    r"""Finds the temperature that minimises the loss of each row, and the loss at every temperature of a grid.

    $$\theta^* = \arg\min_{1/64 \le \theta \le 8} \operatorname{loss}\big(\textstyle\sum_j
      \operatorname{softmax}(z/\theta)_j\, v_j\big)$$

    `loss` takes the attended values of all rows and returns one number per row, in nats (cross-entropy, most
    often); `error`, if given, likewise 0 or 1. What else a row's loss depends on (a target, other heads) is
    closed over. `pool` sums the values under the weights of several temperatures, (rows, temperatures, n), for a model
    with a precision of its own. A grid of log θ finds the valley and golden section its bottom, to 1e-3 in log θ.
    `border` says that an end of the range is as good as the best to 1e-6 nats, so that no optimum is known;
    `curvature` is the second derivative of the loss in log θ at the best point of the grid.

    Two rows, of which the second prefers a flat row:

    >>> z, v = jnp.array([[2.0, 1.0, 0.0]] * 2), jnp.eye(3)[None].repeat(2, 0)
    >>> wanted = jnp.array([[0.8, 0.15, 0.05], [0.4, 0.3, 0.3]])
    >>> found = search(z, v, lambda attended: -(wanted * jnp.log(attended + 1e-9)).sum(-1))
    >>> [f"{theta:.1f}" for theta in found.theta], found.border.tolist()
    (['0.7', '6.7'], [False, False])
    """
    if values.ndim != 3 or values.shape[:2] != logits.shape:
        raise ValueError(
            f"values have shape {values.shape}; they must be (rows, n, size) with the logits' {logits.shape} in front: "
            "give one vector for each logit"
        )
    measures = (loss, loss if error is None else error)
    for name, measure in zip(("loss", "error"), measures):
        _check_measure(name, measure, values)

    def at(log_theta: Float[Array, "rows k"], *wanted: Measure) -> list[Float[Array, "rows k"]]:
        scaled = logits[:, None, :] * jnp.exp(-log_theta)[:, :, None]
        weights = softmax(scaled, where=None if where is None else where[:, None, :])
        attended = pool(weights, values)
        return [jax.vmap(measure, in_axes=1, out_axes=1)(attended) for measure in wanted]

    grid = jnp.asarray(LOG_THETA, logits.dtype)
    losses, errors = at(jnp.broadcast_to(grid, (len(logits), GRID_SIZE)), *measures)
    lowest = jnp.argmin(losses, 1)
    best, least = golden_section(lambda log_theta: at(log_theta, loss)[0], grid[lowest], grid[0], grid[-1])
    ends = jnp.minimum(losses[:, 0], losses[:, -1])
    around = jnp.clip(lowest, 1, GRID_SIZE - 2)[:, None] + jnp.array([[-1, 0, 1]])
    left, middle, right = jnp.take_along_axis(losses, around, 1).T
    return Rows(
        entropy=entropy(logits, where=where)[:, 0],
        theta=jnp.exp(best),
        border=ends <= jnp.minimum(losses.min(1), least) + TIE,
        curvature=jnp.maximum((left - 2 * middle + right) / SPACING**2, 0),
        losses=losses,
        errors=errors,
    )


def _check_measure(name: str, measure: Measure, values: Float[Array, "rows n size"]) -> None:
    """Raises ValueError unless a loss or an error gives one number for each row."""
    like = jax.ShapeDtypeStruct((values.shape[0], values.shape[2]), jnp.result_type(values))
    shape = jnp.shape(jax.eval_shape(measure, like))
    if shape != like.shape[:1]:
        raise ValueError(
            f"{name} gives shape {shape} for {like.shape[0]} rows; it must be one number per row: drop mean()"
        )


def golden_section(
    function: Callable[[Float[Array, "rows 2"]], Float[Array, "rows 2"]],
    middle: Float[Array, " rows"],
    lowest: Float[Array, ""],
    highest: Float[Array, ""],
) -> tuple[Float[Array, " rows"], Float[Array, " rows"]]:
    """Where each row has its minimum, within one grid cell of `middle` on either side, and how low it is there.

    Both inner points are evaluated anew in every step: that is cheap beside the grid, and compiles once.
    """

    def step(_: Any, state: tuple[Float[Array, " rows"], ...]) -> Any:
        low, high, _ = state
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        at_left, at_right = function(jnp.stack([left, right], 1)).T
        falls = at_left < at_right
        return jnp.where(falls, low, left), jnp.where(falls, right, high), jnp.minimum(at_left, at_right)

    bracket = jnp.maximum(middle - SPACING, lowest), jnp.minimum(middle + SPACING, highest)
    low, high, least = jax.lax.fori_loop(0, GOLDEN_STEPS, step, (*bracket, jnp.full_like(middle, jnp.inf)))
    return (low + high) / 2, least


def join(rows: Iterable[Rows]) -> Rows:
    """Rows of several lengths as one, each of shape (seeds, rows)."""
    return Rows(*(np.concatenate(columns, 1) for columns in zip(*rows)))
