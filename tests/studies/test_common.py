import pytest

from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.run_directory import SHIPPED
from studies.common import load_runs, measure_run


@pytest.mark.full
def test_runs_are_of_any_task_part_by_part_or_of_the_one_that_a_study_is_about():
    runs = load_runs([SHIPPED / "paper", SHIPPED / "clrs_text"])
    assert runs[0].name == "paper"
    assert isinstance(runs[0].task, MaxRetrieval)
    assert "clrs_text, minimum" in [run.name for run in runs]
    with pytest.raises(ValueError, match="the task is clrs_text: name a run of max retrieval"):
        load_runs([SHIPPED / "clrs_text"], MaxRetrieval)
    frame = measure_run(runs[0], ["softmax", "hardmax"], [16], sets=4)
    assert frame.select("normalizer", "n", "seed").unique().height == 20
    assert frame["accuracy"].is_between(0, 100).all()
