"""A run that was just trained, in a path with a blank and an umlaut: each command that is printed can be typed."""

import re
import runpy
import shlex
import sys
from typing import NamedTuple

import pytest

from tests.end_to_end.test_command_lines import ROOT, TINY, script

SMALL = ("--lengths", 4, 16, "--sets", 4)
FEW = ("--normalizers", "softmax", "hardmax")
RUN = "my runs/ä"


class Typed(NamedTuple):
    """What a command line said, and its status."""

    status: int
    stdout: str
    stderr: str


@pytest.fixture
def typed(tmp_path, monkeypatch, capfd):
    """Runs a line of a shell, such as one that was printed, with more options, as Python runs the script it names."""
    monkeypatch.chdir(tmp_path)

    def run(line, *more):
        python, name, *words = shlex.split(line, comments=True)
        assert python == "python"
        monkeypatch.setattr(sys, "argv", [name, *words, *map(str, more)])
        capfd.readouterr()
        try:
            runpy.run_path(str(ROOT / name), run_name="__main__")
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        return Typed(status, *capfd.readouterr())

    return run


@pytest.mark.parametrize(
    "normalizer", [pytest.param("softmax", marks=pytest.mark.full), pytest.param("ssmax", marks=pytest.mark.rare)]
)
def test_every_command_that_is_recommended_can_be_typed(normalizer, typed, tmp_path):
    done = typed(shlex.join(["python", "train.py", "quick", *TINY, "--normalizer", normalizer, "--workdir", RUN]))
    assert done.status == 0, done.stderr
    evaluate = done.stdout.partition("Next: ")[2]
    assert shlex.split(evaluate)[1:] == [str(ROOT / "evaluate.py"), "--checkpoint", RUN]
    shown = typed(evaluate, *SMALL, *FEW)
    assert shown.status == 0, shown.stderr
    page = typed(shlex.join(["python", str(ROOT / "report.py"), RUN]), *SMALL, *FEW, "--output", "page")
    assert page.status == 0, page.stderr
    assert "nothing is fitted to these models yet" in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    fit = shown.stdout.partition("Next: ")[2]
    assert page.stdout.partition("Next: ")[2] == fit
    lacking = typed(evaluate, *SMALL, "--normalizers", "adaptive_refit")
    assert lacking.status == 2
    assert re.findall(r"run (fit_temperature\.py .*)", lacking.stderr)
    fitted = typed(fit, *SMALL, "--degree", 1, "--criterion", "inputs")
    assert fitted.status == 0, fitted.stderr
    made = {path.name for path in (tmp_path / RUN / "temperature").iterdir()}
    assert made == {"comparison.csv", "entropy.png", "entropy.svg", "settings.json"}
    refit = typed(evaluate, *SMALL, "--normalizers", "softmax", "adaptive_refit")
    assert refit.status == 0, refit.stderr
    report = refit.stdout.partition("Next: ")[2]
    assert shlex.split(report, comments=True)[1:] == [str(ROOT / "report.py"), RUN]


def test_a_locale_that_knows_no_umlaut_is_named_and_the_checkpoint_is_not(tmp_path, monkeypatch):
    """Nobody is told to remove a checkpoint that is whole."""
    (tmp_path / RUN).mkdir(parents=True)
    for name, value in {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}.items():
        monkeypatch.setenv(name, value)
    done = script("evaluate.py", "--checkpoint", RUN, *SMALL, cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(
        r"error: .*/my runs/ä must be a name in UTF-8, and Python reads names in ascii here: set LC_ALL=C\.UTF-8.*\n",
        done.stderr,
    )
