import dataclasses

import jax
import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.training.config import Config, changed, from_settings, settings_of
from softmax_jax.experiment.training.run import build_run
from softmax_jax.experiment.training.trainer import chunk_trainer
from softmax_jax.normalizers.registry import normalizer
from studies.clrs_text import answers
from studies.clrs_text.task import ClrsText

TASK = ClrsText(algorithms=("minimum", "kmp_matcher"), lengths=(4, 5), hidden=16, heads=2, layers=1)


def frame(right, name, normalizer_name, n=4):
    return pl.DataFrame([(name, normalizer_name, n, 0, right)], answers.ROW, orient="row")


def test_accuracies_intervals_and_paired_tests_are_over_sets():
    best, worst = [True] * 9 + [False], [True] + [False] * 9
    rows = pl.concat(
        [frame(best, "minimum", "softmax"), frame(worst, "minimum", "ssmax"), frame(best, "kmp_matcher", "softmax")]
    )
    first, second, third = answers.summarize_answers(rows).to_dicts()
    assert (first["accuracy"], second["accuracy"]) == (90, 10)
    assert first["low"] == pytest.approx(59.58, abs=0.01)  # Wilson's interval of 9 in 10
    assert first["high"] == pytest.approx(98.21, abs=0.01)
    assert second["p"] == pytest.approx(2 * 0.5**8)  # eight sets that only softmax answers
    assert first["p"] is None
    assert third["p"] is None


def test_p_values_of_answers_are_corrected_for_every_test_in_the_table():
    right, wrong = [True] * 10, [False] * 10
    rows = [frame(right, name, "softmax") for name in ("minimum", "kmp_matcher")]
    rows += [frame(wrong, "minimum", "ssmax"), frame(wrong[:7] + right[:3], "kmp_matcher", "ssmax")]
    found = answers.summarize_answers(pl.concat(rows)).to_dicts()
    assert [row["p"] for row in found] == [None, None, pytest.approx(2 * 2 * 0.5**10), pytest.approx(2 * 0.5**7)]


@pytest.mark.full
def test_every_algorithm_is_measured_at_its_own_lengths_under_every_normalizer():
    config = Config(TASK)
    state = build_run(config).initial_state()
    lengths = answers.lengths_of(TASK, (3, 6))
    by = {name: normalizer(name) for name in ("softmax", "ssmax")}
    frames = answers.evaluate_answers(state.parameters, by, task=TASK, lengths=lengths, sets=10, seeds=[0])
    rows = pl.concat(frames).drop("right")
    cells = [(name, by_name, n, 0) for name in TASK.algorithms for n in (3, 6) for by_name in by]
    assert [row[:4] for row in rows.rows()] == cells
    assert rows.columns == ["algorithm", "normalizer", "n", "seed", "accuracy"]


def test_a_length_without_instances_is_refused_before_anything_is_measured():
    with pytest.raises(ValueError, match="--lengths has 2: kmp_matcher must have from 3"):
        answers.lengths_of(TASK, (2,))


@pytest.mark.full
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
