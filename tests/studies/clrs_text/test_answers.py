"""The task in the commands: every algorithm is a part that is tested alone, with tests over sets."""

import dataclasses
import json

import jax
import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.commands.evaluate import Arguments, evaluate
from softmax_jax.experiment.measures.runs import Loaded
from softmax_jax.experiment.training.config import Config, changed, from_settings, settings_of
from softmax_jax.experiment.training.run import build_run
from softmax_jax.experiment.training.trainer import chunk_trainer
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.refusal import Refusal
from studies.clrs_text.task import ClrsText

TASK = ClrsText(algorithms=("minimum", "kmp_matcher"), lengths=(4, 5), hidden=16, heads=2, layers=1)


@pytest.mark.full
def test_every_algorithm_is_measured_and_shown_under_every_normalizer(tmp_path, monkeypatch, capsys):
    named: dict[str, Normalizer | None] = {name: normalizer(name) for name in ("softmax", "ssmax")}
    config, parameters = Config(TASK, seeds=1), build_run(Config(TASK, seeds=1)).initial_state().parameters
    runs = [
        Loaded(name, tmp_path, dataclasses.replace(config, task=part), parameters, named, {"algorithm": name})
        for name, part in TASK.parts().items()
    ]
    monkeypatch.setattr("softmax_jax.experiment.commands.evaluate.load_runs", lambda *_, **__: runs)
    evaluate(Arguments(lengths=(3,), sets=10, output=tmp_path / "out"))
    cells = [(name, under, n, 0) for name in TASK.algorithms for n in (3,) for under in named]
    frame = pl.read_csv(tmp_path / "out" / "evaluation.csv")
    assert frame.columns == ["algorithm", "normalizer", "n", "seed", "accuracy"]
    assert [row[:4] for row in frame.rows()] == cells
    summary = json.loads((tmp_path / "out" / "evaluation.json").read_text())["summary"]
    assert [(row["algorithm"], row["normalizer"], row["n"]) for row in summary] == [cell[:3] for cell in cells]
    assert all(row["p"] is None for row in summary)  # untrained, so nothing is right that could be tested
    assert all(row["low"] <= row["accuracy"] <= row["high"] for row in summary)
    printed = capsys.readouterr().out
    assert all(name in printed for name in TASK.algorithms)
    assert printed.count("\n  low") == 4


def test_a_length_without_instances_is_refused_before_anything_is_measured():
    with pytest.raises(Refusal, match="--lengths has 2: kmp_matcher must have from 3"):
        Arguments(lengths=(2,)).lengths_of(TASK)


@pytest.mark.rare
def test_it_trains():
    config = changed(Config(TASK), steps=4, chunk=2, l2=0.0)
    run = build_run(config)
    start = jax.device_get(run.initial_state())
    state, metrics = chunk_trainer(run)(jax.device_put(start), 0, 2)
    assert all(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (start.parameters, state.parameters))))
    assert (metrics.first_bad_step == -1).all()
    assert (np.asarray(metrics.accuracy) <= 100).all()


def test_settings_with_several_values_come_back_from_json():
    config = Config(dataclasses.replace(TASK, tokenizer="smollm2"))
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in settings_of(config).items()}
    assert from_settings(listed) == config
