"""One self-contained page on trained runs: what is measured of them, the sections that show it, and its files.

The page asks nothing of any network: scripts, styles and data lie within, and its content security policy forbids the
rest. Its HTML, style and script are the templates in `assets`; what they are filled with is plain text.
"""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from softmax_jax.display import templates
from softmax_jax.experiment.measures import dispersion, refit
from softmax_jax.experiment.measures.dispersion import HARDMAX, Resolution
from softmax_jax.experiment.measures.evaluation import evaluate, frame_of
from softmax_jax.experiment.measures.one_set import heads_of
from softmax_jax.experiment.measures.references import TRUE_ITEM
from softmax_jax.experiment.measures.runs import COLUMNS, SHORTEST, Loaded, fits_beside, lengths_to_show, load_runs
from softmax_jax.experiment.measures.sets import Draw, key_of
from softmax_jax.experiment.measures.table import KEYS, MEASURES, TOP
from softmax_jax.experiment.report import (
    Paper,
    accuracy,
    charts,
    dispersion as drawn,
    findings,
    playground,
    temperature,
)
from softmax_jax.experiment.report.charts import Chart
from softmax_jax.experiment.report.drawing import draw
from softmax_jax.experiment.report.findings import Evaluated, count
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.progress import Parts, with_progress
from softmax_jax.files import versions, write_csv, write_whole
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.temperature import Rows, TemperatureFit

TEMPLATES = templates("softmax_jax.experiment.report")
html: Any = TEMPLATES.get_template("parts.html").module
"""The macros `heading`, `facts` and `table`, for the parts of a section that are no figures."""
SEARCH_SHARE = 16
"""One set of so many, at every other length, is searched for its best temperature: a search is many evaluations."""


class Figure(NamedTuple):
    """A chart and what it was made from; saved beside the page as `name`.png, .svg and .csv."""

    name: str
    chart: Chart
    data: pl.DataFrame
    renderer: str = "svg"
    """Or "canvas", for charts of more marks than a page should hold elements."""


class Section(NamedTuple):
    """A question, what one sees in a few sentences of which the first leads, and the figures and other HTML below."""

    name: str
    question: str
    sentences: Sequence[str]
    parts: Sequence[Figure | str]


def page(title: str, sections: Sequence[Section], note: str) -> str:
    """Returns the page as HTML."""
    vega = draw("javascript_bundle", "window.vegaEmbed = vegaEmbed;")
    return TEMPLATES.get_template("page.html").render(title=title, sections=sections, note=note, vega=vega)


def write_page(
    directory: Path, title: str, sections: Sequence[Section], note: str, paper: Paper | None = None
) -> list[Path]:
    """Writes the page, and beside it the pictures and data of its figures; returns the paths, the page's first."""
    paths = [directory / "index.html"]
    figures = [part for section in sections for part in section.parts if isinstance(part, Figure)]
    for figure in figures:
        paths.append(directory / f"{figure.name}.csv")
        write_csv(paths[-1], figure.data.columns, figure.data.rows())
    for figure in with_progress(figures, [1] * len(figures), "drawing", [figure.name for figure in figures]):
        paths += charts.save_chart(figure.chart, directory / figure.name, paper)
    made_by = ", ".join(f"{name} {version}" for name, version in versions().items())
    write_whole(paths[0], page(title, sections, f"{note} {made_by}."))
    return paths


class Study(NamedTuple):
    """The closer measurements of one run."""

    run: Evaluated
    searched: Mapping[int, Rows]
    """Rows with their best temperatures, by length."""
    fits: Mapping[str, TemperatureFit]
    resolution: Resolution | None
    """None for a task that gives its items no priorities: then there are no maps of attention either."""


def evaluated(run: Loaded, lengths: Sequence[int], sets: int) -> Evaluated:
    """Measures a run under the normalizers asked for, and under those that the losses are counted from."""
    name, path, config, parameters, named, labels = run
    task, parts = config.task, Parts()
    lengths = sorted(lengths or [n for n in task.test_lengths if n >= SHORTEST] or task.test_lengths)
    ranked = heads_of(task, lengths[0]).ranked
    measured = evaluate(
        parameters,
        named | ({HARDMAX: normalizer(HARDMAX)} if ranked else {}),
        seeds=config.all_seeds,
        lengths=lengths,
        sets={n: min(dispersion.sets_at(n, sets), task.test_sets(n)) for n in lengths},
        measures=tuple(MEASURES),
        references=(TRUE_ITEM,) if ranked else (),
        trained_under=config.normalizer,
        task=task,
        done=parts.done,
    )
    asked = f"{len(named)} normalizers, {len(lengths)} lengths up to {max(lengths):,} items, {sets} sets at each"
    path = ", ".join([str(path), *labels.values()])
    print(f"measuring {path}: {asked}, for each of {config.seeds} seeds", flush=True)
    by_length = list(with_progress(measured, lengths, f"measuring {path}", parts=parts))
    return Evaluated(name, task, tuple(named), by_length, frame_of(by_length), labels)


def look_closer(run: Evaluated, of: Loaded, fits: Mapping[str, TemperatureFit], sets: int) -> Study:
    """Looks at what the page tells of one run only: best temperatures beside its fits, and the logit of every item."""
    lengths = [of_length.n for of_length in run.measured if of_length.n > 1][::2]
    keys = [key_of(Draw.REPORT)]
    options = {"seeds": of.config.all_seeds, "sets": max(1, sets // SEARCH_SHARE), "keys": keys, "task": run.task}
    found = with_progress(refit.search_lengths(of.parameters, lengths=lengths, **options), lengths, "searching")
    searched = {n: rows for n, (rows,) in zip(lengths, found)}
    resolution = None
    if isinstance(run.task, MaxRetrieval) and run.measured[-1].n >= TOP:
        resolution = dispersion.resolution(of.parameters, task=run.task)
    return Study(run, searched, fits, resolution)


def sections_of(
    paths: Sequence[Path], specs: Sequence[str], lengths: Sequence[int], sets: int
) -> tuple[list[Section], str]:
    """Measures the runs and looks closer at the first; returns the sections that show them, and what made them."""
    start = time.perf_counter()
    first, *_ = all_loaded = load_runs(paths, specs)
    fits = {name: TemperatureFit.load(file) for name, file in fits_beside(first.path, first.parameters).items()}
    runs = [evaluated(run, lengths, sets) for run in all_loaded]
    study = look_closer(runs[0], first, fits, sets)
    sections = [*report_sections(runs, study), playground_section(first.normalizers)]
    return sections, f"Made from {', '.join(run.name for run in runs)} in {time.perf_counter() - start:.0f} s."


def report_sections(runs: Sequence[Evaluated], study: Study) -> list[Section]:
    """Returns the sections about the runs."""
    of_one_run = [dispersion_section(study.run), temperature_section(study)]
    if study.resolution:
        of_one_run.insert(1, maps_section(study.run))
        of_one_run.append(resolution_section(study.run, study.resolution))
    if len(runs) > 1:
        about = f"This section is about {study.run.name}."
        of_one_run = [section._replace(sentences=[*section.sentences, about]) for section in of_one_run]
    return [result_section(runs), *of_one_run]


def result_section(runs: Sequence[Evaluated]) -> Section:
    """Says for every run what falls, why and what helps, with one chart and one table of all."""
    parts: list[Figure | str] = []
    for run in runs:
        parts += [html.heading(run.name), html.facts(findings.said(run))]
    parts.append(Figure("accuracy", findings.accuracy_chart(runs), findings.frame_of(runs)))
    if runs[0].compared:
        cells = runs[0].cells
        parts.append(Figure("published", accuracy.difference_chart(cells), cells))
    return Section("result", "Accuracy by number of items", [], [*parts, result_table(runs)])


def result_table(runs: Sequence[Evaluated]) -> str:
    """Returns the table of accuracies with half their intervals at a few lengths, the published ones below."""
    lengths = lengths_to_show(findings.measured_at(runs), most=COLUMNS)
    rows, notes = findings.accuracy_table(runs, lengths)
    sets = [of_length.sets for of_length in runs[0].measured]
    notes = [note for note in notes if not note.startswith("gain")]
    notes += [f"up to {max(sets)} sets of a length, {sets[-1]} of the longest; every length is in accuracy.csv"]
    notes += accuracy.remarks(dict.fromkeys(name for run in runs for name in run.normalizers))
    shown = {name: cells for name, cells in rows.items() if not name.endswith(findings.GAIN)}
    return html.table("; ".join(notes), ["normalizer", *map(count, lengths)], shown, "table")


def dispersion_section(run: Evaluated) -> Section:
    """Shows entropy, largest weight and rank by length, beside their bounds."""
    name, frame = run.looked_into, dispersion.dispersion(run.frame)
    of_baseline = frame.filter(normalizer=name)
    means = of_baseline.group_by("n").agg(pl.mean(*[c for c in frame.columns if c not in KEYS])).sort("n")
    (start, end) = (means.row(at, named=True) for at in (0, -1))
    n = count(start["n"]), count(end["n"])
    sentences = [
        f"Under {name} the largest weight goes from {start['max_weight']:.2f} at {n[0]} items to "
        f"{end['max_weight']:.3f} at {n[1]}, the entropy from {start['entropy']:.2f} to {end['entropy']:.2f} nats, "
        f"where equal weights would have {np.log(end['n']):.2f}.",
        forced_sentence(dispersion.forced(of_baseline), of_baseline),
    ]
    if "rank" in frame.columns:
        ranks = f"ranks {start['rank']:.1f} on average at {n[0]} items and {end['rank']:.1f} at {n[1]}"
        sentences.append(f"The weight of the largest item {ranks}.")
    sentences.append(critical_sentence(name, start, end))
    figure = Figure("dispersion", drawn.dispersion_chart(frame), frame)
    return Section("dispersion", "Why attention fails on long sets", sentences, [figure])


def critical_sentence(name: str, start: Mapping[str, Any], end: Mapping[str, Any]) -> str:
    """Says the critical β at the shortest and the longest length, and that of the normalizer there, if it has one."""
    first, last = (f"{at['critical_beta']:.2g} at {count(at['n'])}" for at in (start, end))
    needed = f"A row is sharp only if β exceeds its critical β, which its largest logits give: {first} items"
    applied = "" if end["beta"] is None else f", where {name} has {end['beta']:.2g}"
    return f"{needed} and {last}, in the median{applied}."


def forced_sentence(forced: Mapping[str, float | None], frame: pl.DataFrame) -> str:
    """Says where the largest weight falls below the threshold, measured, and where theory leaves it no choice.

    By what `dispersion.forced` says of one normalizer, and the frame that it was made from.
    """
    measured, nearest, spread = forced["measured"], forced["nearest"], forced["spread"]
    at = f"at no length up to {count(max(frame['n']))}" if measured is None else f"at about {count(measured)} items"
    parts = [f"Its mean largest weight falls to {dispersion.THRESHOLD:g} {at}"]
    if nearest is not None:
        parts.append(f"by theory the logits nearest to the top allow no more from {count(nearest)} items on")
    if spread is not None:
        start = f"about {count(spread)}" if math.isfinite(spread) else "more than 10³⁰⁸"
        mean = np.mean(frame["spread"].to_numpy())
        parts.append(f"the spread of all logits, {mean:.0f} on average, from {start} items")
    return f"{'; '.join(parts)}."


def maps_section(run: Evaluated) -> Section:
    """Shows the paper's attention map, each weight to be read by hovering over it."""
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
        "A bright left edge is attention on the largest item; a bright cell further right is attention on another; "
        "a dark panel is attention spread over items that are not shown.",
    ]
    figure = Figure("attention_maps", drawn.attention_map_chart(maps), drawn.attention_map_frame(maps), "canvas")
    return Section("maps", "How attention loses the largest item", sentences, [figure])


def temperature_section(study: Study) -> Section:
    """Shows the best temperatures, the curves from entropy to temperature, and how far they agree."""
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
    rows = temperature.row_frame(study.searched, study.run.measured[0].seeds)
    figure = Figure("entropy", temperature.entropy_chart(study.searched, study.fits), rows)
    return Section("temperature", "The best temperature of a row by its entropy", sentences, [figure])


def resolution_section(run: Evaluated, found: Resolution) -> Section:
    """Says what the key tells apart, and what that costs beside dispersion."""
    losses, seeds = run.asked(dispersion.losses(run.everything)), run.measured[0].seeds
    nat, key = (of_seeds.mean() for of_seeds in drawn.tell_apart(found))
    sentence = (
        f"At ρ = 1 a difference of {nat:.1g} in ρ makes one nat of logit: softmax blurs items that are closer. The "
        f"class alone moves the logit as much as a difference of {key:.1g} in ρ does, and no normalizer can undo that."
    )
    figures = [
        Figure("losses", drawn.loss_split_chart(losses), losses),
        Figure("resolution", drawn.resolution_chart(found, seeds), drawn.resolution_frame(found, seeds)),
    ]
    return Section("resolution", "What dispersion costs, and what an imprecise key", [sentence], figures)


def playground_section(own: Mapping[str, Normalizer | None]) -> Section:
    """Returns the chart to play with: every registered method, and the normalizers that the report was asked for."""
    shown = {name: normalizer(name) for name in METHODS} | {name: one for name, one in own.items() if one is not None}
    numbers = playground.playground_numbers(shown)
    sentences = [
        "Move the sliders: the page shows the weights that the package computed for each of their positions.",
        "One item is the best. Its logit lies above the middle of the others by the gap, and the others lie within "
        "± noise of their middle. Raise the number of items to see softmax disperse while others hold. Raise the noise "
        "above the gap to see that no normalizer helps once another logit is the largest: hardmax then picks the wrong "
        "item.",
    ]
    figure = Figure("playground", playground.playground_chart(numbers), playground.playground_frame(numbers))
    return Section("playground", "What each normalizer does to a row of logits", sentences, [figure])
