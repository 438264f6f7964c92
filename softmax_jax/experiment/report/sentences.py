"""The findings of a run in sentences: what falls, why, what helps, and what to know before rows are compared."""

import math
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
import polars as pl

from softmax_jax.experiment.measures import dispersion
from softmax_jax.experiment.measures.dispersion import HARDMAX
from softmax_jax.experiment.measures.references import TRUE_ITEM
from softmax_jax.experiment.measures.runs import AS_TRAINED
from softmax_jax.experiment.measures.significance import over_seeds
from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.report import accuracy
from softmax_jax.experiment.report.charts import normalizer_of
from softmax_jax.experiment.report.evaluated import Evaluated
from softmax_jax.experiment.tasks import rounded_products
from softmax_jax.files import typed
from softmax_jax.normalizers.maps import Map
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.normalizers.user_modules import OF_A_MODULE
from softmax_jax.temperature import ALL_LENGTHS, TARGET, TARGET_TRAIN, TRAIN_LENGTHS

CHANCE = 0.05
"""P below which a gain is named."""
HALF = 50.0
"""Accuracy in percent at which to ask why."""
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
REFIT = {
    ALL_LENGTHS: "the least loss, at all lengths",
    TRAIN_LENGTHS: "the least loss, at training lengths only, so it alone shows how far a fit generalises",
    TARGET: "the largest weight of the true item, at all lengths",
    TARGET_TRAIN: "the largest weight of the true item, at training lengths only",
}
"""The purpose of each fit beside a checkpoint."""


def count(value: float | int) -> str:
    """Returns a number of items, by its magnitude where it is astronomic.

    >>> count(16384), count(1234.4), count(2e40)
    ('16,384', '1,234', '10⁴⁰')
    """
    return f"{value:,.0f}" if value < 1e7 else "10" + f"{math.log10(value):.0f}".translate(RAISED)


def answers(run: Evaluated) -> dict[str, str]:
    """Returns what falls as sets grow, why, what helps, and whether it is the paper's, each in a sentence."""
    facts = {"What falls": falls(run)}
    if {HARDMAX, TRUE_ITEM} <= set(run.everything["normalizer"]):
        facts["Why"] = why(run)
    if remedy := helps(run):
        facts["What helps"] = remedy
    return facts | ({"The paper": f"{accuracy.verdict(cells)}. {accuracy.RULE}"} if (cells := run.compared) else {})


def falls(run: Evaluated) -> str:
    """Says the accuracy at the lengths of training and at the longest length."""
    by_length, start = accuracies(run), shortest(run)
    last = max(by_length)
    beyond = f", and {by_length[last]:.1f} % of those of {count(last)}" if last != start else ""
    return (
        f"Trained on sets of at most {run.task.longest} items, attention with {run.baseline.removesuffix(AS_TRAINED)} "
        f"answers {by_length[start]:.1f} % of the sets of {count(start)} items right{beyond}."
    )


def shortest(run: Evaluated) -> int:
    """Returns the length to compare others with: the longest that training saw, or the shortest."""
    lengths = run.frame["n"].unique().sort().to_list()
    return max((n for n in lengths if n <= run.task.longest), default=lengths[0])


def why(run: Evaluated) -> str:
    """Says what each cause costs at the length where about half of the sets are lost, and what rounding hides."""
    by_length = accuracies(run)
    n = min(by_length, key=lambda n: abs(by_length[n] - HALF))
    losses = dispersion.losses(run.everything).filter(normalizer=run.baseline, n=n)
    spread, key, value = losses.select(pl.mean("dispersion", "key", "value")).row(0)
    spreading = f"{spread:.1f} points, which hardmax wins back" if spread > 0 else "nothing: hardmax does no better"
    misread = f" The value costs {value:.1f}: it is misread under any weights." if round(value, 1) > 0 else ""
    causes = (
        f"At {count(n)} items it answers {by_length[n]:.1f} % of the sets right. Dispersion costs {spreading}. "
        f"The key costs {key + min(spread, 0):.1f} points: another item has the largest logit.{misread}"
    )
    if run.matmul not in rounded_products.SPACING:
        return causes
    step = f"{rounded_products.SPACING[run.matmul]:.1g}"
    return f"{causes} Products rounded to {run.matmul} make items within {step} in ρ tie, under any normalizer."


def helps(run: Evaluated) -> str | None:
    """Says the largest gain of another normalizer that is beyond chance, of those whose weights depend on no offset.

    Of one seed, which gives no test, the largest gain; None where there is nothing to compare.
    """
    others = set(run.normalizers) - {run.baseline, *moved_by_offset(run.normalizers)}
    if not others:
        return None
    all_gains = run.summary.filter(pl.col("normalizer").is_in(others))
    gains = all_gains.filter(pl.col("gain") > 0)
    tested = run.frame["seed"].n_unique() > 1
    if tested:
        gains = gains.filter(pl.col("p_value") < CHANCE)
    if gains.is_empty():
        least = all_gains["detectable"].max()
        power = f" The test finds a gain of {least:.1f} points at one length in 4 of 5 cases." if least else ""
        return f"No normalizer swapped in at test time is shown to gain (p < {CHANCE}).{power * tested}"
    best = gains.row(gains["gain"].arg_max() or 0, named=True)
    sharpest: Any = run.everything.filter(normalizer=HARDMAX, n=best["n"])["accuracy"].mean()
    beyond = ""
    if sharpest is not None and best["accuracy"] > sharpest:
        beyond = f" Hardmax answers {sharpest:.1f} %: its one item is wrong in some sets where an average is right."
    test = f"p = {best['p_value']:.1g}" if tested else "one seed, so no test"
    return (
        f"Of the normalizers swapped in at test time, {best['normalizer']} wins back most: {best['gain']:.1f} points "
        f"at {count(best['n'])} items, from {best['accuracy'] - best['gain']:.1f} % to {best['accuracy']:.1f} % "
        f"({test}).{beyond}"
    )


def accuracies(run: Evaluated) -> dict[int, float]:
    """Returns the mean accuracy of the baseline in percent by length."""
    means = over_seeds(run.frame.filter(normalizer=run.baseline), ["n"], "accuracy")
    return dict(means.select("n", "value").rows())


def mean_gains(run: Evaluated) -> dict[str, str]:
    """Says what the published method gains in the mean of the published lengths, where both were measured."""
    gain = accuracy.mean_gain(run.frame, run.published.get(BASELINE, ()))
    return {"Mean gain": gain} if gain else {}


def remarks(names: Iterable[str]) -> list[str]:
    """Says which rows depend on an offset of the logits, and what each fit was made for."""
    names, sentences = list(names), []
    if moved := moved_by_offset(names):
        sentences.append(
            f"{', '.join(moved)}: adding a constant to all logits changes these weights, and softmax training leaves "
            "that constant arbitrary. Do not judge the method by this row: train with it, as by train.py "
            f"quick --normalizer {typed(moved[0])}"
        )
    if fits := [f"{name} for {REFIT[name]}" for name in names if name in REFIT]:
        sentences.append(f"adaptive with its β(H) refit to these models: {'; '.join(fits)}")
    return sentences


def moved_by_offset(names: Iterable[str]) -> list[str]:
    """Returns those whose weights change when a constant is added to a row; none if one was trained with."""
    names = list(names)
    if any(name.endswith(AS_TRAINED) for name in names):
        return []
    known = [name for name in names if normalizer_of(name) in METHODS or OF_A_MODULE.fullmatch(name)]
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


def extrapolation_warning(summary: pl.DataFrame, most: float = 1.0) -> str | None:
    """Names the fits that are asked about entropies beyond their range in more than `most` percent of the rows."""
    beyond = summary.filter(pl.col("extrapolated") > most).group_by("normalizer", maintain_order=True)
    parts = [
        f"{name} in up to {share:.0f} % of rows at n = {', '.join(map(str, lengths))}"
        for name, share, lengths in beyond.agg(pl.max("extrapolated"), "n").rows()
    ]
    if not parts:
        return None
    return f"warning: entropies beyond the fitted range, where β stays as at its end: {'; '.join(parts)}"
