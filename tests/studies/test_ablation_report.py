import polars as pl
import pytest

from softmax_jax.measures.evaluation import TRUE_ITEM, TRUE_KEY
from softmax_jax.normalizers.registry import METHODS
from softmax_jax.report.drawing import save_chart
from softmax_jax.studies import ablation_report as report
from softmax_jax.studies.ablation import ACCURACIES, BASE, SOFT_TO_SHARP, Outcome, Recipe
from softmax_jax.training.config import Config
from tests.report.charts import texts_of

LENGTHS = (64, 256)


def outcome(group: str, name: str, softmax: float, trained: str = "softmax") -> Outcome:
    """Made so that at any length 10 % are lost to dispersion, 5 % to value, and the rest to the key."""
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
    outcome(report.PAIRS, "entmax15", 50.0, "entmax15"),
]


def test_the_table_has_accuracy_interval_and_the_three_losses_of_every_recipe():
    head, _, base, width, _ = report.losses_table(FOUND).splitlines()
    assert head.count("|") == base.count("|")
    assert "n = 64: softmax ±" in head
    assert base.startswith("| base | base | 60.0 ± 12.7 |")
    assert "10.0 ± 0.0 / 25.0 ± 0.0 / 5.0 ± 12.7" in base
    assert "10.0 ± 0.0 / 45.0 ± 0.0 / 5.0 ± 12.7" in width


def test_the_other_table_mends_the_key_first():
    head, _, base, *_ = report.key_first_table(FOUND).splitlines()
    assert "64: key / dispersion / value" in head
    assert "20.0 ± 0.0 / 15.0 ± 0.0 / 5.0 ± 12.7" in base


def test_recipes_are_named_once():
    assert [report.label(one) for one in FOUND] == ["base", "width 32", f"{report.PAIRS}: entmax15"]


def test_the_best_pair_is_named():
    table = report.pairs_table(FOUND, 256).splitlines()
    assert table[2:] == ["| softmax | 60.0 | 60.0 | 70.0 (hardmax) |", "| entmax15 | 50.0 | 50.0 | 60.0 (hardmax) |"]


def test_one_normalizer_in_training_makes_no_pairs():
    assert report.pairs_chart(FOUND[:2], 64) is None


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("losses", {"64 items", "dispersion", "key", "% of sets", "width 32"}),
        ("pairs", {"normalizer in training", "normalizer in the test", "entmax15", "accuracy (%)"}),
    ],
)
def test_a_chart_names_its_axes_and_what_it_compares(name, texts, tmp_path):
    charts = {
        "losses": report.losses_chart(FOUND),
        "pairs": report.pairs_chart(FOUND, 256),
    }
    _, svg = save_chart(charts[name], tmp_path / name)
    found = texts_of(svg.read_text())
    assert texts <= found
