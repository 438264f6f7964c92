"""Checks which promises a normalizer keeps, with a counterexample for each that it breaks."""

import dataclasses
from typing import Annotated

import tyro
from rich.padding import Padding
from rich.text import Text

from softmax_jax.experiment.commands import process
from softmax_jax.experiment.commands.output import counted
from softmax_jax.experiment.commands.parse import each_once, parse
from softmax_jax.experiment.commands.process import KEPT
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.laws.checker import Checked, check
from softmax_jax.normalizers.registry import all_names, normalizer

STYLES = {"BROKEN": "bold red", "holds": "green"}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    normalizers: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Names, with numbers where wanted: "ssmax(s=0.43)"; your own as my_module:relu; or "all" of them."""

    def __post_init__(self) -> None:
        each_once("the list of normalizers", self.normalizers)


def print_checked(name: str, checked: Checked) -> None:
    """Prints each promise, what is said of it below, and the verdict in one line."""
    console, width = plain_console(), max(len(promise.name) for promise in checked)
    for promise in checked:
        console.print(Text.assemble(f"{promise.name:<{width}}  ", (promise.verdict, STYLES.get(promise.verdict, ""))))
        if promise.evidence:
            console.print(Padding(Text(promise.evidence), (0, 0, 0, 4)))
    console.print(f"{name} {verdict(checked)}")


def verdict(checked: Checked) -> str:
    """Says in one line which promises are kept, and which properties are neither claimed nor held."""
    if checked.broken:
        return f"breaks {counted(len(checked.broken), 'promise')}"
    lacking = "; ".join(promise.name for promise in checked.lacking)
    return f"keeps every promise that it makes{f', but has not, and does not promise: {lacking}' if lacking else ''}"


def check_normalizers(arguments: Arguments) -> None:
    """Checks, prints; ends with status 1 if a promise is broken."""
    KEPT.keep()
    names = all_names() if arguments.normalizers == ("all",) else arguments.normalizers
    normalizers = {name: normalizer(name) for name in names}
    broken = 0
    for name, method in normalizers.items():
        checked = check(method)
        print_checked(name, checked)
        broken += len(checked.broken)
    if broken:
        raise SystemExit(1)


def main() -> None:
    """Runs the command line."""
    with process.command():
        check_normalizers(parse(Arguments, description=__doc__, example="softmax-jax check entmax15 my_module:mine"))
