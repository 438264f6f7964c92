"""The sections of the page on trained runs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from softmax_jax.experiment.measures import dispersion
from softmax_jax.experiment.measures.dispersion import Resolution
from softmax_jax.experiment.measures.runs import COLUMNS, Loaded, fits_beside, lengths_to_show
from softmax_jax.experiment.measures.table import KEYS
from softmax_jax.experiment.report import dispersion as drawn, findings, playground, temperature
from softmax_jax.experiment.report.evaluated import Evaluated, with_tests
from softmax_jax.experiment.report.page import Figure, Section, html
from softmax_jax.experiment.report.sentences import answers, count, remarks
from softmax_jax.experiment.report.study import LOG, Study, look_closer, measure
from softmax_jax.experiment.training.progress import Log
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.temperature import TemperatureFit


def sections_of(runs: Sequence[Loaded], lengths: Sequence[int], sets: int) -> tuple[list[Section], Evaluated]:
    """Measures the runs and looks closer at the first; returns the sections, and the first as it was evaluated."""
    first = runs[0]
    fits = {name: TemperatureFit.load(file) for name, file in fits_beside(first.path, first.parameters).items()}
    measured = with_tests([measure(run, lengths, sets) for run in runs])
    study = look_closer(measured[0], first, fits, sets)
    with Log(LOG, "weighing rows for the chart with sliders"):
        return [*report_sections(measured, study), playground_section(first.normalizers)], measured[0]


def report_sections(runs: Sequence[Evaluated], study: Study) -> list[Section]:
    """Returns the sections about the runs."""
    sections = [dispersion_section(study.run), temperature_section(study)]
    if study.resolution:
        sections.insert(1, maps_section(study.run))
        sections.append(resolution_section(study.run, study.resolution))
    if len(runs) > 1:
        about = f"This section is about {study.run.name}."
        sections = [section._replace(sentences=[*section.sentences, about]) for section in sections]
    return [result_section(runs), *sections]


def result_section(runs: Sequence[Evaluated]) -> Section:
    """Says for every run what falls, why and what helps, with one chart and one table of all."""
    parts: list[Figure | str] = []
    for run in runs:
        parts += [html.heading(run.name), html.facts(answers(run))]
    parts.append(Figure("accuracy", findings.draw_runs(runs), findings.frame_of(runs)))
    return Section("result", "Accuracy by number of items", [], [*parts, result_table(runs)])


def result_table(runs: Sequence[Evaluated]) -> str:
    """Returns the table of accuracies with half their intervals at a few lengths, the published ones below."""
    lengths = lengths_to_show(findings.measured_at(runs), most=COLUMNS)
    rows, notes = findings.accuracy_table(runs, lengths)
    sets = [measured.sets for measured in runs[0].measured]
    notes = [note for note in notes if not note.startswith("gain")]
    notes += [f"up to {max(sets)} sets of a length, {sets[-1]} of the longest: the first of those of evaluation.csv"]
    notes += ["every length is in accuracy.csv"]
    notes += remarks(dict.fromkeys(name for run in runs for name in run.normalizers))
    shown = {name: cells for name, cells in rows.items() if not name.endswith(findings.GAIN)}
    return html.table("; ".join(notes), ["normalizer", *map(count, lengths)], shown, "table")


def dispersion_section(run: Evaluated) -> Section:
    """Shows entropy, largest weight and rank by length, beside their bounds."""
    name, frame = run.looked_into, dispersion.dispersion(run.frame)
    rows = frame.filter(normalizer=name)
    means = rows.group_by("n").agg(pl.mean(*[c for c in frame.columns if c not in KEYS])).sort("n")
    (start, end) = (means.row(at, named=True) for at in (0, -1))
    n = count(start["n"]), count(end["n"])
    sentences = [
        f"Under {name} the largest weight goes from {start['max_weight']:.2f} at {n[0]} items to "
        f"{end['max_weight']:.3f} at {n[1]}, the entropy from {start['entropy']:.2f} to {end['entropy']:.2f} nats, "
        f"where equal weights would have {np.log(end['n']):.2f}.",
        forced_sentence(dispersion.forced(rows), rows),
    ]
    if "rank" in frame.columns:
        ranks = f"ranks {start['rank']:.1f} on average at {n[0]} items and {end['rank']:.1f} at {n[1]}"
        sentences.append(f"The weight of the largest item {ranks}.")
    sentences.append(critical_sentence(name, start, end))
    figure = Figure("dispersion", drawn.dispersion_chart(frame), frame)
    return Section("dispersion", "Why attention fails on long sets", sentences, [figure])


def critical_sentence(name: str, start: Mapping[str, Any], end: Mapping[str, Any]) -> str:
    """Says the critical β at the shortest and the longest length, and the β of the normalizer, if it has one."""
    first, last = (f"{at['critical_beta']:.2g} at {count(at['n'])}" for at in (start, end))
    needed = f"A row is sharp only if β exceeds its critical β, which its largest logits give: {first} items"
    applied = "" if end["beta"] is None else f", where {name} has {end['beta']:.2g}"
    return f"{needed} and {last}, in the median{applied}."


def forced_sentence(forced: Mapping[str, float | None], frame: pl.DataFrame) -> str:
    """Says where the mean largest weight falls below the threshold, and from where on theory forces it to.

    `forced` is what `dispersion.forced` returns for the rows of one normalizer in `frame`.
    """
    measured, nearest, spread = forced["measured"], forced["nearest"], forced["spread"]
    at = f"at no length up to {count(max(frame['n']))}" if measured is None else f"at about {count(measured)} items"
    parts = [f"Its mean largest weight falls to {dispersion.THRESHOLD:g} {at}"]
    if nearest is not None:
        parts.append(f"by theory the logits nearest to the top force that from {count(nearest)} items on")
    if spread is not None:
        start = f"about {count(spread)}" if math.isfinite(spread) else "more than 10³⁰⁸"
        mean = np.mean(frame["spread"].to_numpy())
        parts.append(f"the spread of all logits, {mean:.0f} on average, from {start} items")
    return f"{'; '.join(parts)}."


def maps_section(run: Evaluated) -> Section:
    """Shows the paper's attention map; hovering over a cell shows its weight."""
    maps = dispersion.attention_maps(run.measured, run.normalizers)
    best = maps.weights[..., 0].mean(-1)
    at, most = maps.normalizers.index(run.looked_into), int(np.nanargmax(best[:, -1]))
    lead = (
        f"Under {run.looked_into} the largest item holds a mean weight of {best[at, 0]:.2f} in sets of "
        f"{count(maps.lengths[0])} and {best[at, -1]:.2f} in sets of {count(maps.lengths[-1])}"
    )
    if most != at:
        lead += f"; there it holds most, {best[most, -1]:.2f}, under {maps.normalizers[most]}"
    sentences = [
        f"{lead}.",
        "A bright left edge is attention on the largest item, a bright cell further right on another one; in a dark "
        "panel it is spread over items that are not shown.",
    ]
    figure = Figure("attention_maps", drawn.attention_map_chart(maps), drawn.attention_map_frame(maps), "canvas")
    return Section("maps", "How attention loses the largest item", sentences, [figure])


def temperature_section(study: Study) -> Section:
    """Shows the best temperatures and the curves from entropy to temperature."""
    low, high = temperature.PUBLISHED_RANGE
    peak = float(temperature.curves({})[temperature.PUBLISHED](np.linspace(low, high, 1001)).max())
    longest = max(study.searched)
    flatter = 100 * float((study.searched[longest].entropy > high).mean())
    lead = f"The published polynomial sharpens rows of {low} to {high} nats, by β = {peak:.2f} at most"
    if flatter > 0:
        lead += f"; {flatter:.1f} % of the sets of {count(longest)} items are flatter, and it leaves them unchanged"
    sentences = [f"{lead}."]
    for name, fit in study.fits.items():
        ends, betas = fit.entropy_range, fit.beta_at_ends
        sentences.append(
            f"{name}, fitted to {min(fit.lengths)} … {count(max(fit.lengths))} items of these models, goes from "
            f"β = {betas[0]:.1f} at {ends[0]:.2f} nats to {betas[1]:.1f} at {ends[1]:.2f} and stays there beyond."
        )
    rows = temperature.row_frame(study.searched, study.run.measured[0].seeds)
    figure = Figure("entropy", temperature.entropy_chart(study.searched, study.fits), rows)
    return Section("temperature", "The best temperature of a row by its entropy", sentences, [figure])


def resolution_section(run: Evaluated, resolution: Resolution) -> Section:
    """Says which items the key tells apart, and which sets hardmax answers that a softer row does not."""
    losses, seeds = run.requested(dispersion.losses(run.full_frame)), run.measured[0].seeds
    nat, key = (by_seed.mean() for by_seed in drawn.tell_apart(resolution))
    sentence = (
        f"At ρ = 1 a difference of {nat:.1g} in ρ makes one nat of logit: softmax blurs items that are closer. The "
        f"class moves the logit as much as a difference of {key:.1g} in ρ does, which no normalizer can undo."
    )
    figures = [
        Figure("losses", drawn.loss_split_chart(losses), losses),
        Figure("resolution", drawn.resolution_chart(resolution, seeds), drawn.resolution_frame(resolution, seeds)),
    ]
    return Section("resolution", "Which items the key tells apart", [sentence], figures)


def playground_section(normalizers: Mapping[str, Normalizer | None]) -> Section:
    """Returns the chart with sliders: every registered method, and the normalizers that the report was asked for."""
    shown = {name: normalizer(name) for name in METHODS}
    shown |= {name: method for name, method in normalizers.items() if method is not None}
    numbers = playground.playground_numbers(shown)
    sentences = [
        "Move the sliders: the page shows the weights that the package computed for each of their positions.",
        "One item is the best. Its logit lies above the middle of the others by the gap, and the others lie within "
        "± noise of their middle. Raise the number of items: softmax disperses while others hold. Raise the noise "
        "above the gap: once another logit is the largest no normalizer helps, and hardmax picks the wrong item.",
    ]
    figure = Figure("playground", playground.playground_chart(numbers), playground.playground_frame(numbers))
    return Section("playground", "What each normalizer does to a row of logits", sentences, [figure])
