"""Which sets are lost to rounded products, which to a dull row, which to both? By models trained with and without.

Every set that a model answers wrong under softmax with rounded products is answered again with exact products, at the
best constant temperature, and with both.

    python train.py paper --matmul float32 --workdir runs/paper_trained_in_float32
    python -m studies.factorial
"""

import dataclasses
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl

from softmax_jax.experiment.measures.evaluation import evaluate
from softmax_jax.experiment.report import tables
from softmax_jax.experiment.report.tables import with_interval
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.rounded_products import FLOAT32
from softmax_jax.experiment.training.run_directory import SHIPPED
from softmax_jax.normalizers.registry import normalizer
from studies.common import BEST, SOFT_TO_SHARP, RunOptions, best_of_others, load_runs, start

ROUNDED = "bfloat16"
SHOWN = ("softmax", BEST, "hardmax")
SHARES = ("right", "rounding", "sharpness", "either", "both", "neither")
"""Where a set belongs: answered right under softmax with rounded products; mended by exact products only, by a sharper
row only, by each of the two, by both together only, or by none of this."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(RunOptions):
    """Options of the command line."""

    tables: ClassVar[tuple[str, ...]] = ("factorial",)

    checkpoints: tuple[Path, ...] = (SHIPPED / "paper", Path("runs") / "paper_trained_in_float32")
    """Directories of runs of max retrieval, named in the tables by the precision of their training."""
    lengths: tuple[int, ...] = (16, 64, 256, 1024, 4096, 16384)
    """Items per set."""
    sets: int = 2048
    """Sets per seed and length."""


def split(rounded: np.ndarray, exact: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the percentage of sets of each seed in each of `SHARES`, which add up to 100.

    Both arrays say which sets are right, by (seeds, sets, temperatures), softmax first; the sets are the same.
    """
    seeds = np.arange(len(rounded))
    right, exact_alone = rounded[..., 0], exact[..., 0]
    sharp_alone, together = (outcomes[seeds, :, best_of_others(outcomes.mean(1))] for outcomes in (rounded, exact))
    shares = {
        "right": right,
        "rounding": exact_alone & ~sharp_alone,
        "sharpness": sharp_alone & ~exact_alone,
        "either": exact_alone & sharp_alone,
        "both": together & ~exact_alone & ~sharp_alone,
    }
    shares = {name: share if name == "right" else share & ~right for name, share in shares.items()}
    shares["neither"] = ~np.logical_or.reduce(list(shares.values()))
    return {name: 100 * share.mean(1) for name, share in shares.items()}


def accuracy_rows(right: np.ndarray) -> list[tuple[str, int, float, str]]:
    """Returns normalizer, place of the seed, accuracy and temperature for softmax, the best temperature and hardmax."""
    by_seed = 100 * right.mean(1)
    best = best_of_others(by_seed)
    return [
        (name, seed, float(by_seed[seed, place]), SOFT_TO_SHARP[place])
        for seed in range(len(right))
        for name, place in zip(SHOWN, (0, int(best[seed]), len(SOFT_TO_SHARP) - 1))
    ]


def measured(arguments: Arguments) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Returns the accuracies by precision of training and of test, and the split of the sets of each run."""
    accuracies, splits = [], []
    named = {name: normalizer(name) for name in SOFT_TO_SHARP}
    for run in load_runs(arguments.checkpoints, MaxRetrieval):
        task, seeds = run.task, run.seeds
        right: dict[str, dict[int, np.ndarray]] = {}
        for tested in (ROUNDED, FLOAT32):
            options = {"seeds": seeds, "lengths": arguments.lengths, "sets": arguments.sets, "measures": ("accuracy",)}
            options["task"] = dataclasses.replace(task, matmul=tested)
            evaluations = evaluate(run.parameters, named, **options)
            right[tested] = {at_length.n: at_length.values["accuracy"] > 0 for at_length in evaluations}
            for n, outcomes in right[tested].items():
                accuracies += [
                    (task.matmul, tested, name, n, seeds[seed], *values)
                    for name, seed, *values in accuracy_rows(outcomes)
                ]
        for n in arguments.lengths:
            shares = split(right[ROUNDED][n], right[FLOAT32][n])
            splits += [(task.matmul, n, seed, *seed_shares) for seed, *seed_shares in zip(seeds, *shares.values())]
    columns = ["trained", "tested", "normalizer", "n", "seed", "accuracy", "temperature"]
    return (
        pl.DataFrame(accuracies, columns, orient="row"),
        pl.DataFrame(splits, ["trained", "n", "seed", *SHARES], orient="row"),
    )


ON_PAGE = 1024
"""Items per set of the tables; the files have all lengths."""


def factorial_table(accuracies: pl.DataFrame) -> str:
    """Returns the accuracy with its interval by precision of training and test and by normalizer, at one length."""
    shown = accuracies.filter(n=ON_PAGE)
    rows = [
        [
            *map(str, precisions),
            *(with_interval(cells.filter(normalizer=name)["accuracy"].to_list()) for name in SHOWN),
        ]
        for precisions, cells in shown.group_by("trained", "tested", maintain_order=True)
    ]
    return tables.markdown_table([f"trained ({ON_PAGE:,} items)", "tested", *SHOWN], rows)


def study(arguments: Arguments) -> None:
    """Measures and writes."""
    accuracies, splits = measured(arguments)
    written = {"factorial": factorial_table(accuracies)}
    arguments.write("factorial", {"accuracy": accuracies, "split": splits}, {}, written)


if __name__ == "__main__":
    start(Arguments, __doc__, study)
