"""Claims of the page that asks whether the paper is reproduced, and of the README."""

import json
from collections.abc import Iterator

import numpy as np
import polars as pl

from docs.claims import ROOT, read
from softmax_jax.experiment.measures.agreement import with_nulls
from softmax_jax.experiment.measures.significance import corrected, half_width, paired_p_value
from softmax_jax.experiment.report.accuracy import ACCURACY
from softmax_jax.normalizers.scales import EntropyPolynomial

LENGTHS = tuple(ACCURACY["softmax"])


def _twenty_models() -> dict[str, np.ndarray]:
    """Accuracies of both batches of the recipe of `paper`: seeds by lengths."""
    frame = read("precision_study/accuracy.csv")
    return {
        name: np.array([frame.filter(normalizer=name, n=n).sort("seed")["accuracy"].to_list() for n in LENGTHS]).T
        for name in ("softmax", "adaptive", "ssmax")
    }


def agreement() -> Iterator[tuple[str, str]]:
    published = tuple(ACCURACY["softmax"].values()), tuple(ACCURACY["adaptive"].values())
    found = with_nulls(_twenty_models(), LENGTHS, published)
    for name, row in found.items():
        interval = f" ± {row.gain_interval:.2f}" if row.seeds > 1 else ""
        distances = f"{row.baseline:.2f} | {row.method:.2f}"
        yield "docs/results.md", f"| {name} | {distances} | {row.gain:+.2f}{interval} | {row.equivalent} |"
    models, _, ssmax, nothing = found.values()
    yield "docs/results.md", f"mean gain (published {models.published_gain:.2f})"
    yield "README.md", f"{models.baseline:.1f} points from the published softmax row and {models.method:.1f}"
    yield (
        "README.md",
        f"{models.gain:.2f} ± {models.gain_interval:.2f} points in the mean (published: {models.published_gain:.2f})",
    )
    yield "README.md", f"SSMax gains {ssmax.gain:.2f} ± {ssmax.gain_interval:.2f}"
    high = [row.mean() - ACCURACY["softmax"][n] for n, row in zip(LENGTHS, _twenty_models()["softmax"].T) if n >= 1024]
    yield "README.md", f"softmax is {min(high):.1f} to {max(high):.1f} points too high"
    yield "docs/results.md", f"It meets the adaptive row to {nothing.method:.1f}"


def gains_of_twenty() -> Iterator[tuple[str, str]]:
    rows = _twenty_models()
    gains = {n: (rows["adaptive"] - rows["softmax"])[:, place].tolist() for place, n in enumerate(LENGTHS)}
    pairs = [(rows["adaptive"][:, place].tolist(), rows["softmax"][:, place].tolist()) for place in range(len(LENGTHS))]
    shown = [n for n in LENGTHS if n >= 128]
    yield "docs/results.md", " | ".join(f"{np.mean(gains[n]):.2f} ± {half_width(gains[n]):.2f}" for n in shown)
    p_values = dict(zip(LENGTHS, corrected([paired_p_value(*pair) for pair in pairs])))
    yield "docs/results.md", " | ".join(f"{p_values[n]:.1g}" for n in shown)


def losses_of_paper() -> Iterator[tuple[str, str]]:
    means = read("paper.csv").group_by("normalizer", "n").agg(pl.mean("loss"))
    loss = {(name, n): value for name, n, value in means.rows()}
    low, high = loss["softmax", 1024], loss["adaptive", 1024]
    yield "docs/results.md", f"{high - low:.2f} nats at 1,024 items ({low:.3f} to {high:.3f}"
    yield (
        "docs/results.md",
        f"At 4,096 items its loss is {loss['adaptive', 4096]:.2f}, worse than guessing ({np.log(10):.2f})",
    )
    yield "README.md", f"costs loss: {high - low:.2f} nats at 1,024 items"


def remedies() -> Iterator[tuple[str, str]]:
    """Net of what a remedy breaks, and what it mends by itself or with others."""
    means = (
        read("factorial/accuracy.csv", n=1024, trained="bfloat16")
        .group_by("tested", "normalizer")
        .agg(pl.mean("accuracy"))
    )
    accuracy = {(tested, name): value for tested, name, value in means.rows()}
    start, best = accuracy["bfloat16", "softmax"], "best constant θ"
    exact, sharp, both = accuracy["float32", "softmax"], accuracy["bfloat16", best], accuracy["float32", best]
    nets = [value - start for value in (exact, sharp, both)]
    sentence = (
        "alone add {:.1f} points at 1,024 items, a sharper row (the best constant θ) {:.1f}, both together {:.1f}"
    )
    yield "docs/results.md", sentence.format(*nets)
    yield (
        "docs/precision_study.md",
        "exact products alone add {:.0f} points, a sharper row {:.0f}, both together {:.0f}".format(*nets),
    )
    split = read("factorial/split.csv", n=1024, trained="bfloat16").mean()
    mended = [split[name].item() + split["either"].item() for name in ("rounding", "sharpness")]
    yield (
        "docs/results.md",
        f"Exact products mend {mended[0]:.1f} % and break {mended[0] - nets[0]:.1f}; "
        f"a sharper row mends {mended[1]:.1f} and breaks {mended[1] - nets[1]:.1f}",
    )
    yield "docs/predictions.md", "exact products add {:.1f} points, a sharper row {:.1f}, both {:.1f}".format(*nets)


def float32() -> Iterator[tuple[str, str]]:
    means = read("paper_float32.csv").group_by("normalizer", "n").agg(pl.mean("accuracy"))
    best = [
        100 * (rows["accuracy"].max() - (base := rows.filter(normalizer="softmax")["accuracy"].item())) / (100 - base)
        for rows in (means.filter(n=n) for n in (256, 1024, 4096, 16384))
    ]
    sentence = (
        "wins back {:.0f} % of softmax's loss at 256 items, {:.0f} at 1,024, {:.0f} at 4,096 and {:.0f} at 16,384"
    )
    yield "docs/results.md", sentence.format(*best)
    exact = (
        read("factorial/accuracy.csv", n=1024, trained="float32", tested="float32")
        .group_by("normalizer")
        .agg(pl.mean("accuracy"))
    )
    accuracy = dict(exact.rows())
    gain, loss = accuracy["best constant θ"] - accuracy["softmax"], 100 - accuracy["softmax"]
    yield "docs/results.md", f"{100 * gain / loss:.0f} % at 1,024 items: {gain:.1f} of {loss:.1f} points"


def polynomials() -> Iterator[tuple[str, str]]:
    published = np.array(EntropyPolynomial().coefficients)
    trained = pl.col("model").is_in(["paper, trained in float32", "paper_float32", "frontier", "near_ties"])
    curves = read("polynomial/curves.csv").filter(trained, pl.col("entropy") >= 1)
    ratios = curves["beta"].to_numpy() / np.polyval(published, curves["entropy"].to_numpy())
    yield "docs/polynomial.md", f"from 1 nat on, at {ratios.min():.1f} to {ratios.max():.1f} times the published"
    by_loss = json.loads((ROOT / "checkpoints" / "frontier" / "temperature.json").read_text())["coefficients"]
    entropies = [1, 1.5, 2, 2.5]
    shown = ["{:.2f}, {:.2f}, {:.2f} and {:.2f}".format(*np.polyval(row, entropies)) for row in (by_loss, published)]
    yield "docs/polynomial.md", f"({shown[0]} at 1, 1.5, 2 and 2.5 nats, where {shown[1]} are published)"
