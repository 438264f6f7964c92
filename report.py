"""Shows what a trained model's attention does as sets grow: one page that opens anywhere, with its charts and data."""

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro
from rich.console import Console

from softmax_jax.measures.dispersion import (
    REPORT_LENGTHS,
    TOP,
    Measured,
    attention_maps,
    evaluation_rows,
    measure_sets,
    resolution,
)
from softmax_jax.measures.evaluation import DEFAULT_NORMALIZERS
from softmax_jax.measures.refit import fits_beside, named_normalizers, search_lengths
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.report.page import Figure, page, write_figure
from softmax_jax.report.sections import Evaluated, Study, listed, report_sections, sets_in_words
from softmax_jax.report.show import show
from softmax_jax.runtime.command_line import (
    check_directory,
    each_once,
    normalizer_names,
    one_device_per_core,
    one_line_errors,
    parse,
    progress_bar,
    with_progress,
    within,
)
from softmax_jax.runtime.files import check_output, versions, write_whole
from softmax_jax.temperature import TemperatureFit
from softmax_jax.training.config import Config
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint

SEARCH_KEY = 2**31 + 3
"""Away from the keys of training, evaluate.py and fit_temperature.py."""
SEARCH_SHARE = 16
"""One set of so many, at every other length, is searched for its best temperature: a search is many evaluations."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = (SHIPPED / "paper", SHIPPED / "frontier")
    """Directories of runs, or Flax msgpack files. Of several the accuracies are compared; the first is looked into."""
    output: Path = Path("report")
    """Directory for index.html, and for every chart as PNG and SVG with its data as CSV."""
    normalizers: tuple[str, ...] = DEFAULT_NORMALIZERS
    """Names, with numbers where wanted: softmax "ssmax(s=0.43)" "temperature(0.2)"; or "all" of them."""
    lengths: tuple[int, ...] = REPORT_LENGTHS
    """Items per set."""
    sets: int = 256
    """Sets per seed and length, fewer of more than 1024 items."""

    def __post_init__(self) -> None:
        for length in self.lengths:
            if not 2 <= length <= 2**20:
                raise ValueError(f"--lengths has {length}: a set must have 2 to {2**20} items, such as 16")
        each_once("--lengths", self.lengths)
        if max(self.lengths) < TOP:
            given = " ".join(map(str, self.lengths))
            raise ValueError(f"--lengths is {given!r}: it must have one of at least {TOP} items, such as 1024")
        within("--sets", self.sets, 1, 2**20, 256)
        normalizer_names(self.normalizers)
        each_once("RUNS", self.runs)
        check_directory("--output", self.output)


def main() -> None:
    """Loads, measures, draws, writes."""
    arguments = parse(Arguments, description=__doc__)
    one_device_per_core()
    start = time.perf_counter()
    with one_line_errors(Console(stderr=True)):
        check_output(arguments.output)
        loaded = [(path, *load_checkpoint(path)) for path in arguments.runs]
        named = [named_normalizers(arguments.normalizers, path, parameters) for path, _, parameters in loaded]
        measured = [measure(arguments, *some, normalizers) for some, normalizers in zip(loaded, named)]
        runs = [
            Evaluated(name, config.task.longest, sets_of(some), evaluation_rows(some))
            for name, (_, config, _), some in zip(names(arguments.runs), loaded, measured)
        ]
        study = look_closer(arguments, *loaded[0], runs[0].name, measured[0])
        paths = write(arguments, runs, study, start)
    print(f"wrote {', '.join(map(str, paths))} in {time.perf_counter() - start:.0f} s")


def names(paths: tuple[Path, ...]) -> list[str]:
    """What to call the runs: the names of their directories, or whole paths where those are the same."""
    short = [path.resolve().name for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def sets_of(measured: Measured) -> dict[int, int]:
    """How many sets of a seed were measured, by length."""
    return {n: sets.right.shape[1] for n, sets in measured.by_length.items()}


def measure(
    arguments: Arguments, path: Path, config: Config, parameters: Any, normalizers: dict[str, Normalizer]
) -> Measured:
    """One pass over fresh sets of every length."""
    lengths = sorted(arguments.lengths)
    return measure_sets(
        parameters,
        normalizers,
        seeds=config.all_seeds,
        lengths=lengths,
        sets=arguments.sets,
        watch=lambda results: with_progress(results, lengths, f"measuring {path}"),
    )


def look_closer(
    arguments: Arguments, path: Path, config: Config, parameters: Any, name: str, measured: Measured
) -> Study:
    """What the page tells of the first run alone: best temperatures, fits, and the logit of every item."""
    lengths = sorted(arguments.lengths)[::2]
    sets = max(1, arguments.sets // SEARCH_SHARE)
    keys = [jax.random.key(SEARCH_KEY)]
    found = search_lengths(parameters, seeds=config.all_seeds, lengths=lengths, sets=sets, keys=keys)
    searched = {n: rows for n, (rows,) in zip(lengths, with_progress(found, lengths, "searching"))}
    fits = {name: TemperatureFit.load(file) for name, file in fits_beside(path, parameters).items()}
    return Study(name, measured, resolution(parameters), searched, fits)


def write(arguments: Arguments, runs: list[Evaluated], study: Study, start: float) -> list[Path]:
    """Writes every figure, then the page that shows them."""
    weights = show_maps(study, arguments.output / "weights.html")
    sections = report_sections(runs, study, weights.read_text())
    figures = [part for section in sections for part in section.parts if isinstance(part, Figure)]
    paths = [weights]
    with progress_bar("drawing", len(figures), figures[0].name) as advance:
        for figure, following in zip(figures, [*(figure.name for figure in figures[1:]), "done"]):
            paths += write_figure(arguments.output, figure)
            advance(1, following, figure.name)
    note = made_of(runs, study, time.perf_counter() - start)
    write_whole(arguments.output / "index.html", page("Does attention find the largest item?", sections, note))
    return [arguments.output / "index.html", *paths]


def show_maps(study: Study, path: Path) -> Path:
    """Writes the attention maps as a page of their own, each weight to be read by hovering over it."""
    maps = attention_maps(study.measured)
    labels = {"normalizer": maps.normalizers, "n": list(map(str, maps.lengths))}
    axes, columns = ("normalizer", "set", "n", "item"), ("n", "item")
    return show(maps.weights.swapaxes(1, 2), path, axes=axes, labels=labels, columns=columns, limits=(0.0, 1.0))


def made_of(runs: list[Evaluated], study: Study, seconds: float) -> str:
    """What the page was made from."""
    found = ", ".join(f"{name} {version}" for name, version in versions().items())
    return (
        f"Made from {listed([run.name for run in runs])} in {seconds:.0f} s; {len(study.measured.seeds)} seeds of "
        f"{study.name}, {sets_in_words(runs[0].sets)}. {found}."
    )


if __name__ == "__main__":
    main()
