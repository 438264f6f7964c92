"""What evaluate.py measures when it is not told."""

import pytest

from softmax_jax.experiment.commands.evaluate import Arguments, evaluate
from softmax_jax.experiment.measures import evaluation
from softmax_jax.experiment.measures.runs import FITS


@pytest.mark.parametrize("full", [False, True])
def test_six_lengths_are_measured_and_in_full_all_of_the_task_with_the_fits(full, monkeypatch):
    def planned(parameters, normalizers, *, task, lengths, protocol, **options):
        measured = evaluation.lengths_of(task, lengths, protocol)
        assert measured == (task.test_lengths if full else (16, 64, 256, 1024, 4096, 16384))
        assert bool(FITS.keys() & normalizers.keys()) == full
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "planned", planned)
    with pytest.raises(KeyboardInterrupt):
        evaluate(Arguments(full=full))
