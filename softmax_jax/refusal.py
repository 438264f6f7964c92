"""The exceptions for bad input, for a package that is not installed, and for a loss that is not finite."""

from importlib.util import find_spec

EXPERIMENT = "'softmax-jax[experiment]'"
"""What pip takes to install all that training, evaluation, charts and commands need."""


class Refusal(ValueError):
    """Says in one line what was given, the rule that it breaks, and the remedy.

    Commands print it and end with status 2. Every other exception is a defect of the program and keeps its traceback.
    """


class WrongType(Refusal, TypeError):
    """Refuses a value of a wrong type. It is a TypeError too, as callers of a library expect."""


class MissingPackage(Refusal, ModuleNotFoundError):
    """Says that a use needs a package which is not installed, and what to install."""

    def __init__(self, use: str, package: str | None, install: str):
        super().__init__(f"{use} needs {package}, which is not installed: pip install {install}")
        self.name = package


def require(use: str, *packages: str, install: str = EXPERIMENT) -> None:
    """Raises MissingPackage unless these packages are installed; imports none of them."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingPackage(use, package, install)


class NotFiniteError(ArithmeticError):
    """Says that the loss of a seed became infinite or NaN. Commands print it and end with status 1."""
