"""The exceptions for bad input, and for a loss that is not finite."""


class Refusal(ValueError):
    """Says in one line what was given, the rule that it breaks, and the remedy.

    Commands print it and end with status 2. Every other exception is a defect of the program and keeps its traceback.
    """


class WrongType(Refusal, TypeError):
    """Refuses a value of a wrong type. It is a TypeError too, as callers of a library expect."""


class NotFiniteError(ArithmeticError):
    """Says that the loss of a seed became infinite or NaN. Commands print it and end with status 1."""
