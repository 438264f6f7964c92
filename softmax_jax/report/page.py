"""One self-contained page on trained runs: what is measured of them, the sections that show it, and its files.

The page asks nothing of any network: scripts, styles and data lie within, and its content security policy forbids the
rest. Its HTML, style and script are the templates in `assets`; what they are filled with is plain text.
"""

import functools
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import vl_convert

from softmax_jax.files import read_text, versions, write_csv, write_whole
from softmax_jax.measures import dispersion
from softmax_jax.measures.dispersion import HARDMAX, AttentionMaps, Resolution, attention_maps, resolution, sets_at
from softmax_jax.measures.evaluation import (
    BASELINE,
    TRUE_ITEM,
    Draw,
    Measured,
    evaluate,
    frame_of,
    heads_of,
    key_of,
    named_normalizers,
    summarize,
)
from softmax_jax.measures.refit import search_lengths
from softmax_jax.measures.statistics import over_seeds
from softmax_jax.measures.table import EVALUATION, KEYS, MEASURES, TOP
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.report import charts, dispersion as drawn, temperature
from softmax_jax.report.accuracy import (
    SOURCE,
    accuracy_chart,
    moved_by_offset,
    of_an_offset,
    published_cells,
    published_for,
)
from softmax_jax.report.charts import PUBLISHED, Chart, Paper, save_chart
from softmax_jax.report.playground import playground_chart, playground_frame, playground_numbers
from softmax_jax.report.show import TEMPLATES, show
from softmax_jax.report.tables import number_or_dash
from softmax_jax.tasks import precision
from softmax_jax.tasks.task import Task
from softmax_jax.temperature import ALL_LENGTHS, Rows, TemperatureFit, fits_beside
from softmax_jax.training.config import Config
from softmax_jax.training.progress import with_progress
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.training.trainer import Parameters

html: Any = TEMPLATES.get_template("parts.html").module
"""The macros `heading`, `facts`, `table`, `choice` and `frame`, for the parts of a section that are no figures."""
CHANCE = 0.05
"""P below which a gain is named."""
HALF = 50.0
"""Accuracy in percent at which to ask why."""
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
COLUMNS = 6
"""Lengths that a table shows side by side."""
SEARCH_SHARE = 16
"""One set of so many, at every other length, is searched for its best temperature: a search is many evaluations."""
SHORTEST = 16
"""Of a task's own lengths, those that a report shows unless others are asked for."""
CALLED = {SHIPPED.resolve() / "paper": "our replication"}


class Figure(NamedTuple):
    """A chart and what it was made from; saved beside the page as `name`.png, .svg and .csv."""

    name: str
    chart: Chart
    data: pl.DataFrame
    renderer: str = "svg"
    """Or "canvas", for charts of more marks than a page should hold elements."""
    on_page: Chart | None = None
    """What the page shows in place of the chart, if it can do more there."""


class Section(NamedTuple):
    """A question, what one sees in a few sentences of which the first leads, and the figures and other HTML below."""

    name: str
    question: str
    sentences: Sequence[str]
    parts: Sequence[Figure | str]


class TableRow(NamedTuple):
    """A row of a table; that of a reference is set apart."""

    name: str
    cells: Sequence[str]
    reference: bool = False


def page(title: str, sections: Sequence[Section], note: str) -> str:
    """The page as HTML."""
    vega = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return TEMPLATES.get_template("page.html").render(title=title, sections=sections, note=note, vega=vega)


def write_figure(directory: Path, figure: Figure, paper: Paper | None = None) -> list[Path]:
    """Writes the data and the pictures of a figure, and returns their paths."""
    data = directory / f"{figure.name}.csv"
    write_csv(data, figure.data.columns, figure.data.rows())
    return [data, *save_chart(figure.chart, directory / figure.name, paper)]


class Evaluated(NamedTuple):
    """One run under every normalizer that was asked for."""

    name: str
    task: Task
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
        """Seeds of the trained models."""
        return self.measured[0].seeds

    @property
    def baseline(self) -> str:
        """The normalizer that sentences are about: softmax, or the first if that was not measured."""
        return BASELINE if BASELINE in self.normalizers else self.normalizers[0]


class Study(NamedTuple):
    """The closer measurements of one run."""

    run: Evaluated
    searched: Mapping[int, Rows]
    """Rows with their best temperatures, by length."""
    fits: Mapping[str, TemperatureFit]
    resolution: Resolution | None
    """None for a task that gives its items no priorities, as are the maps."""
    maps: AttentionMaps | None
    """Of the normalizers that were asked for."""


def names_of(paths: Sequence[Path]) -> list[str]:
    """Returns names for the runs: those of their directories, or whole paths where those are the same."""
    short = [CALLED.get(path.resolve(), path.resolve().name) for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


class Loaded(NamedTuple):
    """A run with what is to be shown of it; all are loaded before anything is measured, as one may be damaged."""

    path: Path
    config: Config
    parameters: Parameters
    normalizers: dict[str, Normalizer | None]
    fits: dict[str, TemperatureFit]

    def lengths(self, asked: Sequence[int]) -> list[int]:
        """Returns the lengths to show: those asked for, or those of the task that are long enough to tell something."""
        of_task = self.config.task.test_lengths
        return sorted(asked or [n for n in of_task if n >= SHORTEST] or of_task)


def loaded(path: Path, specs: Sequence[str]) -> Loaded:
    """Loads a run, its normalizers and the temperature fits beside it. Raises ValueError for a damaged one."""
    config, parameters = load_checkpoint(path)
    named = named_normalizers(specs, path, parameters, config.normalizer)
    fits = {name: TemperatureFit.load(file) for name, file in fits_beside(path, parameters).items()}
    return Loaded(path, config, parameters, named, fits)


def evaluated(name: str, run: Loaded, lengths: Sequence[int], sets: int) -> Evaluated:
    """Measures a run under the normalizers asked for, and under those that the losses are counted from."""
    path, config, parameters, named, _ = run
    lengths, task = run.lengths(lengths), config.task
    ranked = heads_of(task, lengths[0]).ranked
    measured = evaluate(
        parameters,
        named | ({HARDMAX: normalizer(HARDMAX)} if ranked else {}),
        seeds=config.all_seeds,
        lengths=lengths,
        sets={n: min(sets_at(n, sets), task.test_sets(n)) for n in lengths},
        measures=tuple(MEASURES),
        references=(TRUE_ITEM,) if ranked else (),
        trained_under=config.normalizer,
        task=task,
    )
    asked = f"{len(named)} normalizers, {len(lengths)} lengths up to {max(lengths):,} items, {sets} sets at each"
    print(f"measuring {path}: {asked}, for each of {config.seeds} seeds", flush=True)
    by_length = list(with_progress(measured, lengths, f"measuring {path}"))
    return Evaluated(name, task, tuple(named), by_length, frame_of(by_length))


def look_closer(evaluated: Evaluated, run: Loaded, lengths: Sequence[int], sets: int) -> Study:
    """Looks at what the page tells of one run only: best temperatures, fits, and the logit of every item."""
    lengths, keys, task = run.lengths(lengths), [key_of(Draw.REPORT)], evaluated.task
    searchable = [n for n in lengths if n > 1][::2]
    drawn = {"seeds": evaluated.seeds, "sets": max(1, sets // SEARCH_SHARE), "keys": keys, "task": task}
    found = search_lengths(run.parameters, lengths=searchable, **drawn)
    searched = {n: rows for n, (rows,) in zip(searchable, with_progress(found, searchable, "searching"))}
    ranked = "top_rho" in evaluated.measured[0].values and max(lengths) >= TOP
    maps = attention_maps(evaluated.measured, evaluated.normalizers) if ranked else None
    return Study(evaluated, searched, run.fits, resolution(run.parameters, task=task) if ranked else None, maps)


def make_report(
    paths: Sequence[Path],
    specs: Sequence[str],
    lengths: Sequence[int],
    sets: int,
    output: Path,
    paper: Paper | None = None,
) -> list[Path]:
    """Measures the runs, looks closer at the first, and writes every figure and the page that shows them."""
    start = time.perf_counter()
    all_loaded = [loaded(path, specs) for path in paths]
    runs = [evaluated(name, run, lengths, sets) for name, run in zip(names_of(paths), all_loaded)]
    study = look_closer(runs[0], all_loaded[0], lengths, sets)
    weights = [show_maps(study.maps, output / "weights.html")] if study.maps else []
    sections = report_sections(runs, study, read_text(weights[0]) if weights else "")
    sections.append(playground_section(all_loaded[0].normalizers))
    figures = [part for section in sections for part in section.parts if isinstance(part, Figure)]
    saved = (write_figure(output, figure, paper) for figure in figures)
    names = [figure.name for figure in figures]
    paths_of_figures = [path for of_one in with_progress(saved, [1] * len(names), "drawing", names) for path in of_one]
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    note = f"Made from {', '.join(run.name for run in runs)} in {time.perf_counter() - start:.0f} s. {packages}."
    write_whole(output / "index.html", page("How far does attention reach?", sections, note))
    return [output / "index.html", *weights, *paths_of_figures]


def show_maps(maps: AttentionMaps, path: Path) -> Path:
    """Writes the attention maps as a page of their own, each weight to be read by hovering over it."""
    labels: Mapping[str, Sequence[str]] = {"normalizer": maps.normalizers, "n": list(map(str, maps.lengths))}
    axes, columns = ("normalizer", "set", "n", "item"), ("n", "item")
    return show(maps.weights.swapaxes(1, 2), path, axes=axes, labels=labels, columns=columns, limits=(0.0, 1.0))


def count(value: float | int) -> str:
    """A number of items, by its magnitude where it is astronomic.

    >>> count(16384), count(1234.4), count(2e40)
    ('16,384', '1,234', '10⁴⁰')
    """
    return f"{value:,.0f}" if value < 1e7 else "10" + f"{math.log10(value):.0f}".translate(RAISED)


def report_sections(runs: Sequence[Evaluated], study: Study, page_of_weights: str) -> list[Section]:
    """Returns the sections about the runs; `page_of_weights` is the page of the attention maps, if there is one."""
    of_one_run = [dispersion_section(study)]
    if study.maps:
        of_one_run.append(maps_section(study.run, study.maps, page_of_weights))
    of_one_run.append(temperature_section(study))
    if study.resolution:
        of_one_run.append(resolution_section(study.run, study.resolution))
    if len(runs) > 1:
        about = f"This section is about {study.run.name}."
        of_one_run = [section._replace(sentences=[*section.sentences, about]) for section in of_one_run]
    return [result_section(runs), *of_one_run]


def result_section(runs: Sequence[Evaluated]) -> Section:
    """Says for every run what falls, why and what helps, with the curve, and the table."""
    parts: list[Figure | str] = []
    for index, run in enumerate(runs):
        chart = functools.partial(
            accuracy_chart, run.frame, f"How far does attention reach? {run.name}", published_for(run.task)
        )
        data = run.frame.select(*KEYS, *EVALUATION)
        curve = Figure(f"accuracy_{index + 1}", chart(), data, on_page=chart(switched=True))
        parts += [html.heading(run.name), html.facts(said(run)), curve, *result_tables(index, run)]
    return Section("result", "How well does attention answer sets of n items?", [], parts)


def said(run: Evaluated) -> dict[str, str]:
    """Says what falls as sets grow, why, and what helps, each in a sentence."""
    facts = {"What falls": falls(run)}
    if {HARDMAX, TRUE_ITEM} <= set(run.everything["normalizer"]):
        facts["Why"] = why(run)
    return facts | ({"What helps": helped} if (helped := helps(run)) else {})


def falls(run: Evaluated) -> str:
    """Says the accuracy in training and at the longest length."""
    by_length, longest = accuracies(run)[run.baseline], run.task.longest
    lengths = list(by_length)
    start = max((n for n in lengths if n <= longest), default=lengths[0])
    first, last = by_length[start], by_length[lengths[-1]]
    return (
        f"Trained on sets of at most {longest} items, attention with {run.baseline} answers {first:.1f} % of the sets "
        f"of {count(start)} items right, and {last:.1f} % of those of {count(lengths[-1])}."
    )


def why(run: Evaluated) -> str:
    """Says which cause loses how many sets, at the length where about half are lost."""
    by_length = accuracies(run)[run.baseline]
    n = min(by_length, key=lambda n: abs(by_length[n] - HALF))
    lost = dispersion.losses(run.everything).filter(normalizer=run.baseline, n=n)
    spread, key, value = lost.select(pl.mean("dispersion", "key", "value")).row(0)
    dispersed = f"loses {spread:.1f} % to dispersion: the true item has the largest logit, but others share its weight"
    not_dispersed = "loses nothing to dispersion: all weight on the largest logit would do no better"
    return (
        f"At {count(n)} items it answers {by_length[n]:.1f} % right, and {dispersed if spread > 0 else not_dispersed}. "
        f"It loses {key + min(spread, 0):.1f} % to the key, which gives another item the largest logit, and "
        f"{max(value, 0):.1f} % to the value.{rounding(run.task)}"
    )


def rounding(task: Task) -> str:
    """Says that some of this is no fault of attention, where products are rounded."""
    matmul = getattr(task, "matmul", precision.FLOAT32)
    if matmul not in precision.SPACING:
        return ""
    return (
        f" Its matrix products are rounded to {matmul}: items whose ρ lie within {precision.SPACING[matmul]:.1g} of "
        "each other tie, which no normalizer can mend."
    )


def helps(run: Evaluated) -> str | None:
    """The largest gain of another normalizer that is beyond chance, of those whose weights depend on no offset.

    Of one seed, which gives no test, the largest gain; None where there is nothing to compare.
    """
    others = set(run.normalizers) - {run.baseline, *moved_by_offset(run.normalizers)}
    table = summarize(run.frame, run.baseline)
    first = table.filter(normalizer=run.baseline).select("n", first="accuracy")
    gains = table.filter(pl.col("normalizer").is_in(others)).join(first, on="n")
    gains = gains.filter(pl.col("accuracy") > pl.col("first"))
    tested = run.frame["seed"].n_unique() > 1
    if tested:
        gains = gains.filter(pl.col("p_value") < CHANCE)
    if gains.is_empty():
        nothing = f"No normalizer swapped in at test time wins anything back beyond chance (p < {CHANCE})."
        return nothing if others else None
    rows = gains.select("normalizer", "n", "accuracy", "first", "p_value").rows()
    best, n, accuracy, before, p = max(rows, key=lambda row: row[2] - row[3])
    return (
        f"Of the normalizers swapped in at test time, {best} wins back most: {accuracy - before:.1f} points at "
        f"{count(n)} items, from {before:.1f} % to {accuracy:.1f} % "
        f"({f'p = {p:.1g}' if tested else 'one seed, so no test'})."
    )


def accuracies(run: Evaluated) -> dict[str, dict[int, float]]:
    """Mean accuracy in percent by normalizer and length."""
    means: dict[str, dict[int, float]] = {}
    for name, n, accuracy in over_seeds(run.frame, ["normalizer", "n"], "accuracy")["normalizer", "n", "value"].rows():
        means.setdefault(name, {})[n] = accuracy
    return means


def result_tables(index: int, run: Evaluated) -> list[str]:
    """A table for each printed measure, the interval and p, at a few lengths, and the buttons to choose among them."""
    sets = [of_length.sets for of_length in run.measured]
    of_what = f"{charts.mean_of(len(run.seeds))}, up to {max(sets)} sets of a length, {sets[-1]} of the longest"
    captions = {
        measure: f"{entry.caption} in {entry.unit}, {of_what}" for measure, entry in EVALUATION.items() if entry.printed
    }
    published = published_for(run.task)
    source = f"; {SOURCE}" if published else ""
    captions["accuracy"] += f"{source}; every length is in accuracy_{index + 1}.csv"
    if sentence := of_an_offset(run.normalizers):
        captions["accuracy"] += f"; {sentence}"
    if ALL_LENGTHS in run.normalizers:
        captions["accuracy"] += f"; {charts.FAIR}, so only the latter shows how far a fit generalises"
    captions["interval"] = "Half the 95 % interval of the accuracy over seeds (t), in points"
    captions["p_value"] = f"P of the paired t-test of the accuracy against {run.normalizers[0]}, corrected by Holm"
    summary = summarize(run.frame, run.normalizers[0])
    lengths = few(summary["n"].unique(maintain_order=True).to_list())
    summary = summary.filter(pl.col("n").is_in(lengths))
    options = {
        f"table-{index}-{measure}": {"p_value": "p", "interval": "± 95 %"}.get(measure, measure) for measure in captions
    }
    parts = [html.choice("Show", options)]
    for measure, caption in captions.items():
        rows = [
            TableRow(str(which), [number_or_dash(row[measure], form_of(measure)) for row in of_one.to_dicts()])
            for (which,), of_one in summary.group_by("normalizer", maintain_order=True)
        ]
        if measure == "accuracy":
            rows += [
                TableRow(which + PUBLISHED, [published_cells(row, lengths).get(n, "–") for n in lengths], True)
                for which, row in published.items()
            ]
        columns = ["normalizer", *map(count, lengths)]
        parts.append(html.table(caption, columns, rows, f"table-{index}-{measure}", hidden=measure != "accuracy"))
    return parts


def few(lengths: Sequence[int]) -> list[int]:
    """Every other or every third of these lengths and so on, so that no more are left than a page shows side by side.

    >>> few([16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384])
    [16, 64, 256, 1024, 4096, 16384]
    """
    return list(lengths[:: -math.ceil(len(lengths) / COLUMNS)][::-1])


def form_of(measure: str) -> str:
    """How a number is shown in the table of its measure."""
    return {"interval": ".2f", "p_value": ".1g"}.get(measure) or EVALUATION[measure].form


def dispersion_section(study: Study) -> Section:
    """Shows entropy, largest weight and rank by length, beside their bounds."""
    name, frame = study.run.baseline, dispersion.dispersion(study.run.frame)
    forced = dispersion.forced(frame)
    of_baseline = frame.filter(normalizer=name)
    means = of_baseline.group_by("n").agg(pl.mean(*[c for c in frame.columns if c not in KEYS])).sort("n")
    (start, end) = (means.row(at, named=True) for at in (0, -1))
    n = count(start["n"]), count(end["n"])
    sentences = [
        f"Under {name} the largest weight goes from {start['max_weight']:.2f} at {n[0]} items to "
        f"{end['max_weight']:.3f} at {n[1]}, the entropy from {start['entropy']:.2f} to {end['entropy']:.2f} nats, "
        f"where equal weights would have {np.log(end['n']):.2f}.",
        forced_sentence(forced.row(by_predicate=pl.col("normalizer") == name, named=True), of_baseline),
    ]
    if "rank" in frame.columns:
        ranks = f"ranks {start['rank']:.1f} on average at {n[0]} items and {end['rank']:.1f} at {n[1]}"
        sentences.append(f"The weight of the largest item {ranks}.")
    sentences.append(critical_sentence(name, start, end))
    figure = Figure("dispersion", drawn.dispersion_chart(frame, forced), frame)
    return Section("dispersion", "Why does attention fail on long sets?", sentences, [figure])


def critical_sentence(name: str, start: Mapping[str, Any], end: Mapping[str, Any]) -> str:
    """The critical β at the shortest and the longest length, and what the normalizer applies there, if it has a β."""
    first, last = (f"{at['critical_beta']:.2g} at {count(at['n'])}" for at in (start, end))
    needed = f"A row is sharp only if its β is above a critical one, by the gaps of its largest logits: {first} items"
    applied = "" if end["beta"] is None else f", where {name} has {end['beta']:.2g}"
    return f"{needed} and {last}, in the median{applied}."


def forced_sentence(forced: Mapping[str, Any], frame: pl.DataFrame) -> str:
    """Says where the largest weight falls below the threshold, measured, and where theory leaves it no choice.

    Of one normalizer: a row of `dispersion.forced`, and the frame that it was made from.
    """
    measured, nearest, spread = forced["measured"], forced["nearest"], forced["spread"]
    at = f"at no length up to {count(max(frame['n']))}" if measured is None else f"at about {count(measured)} items"
    parts = [f"Its mean largest weight falls to {forced['threshold']:g} {at}"]
    if nearest is not None:
        parts.append(f"the spreads of the logits nearest to the top force it down to that from {count(nearest)} items")
    if spread is not None:
        start = f"about {count(spread)}" if math.isfinite(spread) else "more than 10³⁰⁸"
        mean = frame["spread"].to_numpy().mean()
        parts.append(f"the spread of all logits alone, {mean:.0f} on average, from {start} items")
    return f"{'; '.join(parts)}."


def maps_section(run: Evaluated, maps: AttentionMaps, page_of_weights: str) -> Section:
    """The paper's attention map, and the same array to hover over."""
    best = maps.weights[..., 0].mean(-1)
    name = run.baseline
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
    shown = Figure(
        "attention_maps", drawn.attention_map_chart(maps), drawn.attention_map_frame(maps), renderer="canvas"
    )
    title = "Every weight of these maps, to hover over (treescope)"
    frame = html.frame(title, "Attention weights in treescope", page_of_weights)
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


def resolution_section(run: Evaluated, found: Resolution) -> Section:
    """Says what the key tells apart, and what that costs beside dispersion."""
    gaps, losses = run.asked(dispersion.gaps(run.measured)), run.asked(dispersion.losses(run.everything))
    nat, key = (of_seeds.mean() for of_seeds in drawn.tell_apart(found))
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
    items = drawn.resolution_frame(found, run.seeds)
    figures = [
        Figure("resolution", drawn.resolution_chart(found, run.seeds), items),
        Figure("losses", drawn.loss_split_chart(losses), losses),
    ]
    if drawn.are_enough(gaps):
        figures.insert(1, Figure("gap", drawn.gap_chart(gaps, found, shown), gaps))
    else:
        least = f"a gap needs {drawn.LEAST_SETS}"
        sentences.append(f"How close the two best items may be, so few sets do not tell: {least}.")
    return Section("resolution", "Is it dispersion that costs accuracy, or an imprecise key?", sentences, figures)


def playground_section(own: Mapping[str, Normalizer | None]) -> Section:
    """Returns the chart to play with: every registered method, and the normalizers that the report was asked for."""
    shown = {name: normalizer(name) for name in METHODS}
    numbers = playground_numbers(shown | {name: one for name, one in own.items() if one is not None})
    return Section(
        "playground",
        "What does each normalizer do to a row of logits?",
        [
            "Move the sliders: the page shows the weights that the package computed for each of their positions.",
            "One item is the best. Its logit lies above the middle of the others by the gap, and the others lie within "
            "± noise of their middle. Raise the number of items to see softmax disperse while others hold. Raise the "
            "noise above the gap to see that no normalizer helps once another logit is the largest: hardmax then picks "
            "the wrong item.",
        ],
        [Figure("playground", playground_chart(numbers), playground_frame(numbers))],
    )
