"""Draws of test sets: their numbers, their keys, and how many items the program for a length has room for."""

import enum
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int, Key

from softmax_jax.experiment.tasks.task import Task

TEST_KEY = 2**31
"""The number of the key of test sets, beyond the seeds of training."""


@enum.unique
class Draw(enum.IntEnum):
    """The purposes of numbered draws of sets."""

    TABLES = 0
    FIT = 1
    COMPARISON_OF_FITS = 2
    REPORT = 3
    SHARPEST = 4


def key_of(draw: int) -> Key[Array, ""]:
    """Returns the key of a numbered draw."""
    return jax.random.key(TEST_KEY + draw)


def set_keys(
    seeds: Sequence[int], length: int, sets: int, key: Key[Array, ""] | None = None
) -> Key[Array, "seeds sets"]:
    """Returns a key for each test set of each seed. A set depends only on these arguments and its place."""
    key = key_of(Draw.TABLES) if key is None else key
    return _set_keys(key, np.asarray(seeds, np.int32), np.asarray(length, np.int32), sets)


@functools.partial(jax.jit, static_argnames="sets")  # each of its steps would be a program
def _set_keys(
    key: Key[Array, ""], seeds: Int[Array | np.ndarray, " seeds"], length: Int[Array | np.ndarray, ""], sets: int
) -> Key[Array, "seeds sets"]:
    def seed_keys(seed: Any) -> Key[Array, " sets"]:
        return jax.random.split(jax.random.fold_in(jax.random.fold_in(key, seed), length), sets)

    return jax.vmap(seed_keys)(seeds)


def rooms_of(task: Task, lengths: Sequence[int]) -> dict[int, int]:
    """Returns the items that the program for each length has room for: the longest of those that share it.

    >>> from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
    >>> rooms_of(MaxRetrieval(), (2, 16, 100, 512, 1000, 4096))
    {2: 100, 16: 100, 100: 100, 512: 1000, 1000: 1000, 4096: 4096}
    """
    limits = {length: min((n for n in task.shared if length <= n), default=length) for length in lengths}
    return {length: max(other for other in lengths if other <= limits[length]) for length in lengths}
