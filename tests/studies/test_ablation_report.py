import polars as pl
import pytest

from softmax_jax.measures.evaluation import TRUE_ITEM, TRUE_KEY
from softmax_jax.normalizers.registry import METHODS
from softmax_jax.report.drawing import save_chart
from softmax_jax.studies import ablation_report as report
from softmax_jax.studies.ablation import ACCURACIES, BASE, PAIRS, SOFT_TO_SHARP, Outcome, Recipe, losses
from softmax_jax.studies.ablation_run import of_recipe
from softmax_jax.training.config import Config
from tests.report.charts import texts_of

LENGTHS = (64, 256)


def outcome(group: str, name: str, softmax: float, trained: str = "softmax") -> Outcome:
    """Made so that at any length 10 % are lost to dispersion alone, 5 % to value, 5 % to both, the rest to the key."""
    accuracy = dict.fromkeys((*METHODS, *SOFT_TO_SHARP), softmax) | {
        "hardmax": softmax + 10,
        TRUE_ITEM: 95.0,
        TRUE_KEY: 80.0,
    }
    rows = [
        (normalizer, n, seed, value + spread)
        for normalizer, value in accuracy.items()
        for n in LENGTHS
        for seed, spread in ((0, 1.0), (1, -1.0))
    ]
    return Outcome(Recipe(group, name, Config(normalizer=trained)), pl.DataFrame(rows, ACCURACIES, orient="row"))


FOUND = [
    outcome(BASE, BASE, 60.0),
    outcome("width", "width 32", 40.0),
    outcome(PAIRS, "entmax15", 50.0, "entmax15"),
]
ACCURACY = pl.concat(of_recipe(recipe, frame) for recipe, frame in FOUND)
LOST = pl.concat(of_recipe(recipe, losses(frame)) for recipe, frame in FOUND)


@pytest.mark.full
def test_the_table_has_accuracy_interval_and_the_losses_of_every_recipe():
    head, _, base, width, _ = report.losses_table(LOST).splitlines()
    assert head.count("|") == base.count("|")
    assert "n = 64: softmax ±" in head
    assert base.startswith("| base | base | 60.0 ± 12.7 |")
    assert "64: dispersion / key / both / value" in head
    assert "10.0 ± 0.0 / 20.0 ± 0.0 / 5.0 ± 0.0 / 5.0 ± 12.7" in base
    assert "10.0 ± 0.0 / 40.0 ± 0.0 / 5.0 ± 0.0 / 5.0 ± 12.7" in width


@pytest.mark.full
def test_recipes_are_named_once():
    named = LOST.select("group", "recipe").unique(maintain_order=True).select(report.label())
    assert named["recipe"].to_list() == ["base", "width 32", f"{PAIRS}: entmax15"]


def test_the_best_pair_is_named():
    table = report.pairs_table(ACCURACY, 256).splitlines()
    assert table[2:] == ["| softmax | 60.0 | 60.0 | 70.0 (hardmax) |", "| entmax15 | 50.0 | 50.0 | 60.0 (hardmax) |"]


@pytest.mark.full
def test_one_normalizer_in_training_makes_no_pairs():
    assert report.pairs_chart(ACCURACY.filter(pl.col("group") != PAIRS), 64) is None


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("losses", {"64 items", "dispersion", "key", "% of sets", "width 32"}),
        ("pairs", {"normalizer in training", "normalizer in the test", "entmax15", "accuracy (%)"}),
    ],
)
def test_a_chart_names_its_axes_and_what_it_compares(name, texts, tmp_path):
    charts = {
        "losses": report.losses_chart(LOST),
        "pairs": report.pairs_chart(ACCURACY, 256),
    }
    _, svg = save_chart(charts[name], tmp_path / name)
    found = texts_of(svg.read_text())
    assert texts <= found
