import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.training.run_directory import SHIPPED
from studies import critical
from studies.common import SOFT_TO_SHARP, start
from studies.critical import ACCURACIES, CHOICES, RULE


def frames():
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
        (checkpoint, n, name, seed, 50.0 + place + seed - (4 if name == RULE else 0))
        for checkpoint in "ab"
        for n in (64, 256)
        for place, name in enumerate(names)
        for seed in (0, 1)
    ]
    return [pl.DataFrame(rows, of, orient="row") for of, rows in ((CHOICES, choices), (ACCURACIES, accuracies))]


@pytest.mark.full
def test_the_rule_grows_with_the_length_and_is_never_softer_than_the_model():
    assert critical.beta_at(64, 0.5, 16) == 4.0
    assert critical.beta_at(64, 0.01, 16) == 1.0


def test_what_is_chosen_and_what_it_costs():
    choices, accuracies = frames()
    found = critical.chosen(choices)
    assert found["a", 64] == SOFT_TO_SHARP[1]  # a tenth of a point below softmax
    assert {found["a", 1], found["b", 1], found["b", 64]} == {"hardmax"}
    means = critical.behind(accuracies)
    assert set(means["best"]) == {"hardmax"}
    assert means.filter(normalizer="softmax")["ahead"].to_list() == [-9.0] * 4
    assert means.filter(normalizer=RULE)["ahead"].to_list() == [-2.0] * 4


@pytest.mark.full
def test_the_study_measures_writes_and_continues(tmp_path, monkeypatch, capsys):
    sizes = ["--sets", "8", "--quick", "--lengths", "32", "--checkpoints", str(SHIPPED / "near_ties")]
    places = ["--workdir", str(tmp_path / "runs"), "--output", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["critical", *sizes, *places])
    monkeypatch.setattr(critical, "NEAREST_OF", (1, 4))
    start(critical.Arguments, "", critical.study)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"rules.png", "rules.csv", "near_ties.csv"}
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
