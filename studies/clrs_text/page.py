"""Writes the table and the picture of what tuning gains over softmax, from the answers of `study`.

The unit is the base model. Of each, the accuracies of its tuning runs are averaged, and the difference of two regimes
is one number per base model: mean, Student's t interval and paired t-test over base models. contrasts.csv has a
bootstrap too, which draws base models and, within each, its runs.

    python -m studies.clrs_text.page --output docs/data/clrs_text --page docs/language_models.md
"""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import altair as alt
import numpy as np
import polars as pl
from jaxtyping import Float

from softmax_jax.experiment.measures.frames import read_csv
from softmax_jax.experiment.measures.significance import half_width, over_seeds, paired_p_value
from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.tables import markdown_table, number_or_dash
from studies.clrs_text.task import PUBLISHED_LENGTHS
from studies.common import Options, start

DATA = Path("docs") / "data" / "clrs_text"
SORTED, BEYOND = "insertion_sort", (40, 48, 56, 64)
"""The contrast is the accuracy of this algorithm, mean over these lengths."""
LEARNED = 50.0
"""Mean accuracy in percent at the lengths of training, from which an algorithm takes part in claims."""
BASELINE = "softmax"
UNTUNED = "untuned"
"""Stands in the column of regimes for the base models before tuning."""
PAIRS = (
    ("adaptive", BASELINE),
    ("ssmax", BASELINE),
    ("constant", BASELINE),
    ("sharp_constant", BASELINE),
    ("adaptive", "ssmax"),
    ("adaptive", "sharp_constant"),
    (BASELINE, UNTUNED),
    ("adaptive", UNTUNED),
)
RANGES = {"4 to 31": PUBLISHED_LENGTHS, "40 to 64": BEYOND}
NAMES = {
    BASELINE: "softmax",
    UNTUNED: "the base model, untuned",
    "adaptive": "adaptive temperature",
    "ssmax": "SSMax per head",
    "constant": "constant per head, from 1",
    "sharp_constant": "constant per head, from 1.5",
}
DRAWS = 10_000
CONTRASTS = ("regime", "against", "algorithm", "lengths", "models", "mean", "low", "high", "p", "boot_low", "boot_high")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(Options):
    """Options of the command line."""

    tables: ClassVar[tuple[str, ...]] = ("contrasts",)

    data: Path = DATA
    """Directory with answers.csv of `study`."""


def complete(answers: pl.DataFrame) -> pl.DataFrame:
    """Returns the answers of the base models that were tuned under every regime, tuned and untuned, in percent."""
    answers = answers.with_columns(accuracy=100 * pl.col("right") / pl.col("sets"))
    untuned = answers.filter(stage="swapped", regime=BASELINE).with_columns(regime=pl.lit(UNTUNED))
    tuned = answers.filter(stage="tuned")
    regimes = tuned.group_by("seed").agg(pl.col("regime").n_unique())
    whole = regimes.filter(pl.col("regime") == tuned["regime"].n_unique())["seed"]
    return pl.concat([tuned, untuned]).filter(pl.col("seed").is_in(whole.to_list()))


def by_run(
    tuned: pl.DataFrame, regime: str, algorithm: str, lengths: Sequence[int]
) -> Float[np.ndarray, "models runs"]:
    """Returns the mean accuracy over some lengths of each tuning run of each base model."""
    answers = tuned.filter(pl.col("n").is_in(lengths), regime=regime, algorithm=algorithm)
    means = answers.group_by("seed", "run").agg(pl.mean("accuracy")).sort("seed", "run")
    return means["accuracy"].to_numpy().reshape(means["seed"].n_unique(), -1)


def bootstrap(
    regime: Float[np.ndarray, "models runs"], other: Float[np.ndarray, "models others"]
) -> tuple[float, float]:
    """Returns the 95 % interval of the mean difference when base models are drawn and, within each, its runs."""
    random = np.random.default_rng(0)
    models = random.integers(len(regime), size=(DRAWS, len(regime), 1))
    means = []
    for accuracies in (regime, other):
        runs = random.integers(accuracies.shape[1], size=(DRAWS, len(regime), accuracies.shape[1]))
        means.append(accuracies[models, runs].mean((1, 2)))
    low, high = np.quantile(means[0] - means[1], (0.025, 0.975))
    return float(low), float(high)


def contrasts(answers: pl.DataFrame) -> pl.DataFrame:
    """Returns each difference of two regimes at and beyond the lengths of training, for every learned algorithm."""
    tuned, rows = complete(answers), []
    for (lengths, numbers), algorithm, pair in itertools.product(RANGES.items(), learned(answers), PAIRS):
        regime, other = (by_run(tuned, name, algorithm, numbers) for name in pair)
        means, reference = regime.mean(1), other.mean(1)
        gains = (means - reference).tolist()
        mean, half = float(np.mean(gains)), half_width(gains)
        half = float("nan") if half is None else half
        p = paired_p_value(means.tolist(), reference.tolist())
        ends = mean - half, mean + half, p, *bootstrap(regime, other)
        rows.append((*pair, algorithm, lengths, len(gains), mean, *ends))
    return pl.DataFrame(rows, CONTRASTS, orient="row")


def swapped_losses(answers: pl.DataFrame) -> pl.DataFrame:
    """Returns what each base model loses at the lengths of training when a regime is swapped in."""
    swapped = answers.filter(pl.col("n").is_in(PUBLISHED_LENGTHS), stage="swapped")
    means = swapped.group_by("regime", "algorithm", "seed", maintain_order=True).agg(
        accuracy=100 * pl.col("right").sum() / pl.col("sets").sum()
    )
    softmax = means.filter(regime=BASELINE).select("algorithm", "seed", softmax="accuracy")
    others = means.filter(pl.col("regime") != BASELINE).join(softmax, on=["algorithm", "seed"])
    others = others.with_columns(gain=pl.col("accuracy") - pl.col("softmax"))
    return others.filter(pl.col("algorithm").is_in(learned(answers))).sort("regime", "algorithm", "seed")


def at_training_lengths(answers: pl.DataFrame) -> dict[str, float]:
    """Returns the mean accuracy of each algorithm at the lengths of training, as trained under softmax."""
    trained = answers.filter(pl.col("n").is_in(PUBLISHED_LENGTHS), stage="swapped", regime=BASELINE)
    means = trained.group_by("algorithm", maintain_order=True).agg(100 * pl.col("right").sum() / pl.col("sets").sum())
    return dict(means.rows())


def learned(answers: pl.DataFrame) -> list[str]:
    """Returns the algorithms that are learned."""
    return [algorithm for algorithm, mean in at_training_lengths(answers).items() if mean >= LEARNED]


def contrasts_table(contrasts: pl.DataFrame) -> str:
    """Returns the contrasts of the algorithm that sorts, as Markdown."""
    rows = []
    for row in contrasts.filter(algorithm=SORTED, lengths="40 to 64").to_dicts():
        names = NAMES[row["regime"]], NAMES[row["against"]]
        gain = f"{row['mean']:+.1f} ± {row['high'] - row['mean']:.1f}"
        rows.append([*names, gain, number_or_dash(row["p"], ".2g")])
    return markdown_table(["tuned under", "minus", "gain", "p"], rows)


def gains_chart(answers: pl.DataFrame) -> charts.Chart:
    """Draws what tuning under each regime gains over softmax when sorting, by length, with bands over base models."""
    tuned = complete(answers).filter(algorithm=SORTED, stage="tuned")
    means = tuned.group_by("regime", "n", "seed", maintain_order=True).agg(pl.mean("accuracy"))
    softmax = means.filter(regime=BASELINE).select("n", "seed", softmax="accuracy")
    gains = means.filter(pl.col("regime") != BASELINE).join(softmax, on=["n", "seed"])
    gains = gains.select("regime", "n", "seed", gain=pl.col("accuracy") - pl.col("softmax"))
    shown = over_seeds(gains, ["regime", "n"], "gain").rename({"regime": "normalizer"})
    longer = {name: NAMES[name] for name in ("constant", "sharp_constant")}
    shown = shown.with_columns(pl.col("normalizer").replace(longer))
    long_contrasts = contrasts(answers).filter(algorithm=SORTED, against=BASELINE, lengths="40 to 64")
    mean = dict(long_contrasts.select("regime", "mean").rows())
    sharp = [mean[name] for name in ("adaptive", "ssmax", "sharp_constant")]
    title = charts.chart_title(
        f"Tuned sharper, models sort {min(sharp):.0f} to {max(sharp):.0f} points more at 40 to 64, whatever sharpens",
        f"insertion_sort, trained at 4 to 31 numbers: points above softmax tuned as long; {means['seed'].n_unique()} "
        "base models, 95 % bands",
    )
    x = charts.length_axis(sorted(set(shown["n"])), "numbers to sort")
    y = alt.Y("value:Q", title="points above softmax")
    colour = charts.colour_by("normalizer", charts.palette(shown["normalizer"]), orient="top", columns=2)
    return alt.layer(*charts.lines(shown, x, y, colour)).properties(width=480, height=280, title=title)


def write(arguments: Arguments) -> None:
    """Writes the contrasts, the losses, the table and the picture."""
    answers = read_csv(arguments.data / "answers.csv")
    frames = {"contrasts": contrasts(answers), "swapped": swapped_losses(answers)}
    drawn, tables = {"gains": gains_chart(answers)}, {"contrasts": contrasts_table(frames["contrasts"])}
    arguments.write("clrs_text", frames, drawn, tables)


if __name__ == "__main__":
    start(Arguments, __doc__, write)
