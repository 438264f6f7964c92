import contextlib
import json

import polars as pl
import pytest
from rich.console import Console

from softmax_jax.experiment.measures.references import TRUE_ITEM, TRUE_KEY
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.config import Config, settings_of
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.temperature import checkpoint_sha256
from studies import ablation
from studies.ablation import ACCURACIES, losses
from studies.common import SOFT_TO_SHARP
from studies.recipes import Recipe

TINY = Config(MaxRetrieval(batch=16, min_items=16, width=8), steps=160, seeds=2, l2=0.0, learning_rate=3e-3)


def test_every_recipe_differs_from_the_base_in_what_its_group_says():
    every = ablation.recipes(TINY)
    assert len({(recipe.group, recipe.name) for recipe in every}) == len(every)
    fields = {
        "penalty": {"l2", "optimizer", "optimizer_options"},
        "schedule": {"schedule", "learning_rate"},
        "schedule and penalty": {"schedule", "learning_rate", "l2"},
        "steps": {"steps"},
        "sets in a batch": {"batch"},
        "width": {"width"},
        "items in training": {"min_items", "max_items"},
        "ties": {"nearest_of"},
        "precision": {"matmul", "rounded", "schedule", "learning_rate"},
    }
    base = settings_of(TINY)
    assert every[0].config == TINY
    for group, _, config in every[1:]:
        changed = {name for name, value in settings_of(config).items() if value != base[name]}
        assert set() < changed <= fields[group]
    assert {group for group, _, _ in every[1:]} == set(fields)


def accuracies(of_seeds: dict[str, tuple[float, float]], lengths: tuple[int, ...] = (64,)) -> pl.DataFrame:
    """The accuracy of each normalizer for two seeds, alike at every length."""
    rows = [
        (name, n, seed, value) for name, both in of_seeds.items() for n in lengths for seed, value in enumerate(both)
    ]
    return pl.DataFrame(rows, ACCURACIES, orient="row")


def test_losses_add_up_and_the_best_temperature_of_a_seed_is_that_of_the_others():
    names = (*SOFT_TO_SHARP, TRUE_ITEM, TRUE_KEY)
    alike = dict.fromkeys(names, (41.0, 39.0)) | {"softmax": (31.0, 29.0), "temperature(0.25)": (71.0, 69.0)}
    lost = losses(accuracies(alike | {"hardmax": (61.0, 59.0), TRUE_ITEM: (96.0, 94.0), TRUE_KEY: (51.0, 49.0)}))
    assert lost.rows() == [
        (64, 0, 31.0, 40.0, 20.0, 5.0, 4.0, "temperature(0.25)"),
        (64, 1, 29.0, 40.0, 20.0, 5.0, 6.0, "temperature(0.25)"),
    ]
    own = {"temperature(0.5)": (90.0, 50.0), "temperature(0.25)": (50.0, 90.0)}
    lost = losses(accuracies(dict.fromkeys(names, (50.0, 50.0)) | own))
    assert lost["best"].to_list() == ["temperature(0.25)", "temperature(0.5)"]
    assert lost["dispersion"].to_list() == [0.0, 0.0]


@pytest.mark.full
def test_accuracies_of_other_parameters_are_not_taken_for_those_of_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(ablation, "evaluate", None)  # which cannot be called
    config, parameters = load_checkpoint(SHIPPED / "paper")
    asked = ablation.Arguments(lengths=(16,), sets=8)
    settings = {"lengths": [16], "sets": 8, "normalizers": [*SOFT_TO_SHARP, "adaptive"]}
    settings |= {"versions": ablation.versions()}
    arguments = Recipe("as shipped", "paper", config), SHIPPED / "paper", tmp_path, asked, Console(quiet=True)
    for digest in ("of others", checkpoint_sha256(parameters)):
        content = {"settings": settings | {"checkpoint_sha256": digest}, "rows": [["softmax", 16, 0, 99.0]]}
        (tmp_path / "accuracies.json").write_text(json.dumps(content))
        with contextlib.nullcontext() if digest != "of others" else pytest.raises(TypeError, match="NoneType"):
            assert ablation.measured(*arguments).rows() == [("softmax", 16, 0, 99.0)]


@pytest.mark.rare
def test_the_study_writes_its_tables_into_a_page_and_keeps_its_runs(tmp_path, typed):
    page = tmp_path / "page.md"
    page.write_text("".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in ablation.Arguments.tables))
    sizes = "--steps 16 --batch 4 --seeds 2 --lengths 16 32 --sets 8 --groups steps width"
    places = f"--output {tmp_path}/out --workdir {tmp_path}/runs --page {page}"
    typed(ablation, *sizes.split(), *places.split())
    tables = page.read_text()
    assert [words in tables for words in ("| base |", "| paper |", "8 steps")] == [True, True, False]
    assert "steps,8 steps," in (tmp_path / "out" / "losses.csv").read_text()
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"accuracy.csv", "losses.csv", "ablation.json", "tables.md", "losses.png"}
    assert "measuring" not in typed(ablation, *sizes.split(), *places.split())
    assert page.read_text() == tables
