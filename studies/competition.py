r"""How far does a key reach? Predicted from its biases only, nothing fitted, and compared with hardmax.

    python -m studies.competition --checkpoints checkpoints/paper

Of the K classes of items, the best item of class c lies $g_c$ below ρ = 1, which is distributed exponentially with the
rate n/K. A key that adds $b_c$ to ρ for items of class c takes the class of the largest $b_c - g_c$, which is right if
that class has the least gap:

$$\text{accuracy}(n) = \frac{1}{K} \sum_c \exp\Big(-\frac{n}{K} \sum_k \max(0, b_k - b_c)\Big).$$

Where ρ is rounded to multiples of a spacing first, whole cells of it compete, and among those that share one the bias
decides, however small. The biases of a trained model are its logits at ρ = 1 over their slope there.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from softmax_jax.experiment.commands.parse import TrustCode, each_within, within
from softmax_jax.experiment.measures.dispersion import HARDMAX, Resolution, resolution
from softmax_jax.experiment.measures.evaluation import evaluate, frame_of
from softmax_jax.experiment.measures.summary import summarize
from softmax_jax.experiment.report.tables import new_table, number_or_dash
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.rounded_products import SPACING
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.experiment.training.run_directory import load_checkpoint
from softmax_jax.normalizers.registry import normalizer
from studies.common import CHECKPOINTS, require_kind, start

RARE = 40.0
"""Gaps of so many means are left out: their probability is below that of rounding in float64."""


def key_accuracy(bias: Float[np.ndarray, " classes"], n: int, spacing: float = 0.0) -> float:
    """Returns the accuracy in percent at n items of a key with a bias in ρ for each class, all different.

    ρ is first rounded to multiples of `spacing`, unless that is 0.

    >>> key_accuracy(np.array([0.0, 0.001]), 1000)  # (1 + exp(-0.5)) / 2
    80.32653298563167
    >>> round(key_accuracy(1e-9 * np.arange(10), 1024, spacing=2.0**-8), 1)  # the best that bfloat16 leaves
    58.0
    """
    rate = n / len(bias)
    ahead = bias[:, None] - bias  # of class k over class c, in row k and column c
    if not spacing:
        return float(100 * np.exp(-rate * np.maximum(ahead, 0).sum(0)).mean())
    cells = spacing * np.arange(1 + int(RARE / rate / spacing))[:, None]
    low, high = np.maximum(cells - spacing / 2, 0), cells + spacing / 2
    # Class k must lie beyond the last cell from which its lead over class c wins.
    lead = np.where(ahead > 0, spacing * (np.floor(ahead / spacing) + 0.5), 0).sum(0)
    leading, others = (ahead > 0).sum(0), (ahead <= 0).sum(0)
    beyond = np.exp(-rate * (leading * cells + lead))
    within = (np.exp(-rate * others * low) - np.exp(-rate * others * high)) / others
    return float(100 * (beyond * within).sum())


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    checkpoints: tuple[Path, ...] = CHECKPOINTS
    """Directories of runs, or Flax msgpack files."""
    lengths: tuple[int, ...] = (256, 1024, 4096, 16384)
    """Items per set."""
    trust_code: TrustCode = False
    sets: int = 512
    """Sets per seed and length."""

    def __post_init__(self) -> None:
        each_within("--lengths", self.lengths, 2, 2**20, 1024)
        within("--sets", self.sets, 1, 2**20, 512)


def compared(
    checkpoint: Path, lengths: Sequence[int], sets: int
) -> tuple[Resolution, list[tuple[int, float, float, float | None]]]:
    """Returns what the key tells apart, and by length, in percent: predicted, under hardmax, half its 95 % interval."""
    config, parameters = load_checkpoint(checkpoint)
    task = require_kind(config.task, MaxRetrieval)
    key, spacing = resolution(parameters, task=task), SPACING.get(task.matmul, 0.0)
    options = {"seeds": config.all_seeds, "lengths": lengths, "sets": sets, "measures": ("accuracy",), "task": task}
    summary = summarize(frame_of(evaluate(parameters, {HARDMAX: normalizer(HARDMAX)}, **options)), HARDMAX)
    measured = summary.select("n", "accuracy", "interval").rows()
    predicted = {n: float(np.mean([key_accuracy(bias, n, spacing) for bias in key.bias])) for n in lengths}
    return key, [(n, predicted[n], *rest) for n, *rest in measured]


def study(arguments: Arguments) -> None:
    """Predicts, measures, prints."""
    table = new_table("Accuracy (%) of the key alone", "", "items", "predicted", "hardmax", "±", "miss")
    keys = new_table("The key at ρ = 1, mean over seeds (least to most)", "", "class offset (nats)", "one nat in ρ")
    for checkpoint in arguments.checkpoints:
        key, rows = compared(checkpoint, arguments.lengths, arguments.sets)
        for n, predicted, measured, half in rows:
            interval, miss = number_or_dash(half, ".2f"), f"{measured - predicted:+.2f}"
            table.add_row(checkpoint.name, str(n), f"{predicted:.2f}", f"{measured:.2f}", interval, miss)
        keys.add_row(checkpoint.name, *map(with_range, (key.offset, 1 / key.slope)))
    plain_console().print(table, keys)


def with_range(values: Float[np.ndarray, " seeds"]) -> str:
    """Returns the mean of some values with their range, as text."""
    return f"{values.mean():.2g} ({values.min():.2g} to {values.max():.2g})"


if __name__ == "__main__":
    start(Arguments, __doc__, study)
