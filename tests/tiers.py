"""Which tests run by default and which wait for the full tier: marks for the parameters of a test."""

from collections.abc import Iterable
from typing import Any

import pytest

import softmax_jax as sj

HEART = ("softmax", "adaptive", "entmax15")
"""Methods that stand for all others in the default tier, where tests run for every method."""


def full_except(values: Iterable[Any], *default: Any) -> list[Any]:
    """Parameters of which only those named run by default; the others are marked `full`.

    A tuple holds several parameters of one test and is named by its first.
    """
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=[pytest.mark.full] * (row[0] not in default)) for row in rows]


def rare_except(values: Iterable[Any], *full: Any) -> list[Any]:
    """Parameters of a test of the full tier, of which only those named run there; the others are marked `rare`.

    A tuple is as in `full_except`.
    """
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=pytest.mark.full if row[0] in full else pytest.mark.rare) for row in rows]


def methods(values: Iterable[Any] = sj.METHODS) -> list[Any]:
    """Parameters that are, or start with, a normalizer: of registered names only those of the heart run by default."""
    rows = list(values)
    normalizers = [row[0] if isinstance(row, tuple) else row for row in rows]
    unregistered = [name for name in normalizers if not isinstance(name, str) or name not in sj.METHODS]
    return full_except(rows, *HEART, *unregistered)
