"""The scripts as a user runs them."""

import ast
import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = ["--steps", "20", "--chunk", "10", "--batch", "8", "--min-items", "2", "--max-items", "3", "--width", "8"]


def script(name, *arguments, cwd):
    """Runs a script on the devices of the tests, so that a program that these have compiled is not compiled again."""
    command = [sys.executable, ROOT / name, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    done = script("train.py", "quick", *TINY, "--seeds", "2", "--workdir", path / "x", cwd=path)
    assert done.returncode == 0, done.stderr
    assert "step 20/20" in done.stdout
    return path / "x"


def test_train_then_evaluate(trained, tmp_path):
    names = ["softmax", "ssmax(s=0.43)", "temperature(0.2)"]
    done = script(
        "evaluate.py",
        *("--checkpoint", trained, "--lengths", 4, 16, "--sets", 8, "--output", tmp_path / "out"),
        *("--normalizers", *names, "--key", 7, "--matmul", "bfloat16", "--paper", "one-column"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    wrote, *table, picture, following = [line for line in done.stdout.splitlines() if line]
    assert wrote.startswith("evaluated 2 seeds, 8 sets of each length, in ")
    assert table[0].split() == ["items", "4", "16"]
    assert [line.split(": ")[0] for line in table if line.startswith(("What ", "The paper"))] == [
        "What falls",
        "What helps",
    ]
    assert re.fullmatch(r"Picture: \S*accuracy\.png, with evaluation\.csv, .* beside it", picture)
    assert following.startswith("Next: python ")
    first, *by_length = done.stderr.splitlines()
    assert first == f"measuring {trained}: 2 seeds under {', '.join(names)}; items 4 16"
    expected_lines = [f"measuring n = {n} ({place} of 2): % right:" for place, n in enumerate((4, 16), 1)]
    assert [line.split(" softmax")[0] for line in by_length if "so far" not in line] == expected_lines
    with (tmp_path / "out" / "evaluation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["normalizer", "n", "seed", "accuracy", "loss", "entropy", "max_weight", "calibration"]
    expected = {(name, n, seed) for name in names for n in ("4", "16") for seed in ("0", "1")}
    assert {(row["normalizer"], row["n"], row["seed"]) for row in rows} == expected
    summary = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert summary["settings"]["normalizers"] == names
    assert (summary["settings"]["key"], summary["settings"]["models"]["x"]["matmul"]) == (7, "bfloat16")
    assert {"settings", "versions", "summary", "found"} == set(summary)
    written = {"evaluation.csv", "evaluation.json", "accuracy.png", "accuracy.svg", "paper"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == written
    for_print = {path.name for path in (tmp_path / "out" / "paper").iterdir()}
    assert for_print == {f"accuracy.{suffix}" for suffix in ("pdf", "svg", "txt")}


@pytest.mark.full
def test_several_runs_are_one_table_one_chart_and_one_file(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "y", ignore=shutil.ignore_patterns("checkpoints"))
    names = ("--lengths", 4, 16, "--sets", 8, "--normalizers", "softmax", "hardmax")
    done = script("evaluate.py", "--checkpoint", trained, "y", *names, "--output", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(f"\n{run}: {name}" in done.stdout for run in "xy" for name in ("softmax", "What falls: "))
    with (tmp_path / "out" / "evaluation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["normalizer"]) for row in rows[::8]] == [("x", "softmax"), ("y", "softmax")]
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"evaluation.csv", "evaluation.json", "accuracy.png", "accuracy.svg"}


@pytest.mark.rare
def test_a_report_of_two_runs_writes_its_page_its_charts_and_their_data(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    sizes = ("--lengths", 16, "--sets", 8, "--normalizers", "softmax", "hardmax")
    done = script("report.py", trained, "copy", *sizes, "--output", "out", "--paper", "one-column", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "drawing playground" in done.stderr
    figures = {"accuracy", "dispersion", "attention_maps", "entropy", "resolution", "losses", "playground"}
    written = {f"{name}.{suffix}" for name in figures for suffix in ("csv", "png", "svg")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == written | {"index.html", "settings.json", "paper"}
    assert len(list((tmp_path / "out" / "paper").iterdir())) == 3 * len(figures)
    assert "Page: out/index.html" in done.stdout
    assert "Next: python " in done.stdout
    page = (tmp_path / "out" / "index.html").read_text()
    assert len(page) < 5e6
    assert all(f'href="{name}"' in page for name in written)
    for run in ("x", "copy"):
        facts = f'<h3>{run}</h3>\n\n<dl class="facts">\n<dt>What falls</dt><dd>'
        assert f"{facts}Trained on sets of at most 3 items" in page
    with (tmp_path / "out" / "accuracy.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["run"], row["normalizer"], row["n"], row["seed"]) for row in rows} == {
        (run, name, "16", seed) for run in ("x", "copy") for name in ("softmax", "hardmax") for seed in ("0", "1")
    }


@pytest.mark.full
def test_a_reader_that_stops_ends_a_command_quietly(tmp_path):
    command = f"{sys.executable} {ROOT / 'evaluate.py'} --help | true"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""


HELP = """
import contextlib, io, runpy, sys
for words in sys.stdin.read().splitlines():
    said, (command, *arguments) = io.StringIO(), words.split()
    sys.argv = [command, *arguments, "--help"]
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        run = runpy.run_path if command.endswith(".py") else runpy.run_module
        run(command, run_name="__main__")
    print(repr((words, said.getvalue())))
"""
COMMANDS = ("train.py quick", "train.py", "evaluate.py", "fit_temperature.py", "shootout.py", "report.py")
MODULES = ("studies.ablation", "benchmarks.all")


@pytest.mark.full
def test_help_shows_every_setting_and_no_example_of_python_and_no_default_that_is_nothing():
    asked = "\n".join(COMMANDS + MODULES)
    done = subprocess.run(
        [sys.executable, "-c", HELP], input=asked, cwd=ROOT, capture_output=True, text=True, check=True
    )
    answers = dict(map(ast.literal_eval, done.stdout.splitlines()))
    assert list(answers) == [*COMMANDS, *MODULES]
    assert all(word in answers["train.py"] for word in ("paper", "Ten seeds for 100,000 steps", "signal"))
    settings = ("--learning-rate", "--l2", "λ·Σw²", "--workdir", "--min-items", "--schedule-options")
    assert all(word in answers["train.py quick"] for word in settings)
    for command, said in answers.items():
        assert "--help" in said, command
        script = command.split()[0]
        assert said.startswith(f"example: python {script} ") or not script.endswith(".py"), command
        assert not [word for word in (">>>", "Traceback", "Raises", "(default: )") if word in said], command


@pytest.mark.rare
@pytest.mark.parametrize(("preset", "accuracy"), [("quick", 97.0), ("notebook", 90.0)])
def test_a_preset_learns_to_find_the_largest_of_sixteen_items(preset, accuracy, tmp_path):
    trained = script("train.py", preset, "--workdir", "run", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    options = ("--lengths", 16, "--normalizers", "softmax", "--output", "out")
    done = script("evaluate.py", "--checkpoint", "run", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out" / "evaluation.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["accuracy"]) >= accuracy
