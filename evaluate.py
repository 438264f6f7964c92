"""Evaluates trained max-retrieval models under any normalizer, from 2 to 16,384 items."""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import polars as pl
import tyro
from rich.console import Console

from softmax_jax.measures.evaluation import (
    CSV_COLUMNS,
    DEFAULT_NORMALIZERS,
    LENGTHS,
    NOTEBOOK_LENGTHS,
    Row,
    Summary,
    evaluate,
    summarize,
)
from softmax_jax.measures.refit import ALL_LENGTHS, named_normalizers
from softmax_jax.report.accuracy import accuracy_chart, print_evaluation
from softmax_jax.report.charts import FAIR, save_chart
from softmax_jax.runtime.command_line import (
    check_directory,
    each_once,
    normalizer_names,
    one_device_per_core,
    one_line_errors,
    parse,
    with_progress,
    within,
)
from softmax_jax.runtime.compilation_cache import CompileTime, keep_compiled_programs
from softmax_jax.runtime.distributed import ALONE, Cluster, is_leader, joined
from softmax_jax.runtime.files import check_output, versions, write_csv, write_json
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint

SETS = 512


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    normalizers: tuple[str, ...] = DEFAULT_NORMALIZERS
    """Names, with numbers where wanted: softmax "ssmax(s=0.43)" "temperature(0.2)"; or "all" of them."""
    lengths: tuple[int, ...] = ()
    """Items per set; 2, 4, … 16384 by default (4096 under the notebook protocol)."""
    sets: int = SETS
    """Sets per seed and length."""
    checkpoint: Path = SHIPPED / "paper"
    """Directory of a run, or a Flax msgpack file of the published recreation's parameters."""
    output: Path = Path("evaluation")
    """Directory for evaluation.csv, evaluation.json and the chart."""
    protocol: Literal["fresh", "notebook"] = "fresh"
    """fresh: new sets for every seed and length. notebook: the published recreation's stream of sets, whose
    accuracies compare with tables made from it (11 keys of 32 sets; --sets does not apply)."""
    compilation_cache: Path | None = None
    """Directory that keeps compiled programs from run to run; softmax_jax in the user's cache directory by default."""
    no_compilation_cache: tyro.conf.FlagCreatePairsOff[bool] = False
    """Keep no compiled program and use none that was kept."""
    cluster: tyro.conf.OmitArgPrefixes[Cluster] = ALONE

    def __post_init__(self) -> None:
        for length in self.lengths:
            if not 1 <= length <= 2**20:
                raise ValueError(f"--lengths has {length}: a set must have between 1 and {2**20} items, such as 1024")
        if self.lengths:
            each_once("--lengths", self.lengths)
        within("--sets", self.sets, 1, 2**20, 512)
        if self.protocol == "notebook" and self.sets != SETS:
            raise ValueError(f"--sets is {self.sets}: --protocol notebook must have its own 32, so leave --sets out")
        normalizer_names(self.normalizers)
        check_directory("--output", self.output)


def main() -> None:
    """Loads, measures, prints, writes."""
    arguments = parse(Arguments, description=__doc__)
    one_device_per_core()
    with one_line_errors(Console(stderr=True)), joined(arguments.cluster), CompileTime() as compiling:
        if is_leader():
            check_output(arguments.output)
        config, parameters = load_checkpoint(arguments.checkpoint)
        seeds = config.all_seeds
        named = named_normalizers(arguments.normalizers, arguments.checkpoint, parameters)
        keep_compiled_programs(arguments.compilation_cache, keep=not arguments.no_compilation_cache)
        lengths = arguments.lengths or (NOTEBOOK_LENGTHS if arguments.protocol == "notebook" else LENGTHS)
        start = time.perf_counter()
        measured = evaluate(
            parameters, named, seeds=seeds, lengths=lengths, sets=arguments.sets, protocol=arguments.protocol
        )
        if not is_leader():
            for _ in measured:  # its share of the work
                pass
            return
        rows = [row for some in with_progress(measured, lengths, "measuring") for row in some]
        seconds = time.perf_counter() - start
        summaries = summarize(rows)
        print_evaluation(Console(), summaries)
        if ALL_LENGTHS in named:
            print(f"{FAIR}: claims to generalise rest on that one")
        if warning := extrapolation_warning(summaries):
            print(warning, file=sys.stderr)
        paths = write(arguments, seeds, rows, summaries)
        took = f"{seconds:.0f} s ({compiling.seconds:.1f} s of them with a program being compiled)"
        print(f"evaluated {len(seeds)} seeds in {took}; wrote {', '.join(map(str, paths))}")


def extrapolation_warning(summaries: Sequence[Summary], most: float = 1.0) -> str | None:
    """One line on fits that are asked about entropies beyond their range in more than `most` percent of the rows."""
    beyond: dict[str, list[Summary]] = {}
    for summary in summaries:
        if summary.extrapolated > most:
            beyond.setdefault(summary.normalizer, []).append(summary)
    if not beyond:
        return None
    parts = (
        f"{name} in up to {max(s.extrapolated for s in some):.0f} % of rows at n = {', '.join(str(s.n) for s in some)}"
        for name, some in beyond.items()
    )
    return f"warning: entropies beyond the fitted range, where β stays as at its end: {'; '.join(parts)}"


def write(arguments: Arguments, seeds: list[int], rows: list[Row], summaries: list[Summary]) -> list[Path]:
    """Writes the rows, the summary and the chart."""
    settings = dataclasses.asdict(arguments) | {"seeds": seeds}
    del settings["cluster"]
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    del settings["compilation_cache"], settings["no_compilation_cache"]  # which change no number
    summary = [summary._asdict() for summary in summaries]
    write_csv(arguments.output / "evaluation.csv", CSV_COLUMNS, (row[: len(CSV_COLUMNS)] for row in rows))
    write_json(arguments.output / "evaluation.json", {"settings": settings, "versions": versions(), "summary": summary})
    chart = accuracy_chart(pl.DataFrame(rows), "How far does attention reach? Max retrieval, trained on 16 items")
    paths = [arguments.output / "evaluation.csv", arguments.output / "evaluation.json"]
    return paths + save_chart(chart, arguments.output / "accuracy")


if __name__ == "__main__":
    main()
