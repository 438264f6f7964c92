"""Measures what the page shows of trained runs, and writes the page with its charts and their data."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from softmax_jax.files import read_text, versions, write_whole
from softmax_jax.measures.dispersion import HARDMAX, AttentionMaps, attention_maps, sets_at
from softmax_jax.measures.evaluation import TRUE_ITEM, evaluate, frame_of, task_of
from softmax_jax.measures.fits import fits_beside, named_normalizers
from softmax_jax.measures.refit import search_lengths
from softmax_jax.measures.resolution import resolution
from softmax_jax.measures.sets import Draw, key_of
from softmax_jax.measures.table import MEASURES
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.report.drawing import Paper
from softmax_jax.report.page import Figure, page, write_figure
from softmax_jax.report.sections import Evaluated, Study, report_sections
from softmax_jax.report.show import show
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.temperature import TemperatureFit
from softmax_jax.training.config import Config
from softmax_jax.training.progress import with_progress
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.training.trainer import Parameters

SEARCH_SHARE = 16
"""One set of so many, at every other length, is searched for its best temperature: a search is many evaluations."""

CALLED = {SHIPPED.resolve() / "paper": "our replication"}


def names_of(paths: Sequence[Path]) -> list[str]:
    """What to call the runs: the names of their directories, or whole paths where those are the same."""
    short = [CALLED.get(path.resolve(), path.resolve().name) for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


class Loaded(NamedTuple):
    """A run with what is to be shown of it; all are loaded before anything is measured, as one may be damaged."""

    path: Path
    config: Config
    parameters: Parameters
    task: MaxRetrieval
    normalizers: dict[str, Normalizer | None]
    fits: dict[str, TemperatureFit]


def loaded(path: Path, specs: Sequence[str]) -> Loaded:
    """Loads a run, its normalizers and the temperature fits beside it. Raises ValueError for a damaged one."""
    config, parameters = load_checkpoint(path)
    named = named_normalizers(specs, path, parameters, config.normalizer)
    fits = {name: TemperatureFit.load(file) for name, file in fits_beside(path, parameters).items()}
    return Loaded(path, config, parameters, task_of(parameters, config.task), named, fits)


def evaluated(name: str, run: Loaded, lengths: Sequence[int], sets: int) -> Evaluated:
    """Every measure of a run under the normalizers asked for, and under those that the losses are counted from."""
    path, config, parameters, task, named, _ = run
    measured = evaluate(
        parameters,
        named | {HARDMAX: normalizer(HARDMAX)},
        seeds=config.all_seeds,
        lengths=lengths,
        sets={n: sets_at(n, sets) for n in lengths},
        measures=tuple(MEASURES),
        references=(TRUE_ITEM,),
        trained_under=config.normalizer,
        task=task,
    )
    asked = f"{len(named)} normalizers, {len(lengths)} lengths up to {max(lengths):,} items, {sets} sets at each"
    print(f"measuring {path}: {asked}, for each of {config.seeds} seeds", flush=True)
    by_length = list(with_progress(measured, lengths, f"measuring {path}"))
    return Evaluated(name, task.longest, tuple(named), by_length, frame_of(by_length), task.matmul)


def look_closer(evaluated: Evaluated, run: Loaded, lengths: Sequence[int], sets: int) -> Study:
    """What the page tells of one run alone: best temperatures, fits, and the logit of every item."""
    lengths, keys = lengths[::2], [key_of(Draw.REPORT)]
    drawn = max(1, sets // SEARCH_SHARE)
    of = {"seeds": evaluated.seeds, "lengths": lengths, "sets": drawn, "keys": keys, "task": run.task}
    found = search_lengths(run.parameters, **of)
    searched = {n: rows for n, (rows,) in zip(lengths, with_progress(found, lengths, "searching"))}
    maps = attention_maps(evaluated.measured, evaluated.normalizers)
    return Study(evaluated, resolution(run.parameters, task=run.task), searched, run.fits, maps)


def make_report(
    paths: Sequence[Path],
    specs: Sequence[str],
    lengths: Sequence[int],
    sets: int,
    output: Path,
    paper: Paper | None = None,
) -> list[Path]:
    """Measures the runs, looks closer at the first, and writes every figure and the page that shows them."""
    start, lengths = time.perf_counter(), sorted(lengths)
    all_loaded = [loaded(path, specs) for path in paths]
    runs = [evaluated(name, run, lengths, sets) for name, run in zip(names_of(paths), all_loaded)]
    study = look_closer(runs[0], all_loaded[0], lengths, sets)
    weights = show_maps(study.maps, output / "weights.html")
    sections = report_sections(runs, study, read_text(weights))
    figures = [part for section in sections for part in section.parts if isinstance(part, Figure)]
    saved = (write_figure(output, figure, paper) for figure in figures)
    names = [figure.name for figure in figures]
    paths_of_figures = [path for of_one in with_progress(saved, [1] * len(names), "drawing", names) for path in of_one]
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    note = f"Made from {', '.join(run.name for run in runs)} in {time.perf_counter() - start:.0f} s. {packages}."
    write_whole(output / "index.html", page("Does attention find the largest item?", sections, note))
    return [output / "index.html", weights, *paths_of_figures]


def show_maps(maps: AttentionMaps, path: Path) -> Path:
    """Writes the attention maps as a page of their own, each weight to be read by hovering over it."""
    labels: Mapping[str, Sequence[str]] = {"normalizer": maps.normalizers, "n": list(map(str, maps.lengths))}
    axes, columns = ("normalizer", "set", "n", "item"), ("n", "item")
    return show(maps.weights.swapaxes(1, 2), path, axes=axes, labels=labels, columns=columns, limits=(0.0, 1.0))
