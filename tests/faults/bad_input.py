"""Tries bad arguments and options in a process of its own, as a user has them: python -m tests.faults.bad_input WHAT

The checks of types that the tests put around every function would answer first, so the tests of bad input ask here.
WHAT is `arguments` or `options`; the answers come as lines of JSON, in the order of the table.
"""

import contextlib
import io
import json
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

ROOT = Path(__file__).parents[2]
SECONDS = 20
"""What is not refused by then is running."""


class Compilations:
    """How many programs were compiled since it was asked last."""

    def __init__(self) -> None:
        self._count = 0
        jax.monitoring.register_event_duration_secs_listener(self._record)

    def _record(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        self._count += event.endswith("backend_compile_duration")

    def since(self) -> int:
        """Starts anew."""
        count, self._count = self._count, 0
        return count


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Ends what runs for too long."""

    def stop(signum: int, frame: Any) -> None:
        raise TimeoutError("it was not refused, and ran")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def answer_to_call(call: Callable[[], Any]) -> dict[str, Any]:
    """What a call says when it is refused."""
    try:
        with limited():
            said = call()
    except (ValueError, TypeError) as error:
        return {"error": type(error).__name__, "said": str(error)}
    except BaseException as error:
        return {"error": f"not a ValueError or TypeError but {type(error).__name__}", "said": str(error)}
    return {"error": "none", "said": f"returned {said!r}"[:200]}


def answer_to_command(script: str, arguments: tuple[str, ...], files: dict[str, str]) -> dict[str, Any]:
    """What a script says in this process, how it ends, and what it leaves in an empty directory and in the cache."""
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        os.environ["XDG_CACHE_HOME"] = f"{directory}/cache"
        for name, content in files.items():
            Path(name).write_text(content)
        said, status = io.StringIO(), None
        sys.argv = [script, *arguments]
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            try:
                with limited():
                    if script.endswith(".py"):
                        runpy.run_path(str(ROOT / script), run_name="__main__")
                    else:
                        runpy.run_module(script, run_name="__main__", alter_sys=True)
            except SystemExit as stop:
                status = stop.code
            except BaseException as error:
                status = f"{type(error).__name__}: {error}"[:300]
        left = sorted({str(path.relative_to(directory)) for path in Path(directory).rglob("*")} - files.keys())
        changed = [name for name, content in files.items() if Path(name).read_text() != content]
    return {"status": status, "said": said.getvalue(), "left": left + changed}


def main() -> None:
    """Prints the answers."""
    compilations = Compilations()
    if sys.argv[1] == "arguments":
        from tests.faults.bad_arguments import cases

        table = cases()
        compilations.since()
        answers = ({**answer_to_call(case.call), "compiled": compilations.since()} for case in table)
    else:
        from tests.faults.bad_options import COMMANDS

        compilations.since()
        answers = (
            {**answer_to_command(case.script, case.arguments, case.files), "compiled": compilations.since()}
            for case in COMMANDS
        )
    for answer in answers:
        print(json.dumps(answer), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
