"""A task, its model and its preset in a file of the user's own: named where somebody types it, never by a file."""

import json
import sys

import polars as pl
import pytest

from softmax_jax.experiment.commands import fit, report, train as train_command
from softmax_jax.experiment.configs import load_preset
from softmax_jax.experiment.tasks import TASKS, name_of, task_class
from softmax_jax.experiment.training.config import Config, from_settings, read_config, settings_of
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.experiment.training.soundness import require_sound
from softmax_jax.experiment.training.train import train
from softmax_jax.normalizers import user_modules

MINE = """
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


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of the module, which nobody typed yet."""
    (tmp_path / "of_mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(user_modules, "_trusted", set())
    yield "of_mine"
    sys.modules.pop("of_mine", None)


def test_a_task_is_named_by_the_table_or_by_its_module_and_no_file_names_one_that_nobody_typed(module, tmp_path):
    assert [name_of(task_class(name)()) for name in TASKS] == list(TASKS)
    config = load_preset(f"{module}:CONFIG")
    settings = settings_of(config)
    assert settings["task"] == f"{module}:Largest"
    assert from_settings(settings) == config
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert read_config(tmp_path).task.name == "largest"  # for its settings were built here
    user_modules._trusted.clear()
    sys.modules.pop(module)
    with pytest.raises(ValueError, match=f"names '{module}:Largest'.*if you trust it"):
        read_config(tmp_path)
    assert module not in sys.modules


WRONG = """

class Bare(Task):
    pass


class Plain(Bare):
    build = training_batch = test_batch = scores = None
"""


def test_a_task_that_lacks_a_member_or_its_settings_is_refused_in_one_line(module, tmp_path):
    with (tmp_path / f"{module}.py").open("a") as file:
        file.write(WRONG)
    with pytest.raises(ValueError, match=r"^.*:Bare': it lacks build, scores, test_batch, training_batch: define .*$"):
        task_class(f"{module}:Bare")
    with pytest.raises(ValueError, match=r"^.*:Plain': its class must be a dataclass: write @dataclass.*$"):
        task_class(f"{module}:Plain")


BLIND = """

class Mean(nnx.Module):
    def __init__(self, rngs):
        self.classify = nnx.Linear(1, 3, rngs=rngs)

    def __call__(self, numbers):
        return self.classify(numbers.mean(-1, keepdims=True))


@dataclasses.dataclass(frozen=True)
class Blind(Largest):
    def build(self, normalizer, rngs):
        return Mean(rngs)


@dataclasses.dataclass(frozen=True)
class Empty(Largest):
    def training_batch(self, seed, step):
        return ()


@dataclasses.dataclass(frozen=True)
class Wide(Largest):
    def training_batch(self, seed, step):
        return self.test_batch(jax.random.key(0), 8, self.batch)._replace(numbers=jnp.zeros((self.batch, 8, 2)))
"""


@pytest.mark.parametrize(
    ("kind", "normalizer", "words"),
    [
        ("Largest", "ssmax", "is the same under ssmax as under softmax: let `build` give its normalizer"),
        ("Blind", "softmax", "has no attention to measure"),
        ("Empty", "softmax", "a training_batch without arrays"),
        ("Wide", "softmax", "trains on sets whose length is not known.*: let it have `longest`, the most items of a"),
    ],
)
def test_a_task_that_could_not_be_judged_is_refused_before_it_is_trained(module, tmp_path, kind, normalizer, words):
    with (tmp_path / f"{module}.py").open("a") as file:
        file.write(BLIND)
    task = task_class(f"{module}:{kind}")()
    with pytest.raises(ValueError, match=words):
        train(Config(task, normalizer=normalizer), tmp_path / "run", plain_console())
    assert not (tmp_path / "run").exists()


def test_a_plain_model_takes_a_softmax_of_another_name_and_its_longest_set_is_read_from_shapes(module):
    task = task_class(f"{module}:Largest")()
    require_sound(task, "jax.nn:softmax")
    assert task.longest == 8


@pytest.mark.full
def test_a_task_with_a_model_of_ones_own_is_trained_fitted_and_reported(module, tmp_path, monkeypatch):
    """Five members make a task; every command takes it."""
    monkeypatch.chdir(tmp_path)

    def command(module, *words):
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, words)])
        module.main()

    command(train_command, f"{module}:CONFIG", "--workdir", "run")
    sizes = ("--lengths", 8, 32, "--sets", 8, "--trust-code")
    command(fit, "--checkpoint", "run", *sizes, "--degree", 1, "--criterion", "inputs", "--output", "run")
    assert (tmp_path / "run" / "temperature.json").exists()
    command(report, "run", *sizes, "--normalizers", "softmax", "adaptive", "--output", "report")
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Why attention fails on long sets" in page
    assert "The best temperature of a row" in page
    assert not (tmp_path / "report" / "weights.html").exists()  # which items matter is known of max retrieval only
    accuracy = pl.read_csv(tmp_path / "report" / "accuracy.csv")
    assert accuracy.select("normalizer", "n", "seed").unique().height == 8
    softmax, adaptive = (accuracy.filter(normalizer=name)["entropy"].to_numpy() for name in ("softmax", "adaptive"))
    assert (adaptive < softmax).all()  # its weights were replaced
