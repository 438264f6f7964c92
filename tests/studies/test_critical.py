import numpy as np
import polars as pl
import pytest

from docs.pictures import DOCS
from softmax_jax.training.run_directory import SHIPPED
from studies import critical
from studies.common import SOFT_TO_SHARP, start
from studies.critical import ACCURACIES, BETAS, CHOICES, RULE
from tests.report.charts import values_of

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def frames(sharper=0.0):
    """Two checkpoints, of which the first tells candidates apart on near ties; softmax is worst on long sets."""
    of_sixteen = {name: 99.0 - place / 10 for place, name in enumerate(SOFT_TO_SHARP)}
    choices = [
        (checkpoint, count, name, seed, value if count == 64 and checkpoint == "a" else 99.0)
        for checkpoint in "ab"
        for count in (1, 64)
        for name, value in of_sixteen.items()
        for seed in (0, 1)
    ]
    names = (*SOFT_TO_SHARP, "adaptive", RULE)
    accuracies = [
        (checkpoint, n, name, seed, 50.0 + place + seed + (sharper if name == RULE else 0))
        for checkpoint in "ab"
        for n in (64, 256)
        for place, name in enumerate(names)
        for seed in (0, 1)
    ]
    betas = [(checkpoint, n, seed, n / 64, n / 32) for checkpoint in "ab" for n in (16, 64, 256) for seed in (0, 1)]
    schemas = (CHOICES, choices), (BETAS, betas), (ACCURACIES, accuracies)
    return [pl.DataFrame(rows, columns, orient="row") for columns, rows in schemas]


@pytest.mark.full
def test_the_rule_grows_with_the_length_and_is_never_softer_than_the_model():
    assert critical.beta_at(64, 0.5, 16) == 4.0
    assert critical.beta_at(64, 0.01, 16) == 1.0


def test_what_is_chosen_and_what_it_costs():
    choices, betas, accuracies = frames(sharper=-4.0)
    found = critical.chosen(choices)
    assert found["a", 64] == SOFT_TO_SHARP[1]  # a tenth of a point below softmax
    assert {found["a", 1], found["b", 1], found["b", 64]} == {"hardmax"}
    means = critical.behind(accuracies)
    assert set(means["best"]) == {"hardmax"}
    assert means.filter(normalizer="softmax")["ahead"].to_list() == [-9.0] * 4
    assert means.filter(normalizer=RULE)["ahead"].to_list() == [-2.0] * 4
    assert "| a | 64 | 0.900 | temperature(0.5) | -8.00 | -8.00 |" in critical.choices_table(choices, accuracies)
    row = critical.rules_table(betas, accuracies).splitlines()[2]
    assert row == "| a | 64 | 1 | 2 | 50.50 | 60.50 | 59.50 (hardmax) | 57.50 | -2.00 ± 0.00 |"


@pytest.mark.full
def test_the_chart_has_a_panel_for_each_checkpoint_and_every_way():
    choices, _, accuracies = frames()
    chart = critical.rules_chart(choices, accuracies).to_dict()
    assert [panel["title"]["text"] for panel in chart["concat"]] == ["a", "b"]
    ways = {record["way"] for record in values_of(critical.rules_chart(choices, accuracies))}
    assert len(ways) == 5
    assert "the sharpest on nearest ties of 64" in ways


@pytest.mark.full
def test_the_page_has_the_tables_of_its_data():
    choices, betas, accuracies = (
        pl.read_csv(DOCS / "data" / "critical" / f"{name}.csv", schema=columns)
        for name, columns in (("choices", CHOICES), ("betas", BETAS), ("accuracy", ACCURACIES))
    )
    page = (DOCS / "frontier.md").read_text()
    assert critical.choices_table(choices, accuracies) in page
    assert critical.rules_table(betas, accuracies) in page


@pytest.mark.full
def test_the_study_measures_writes_and_continues(tmp_path, monkeypatch, capsys):
    sizes = ["--sets", "8", "--quick", "--lengths", "32", "--checkpoints", str(SHIPPED / "near_ties")]
    places = ["--workdir", str(tmp_path / "runs"), "--output", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["critical", *sizes, *places])
    monkeypatch.setattr(critical, "NEAREST_OF", (1, 4))
    start(critical.Arguments, "", critical.study)
    assert (tmp_path / "out" / "rules.png").is_file()
    betas = pl.read_csv(tmp_path / "out" / "betas.csv")
    assert betas["n"].unique().sort().to_list() == [16, 32]
    assert (betas.filter(n=32)["rule"] == 1).all()
    measured = (tmp_path / "out" / "accuracy.csv").read_text()
    monkeypatch.setattr(critical, "evaluate", None)  # nothing is measured again
    monkeypatch.setattr(critical, "at_training_length", None)
    start(critical.Arguments, "", critical.study)
    assert (tmp_path / "out" / "accuracy.csv").read_text() == measured
    assert np.isfinite(betas["critical"].to_numpy()).all()
    assert "wrote" in capsys.readouterr().out
