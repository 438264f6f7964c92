"""The command lines."""

import contextlib
import os
import sys
from collections.abc import Iterator

STATUS_OF_PIPE = 141
"""What a shell says of a command that was ended because nobody read its output."""


@contextlib.contextmanager
def ended_by_reader() -> Iterator[None]:
    """Ends the process quietly where what reads its output, such as `head`, reads no further."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python still writes at the end
        raise SystemExit(STATUS_OF_PIPE) from None


def program(command: str) -> str:
    """Returns how a command is called: as this one was, from the installed package or as a script of the repository."""
    script = "fit_temperature" if command == "fit" else command
    return f"softmax-jax {command}" if sys.argv[0].startswith("softmax-jax") else f"python {script}.py"
