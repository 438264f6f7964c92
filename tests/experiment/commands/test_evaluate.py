"""What evaluate.py measures when it is not told, and what it says to go on with."""

import re
import sys
import threading
import traceback
from pathlib import Path

import pytest

import softmax_jax
from softmax_jax.experiment.commands.evaluate import Arguments, evaluate, next_step
from softmax_jax.experiment.measures.evaluation import Evaluation
from softmax_jax.experiment.measures.one_set import heads_of
from softmax_jax.experiment.measures.runs import FITS, Loaded, names_of
from softmax_jax.experiment.tasks.retrieval import Sort
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.run_directory import SHIPPED
from softmax_jax.normalizers import maps

PACKAGE = Path(softmax_jax.__file__).parent
ROOT = PACKAGE.parent


@pytest.mark.parametrize("full", [False, True])
def test_every_length_to_4096_and_16384_is_measured_and_in_full_all_of_the_task_with_the_fits(full, monkeypatch):
    def over(evaluation, lengths):
        every = evaluation.task.test_lengths
        assert lengths == (every if full else tuple(n for n in every if n != 8192))
        assert list(evaluation.normalizers)[:2] == ["softmax", "adaptive"]
        assert "softpick" not in evaluation.normalizers
        assert bool(FITS.keys() & evaluation.normalizers.keys()) == full
        raise KeyboardInterrupt

    monkeypatch.setattr(Evaluation, "over", over)
    with pytest.raises(KeyboardInterrupt):
        evaluate(Arguments(full=full))
    assert Arguments().lengths_of(Sort()) == Sort().test_lengths


def test_a_task_with_one_length_is_measured_at_it(monkeypatch):
    monkeypatch.setattr(Sort, "test_lengths", (8,))
    assert Arguments().lengths_of(Sort()) == (8,)


def test_the_next_command_is_a_fit_to_a_run_that_has_none_and_never_the_one_that_was_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x").mkdir()
    run = Loaded("x", Path("x"), Config(), {}, {})
    assert next_step([Path("x")], run).startswith("python fit_temperature.py --checkpoint x --output x")
    assert next_step([Path("x"), Path("y")], run).startswith("python report.py x y ")
    (tmp_path / "z").symlink_to(SHIPPED / "paper")
    for path in (Path("z"), SHIPPED / "paper"):
        command, remark = next_step([path], run).split("  # ")
        assert command in re.findall(r"^python .*?(?= +#|$)", (ROOT / "README.md").read_text(), re.MULTILINE)
        assert "in a few minutes" in remark


def test_runs_are_called_by_their_directories_or_by_whole_paths_where_those_are_alike():
    assert names_of([Path("a/x"), Path("b/y")]) == ["x", "y"]
    assert names_of([Path("a/x"), Path("b/x")]) == ["a/x", "b/x"]
    assert names_of([SHIPPED / "paper", SHIPPED / "frontier"]) == ["our replication", "frontier"]


class Reached(Exception):
    """Ends an evaluation."""


@pytest.mark.full
def test_at_most_nine_modules_lead_from_the_command_to_a_map(monkeypatch):
    """To the model's own softmax: for the facts about its attention, then in the program, which a thread traces."""
    weights, stacks = maps.Softmax.weights, []

    def enter(softmax, row):
        files = {Path(frame.f_code.co_filename) for frame, _ in traceback.walk_stack(sys._getframe())}
        stacks.append([file.stem for file in files if file.is_relative_to(PACKAGE)])
        if threading.current_thread() is not threading.main_thread():
            raise Reached
        return weights(softmax, row)

    heads_of.cache_clear()
    monkeypatch.setattr(maps.Softmax, "weights", enter)
    with pytest.raises(Reached):
        evaluate(Arguments(sets=2, lengths=(7,)))
    assert len(stacks) > 1
    assert all("maps" in stack and len(stack) <= 9 for stack in stacks), stacks
