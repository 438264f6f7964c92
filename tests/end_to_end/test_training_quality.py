"""Presets trained to the end."""

import csv

import pytest

from tests.end_to_end.test_command_lines import script


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "accuracy"), [("quick", 97.0), ("notebook", 90.0)])
def test_a_preset_learns_to_find_the_largest_of_sixteen_items(preset, accuracy, tmp_path):
    trained = script("train.py", preset, "--workdir", "run", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    options = ("--lengths", 16, "--normalizers", "softmax", "--output", "out")
    done = script("evaluate.py", "--checkpoint", "run", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out" / "evaluation.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["accuracy"]) >= accuracy
