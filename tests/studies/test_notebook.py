"""The published recreation's stream of sets, and what a model answers of it."""

import sys

import jax
import polars as pl
import pytest

from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from studies import notebook
from studies.common import start
from tests.msgpack import to_bytes

SOFTMAX = (100.0, 99.72, 100.0, 99.72, 99.72, 98.30, 94.60, 85.51, 71.31, 53.98, 32.39, 23.86)
ADAPTIVE = (100.0, 99.72, 100.0, 100.0, 99.72, 98.86, 97.73, 95.17, 88.07, 70.45, 45.74, 37.50)
"""Accuracies of the first model of `paper_float32`, at 2, 4, 8, … 4,096 items."""


@pytest.mark.parametrize("lengths", [(2, 128), pytest.param(notebook.LENGTHS, marks=pytest.mark.rare)], ids=len)
def test_the_accuracies_of_a_model_are_those_of_every_day(lengths, tmp_path, monkeypatch):
    _, parameters = load_checkpoint(SHIPPED / "paper_float32")
    (tmp_path / "x.msgpack").write_bytes(to_bytes(jax.tree.map(lambda leaf: leaf[0], parameters)))
    monkeypatch.setattr(notebook, "LENGTHS", lengths)
    command = ["notebook", str(tmp_path / "x.msgpack"), "--output", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", command)
    start(notebook.Arguments, notebook.__doc__, notebook.study)
    frame = pl.read_csv(tmp_path / "out" / "accuracies.csv")
    for name, expected in (("softmax", SOFTMAX), ("adaptive", ADAPTIVE)):
        by_length = dict(frame.filter(normalizer=name).select("n", "accuracy").rows())
        assert {n: round(accuracy, 2) for n, accuracy in by_length.items()} == {
            n: accuracy for n, accuracy in zip((2**power for power in range(1, 13)), expected) if n in lengths
        }
