"""Refits the adaptive temperature, β as a polynomial of a row's entropy, to trained max-retrieval models."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import polars as pl
from rich.console import Console

from softmax_jax.measures.evaluation import CSV_COLUMNS, LENGTHS, Row
from softmax_jax.measures.refit import (
    ALL_LENGTHS,
    FITS,
    TRAIN_LENGTHS,
    checkpoint_sha256,
    compare,
    fits_directory,
    fitted,
    isotonic_normalizer,
    search_lengths,
)
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.report import temperature as report
from softmax_jax.report.charts import save_chart
from softmax_jax.runtime.command_line import (
    check_directory,
    each_once,
    one_device_per_core,
    one_line_errors,
    parse,
    with_progress,
    within,
)
from softmax_jax.runtime.files import check_output, write_csv
from softmax_jax.temperature import CRITERIA, Criterion, Rows, TemperatureFit, cross_validate, fit, join
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint

FIT_KEY, FRESH_KEY = 2**31 + 1, 2**31 + 2
"""Away from the keys of training and of evaluate.py."""
COLUMNS = CSV_COLUMNS[:5]
"""Up to the loss: of the oracles no weights are known."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    checkpoint: Path = SHIPPED / "paper"
    """Directory of a run, or a Flax msgpack file of the published recreation's parameters."""
    lengths: tuple[int, ...] = LENGTHS
    """Items per set: lengths to fit to and to compare at. A second fit sees the lengths of training alone."""
    sets: int = 64
    """Sets per seed and length to fit to, and as many fresh ones to compare on; 64 times as many up to 16 items."""
    degree: int = 4
    """Degree of the polynomial."""
    criterion: Criterion = "bins"
    """Which temperature counts as best. inputs: that of the least loss of each row by itself. bins: that of the
    least mean loss of all rows of like entropy. accuracy: that of the fewest errors among them."""
    output: Path | None = None
    """Directory for the two fits, the comparison and the charts; by default the checkpoint's, where evaluate.py
    finds the fits."""

    def __post_init__(self) -> None:
        for length in self.lengths:
            if not 2 <= length <= 2**20:
                raise ValueError(
                    f"--lengths has {length}: a set must have 2 to {2**20} items, such as 16, as one has no temperature"
                )
        each_once("--lengths", self.lengths)
        within("--sets", self.sets, 1, 2**14, 64)
        within("--degree", self.degree, 1, 10, 4)
        if self.output is not None:
            check_directory("--output", self.output)


def main() -> None:
    """Searches, fits, compares, prints, writes."""
    arguments = parse(Arguments, description=__doc__)
    one_device_per_core()
    start = time.perf_counter()
    with one_line_errors(Console(stderr=True)):
        output = arguments.output or fits_directory(arguments.checkpoint)
        check_directory("--output", output)
        for directory in (output, output / "temperature"):
            check_output(directory)
        config, parameters = load_checkpoint(arguments.checkpoint)
        seeds = config.all_seeds
        lengths = sorted(arguments.lengths)
        rows, fresh = search(arguments, parameters, seeds, lengths)
        longest = config.task.longest
        fits = fit_both(arguments, rows, fresh, seeds, longest, checkpoint_sha256(parameters))
        named = {
            "softmax": normalizer("softmax"),
            "adaptive": normalizer("adaptive"),
            **{name: fitted(found) for name, found in fits.items()},
            "best rising β(H)": isotonic_normalizer(rows),
            "hardmax": normalizer("hardmax"),
        }
        key = jax.random.key(FRESH_KEY)
        batches = compare(parameters, named, rows, fresh, seeds=seeds, sets=arguments.sets, key=key)
        compared = [row for batch in with_progress(batches, lengths, "comparing") for row in batch]
        print_study(arguments, rows, fresh, fits, compared)
        paths = write(output, rows, fits, compared)
    print(f"fitted {len(seeds)} seeds in {time.perf_counter() - start:.0f} s; wrote {', '.join(map(str, paths))}")


def search(
    arguments: Arguments, parameters: Any, seeds: Sequence[int], lengths: Sequence[int]
) -> tuple[dict[int, Rows], dict[int, Rows]]:
    """Rows to fit to and fresh rows, by length."""
    keys = [jax.random.key(FIT_KEY), jax.random.key(FRESH_KEY)]
    found = search_lengths(parameters, seeds=seeds, lengths=lengths, sets=arguments.sets, keys=keys)
    pairs = list(with_progress(found, lengths, "searching"))
    return {n: pair[0] for n, pair in zip(lengths, pairs)}, {n: pair[1] for n, pair in zip(lengths, pairs)}


def fit_both(
    arguments: Arguments,
    rows: Mapping[int, Rows],
    fresh: Mapping[int, Rows],
    seeds: Sequence[int],
    longest: int,
    checkpoint_sha256: str,
) -> dict[str, TemperatureFit]:
    """The fit to all lengths, and the one to lengths that training saw, if any were measured."""
    fits = {}
    for name, limit in ((ALL_LENGTHS, max(rows)), (TRAIN_LENGTHS, longest)):
        known, held_out = ({n: some for n, some in by_length.items() if n <= limit} for by_length in (rows, fresh))
        try:
            fits[name] = fit(
                known,
                held_out,
                seeds=seeds,
                criterion=arguments.criterion,
                degree=arguments.degree,
                checkpoint_sha256=checkpoint_sha256,
            )
        except ValueError as error:
            if name == ALL_LENGTHS:
                raise
            print(f"no fit to the lengths of training (at most {longest} items): {error}")
    return fits


def print_study(
    arguments: Arguments,
    rows: Mapping[int, Rows],
    fresh: Mapping[int, Rows],
    fits: Mapping[str, TemperatureFit],
    compared: Sequence[Row],
) -> None:
    """Prints the fits, the criteria, the forms of the curve, and the comparison."""
    console = Console()
    report.print_fits(console, fits)
    report.print_criteria(console, rows, fresh, CRITERIA, arguments.degree)
    report.print_candidates(console, cross_validate(join(rows.values()), arguments.criterion), arguments.criterion)
    report.print_comparison(console, pl.DataFrame(compared))


def write(
    output: Path, rows: Mapping[int, Rows], fits: Mapping[str, TemperatureFit], compared: Sequence[Row]
) -> list[Path]:
    """Writes the fits, the comparison and the charts."""
    paths = []
    for name, found in fits.items():
        paths.append(output / FITS[name])
        found.save(paths[-1])
    paths.append(output / "temperature" / "comparison.csv")
    write_csv(paths[-1], COLUMNS, (row[: len(COLUMNS)] for row in compared))
    paths += save_chart(report.entropy_chart(rows, fits), output / "temperature" / "entropy")
    return paths + save_chart(report.length_chart(rows, fits), output / "temperature" / "length")


if __name__ == "__main__":
    main()
