"""What evaluate.py measures when it is not told."""

from pathlib import Path

import pytest

from softmax_jax.experiment.commands.evaluate import Arguments, evaluate
from softmax_jax.experiment.measures.evaluation import Evaluation
from softmax_jax.experiment.measures.runs import FITS, names_of


@pytest.mark.parametrize("full", [False, True])
def test_six_lengths_are_measured_and_in_full_all_of_the_task_with_the_fits(full, monkeypatch):
    def over(evaluation, lengths):
        assert lengths == (evaluation.task.test_lengths if full else (16, 64, 256, 1024, 4096, 16384))
        assert bool(FITS.keys() & evaluation.normalizers.keys()) == full
        raise KeyboardInterrupt

    monkeypatch.setattr(Evaluation, "over", over)
    with pytest.raises(KeyboardInterrupt):
        evaluate(Arguments(full=full))


def test_runs_are_called_by_their_directories_or_by_whole_paths_where_those_are_alike():
    assert names_of([Path("a/x"), Path("b/y")]) == ["x", "y"]
    assert names_of([Path("a/x"), Path("b/x")]) == ["a/x", "b/x"]
