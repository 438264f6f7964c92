"""Draws charts for the process that started it, which survives if the drawing library ends this one.

Each request on stdin is a pickled (name of a function of vl_convert, its arguments, its keywords); the answer on stdout
is the pickled result, or the text of an error.
"""

import os
import pickle
import signal
import sys
import traceback

import vl_convert

answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # whatever the library prints is no answer
signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to both; the other process decides
while True:
    try:
        name, arguments, keywords = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    try:
        answer = True, getattr(vl_convert, name)(*arguments, **keywords)
    except Exception:
        answer = False, traceback.format_exc()
    pickle.dump(answer, answers)
    answers.flush()
