import dataclasses
import functools
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from flax import nnx

from softmax_jax.experiment.training.config import changed
from softmax_jax.normalizers.registry import normalizer
from studies.clrs_text import study
from studies.clrs_text.task import ClrsText

TASK = ClrsText(algorithms=("minimum", "insertion_sort"), lengths=(4, 6), batch=1, hidden=16, heads=2, layers=2)


@functools.cache
def batch():
    return jax.jit(TASK.training_batch)(jnp.int32(0), jnp.int32(0))


@pytest.mark.full
@pytest.mark.parametrize("name", ["softmax", "adaptive", "ssmax"])
def test_the_numbers_of_a_regime_make_the_registered_normalizer(name):
    parameters = nnx.to_pure_dict(nnx.state(TASK.build("softmax", nnx.Rngs(0)), nnx.Param))
    own = study.with_head_numbers(parameters, TASK.heads, jnp.asarray(study.REGIMES[name].data()[0]))
    scores = TASK.scores(nnx.merge(study.structure_of(TASK), own), batch(), None)
    expected = TASK.scores(TASK.build("softmax", nnx.Rngs(0)), batch(), None, normalizer(name))
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_every_stage_has_as_many_models():
    asked = study.Arguments(seeds=4, together=2)
    found = dict(study.stages(asked, [2, 3]))
    assert {len(models) for models in found.values()} == {8}
    assert list(found) == [
        "tuned_softmax_adaptive",
        "tuned_ssmax_constant",
        "swapped_softmax_adaptive_ssmax_sharp_constant",
        "tuned_sharp_constant",
    ]
    assert len({model for models in found.values() for model in models}) == 4 * 8


def test_answers_are_counted_by_text():
    programs = object.__new__(study.Programs)
    right = np.random.default_rng(0).random((3, 4, 5, 6)) < 0.5  # batches, models, sets, texts
    programs._test = Future()
    programs._test.set_result(lambda parameters, seeds: right)
    np.testing.assert_array_equal(programs.right({}, [0] * 4).sum(2), right.sum((0, 2)))


@pytest.mark.rare
def test_the_study_trains_tunes_and_tests_and_keeps_what_is_there(tmp_path, monkeypatch):
    preset = study.load_preset("clrs_text")
    settings = {name: getattr(TASK, name) for name in ("algorithms", "lengths", "batch", "hidden", "heads", "layers")}
    small = changed(preset, steps=20, schedule="constant_schedule", **settings)
    monkeypatch.setattr(study, "load_preset", lambda name: small)
    monkeypatch.setattr(study, "TEST_LENGTHS", (4, 8))
    asked = study.Arguments(seeds=2, together=1, sets=5, regimes=("softmax", "adaptive", "constant"), workdir=tmp_path)
    study.study(asked)
    answers, numbers = (pl.read_csv(tmp_path / f"{name}.csv") for name in ("answers", "numbers"))
    assert answers.height == 2 * (2 + 2 * 2 + 4) * 2 * 2  # seeds, swaps and tuning runs, algorithms, lengths
    assert answers["right"].is_between(0, 5).all()
    tuned = numbers.filter(stage="tuned")
    assert (tuned.filter(regime="softmax")["constant"] == 1).all()
    assert (tuned.filter(regime="adaptive")["constant"] == 0).all()
    assert (tuned.filter(regime="constant")["constant"] != 1).all()
    first, second = (tuned.filter(regime="constant", seed=0, run=run)["constant"].to_list() for run in (0, 1))
    assert first != second
    monkeypatch.setattr(study.Programs, "right", None)  # all is there
    study.study(dataclasses.replace(asked))
    assert pl.read_csv(tmp_path / "answers.csv").equals(answers)
