"""Run by test_distributed as each of two processes, of two simulated devices each.

`train.py` until process 1 gets a SIGTERM, `evaluate.py` of what was saved, then one seed on the devices of both.
"""

import dataclasses
import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from softmax_jax.experiment.report import findings
from softmax_jax.experiment.training import train
from softmax_jax.experiment.training.distributed import gathered
from softmax_jax.experiment.training.run import build_run
from softmax_jax.experiment.training.trainer import chunk_trainer
from tests.eight_devices import TASK, TINY

ROOT = Path(__file__).parents[1]
OPTIONS = [
    *("--steps", TINY.steps, "--seeds", TINY.seeds, "--chunk", TINY.chunk),
    *("--batch", TASK.batch, "--width", TASK.width, "--min-items", TASK.min_items, "--max-items", TASK.max_items),
    *("--optimizer", TINY.optimizer, "--learning-rate", TINY.learning_rate),
]


def script(name, *arguments):
    """The exit status of a script of the project."""
    sys.argv = [name, *map(str, arguments)]
    try:
        runpy.run_path(str(ROOT / name), run_name="__main__")
    except SystemExit as stop:
        return stop.code
    return 0


def ask_to_stop(*arguments, lines=train._lines):
    """A SIGTERM after the first chunk of this process alone."""
    os.kill(os.getpid(), signal.SIGTERM)
    return lines(*arguments)


def one_seed_on_all_devices():
    """Its parameters after a chunk: each step sums gradients of both processes."""
    run = build_run(dataclasses.replace(TINY, seeds=1))
    state, _ = chunk_trainer(run)(run.initial_state(), 0, TINY.chunk)
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(gathered(state.parameters))]


def main(address, process, output):
    cluster = ("--coordinator", address, "--processes", 2, "--process", process)
    if process == "1":
        train._lines = ask_to_stop
    findings.save_chart = lambda *arguments: []
    results: dict[str, Any] = {"trained": script("train.py", "quick", *OPTIONS, "--workdir", output / "run", *cluster)}
    measured = ("--lengths", 8, "--sets", 16, "--normalizers", "softmax", "--output", output / f"evaluation{process}")
    results["evaluated"] = script("evaluate.py", "--checkpoint", output / "run", *measured, *cluster)
    results["one seed"] = one_seed_on_all_devices()
    (output / f"results{process}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
