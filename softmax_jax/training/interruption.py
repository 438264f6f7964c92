"""What Ctrl-C and SIGTERM ask of a run: to end after the chunk under way, or at once."""

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from rich.console import Console

T = TypeVar("T")


class Interruptions:
    """The context in which a run hears of them.

    The first one sets `asked`. A second Ctrl-C raises KeyboardInterrupt out of `wait_for`, and a third from anywhere.
    """

    def __init__(self, console: Console):
        self.asked = False
        self._console = console
        self._times = 0
        self._compiled = False
        self._waiting = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interruptions":
        self._previous = {number: signal.signal(number, self._hear) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: Any) -> None:
        if not self.asked:
            self.asked = True
            compiled = "" if self._compiled else ", which is compiled before"
            when = f"at the end of this chunk{compiled}" if self._waiting else "before the next chunk"
            self._console.print(f"stopping {when}; Ctrl-C again stops at once", soft_wrap=True)
        if number == signal.SIGINT:
            self._times += 1
        # What is being written when the second one comes is written in a moment.
        if self._times > 2 or (self._times == 2 and self._waiting):
            raise KeyboardInterrupt

    def wait_for(self, chunk: Callable[[], T]) -> T:
        """What a chunk comes to, computed in a thread of its own: this one hears signals, which XLA keeps from it."""
        future: Future[T] = Future()

        def compute() -> None:
            try:
                future.set_result(chunk())
            except BaseException as error:
                future.set_exception(error)

        self._waiting = True
        try:
            threading.Thread(target=compute, daemon=True).start()
            return future.result()
        finally:
            self._waiting = False
            self._compiled = True
