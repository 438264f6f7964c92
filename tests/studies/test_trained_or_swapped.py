import jax
import numpy as np
import polars as pl
import pytest
from flax import nnx

import softmax_jax as sj
from softmax_jax.experiment.measures.sets import set_keys
from softmax_jax.experiment.tasks.retrieval import MultiQuery
from softmax_jax.experiment.training.config import Config, changed
from softmax_jax.experiment.training.run import build_model, build_run
from studies import trained_or_swapped as study

TASK = MultiQuery(length=6, hidden=8, heads=2, layers=1, queries=3, batch=4)
CONFIG = Config(TASK, steps=4, seeds=1, normalizer="ssmax", chunk=4)


def parameters(config=CONFIG):
    return jax.device_get(build_run(config).initial_state().parameters)


@pytest.mark.rare
def test_accuracies_are_those_of_each_sequence(monkeypatch):
    """One by one as the model answers its test sequences; as trained, and under another normalizer."""
    model = nnx.merge(build_model(TASK, "ssmax")[0], jax.tree.map(lambda leaf: leaf[0], parameters()))
    sets = 32
    monkeypatch.setattr(MultiQuery, "test_sets", lambda task, length: sets)
    one_by_one = jax.vmap(lambda key: TASK.test_batch(key, 6, 1))(set_keys([0], 6, sets)[0])
    batch = jax.tree.map(lambda leaf: leaf[:, 0], one_by_one)
    by_test = []
    for test in (None, sj.normalizer("hardmax")):
        answers = TASK.answers(model(batch.inputs, batch.mask, normalizer=test)).argmax(-1)
        by_test.append(100 * np.mean(np.asarray(answers) == np.asarray(batch.answer), 1))
        set_accuracies = study.accuracies(CONFIG, parameters(), 0, 6, test)
        assert np.mean(np.isclose(set_accuracies, by_test[-1])) > 0.9  # two classes may score the same but for rounding
    assert np.mean(np.isclose(*by_test)) < 0.9


def test_calibration_gives_each_head_of_each_layer_a_number(monkeypatch):
    monkeypatch.setattr(study, "CALIBRATION_STEPS", 2)
    found = study.calibrated(CONFIG, parameters(), 0, "ssmax")
    numbers = np.stack([np.asarray(one.scale.s).ravel() for one in found.values()])  # pyright: ignore
    assert numbers.shape == (TASK.layers, TASK.heads)
    assert (numbers != np.float32(1 / np.log(6))).all()


@pytest.mark.rare
def test_the_study_trains_tests_and_draws_and_keeps_what_it_has(tmp_path, monkeypatch, typed):
    config = study.Arguments.config
    small = {"steps": 2, "chunk": 2, "seeds": 1, "hidden": 8, "heads": 2, "length": 6, "layers": 1, "batch": 4}
    monkeypatch.setattr(study.Arguments, "config", lambda asked, *names: changed(config(asked, *names), **small))
    monkeypatch.setattr(study, "CALIBRATION_STEPS", 1)
    monkeypatch.setattr(study, "TRAINED", ("asentmax",))
    monkeypatch.setattr(study, "TASKS", ("sort",))
    words = ["--quick", "--output", tmp_path, "--workdir", tmp_path / "runs"]
    typed(study, *words)
    assert pl.read_csv(tmp_path / "accuracy.csv").height == 2 * (len(study.TESTS) - 1)
    said = typed(study, *words)
    assert ("seed 0" in said, "wrote" in said) == (False, True)
