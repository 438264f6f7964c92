"""The findings of a run in sentences: what falls, why, what helps, and what to know before rows are compared."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from softmax_jax.experiment import program
from softmax_jax.experiment.measures.dispersion import HARDMAX
from softmax_jax.experiment.measures.families import copies, moved_by_offset
from softmax_jax.experiment.measures.references import TRUE_ITEM
from softmax_jax.experiment.measures.runs import AS_TRAINED
from softmax_jax.experiment.measures.significance import corrected, mcnemar, over_seeds, paired_p_value
from softmax_jax.experiment.report.evaluated import Evaluated
from softmax_jax.experiment.report.replication import replication
from softmax_jax.experiment.tasks import rounded_products
from softmax_jax.files import typed
from softmax_jax.temperature import ALL_LENGTHS, TARGET, TARGET_TRAIN, TRAIN_LENGTHS

CHANCE = 0.05
"""P below which a gain is named."""
HALF = 50.0
"""Accuracy in percent at which to ask why, and of one seed what helps."""
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


def counted(number: int, noun: str, several: str = "") -> str:
    """Returns a number of things in words.

    >>> counted(1, "gain"), counted(0, "loss", "losses")
    ('1 gain', 'no losses')
    """
    return f"{number or 'no'} {noun if number == 1 else several or f'{noun}s'}"


def answers(run: Evaluated) -> dict[str, str]:
    """Returns what falls as sets grow, why, what helps, and how near it comes to the paper, each in words."""
    facts = {"What falls": falls(run), "Why": why(run), "What helps": helps(run), "The paper": replication(run)}
    return {question: answer for question, answer in facts.items() if answer}


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


def why(run: Evaluated) -> str | None:
    """Says what a sharper row regains at the length of `half_length`, and what hardmax answers.

    None where hardmax or the true item alone was not measured.
    """
    if not {HARDMAX, TRUE_ITEM} <= set(run.full_frame["normalizer"]):
        return None
    n = half_length(run)
    sharpest, true_item = (
        run.full_frame.filter(normalizer=name, n=n).select(pl.mean("accuracy")).item() for name in (HARDMAX, TRUE_ITEM)
    )
    judged = run.summary.filter(pl.col("normalizer").is_in(candidates(run)), n=n)
    regained = "Nothing else that was measured there answers more."
    if len(judged) and (best := judged.row(judged["gain"].arg_max() or 0, named=True))["gain"] > 0:
        others = counted(len(judged), "other")
        regained = f"The best of {others} measured there, {best['normalizer']}, answers {gain_of(best)} points more"
        regained += f"{whether_shown(best)}."
    between = ": in the sets between, another item has the largest logit" if true_item > sharpest else ""
    step = rounded_products.SPACING.get(run.matmul)
    ties = f" Products rounded to {run.matmul} make items within {step:.1g} in ρ tie." if step else ""
    return (
        f"At {count(n)} items, where nearest to half are right, it answers {accuracies(run)[n]:.1f} %. "
        f"{regained} With all weight on the largest logit "
        f"(hardmax) {sharpest:.1f} % are right, with all on the true item {true_item:.1f} %{between}.{ties}"
    )


def candidates(run: Evaluated) -> list[str]:
    """Returns the normalizers to judge: no copies of the baseline, and none that depends on an offset."""
    out = {run.baseline, *moved_by_offset(run.normalizers), *copies(run.frame, run.baseline)}
    return [name for name in run.normalizers if name not in out]


def gain_of(row: Mapping[str, Any]) -> str:
    """Returns a gain with half its interval, which one seed has not.

    >>> gain_of({"gain": 3.81, "gain_interval": 2.04}), gain_of({"gain": 3.81, "gain_interval": None})
    ('3.8 ± 2.0', '3.8')
    """
    half = row["gain_interval"]
    return f"{row['gain']:.1f}" + ("" if half is None else f" ± {half:.1f}")


def half_length(run: Evaluated) -> int:
    """Returns the length where nearest to half of the sets are right: of those that are tested, if there are any."""
    by_length = accuracies(run)
    return min(sorted({n for _, n in run.tested} or by_length), key=lambda n: abs(by_length[n] - HALF))


def whether_shown(row: Mapping[str, Any]) -> str:
    """Returns whether a gain is shown, as the end of a sentence; nothing of a cell without a test.

    >>> whether_shown({"p_value": 0.01}), whether_shown({"p_value": 0.2}), whether_shown({"p_value": None})
    (', which is shown', ', which is not shown', '')
    """
    if row["p_value"] is None:
        return ""
    return f", which is {'' if row['p_value'] < CHANCE else 'not '}shown"


def helps(run: Evaluated) -> str | None:
    """Says the largest gain that is shown, of all normalizers and lengths that are tested, judged as one family.

    Of one seed, which gives no test, the largest gain at the length of `half_length`, which `why` is about too. None
    where there is nothing to compare.
    """
    if not (others := candidates(run)):
        return None
    tested = pl.DataFrame(
        run.tested, ["normalizer", "n"], orient="row", schema_overrides={"normalizer": pl.String, "n": pl.Int64}
    )
    gains = run.summary.join(tested, ["normalizer", "n"], "semi", maintain_order="left")
    if gains.is_empty():
        return f"Nothing was tested: no set is longer than in training and still undecided under {run.baseline}."
    if gains["p_value"].null_count() == len(gains):
        there = gains.filter(n=half_length(run))
        best = there.row(there["gain"].arg_max() or 0, named=True)
        if best["gain"] <= 0:
            at = f"at {count(best['n'])} items"
            return f"No normalizer swapped in at test time gains {at}: no test, as {no_test(run)}."
        return (
            f"Swapped in at test time, {best['normalizer']} gains most, {said_gain(best)}: no test, as {no_test(run)}."
        )
    names, lengths = gains["normalizer"].unique(), gains["n"].unique()
    family = f"Holm over {counted(len(names), 'normalizer')} at {counted(len(lengths), 'length')}"
    shown = gains.filter(pl.col("p_value") < CHANCE)
    better, worse = shown.filter(pl.col("gain") > 0), shown.filter(pl.col("gain") < 0)
    if better.is_empty():
        return f"No normalizer swapped in at test time is shown to gain (p < {CHANCE}, {family}).{power(gains)}"
    best = better.row(better["gain"].arg_max() or 0, named=True)
    rivals = not_told_apart(run, best, [name for name in others if name != best["normalizer"]])
    there = run.summary.filter(pl.col("normalizer").is_in(rivals), n=best["n"])
    theirs = [f"{row['normalizer']}, {gain_of(row)} points{whether_shown(row)}" for row in there.to_dicts()]
    tied = f" Not told apart from it there: {'; '.join(theirs)}." if theirs else ""
    return (
        f"Swapped in at test time, the largest of the gains that are shown (p < {CHANCE}, {family}) is that of "
        f"{best['normalizer']}: {said_gain(best)} (p = {best['p_value']:.1g}).{tied} Shown are "
        f"{counted(len(better), 'gain')} and {counted(len(worse), 'loss', 'losses')}."
    )


def said_gain(row: Mapping[str, Any]) -> str:
    """Returns what a normalizer gains, where, and from what to what."""
    return (
        f"{gain_of(row)} points at {count(row['n'])} items, from "
        f"{row['accuracy'] - row['gain']:.1f} % to {row['accuracy']:.1f} %"
    )


def no_test(run: Evaluated) -> str:
    """Returns why no p-value could be computed."""
    return "there is one seed" if run.frame["seed"].n_unique() == 1 else "the seeds do not differ"


def power(gains: pl.DataFrame) -> str:
    """Says which gains the tests would most likely have found, at the level of their family."""
    gains = gains.filter(pl.col("detectable") <= 100)
    ends = [format(end, ".1f") for end in (gains["detectable"].min(), gains["detectable"].max()) if end is not None]
    varied = [word for column, word in (("normalizer", "normalizer"), ("n", "length")) if gains[column].n_unique() > 1]
    by_cell = " to ".join(dict.fromkeys(ends)) + " points" + f", by {' and '.join(varied)}," * (len(set(ends)) > 1)
    return f" A gain of {by_cell} would have been found in 4 of 5 cases." if ends else ""


def not_told_apart(run: Evaluated, best: Mapping[str, Any], rivals: Sequence[str]) -> list[str]:
    """Returns the rivals of the best at its length that no paired test tells from it, by the unit of the table."""
    at_length = run.frame.filter(n=best["n"])
    values = {name: at_length.filter(normalizer=name)["accuracy"].to_list() for name in run.normalizers}
    winner, n = best["normalizer"], best["n"]
    p_values = corrected(
        [
            mcnemar(run.right[name, n], run.right[winner, n])
            if run.tests is not None
            else paired_p_value(values[name], values[winner])
            for name in rivals
        ]
    )
    return [name for name, p in zip(rivals, p_values) if p is None or p >= CHANCE]


def accuracies(run: Evaluated) -> dict[int, float]:
    """Returns the mean accuracy of the baseline in percent by length."""
    means = over_seeds(run.frame.filter(normalizer=run.baseline), ["n"], "accuracy")
    return dict(means.select("n", "value").rows())


def remarks(names: Iterable[str]) -> list[str]:
    """Says which rows depend on an offset of the logits, and what each fit was made for."""
    names, sentences = list(names), []
    if moved := moved_by_offset(names):
        sentences.append(
            f"{', '.join(moved)}: adding a constant to all logits changes these weights, and softmax training leaves "
            "that constant arbitrary. Do not judge the method by this row: train with it, as by "
            f"{program('train')} quick --normalizer {typed(moved[0])}"
        )
    if fits := [f"{name} for {REFIT[name]}" for name in names if name in REFIT]:
        sentences.append(f"adaptive with its β(H) refit to these models: {'; '.join(fits)}")
    return sentences


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
