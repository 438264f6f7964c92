"""The questions that the page asks of a run, and the answers: sentences and charts, all made from what was measured."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import polars as pl

from softmax_jax.measures import dispersion
from softmax_jax.measures.evaluation import BASELINE, Measured, summarize
from softmax_jax.measures.fits import ALL_LENGTHS
from softmax_jax.measures.resolution import Resolution
from softmax_jax.measures.statistics import over_seeds
from softmax_jax.measures.table import EVALUATION, KEYS
from softmax_jax.normalizers.maps import softmax
from softmax_jax.report import page, resolution, temperature
from softmax_jax.report.accuracy import SOURCE, accuracy_chart, moved_by_offset, of_an_offset, published_cells
from softmax_jax.report.charts import FAIR
from softmax_jax.report.dispersion import attention_map_chart, attention_map_frame, dispersion_chart
from softmax_jax.report.page import Figure, Section
from softmax_jax.report.playground import NORMALIZERS, playground_chart, playground_logits
from softmax_jax.report.tables import number_or_dash
from softmax_jax.tasks import published
from softmax_jax.temperature import Rows, TemperatureFit

HALF = 50.0
"""Accuracy in percent at which a normalizer counts as lost."""


class Evaluated(NamedTuple):
    """One run under every normalizer that was asked for."""

    name: str
    longest_in_training: int
    normalizers: tuple[str, ...]
    measured: Sequence[Measured]
    """By length; hardmax and the true item alone may be measured beyond what was asked for."""
    everything: pl.DataFrame
    """The frame of all that was measured."""

    def asked(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows of the normalizers that were asked for."""
        return frame.filter(pl.col("normalizer").is_in(self.normalizers))

    @property
    def frame(self) -> pl.DataFrame:
        """The frame of what was asked for."""
        return self.asked(self.everything)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those of the trained models."""
        return self.measured[0].seeds

    @property
    def baseline(self) -> str:
        """The normalizer that sentences are about: softmax, or the first if that was not measured."""
        return BASELINE if BASELINE in self.normalizers else self.normalizers[0]


class Study(NamedTuple):
    """What is looked at more closely, of one run."""

    run: Evaluated
    resolution: Resolution
    searched: Mapping[int, Rows]
    """Rows with their best temperatures, by length."""
    fits: Mapping[str, TemperatureFit]
    maps: dispersion.AttentionMaps
    """Of the normalizers that were asked for."""


def count(value: float | int) -> str:
    """A number of items, by its magnitude where it is astronomic.

    >>> count(16384), count(1234.4), count(2e40)
    ('16,384', '1,234', '10^40')
    """
    return f"{value:,.0f}" if value < 1e7 else f"10^{math.log10(value):.0f}"


def report_sections(runs: Sequence[Evaluated], study: Study, page_of_weights: str) -> list[Section]:
    """All sections in order; `page_of_weights` is the attention maps as a page of their own."""
    of_one_run = [
        dispersion_section(study),
        maps_section(study, page_of_weights),
        temperature_section(study),
        resolution_section(study),
    ]
    if len(runs) > 1:
        about = f"This section is about {study.run.name}."
        of_one_run = [section._replace(sentences=[*section.sentences, about]) for section in of_one_run]
    return [result_section(runs), accuracy_section(runs), *of_one_run, playground_section()]


def result_section(runs: Sequence[Evaluated]) -> Section:
    """The result in a sentence, and the table of every run."""
    parts = [part for index, run in enumerate(runs) for part in result_tables(f"table-{index}", run)]
    return Section("result", "How well does attention find the largest of n items?", list(map(headline, runs)), parts)


def headline(run: Evaluated) -> str:
    """What the first normalizer gets wrong as sets grow, and what the best of the others wins back."""
    by_name = accuracies(run)
    first, *others = by_name
    moved = moved_by_offset(by_name)
    others = [name for name in others if name not in moved]
    lengths = list(by_name[first])
    start = max((n for n in lengths if n <= run.longest_in_training), default=lengths[0])
    sentence = (
        f"{run.name}: Trained on sets of at most {run.longest_in_training} items, attention with {first} finds the "
        f"largest in {by_name[first][start]:.1f} % of sets of {count(start)} and {by_name[first][lengths[-1]]:.1f} % "
        f"of sets of {count(lengths[-1])}"
    )
    if others:
        gain, n, best = max((by_name[name][n] - by_name[first][n], n, name) for name in others for n in lengths)
        sentence += (
            f"; of the normalizers swapped in at test time, {best} wins back most: {gain:.1f} points at {count(n)} "
            f"items, from {by_name[first][n]:.1f} % to {by_name[best][n]:.1f} %"
        )
    return f"{sentence}."


def accuracies(run: Evaluated) -> dict[str, dict[int, float]]:
    """Mean accuracy in percent by normalizer and length."""
    means: dict[str, dict[int, float]] = {}
    for name, n, accuracy in over_seeds(run.frame, ["normalizer", "n"], "accuracy")["normalizer", "n", "value"].rows():
        means.setdefault(name, {})[n] = accuracy
    return means


def result_tables(name: str, run: Evaluated) -> list[str]:
    """A table for each printed measure, one for p, and the radio buttons that choose among them."""
    sets = [of_length.sets for of_length in run.measured]
    of_what = f"mean of {len(run.seeds)} seeds, up to {max(sets)} sets of a length, {sets[-1]} of the longest"
    captions = {
        measure: f"{entry.caption} in {entry.unit}, {of_what}" for measure, entry in EVALUATION.items() if entry.printed
    }
    captions["accuracy"] += f", ± half the 95 % interval (t); {SOURCE}"
    if sentence := of_an_offset(run.normalizers):
        captions["accuracy"] += f"; {sentence}"
    captions["p_value"] = f"P of the paired t-test of the accuracy against {run.normalizers[0]}, corrected by Holm"
    summary = summarize(run.frame, run.normalizers[0])
    lengths = summary["n"].unique(maintain_order=True).to_list()
    options = {f"{name}-{measure}": measure.replace("p_value", "p") for measure in captions}
    parts = [page.html.heading(run.name), page.html.choice("Show", options)]
    for measure, caption in captions.items():
        rows = [
            page.TableRow(str(which), [cell(row, measure) for row in of_one.to_dicts()])
            for (which,), of_one in summary.group_by("normalizer", maintain_order=True)
        ]
        if measure == "accuracy":
            rows += [
                page.TableRow(
                    f"{which}, published", [published_cells(row, lengths).get(n, "–") for n in lengths], reference=True
                )
                for which, row in published.ACCURACY.items()
            ]
        columns = ["normalizer", *map(count, lengths)]
        parts.append(page.html.table(caption, columns, rows, f"{name}-{measure}", hidden=measure != "accuracy"))
    return parts


def cell(summary: Mapping[str, Any], measure: str) -> str:
    """A mean in the form of its measure, the accuracy with its interval; a dash where there is none."""
    half = summary["interval"] if measure == "accuracy" else None
    form = EVALUATION[measure].form if measure in EVALUATION else ".1g"
    return number_or_dash(summary[measure], form) + ("" if half is None else f" ± {half:.2f}")


def accuracy_section(runs: Sequence[Evaluated]) -> Section:
    """Accuracy by length, a chart for every run."""
    figures = []
    for index, run in enumerate(runs, 1):
        chart = accuracy_chart(run.frame, f"How far does attention reach? {run.name}")
        figures.append(Figure(f"accuracy_{index}", chart, run.frame.select(*KEYS, *EVALUATION)))
    sentences = [
        *map(reach, runs),
        "A click on a name in the legend, or Enter on it, switches its line off and on. Dashed lines are the published "
        "accuracies of arXiv 2410.01104, from other models.",
    ]
    if any(ALL_LENGTHS in run.normalizers for run in runs):
        sentences.append(f"{FAIR}, so only the latter shows how far a fit generalises.")
    return Section("accuracy", "How far does each normalizer reach?", sentences, figures)


def reach(run: Evaluated) -> str:
    """Where the accuracy of each normalizer falls to a half, of those that fall so far."""
    falls = []
    for name, by_length in accuracies(run).items():
        lengths, values = list(by_length), list(by_length.values())
        n = lengths[0] if max(values) <= HALF else dispersion.crossing(lengths, values, HALF)
        falls += [] if n is None else [f"{name} at {count(n)} items"]
    return f"{run.name}: Half of the sets are answered wrong under {', '.join(falls) or 'no normalizer'}."


def dispersion_section(study: Study) -> Section:
    """Entropy, largest weight and rank by length, beside their bounds."""
    name, frame = study.run.baseline, dispersion.dispersion(study.run.frame)
    forced = dispersion.forced(frame)
    of_baseline = frame.filter(normalizer=name)
    means = of_baseline.group_by("n").agg(pl.mean("max_weight", "entropy", "rank")).sort("n")
    (start, end) = (means.row(at, named=True) for at in (0, -1))
    n = count(start["n"]), count(end["n"])
    sentences = [
        f"Under {name} the largest weight goes from {start['max_weight']:.2f} at {n[0]} items to "
        f"{end['max_weight']:.3f} at {n[1]}, the entropy from {start['entropy']:.2f} to {end['entropy']:.2f} nats, "
        f"where equal weights would have {np.log(end['n']):.2f}.",
        forced_sentence(forced.row(by_predicate=pl.col("normalizer") == name, named=True), of_baseline),
        f"The weight of the largest item ranks {start['rank']:.1f} on average at {n[0]} items and {end['rank']:.1f} at "
        f"{n[1]}.",
    ]
    figure = Figure("dispersion", dispersion_chart(frame, forced), frame)
    return Section("dispersion", "Why does attention fail on long sets?", sentences, [figure])


def forced_sentence(forced: Mapping[str, Any], frame: pl.DataFrame) -> str:
    """Where the largest weight falls below the threshold, measured, and where theory leaves it no choice.

    Of one normalizer: a row of `dispersion.forced`, and the frame that it was made from.
    """
    measured, nearest, spread = forced["measured"], forced["nearest"], forced["spread"]
    at = f"at no length up to {count(max(frame['n']))}" if measured is None else f"at about {count(measured)} items"
    parts = [f"Its mean largest weight falls to {forced['threshold']:g} {at}"]
    if nearest is not None:
        parts.append(f"the spreads of the logits nearest to the top force it down to that from {count(nearest)} items")
    if spread is not None:
        start = f"about {count(spread)}" if math.isfinite(spread) else "more than 10^308"
        mean = frame["spread"].to_numpy().mean()
        parts.append(f"the spread of all logits alone, {mean:.0f} on average, from {start} items")
    return f"{'; '.join(parts)}."


def maps_section(study: Study, page_of_weights: str) -> Section:
    """The paper's attention map, and the same array to hover over."""
    maps = study.maps
    best = maps.weights[..., 0].mean(-1)
    name = study.run.baseline
    at, most = maps.normalizers.index(name), int(best[:, -1].argmax())
    lead = (
        f"Under {name} the largest item holds a mean weight of {best[at, 0]:.2f} in sets of {count(maps.lengths[0])} "
        f"and {best[at, -1]:.2f} in sets of {count(maps.lengths[-1])}"
    )
    if most != at:
        lead += f"; there it holds most, {best[most, -1]:.2f}, under {maps.normalizers[most]}"
    sentences = [
        f"{lead}.",
        "A bright left edge is attention on the largest item; a bright cell further right is attention on another; "
        "a dark panel is attention spread over items that are not shown.",
    ]
    shown = Figure("attention_maps", attention_map_chart(maps), attention_map_frame(maps), renderer="canvas")
    title = "Every weight of these maps, to hover over (treescope)"
    frame = page.html.frame(title, "Attention weights in treescope", page_of_weights)
    return Section("maps", "How does attention lose the largest item?", sentences, [shown, frame])


def temperature_section(study: Study) -> Section:
    """The entropy-to-temperature fit, and the inverse temperatures that it gives by length."""
    low, high = temperature.PUBLISHED_RANGE
    peak = float(temperature.curves({})[temperature.PUBLISHED](np.linspace(low, high, 1001)).max())
    longest = max(study.searched)
    flatter = 100 * float((study.searched[longest].entropy > high).mean())
    lead = f"The published polynomial sharpens rows of {low} to {high} nats, by β = {peak:.2f} at most"
    if flatter > 0:
        lead += f"; of the sets of {count(longest)} items, {flatter:.1f} % are flatter, and stay as they are"
    sentences = [f"{lead}."]
    for name, fit in study.fits.items():
        ends, betas = fit.entropy_range, fit.beta_at_ends
        sentences.append(
            f"{name}, fitted to {min(fit.lengths)} … {count(max(fit.lengths))} items of these models, goes from "
            f"β = {betas[0]:.1f} at {ends[0]:.2f} nats to {betas[1]:.1f} at {ends[1]:.2f} and stays there beyond."
        )
    searched = temperature.row_frame(study.searched, study.run.seeds)
    points = temperature.length_points(study.searched, study.fits)
    figures = [
        Figure("entropy", temperature.entropy_chart(study.searched, study.fits), searched),
        Figure("beta", temperature.length_chart(study.searched, study.fits), points),
    ]
    return Section("temperature", "Which temperature is best for a row of given entropy?", sentences, figures)


def resolution_section(study: Study) -> Section:
    """What the key tells apart, and what that costs beside dispersion."""
    run, seeds = study.run, study.run.seeds
    gaps, losses = run.asked(dispersion.gaps(run.measured)), run.asked(dispersion.losses(run.everything))
    nat, key = (of_seeds.mean() for of_seeds in resolution.tell_apart(study.resolution))
    longest = max(losses["n"])
    causes = ("dispersion", "key", "value")
    lost = losses.filter(normalizer=run.baseline, n=longest).select(pl.mean(*causes)).row(0, named=True)
    sentences = [
        f"Of the sets of {count(longest)} items, {run.baseline} loses {lost['dispersion']:.1f} % to dispersion; "
        f"{lost['key']:.1f} % are lost even to hardmax, because the key gives another item the largest logit, and "
        f"{lost['value']:.1f} % even with all weight on the true item.",
        f"At ρ = 1 a difference of {nat:.1g} in ρ makes one nat of logit: softmax blurs items that are closer. The "
        f"class alone moves the logit as much as a difference of {key:.1g} in ρ does, and no normalizer can undo that.",
    ]
    shown = [name for name in (run.baseline, ALL_LENGTHS) if name in run.normalizers]
    items = resolution.resolution_frame(study.resolution, seeds)
    figures = [
        Figure("resolution", resolution.resolution_chart(study.resolution, seeds), items),
        Figure("gap", resolution.gap_chart(gaps, study.resolution, shown), gaps),
        Figure("losses", resolution.loss_split_chart(losses), losses),
    ]
    return Section("resolution", "Is it dispersion that costs accuracy, or an imprecise key?", sentences, figures)


def playground_rows(n: int = 64, gap: float = 4.0, noise: float = 1.0) -> pl.DataFrame:
    """What the playground shows at first: of each item the logit, and the weight under softmax."""
    logits = playground_logits(n, gap, noise)
    weights = np.asarray(softmax(jnp.asarray(logits, jnp.float32)))
    return pl.DataFrame({"item": range(n), "logit": logits, "weight": weights.astype(np.float64)})


def playground_section() -> Section:
    """The chart to play with."""
    return Section(
        "playground",
        "What does each normalizer do to a row of logits?",
        [
            "Move the sliders: your browser computes the weights anew, by the same formulas as the package.",
            "One item is the best. Its logit lies above the middle of the others by the gap, and the others lie within "
            "± noise of their middle. Raise n to see softmax disperse, and sharpen it with theta or s. Raise the noise "
            "above the gap to see that no temperature helps once another logit is the largest: hardmax then picks the "
            "wrong item.",
            f"There are {len(NORMALIZERS)} normalizers to choose from. A slider acts on the one that it names; other "
            "numbers are those that the normalizers are registered with.",
        ],
        [Figure("playground", playground_chart(), playground_rows())],
    )
