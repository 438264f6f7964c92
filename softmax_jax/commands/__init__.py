"""The command lines."""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def ended_by_reader() -> Iterator[None]:
    """Ends the process quietly where what reads its output, such as `head`, reads no further."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.pipe()[1], sys.stdout.fileno())  # for what Python still writes at the end
        raise SystemExit(141) from None  # as a shell says of other commands that this ends


def program(command: str) -> str:
    """Returns how a command is called: as this one was, from the installed package or as a script of the repository."""
    script = "fit_temperature" if command == "fit" else command
    return f"softmax-jax {command}" if sys.argv[0].startswith("softmax-jax") else f"python {script}.py"
