"""The questions that the page asks of a run, and the answers: sentences and charts, all made from what was measured."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import polars as pl

from softmax_jax.measures import dispersion
from softmax_jax.measures.dispersion import Measured, Resolution
from softmax_jax.measures.evaluation import CSV_COLUMNS, Row, Summary, summarize
from softmax_jax.measures.refit import ALL_LENGTHS
from softmax_jax.normalizers.maps import softmax
from softmax_jax.report import page, resolution, temperature
from softmax_jax.report.accuracy import accuracy_chart
from softmax_jax.report.charts import BASELINE, FAIR
from softmax_jax.report.dispersion import attention_map_chart, attention_map_frame, dispersion_chart
from softmax_jax.report.page import Cell, Figure, Section
from softmax_jax.report.playground import NORMALIZERS, playground_chart, playground_logits
from softmax_jax.report.tables import number_or_dash
from softmax_jax.tasks import published
from softmax_jax.temperature import Rows, TemperatureFit

HALF = 50.0
"""Accuracy in percent at which a normalizer counts as lost."""
OF_ONE_RUN = ("dispersion", "maps", "temperature", "resolution")


class Evaluated(NamedTuple):
    """One run under every normalizer, as `evaluate` measures it."""

    name: str
    longest_in_training: int
    sets: Mapping[int, int]
    """Sets of each seed, by length."""
    rows: Sequence[Row]

    @property
    def summaries(self) -> list[Summary]:
        """Means over seeds."""
        return summarize(self.rows)


class Study(NamedTuple):
    """What is looked at more closely, of one run."""

    name: str
    measured: Measured
    resolution: Resolution
    searched: Mapping[int, Rows]
    """Rows with their best temperatures, by length."""
    fits: Mapping[str, TemperatureFit]


def percent(value: float) -> str:
    """A share in words.

    >>> percent(99.858), percent(7.0)
    ('99.9 %', '7.0 %')
    """
    return f"{value:.1f} %"


def count(value: float | int) -> str:
    """A number of items, by its magnitude where it is astronomic.

    >>> count(16384), count(1234.4), count(2e40)
    ('16,384', '1,234', '10^40')
    """
    return f"{value:,.0f}" if value < 1e7 else f"10^{math.log10(value):.0f}"


def listed(parts: Sequence[str]) -> str:
    """The parts as a sentence would name them.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def report_sections(runs: Sequence[Evaluated], study: Study, page_of_weights: str) -> list[Section]:
    """All sections in order; `page_of_weights` is the attention maps as a page of their own."""
    sections = [
        result_section(runs),
        accuracy_section(runs),
        dispersion_section(study),
        maps_section(study, page_of_weights),
        temperature_section(study),
        resolution_section(study),
        playground_section(),
    ]
    if len(runs) == 1:
        return sections
    own = f"This section is about {study.name}."
    return [s._replace(sentences=[*s.sentences, own]) if s.name in OF_ONE_RUN else s for s in sections]


def result_section(runs: Sequence[Evaluated]) -> Section:
    """The result in a sentence, and the table of every run."""
    parts = []
    for index, run in enumerate(runs):
        parts += [f"<h3>{page.escape(run.name)}</h3>"] if len(runs) > 1 else []
        parts += result_tables(f"table-{index}", run)
    sentences = [headline(run, named=len(runs) > 1) for run in runs]
    return Section("result", "How well does attention find the largest of n items?", sentences, parts)


def headline(run: Evaluated, named: bool) -> str:
    """What the first normalizer gets wrong as sets grow, and what the best of the others wins back."""
    by_name = accuracies(run)
    first, *others = by_name
    lengths = list(by_name[first])
    start = max((n for n in lengths if n <= run.longest_in_training), default=lengths[0])
    sentence = (
        f"Trained on sets of at most {run.longest_in_training} items, attention with {first} finds the largest in "
        f"{percent(by_name[first][start])} of sets of {count(start)} and {percent(by_name[first][lengths[-1]])} of "
        f"sets of {count(lengths[-1])}"
    )
    if others:
        gain, n, best = max((by_name[name][n] - by_name[first][n], n, name) for name in others for n in lengths)
        sentence += (
            f"; of the normalizers swapped in at test time, {best} wins back most, {gain:.1f} points at {count(n)} "
            f"items, from {percent(by_name[first][n])} to {percent(by_name[best][n])}"
        )
    return f"{run.name}: {sentence}." if named else f"{sentence}."


def accuracies(run: Evaluated) -> dict[str, dict[int, float]]:
    """Mean accuracy in percent by normalizer and length."""
    found: dict[str, dict[int, float]] = {}
    for summary in run.summaries:
        found.setdefault(summary.normalizer, {})[summary.n] = summary.accuracy
    return {name: dict(sorted(by_length.items())) for name, by_length in found.items()}


def result_tables(name: str, run: Evaluated) -> list[str]:
    """Accuracy, loss and p of the evaluation, one table each, and the radio buttons that choose among them."""
    summaries = run.summaries
    lengths = sorted({summary.n for summary in summaries})
    cells = {(summary.normalizer, summary.n): summary for summary in summaries}
    names = list(dict.fromkeys(summary.normalizer for summary in summaries))
    seeds = len({row.seed for row in run.rows})
    measures = {
        "accuracy": (
            f"Accuracy in %, mean of {seeds} seeds, {sets_in_words(run.sets)}, ± half the 95 % interval (t); "
            "published: arXiv 2410.01104, Table 1, * unconfirmed",
            accuracy_cell,
        ),
        "loss": ("Cross-entropy in nats, mean over sets and seeds", loss_cell),
        "p": (f"P of the paired t-test over seeds against {names[0]}", p_cell),
    }
    parts = [page.choice_html("Show", {f"{name}-{measure}": measure for measure in measures})]
    for measure, (caption, cell) in measures.items():
        rows = [page.Row(which, [cell(cells[which, n]) for n in lengths]) for which in names]
        if measure == "accuracy":
            rows += [
                page.Row(f"{which}, published", [published_cell(row, n) for n in lengths], reference=True)
                for which, row in published.ACCURACY.items()
            ]
        columns = ["normalizer", *map(count, lengths)]
        table = f"{name}-{measure}"
        parts.append(page.table_html(caption, columns, rows, name=table, hidden=measure != "accuracy"))
    return parts


def sets_in_words(sets: Mapping[int, int]) -> str:
    """How many sets were drawn.

    >>> sets_in_words({16: 512, 1024: 256, 4096: 64}), sets_in_words({16: 8})
    ('512 sets each (256 of 1,024 items, 64 of 4,096)', '8 sets each')
    """
    most = max(sets.values())
    (first, *others) = [(n, some) for n, some in sorted(sets.items()) if some < most] or [(0, 0)]
    fewer = [f"{first[1]} of {count(first[0])} items", *(f"{some} of {count(n)}" for n, some in others)]
    return f"{most} sets each" + (f" ({', '.join(fewer)})" if first[0] else "")


def accuracy_cell(summary: Summary) -> Cell:
    """Accuracy and its interval."""
    remark = "" if summary.interval is None else f"±{summary.interval:.2f}"
    return Cell(f"{summary.accuracy:.2f}", summary.accuracy, remark)


def loss_cell(summary: Summary) -> Cell:
    """Cross-entropy."""
    return Cell(f"{summary.loss:.3f}", summary.loss)


def p_cell(summary: Summary) -> Cell:
    """The p-value, if there is one."""
    return Cell(number_or_dash(summary.p_value, ".1g"), summary.p_value)


def published_cell(row: Mapping[int, float], n: int) -> Cell:
    """The published accuracy, if there is one."""
    if n not in row:
        return Cell("–")
    return Cell(f"{row[n]:.1f}", row[n], "*" if n in published.UNCONFIRMED else "")


def accuracy_section(runs: Sequence[Evaluated]) -> Section:
    """Accuracy by length, a chart for every run."""
    figures = []
    for index, run in enumerate(runs):
        name = "accuracy" if len(runs) == 1 else f"accuracy_{index + 1}"
        title = "How far does attention reach?"
        frame = pl.DataFrame(run.rows)
        chart = accuracy_chart(frame, title if len(runs) == 1 else f"{title} {run.name}")
        figures.append(Figure(name, chart, frame.select(CSV_COLUMNS)))
    sentences = [
        *(reach(run, named=len(runs) > 1) for run in runs),
        "A click on a name in the legend, or Enter on it, switches its line off and on. Dashed lines are the published "
        "accuracies of arXiv 2410.01104, from other models.",
    ]
    if any(ALL_LENGTHS in accuracies(run) for run in runs):
        sentences.append(f"{FAIR}: claims to generalise rest on that one.")
    return Section("accuracy", "How far does each normalizer reach?", sentences, figures)


def reach(run: Evaluated, named: bool) -> str:
    """Where the accuracy of each normalizer falls to a half."""
    falls, lasts = {}, []
    for name, by_length in accuracies(run).items():
        at = dispersion.crossing(list(by_length), list(by_length.values()), HALF)
        if at is not None:
            falls[name] = at
        elif list(by_length.values())[-1] > HALF:
            lasts.append(name)
    parts = [f"{name} at {count(n)} items" for name, n in sorted(falls.items(), key=lambda fall: fall[1])]
    clauses = [f"Half of the sets are answered wrong under {listed(parts)}"] if parts else []
    if lasts:
        clauses.append(
            f"{listed(lasts)} {'stays' if len(lasts) == 1 else 'stay'} above a half at every measured length"
        )
    sentence = "; ".join(clauses) or "No normalizer answers half of the sets at any measured length"
    return f"{run.name}: {sentence}." if named else f"{sentence}."


def dispersion_section(study: Study) -> Section:
    """Entropy, largest weight and rank by length, beside their bounds."""
    rows = dispersion.dispersion_rows(study.measured)
    forced = dispersion.forced_rows(rows)
    name = looked_at(study)
    own = [row for row in rows if row.normalizer == name]
    n = (min(row.n for row in own), max(row.n for row in own))
    start, end = ([row for row in own if row.n == at] for at in n)
    weights, entropies, ranks = (
        [dispersion.mean_of(field, some) for some in (start, end)] for field in ("max_weight", "entropy", "rank")
    )
    sentences = [
        f"Under {name} the largest weight goes from {weights[0]:.2f} at {count(n[0])} items to {weights[1]:.3f} at "
        f"{count(n[1])}, the entropy from {entropies[0]:.2f} to {entropies[1]:.2f} nats, where equal weights would "
        f"have {np.log(n[1]):.2f}.",
        forced_sentence(next(row for row in forced if row.normalizer == name), own),
        f"The weight of the largest item ranks {ranks[0]:.1f} on average at {count(n[0])} items and {ranks[1]:.1f} at "
        f"{count(n[1])}.",
    ]
    frame = pl.DataFrame(rows, infer_schema_length=None)
    figure = Figure("dispersion", dispersion_chart(frame, pl.DataFrame(forced, infer_schema_length=None)), frame)
    return Section("dispersion", "Why does attention fail on long sets?", sentences, [figure])


def forced_sentence(row: dispersion.ForcedRow, own: Sequence[dispersion.DispersionRow]) -> str:
    """Where the largest weight falls below the threshold, measured, and where theory leaves it no choice."""
    longest = max(other.n for other in own)
    at = f"at about {count(row.measured)} items" if row.measured is not None else f"at no length up to {count(longest)}"
    sentence = f"Its mean largest weight falls to {row.threshold:g} {at}"
    if row.nearest is not None:
        sentence += f"; the spreads of the logits nearest to the top force it there from {count(row.nearest)} items"
    if row.spread is not None:
        spread = float(np.mean([other.spread for other in own]))
        start = f"about {count(row.spread)}" if math.isfinite(row.spread) else "more than 10^308"
        sentence += f"; the spread of all logits alone, {spread:.0f} on average, from {start} items"
    return f"{sentence}."


def maps_section(study: Study, page_of_weights: str) -> Section:
    """The paper's attention map, and the same array to hover over."""
    maps = dispersion.attention_maps(study.measured)
    best = maps.weights[..., 0].mean(-1)
    lengths = (maps.lengths[0], maps.lengths[-1])
    name = looked_at(study)
    own, most = maps.normalizers.index(name), int(best[:, -1].argmax())
    lead = (
        f"Under {name} the largest item holds a mean weight of {best[own, 0]:.2f} in sets of {count(lengths[0])} and "
        f"{best[own, -1]:.2f} in sets of {count(lengths[1])}"
    )
    if most != own:
        lead += f", where it holds most, {best[most, -1]:.2f}, under {maps.normalizers[most]}"
    return Section(
        "maps",
        "How does attention lose the largest item?",
        [
            f"{lead}.",
            "A bright left edge is attention on the largest item; a bright cell further right is attention on another; "
            "a dark panel is attention spread over items that are not shown.",
        ],
        [
            Figure("attention_maps", attention_map_chart(maps), attention_map_frame(maps), renderer="canvas"),
            page.frame_html(
                "Every weight of these maps, to hover over (treescope)",
                "Attention weights in treescope",
                page_of_weights,
            ),
        ],
    )


def temperature_section(study: Study) -> Section:
    """The entropy-to-temperature fit, and the inverse temperatures that it gives by length."""
    low, high = temperature.PUBLISHED_RANGE
    peak = float(temperature.curves({})[temperature.PUBLISHED](np.linspace(low, high, 1001)).max())
    longest = max(study.searched)
    flatter = 100 * float((study.searched[longest].entropy > high).mean())
    lead = f"The published polynomial sharpens rows of {low} to {high} nats, by β = {peak:.2f} at most"
    if flatter > 0:
        lead += f"; of the sets of {count(longest)} items, {percent(flatter)} are flatter: those it leaves as they are"
    sentences = [f"{lead}."]
    for name, fit in study.fits.items():
        ends, betas = fit.entropy_range, fit.beta_at_ends
        sentences.append(
            f"{name}, fitted to {min(fit.lengths)} … {count(max(fit.lengths))} items of these models, goes from "
            f"β = {betas[0]:.1f} at {ends[0]:.2f} nats to {betas[1]:.1f} at {ends[1]:.2f} and stays there beyond."
        )
    by_entropy = temperature.entropy_chart(study.searched, study.fits)
    by_length = temperature.length_chart(study.searched, study.fits)
    points = temperature.length_points(study.searched, study.fits)
    searched = temperature.row_frame(study.searched, study.measured.seeds)
    return Section(
        "temperature",
        "Which temperature does a row of given entropy want?",
        sentences,
        [
            Figure("entropy", by_entropy, searched),
            Figure("beta", by_length, points),
        ],
    )


def resolution_section(study: Study) -> Section:
    """What the key tells apart, and what that costs beside dispersion."""
    found, seeds = study.resolution, study.measured.seeds
    gaps, losses = (pl.DataFrame(rows(study.measured)) for rows in (dispersion.gap_rows, dispersion.loss_rows))
    nat, key = resolution.mean_tell_apart(found)
    name = looked_at(study)
    longest = max(losses["n"])
    lost = losses.filter(normalizer=name, n=longest).mean().row(0, named=True)
    shown = [other for other in (name, ALL_LENGTHS) if other in study.measured.normalizers]
    sentences = [
        f"Of the sets of {count(longest)} items, {name} loses {percent(lost['dispersion'])} to dispersion; "
        f"{percent(lost['key'])} are lost even to hardmax, because the key gives another item the largest logit, and "
        f"{percent(lost['value'])} however the weights lie.",
        f"At ρ = 1 a difference of {nat:.1g} in ρ makes one nat of logit, which is what softmax can tell apart; the "
        f"class alone moves the logit as much as a difference of {key:.1g} does, which is what no normalizer can see "
        "through.",
    ]
    return Section(
        "resolution",
        "Is it dispersion that costs accuracy, or an imprecise key?",
        sentences,
        [
            Figure("resolution", resolution.resolution_chart(found, seeds), resolution.resolution_frame(found, seeds)),
            Figure("gap", resolution.gap_chart(gaps, found, shown), gaps),
            Figure("losses", resolution.loss_split_chart(losses), losses),
        ],
    )


def looked_at(study: Study) -> str:
    """The normalizer that sentences are about: softmax, or the first if that was not measured."""
    names = study.measured.normalizers
    return BASELINE if BASELINE in names else names[0]


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
            "Move the sliders: your browser weighs the row anew, by the same formulas as the package.",
            "One item is the best; its logit stands the gap above the middle of the others, which lie within ± noise "
            "of it. Raise n to see softmax disperse, sharpen it with theta or s, and raise the noise above the gap to "
            "see that no temperature helps once another logit is the largest: hardmax then picks the wrong item.",
            f"There are {len(NORMALIZERS)} normalizers to choose from. A slider acts on those that it names; all other "
            "numbers are those that the normalizers are registered with.",
        ],
        [Figure("playground", playground_chart(), playground_rows())],
    )
