"""A task and a preset in a file of the user's own: named where somebody types it, never by a file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from softmax_jax.configs import load_preset
from softmax_jax.normalizers import registry
from softmax_jax.tasks import TASKS, name_of, task_class
from softmax_jax.tasks.retrieval import Sort
from softmax_jax.training.config import from_settings, settings_of
from softmax_jax.training.run_directory import read_config

ROOT = Path(__file__).parents[2]
MINE = """
import dataclasses
from softmax_jax.tasks.retrieval import Sort
from softmax_jax.training.config import Config

@dataclasses.dataclass(frozen=True)
class Mine(Sort):
    name = "mine"

CONFIG = Config(Mine(length=4, sets=2, hidden=8, heads=2, layers=1), steps=2, chunk=2, l2=0.0)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that holds a task and a preset, which nobody typed yet."""
    (tmp_path / "of_mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_trusted", set())
    yield "of_mine"
    sys.modules.pop("of_mine", None)


def test_a_task_is_named_by_the_table_or_by_its_module(module):
    assert {name: name_of(task_class(name)()) for name in TASKS} == {name: name for name in TASKS}
    config = load_preset(f"{module}:CONFIG")
    assert settings_of(config)["task"] == f"{module}:Mine"
    assert from_settings(settings_of(config)) == config
    assert name_of(Sort()) == "sort"


def test_a_file_names_no_module_that_nobody_typed(module, tmp_path):
    settings = settings_of(load_preset(f"{module}:CONFIG"))
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert read_config(tmp_path).task.name == "mine"  # for its settings were built here
    registry._trusted.clear()
    sys.modules.pop(module)
    with pytest.raises(ValueError, match=f"names '{module}:Mine'.*if you trust it"):
        read_config(tmp_path)
    assert module not in sys.modules


@pytest.mark.parametrize(
    ("name", "words"),
    [("srt", "did you mean 'sort'"), ("nowhere:Mine", "cannot be imported"), ("json:loads", "derives from Task")],
)
def test_what_is_no_task_is_refused(name, words):
    with pytest.raises(ValueError, match=words):
        task_class(name)


@pytest.mark.full
def test_a_preset_of_ones_own_trains_and_its_run_is_loaded_by_who_trusts_it(module, tmp_path):
    def run(script, *arguments):
        command = [sys.executable, ROOT / script, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert run("train.py", f"{module}:CONFIG", "--workdir", "run").returncode == 0
    options = ("--checkpoint", "run", "--lengths", "4", "--sets", "4", "--normalizers", "softmax")
    refused = run("evaluate.py", *options)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--trust-code" in refused.stderr
    assert run("evaluate.py", *options, "--trust-code").returncode == 0
