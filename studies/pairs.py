"""Pairs of a normalizer in training and one in the test: their accuracy, their picture, what explains its variance."""

import altair as alt
import numpy as np
import polars as pl

from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.charts import reader_name
from softmax_jax.normalizers.registry import METHODS
from studies.recipes import BASE, PAIRS

UNTRAINED = ("hardmax", "signed_l1")
"""Hardmax gives the key no gradient, and signed_l1 has no exponential to pick with."""


def pair_means(accuracies: pl.DataFrame, n: int) -> dict[tuple[str, str], float]:
    """Returns the mean accuracy at n for each pair of a normalizer in training and one in the test."""
    rows = accuracies.filter(pl.col("group").is_in([BASE, PAIRS]), pl.col("normalizer").is_in(METHODS.keys()), n=n)
    means = rows.group_by("trained", "normalizer", maintain_order=True).agg(pl.mean("accuracy"))
    return {(train, test): mean for train, test, mean in means.iter_rows()}


def without_copies(accuracies: pl.DataFrame) -> pl.DataFrame:
    """Returns the accuracies without trainings and tests that repeat another one, to the last digit, at all lengths.

    Of those that repeat each other the first stays.
    """
    rows = accuracies.filter(pl.col("group").is_in([BASE, PAIRS]), pl.col("normalizer").is_in(METHODS.keys()))
    for side, others in (("trained", ["normalizer"]), ("normalizer", ["trained"])):
        profiles: dict[tuple[float, ...], str] = {}
        for (name,), named_rows in rows.group_by(side, maintain_order=True):
            profiles.setdefault(tuple(named_rows.sort(*others, "n", "seed")["accuracy"]), str(name))
        rows = rows.filter(pl.col(side).is_in(list(profiles.values())))
    return rows


def pairs_chart(accuracies: pl.DataFrame, n: int) -> charts.Chart | None:
    """Returns a heat map of the pairs at one length; nothing if training has been under one normalizer only.

    Trainings and tests below half of the best everywhere are left out. Of several that agree to 0.1 points everywhere
    the first stands for all.
    """
    means = pair_means(accuracies, n)
    frame = pl.DataFrame([(*pair, mean) for pair, mean in means.items()], ["train", "test", "accuracy"], orient="row")
    if frame["train"].n_unique() < 2:
        return None
    floor, sides = max(means.values()) / 2, ("train", "test")
    for side in sides:
        frame = frame.filter(pl.max("accuracy").over(side) >= floor)
    ranges = {
        test: (min(accuracies_of_test), max(accuracies_of_test))
        for test, accuracies_of_test in frame.group_by("test").agg("accuracy").rows()
    }
    for side in sides:
        alike: dict[tuple[float, ...], list[str]] = {}
        for (name,), named_rows in frame.group_by(side, maintain_order=True):
            alike.setdefault(tuple(named_rows["accuracy"].round(1)), []).append(str(name))
        shown = {names[0]: names[0] + (f"({len(names)} alike)" if names[1:] else "") for names in alike.values()}
        frame = frame.filter(pl.col(side).is_in(shown.keys())).with_columns(pl.col(side).replace(shown))
    base = alt.Chart(charts.data(frame)).encode(
        x=alt.X("test:N", title="normalizer in the test", sort=None, axis=alt.Axis(labelAngle=-60, labelLimit=200)),
        y=alt.Y("train:N", title="normalizer in training", sort=None, axis=alt.Axis(labelLimit=200)),
    )
    scale = alt.Scale(domain=[10, 100], scheme="viridis")
    cells = base.mark_rect().encode(color=alt.Color("accuracy:Q", scale=scale, legend=None))
    dark = alt.condition("datum.accuracy < 60", alt.value("white"), alt.value("black"))
    text = base.mark_text(fontSize=12).encode(text=alt.Text("accuracy:Q", format=".0f"), color=dark)
    best = max(ranges, key=lambda test: ranges[test][0])
    ranges_text = (f"{reader_name(test)} {'{:.0f} to {:.0f}'.format(*ranges[test])} %" for test in ("softmax", best))
    title = charts.chart_title(
        f"By the test at {n:,} items: {', '.join(ranges_text)}",
        "accuracy (%), mean over seeds; alike: normalizers that agree to 0.1 points;",
        "left out: what is below half of the best everywhere",
    )
    return alt.layer(cells, text).properties(title=title, width=alt.Step(24), height=alt.Step(19))


def best_of_pairs(accuracies: pl.DataFrame) -> pl.DataFrame:
    """Returns, by length and normalizer in training, the accuracy under itself and under softmax, and the best one.

    Copies are left out, so the best is the first of its kind.
    """
    rows, distinct = [], without_copies(accuracies)
    for n in accuracies["n"].unique().sort():
        means, with_copies = pair_means(distinct, n), pair_means(accuracies, n)
        for train in dict.fromkeys(train for train, _ in means):
            accuracy_by_test = {test: mean for (trained, test), mean in means.items() if trained == train}
            best = max(accuracy_by_test, key=lambda test, accuracy_by_test=accuracy_by_test: accuracy_by_test[test])
            rows.append(
                (n, train, with_copies.get((train, train)), accuracy_by_test[BASELINE], accuracy_by_test[best], best)
            )
    return pl.DataFrame(rows, ("n", "trained", "itself", "softmax", "best", "best_in_test"), orient="row")


def shares_of_variance(accuracies: pl.DataFrame) -> pl.DataFrame:
    """Returns what training and test explain of the variance of `pair_means`, in percent, by length.

    Rows of the grid are trainings, columns are tests: each explains the variance of its means, and `together` is the
    rest. Copies, trainings that fail and `signed_l1`, under which nothing is answered, are left out.
    """
    rows, accuracies = [], without_copies(accuracies)
    for n in accuracies["n"].unique().sort():
        means = pair_means(accuracies, n)
        trained, tested = (list(dict.fromkeys(names)) for names in zip(*means))
        grid = np.array(
            [
                [means[training, test] for test in tested if test != "signed_l1"]
                for training in trained
                if training not in UNTRAINED
            ]
        )
        deviation = grid - grid.mean()
        training_share, test_share = (np.square(deviation.mean(axis)).mean() for axis in (1, 0))
        whole = np.square(deviation).mean()
        rows.append(
            (
                n,
                *(
                    100 * float(part / whole)
                    for part in (training_share, test_share, whole - training_share - test_share)
                ),
            )
        )
    return pl.DataFrame(rows, ("n", "training", "test", "together"), orient="row")
