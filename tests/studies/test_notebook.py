"""The published recreation's stream of sets, and what a model answers of it."""

import jax
import polars as pl
import pytest

from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from studies import notebook
from tests.msgpack import to_bytes

SOFTMAX = (100.0, 99.72, 100.0, 99.72, 99.72, 98.30, 94.60, 85.51, 71.31, 53.98, 32.39, 23.86)
ADAPTIVE = (100.0, 99.72, 100.0, 100.0, 99.72, 98.86, 97.73, 95.17, 88.07, 70.45, 45.74, 37.50)
"""Accuracies of the first model of `paper_float32`, at 2, 4, 8, … 4,096 items."""


@pytest.mark.parametrize("lengths", [(128,), pytest.param(notebook.LENGTHS, marks=pytest.mark.rare)], ids=len)
def test_the_accuracies_of_a_model_are_those_of_every_day(lengths, tmp_path, monkeypatch, typed):
    _, parameters = load_checkpoint(SHIPPED / "paper_float32")
    (tmp_path / "x.msgpack").write_bytes(to_bytes(jax.tree.map(lambda leaf: leaf[0], parameters)))
    monkeypatch.setattr(notebook, "LENGTHS", lengths)
    typed(notebook, tmp_path / "x.msgpack", "--output", tmp_path / "out")
    frame = pl.read_csv(tmp_path / "out" / "accuracies.csv")
    for name, expected in (("softmax", SOFTMAX), ("adaptive", ADAPTIVE)):
        by_length = dict(frame.filter(normalizer=name).select("n", pl.col("accuracy").round(2)).rows())
        assert by_length == {n: expected[n.bit_length() - 2] for n in lengths}
