"""Says what tuning under each regime gains over softmax, from the answers that `study` and `pretrained` counted.

The unit is the base model. Of each, the accuracies of its tuning runs are averaged, and the difference of two regimes
is one number per base model: mean, Student's t interval and paired t-test over base models. Beside it stands a
bootstrap that draws base models and, within each, its runs. SmolLM2 is one base model: a difference within a model
tuned from one seed of texts is tested over its test sets, by McNemar.

    python -m projects.clrs_text.page --output docs/data/clrs_text --page docs/clrs_text.md
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import altair as alt
import numpy as np
import polars as pl
from jaxtyping import Float

from projects.clrs_text.answers import mcnemar
from projects.clrs_text.task import PUBLISHED_LENGTHS
from softmax_jax.measures.statistics import half_width, over_seeds, paired_p_value
from softmax_jax.report import charts
from softmax_jax.report.tables import markdown_table, number_or_dash
from studies.common import Options, start

DATA = Path("docs") / "data" / "clrs_text"
SORTED, BEYOND = "insertion_sort", (40, 48, 56, 64)
"""The contrast is the accuracy of this algorithm, mean over these lengths."""
LEARNED = 50.0
"""Mean accuracy in percent at the lengths of training, from which an algorithm takes part in claims."""
SHOWN = (4, 12, 31, 40, 64)
BASELINE = "softmax"
PAIRS = (
    ("adaptive", BASELINE),
    ("ssmax", BASELINE),
    ("constant", BASELINE),
    ("sharp_constant", BASELINE),
    ("adaptive", "ssmax"),
    ("adaptive", "sharp_constant"),
)
NAMES = {
    "adaptive": "adaptive temperature",
    "ssmax": "SSMax per head",
    "constant": "constant per head, from 1",
    "sharp_constant": "constant per head, from 1.5",
}
DRAWS = 10_000
PRETRAINED, PRETRAINED_LONGEST = "pretrained_answers.csv", 16
CONTRASTS = ("regime", "against", "algorithm", "models", "mean", "low", "high", "p", "boot_low", "boot_high")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(Options):
    """Options of the command line."""

    tables: ClassVar[tuple[str, ...]] = ("learned", "contrasts", "swapped", "pretrained")

    data: Path = DATA
    """Directory with answers.csv of `study` and, where it was run, pretrained_answers.csv of `pretrained`."""

    def marks(self) -> tuple[str, ...]:
        """Returns the marks of the tables whose data are there."""
        return self.tables if (self.data / PRETRAINED).exists() else self.tables[:-1]


def complete(answers: pl.DataFrame) -> pl.DataFrame:
    """Returns the tuned answers of the base models that were tuned under every regime, with the accuracy in percent."""
    tuned = answers.filter(stage="tuned").with_columns(accuracy=100 * pl.col("right") / pl.col("sets"))
    regimes = tuned.group_by("seed").agg(pl.col("regime").n_unique())
    whole = regimes.filter(pl.col("regime") == tuned["regime"].n_unique())["seed"]
    return tuned.filter(pl.col("seed").is_in(whole.to_list()))


def by_run(tuned: pl.DataFrame, regime: str, algorithm: str) -> Float[np.ndarray, "models runs"]:
    """Returns the mean accuracy beyond training of each tuning run of each base model."""
    found = tuned.filter(pl.col("n").is_in(BEYOND), regime=regime, algorithm=algorithm)
    means = found.group_by("seed", "run").agg(pl.mean("accuracy")).sort("seed", "run")
    return means["accuracy"].to_numpy().reshape(means["seed"].n_unique(), -1)


def bootstrap(one: Float[np.ndarray, "models runs"], other: Float[np.ndarray, "models runs"]) -> tuple[float, float]:
    """Returns the 95 % interval of the mean difference when base models are drawn and, within each, its runs."""
    random = np.random.default_rng(0)
    models = random.integers(len(one), size=(DRAWS, len(one), 1))
    means = []
    for of_regime in (one, other):
        runs = random.integers(of_regime.shape[1], size=(DRAWS, len(one), of_regime.shape[1]))
        means.append(of_regime[models, runs].mean((1, 2)))
    low, high = np.quantile(means[0] - means[1], (0.025, 0.975))
    return float(low), float(high)


def contrasts(answers: pl.DataFrame) -> pl.DataFrame:
    """Returns each difference of two regimes beyond training, for every algorithm that is learned."""
    tuned, rows = complete(answers), []
    for algorithm in learned(answers):
        for regime, against in PAIRS:
            one, other = (by_run(tuned, name, algorithm) for name in (regime, against))
            gains = (one.mean(1) - other.mean(1)).tolist()
            mean, half = float(np.mean(gains)), half_width(gains) or float("nan")
            p = paired_p_value(one.mean(1).tolist(), other.mean(1).tolist())
            low_and_high = (mean - half, mean + half)
            rows.append((regime, against, algorithm, len(gains), mean, *low_and_high, p, *bootstrap(one, other)))
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


def learned_table(answers: pl.DataFrame) -> str:
    """Returns what the base models answer right under softmax, by algorithm and length, as Markdown."""
    rows = []
    for algorithm, mean in at_training_lengths(answers).items():
        found = answers.filter(algorithm=algorithm, stage="swapped", regime=BASELINE)
        by_length = dict(found.group_by("n").agg(100 * pl.col("right").sum() / pl.col("sets").sum()).rows())
        rows.append([algorithm, f"{mean:.1f}", *(f"{by_length[n]:.1f}" for n in SHOWN)])
    return markdown_table(["algorithm", "lengths of training", *map(str, SHOWN)], rows)


def contrasts_table(found: pl.DataFrame) -> str:
    """Returns the contrasts of the algorithm that sorts, as Markdown."""
    rows = []
    for row in found.filter(algorithm=SORTED).to_dicts():
        interval, boot = (f"{row[low]:+.1f} to {row[high]:+.1f}" for low, high in (("low", "high"), CONTRASTS[-2:]))
        against = NAMES.get(row["against"], row["against"])
        shown = [NAMES[row["regime"]], against, f"{row['mean']:+.1f}", interval, boot, number_or_dash(row["p"], ".2g")]
        rows.append(shown)
    return markdown_table(["tuned under", "minus", "gain", "95 % (t)", "95 % (bootstrap)", "p"], rows)


def swapped_table(losses: pl.DataFrame) -> str:
    """Returns the mean loss of each regime when it is swapped in, with the range over base models, as Markdown."""
    algorithms = list(dict.fromkeys(losses["algorithm"]))
    rows = []
    for (regime,), of_one in losses.group_by("regime", maintain_order=True):
        cells = []
        for algorithm in algorithms:
            gains = of_one.filter(algorithm=algorithm)["gain"].to_list()
            cells.append(f"{np.mean(gains):+.1f} ({min(gains):+.1f} to {max(gains):+.1f})")
        rows.append([NAMES[str(regime)], *cells])
    return markdown_table(["swapped in", *algorithms], rows)


def pretrained_cells(answers: pl.DataFrame) -> Iterator[tuple[str, str, int, str, float, float, float | None, int]]:
    """Yields stage, regime, seed, algorithm, accuracy at and beyond the training lengths of SmolLM2, p there, sets.

    p is of McNemar's exact test beyond training, against the model tuned under softmax from the same seed.
    """
    trained = answers["n"].unique().sort().to_list()
    beyond = [n for n in trained if n > PRETRAINED_LONGEST]
    bits = answers.with_columns(right=pl.col("right").str.split("").list.eval(pl.element() == "1"))
    cells = {
        key: (of_one.filter(~pl.col("n").is_in(beyond)), of_one.filter(pl.col("n").is_in(beyond)))
        for key, of_one in bits.group_by("stage", "regime", "seed", "algorithm", maintain_order=True)
    }
    arrays = {key: [np.concatenate(part["right"].to_list()) for part in parts] for key, parts in cells.items()}
    for (stage, regime, seed, algorithm), (within, after) in arrays.items():
        reference = arrays["tuned", BASELINE, seed, algorithm][1]
        p = None if (stage, regime) == ("tuned", BASELINE) else mcnemar(after, reference)
        yield stage, regime, seed, algorithm, 100 * within.mean(), 100 * after.mean(), p, after.size  # pyright: ignore


def pretrained_table(answers: pl.DataFrame) -> str:
    """Returns what SmolLM2 answers right after tuning, as Markdown."""
    rows = [
        [
            algorithm,
            f"{stage} {NAMES.get(regime, regime)}" if stage == "swapped" else NAMES.get(regime, regime),
            str(seed),
            f"{within:.1f}",
            f"{after:.1f}",
            number_or_dash(p, ".1g"),
        ]
        for stage, regime, seed, algorithm, within, after, p, _ in sorted(
            pretrained_cells(answers), key=lambda cell: (cell[3], cell[0] == "swapped", cell[2])
        )
    ]
    return markdown_table(["algorithm", "under", "seed", "4 to 16", "20 to 40", "p"], rows)


def accuracy_chart(answers: pl.DataFrame) -> charts.Chart:
    """Draws the accuracy of sorting by length after tuning, with bands over base models."""
    tuned = complete(answers).filter(algorithm=SORTED)
    means = tuned.group_by("regime", "n", "seed", maintain_order=True).agg(pl.mean("accuracy"))
    shown = over_seeds(means, ["regime", "n"], "accuracy", 0.0, 100.0).rename({"regime": "normalizer"})
    names = charts.palette(shown["normalizer"])
    x, y = charts.length_axis(sorted(set(shown["n"])), "numbers to sort"), charts.percent_axis("right answers (%)")
    models, found = means["seed"].n_unique(), contrasts(answers).filter(algorithm=SORTED, against=BASELINE)
    gains = dict(found.select("regime", "mean").rows())
    title = charts.chart_title(
        f"From 40 to 64 numbers, the adaptive temperature gains {gains['adaptive']:+.1f} points, SSMax "
        f"{gains['ssmax']:+.1f}",
        f"insertion_sort, trained at 4 to 31 numbers, then tuned under each; mean of {models} base models, 95 % bands",
    )
    colour = charts.colour_by("normalizer", names, orient="top", columns=2)
    return alt.layer(*charts.lines(shown, x, y, colour)).properties(width=480, height=280, title=title)


def tables_of(data: Path) -> Iterator[str]:
    """Yields the tables of the answers in a directory, in the order of their marks."""
    answers = pl.read_csv(data / "answers.csv")
    yield learned_table(answers)
    yield contrasts_table(contrasts(answers))
    yield swapped_table(swapped_losses(answers))
    if (data / PRETRAINED).exists():
        yield pretrained_table(pl.read_csv(data / PRETRAINED, schema_overrides={"right": pl.String}))


def write(asked: Arguments) -> None:
    """Writes the contrasts, the losses, the tables and the picture."""
    answers = pl.read_csv(asked.data / "answers.csv")
    frames = {"contrasts": contrasts(answers), "swapped": swapped_losses(answers)}
    drawn = {"accuracy": accuracy_chart(answers)}
    asked.write("clrs_text", frames, drawn, dict(zip(asked.marks(), tables_of(asked.data))))


if __name__ == "__main__":
    start(Arguments, __doc__, write)
