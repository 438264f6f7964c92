"""Run by test_sharded_training in a process of eight simulated devices, which divide a decoder's parameters."""

import json
import os
import signal
import sys
from pathlib import Path

import jax
from rich.console import Console

from projects.clrs_text.task import ClrsText
from softmax_jax.training import run, trainer as training
from softmax_jax.training.config import Config

TASK = ClrsText(("minimum", "insertion_sort"), lengths=(4, 5), sets=8, hidden=32, heads=2, layers=1)
TINY = Config(TASK, steps=8, chunk=4, optimizer="muon(consistent_rms=0.2)", learning_rate=0.01, sharded=True)


def held():
    """Numbers of the state that one device holds, and all there are."""
    leaves = jax.tree.leaves(training.initial_state(TINY))
    return sum(leaf.addressable_shards[0].data.size for leaf in leaves), sum(leaf.size for leaf in leaves)


def stopped(path):
    """A run that is interrupted in its first chunk."""
    trainer = training.chunk_trainer(TINY)

    def train_chunk(state, step, steps):
        os.kill(os.getpid(), signal.SIGINT)
        return trainer(state, step, steps)

    run.chunk_trainer = lambda config: train_chunk
    try:
        run.run(TINY, path, Console(quiet=True))
    except run.Interrupted:
        return
    raise AssertionError("the run was not interrupted")


if __name__ == "__main__":
    output = Path(sys.argv[1])
    stopped(output / "run")
    (output / "held.json").write_text(json.dumps(held()))
