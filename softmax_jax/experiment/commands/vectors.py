"""Writes rows with their weights and gradients under every registered method, to compare other programs with."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from softmax_jax.experiment.commands import process
from softmax_jax.experiment.commands.output import check_directory, counted, typed_path
from softmax_jax.experiment.commands.parse import parse
from softmax_jax.files import read_text, write_whole
from softmax_jax.laws import vectors
from softmax_jax.normalizers.registry import METHODS

RUNNER = Path(vectors.__file__).parent / "assets" / "check_vectors.py"


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    directory: Annotated[Path, tyro.conf.Positional]
    """Where to write a JSON file for each method, and check_vectors.py, which compares your functions with them."""


def write_vectors(arguments: Arguments) -> None:
    """Writes the files."""
    check_directory("the directory", arguments.directory)
    for name in METHODS:
        write_whole(arguments.directory / f"{name}.json", vectors.text_of(name))
    write_whole(arguments.directory / RUNNER.name, read_text(RUNNER))
    print(f"wrote {counted(len(METHODS), 'method')} and {RUNNER.name} to {typed_path(arguments.directory)}")


def main() -> None:
    """Runs the command line."""
    with process.command():
        write_vectors(parse(Arguments, description=__doc__, example="softmax-jax vectors vectors"))
