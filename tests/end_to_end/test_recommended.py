"""A run that was just trained, in a path with a blank and an umlaut: each command that is printed can be typed."""

import re
import shlex

import pytest

from tests.end_to_end.test_command_lines import ROOT, TINY, script

SMALL = ("--lengths", 4, 16, "--sets", 4)
FEW = ("--normalizers", "softmax", "hardmax")
RUN = "my runs/ä"


def typed(line, *more, cwd):
    """Types a command as it was printed, with further options that make it small."""
    python, name, *words = shlex.split(line, comments=True)
    assert python == "python"
    done = script(name, *words, *more, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "normalizer", [pytest.param("softmax", marks=pytest.mark.full), pytest.param("ssmax", marks=pytest.mark.rare)]
)
def test_every_command_that_is_recommended_can_be_typed(normalizer, tmp_path):
    done = script("train.py", "quick", *TINY, "--normalizer", normalizer, "--workdir", RUN, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    evaluate = done.stdout.partition("evaluate with: ")[2]
    assert shlex.split(evaluate)[1:] == [str(ROOT / "evaluate.py"), "--checkpoint", RUN]
    shown = typed(evaluate, *SMALL, *FEW, cwd=tmp_path)
    following = shown.partition("Next: ")[2]
    if "paper_float32" in following:  # of a run that gains little, whose models come from the repository
        following = typed(following, *SMALL, *FEW, cwd=tmp_path).partition("Next: ")[2]
    assert shlex.split(following)[1] == str(ROOT / "report.py")
    if RUN not in following:  # but of the models of the repository
        typed(following, *SMALL, "--normalizers", "softmax", cwd=tmp_path)
    page = script("report.py", RUN, *SMALL, *FEW, "--output", "page", cwd=tmp_path)
    assert page.returncode == 0, page.stderr
    assert "nothing is fitted to these models yet" in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    lacking = script("evaluate.py", "--checkpoint", RUN, *SMALL, "--normalizers", "adaptive_refit", cwd=tmp_path)
    assert lacking.returncode == 2
    (remedy,) = re.findall(r"run (fit_temperature\.py .*)", lacking.stderr)
    name, *words = shlex.split(remedy)
    fitted = script(name, *words, *SMALL, "--degree", 1, "--criterion", "inputs", cwd=tmp_path)
    assert fitted.returncode == 0, fitted.stderr
    typed(evaluate, *SMALL, "--normalizers", "softmax", "adaptive_refit", cwd=tmp_path)


def test_a_locale_that_knows_no_umlaut_is_named_and_the_checkpoint_is_not(tmp_path, monkeypatch):
    """Nobody is told to remove a checkpoint that is whole."""
    done = script("train.py", "quick", *TINY, "--workdir", RUN, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name, value in {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}.items():
        monkeypatch.setenv(name, value)
    done = script("evaluate.py", "--checkpoint", RUN, *SMALL, cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(
        r"error: .*/my runs/ä must be a name in UTF-8, and Python reads names in ascii here: set LC_ALL=C\.UTF-8.*\n",
        done.stderr,
    )
