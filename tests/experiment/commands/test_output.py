"""Where results go, and what commands print to go on with."""

import dataclasses
import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from softmax_jax.experiment import program
from softmax_jax.experiment.commands import evaluate, fit
from softmax_jax.experiment.commands.output import print_any_letter, results_of
from softmax_jax.experiment.commands.parse import parse
from softmax_jax.experiment.measures.runs import Loaded, named_normalizers
from softmax_jax.experiment.tasks.retrieval import Sort
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.run_directory import SHIPPED
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.refusal import Refusal
from softmax_jax.temperature import TemperatureFit


def test_results_never_go_over_others_and_the_newest_is_linked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outputs = []
    for number in range(2):  # in the same second, as far as they can
        with results_of("evaluate", None) as output:
            (output / "found").write_text(str(number))
        outputs.append(output)
        assert Path("results/evaluate/latest/found").read_text() == str(number)
    assert [(output / "found").read_text() for output in outputs] == ["0", "1"]
    assert all(re.fullmatch(r"results/evaluate/\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d", str(output)) for output in outputs)
    with results_of("evaluate", Path("elsewhere")) as output:
        assert output == Path("elsewhere")
    assert Path("results/evaluate/latest").resolve() == outputs[1].resolve()


def test_a_failure_leaves_no_results_and_a_place_that_they_cannot_go_to_is_refused_before_the_work(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ZeroDivisionError), results_of("report", None):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    Path("results").mkdir()
    Path("results/evaluate").touch()
    rule = "it must be a directory to write to, and"
    with pytest.raises(Refusal, match=f"--output is results/evaluate: {rule} this is a file; name another$"):
        evaluate.Arguments()
    Path("a.txt").touch()
    with pytest.raises(Refusal, match=rf"--output is a\.txt/b/c: {rule} a\.txt is a file; name another$"):
        evaluate.Arguments(output=Path("a.txt/b/c"))
    with pytest.raises(Refusal, match=r"results/evaluate/.* cannot be written"), results_of("evaluate", None):
        raise AssertionError("unreachable")


@pytest.mark.parametrize("name", ["läufe", "it's $HOME"])
def test_the_commands_that_are_printed_name_their_path_as_a_shell_reads_it(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["x.py"])
    run = Loaded("x", tmp_path / name, Config(Sort()), {}, {})
    following = evaluate.next_step([Path(f"my runs/{name}"), tmp_path / name], run)
    assert shlex.split(following, comments=True) == ["python", "report.py", f"my runs/{name}", name]
    *evaluation, fitted = shlex.split(fit.evaluation_of(Path(f"my runs/{name}"), Path(name, "temperature.json")))
    assert evaluation == ["python", "evaluate.py", "--checkpoint", f"my runs/{name}", "--normalizers", "softmax"]
    with pytest.raises(Refusal, match=r"temperature\.json does not exist: name a file") as refused:
        normalizer(fitted)
    assert str(refused.value).startswith(f"{name}/")
    with pytest.raises(Refusal, match="there is no such fit") as refused:
        named_normalizers(["adaptive_refit"], tmp_path / name, {})
    command = shlex.split(str(refused.value).partition(": run ")[2])
    assert command[2:] == ["--checkpoint", str(tmp_path / name), "--output", str(tmp_path)]


BENT = TemperatureFit.load(SHIPPED / "paper" / "temperature.json")
FLAT = dataclasses.replace(BENT, coefficients=[0.1, 0.5])


def test_a_fit_that_changes_nothing_is_followed_by_one_of_more_sets_and_then_by_a_report(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x.py"])
    path = Path("my runs/x/temperature.json")
    for words, sets, following in (
        ([], 64, "python fit_temperature.py --sets 256"),
        (["--quick"], 64, "python fit_temperature.py --sets 256 --quick"),
        (
            ["--checkpoint", "my runs/x", "--lengths", "4", "16", "--sets", "3", "--trust-code", "--quick"],
            3,
            "python fit_temperature.py --checkpoint 'my runs/x' --lengths 4 16 --sets 12 --quick",
        ),
        (["--checkpoint", "my runs/x", "--sets", "256"], 256, "python report.py 'my runs/x'"),
    ):
        arguments = parse(fit.Arguments, words, quick=fit.QUICK)
        assert fit.next_step(arguments, FLAT, path, sets) == following
        again = shlex.split(following)
        if "report.py" not in again:
            typed = parse(fit.Arguments, again[2:], quick=fit.QUICK)
            assert typed == dataclasses.replace(arguments, sets=4 * sets, trust_code=False)
        assert fit.next_step(arguments, BENT, path, sets) == fit.evaluation_of(arguments.checkpoint, path)


def test_a_script_in_another_place_names_the_one_beside_it(tmp_path, monkeypatch):
    place = tmp_path / "my code"
    place.mkdir()
    (place / "fit_temperature.py").touch()
    monkeypatch.setattr(sys, "argv", [str(place / "train.py")])
    assert shlex.split(program("fit")) == ["python", str(place / "fit_temperature.py")]
    assert program("evaluate") == "python evaluate.py"


@pytest.mark.parametrize(
    ("coding", "expected"),
    [("ascii", "±β läufe".encode()), ("latin-1", b"\xb1? l\xe4ufe"), ("utf-8", "±β läufe".encode())],
)
def test_any_letter_can_be_printed_in_any_locale(coding, expected, monkeypatch):
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, coding, "strict"))
    print_any_letter()
    print("±β läufe", end="", flush=True)
    assert printed.getvalue() == expected
