"""The published recreation's stream of sets, and what a model answers of it."""

import sys

import jax
import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from studies import notebook
from studies.common import start
from tests.msgpack import to_bytes

SOFTMAX = (100.0, 99.72, 100.0, 99.72, 99.72, 98.30, 94.60, 85.51, 71.31, 53.98, 32.39, 23.86)
ADAPTIVE = (100.0, 99.72, 100.0, 100.0, 99.72, 98.86, 97.73, 95.17, 88.07, 70.45, 45.74, 37.50)
"""Accuracies of the first model of `paper_float32`, at 2, 4, 8, … 4,096 items."""


def test_the_stream_is_the_published_one():
    """Written out once more, with raw keys, straight from the description of the recreation."""
    batch = jax.tree.map(lambda leaf: leaf.reshape(11, 32, *leaf.shape[1:]), notebook.stream(12))
    with jax.threefry_partitionable(False):
        for index, seed in enumerate(range(11, 22)):
            _, key = jax.random.split(jax.random.PRNGKey(seed))
            _, k_rho, k_kappa, k_query = jax.random.split(key, 4)
            rho = jax.random.uniform(k_rho, (32, 12, 1))
            kappa = jax.random.randint(k_kappa, (32, 12), 0, 10)
            assert np.array_equal(batch.items[index, ..., :1], rho)
            assert np.array_equal(batch.items[index, ..., 1:].argmax(-1), kappa)
            assert np.array_equal(batch.query[index], jax.random.uniform(k_query, (32, 1, 1))[:, 0])
            assert np.array_equal(batch.answer[index], kappa[np.arange(32), np.asarray(rho)[..., 0].argmax(1)])


@pytest.mark.parametrize(
    "lengths",
    [
        (2, 128),
        pytest.param(notebook.LENGTHS[:6], marks=pytest.mark.full),
        pytest.param(notebook.LENGTHS, marks=pytest.mark.rare),
    ],
    ids=len,
)
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
