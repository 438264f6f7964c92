import re

import jax
import jax.numpy as jnp
import pytest

from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.run_directory import SHIPPED
from studies import sharpest
from studies.sharpest import NearTies, at_training_length


@pytest.mark.parametrize(
    ("accuracies", "tolerance", "choice"),
    [
        ((99.0, 99.9, 99.85, 99.7), 0.1, "c"),
        ((99.9, 99.85, 99.9, 99.85), 0.0, "c"),
        ((50.0, 50.0, 50.0, 50.0), 0.0, "d"),
    ],
)
def test_the_choice_is_the_sharpest_within_the_tolerance_of_the_best(accuracies, tolerance, choice):
    assert sharpest.sharpest(dict(zip("abcd", accuracies)), tolerance) == choice


@pytest.mark.full
def test_near_ties_are_harder_than_ordinary_sets_and_one_draw_is_an_ordinary_set():
    near, one, ordinary = (
        float(-jnp.diff(jax.lax.top_k(task.test_batch(jax.random.key(0), 16, 64).items[..., 0], 2)[0]).mean())
        for task in (NearTies(nearest_of=64), NearTies(nearest_of=1), MaxRetrieval())
    )
    assert 0 < near < one / 20
    assert one == pytest.approx(ordinary, rel=0.5)
    of = {"names": ("softmax", "hardmax"), "measure": "accuracy", "sets": 128}
    plain, hard = (at_training_length(SHIPPED / "frontier", nearest_of=count, **of) for count in (1, 64))
    assert plain["n"].unique().to_list() == [16]
    assert hard["accuracy"].to_numpy().mean() < plain["accuracy"].to_numpy().mean()


@pytest.mark.full
def test_the_command_names_its_choice(typed):
    said = typed(sharpest, "--sets", 512)
    assert re.search(r"16 items, 5,120 sets; the sharpest within 0.1 points of the best: \S+", said)
    assert "hardmax" in said
    assert "below the best" in said
