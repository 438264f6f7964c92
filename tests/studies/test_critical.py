import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.training.run_directory import SHIPPED
from studies import critical


def test_the_rule_grows_with_the_length_and_is_never_softer_than_the_model():
    assert critical.beta_at(64, 0.5, 16) == 4.0
    assert critical.beta_at(64, 0.01, 16) == 1.0


@pytest.mark.rare
def test_the_study_measures_writes_and_continues(tmp_path, monkeypatch, typed):
    words = ["--sets", 8, "--quick", "--lengths", 32, "--checkpoints", SHIPPED / "near_ties"]
    words += ["--workdir", tmp_path / "runs", "--output", tmp_path / "out"]
    monkeypatch.setattr(critical, "NEAREST_OF", (4,))
    typed(critical, *words)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"rules.png", "rules.csv", "near_ties.csv"}
    betas = pl.read_csv(tmp_path / "out" / "betas.csv")
    assert betas["n"].unique().sort().to_list() == [16, 32]
    assert (betas.filter(n=32)["rule"] == 1).all()
    measured = (tmp_path / "out" / "accuracy.csv").read_text()
    monkeypatch.setattr(critical, "evaluate", None)  # nothing is measured again
    monkeypatch.setattr(critical, "at_training_length", None)
    assert "wrote" in typed(critical, *words)
    assert (tmp_path / "out" / "accuracy.csv").read_text() == measured
    assert np.isfinite(betas["critical"].to_numpy()).all()
