"""What training prints and draws at its end, and that a log is never silent for long."""

import math
import shlex
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from rich.progress import Task, TaskID

from softmax_jax.experiment.commands import train
from softmax_jax.experiment.report import training
from softmax_jax.experiment.report.training import Reached, learned, training_chart
from softmax_jax.experiment.training import progress
from tests.experiment.report.charts import values_of

TINY = "quick --steps 20 --chunk 10 --batch 8 --min-items 2 --max-items 3 --width 8 --seeds 2 --normalizer ssmax"


@pytest.mark.full
@pytest.mark.parametrize("name", ["it's läufe"])
def test_a_run_ends_with_what_was_learned_a_picture_and_the_next_command(name, tmp_path, monkeypatch, capsys):
    def draw(run):
        assert [line["step"] for line in training.read_metrics(run)] == [10, 10, 20, 20]
        return run / "training.png"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "draw_training", draw)
    words = TINY.split()
    monkeypatch.setattr(sys, "argv", ["train.py", *words, "--workdir", f"my runs/{name}"])
    train.main()
    *_, picture, following = capsys.readouterr().out.splitlines()
    assert shlex.split(picture)[-1] == str(Path("my runs", name, "training.png"))
    assert shlex.split(following) == ["Next:", "python", "evaluate.py", "--checkpoint", f"my runs/{name}"]


def test_the_sentences_say_the_share_that_was_learned():
    near, far = Reached(16, 512, [98.0, 99.0], [10.0, 12.0]), Reached(64, 512, [89.0, 90.0], [9.0, 8.0])
    said = learned([near, far])
    assert said.startswith("The models have learned their training lengths: 98.5 ± 6.4 % of held-out sets of 16")
    assert "untrained 11.0 %; 512 sets for each of 2 seeds" in said
    assert said.endswith("At 64, 4 times that, 89.5 ± 6.4 % are.")
    for accuracy, words in ((60.0, "has partly learned"), (11.0, "has not learned")):
        assert words in learned([Reached(16, 512, [accuracy], [10.0])])


def test_the_chart_shows_every_line_of_metrics_and_its_band_stays_above_0():
    rows = [(step, seed, 50.0 + seed, 10.0**-seed) for step in (10, 20) for seed in (0, 1, 2)]
    chart = training_chart(pl.DataFrame(rows, ["step", "seed", "accuracy", "cross_entropy"], orient="row"))
    values = [row for row in values_of(chart) if row["curve"] == "loss"]
    assert {row["step"] for row in values} == {10, 20}
    assert min(row["low"] for row in values) > 0
    assert math.isclose(values[0]["value"], 0.37)
    assert "After 20 steps 51.0 % of a batch are right" in chart.to_dict()["title"]["text"]


@pytest.mark.parametrize(
    ("completed", "shown"),
    [
        (0, "50 s so far"),
        (6, "50 s so far"),
        (13000, "50 s so far, about 45 s left"),
        (24574, "50 s so far, about 0 s left"),
    ],
)
def test_a_bar_says_no_time_left_while_what_is_done_is_mostly_compiling(completed, shown):
    task = Task(TaskID(0), "n = 4", total=24574, completed=completed, _get_time=lambda: 50.0)
    task.start_time = 0.0
    assert str(progress.Time().render(task)) == shown


def test_a_log_that_would_be_silent_says_what_is_done(monkeypatch):
    monkeypatch.setattr(progress, "SILENCE", 0.05)
    lines = []
    with progress.Log(lines.append, "compiling") as log:
        while len(lines) < 2:
            time.sleep(0.01)
        log.begin("training")
        log.print("step 1")
        while "training" not in lines[-1]:
            time.sleep(0.01)
    assert lines[0].startswith("compiling: ")
    assert "step 1" in lines
