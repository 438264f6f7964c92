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
import vl_convert

from softmax_jax.files import versions, write_csv, write_whole
from softmax_jax.measures import dispersion, evaluation, refit
from softmax_jax.measures.dispersion import HARDMAX, Resolution
from softmax_jax.measures.evaluation import BASELINE, TRUE_ITEM, Measured, summarize
from softmax_jax.measures.statistics import over_seeds
from softmax_jax.measures.table import EVALUATION, KEYS, MEASURES, TOP
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.report import accuracy, charts, dispersion as drawn, playground, temperature
from softmax_jax.report.charts import PUBLISHED, Chart, Paper
from softmax_jax.report.show import TEMPLATES
from softmax_jax.report.tables import with_interval
from softmax_jax.tasks import precision
from softmax_jax.tasks.task import Task
from softmax_jax.temperature import Rows, TemperatureFit, fits_beside
from softmax_jax.training.config import Config
from softmax_jax.training.progress import with_progress
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.training.trainer import Parameters

html: Any = TEMPLATES.get_template("parts.html").module
"""The macros `heading`, `facts` and `table`, for the parts of a section that are no figures."""
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
"""Of a task's own lengths, the least that a report shows unless others are asked for."""
CALLED = {SHIPPED.resolve() / "paper": "our replication"}


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
    vega = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return TEMPLATES.get_template("page.html").render(title=title, sections=sections, note=note, vega=vega)


def write_page(
    directory: Path, title: str, sections: Sequence[Section], note: str, paper: Paper | None = None
) -> list[Path]:
    """Writes the page, and beside it the pictures and data of its figures; returns the paths, the page's first."""
    paths = [directory / "index.html"]
    figures = [part for section in sections for part in section.parts if isinstance(part, Figure)]
    for figure in with_progress(figures, [1] * len(figures), "drawing", [figure.name for figure in figures]):
        data = directory / f"{figure.name}.csv"
        write_csv(data, figure.data.columns, figure.data.rows())
        paths += [data, *charts.save_chart(figure.chart, directory / figure.name, paper)]
    made_by = ", ".join(f"{name} {version}" for name, version in versions().items())
    write_whole(paths[0], page(title, sections, f"{note} {made_by}."))
    return paths


class Loaded(NamedTuple):
    """A run with what is to be shown of it; all are loaded before anything is measured, as one may be damaged."""

    path: Path
    config: Config
    parameters: Parameters
    normalizers: dict[str, Normalizer | None]
    fits: dict[str, TemperatureFit]


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
        """Returns the rows of the normalizers that were asked for."""
        return frame.filter(pl.col("normalizer").is_in(self.normalizers))

    @property
    def frame(self) -> pl.DataFrame:
        """The frame of what was asked for."""
        return self.asked(self.everything)

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
    """None for a task that gives its items no priorities: then there are no maps of attention either."""


def names_of(paths: Sequence[Path]) -> list[str]:
    """Returns names for the runs: those of their directories, or whole paths where those are the same."""
    short = [CALLED.get(path.resolve(), path.resolve().name) for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def loaded(path: Path, specs: Sequence[str]) -> Loaded:
    """Loads a run, its normalizers and the temperature fits beside it. Raises ValueError for a damaged one."""
    config, parameters = load_checkpoint(path)
    named = evaluation.named_normalizers(specs, path, parameters, config.normalizer)
    fits = {name: TemperatureFit.load(file) for name, file in fits_beside(path, parameters).items()}
    return Loaded(path, config, parameters, named, fits)


def evaluated(name: str, run: Loaded, lengths: Sequence[int], sets: int) -> Evaluated:
    """Measures a run under the normalizers asked for, and under those that the losses are counted from."""
    path, config, parameters, named, _ = run
    task = config.task
    lengths = sorted(lengths or [n for n in task.test_lengths if n >= SHORTEST] or task.test_lengths)
    ranked = evaluation.heads_of(task, lengths[0]).ranked
    measured = evaluation.evaluate(
        parameters,
        named | ({HARDMAX: normalizer(HARDMAX)} if ranked else {}),
        seeds=config.all_seeds,
        lengths=lengths,
        sets={n: min(dispersion.sets_at(n, sets), task.test_sets(n)) for n in lengths},
        measures=tuple(MEASURES),
        references=(TRUE_ITEM,) if ranked else (),
        trained_under=config.normalizer,
        task=task,
    )
    asked = f"{len(named)} normalizers, {len(lengths)} lengths up to {max(lengths):,} items, {sets} sets at each"
    print(f"measuring {path}: {asked}, for each of {config.seeds} seeds", flush=True)
    by_length = list(with_progress(measured, lengths, f"measuring {path}"))
    return Evaluated(name, task, tuple(named), by_length, evaluation.frame_of(by_length))


def look_closer(run: Evaluated, of: Loaded, sets: int) -> Study:
    """Looks at what the page tells of one run only: best temperatures, fits, and the logit of every item."""
    lengths = [of_length.n for of_length in run.measured if of_length.n > 1][::2]
    keys = [evaluation.key_of(evaluation.Draw.REPORT)]
    options = {"seeds": of.config.all_seeds, "sets": max(1, sets // SEARCH_SHARE), "keys": keys, "task": run.task}
    found = with_progress(refit.search_lengths(of.parameters, lengths=lengths, **options), lengths, "searching")
    searched = {n: rows for n, (rows,) in zip(lengths, found)}
    ranked = "top_rho" in run.measured[0].values and run.measured[-1].n >= TOP
    resolution = dispersion.resolution(of.parameters, task=run.task) if ranked else None
    return Study(run, searched, of.fits, resolution)


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
    study = look_closer(runs[0], all_loaded[0], sets)
    sections = [*report_sections(runs, study), playground_section(all_loaded[0].normalizers)]
    note = f"Made from {', '.join(run.name for run in runs)} in {time.perf_counter() - start:.0f} s."
    return write_page(output, "How far does attention reach?", sections, note, paper)


def count(value: float | int) -> str:
    """Returns a number of items, by its magnitude where it is astronomic.

    >>> count(16384), count(1234.4), count(2e40)
    ('16,384', '1,234', '10⁴⁰')
    """
    return f"{value:,.0f}" if value < 1e7 else "10" + f"{math.log10(value):.0f}".translate(RAISED)


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
    """Says for every run what falls, why and what helps, with the curve, and the table."""
    parts: list[Figure | str] = []
    for index, run in enumerate(runs, 1):
        title = f"How far does attention reach? {run.name}"
        chart = accuracy.accuracy_chart(run.frame, title, accuracy.published_for(run.task))
        curve = Figure(f"accuracy_{index}", chart, run.frame.select(*KEYS, *EVALUATION))
        parts += [html.heading(run.name), html.facts(said(run)), curve, result_table(index, run)]
    return Section("result", "How well does attention answer sets of n items?", [], parts)


def said(run: Evaluated) -> dict[str, str]:
    """Says what falls as sets grow, why, and what helps, each in a sentence."""
    facts = {"What falls": falls(run)}
    if {HARDMAX, TRUE_ITEM} <= set(run.everything["normalizer"]):
        facts["Why"] = why(run)
    return facts | ({"What helps": helped} if (helped := helps(run)) else {})


def falls(run: Evaluated) -> str:
    """Says the accuracy in training and at the longest length."""
    by_length, longest = accuracies(run), run.task.longest
    lengths = list(by_length)
    start = max((n for n in lengths if n <= longest), default=lengths[0])
    return (
        f"Trained on sets of at most {longest} items, attention with {run.baseline} answers {by_length[start]:.1f} % "
        f"of the sets of {count(start)} items right, and {by_length[lengths[-1]]:.1f} % of those of "
        f"{count(lengths[-1])}."
    )


def why(run: Evaluated) -> str:
    """Says which cause loses how many sets, at the length where about half are lost, and how many rounding hides."""
    by_length = accuracies(run)
    n = min(by_length, key=lambda n: abs(by_length[n] - HALF))
    lost = dispersion.losses(run.everything).filter(normalizer=run.baseline, n=n)
    spread, key, value = lost.select(pl.mean("dispersion", "key", "value")).row(0)
    dispersed = f"loses {spread:.1f} % to dispersion: the true item has the largest logit, but others share its weight"
    not_dispersed = "loses nothing to dispersion: all weight on the largest logit would do no better"
    causes = (
        f"At {count(n)} items it answers {by_length[n]:.1f} % right, and {dispersed if spread > 0 else not_dispersed}. "
        f"It loses {key + min(spread, 0):.1f} % to the key, which gives another item the largest logit, and "
        f"{max(value, 0):.1f} % to the value."
    )
    matmul = getattr(run.task, "matmul", precision.FLOAT32)
    if matmul not in precision.SPACING:
        return causes
    return (
        f"{causes} Its matrix products are rounded to {matmul}: items whose ρ lie within "
        f"{precision.SPACING[matmul]:.1g} of each other tie, which no normalizer can mend."
    )


def helps(run: Evaluated) -> str | None:
    """Says the largest gain of another normalizer that is beyond chance, of those whose weights depend on no offset.

    Of one seed, which gives no test, the largest gain; None where there is nothing to compare.
    """
    others = set(run.normalizers) - {run.baseline, *accuracy.moved_by_offset(run.normalizers)}
    table = summarize(run.frame, run.baseline)
    all_gains = table.filter(pl.col("normalizer").is_in(others))
    gains = all_gains.filter(pl.col("gain") > 0)
    tested = run.frame["seed"].n_unique() > 1
    if tested:
        gains = gains.filter(pl.col("p_value") < CHANCE)
    if gains.is_empty():
        least = f"; one of {all_gains['detectable'].max():.1f} points would most likely have shown" if tested else ""
        nothing = f"No normalizer swapped in at test time is shown to win anything back (p < {CHANCE}{least})."
        return nothing if others else None
    best = gains.row(gains["gain"].arg_max() or 0, named=True)
    return (
        f"Of the normalizers swapped in at test time, {best['normalizer']} wins back most: {best['gain']:.1f} points "
        f"at {count(best['n'])} items, from {best['accuracy'] - best['gain']:.1f} % to {best['accuracy']:.1f} % "
        f"({'p = {:.1g}'.format(best['p_value']) if tested else 'one seed, so no test'})."
    )


def accuracies(run: Evaluated) -> dict[int, float]:
    """Returns the mean accuracy of the baseline in percent by length."""
    means = over_seeds(run.frame.filter(normalizer=run.baseline), ["n"], "accuracy")
    return dict(means.select("n", "value").rows())


def result_table(index: int, run: Evaluated) -> str:
    """Returns the table of accuracies with half their intervals at a few lengths, the published ones below."""
    lengths = few([of_length.n for of_length in run.measured])
    sets = [of_length.sets for of_length in run.measured]
    cells = run.frame.filter(pl.col("n").is_in(lengths)).group_by("normalizer", "n", maintain_order=True)
    rows: dict[str, list[str]] = {name: [] for name in run.normalizers}
    for name, _, of_seeds in cells.agg("accuracy").rows():
        rows[name].append(with_interval(of_seeds))
    published = accuracy.published_for(run.task)
    for name, row in published.items():
        rows[name + PUBLISHED] = [accuracy.published_cells(row, lengths).get(n, "–") for n in lengths]
    seeds = run.frame["seed"].n_unique()
    half = "± half the 95 % interval (t), " if seeds > 1 else ""
    of_sets = f"up to {max(sets)} sets of a length, {sets[-1]} of the longest"
    remarks = [f"Accuracy in %, {charts.mean_of(seeds)}, {half}{of_sets}", *([accuracy.SOURCE] if published else [])]
    remarks += [f"every length is in accuracy_{index}.csv", *accuracy.remarks(run.normalizers)]
    return html.table("; ".join(remarks), ["normalizer", *map(count, lengths)], rows, f"table-{index}")


def few(lengths: Sequence[int]) -> list[int]:
    """Returns every other or every third of these lengths and so on: no more than a page shows side by side.

    >>> few([16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384])
    [16, 64, 256, 1024, 4096, 16384]
    """
    return list(lengths[:: -math.ceil(len(lengths) / COLUMNS)][::-1])


def dispersion_section(run: Evaluated) -> Section:
    """Shows entropy, largest weight and rank by length, beside their bounds."""
    name, frame = run.baseline, dispersion.dispersion(run.frame)
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
    return Section("dispersion", "Why does attention fail on long sets?", sentences, [figure])


def critical_sentence(name: str, start: Mapping[str, Any], end: Mapping[str, Any]) -> str:
    """Says the critical β at the shortest and the longest length, and that of the normalizer there, if it has one."""
    first, last = (f"{at['critical_beta']:.2g} at {count(at['n'])}" for at in (start, end))
    needed = f"A row is sharp only if its β is above a critical one, by the gaps of its largest logits: {first} items"
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
        parts.append(f"the spreads of the logits nearest to the top force it down to that from {count(nearest)} items")
    if spread is not None:
        start = f"about {count(spread)}" if math.isfinite(spread) else "more than 10³⁰⁸"
        mean = np.mean(frame["spread"].to_numpy())
        parts.append(f"the spread of all logits alone, {mean:.0f} on average, from {start} items")
    return f"{'; '.join(parts)}."


def maps_section(run: Evaluated) -> Section:
    """Shows the paper's attention map, each weight to be read by hovering over it."""
    maps = dispersion.attention_maps(run.measured, run.normalizers)
    best = maps.weights[..., 0].mean(-1)
    at, most = maps.normalizers.index(run.baseline), int(best[:, -1].argmax())
    lead = (
        f"Under {run.baseline} the largest item holds a mean weight of {best[at, 0]:.2f} in sets of "
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
    return Section("maps", "How does attention lose the largest item?", sentences, [figure])


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
    return Section("temperature", "Which temperature is best for a row of given entropy?", sentences, [figure])


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
    return Section("resolution", "Is it dispersion that costs accuracy, or an imprecise key?", [sentence], figures)


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
    return Section("playground", "What does each normalizer do to a row of logits?", sentences, [figure])
