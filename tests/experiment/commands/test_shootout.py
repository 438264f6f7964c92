import csv
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from softmax_jax.experiment.commands.shootout import Arguments, compete, write_outcomes
from softmax_jax.experiment.configs import load_preset
from softmax_jax.experiment.tasks import TASKS, task_class
from softmax_jax.experiment.tasks.hidden_signal import Signal
from softmax_jax.experiment.training.config import Config, changed
from softmax_jax.normalizers.registry import METHODS
from tests.experiment.report.test_shootout import made

TASK = Signal(length=8, features=8, sequences=16, batch=8, hidden=4, heads=2, layers=1)
CONFIG = Config(TASK, steps=4, chunk=2, seeds=2, l2=0.0)
NAMES = ("softmax", "ssmax")


def fought(directory, config=CONFIG, names=NAMES, lengths=(16,)):
    return compete(config, names, lengths, directory, Console(quiet=True))


OWN = [name for name in TASKS if not task_class(name).grouped_by]


@pytest.mark.parametrize("name", [*OWN, "multi-query"])
def test_every_task_of_the_table_is_taken_by_its_name(name):
    config = Arguments(task=name).config()
    assert config.task == task_class(name.replace("-", "_"))()
    assert (config.seeds, config.steps % config.chunk) == (5, 0)


def test_a_task_of_ones_own_is_trained_as_those_of_the_small_transformer(tmp_path, monkeypatch):
    code = "from softmax_jax.experiment.tasks.retrieval import Sort\nclass Mine(Sort):\n    name = 'mine'\n"
    (tmp_path / "tasks_of_mine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = Arguments(task="tasks_of_mine:Mine", length=8, epochs=2)
    config, preset = arguments.config(), load_preset("transformer_max_retrieval")
    assert (type(config.task).__name__, config.task.longest) == ("Mine", 8)
    assert (config.steps, config.learning_rate) == (2 * preset.chunk, preset.learning_rate)
    assert arguments.runs == Path("runs/shootout/tasks-of-mine-mine")


@pytest.mark.full
def test_every_seed_is_trained_epoch_by_epoch_and_tested_at_each_length_quietly_where_asked(tmp_path, capsys):
    outcomes = fought(tmp_path, names=["ssmax"])
    assert capsys.readouterr() == ("", "")
    losses = outcomes.losses.select("normalizer", "seed", "epoch").rows()
    assert losses == [("ssmax", seed, epoch) for seed in (0, 1) for epoch in (1, 2)]
    tests = outcomes.tests.select("normalizer", "n", "seed").rows()
    assert tests == [("ssmax", n, seed) for n in (8, 16) for seed in (0, 1)]
    assert outcomes.losses["loss"].n_unique() == 4
    assert outcomes.tests["accuracy"].is_between(0, 100).all()
    assert outcomes.seconds["ssmax"] > 0
    moved = np.abs(outcomes.learned["ssmax"]["s"] - METHODS["ssmax"].numbers["s"])
    assert moved.shape == (2, TASK.layers, TASK.heads)
    assert 1e-5 < moved.min() <= moved.max() < 0.1  # four steps of 0.001 each
    *_, settings = write_outcomes(tmp_path, {"task": "signal"}, CONFIG, outcomes)
    written = json.loads(settings.read_text())
    assert (written["task"]["length"], written["recipe"]["epochs"], written["recipe"]["hidden"]) == (8, 2, 4)
    assert np.shape(written["learned"]["ssmax"]["s"]) == moved.shape


def test_a_row_has_the_loss_of_the_last_epoch_and_the_test_at_the_length_of_training(tmp_path):
    """Of three epochs, and of lengths of which training saw the second."""
    outcomes = made(*NAMES, lengths=(4, TASK.length))
    paths = write_outcomes(tmp_path, {}, changed(CONFIG, steps=6, seeds=3), outcomes)
    tables = {path.stem: list(csv.DictReader(path.read_text().splitlines())) for path in paths if path.suffix == ".csv"}
    assert {name: list(rows[0]) for name, rows in tables.items()} == {
        "shootout": ["normalizer", "seed", "test_accuracy", "test_loss", "train_loss", "seconds"],
        "losses": ["normalizer", "seed", "epoch", "loss"],
        "lengths": ["normalizer", "seed", "length", "accuracy", "loss"],
    }
    assert [(row["normalizer"], row["seed"]) for row in tables["shootout"]] == [(n, s) for n in NAMES for s in "012"]
    for row in tables["shootout"]:
        cell = {"normalizer": row["normalizer"], "seed": int(row["seed"])}
        (test,) = outcomes.tests.filter(**cell, n=TASK.length).select("accuracy", "loss").rows()
        (loss,) = outcomes.losses.filter(**cell, epoch=3)["loss"]
        values = [float(row[column]) for column in ("test_accuracy", "test_loss", "train_loss", "seconds")]
        assert values == pytest.approx([*test, loss, outcomes.seconds[cell["normalizer"]] / 3])
