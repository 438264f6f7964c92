"""Layouts: which entry of an array another holds.

Reshapes, transposes, slices and products move entries by rules that hold for every entry. So two layouts are compared
at 48 entries, by arithmetic on their indices. Layouts that agree at a share p of their entries pass for equal with
chance p^48. A transpose of (n, n) keeps the diagonal, p = 1 / n: 4e-15 for n = 2.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from softmax_jax.transforms.program import Node

STAND_IN_SIZE = 7
"""Stands for the size of an axis that is symbolic, as in `jax.export`, or has no entries."""
PLACES = np.random.default_rng(0).random((64, 48))
"""The 48 entries at which layouts are compared, as places from 0 to 1 along up to 64 axes."""


class Step(NamedTuple):
    """One equation on a path through the program: the operand that is followed, and the result."""

    node: Node
    position: int
    result: int


def random_entries(shape: Sequence[int]) -> np.ndarray:
    """Returns the indices of 48 random entries of an array, of shape (axes, entries)."""
    return (PLACES[: len(shape)] * sizes_of(shape)).astype(int)


def trace_entries(steps: Iterable[Step], indices: np.ndarray) -> np.ndarray:
    """Returns the entries at the start of a path that these entries at its end hold.

    x.T of shape (3, 2), reshaped to 6 and cut at 2: entry 1 is entry 3 of the reshaped array, row 1 and column 1 of
    x.T, so x[1, 1].

    >>> import jax, jax.numpy as jnp
    >>> from softmax_jax.transforms import program
    >>> traced = program.trace(lambda x: x.T.reshape(6)[2:], (jnp.ones((2, 3)),), {})
    >>> trace_entries([Step(node, 0, 0) for node in traced.nodes], np.array([[0, 1, 3]]))
    array([[0, 1, 1],
           [1, 1, 2]])
    """
    for step in reversed(tuple(steps)):
        indices = _trace_step(step, indices)
    return indices


def _trace_step(step: Step, indices: np.ndarray) -> np.ndarray:
    """Returns the entries of the operand that these entries of the result hold; for a sum, any one of its summands."""
    node, params = step.node, step.node.params
    shape, result = node.inputs[step.position].shape, node.outputs[step.result].shape
    sizes = sizes_of(shape)
    match node.name:
        case "transpose":
            # Axis a of the result is axis p[a] of the operand, so axis b of the operand is axis argsort(p)[b] of the
            # result. p = (2, 0, 1): argsort(p) = (1, 2, 0), and y[i, j, k] = x[j, k, i].
            indices = indices[np.argsort(params["permutation"])]
        case "broadcast_in_dim":
            indices = indices[list(params["broadcast_dimensions"])]
        case "reshape" | "squeeze" | "expand_dims":
            # A reshape keeps the row-major place Σ strideₐ · iₐ. Entry 3 of (6,) is entry (3 // 2 % 3, 3 // 1 % 2) =
            # (1, 1) of (3, 2), whose strides are (2, 1).
            indices = _strides(result) @ indices // _strides(shape)[:, None] % sizes
        case "slice":
            strides, starts = params["strides"] or [1] * len(shape), params["start_indices"]
            indices = indices * sizes_of(strides) + sizes_of(starts, zero=0)
        case "split":
            indices = indices.copy()
            indices[params["axis"]] += sum(params["sizes"][: step.result])
        case "reduce_sum":
            indices = _fill_entries(indices, shape, [axis for axis in range(len(shape)) if axis not in params["axes"]])
        case "dot_general":
            contracted, batch = params["dimension_numbers"]
            # The result has the batch axes, then the free axes of both operands: bhqk,bhkd->bhqd has batch axes b and
            # h, free axes q and d. Its axes 0, 1, 2 are b, h, q of the first operand; 0, 1, 3 are b, h, d of the
            # second. The index along the contracted axis k is arbitrary.
            removed = [{*contracted[side], *batch[side]} for side in (0, 1)]
            free = [[a for a in range(len(node.inputs[side].shape)) if a not in removed[side]] for side in (0, 1)]
            first = len(batch[0]) + step.position * len(free[0])
            axes = [*range(len(batch[0])), *range(first, first + len(free[step.position]))]
            indices = _fill_entries(indices[axes], shape, [*batch[step.position], *free[step.position]])
        case _:  # entry by entry; NumPy's broadcasting adds axes in front
            indices = indices[len(result) - len(shape) :]
    return np.minimum(indices, sizes - 1)  # an axis of size 1 is broadcast


def sizes_of(sizes: Sequence[Any], zero: int = STAND_IN_SIZE) -> np.ndarray:
    """Returns sizes as a column, with stand-ins for 0 and for symbolic sizes."""
    numbers = [(size or zero) if isinstance(size, int | np.integer) else STAND_IN_SIZE for size in sizes]
    return np.array(numbers, int).reshape(-1, 1)


def _strides(shape: Sequence[int]) -> np.ndarray:
    sizes = sizes_of(shape)[:, 0]
    return np.array([math.prod(sizes[axis + 1 :]) for axis in range(len(shape))], int)


def _fill_entries(indices: np.ndarray, shape: Sequence[int], known: list[int]) -> np.ndarray:
    """Returns entries of an array with these indices along known axes, and arbitrary ones along the others."""
    # `axes_along` passes several blocks of 48 entries, which repeat the draws, so an arbitrary axis never moves.
    # They are reversed: in einsum("ij,id->jd", e, v) / s[:, None], whose rows are wrong, axis 0 of e would otherwise
    # have the very draws at which s is read.
    repetitions = -(-indices.shape[1] // PLACES.shape[1])
    filled = np.tile(random_entries(shape)[:, ::-1], repetitions)[:, : indices.shape[1]]
    filled[known] = indices
    return filled


def axes_along(steps: Iterable[Step], shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Returns the axes at the end of a path that hold a part of some axes at its start; `shape` is the one at the end.

    (6, 5) reshaped to (2, 3, 5): axis 0 is held by axes 0 and 1.
    """
    # Block 0 has random entries; block a + 1 has the same, but for the indices along axis a. If they come from other
    # places along `axes` than those of block 0, axis a holds a part of `axes`.
    rank, count = len(shape), PLACES.shape[1]
    indices = np.tile(random_entries(shape), rank + 1).reshape(rank, rank + 1, count)
    for axis in range(rank):
        indices[axis, axis + 1] = indices[axis, axis + 1, ::-1].copy()
    indices = indices.reshape(rank, (rank + 1) * count)
    moved = trace_entries(steps, indices)[list(axes)].reshape(len(axes), rank + 1, count)
    return tuple(axis for axis in range(rank) if (moved[:, axis + 1] != moved[:, 0]).any())
