"""What an item costs in evaluation, from sets of 4,096 items to sets of a million, and what sharing the encoder saves.

    python -m benchmarks.evaluation

The default normalizers read two of the shipped models, one on each core. Contenders take turns, each in a process of
its own, whose memory is printed. Compiling is not counted. The floor is that of the multiply-adds alone, at the rate of
large matrix products on all cores.
"""

from collections.abc import Callable

import jax

from benchmarks.costs import item_multiply_adds, products_alone
from benchmarks.timing import Result, contest, processes_in_turn, timed as timed_run
from softmax_jax.experiment.commands.process import one_device_per_core
from softmax_jax.experiment.measures.evaluation import evaluate
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.normalizers.registry import normalizer

CHECKPOINT = SHIPPED / "paper"
SEEDS = 2
NORMALIZERS = ("softmax", "adaptive", "ssmax", "softpick", "hardmax")
LENGTHS = (4096, 16384, 65536, 262144, 1048576)
ITEMS = 2**20
"""Per seed and turn."""
APART = "the encoder run once for each normalizer"
FLOOR = "its matrix products alone"


def items_of(length: int) -> str:
    """The name of a contender.

    >>> items_of(4096)
    'sets of 4,096 items'
    """
    return f"sets of {length:,} items"


def seconds_per_item(length: int, *, apart: bool = False) -> Callable[[], float]:
    """Evaluates sets of this length; with `apart`, one normalizer at a time."""
    one_device_per_core()
    config, parameters = load_checkpoint(CHECKPOINT)
    seeds = config.all_seeds
    parameters = jax.tree.map(lambda leaf: leaf[:SEEDS], parameters)
    named = {name: normalizer(name) for name in NORMALIZERS}
    groups = [{name: evaluate_once} for name, evaluate_once in named.items()] if apart else [named]

    def run() -> None:
        for group in groups:
            list(evaluate(parameters, group, seeds=seeds[:SEEDS], lengths=(length,), sets=ITEMS // length))

    return timed_run(run, SEEDS * ITEMS)


CONTENDERS: dict[str, Callable[[], Callable[[], float]]] = {
    **{items_of(length): lambda length=length: seconds_per_item(length) for length in LENGTHS},
    APART: lambda: seconds_per_item(LENGTHS[0], apart=True),
    FLOOR: lambda: products_alone(item_multiply_adds(MaxRetrieval().width, len(NORMALIZERS))),
}


def measure(quick: bool) -> list[Result]:
    """The cost of an item by length, against that at 4,096, and the encoder shared against not shared."""
    seconds, peak = processes_in_turn("benchmarks.evaluation", list(CONTENDERS), 3 if quick else 9)
    for name, size in peak.items():
        print(f"{name}: at most {size / 1e9:.2f} GB")
    first = items_of(LENGTHS[0])
    results = [
        Result(
            f"an item in {items_of(length)}", f"one in {first}", seconds[items_of(length)], seconds[first], "s per item"
        )
        for length in LENGTHS[1:]
    ]
    for peer in (APART, FLOOR):
        results.append(Result("an item under five normalizers", peer, seconds[first], seconds[peer], "s per item"))
    return results


if __name__ == "__main__":
    contest(measure, CONTENDERS, __doc__)
