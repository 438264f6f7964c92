"""The command lines."""

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from softmax_jax.files import typed


@contextlib.contextmanager
def ended_by_reader() -> Iterator[None]:
    """Ends the process quietly where what reads its output, such as `head`, reads no further."""
    print_any_letter()
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.pipe()[1], sys.stdout.fileno())  # for what Python still writes at the end
        raise SystemExit(141) from None  # as a shell says of other commands that this ends


def print_any_letter() -> None:
    """Lets letters be printed that the locale lacks: as UTF-8 where it knows ASCII only, else as a question mark.

    In the first case it is what Python does itself unless PYTHONUTF8=0 forbids it.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        coding = codecs.lookup(stream.encoding).name
        if coding == "ascii":
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
        elif coding != "utf-8":
            stream.reconfigure(errors="replace")


def program(command: str) -> str:
    """Returns how a command is called: as this one was, from the installed package or as a script of the repository."""
    if sys.argv[0].startswith("softmax-jax"):
        return f"softmax-jax {command}"
    script = Path(sys.argv[0]).with_name(f"{'fit_temperature' if command == 'fit' else command}.py")
    return f"python {typed(script if script.exists() else script.name)}"
