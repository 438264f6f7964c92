"""Regimes of training on CLRS-Text, as tables and charts."""

from collections.abc import Sequence

import altair as alt
import polars as pl

from projects.clrs_text.answers import summarize_answers
from projects.clrs_text.task import PUBLISHED_LENGTHS
from softmax_jax.report import charts, markdown
from softmax_jax.report.colours import by_size, palette, reader_name

TABLES = ("learned", "regimes", "seen")
"""Marks of the page."""
SWAPPED, TUNED, THROUGHOUT = "swapped", "tuned", "throughout"
LEARNED = 50.0
"""Mean accuracy in percent at the lengths of training, from which an algorithm takes part in claims on lengths."""
SHOWN = (4, 12, 31, 64, 256)
BEYOND = (40, 48, 56, 64)
"""Lengths at which enough answers are of those that training has."""
SIGNIFICANT = 0.05

HeadRow = tuple[int, int, int, int, float, float]
HEADS = {
    "n": pl.Int64,
    "seed": pl.Int64,
    "layer": pl.Int64,
    "head": pl.Int64,
    "entropy": pl.Float64,
    "weight": pl.Float64,
}
"""Of each head where an answer is read: the entropy of its weights in nats, and the source's weight in percent."""


def summarize(answers: pl.DataFrame) -> pl.DataFrame:
    """Accuracy, interval and p of each regime, against softmax in the same regime on the same sets."""
    parts = [
        summarize_answers(part.drop("regime")).with_columns(regime=pl.lit(str(regime)))
        for (regime,), part in answers.group_by("regime", maintain_order=True)
    ]
    return pl.concat(parts)


def at_training_lengths(summary: pl.DataFrame) -> dict[str, float]:
    """The mean accuracy of each algorithm at the lengths of training, as trained under softmax."""
    trained = summary.filter(pl.col("n").is_in(PUBLISHED_LENGTHS), regime=SWAPPED, normalizer="softmax")
    return dict(trained.group_by("algorithm", maintain_order=True).agg(pl.mean("accuracy")).rows())


def learned_table(summary: pl.DataFrame) -> str:
    """What the models trained under softmax answer right, by algorithm and length."""
    means, rows = at_training_lengths(summary), []
    for algorithm, mean in means.items():
        found = summary.filter(algorithm=algorithm, regime=SWAPPED, normalizer="softmax")
        by_length = dict(found.select("n", "accuracy").rows())
        rows.append([algorithm, f"{mean:.1f}", *(_or_dash(by_length.get(n)) for n in SHOWN)])
    return markdown.table(["algorithm", "lengths of training", *map(str, SHOWN)], rows)


def regimes_table(summary: pl.DataFrame) -> str:
    """The accuracy under each normalizer in each regime. Bold: differs from softmax in the same regime."""
    rows = []
    for algorithm in _learned(summary):
        of_one = summary.filter(algorithm=algorithm)
        for (regime, name), cells in of_one.group_by("regime", "normalizer", maintain_order=True):
            found = {n: (accuracy, p) for n, accuracy, p in cells.select("n", "accuracy", "p").rows()}
            row = [algorithm, str(regime), reader_name(str(name))]
            for n in SHOWN:
                accuracy, p = found.get(n, (None, None))
                shown = _or_dash(accuracy)
                row.append(f"**{shown}**" if p is not None and p < SIGNIFICANT else shown)
            rows.append(row)
    return markdown.table(["algorithm", "regime", "normalizer", *map(str, SHOWN)], rows)


def seen_table(answers: pl.DataFrame, summary: pl.DataFrame) -> str:
    """Beyond training, in percent: answers that training has, and right ones among these and among the others."""
    each = answers.explode("right", "seen").filter(pl.col("algorithm").is_in(_learned(summary)))
    each = each.filter(pl.col("n").is_in(BEYOND), regime=SWAPPED, normalizer="softmax")
    rows: list[list[str]] = []
    share = {"seen": pl.col("seen").mean(), "right, seen": pl.col("right").filter("seen").mean()}
    share["right, not seen"] = pl.col("right").filter(~pl.col("seen")).mean()
    for (algorithm,), of_one in each.group_by("algorithm", maintain_order=True):
        for name, mean in share.items():
            by_length = dict(of_one.group_by("n").agg(100 * mean).rows())
            rows.append([str(algorithm), name, *(_or_dash(by_length.get(n)) for n in BEYOND)])
    return markdown.table(["algorithm", "answers (%)", *map(str, BEYOND)], rows)


def _learned(summary: pl.DataFrame) -> list[str]:
    """The algorithms that are learned, or the first where none is, for something to look at."""
    means = at_training_lengths(summary)
    return [algorithm for algorithm, mean in means.items() if mean >= LEARNED] or list(means)[:1]


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def regimes_chart(summary: pl.DataFrame) -> charts.Chart:
    """Accuracy by length: a row for each algorithm that is learned, a panel for each regime."""
    algorithms = _learned(summary)
    shown = summary.filter(pl.col("algorithm").is_in(algorithms)).rename({"accuracy": "value"})
    colour = charts.colour_by("normalizer", palette(shown["normalizer"]))
    x, y = charts.length_axis(sorted(set(shown["n"])), "length"), charts.percent_axis("right answers (%)")
    rows = []
    for algorithm in algorithms:
        panels = [
            alt.layer(*charts.lines(of_one, x, y, colour)).properties(
                width=240, height=170, title=charts.panel_title(f"{algorithm}, {regime}")
            )
            for (regime,), of_one in shown.filter(algorithm=algorithm).group_by("regime", maintain_order=True)
        ]
        rows.append(alt.hconcat(*panels))
    title = charts.chart_title(
        "Must the normalizer be there in training?",
        "trained under softmax and swapped in the test, or trained on under it; 95 % intervals over sets",
    )
    return alt.vconcat(*rows).properties(title=title)


def heads_chart(heads: pl.DataFrame) -> charts.Chart:
    """Of every head of the first model, by length: the entropy of its weights, and the weight of the answer's entry."""
    first = heads.filter(pl.col("seed") == pl.col("seed").min())
    means = first.group_by("layer", "head", "n", maintain_order=True).agg(pl.mean("entropy", "weight"))
    means = means.with_columns(layer=pl.format("layer {}", pl.col("layer") + 1))
    colour = charts.colour_by("layer", by_size(_names(means)), None)
    x = charts.length_axis(sorted(set(means["n"])), "numbers in the question")
    panels = []
    for field, axis in (("entropy", "entropy (nats)"), ("weight", "weight of the smallest number (%)")):
        y = alt.Y("value:Q", title=axis)
        frame = means.rename({field: "value"}).select("layer", "head", "n", "value")
        marks = alt.Chart(charts.data(frame)).mark_line(point=True)
        panels.append(marks.encode(x=x, y=y, color=colour, detail="head:N").properties(width=280, height=240))
    title = charts.chart_title(
        "What do the heads see where the answer to minimum is read?",
        f"a line for each head of one model; trained at {min(PUBLISHED_LENGTHS)} to {max(PUBLISHED_LENGTHS)} numbers",
    )
    return alt.hconcat(*panels).properties(title=title)


def _names(means: pl.DataFrame) -> Sequence[str]:
    return sorted(set(means["layer"]))
