import polars as pl
import pytest

from softmax_jax.measures.evaluation import TRUE_ITEM, TRUE_KEY
from softmax_jax.normalizers.registry import METHODS
from softmax_jax.studies import ablation
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.training.config import Config, settings_of

TINY = Config(MaxRetrieval(sets=16, min_items=16, width=8), steps=160, seeds=2, l2=0.0, learning_rate=3e-3)


def test_every_recipe_differs_from_the_base_in_what_its_group_says():
    every = ablation.recipes(TINY)
    names = [(recipe.group, recipe.name) for recipe in every]
    assert len(set(names)) == len(names)
    fields = {
        "penalty": {"l2", "optimizer", "optimizer_options"},
        "schedule": {"schedule", "learning_rate"},
        "schedule and penalty": {"schedule", "learning_rate", "l2"},
        "steps": {"steps"},
        "sets in a batch": {"sets"},
        "width": {"width"},
        "items in training": {"min_items", "max_items"},
        "ties": {"nearest_of"},
        "precision": {"matmul", "rounded", "schedule", "learning_rate"},
        "normalizer in training": {"normalizer"},
    }
    base = settings_of(TINY)
    assert every[0].config == TINY
    for group, _, config in every[1:]:
        changed = {name for name, value in settings_of(config).items() if value != base[name]}
        assert changed
        assert changed <= fields[group]
    assert {group for group, _, _ in every[1:]} == set(fields)
    assert {recipe.config.normalizer for recipe in every} == set(METHODS)


@pytest.mark.full
def test_losses_add_up_and_name_the_best_temperature():
    names = (*ablation.SOFT_TO_SHARP, TRUE_ITEM, TRUE_KEY)
    accuracy = dict.fromkeys(names, 40.0) | {"softmax": 30.0, "temperature(0.25)": 70.0, "hardmax": 60.0}
    accuracy |= {TRUE_ITEM: 95.0, TRUE_KEY: 50.0}
    made = [
        (name, 64, seed, value + spread) for name, value in accuracy.items() for seed, spread in ((0, 1.0), (1, -1.0))
    ]
    lost = ablation.losses(pl.DataFrame(made, ablation.ACCURACIES, orient="row"))
    assert lost.rows() == [
        (64, 0, 31.0, 40.0, 20.0, 5.0, 4.0, "temperature(0.25)"),
        (64, 1, 29.0, 40.0, 20.0, 5.0, 6.0, "temperature(0.25)"),
    ]
    assert (lost.select(pl.sum_horizontal(ablation.LOSSES)).to_series() == 100).all()


@pytest.mark.full
def test_the_best_temperature_of_a_seed_is_that_of_the_others():
    """Each of two seeds likes another temperature; neither is given its own."""
    own = {0: "temperature(0.5)", 1: "temperature(0.25)"}
    names = (*ablation.SOFT_TO_SHARP, TRUE_ITEM, TRUE_KEY)
    made = [(name, 64, seed, 90.0 if name == own[seed] else 50.0) for name in names for seed in own]
    lost = ablation.losses(pl.DataFrame(made, ablation.ACCURACIES, orient="row"))
    assert lost["best"].to_list() == [own[1], own[0]]
    assert lost["dispersion"].to_list() == [0.0, 0.0]
