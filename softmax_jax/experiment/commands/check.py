"""Checks which promises a normalizer keeps, with a counterexample for each that it breaks."""

import dataclasses
from typing import Annotated

import tyro
from rich.padding import Padding
from rich.text import Text

from softmax_jax.experiment.commands import options
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.laws.checker import Checked, check
from softmax_jax.normalizers.registry import METHODS, normalizer

STYLES = {"BROKEN": "bold red", "holds": "green"}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    normalizers: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Names, with numbers where wanted: "ssmax(s=0.43)"; your own as my_module:relu; or "all" of them."""

    def __post_init__(self) -> None:
        options.each_once("the list of normalizers", self.normalizers)


def print_checked(name: str, checked: Checked) -> None:
    """Prints each promise, what is said of it below, and the verdict in one line."""
    console, width = plain_console(), max(len(one.name) for one in checked)
    for one in checked:
        console.print(Text.assemble(f"{one.name:<{width}}  ", (one.verdict, STYLES.get(one.verdict, ""))))
        if one.evidence:
            console.print(Padding(Text(one.evidence), (0, 0, 0, 4)))
    console.print(f"{name} {verdict(checked)}")


def verdict(checked: Checked) -> str:
    """Says in one line which promises are kept, and which properties are neither claimed nor there."""
    if checked.broken:
        return f"breaks {options.counted(len(checked.broken), 'promise')}"
    lacking = "; ".join(one.name for one in checked.lacking)
    return f"keeps every promise that it makes{f', but has not, and does not promise: {lacking}' if lacking else ''}"


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
