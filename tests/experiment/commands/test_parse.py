"""What a command line says of mistakes, and how it reads the rest."""

import dataclasses
import sys
from importlib import import_module
from pathlib import Path
from typing import Literal

import pytest

from softmax_jax.experiment.commands import __main__ as program
from softmax_jax.experiment.commands.parse import parse
from softmax_jax.experiment.commands.process import KEPT, CompiledPrograms


@dataclasses.dataclass(frozen=True)
class Arguments:
    runs: tuple[Path, ...]
    output: Path = Path("out")
    steps: int = 3
    numbers: dict[str, float] = dataclasses.field(default_factory=dict)
    kind: Literal["fresh", "notebook"] = "fresh"
    """A help of two lines, whose second
    `line` goes on where the first one ends."""
    compiled: CompiledPrograms = KEPT

    def __post_init__(self):
        if self.steps < 0:
            raise ValueError("--steps is\n-1: give more")


RUNS = ["--runs", "x"]


def test_a_tilde_is_the_home_of_the_user(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    for word, path in (("~/x", "/home/somebody/x"), ("~", "/home/somebody"), ("a~/x", "a~/x")):
        assert parse(Arguments, [*RUNS, f"--output={word}"]).output == Path(path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--stpes", "3"], "Unknown option --stpes. Did you mean --steps?"),
        (["--compilation-cash=x"], "Unknown option --compilation-cash. Did you mean --compilation-cache?"),
        (["--quite-another"], "Unknown option --quite-another."),
        (["--steps", "3", "more"], "more belongs to no option: values must follow the name of one, as in --name value"),
        (["--steps"], "--steps has no value: it must be followed by one"),
        (["--steps", "x"], "--steps is 'x': it must be a whole number, written as in 128"),
        (["--numbers", "b1", "x"], "--numbers is 'b1 x': it must be names, each with a number, written as in 0.001"),
        (["--kind", "frsh"], "--kind is 'frsh': did you mean 'fresh'? it must be one of 'fresh', 'notebook'"),
        (["--steps", "1", "--steps=2"], "--steps is given twice, with or without --no: it must be given once, so "),
        (["--steps=-1"], "--steps is -1: give more"),
        ([], "--runs is missing: it must be given"),
    ],
)
def test_a_mistake_is_one_line_with_its_value_and_the_remedy(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(Arguments, words if words == [] else RUNS + words)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err[: len(said) + 7]) == ("", 1, f"error: {said}")


def test_a_help_of_two_lines_fills_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        parse(Arguments, ["--help"])
    assert "whose second `line` goes on where" in capsys.readouterr().out


def run(*words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/softmax-jax", *words])
    program.main()


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_every_command_is_listed_with_its_summary(words, monkeypatch, capsys):
    run(*words, monkeypatch=monkeypatch)
    listed = capsys.readouterr().out
    for command in program.COMMANDS:
        summary = import_module(f"softmax_jax.experiment.commands.{program.module_of(command)}").__doc__ or ""
        assert f"  {command:<16}{summary.splitlines()[0]}\n" in listed


def test_another_command_is_refused_with_the_nearest(monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        run("trian", monkeypatch=monkeypatch)
    said = "error: Unknown command trian. Did you mean train? The first argument must be one of train, evaluate"
    assert (ended.value.code, capsys.readouterr().err[: len(said)]) == (2, said)


@pytest.mark.parametrize("command", ["evaluate", "language-model"])
def test_the_help_of_a_command_begins_with_an_example_and_says_its_name(command, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(command, "--help", monkeypatch=monkeypatch)
    first, _, usage = capsys.readouterr().out.split("\n", 2)
    assert first.startswith(f"example: softmax-jax {command} ")
    assert usage.startswith(f"usage: softmax-jax {command} [-h]")
