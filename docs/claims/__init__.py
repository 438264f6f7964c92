"""What the pages say in words, computed from the files under docs/data: one module a page.

Each function of a module yields pairs of a page and the words that stand on it, with the numbers put in. A number that
is a choice and no result (a setting, a threshold, a published value that the sentence names as such) stands in the
`SETTINGS` of its module, in its words. `docs.claims.walk` finds the numbers of a page that are neither.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import polars as pl

from softmax_jax.experiment.board.order import Order, frame_of_cells, order_methods
from softmax_jax.experiment.board.protocol import PROTOCOL
from softmax_jax.experiment.commands.rank import SHIPPED_BOARD, read_board
from softmax_jax.experiment.measures.significance import corrected, half_width, paired_p_value

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "data"
PREDICTIONS = "docs/predictions.md"


def read(file: str, **values: object) -> pl.DataFrame:
    """Returns a table under docs/data, with only the rows whose columns have these values."""
    frame = pl.read_csv(DATA / file)
    return frame.filter(**values) if values else frame


def board_cells() -> list[dict[str, Any]]:
    """Returns the cells of the board that ships."""
    return read_board(SHIPPED_BOARD, PROTOCOL)


@functools.cache
def board_order() -> Order:
    """Returns the order of the board that ships."""
    return order_methods(frame_of_cells(board_cells()), PROTOCOL.floors)


def claims_of(module: ModuleType) -> dict[str, Callable[[], Iterator[tuple[str, str]]]]:
    """Returns the functions of a module that yield claims, by name: the public ones that it defines itself."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, FunctionType) and not name.startswith("_") and value.__module__ == module.__name__
    }


def verdict(*parts: bool | np.bool) -> str:
    """Returns what becomes of a prediction of several statements.

    >>> verdict(True, True), verdict(True, False), verdict(False)
    ('holds', 'in part', 'fails')
    """
    return "holds" if all(parts) else "in part" if any(parts) else "fails"


def predicted(rows: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    """Yields the line of each prediction on its page: what was predicted, its verdict, and what came."""
    for number, (prediction, judged, result) in enumerate(rows, 1):
        yield PREDICTIONS, f"{number}. {prediction}: **{judged}**{f', {result}' if result else ''}."


def half(values: Iterable[float]) -> float:
    """Returns half the 95 % interval of the mean of at least two values."""
    width = half_width(list(values))
    assert width is not None
    return width


def with_half(values: Sequence[float] | np.ndarray, form: str = ".1f") -> str:
    """Returns the mean of some values with half its 95 % interval, as text."""
    return f"{np.mean(values):{form}} ± {half(values):.1f}"


def holm(pairs: Iterable[tuple[Sequence[float], Sequence[float]]]) -> list[float]:
    """Returns p of the paired t-test of each pair of samples, corrected by Holm for all of them."""
    return [float("nan") if p is None else p for p in corrected([paired_p_value(*pair) for pair in pairs])]


def listed(words: Iterable[object]) -> str:
    """Returns some words with commas, and `and` before the last."""
    return " and ".join(", ".join(map(str, words)).rsplit(", ", 1))
