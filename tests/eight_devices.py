"""Run by test_distributed in a process of eight simulated devices: what it computes on them, and on one of them."""

import io
import json
import os
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from rich.console import Console

from softmax_jax.experiment.measures import evaluation
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training import distributed, train, trainer
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.run import build_model, build_run
from softmax_jax.normalizers.registry import normalizer
from tests import communication

TASK = MaxRetrieval(batch=128, min_items=3, max_items=3, width=8)
TINY = Config(TASK, steps=12, seeds=2, chunk=6, optimizer="sgd", learning_rate=0.1)


ALL = jax.devices


def use(count):
    jax.devices = lambda: ALL()[:count]
    jax.clear_caches()


def numbers(tree):
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(distributed.gathered(tree))]


def drawn(mesh):
    """The batches of two steps, as the devices that share a seed hold them."""

    def part(seed, step):
        return trainer.part_of_batch(TINY.task.training_batch(seed, step), mesh.shape["sets"])

    def on_device(seeds):
        return [jax.vmap(part, (0, None))(seeds, step) for step in (jnp.int32(0), jnp.int32(1))]

    specs = {"in_specs": P("seeds"), "out_specs": P("seeds", "sets"), "check_vma": False}
    return numbers(jax.jit(jax.shard_map(on_device, mesh=mesh, **specs))(jnp.arange(TINY.seeds)))


def evaluated():
    _, initialize = build_model(MaxRetrieval(width=8))
    parameters = jax.jit(jax.vmap(initialize))(jax.random.split(jax.random.key(0), 2))
    named = {name: normalizer(name) for name in ("softmax", "ssmax")}
    measured = evaluation.evaluate(parameters, named, seeds=(0, 1), lengths=(8,), sets=128)
    return [row[1:] for row in evaluation.frame_of(measured).rows()]


def stop_after_a_chunk(program, path):
    """A run that is interrupted in its first chunk."""

    def train_chunk(state, step):
        os.kill(os.getpid(), signal.SIGINT)
        return program(state, step)

    train.compiled_chunk = lambda run, state, steps: train_chunk
    try:
        train.train(TINY, path, Console(file=io.StringIO()))
    except train.Interrupted:
        return
    raise AssertionError("the run was not interrupted")


def main(output):
    results, programs = {}, {}
    for count in (1, 2, 4, 8):
        use(count)
        run = build_run(TINY)
        programs[count] = train.compiled_chunk(run, run.shapes, TINY.chunk)
        mesh = run.mesh.devices.shape
        moved = (
            communication.moved_bytes(programs[count].as_text()),
            communication.training_bytes(TINY.seeds, TASK.width, TINY.chunk, *mesh),
        )
        results[f"on {count}"] = {"moved": moved, "mesh": mesh}
        if count in (1, 8):
            state, metrics = programs[count](run.initial_state(), 0)
            results[f"on {count}"] |= {"trained": numbers((state.parameters, metrics))}
            results[f"on {count}"] |= {"drawn": drawn(run.mesh), "evaluated": evaluated()}
    stop_after_a_chunk(programs[8], output / "run")
    (output / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
