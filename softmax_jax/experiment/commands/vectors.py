"""Writes rows with their weights and gradients under every registered method, to compare other programs with."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from softmax_jax.experiment.commands import options
from softmax_jax.files import read_text, write_whole
from softmax_jax.laws import vectors
from softmax_jax.normalizers.registry import METHODS

RUNNER = Path(vectors.__file__).parent / "assets" / "check_vectors.py"


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    directory: Annotated[Path, tyro.conf.Positional]
    """Where to write a JSON file for each method, and check_vectors.py, which compares your functions with them."""


def write_vectors(asked: Arguments) -> None:
    """Writes the files."""
    options.check_directory("the directory", asked.directory)
    for name in METHODS:
        write_whole(asked.directory / f"{name}.json", vectors.text_of(name))
    write_whole(asked.directory / RUNNER.name, read_text(RUNNER))
    print(f"wrote {options.counted(len(METHODS), 'method')} and {RUNNER.name} to {options.shown(asked.directory)}")


def main() -> None:
    """Runs the command line."""
    options.run(Arguments, __doc__, write_vectors, "softmax-jax vectors vectors")
