"""The exception for bad input that people really give."""


class Refusal(ValueError):
    """Says in one line what was given, the rule that it breaks, and the remedy.

    Commands print it and end with status 2. Every other exception is a defect of the program and keeps its traceback.
    """
