"""Draws in a process of its own: under a limit of memory the drawing library ends whatever process it is in."""

import atexit
import base64
import contextlib
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

from softmax_jax.refusal import Refusal

DRAWER = Path(__file__).parent / "assets" / "draw.py"


class Drawer:
    """A process that calls functions of vl_convert; it starts with the first call, and again after it has ended."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def call(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        """Returns what vl_convert's function of that name gives. Raises Refusal if the process ends instead."""
        with self._lock:
            process = self.process = self.process or self._started()
            requests, answers = ends_of(process)
            try:
                requests.write(f"{json.dumps((name, arguments, keywords))}\n".encode())
                requests.flush()
                answer = json.loads(answers.readline())
            except (BrokenPipeError, json.JSONDecodeError):  # of no line, or of the start of one
                raise Refusal(
                    f"the drawing library vl_convert was ended {self.end()}, as under a limit of virtual memory "
                    "(ulimit -v): lift it and repeat the command"
                ) from None
            except BaseException:
                self.end()  # or the next call would read this one's answer
                raise
        if error := answer.get("error"):
            raise RuntimeError(f"vl_convert.{name} failed:\n{error}")
        return answer["text"] if "text" in answer else base64.b64decode(answer["base64"])

    def _started(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-P", str(DRAWER)]  # -P: no module beside that file is taken for another
        atexit.register(self.end)
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)

    def end(self) -> str:
        """Ends the process, if there is one; returns by what it had ended."""
        process, self.process = self.process, None
        atexit.unregister(self.end)
        if process is None:
            return ""
        requests, answers = ends_of(process)
        with contextlib.suppress(BrokenPipeError):
            requests.close()
        try:
            process.wait(1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        answers.close()
        status = process.returncode
        return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"


def ends_of(process: "subprocess.Popen[bytes]") -> tuple[IO[bytes], IO[bytes]]:
    """Returns what a process reads from, and what it writes to."""
    assert process.stdin
    assert process.stdout
    return process.stdin, process.stdout


draw = Drawer().call
"""Calls a function of vl_convert by its name, as `Drawer.call` says."""
