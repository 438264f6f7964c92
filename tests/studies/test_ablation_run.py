import json

import pytest
from rich.console import Console

from softmax_jax.measures.fits import checkpoint_sha256
from softmax_jax.studies import ablation_run
from softmax_jax.studies.ablation import Recipe
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint


class MeasuredError(Exception):
    pass


def test_accuracies_of_other_parameters_are_not_taken_for_those_of_a_checkpoint(tmp_path, monkeypatch):
    def evaluate(*args, **options):
        raise MeasuredError

    monkeypatch.setattr(ablation_run, "evaluate", evaluate)
    config, parameters = load_checkpoint(SHIPPED / "paper")
    settings = {"lengths": [16], "sets": 8, "versions": ablation_run.versions()}
    settings["normalizers"] = [*ablation_run.SOFT_TO_SHARP, "adaptive"]
    arguments = Recipe("as shipped", "paper", config), SHIPPED / "paper", [16], 8, tmp_path, Console(quiet=True)
    for digest, kept in [(checkpoint_sha256(parameters), True), ("of others", False)]:
        content = {"settings": settings | {"checkpoint_sha256": digest}, "rows": [["softmax", 16, 0, 99.0]]}
        (tmp_path / "accuracies.json").write_text(json.dumps(content))
        if kept:
            assert ablation_run.measured(*arguments).frame.rows() == [("softmax", 16, 0, 99.0)]
        else:
            with pytest.raises(MeasuredError):
                ablation_run.measured(*arguments)
