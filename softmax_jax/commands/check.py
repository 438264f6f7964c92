"""Checks which promises a normalizer keeps, with a counterexample for each that it breaks."""

import dataclasses
from typing import Annotated

import tyro
from rich.table import Table
from rich.text import Text

from softmax_jax.commands import options
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.training.progress import plain_console
from softmax_jax.transforms.check import Checked, check

STYLES = {"BROKEN": "bold red", "holds": "green"}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    normalizers: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Names, with numbers where wanted: "ssmax(s=0.43)"; your own as my_module:relu; or "all" of them."""

    def __post_init__(self) -> None:
        options.each_once("the list of normalizers", self.normalizers)


def print_checked(name: str, checked: Checked) -> None:
    """Prints a table of promises, and the verdict in one line."""
    table = Table("promise", "", "counterexample, or what was measured", box=None, pad_edge=False)
    for one in checked:
        table.add_row(one.name, Text(one.verdict, STYLES.get(one.verdict, "")), one.said)
    console, broken = plain_console(), len(checked.broken)
    console.print(table)
    verdict = f"breaks {options.counted(broken, 'promise')}" if broken else "keeps every promise that it makes"
    console.print(f"{name} {verdict}")


def run(asked: Arguments) -> None:
    """Checks, prints; ends with status 1 if a promise is broken."""
    options.KEPT.keep()
    names = METHODS if asked.normalizers == ("all",) else asked.normalizers
    normalizers = {name: normalizer(name) for name in names}
    broken = 0
    for name, one in normalizers.items():
        checked = check(one)
        print_checked(name, checked)
        broken += len(checked.broken)
    if broken:
        raise SystemExit(1)


def main() -> None:
    """Runs the command line."""
    options.run(Arguments, __doc__, run, "softmax-jax check entmax15 my_module:mine")
