"""How cost grows as a size becomes four times as large: that of training, evaluation and attention, and of products.

    python -m benchmarks.growth

Each contender has one size of the base four times as large, and runs in a process of its own; all take turns. The floor
of each is that of its matrix products alone, at the rate of large ones on all cores in the same run.
"""

import functools
import os
from collections.abc import Callable
from typing import NamedTuple

import jax

import softmax_jax as sj
from benchmarks.costs import item_multiply_adds, products_alone, step_multiply_adds
from benchmarks.evaluation import NORMALIZERS, seconds_per_item
from benchmarks.timing import Grown, Result, contest, processes_in_turn, timed
from softmax_jax.experiment.commands.process import one_device_per_core
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training import trainer
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.run import build_run

FACTOR, STEPS, SETS = 4, 20, 128
STEP = "a training step of all seeds"
TEST_SET = "a test set under five normalizers"
TRAINING = {"items": 16, "width": 128, "seeds": 2}
TESTING = {"items": 4096}
ATTENTION = {"keys": 1024, "size of a head": 64, "heads": 4}
"""Of the base, where there are as many queries as keys."""


class Measured(NamedTuple):
    """A computation that can be had at several sizes."""

    base: dict[str, int]
    run: Callable[..., Callable[[], float]]
    """From the sizes to a function that gives the seconds of one."""
    multiply_adds: Callable[..., float]
    unit: str


def training(items: int, width: int, seeds: int) -> Callable[[], float]:
    """A step of all seeds, by the loop of train.py."""
    one_device_per_core()
    config = Config(MaxRetrieval(batch=SETS, min_items=items, max_items=items, width=width), seeds=seeds)
    run = build_run(config)
    state, train_chunk = run.initial_state(), trainer.chunk_trainer(run)
    return timed(lambda: train_chunk(state, 0, STEPS), STEPS)


def whole_set(items: int) -> Callable[[], float]:
    """A test set of this length, as `evaluate.py` measures it."""
    seconds = seconds_per_item(items)
    return lambda: items * seconds()


def on_one_core(run: Callable[[], Callable[[], float]]) -> Callable[[], float]:
    """The same where the process may use one core alone."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return run()


def attention(normalizer: str, sizes: tuple[int, int, int]) -> Callable[[], float]:
    """Attention forward and backward, in blocks where that is the default."""
    keys, size, heads = sizes
    arrays = [jax.random.normal(jax.random.key(index), (1, keys, heads, size)) for index in range(3)]

    @jax.jit
    def both(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        output, pull = jax.vjp(functools.partial(sj.dot_product_attention, normalizer=normalizer), *arrays)
        return pull(output)

    return timed(lambda: both(*arrays))


def of_attention(normalizer: str) -> Measured:
    """Two products forward and four backward."""
    return Measured(
        ATTENTION,
        lambda *sizes: attention(normalizer, sizes),
        lambda keys, size, heads: 6 * keys**2 * size * heads,
        "s per call",
    )


COMPUTATIONS = {
    STEP: Measured(
        TRAINING,
        training,
        lambda items, width, seeds: seeds * step_multiply_adds(items, SETS, width),
        "s per step",
    ),
    TEST_SET: Measured(
        TESTING,
        whole_set,
        lambda items: items * item_multiply_adds(MaxRetrieval().width, len(NORMALIZERS)),
        "s per set",
    ),
    **{f"{name} attention, forward and backward": of_attention(name) for name in ("softmax", "adaptive", "entmax15")},
}


def sizes_of(base: dict[str, int], grown: str | None) -> tuple[int, ...]:
    """The sizes, one of which is grown.

    >>> sizes_of({"keys": 8, "heads": 2}, "heads")
    (8, 8)
    """
    return tuple(size * (FACTOR if name == grown else 1) for name, size in base.items())


def name_of(what: str, grown: str | None) -> str:
    """The name of a contender."""
    return what if grown is None else f"{what}, {FACTOR} × {grown}"


FLOOR = "10⁹ multiply-adds"
CONTENDERS: dict[str, Callable[[], Callable[[], float]]] = {
    name_of(what, grown): functools.partial(measured.run, *sizes_of(measured.base, grown))
    for what, measured in COMPUTATIONS.items()
    for grown in (None, *measured.base)
} | {FLOOR: lambda: products_alone(1e9)}
ON_CORES = STEP, TEST_SET
"""What is measured on one core, too."""
ONE_CORE = {f"{name}, on one core": name for name in (*ON_CORES, FLOOR)}
CONTENDERS |= {alone: functools.partial(on_one_core, CONTENDERS[name]) for alone, name in ONE_CORE.items()}


def measure(quick: bool) -> list[Result]:
    """Each computation at its base and grown, and some on one core and on all, against its products."""
    seconds, _ = processes_in_turn("benchmarks.growth", list(CONTENDERS), 3 if quick else 9)

    def result(what: str, grown: str | None, point: Grown, alone: str = "") -> Result:
        measured = COMPUTATIONS[what]
        billions = measured.multiply_adds(*sizes_of(measured.base, grown)) / 1e9
        floor = [billions * second for second in seconds[FLOOR + alone]]
        times, title = seconds[name_of(what, grown) + alone], f"{what}, {point.size:,} {point.by}"
        return Result(title, "its matrix products alone", times, floor, measured.unit, point)

    by_size = [
        result(what, grown, Grown(what, by, measured.base[by] * (FACTOR if grown else 1)))
        for what, measured in COMPUTATIONS.items()
        for by in measured.base
        for grown in (None, by)
    ]
    cores = {1: ", on one core", len(os.sched_getaffinity(0)): ""}
    return by_size + [
        result(what, None, Grown(what, "cores", size), alone) for what in ON_CORES for size, alone in cores.items()
    ]


if __name__ == "__main__":
    contest(measure, CONTENDERS, __doc__)
