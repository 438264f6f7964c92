"""Work on several lengths, each of which XLA compiles first."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def two_at_a_time(function: Callable[[Argument], Result], arguments: Iterable[Argument]) -> Iterator[Result]:
    """Yields the results in order, always with the next call under way.

    XLA compiles on one core: this lets it compile for the next argument while the computation of one runs.
    """
    pool = ThreadPoolExecutor(2)
    try:
        yield from pool.map(function, arguments)
    finally:
        pool.shutdown(cancel_futures=True)
