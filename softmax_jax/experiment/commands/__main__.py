"""softmax-jax COMMAND: the command lines of an installed package."""

import importlib
import os
import sys
from pathlib import Path

from softmax_jax.experiment.commands.output import ended_by_reader, unknown
from softmax_jax.files import first_line_of_docstring
from softmax_jax.refusal import EXPERIMENT, MissingPackage

COMMANDS = ("train", "evaluate", "fit", "shootout", "rank", "report", "check", "vectors", "language-model")
"""The modules beside this one, each with a function `main`; `-` in a name is `_` in that of its module."""


@ended_by_reader()
def main() -> None:
    """Runs the command that the first argument names, with the others as its arguments; --help lists the commands."""
    name, *others = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        summaries = (
            f"  {command:<16}{first_line_of_docstring(Path(__file__).with_name(f'{module_of(command)}.py'))}"
            for command in COMMANDS
        )
        print("usage: softmax-jax COMMAND [OPTIONS]", "", *summaries, "", sep="\n")
        print("softmax-jax COMMAND --help lists the options of one.")
        return
    if name not in COMMANDS:
        rule = f"The first argument must be one of {', '.join(COMMANDS)}"
        print(f"error: {unknown('command', name, COMMANDS)} {rule} (--help shows every command)", file=sys.stderr)
        raise SystemExit(2)
    try:
        command = importlib.import_module(f"softmax_jax.experiment.commands.{module_of(name)}")
    except ModuleNotFoundError as error:
        print(f"error: {MissingPackage(f'softmax-jax {name}', error.name, EXPERIMENT)}", file=sys.stderr)
        raise SystemExit(2) from None
    sys.argv = [f"softmax-jax {name}", *others]
    command.main()


def module_of(command: str) -> str:
    """Returns the name of a command's module."""
    return command.replace("-", "_")


def leave_out_directory() -> None:
    """Takes the working directory off the path, where `python -m` puts it first, unless this package lies there.

    Python itself has looked there for all that was imported so far: only `python -P -m` keeps it from that.
    """
    if sys.path[0] == os.getcwd() != str(Path(__file__).parents[3]):
        del sys.path[0]


if __name__ == "__main__":
    leave_out_directory()
    main()
