"""Ten seeds of 100,000 steps: which way of training many seeds is fastest on this machine, and how long it will take.

    python -m benchmarks.seeds

Short runs, in turn, each in a process of its own: the loop of train.py, whose choice depends on the platform; all seeds
side by side under vmap; and one seed after the other, with all cores or the whole accelerator for each product. The
times are those of one step of ten seeds, times 100,000. Compiling is not counted. The floor is that of the products in
them alone, at the rate of large ones on all cores.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from benchmarks.costs import mean_multiply_adds, products_alone
from benchmarks.timing import Result, contest, duration, processes_in_turn, results_against, timed as timed_run
from softmax_jax.experiment.commands.process import one_device_per_core
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training import trainer as training
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.run import TrainState, build_run

SEEDS, STEPS = 10, 100_000
TURN = 20
"""Steps in one turn, from which the time of `STEPS` is predicted."""
OURS, VMAPPED, IN_TURN = "ours", "seeds under vmap", "one seed after the other"
FLOOR = "their matrix products alone"


def timed(config: Config, train: Callable[[TrainState], object]) -> Callable[[], float]:
    """Seconds that `STEPS` steps would take, from as few as `train` does."""
    state = build_run(config).initial_state()
    return timed_run(lambda: train(state), config.chunk / STEPS)


def ours() -> Callable[[], float]:
    """The loop of train.py with its device settings."""
    one_device_per_core()
    config = Config(seeds=SEEDS, chunk=TURN)
    train_chunk = training.chunk_trainer(build_run(config))
    return timed(config, lambda state: train_chunk(state, 0, TURN))


def on_one_device(*, side_by_side: bool) -> Callable[[], float]:
    """All seeds on the first device, which has all cores."""
    config = Config(seeds=SEEDS, chunk=TURN)
    run = build_run(config)
    gradient = training.padded_gradient(run)
    gradient = gradient if side_by_side else config.task.on_visible(gradient)
    device = functools.partial(training.train_steps, run, gradient, first_step=jnp.int32(0), steps=TURN)
    return timed(config, jax.jit(jax.vmap(device) if side_by_side else functools.partial(jax.lax.map, device)))


CONTENDERS: dict[str, Callable[[], Callable[[], float]]] = {
    OURS: ours,
    VMAPPED: functools.partial(on_one_device, side_by_side=True),
    IN_TURN: functools.partial(on_one_device, side_by_side=False),
    FLOOR: lambda: products_alone(SEEDS * STEPS * mean_multiply_adds(MaxRetrieval())),
}


def measure(quick: bool) -> list[Result]:
    """Ten seeds of 100,000 steps, predicted: ours against the other ways."""
    seconds, _ = processes_in_turn("benchmarks.seeds", list(CONTENDERS), 3 if quick else 15)
    for name, times in seconds.items():
        best = min(times)
        print(f"{name}: {SEEDS * STEPS / best:.0f} steps/s of all seeds, {duration(best)} for {STEPS:,} steps at best")
    return results_against(f"ten seeds of {STEPS:,} steps, predicted", OURS, seconds, "s")


if __name__ == "__main__":
    contest(measure, CONTENDERS, __doc__)
