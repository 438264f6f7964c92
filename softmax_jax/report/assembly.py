"""Measures what the page shows of trained runs, and writes the page with its charts and their data."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from softmax_jax.files import versions, write_whole
from softmax_jax.measures.dispersion import HARDMAX, sets_at
from softmax_jax.measures.evaluation import evaluate, frame_of
from softmax_jax.measures.fits import fits_beside, named_normalizers
from softmax_jax.measures.refit import search_lengths
from softmax_jax.measures.resolution import resolution
from softmax_jax.measures.table import MEASURES
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.report.page import Figure, page, write_figure
from softmax_jax.report.sections import Evaluated, Study, attention_maps, listed, report_sections, sets_in_words
from softmax_jax.report.show import show
from softmax_jax.runtime.command_line import progress_bar, with_progress
from softmax_jax.temperature import TemperatureFit
from softmax_jax.training.config import Config
from softmax_jax.training.run_directory import load_checkpoint
from softmax_jax.training.trainer import Parameters

SEARCH_KEY = 2**31 + 3
"""Away from the keys of training, evaluate.py and fit_temperature.py."""
SEARCH_SHARE = 16
"""One set of so many, at every other length, is searched for its best temperature: a search is many evaluations."""


def names_of(paths: Sequence[Path]) -> list[str]:
    """What to call the runs: the names of their directories, or whole paths where those are the same."""
    short = [path.resolve().name for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def evaluated(
    name: str,
    path: Path,
    config: Config,
    parameters: Parameters,
    specs: Sequence[str],
    lengths: Sequence[int],
    sets: int,
) -> Evaluated:
    """Every measure of a run under the normalizers asked for, and under those that the losses are counted from."""
    named = named_normalizers(specs, path, parameters)
    measured = evaluate(
        parameters,
        named | {HARDMAX: normalizer(HARDMAX)},
        seeds=config.all_seeds,
        lengths=lengths,
        sets={n: sets_at(n, sets) for n in lengths},
        measures=tuple(MEASURES),
        true_item=True,
    )
    by_length = list(with_progress(measured, lengths, f"measuring {path}"))
    return Evaluated(name, config.task.longest, tuple(named), by_length, frame_of(by_length))


def look_closer(run: Evaluated, path: Path, parameters: Parameters, lengths: Sequence[int], sets: int) -> Study:
    """What the page tells of one run alone: best temperatures, fits, and the logit of every item."""
    lengths, keys = lengths[::2], [jax.random.key(SEARCH_KEY)]
    drawn = max(1, sets // SEARCH_SHARE)
    found = search_lengths(parameters, seeds=run.seeds, lengths=lengths, sets=drawn, keys=keys)
    searched = {n: rows for n, (rows,) in zip(lengths, with_progress(found, lengths, "searching"))}
    fits = {name: TemperatureFit.load(file) for name, file in fits_beside(path, parameters).items()}
    return Study(run, resolution(parameters), searched, fits)


def make_report(
    paths: Sequence[Path], specs: Sequence[str], lengths: Sequence[int], sets: int, output: Path
) -> list[Path]:
    """Measures the runs, looks closer at the first, and writes every figure and the page that shows them."""
    start, lengths = time.perf_counter(), sorted(lengths)
    loaded = [(name, path, *load_checkpoint(path)) for name, path in zip(names_of(paths), paths)]
    runs = [evaluated(*of_run, specs, lengths, sets) for of_run in loaded]
    study = look_closer(runs[0], paths[0], loaded[0][-1], lengths, sets)
    weights = show_maps(study, output / "weights.html")
    sections = report_sections(runs, study, weights.read_text())
    figures = [part for section in sections for part in section.parts if isinstance(part, Figure)]
    written = [output / "index.html", weights]
    with progress_bar("drawing", len(figures), figures[0].name) as advance:
        for figure, following in zip(figures, [*(figure.name for figure in figures[1:]), "done"]):
            written += write_figure(output, figure)
            advance(1, following, figure.name)
    note = made_of(runs, time.perf_counter() - start)
    write_whole(output / "index.html", page("Does attention find the largest item?", sections, note))
    return written


def show_maps(study: Study, path: Path) -> Path:
    """Writes the attention maps as a page of their own, each weight to be read by hovering over it."""
    maps = attention_maps(study)
    labels: Mapping[str, Sequence[str]] = {"normalizer": maps.normalizers, "n": list(map(str, maps.lengths))}
    axes, columns = ("normalizer", "set", "n", "item"), ("n", "item")
    return show(maps.weights.swapaxes(1, 2), path, axes=axes, labels=labels, columns=columns, limits=(0.0, 1.0))


def made_of(runs: Sequence[Evaluated], seconds: float) -> str:
    """What the page was made from."""
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    sets = sets_in_words({of_length.n: of_length.sets for of_length in runs[0].measured})
    return (
        f"Made from {listed([run.name for run in runs])} in {seconds:.0f} s; {len(runs[0].seeds)} seeds of "
        f"{runs[0].name}, {sets}. {packages}."
    )
