"""Draws charts for the process that started it, which survives if the drawing library ends this one.

Each line on stdin is a request in JSON: the name of a function of vl_convert, its arguments, its keywords. The line on
stdout that answers it holds a text, bytes in base64, or the text of an error.
"""

import base64
import json
import os
import signal
import sys
import traceback

import vl_convert


def answer(name, arguments, keywords):
    """Returns what JSON has of the result of a function, or of its error."""
    try:
        drawn = getattr(vl_convert, name)(*arguments, **keywords)
    except Exception:
        return {"error": traceback.format_exc()}
    return {"text": drawn} if isinstance(drawn, str) else {"base64": base64.b64encode(drawn).decode()}


def main():
    """Answers requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever the library prints is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to both; the other process decides
    for request in sys.stdin.buffer:
        print(json.dumps(answer(*json.loads(request))), file=answers, flush=True)


if __name__ == "__main__":
    main()
