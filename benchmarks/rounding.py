"""What it costs to round the operands of every matrix product to bfloat16 where the device does not do it itself.

    python -m benchmarks.rounding

A training step of one seed by the loop of train.py at the paper's setting, and an item in sets of 4,096 under the
default normalizers, each in float32 and with every product rounded. Contenders take turns, each in a process of its
own.
"""

import functools
from collections.abc import Callable

import jax

from benchmarks.timing import Result, contest, processes_in_turn, timed
from softmax_jax.commands.options import one_device_per_core
from softmax_jax.measures.evaluation import DEFAULT_NORMALIZERS, evaluate
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.training import trainer as training
from softmax_jax.training.config import Config
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint

PLAIN, ROUNDED = "float32", "bfloat16"
LENGTH, SETS, SEEDS = 4096, 64, 2


def step(matmul: str, steps: int = 100) -> Callable[[], float]:
    """Steps of one seed."""
    one_device_per_core()
    config = Config(MaxRetrieval(matmul=matmul))
    state, train_chunk = training.initial_state(config), training.chunk_trainer(config)
    return timed(lambda: train_chunk(state, 0, steps), steps)


def item(matmul: str) -> Callable[[], float]:
    """Items of test sets of shipped models."""
    one_device_per_core()
    config, parameters = load_checkpoint(SHIPPED / "paper")
    parameters, seeds = jax.tree.map(lambda leaf: leaf[:SEEDS], parameters), config.all_seeds[:SEEDS]
    named, task = {name: normalizer(name) for name in DEFAULT_NORMALIZERS}, MaxRetrieval(matmul=matmul)

    def run() -> None:
        list(evaluate(parameters, named, seeds=seeds, lengths=(LENGTH,), sets=SETS, task=task))

    return timed(run, SEEDS * SETS * LENGTH)


KINDS = {"a training step": (step, "s per step"), f"an item in sets of {LENGTH:,} items": (item, "s per item")}
CONTENDERS: dict[str, Callable[[], Callable[[], float]]] = {
    f"{what}, {matmul}": functools.partial(run, matmul)
    for what, (run, _) in KINDS.items()
    for matmul in (PLAIN, ROUNDED)
}


def measure(quick: bool) -> list[Result]:
    """Rounded products against those of float32."""
    seconds, _ = processes_in_turn("benchmarks.rounding", list(CONTENDERS), 3 if quick else 15)
    return [
        Result(
            f"{what}, products rounded to {ROUNDED}",
            f"the same in {PLAIN}",
            seconds[f"{what}, {ROUNDED}"],
            seconds[f"{what}, {PLAIN}"],
            unit,
        )
        for what, (_, unit) in KINDS.items()
    ]


if __name__ == "__main__":
    contest(measure, CONTENDERS, __doc__)
