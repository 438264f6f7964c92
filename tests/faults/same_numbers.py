"""What test_determinism compares, computed by a process of its own: what is drawn, evaluated and trained.

    python -m tests.faults.same_numbers OUTPUT DEVICES THREADS [COORDINATOR PROCESSES PROCESS]

Two seeds at the width of the shipped models, so that operations are large enough to be divided among threads.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from softmax_jax.measures import evaluation
from softmax_jax.measures.table import EVALUATION
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.runtime import devices
from softmax_jax.runtime.distributed import ALONE, Cluster, gathered, joined
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.training import trainer as training
from softmax_jax.training.config import Config

# By sgd: adam would blow up the rounding of gradients that are zero in theory, as those of the key's bias.
CONFIG = Config(
    MaxRetrieval(sets=128, min_items=16, max_items=16), steps=6, seeds=2, chunk=6, optimizer="sgd", learning_rate=0.1
)
SEEDS = tuple(range(CONFIG.seeds))
ITEMS = 300
SETS = 64


def named(name: str, tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a tree as numpy arrays, by name."""
    return {name + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def drawn_for_training() -> dict[str, np.ndarray]:
    """The batches of two steps, as the devices that share a seed hold them."""
    mesh = training.training_mesh(CONFIG)

    def own(seed: Any, step: Any) -> Any:
        return devices.own_sets(CONFIG.task.training_batch(seed, step), mesh.shape["sets"])

    def of_device(seeds: Any) -> Any:
        return [jax.vmap(own, (0, None))(seeds, jnp.int32(step)) for step in (0, 1)]

    spread = jax.shard_map(of_device, mesh=mesh, in_specs=P("seeds"), out_specs=P("seeds", "sets"), check_vma=False)
    return named("data of training", gathered(jax.jit(spread)(np.arange(CONFIG.seeds, dtype=np.int32))))


def drawn_for_evaluation(parameters: training.Parameters) -> dict[str, np.ndarray]:
    """The sets, as the devices hold them, whatever batches they come in."""
    task, keys = CONFIG.task, evaluation.set_keys(SEEDS, ITEMS, SETS)

    def draw(_: Any, key: Any, __: Any) -> Any:
        return task.test_batch(key, ITEMS, 1)

    found = evaluation.on_every_set(draw, evaluation.models_of(task), parameters, keys, task.at_once(ITEMS))
    return named("data of evaluation", evaluation.set_by_set(gathered(found)))


def numbers() -> dict[str, np.ndarray]:
    """Everything, by name: data, rows of an evaluation, losses and parameters of a training."""
    state, metrics = training.chunk_trainer(CONFIG)(training.initial_state(CONFIG), 0, CONFIG.chunk)
    found = named("trained", gathered(state.parameters)) | named("training", gathered(metrics))
    normalizers = {name: normalizer(name) for name in ("softmax", "ssmax")}
    _, initialize = training.build_model(CONFIG.task)
    parameters = jax.jit(jax.vmap(initialize))(jax.random.split(jax.random.key(0), CONFIG.seeds))
    measured = evaluation.evaluate(parameters, normalizers, seeds=SEEDS, lengths=(ITEMS,), sets=SETS)
    found["evaluated"] = evaluation.frame_of(measured).select(*EVALUATION).to_numpy()
    return found | drawn_for_evaluation(parameters) | drawn_for_training()


def main(output: str, count: str, threads: str, *cluster: str) -> None:
    # Before JAX starts its threads, of which it makes one for each core that it may use.
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, usable[: int(threads)])
    flags = re.sub(r"\S*device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}"
    coordinator, processes, process = cluster or (None, 1, None)
    joining = Cluster(coordinator, int(processes), int(process or 0)) if coordinator else ALONE
    with joined(joining):
        found = numbers()
        np.savez(Path(output), **found)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main(*sys.argv[1:])
