"""A run that was just trained, in a path with a blank and an umlaut: each command that is printed can be typed."""

import re
import shlex

import pytest

from tests.end_to_end.test_command_lines import TINY, script

SMALL = ("--lengths", 4, 16, "--sets", 4)
FEW = ("--normalizers", "softmax", "hardmax")
RUN = "my runs/ä"


@pytest.mark.parametrize(
    ("shell", "normalizer"),
    [
        pytest.param("checkout", "softmax", marks=pytest.mark.full),
        pytest.param("wheel", "softmax", marks=pytest.mark.rare),
        pytest.param("checkout", "ssmax", marks=pytest.mark.rare),
    ],
    indirect=["shell"],
)
def test_every_command_that_is_recommended_can_be_typed(shell, normalizer):
    done = shell.type(shell.called("train"), "quick", *TINY, "--normalizer", normalizer, "--workdir", RUN)
    assert done.status == 0, done.stderr
    evaluate = done.following
    assert shlex.split(evaluate) == [*shell.called("evaluate"), "--checkpoint", RUN]
    shown = shell.type(evaluate, *SMALL, *FEW)
    assert shown.status == 0, shown.stderr
    page = shell.type(shell.called("report"), RUN, *SMALL, *FEW, "--output", "page")
    assert page.status == 0, page.stderr
    assert "nothing is fitted to these models yet" in (shell.place / "page" / "index.html").read_text(encoding="utf-8")
    fit = shown.following
    assert page.following == fit
    lacking = shell.type(evaluate, *SMALL, "--normalizers", "adaptive_refit")
    assert lacking.status == 2
    assert shlex.split(lacking.stderr.partition(": run ")[2]) == shlex.split(fit, comments=True)
    fitted = shell.type(fit, *SMALL, "--degree", 1, "--criterion", "inputs")
    assert fitted.status == 0, fitted.stderr
    made = {path.name for path in (shell.place / RUN / "temperature").iterdir()}
    assert made == {"comparison.csv", "entropy.png", "entropy.svg", "settings.json"}
    refit = shell.type(evaluate, *SMALL, "--normalizers", "softmax", "adaptive_refit")
    assert refit.status == 0, refit.stderr
    assert shlex.split(refit.following, comments=True) == [*shell.called("report"), RUN]


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
