"""The trained models in checkpoints/ are those of the presets of their names, and score what the presets say."""

import importlib
import json
import math
import re
from typing import Any

import pytest

from softmax_jax.experiment.configs import load_preset
from softmax_jax.experiment.measures.evaluation import Evaluation, evaluate, frame_of
from softmax_jax.experiment.measures.runs import fits_beside
from softmax_jax.experiment.training.checkpoint import verify
from softmax_jax.experiment.training.config import read_config
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.temperature import ALL_LENGTHS
from studies.clrs_text.task import ClrsText

TEXTS = SHIPPED / "clrs_text"
RUNS = sorted(path for path in SHIPPED.iterdir() if path.is_dir())
SETS = 64


def params(runs):
    return [pytest.param(run, id=run.name, marks=[pytest.mark.full] * (run.name != "paper")) for run in runs]


@pytest.fixture(params=params(RUNS))
def shipped(request):
    return request.param


@pytest.fixture(params=params(run for run in RUNS if run != TEXTS))
def retrieval(request):
    return request.param


def score(shipped):
    """The line on the score in the docstring of its preset."""
    docstring = importlib.import_module(f"softmax_jax.experiment.configs.{shipped.name}").__doc__ or ""
    (line,) = re.findall(r"^Score: +(.*?)\.$", docstring, re.MULTILINE | re.DOTALL)
    return line


def test_it_is_the_finished_run_of_its_preset_whole_and_without_a_path_of_a_machine(shipped):
    verify(shipped / "parameters")
    for path in shipped.rglob("*"):
        assert path.is_dir() or not re.search(rb"/(tmp|home|root|work)/", path.read_bytes())
    config = load_preset(shipped.name)
    assert read_config(shipped) == config
    last = json.loads((shipped / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last["seed"]) == (config.steps, config.first_seed + config.seeds - 1)


def test_its_fit_is_of_its_parameters(retrieval):
    _, parameters = load_checkpoint(retrieval)
    assert ALL_LENGTHS in fits_beside(str(retrieval), parameters)


@pytest.mark.rare
def test_it_answers_what_its_preset_says():
    said = {name: float(percent) for name, percent in re.findall(r"(\w+)\s+([\d.]+) %", score(TEXTS))}
    config, parameters = load_checkpoint(TEXTS)
    assert isinstance(config.task, ClrsText)
    assert len(said) >= 2
    for name, task in config.task.parts().items():
        evaluation = Evaluation(task, parameters, {"softmax": None}, config.all_seeds, SETS, ("accuracy",))
        accuracy: Any = frame_of(evaluation.over(config.task.lengths))["accuracy"].mean()
        share = said[name] / 100
        error = 100 * math.sqrt(max(share * (1 - share), 1e-3) / (SETS * len(config.task.lengths)))
        assert abs(accuracy - said[name]) < 4 * error


@pytest.mark.full
def test_it_scores_what_its_preset_says(retrieval):
    said = {int(n): float(percent) for percent, n in re.findall(r"([\d.]+) % at (\d+)", score(retrieval))}
    lengths = tuple(n for n in said if n <= 1024)
    assert len(lengths) >= 2
    config, parameters = load_checkpoint(retrieval)
    seeds = config.all_seeds
    options = {"seeds": seeds, "lengths": lengths, "sets": SETS, "task": config.task}
    measured = evaluate(parameters, {"softmax": normalizer("softmax")}, **options)
    for of_length in measured:
        n = of_length.n
        share = said[n] / 100
        error = 100 * math.sqrt(max(share * (1 - share), 1e-3) / (SETS * len(seeds)))
        assert abs(float(of_length.values["accuracy"].mean()) - said[n]) < 4 * error
