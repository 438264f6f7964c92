"""Evaluates trained models on their task under any normalizer, at the lengths of training and far beyond."""

import dataclasses
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
import tyro

from softmax_jax.experiment.commands.output import (
    RESULTS,
    check_directory,
    counted,
    program,
    recorded_options,
    results_of,
    trust_option,
    typed_path,
)
from softmax_jax.experiment.commands.parse import (
    PaperOption,
    TrustCode,
    UnlessGiven,
    each_once,
    each_within,
    normalizer_names,
    within,
)
from softmax_jax.experiment.commands.process import KEPT, CompiledPrograms, run_command
from softmax_jax.experiment.measures import evaluation
from softmax_jax.experiment.measures.evaluation import DEFAULT_NORMALIZERS, TRUE_ITEM, key_of
from softmax_jax.experiment.measures.runs import COLUMNS, lengths_to_show, load_runs
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.rounded_products import AS_TRAINED, Rounding
from softmax_jax.experiment.training.config import settings_of
from softmax_jax.experiment.training.distributed import ALONE, Cluster, is_leader, join
from softmax_jax.experiment.training.progress import Parts, plain_console, with_progress
from softmax_jax.experiment.training.run_directory import SHIPPED
from softmax_jax.refusal import Refusal

if TYPE_CHECKING:
    from softmax_jax.experiment.report.findings import Evaluated

LARGE = 5.0
"""Points of accuracy, below which a gain is not what to show somebody first."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    normalizers: tuple[str, ...] = DEFAULT_NORMALIZERS
    """Names, with numbers where wanted: softmax "ssmax(s=0.43)"; your own as my_module:relu; or "all" of them."""
    lengths: UnlessGiven[tuple[int, ...]] = ()
    """Items per set: six of the task's unless given, of max retrieval 16, 64, 256, 1024, 4096 and 16384."""
    sets: UnlessGiven[int | None] = None
    """Sets per seed and length: as many as the task says unless given, 512 of max retrieval."""
    key: int = 0
    """Number of the draw of sets: 0 for every table; 1 and 2 fit_temperature.py's, 3 report.py's, 4 sharpest's."""
    rounding: tyro.conf.OmitArgPrefixes[Rounding] = AS_TRAINED
    checkpoint: tuple[Path, ...] = (SHIPPED / "paper",)
    """Directories of runs of one task, or a Flax msgpack file of the published recreation's parameters."""
    trust_code: TrustCode = False
    output: UnlessGiven[Path | None] = None
    """Directory for evaluation.csv, evaluation.json and the charts; results/evaluate/TIME by default."""
    full: bool = False
    """Measure at every length of the task (of max retrieval 2, 4, 8, … 16384), and with the default normalizers also
    those fitted to each checkpoint; print every measure, not only accuracies and gains."""
    protocol: Literal["fresh", "notebook"] = "fresh"
    """fresh: new sets for every seed and length. notebook: the published recreation's stream of sets, whose
    accuracies compare with tables made from it (11 keys of 32 sets; --sets does not apply)."""
    paper: PaperOption = None
    compiled: tyro.conf.OmitArgPrefixes[CompiledPrograms] = KEPT
    cluster: tyro.conf.OmitArgPrefixes[Cluster] = ALONE

    def __post_init__(self) -> None:
        each_within("--lengths", self.lengths or (1024,), 1, 2**20, 1024)
        within("--sets", 512 if self.sets is None else self.sets, 1, 2**20, 512)
        within("--key", self.key, 0, 2**31 - 1, 3)
        if self.protocol == "notebook" and (self.sets, self.key) != (Arguments.sets, Arguments.key):
            raise Refusal(f"--sets is {self.sets}, --key {self.key}: --protocol notebook has its own, so omit both")
        normalizer_names(self.normalizers)
        each_once("--checkpoint", self.checkpoint)
        check_directory("--output", self.output or RESULTS / "evaluate")


def row(frame: pl.DataFrame) -> str:
    """The accuracies of one length in a line.

    >>> row(pl.DataFrame({"normalizer": ["softmax", "softmax", "hardmax"], "accuracy": [98.0, 99.0, 100.0]}))
    '% right: softmax 98.5, hardmax 100.0'
    """
    means = frame.filter(pl.col("normalizer") != TRUE_ITEM).group_by("normalizer", maintain_order=True)
    return "% right: " + ", ".join(f"{name} {mean:.1f}" for name, mean in means.agg(pl.mean("accuracy")).rows())


def evaluate(asked: Arguments) -> None:
    """Loads, measures, writes, prints."""
    join(asked.cluster)
    start = time.perf_counter()
    runs = load_runs(asked.checkpoint, asked.normalizers, asked.full, **asked.rounding.given)
    parts, lengths = Parts(), asked.lengths
    asked.compiled.keep()
    task = runs[0].config.task
    if len(runs) > 1 and task.evaluation:
        raise Refusal(f"--checkpoint has {len(runs)} runs of {task.name}, which has tables of its own: give one")
    own = importlib.import_module(task.evaluation) if task.evaluation else None
    if not (lengths or asked.full or own):
        lengths = lengths_to_show(evaluation.lengths_of(task, (), asked.protocol), most=COLUMNS)
    how = {"key": key_of(asked.key), "lengths": lengths, "sets": asked.sets, "protocol": asked.protocol}
    tables, sets = [], 0
    for _, path, config, parameters, named in runs:
        how |= {"task": config.task, "seeds": config.all_seeds, "trained_under": config.normalizer}
        plan = (own or evaluation).planned(parameters, named, done=parts.done, **how)
        frames, sets = plan.frames, max(sets, plan.sets)
        if is_leader():
            seeds, items = counted(config.seeds, "seed"), " ".join(map(str, dict.fromkeys(plan.lengths)))
            print(f"measuring {typed_path(path)}: {seeds} under {', '.join(named)}; items {items}", file=sys.stderr)
            frames = with_progress(frames, plan.lengths, "measuring", said=row, parts=parts)
        tables.append(pl.concat(frames))
    if not is_leader():
        return
    from softmax_jax.experiment.report import findings  # here, as what draws charts takes a second to load

    found = [
        findings.Evaluated(run.name, run.config.task, tuple(run.normalizers), measured=[], everything=table)
        for run, table in zip(runs, tables)
    ]
    models = {run.name: settings_of(run.config) for run in runs}
    settings = recorded_options(asked) | {"sets": sets, "models": models}
    with results_of("evaluate", asked.output) as output:
        paths = (own or findings).write(output, settings, found, asked.paper)
    seeds = counted(sum(run.config.seeds for run in runs), "seed")
    seconds = f"{time.perf_counter() - start:.0f} s"
    print(f"evaluated {seeds} in {seconds}; wrote {', '.join(map(str, paths))}\n")
    (own or findings).show(plain_console(), found, asked.lengths, asked.full)
    print(f"\nNext: {next_step(asked.checkpoint, found, trust_option(*(run.config for run in runs)))}")


def next_step(paths: Sequence[Path], runs: Sequence["Evaluated"], trusted: str = "") -> str:
    """Returns the command to go on with: where no normalizer gains much, one that shows models where some do.

    `trusted` are options that loading these runs takes.
    """
    where, seen = SHIPPED / "paper_float32", {path.resolve() for path in paths}
    if runs[0].task.name == MaxRetrieval.name and where.is_dir() and where.resolve() not in seen:
        gains: list[Any] = [run.summary["gain"].max() or 0.0 for run in runs]
        if max(gains) < LARGE:
            return f"{program('evaluate')} --checkpoint {typed_path(where)}  # larger gains"
    return f"{program('report')} {' '.join(map(typed_path, paths))}{trusted}  # the same in charts, and more"


def main() -> None:
    """Runs the command line."""
    example = f'{program("evaluate")} --normalizers softmax "ssmax(s=0.43)" --lengths 16 1024'
    run_command(Arguments, __doc__, evaluate, example)
