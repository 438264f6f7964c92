"""A task and a preset in a file of the user's own: named where somebody types it, never by a file."""

import json
import sys
from pathlib import Path

import polars as pl
import pytest

from softmax_jax.experiment.commands import evaluate, fit, report, train
from softmax_jax.experiment.configs import load_preset
from softmax_jax.experiment.tasks import TASKS, name_of, task_class
from softmax_jax.experiment.tasks.retrieval import Sort
from softmax_jax.experiment.training.config import from_settings, read_config, settings_of
from softmax_jax.normalizers import user_modules

ROOT = Path(__file__).parents[3]
MINE = """
import dataclasses
from softmax_jax.experiment.tasks.retrieval import Sort
from softmax_jax.experiment.training.config import Config

@dataclasses.dataclass(frozen=True)
class Mine(Sort):
    name = "mine"

CONFIG = Config(Mine(length=4, batch=2, hidden=8, heads=2, layers=1), steps=2, chunk=2, l2=0.0)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that holds a task and a preset, which nobody typed yet."""
    (tmp_path / "of_mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(user_modules, "_trusted", set())
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
    user_modules._trusted.clear()
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


OWN_MODEL = """
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from softmax_jax.experiment.tasks.task import Task, data_key
from softmax_jax.experiment.training.config import Config


class Numbers(NamedTuple):
    numbers: Any
    answer: Any


class Reader(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Linear(1, 8, rngs=rngs)
        self.classify = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, numbers):
        hidden = jnp.tanh(self.embed(numbers[..., None])).reshape(*numbers.shape, 2, 4)  # two heads
        logits = 8 * jnp.einsum("sqhd,skhd->shqk", hidden[:, -1:], hidden)
        return self.classify(jnp.einsum("shqk,skhd->sqhd", jax.nn.softmax(logits, -1), hidden).reshape(-1, 8))


@dataclasses.dataclass(frozen=True)
class Largest(Task):
    name: ClassVar[str] = "largest"

    batch: int = 8

    def build(self, normalizer, rngs):
        return Reader(rngs)

    def training_batch(self, seed, step):
        return self.test_batch(jax.random.fold_in(data_key(seed), step), 8, self.batch)

    def test_batch(self, key, length, sets):
        numbers = jax.random.uniform(key, (sets, length), jnp.float32)
        return Numbers(numbers, (3 * (numbers.max(1) ** length)).astype(jnp.int32).clip(0, 2))

    def scores(self, model, batch, rngs):
        return model(batch.numbers)


CONFIG = Config(Largest(), seeds=2, steps=40, chunk=20, learning_rate=0.01)
"""


@pytest.mark.full
def test_a_task_with_a_model_of_ones_own_is_trained_evaluated_fitted_and_reported(tmp_path, monkeypatch):
    """Five members make a task; every command takes it."""
    (tmp_path / "of_mine.py").write_text(OWN_MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"

    def command(module, *words):
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, words)])
        module.main()

    command(train, "of_mine:CONFIG", "--workdir", run)
    shown = ("--normalizers", "softmax", "adaptive", "--trust-code")
    command(evaluate, "--checkpoint", run, "--lengths", 4, 16, "--sets", 8, *shown, "--output", "evaluation")
    frame = pl.read_csv(tmp_path / "evaluation" / "evaluation.csv")
    assert frame.select("normalizer", "n", "seed").unique().height == 8
    assert frame["accuracy"].is_between(0, 100).all()
    softmax, adaptive = (frame.filter(normalizer=name, n=16)["entropy"].to_numpy() for name in ("softmax", "adaptive"))
    assert (adaptive > 0).all()
    assert (adaptive < softmax).all()  # its weights were replaced
    fitting = ("--checkpoint", run, "--lengths", 8, 16, "--sets", 4, "--degree", 1, "--criterion", "inputs")
    command(fit, *fitting, "--trust-code", "--output", run)
    assert (run / "temperature.json").exists()
    command(report, run, "--lengths", 8, 16, "--sets", 4, *shown, "--output", "report")
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Why attention fails on long sets" in page
    assert "The best temperature of a row" in page
    assert not (tmp_path / "report" / "weights.html").exists()  # which items matter is known of max retrieval only
