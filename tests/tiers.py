"""Which tests run by default and which wait for the full tier: marks for the parameters of a test."""

from collections.abc import Iterable
from typing import Any

import pytest

import softmax_jax as sj

HEART = ("softmax", "adaptive", "ssmax", "softpick", "entmax15", "top_k")
"""Methods that stand for all others in the default tier, where tests run for every method."""


def some(values: Iterable[Any], *heart: Any) -> list[Any]:
    """The values as parameters, of which those named run by default. A tuple is several parameters, named by the first.

    >>> [len(parameter.marks) for parameter in some(["float32", "bfloat16"], "float32")]
    [0, 1]
    """
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=[pytest.mark.full] * (row[0] not in heart)) for row in rows]


def methods(values: Iterable[Any] = sj.METHODS) -> list[Any]:
    """Names of methods, or other normalizers, as parameters: of the methods, those of the heart run by default."""
    rows = list(values)
    names = [row[0] if isinstance(row, tuple) else row for row in rows]
    return some(rows, *(name for name in names if name in HEART or not (isinstance(name, str) and name in sj.METHODS)))
