"""Shared parts of studies: options, loading and measuring runs, keeping results between runs, writing them."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from softmax_jax.experiment.commands import process
from softmax_jax.experiment.commands.output import RESULTS, check_directory, results_of
from softmax_jax.experiment.commands.parse import PaperOption, TrustCode, UnlessGiven, each_within, parse, within
from softmax_jax.experiment.commands.process import KEPT
from softmax_jax.experiment.measures.evaluation import evaluate, frame_of
from softmax_jax.experiment.report.chart_files import save_chart
from softmax_jax.experiment.report.charts import Chart
from softmax_jax.experiment.report.tables import put_into
from softmax_jax.experiment.tasks.task import Task
from softmax_jax.experiment.training.run import Parameters
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.files import read_json, read_text, write_csv, write_json, write_whole
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.refusal import Refusal

T = TypeVar("T")
TaskT = TypeVar("TaskT", bound=Task)
Rows = list[tuple[Any, ...]]
TEMPERATURES = tuple(f"temperature({2.0**-power:g})" for power in range(1, 9))
"""Softmax at constant θ, to choose the best of besides softmax (θ = 1) and hardmax (θ → 0)."""
SOFT_TO_SHARP = ("softmax", *TEMPERATURES, "hardmax")
BEST = "best constant θ"
"""Stands in columns of normalizers for the best of these."""
CHECKPOINTS = tuple(SHIPPED / name for name in ("paper", "paper_float32", "frontier", "near_ties"))
"""The trained models that rules and predictions are compared with."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of every study that writes files."""

    tables: ClassVar[tuple[str, ...]] = ()
    """Marks of the tables on the page of the study; its other tables are in tables.md only."""

    output: UnlessGiven[Path | None] = None
    """Directory for the CSV files, the tables and the charts; results/STUDY/TIME by default."""
    page: Path | None = None
    """A Markdown page to put the tables into, between its marks."""
    paper: PaperOption = None

    def __post_init__(self) -> None:
        check_directory("--output", self.output or RESULTS)
        if self.page:
            put_into(read_text(self.page), dict.fromkeys(self.tables, ""))  # which has a place for each, or raises

    def write(
        self,
        study: str,
        frames: Mapping[str, pl.DataFrame],
        charts: Mapping[str, Chart],
        tables: Mapping[str, str] = MappingProxyType({}),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes CSV files, charts, tables and settings, and puts the marked tables into the page if one is named.

        Arguments:
            study: The name of the study: results/STUDY/TIME is the directory by default.
            frames: Tables of data, each written as NAME.csv.
            charts: Charts, each written as NAME.png.
            tables: Tables in Markdown, all written to tables.md.
            settings: Written as STUDY.json if given.
        """
        with results_of(study, self.output) as output:
            for name, frame in frames.items():
                write_csv(output / f"{name}.csv", frame.columns, frame.rows())
            if tables:
                write_whole(output / "tables.md", "\n\n".join(tables.values()) + "\n")
            if settings is not None:
                write_json(output / f"{study}.json", settings)
            for name, chart in charts.items():  # last, as drawing may fail where all else is well
                save_chart(chart, output / name, self.paper)
        if self.page:
            write_whole(self.page, put_into(read_text(self.page), {mark: tables[mark] for mark in self.tables}))
        print(f"wrote {output}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """The options of studies that test trained runs on sets of several lengths."""

    lengths: tuple[int, ...]
    """Items per set."""
    sets: int
    """Sets per seed and length."""
    trust_code: TrustCode = False

    def __post_init__(self) -> None:
        super().__post_init__()
        each_within("--lengths", self.lengths, 2, 2**20, 1024)
        within("--sets", self.sets, 1, 2**20, 1024)


@dataclasses.dataclass(frozen=True)
class TrainedRun(Generic[TaskT]):
    """A trained run, or one part of its task."""

    name: str
    task: TaskT
    parameters: Parameters
    seeds: Sequence[int]


def load_runs(checkpoints: Iterable[Path], kind: type[TaskT] = Task) -> list[TrainedRun[TaskT]]:  # pyright: ignore[reportArgumentType]
    """Loads runs; every part of a task is a run of its own.

    Arguments:
        checkpoints: Directories of runs, or msgpack files.
        kind: The class of their tasks; by default any.

    Raises:
        Refusal: For a run that is missing, and for one of another task.

    Example:
        >>> [(run.name, run.task.name, len(run.seeds)) for run in load_runs([SHIPPED / "paper"])]
        [('paper', 'max_retrieval', 10)]
    """
    runs = []
    for path in checkpoints:
        config, parameters = load_checkpoint(path)
        for part, task in config.task.parts().items():
            name = ", ".join(filter(None, (path.name, part)))
            runs.append(TrainedRun(name, require_kind(task, kind), parameters, config.all_seeds))
    return runs


def require_kind(task: Task, kind: type[TaskT]) -> TaskT:
    """Returns the task of a run. Raises Refusal for one of another class."""
    if not isinstance(task, kind):
        raise Refusal(f"the task is {task.name}: name a run of {kind.name.replace('_', ' ')}")
    return task


def measure_run(
    run: TrainedRun[Any],
    names: Iterable[str],
    lengths: Sequence[int],
    sets: int,
    measures: Sequence[str] = ("accuracy",),
) -> pl.DataFrame:
    """Measures all seeds of a run under several normalizers, on fresh sets.

    Arguments:
        run: The trained models.
        names: Normalizers, as in a command line.
        lengths: Items per set.
        sets: Sets per seed and length.
        measures: Columns of the result, by their names in the table of measures.

    Returns:
        A frame with the columns normalizer, n, seed and the measures.
    """
    named = {name: normalizer(name) for name in names}
    options = {"seeds": run.seeds, "lengths": lengths, "sets": sets, "measures": measures, "task": run.task}
    return frame_of(evaluate(run.parameters, named, **options))


def best_of_others(by_seed: Float[np.ndarray, "seeds choices"]) -> Int[np.ndarray, " seeds"]:
    """Returns for each seed the index of the choice that is best for the other seeds, so none tests its own choice."""
    return (by_seed.sum(0) - by_seed).argmax(1)


def start(arguments: type[T], description: str | None, study: Callable[[T], None]) -> None:
    """Runs the study as a command, with a cache of compiled programs."""
    with process.command():
        parsed = parse(arguments, description=description)
        KEPT.keep()
        study(parsed)


def kept(path: Path, settings: Mapping[str, Any], compute: Callable[[], Rows]) -> Rows:
    """Returns the rows of a file that was computed with the same settings; otherwise computes and writes them."""
    with contextlib.suppress(Refusal):  # absent or damaged: computed again
        stored = read_json(path, "settings", "rows")
        if stored["settings"] == settings:
            return [tuple(row) for row in stored["rows"]]
    rows = compute()
    write_json(path, {"settings": settings, "rows": rows})
    return rows
