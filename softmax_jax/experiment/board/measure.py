"""Measures one cell of the board: a method on a task, trained with it and swapped in after softmax, at all lengths.

Every model of a cell, one for each learning rate and seed, is trained by one program. The same program serves the
swapped column: there it moves only the numbers that the method learns, and the rest stays as softmax left it.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Key

from softmax_jax import __version__
from softmax_jax.experiment import REPOSITORY
from softmax_jax.experiment.board.protocol import COLUMNS, Job, Protocol
from softmax_jax.experiment.measures.sets import Draw, key_of, set_keys
from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.measures.units import slug
from softmax_jax.experiment.tasks.items import ItemTask
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.run import Parameters, Run, TrainState, build_run
from softmax_jax.experiment.training.trainer import train_steps
from softmax_jax.files import read_bytes, read_json, versions, write_json, write_whole
from softmax_jax.normalizers.registry import imported_for
from softmax_jax.normalizers.user_modules import source_of
from softmax_jax.refusal import Refusal

QUICK_TO_COMPILE = {"xla_backend_optimization_level": 1}
"""Options of XLA for programs that take longer to compile than to run: at 2, the default, compiling takes twice as long
and the program is no faster."""
POSITIONS_AT_ONCE = 2**14
"""The most positions that are tested at once, so that they stay in the cache."""


def scores_of(run: Run, parameters: Parameters, batch: Any) -> Float[Array, "sets *queries classes"]:
    """Returns the class scores of the answers; the last block computes no other position."""
    task: Any = run.task
    model = nnx.merge(run.structure, parameters)
    return task.answers(model(batch.inputs, batch.mask, last=getattr(task, "queries", 1)))


def times_tree() -> optax.GradientTransformation:
    """Returns the transformation that multiplies each leaf by a number of its state, which starts as 1."""

    def ones(params: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.ones((), leaf.dtype), params)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return jax.tree.map(jnp.multiply, updates, state), state

    return optax.GradientTransformation(ones, update)


@functools.cache
def build(protocol: Protocol, job: Job, method: str) -> Run:
    """Returns the run of a cell, whose optimizer has its learning rate in its state."""
    run = build_run(Config(job.task, steps=job.steps, seeds=protocol.seeds, normalizer=method, l2=0.0))
    warm_up = min(protocol.warm_up, job.steps // 2)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1.0, warm_up, job.steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule), times_tree())
    return dataclasses.replace(run, optimizer=optimizer)


@functools.partial(jax.jit, static_argnames="run", compiler_options=QUICK_TO_COMPILE)
def train_models(run: Run, parameters: Parameters, rates: Array, moved: Parameters, first_step: Array) -> Parameters:
    """Trains every seed at every rate; returns parameters with leading axes (rates, seeds).

    `moved` is True for the leaves that train and False for the others. The batches are those from `first_step` on.
    """

    def loss(parameters: Parameters, batch: Any, _: Any) -> tuple[Array, Array]:
        kept = jax.tree.map(lambda leaf, moves: jnp.where(moves, leaf, jax.lax.stop_gradient(leaf)), parameters, moved)
        scores = scores_of(run, kept, batch)
        return run.task.loss(scores, batch), run.task.accuracy(scores, batch)

    def model(rate: Array, parameters: Parameters, seed: Array) -> Parameters:
        initial: Any = run.optimizer.init(parameters)
        *states, factors = initial
        optimizer = (*states, jax.tree.map(lambda factor: rate * factor, factors))
        state = TrainState(parameters, optimizer, seed)
        gradient = jax.value_and_grad(loss, has_aux=True)
        state, _ = train_steps(run, gradient, state, first_step=first_step, steps=run.config.steps)
        return state.parameters

    seeds = jnp.asarray(run.config.all_seeds, jnp.int32)
    return jax.vmap(jax.vmap(model, (None, 0, 0)), (0, None, None))(rates, parameters, seeds)


@functools.partial(jax.jit, static_argnames=("run", "room", "at_once"), compiler_options=QUICK_TO_COMPILE)
def read_sets(
    run: Run, models: Parameters, keys: Key[Array, "seeds sets"], length: Array, room: int, at_once: int
) -> tuple[Float[Array, "seeds sets"], Float[Array, "seeds sets"]]:
    """Returns accuracy in percent and loss of each set of each seed.

    The program has room for more items than the length, which are masked, where the task can hide them. At most
    `at_once` sets are read together.
    """
    task = run.task

    def read(parameters: Parameters, key: Array) -> tuple[Array, Array]:
        if isinstance(task, ItemTask):
            batch = jax.tree.map(lambda leaf: leaf[None], task.sequence(key, length, room))
        else:
            batch = task.test_batch(key, room, 1)
        scores = scores_of(run, parameters, batch)
        return task.accuracy(scores, batch), task.loss(scores, batch)

    def read_seed(seed: tuple[Parameters, Array]) -> tuple[Array, Array]:
        return jax.lax.map(functools.partial(read, seed[0]), seed[1], batch_size=at_once)

    return jax.lax.map(read_seed, (models, keys))


def read_models(
    run: Run, job: Job, parameters: Parameters, length: int, draw: int
) -> tuple[Float[np.ndarray, " seeds"], Float[np.ndarray, " seeds"]]:
    """Returns accuracy in percent and loss of each seed, the mean over fresh sets of a length."""
    room = max(job.lengths) if isinstance(run.task, ItemTask) else length
    keys = set_keys(run.config.all_seeds, length, job.sets, key_of(draw))
    at_once = max(1, min(job.sets, POSITIONS_AT_ONCE // room))
    models = jax.tree.map(np.asarray, parameters)
    accuracy, loss = map(np.asarray, read_sets(run, models, keys, jnp.int32(length), room, at_once))
    return accuracy.mean(1), loss.mean(1)


def best_of_rates(
    protocol: Protocol, run: Run, job: Job, start: Parameters, moved: Parameters, first_step: int
) -> tuple[float, Parameters]:
    """Trains at every rate; returns the rate with the least mean loss on sets that no test has, and its models."""
    start = jax.tree.map(np.asarray, start)  # wherever it lay, so that both columns share a program
    trained = train_models(run, start, jnp.asarray(protocol.rates, jnp.float32), moved, jnp.int32(first_step))
    trained = jax.tree.map(np.asarray, trained)
    by_rate = [jax.tree.map(lambda leaf, place=place: leaf[place], trained) for place in range(len(protocol.rates))]
    losses = [read_models(run, job, models, job.task.length, Draw.FIT)[1].mean() for models in by_rate]
    best = int(np.nan_to_num(np.array(losses), nan=np.inf).argmin())
    return protocol.rates[best], by_rate[best]


def swap_models(
    protocol: Protocol, run: Run, job: Job, softmax: Parameters, initial: Parameters
) -> tuple[float | None, Parameters]:
    """Returns the models of softmax with the method swapped in, whose numbers learn at the best rate, if it has any."""
    leaves = dict(jax.tree_util.tree_leaves_with_path(softmax))
    start = jax.tree_util.tree_map_with_path(lambda path, leaf: leaves.get(path, leaf), initial)
    moved = jax.tree_util.tree_map_with_path(lambda path, _: jnp.asarray(path not in leaves), start)
    if not any(jax.tree.leaves(moved)):
        return None, start
    return best_of_rates(protocol, run, job, start, moved, job.steps)


def measure_cell(protocol: Protocol, job: Job, method: str, directory: Path) -> dict[str, Any]:
    """Returns the cell of a method on a task. Softmax's cell also writes its models, which others are swapped into."""
    run = build(protocol, job, method)
    initial = run.initial_state().parameters
    cell = {"method": method, "task": job.name, "protocol": protocol.digest, "code": code_of(method)}
    cell |= {"parameters": sum(leaf[0].size for leaf in jax.tree.leaves(initial)), "versions": versions()}
    cell |= {"commit": commit(), "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    started = time.process_time()
    every_leaf = jax.tree.map(lambda _: jnp.asarray(True), initial)
    rate, models = best_of_rates(protocol, run, job, initial, every_leaf, 0)
    trained = read_column(run, job, rate, models, started)
    if method == BASELINE:
        write_models(directory / f"{job.name}.npz", models)
        return cell | {"trained": trained, "swapped": trained | {"rate": None, "cpu_seconds": 0.0}}
    started = time.process_time()
    softmax = read_models_of_softmax(protocol, job, directory)
    rate, models = swap_models(protocol, run, job, softmax, initial)
    return cell | {"trained": trained, "swapped": read_column(run, job, rate, models, started)}


def read_column(run: Run, job: Job, rate: float | None, models: Parameters, started: float) -> dict[str, Any]:
    """Returns a column of a cell: rate, accuracy and loss of each seed by length, and CPU seconds since the start."""
    tested = {str(length): read_models(run, job, models, length, Draw.TABLES) for length in job.lengths}
    accuracy, loss = (
        {length: np.round(values[place].astype(float), 4).tolist() for length, values in tested.items()}
        for place in (0, 1)
    )
    seconds = round(time.process_time() - started, 1)
    return {"rate": rate, "accuracy": accuracy, "loss": loss, "cpu_seconds": seconds}


@functools.cache
def commit() -> str:
    """Returns the commit of the checkout that the package lies in; without one, or without git, the version."""
    with contextlib.suppress(OSError):
        words = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
        done = subprocess.run(words, capture_output=True, text=True)
        if REPOSITORY and not done.returncode:
            return done.stdout.strip()
    return __version__


def write_models(path: Path, models: Parameters) -> None:
    """Writes the arrays of models in their order."""
    file = io.BytesIO()
    np.savez(file, *jax.tree.map(np.asarray, jax.tree.leaves(models)))
    write_whole(path, file.getvalue())


def read_models_of_softmax(protocol: Protocol, job: Job, directory: Path) -> Parameters:
    """Returns the models of softmax that its cell has written."""
    shapes = build(protocol, job, BASELINE).shapes.parameters
    with np.load(io.BytesIO(read_bytes(directory / f"{job.name}.npz"))) as arrays:
        return jax.tree.unflatten(jax.tree.structure(shapes), [jnp.asarray(arrays[name]) for name in arrays.files])


def code_of(method: str) -> str:
    """Returns the SHA-256 of the module of somebody's own method, by which a cell of older code is known; else ''."""
    module = imported_for(method)
    return hashlib.sha256(source_of(module).encode()).hexdigest() if module else ""


def cell_path(directory: Path, method: str, job: Job) -> Path:
    """Returns the file of a cell."""
    return directory / slug(method) / f"{job.name}.json"


def read_cell(path: Path, protocol: Protocol) -> dict[str, Any]:
    """Returns a cell. Raises Refusal for one of another protocol, which is never mixed in."""
    cell = read_json(path, "method", "task", "protocol", "code", *COLUMNS)
    if cell["protocol"] != protocol.digest:
        ours, theirs = protocol.digest[:12], str(cell["protocol"])[:12]
        raise Refusal(f"{path} is of protocol {theirs}, and this is {ours}: choose another --output")
    return cell


def measure_missing(protocol: Protocol, methods: list[str], directory: Path) -> Iterator[dict[str, Any]]:
    """Yields each cell, measured unless its file is there already with the same code.

    Softmax goes before the others on each task, whose models they are swapped into.
    """
    for method in [BASELINE, *(name for name in methods if name != BASELINE)]:
        for job in protocol.jobs:
            path = cell_path(directory, method, job)
            if not path.exists() or read_cell(path, protocol)["code"] != code_of(method):
                write_json(path, measure_cell(protocol, job, method, directory))
                jax.clear_caches()  # its programs serve no other cell
            yield read_cell(path, protocol)
