"""A shell for tests: types command lines, of the checkout or of an installed wheel, in one Python that stays open.

A process a line would spend most of its time on imports, and compile everything once more. This file is also the
program of that Python, which has the standard library and what it was installed with.
"""

import contextlib
import io
import json
import os
import runpy
import shlex
import subprocess
import sys
import traceback
import venv
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SCRIPTS = {"fit": "fit_temperature"}
"""Scripts that are not called as their commands are."""
STRICT = {"JAX_NUMPY_DTYPE_PROMOTION": "strict", "JAX_NUMPY_RANK_PROMOTION": "raise", "PYTHONPATH": "", "COLUMNS": "80"}


class Typed(NamedTuple):
    """What a command line said, and its status."""

    status: int
    stdout: str
    stderr: str

    @property
    def following(self) -> str:
        """The command line that is recommended, empty if none is."""
        return self.stdout.partition("\nNext: ")[2].strip()


class Shell:
    """Types command lines in a directory; `python` is that of an environment with the wheel, None for the checkout."""

    def __init__(self, place: Path, python: Path | None = None):
        self.place, self.installed = place, python is not None
        command = [python or sys.executable, "-P", __file__, *([] if self.installed else [ROOT])]
        environment = os.environ | STRICT
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=place, env=environment, stdin=pipe, stdout=pipe, text=True)

    def called(self, command: str) -> list[str]:
        """Returns the words that call a command: those of its script in the checkout, or of the wheel."""
        script = ROOT / f"{SCRIPTS.get(command, command)}.py"
        return ["softmax-jax", command] if self.installed else ["python", str(script)]

    def type(self, line: str | Sequence[str], *more: object) -> Typed:
        """Runs a line, such as one that was printed, or its words, with more words behind it."""
        given = shlex.split(line, comments=True) if isinstance(line, str) else line
        words = [*given, *map(str, more)]
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(words), file=self._process.stdin, flush=True)
        typed = Typed(*json.loads(self._process.stdout.readline()))
        assert "Warning: " not in typed.stderr, typed.stderr
        return typed

    def __enter__(self) -> "Shell":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # which closes its input, and so ends it


def build_wheel(directory: Path) -> Path:
    """Builds the wheel of the checkout into a directory."""
    build = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory)
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


def install(wheel: Path, directory: Path) -> Path:
    """Installs a wheel into a fresh environment, whose other packages are those of this one; returns its Python."""
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    subprocess.run(pip, check=True, capture_output=True)
    (own,) = directory.glob("lib/*/site-packages")
    others = [path for path in map(Path, sys.path) if path.name == "site-packages"]
    (own / "others.pth").write_text("".join(f"{path}\n" for path in others))
    return python


def run(words: list[str]) -> int:
    """Runs a command line in this process, as its script or the installed command does; returns its status."""
    program, *arguments = words
    try:
        if program == "python":
            sys.argv = arguments
            runpy.run_path(str(ROOT / arguments[0]), run_name="__main__")
        else:
            (script,) = entry_points(group="console_scripts", name=program)
            sys.argv = words
            script.load()()
    except SystemExit as end:
        return int(end.code or 0)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def forget_trust() -> None:
    """Forgets which modules the lines so far have named, as a new process would not know them."""
    if modules := sys.modules.get("softmax_jax.normalizers.user_modules"):
        modules.__dict__["_trusted"].clear()


def serve() -> None:
    """Runs each line that comes in, and answers with its status and what it said."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # for what is no Python
    for line in sys.stdin:
        with contextlib.redirect_stdout(io.StringIO()) as stdout, contextlib.redirect_stderr(io.StringIO()) as stderr:
            status = run(json.loads(line))
        print(json.dumps((status, stdout.getvalue(), stderr.getvalue())), file=answers, flush=True)
        forget_trust()


if __name__ == "__main__":
    sys.path[:0] = sys.argv[1:]
    serve()
