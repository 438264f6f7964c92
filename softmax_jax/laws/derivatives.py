"""Derivatives of a normalizer by automatic differentiation in both modes, and by differences."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from softmax_jax.normalizers.normalizer import Normalizer

STEPS = 4.0 ** -np.arange(2, 12)
"""Steps of differences, the largest first: powers of 2, which no type rounds."""
QUICKLY = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""Compiles in half the time, for what must hold whatever the optimizer does: derivatives and transformations."""


def is_floating(number: Any) -> bool:
    """Returns True for a number that has a derivative, which whole numbers have not."""
    return jnp.issubdtype(jnp.result_type(number), jnp.floating)


def as_type(normalizer: Normalizer, dtype: str) -> Normalizer:
    """Returns a normalizer whose floating numbers are arrays of a type."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype) if is_floating(leaf) else leaf, normalizer)


class Slopes(NamedTuple):
    """Derivatives of the weights in the logits, then in the numbers: by both modes, and by differences."""

    forward: np.ndarray | None
    problem: Exception | None
    """What JAX raises if there is no forward mode, as for a `jax.custom_vjp`."""
    reverse: np.ndarray
    moved: np.ndarray
    unsure: np.ndarray
    """A bound on the errors of the differences."""
    error: float
    """The error of the weights, measured from how they move."""


def as_function(normalizer: Normalizer, row: Any) -> tuple[Callable[[Any], Any], Any]:
    """Returns the weights as a function of one vector, of the logits and the numbers, and that vector."""
    leaves, structure = jax.tree.flatten(normalizer)
    places = [place for place, number in enumerate(leaves) if is_floating(number)]
    point, unravel = ravel_pytree((row, [leaves[place] for place in places]))

    def weights(point: Any) -> Any:
        row, numbers = unravel(point)
        moved = dict(zip(places, numbers))
        return structure.unflatten([moved.get(place, number) for place, number in enumerate(leaves)])(row)

    return weights, point


def keeps_type(normalizer: Normalizer, row: Any) -> bool:
    """Returns True if weights and gradient have the type of a row, and raise nothing in it."""
    weights, point = as_function(normalizer, row)

    def derivative(point: Any) -> Any:
        values, pull = jax.vjp(weights, point)
        return values, pull(values)

    try:
        arrays = jax.tree.leaves(jax.eval_shape(derivative, point))
    except Exception:  # of many types, as the function may be the user's
        return False
    return all(array.dtype == point.dtype for array in arrays)


@functools.partial(QUICKLY, static_argnames="forward")
def slopes(normalizer: Normalizer, row: Any, shifts: Any, *, forward: bool) -> tuple[Any, Any, Any]:
    """Returns the weights at shifted points, and at the last of them the Jacobians by reverse and forward mode."""
    weights, point = as_function(normalizer, row)

    def at(point: Any) -> tuple[Any, Any, Any]:
        if forward:
            values, push = jax.linearize(weights, point)
            pull = jax.linear_transpose(push, point)
            pushed = jax.lax.map(push, jnp.eye(point.size, dtype=point.dtype)).T
        else:
            values, pull = jax.vjp(weights, point)
            pushed = None
        cotangents = jnp.eye(values.size, dtype=values.dtype)
        return values, jax.lax.map(lambda cotangent: pull(cotangent)[0], cotangents), pushed

    # Only the last point needs slopes, but so the weights of all points are one computation, compiled once. A loop, as
    # not every function has a rule for vmap.
    values, pulled, pushed = jax.lax.map(at, point[None] + shifts)
    return values, pulled[-1], None if pushed is None else pushed[-1]


def jacobians(normalizer: Normalizer, row: Any) -> Slopes:
    """Returns the derivatives by automatic differentiation and by differences."""
    point = np.asarray(as_function(normalizer, row)[1])
    # Powers of 2, relative to numbers above 1.
    sizes = 2.0 ** np.ceil(np.log2(np.maximum(np.abs(point), 1.0)))
    steps = (STEPS[:, None, None] * np.diag(sizes)).reshape(-1, point.size)
    shifts = np.concatenate([steps, -steps, np.zeros((1, point.size))]).astype(point.dtype)
    problem = None
    try:
        values, reverse, pushed = slopes(normalizer, row, jnp.asarray(shifts), forward=True)
    except Exception as error:  # of many types, as the function may be the user's; only reverse mode must work
        problem = error
        values, reverse, pushed = slopes(normalizer, row, jnp.asarray(shifts), forward=False)
    weights = np.asarray(values, np.float64)
    up, down = weights[:-1].reshape(2, len(STEPS), point.size, -1)
    moved, unsure, error = differences(up, down, weights[-1], STEPS[:, None, None] * sizes[:, None])
    forward = None if pushed is None else np.asarray(pushed)
    return Slopes(forward, problem, np.asarray(reverse), moved.T, unsure.T, error)


def differences(
    up: np.ndarray, down: np.ndarray, weights: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns derivatives from weights at steps in each number, a bound on their errors, and the error of the weights.

    Steps h and h/4 give D(h) = (f(h) - f(-h)) / 2h = f' + c h² + O(h⁴), so R = D(h/4) + (D(h/4) - D(h)) / 15 is
    f' + O(h⁴). The error of R is bounded by the sum of three:

    1. the whole correction, |D(h/4) - D(h)| / 15, which is above the O(h⁴) that it leaves;
    2. |s(h) - 16 s(h/4)| / 16h with s(h) = f(h) - 2 f(0) + f(-h) = f'' h² + O(h⁴), which is O(h³) unless there is a
       kink within h. At a distance d it adds its change of slope times h - d to s(h), and up to half of that change to
       both D, which then may agree;
    3. 4 ε/h, if ε is the error of each weight.

    ε is measured, as a function may compute in float32 whatever it is given: it is at least s of the least step, where
    f'' h² is 1e-13; the rounding of float32 if that holds all weights; and |s(h) - 16 s(h/4)| / 16 of h from 2^-6 to
    2^-10, typically, which also shows the steps of half types, in which weights do not move at all under smaller h. The
    first two errors fall with h and the third rises, so each derivative is taken from the pair whose sum is the least.
    For softmax that is below 1e-9 in float64 and below 1e-5 in float32, where h = 1e-6 would leave an error of 0.01.
    """
    slope, bend = (up - down) / (2 * steps), up - 2 * weights + down
    uneven = np.abs(bend[:-1] - 16 * bend[1:]) / 16
    error = float(np.median(np.median(uneven[1:4].max(-1), 1)))  # as a few may lie at a kink, or between two roundings
    in_float32 = all((array == array.astype(np.float32)).all() for array in (up, down, weights))
    rounding = np.finfo(np.float32 if in_float32 else np.float64).eps * np.abs(weights)
    each = np.maximum(np.abs(bend[-1]).max(0), rounding + error)
    correction = np.diff(slope, axis=0) / 15
    unsure = np.abs(correction) + uneven / steps[:-1] + each / steps[1:]
    best = np.nan_to_num(unsure, nan=np.inf).argmin(0)[None]
    moved, unsure = (np.take_along_axis(pairs, best, 0)[0] for pairs in (slope[1:] + correction, unsure))
    return moved, unsure, error


def unlike_differences(slopes: Slopes, columns: range, names: list[str]) -> str:
    """Returns the first derivative that differs from the differences by more than their bound allows, in words."""
    # Derivatives have the errors of the weights, more where terms cancel: half of their digits must be right.
    allowed = 1e-7 + 4 * slopes.unsure + (1e-6 + slopes.error**0.5) * np.abs(slopes.moved)
    for mode, actual in {"jacfwd": slopes.forward, "jacrev": slopes.reverse}.items():
        far = np.zeros(allowed.shape, bool) if actual is None else ~(np.abs(actual - slopes.moved) <= allowed)
        for i, j in np.argwhere(far):
            if actual is not None and j in columns:
                return f"{mode}: dw{i}/d{names[j]} is {actual[i, j]:.6g}; wanted {slopes.moved[i, j]:.6g}"
    return ""
