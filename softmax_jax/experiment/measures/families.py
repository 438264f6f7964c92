"""The comparisons that are judged together: chosen before a difference is seen, and corrected for all of them."""

from collections.abc import Collection, Iterable

import jax.numpy as jnp
import numpy as np
import polars as pl

from softmax_jax.experiment.measures.runs import AS_TRAINED
from softmax_jax.experiment.measures.significance import half_width
from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.normalizers.maps import Map
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.normalizers.user_modules import OF_A_MODULE

Cell = tuple[str, int]
"""A normalizer and a length."""
CEILING = 99.5
"""Accuracy in percent above which nothing is left to gain."""
OF_WEIGHTS = {"entropy": 1e-3, "max_weight": 1e-3}
OF_ANSWERS = {"accuracy": 1e-6, "loss": 1e-6}
"""The measures by which two normalizers are copies of each other, and how far these may lie apart."""


def copies(frame: pl.DataFrame, baseline: str = BASELINE) -> list[str]:
    """Returns the normalizers whose weights equal those of the baseline, at every length and seed.

    By the mean entropy and the mean largest weight where both were measured, else by accuracy and loss. Accuracies of 0
    or 100 % alone tell nothing of the weights.

    >>> rows = [(name, 16, 0, 90.0, loss) for name, loss in (("softmax", 0.1), ("ssmax", 0.2), ("mine", 0.1))]
    >>> copies(pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy", "loss"], orient="row"))
    ['mine']
    """
    base = frame.filter(normalizer=baseline)
    seen = [name for name in OF_WEIGHTS if name in frame.columns and base[name].count() == len(base)]
    apart = (
        OF_WEIGHTS if len(seen) == len(OF_WEIGHTS) else {name: OF_ANSWERS[name] for name in OF_ANSWERS if name in base}
    )
    if set(apart) == {"accuracy"} and base["accuracy"].is_in([0.0, 100.0]).all():
        return []
    others = frame.filter(pl.col("normalizer") != baseline)
    paired = others.join(base.select("n", "seed", *apart), ["n", "seed"], "left", suffix=", own", maintain_order="left")
    near = [((pl.col(name) - pl.col(f"{name}, own")).abs() <= most).fill_null(False) for name, most in apart.items()]
    by_name = paired.group_by("normalizer", maintain_order=True).agg(pl.all_horizontal(near).all().alias("same"))
    return by_name.filter("same")["normalizer"].to_list()


def judged_cells(
    frame: pl.DataFrame, baseline: str, longest: int, chance: float = 0.0, left_out: Collection[str] = ()
) -> list[Cell]:
    """Returns the cells to test against the baseline: one family, fixed before any difference is looked at.

    Arguments:
        frame: Accuracies in percent, a row for each normalizer, length and seed.
        baseline: The normalizer that the others are compared with.
        longest: The longest length of training; sets as short are left out.
        chance: The accuracy of guessing.
        left_out: Normalizers to leave out, beside `copies`.

    Returns:
        The cells beyond the lengths of training where not every seed, under both normalizers, answers at least
        `CEILING` % of the sets, and not both normalizers answer as many as guessing does, within their intervals.
    """
    values = {(name, n): accuracies for name, n, accuracies in frame.group_by("normalizer", "n").agg("accuracy").rows()}
    out = {baseline, *left_out, *copies(frame, baseline)}
    cells = frame.select("normalizer", "n").unique(maintain_order=True).rows()
    return [
        (name, n)
        for name, n in cells
        if n > longest and name not in out and (baseline, n) in values
        if min(values[name, n] + values[baseline, n]) < CEILING
        if any(_above(accuracies, chance) for accuracies in (values[name, n], values[baseline, n]))
    ]


def _above(accuracies: list[float], chance: float) -> bool:
    """Returns True if the interval over seeds lies above chance."""
    return float(np.mean(accuracies)) - (half_width(accuracies) or 0.0) > chance


def moved_by_offset(names: Iterable[str]) -> list[str]:
    """Returns those whose weights change when a constant is added to a row; none if one was trained with."""
    names = list(names)
    if any(name.endswith(AS_TRAINED) for name in names):
        return []
    known = [name for name in names if name.partition("(")[0] in METHODS or OF_A_MODULE.fullmatch(name)]
    return [name for name in known if depends_on_offset(normalizer(name))]


def depends_on_offset(method: Normalizer) -> bool:
    """Returns True if adding 8 to every logit changes the weights: a map declares it, a plain function is tried.

    >>> import jax
    >>> [depends_on_offset(Normalizer(weigh)) for weigh in (jax.nn.softmax, lambda z, axis, where: jax.nn.sigmoid(z))]
    [False, True]
    """
    if isinstance(method.map, Map):
        return not method.shift_invariant
    row = jnp.arange(-4.0, 5.0, dtype=jnp.float32)[None]
    weights, moved = (method(logits, -1, jnp.ones(row.shape, bool)) for logits in (row, row + 8))
    return not np.allclose(weights, moved, atol=1e-4)
