import pytest

from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.retrieval import Sort
from softmax_jax.experiment.training.run_directory import SHIPPED
from studies.common import load_runs, measure_run, require_kind


def test_a_study_of_one_task_refuses_the_others_in_one_line():
    with pytest.raises(ValueError, match=r"^the task is sort: name a run of max retrieval$"):
        require_kind(Sort(), MaxRetrieval)
    assert require_kind(MaxRetrieval(width=8), MaxRetrieval).width == 8


@pytest.mark.full
def test_runs_are_of_any_task_and_every_part_is_one():
    runs = load_runs([SHIPPED / "paper", SHIPPED / "clrs_text"])
    assert runs[0].name == "paper"
    assert isinstance(runs[0].task, MaxRetrieval)
    assert "clrs_text, minimum" in [run.name for run in runs]
    frame = measure_run(runs[0], ["softmax", "hardmax"], [16], sets=4)
    assert frame.select("normalizer", "n", "seed").unique().height == 20
    assert frame["accuracy"].is_between(0, 100).all()
