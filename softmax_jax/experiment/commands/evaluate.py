"""Evaluates trained models on their task under any normalizer, at the lengths of training and far beyond."""

import dataclasses
import functools
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import tyro

from softmax_jax.experiment import program
from softmax_jax.experiment.commands import process
from softmax_jax.experiment.commands.output import (
    RESULTS,
    check_directory,
    counted,
    fit_command,
    picture_among,
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
    parse,
    within,
)
from softmax_jax.experiment.commands.process import KEPT, CompiledPrograms
from softmax_jax.experiment.measures.dispersion import HARDMAX
from softmax_jax.experiment.measures.evaluation import Evaluation, Measured
from softmax_jax.experiment.measures.one_set import heads_of
from softmax_jax.experiment.measures.references import TRUE_ITEM
from softmax_jax.experiment.measures.runs import (
    COLUMNS,
    DEFAULT_NORMALIZERS,
    RECIPE,
    Loaded,
    lengths_to_show,
    load_runs,
    numbered,
)
from softmax_jax.experiment.measures.sets import key_of
from softmax_jax.experiment.measures.table import EVALUATION
from softmax_jax.experiment.tasks.rounded_products import NOT_GIVEN, Rounding
from softmax_jax.experiment.tasks.task import Task
from softmax_jax.experiment.training.config import settings_of
from softmax_jax.experiment.training.distributed import ALONE, Cluster, is_leader, join
from softmax_jax.experiment.training.progress import Log, Parts, plain_console, with_progress
from softmax_jax.experiment.training.run_directory import SHIPPED


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    normalizers: tuple[str, ...] = DEFAULT_NORMALIZERS
    """Names, with numbers where wanted: softmax "ssmax(s=0.43)"; your own as my_module:relu; or "all" of them."""
    lengths: UnlessGiven[tuple[int, ...]] = ()
    """Items per set: those of the task unless given, of max retrieval 2, 4, 8, … 4096 and 16384."""
    sets: UnlessGiven[int | None] = None
    """Sets per seed and length: as many as the task says unless given, 512 of max retrieval."""
    key: int = 0
    """Number of the draw of sets: 0 for every table; 1 and 2 fit_temperature.py's, 3 report.py's, 4 sharpest's."""
    rounding: tyro.conf.OmitArgPrefixes[Rounding] = NOT_GIVEN
    checkpoint: tuple[Path, ...] = (SHIPPED / "paper",)
    """Directories of runs of one task, or a Flax msgpack file of the published recreation's parameters."""
    trust_code: TrustCode = False
    output: UnlessGiven[Path | None] = None
    """Directory for evaluation.csv, evaluation.json and the charts; results/evaluate/TIME by default."""
    full: bool = False
    """Measure at every length of the task (of max retrieval 8192, too), and with the default normalizers also those
    fitted to each checkpoint; print every measure at every length, not only accuracies and gains at six."""
    paper: PaperOption = None
    compiled: tyro.conf.OmitArgPrefixes[CompiledPrograms] = KEPT
    cluster: tyro.conf.OmitArgPrefixes[Cluster] = ALONE

    def __post_init__(self) -> None:
        each_within("--lengths", self.lengths or (1024,), 2, 2**20, 1024)
        within("--sets", 512 if self.sets is None else self.sets, 1, 2**20, 512)
        within("--key", self.key, 0, 2**31 - 1, 3)
        normalizer_names(self.normalizers)
        each_once("--checkpoint", self.checkpoint)
        check_directory("--output", self.output or RESULTS / "evaluate")

    def lengths_of(self, task: Task) -> tuple[int, ...]:
        """Returns the lengths to measure a task at. Raises Refusal for one that it does not have."""
        for length in self.lengths:
            task.check_length("--lengths", length)
        if self.lengths or self.full or task.measures_every_length:
            return self.lengths or task.test_lengths
        shown = lengths_to_show(task.test_lengths, most=COLUMNS)
        last_but_one, longest = shown[-2:][0], shown[-1]  # the same where there is one length
        return (*(length for length in task.test_lengths if length <= last_but_one and length < longest), longest)


def evaluation_of(run: Loaded, arguments: Arguments, parts: Parts) -> Evaluation:
    """Returns the evaluation of a run; with hardmax comes the true item alone: together they tell what loses what."""
    task = run.config.task
    explained = HARDMAX in run.normalizers and heads_of(task, task.test_lengths[0]).ranked
    return Evaluation(
        task,
        run.parameters,
        run.normalizers,
        seeds=run.config.all_seeds,
        sets=arguments.sets,
        measures=task.columns or (*EVALUATION, "extrapolated"),
        references=(TRUE_ITEM,) if explained else (),
        key=key_of(arguments.key),
        trained_under=run.config.normalizer,
        done=parts.done,
    )


def row(measured: Measured) -> str:
    """Returns the accuracies of one length in a line.

    >>> import numpy as np
    >>> row(Measured(16, ("softmax", "hardmax"), (0, 1), {"accuracy": np.array([[[98.0, 100.0]], [[99.0, 100.0]]])}))
    '% right: softmax 98.5, hardmax 100.0'
    """
    means = measured.values["accuracy"].mean((0, 1)).tolist()
    shown = [f"{name} {mean:.1f}" for name, mean in zip(measured.normalizers, means) if name != TRUE_ITEM]
    return f"% right: {', '.join(shown)}"


def measure(run: Loaded, evaluation: Evaluation, lengths: Sequence[int], parts: Parts) -> list[Measured]:
    """Measures a run at these lengths; the first process tells how far it is."""
    measured = evaluation.over(lengths)
    if not is_leader():
        return list(measured)
    seeds, items = counted(run.config.seeds, "seed"), " ".join(map(str, lengths))
    where = ", ".join([typed_path(run.path), *run.labels.values()])
    print(f"measuring {where}: {seeds} under {', '.join(run.normalizers)}; items {items}", file=sys.stderr)
    return list(with_progress(measured, lengths, "measuring", numbered(lengths), row, parts))


def evaluate(arguments: Arguments) -> None:
    """Loads, measures, writes, prints."""
    join(arguments.cluster)
    start = time.perf_counter()
    runs = load_runs(arguments.checkpoint, arguments.normalizers, arguments.full, **arguments.rounding.given)
    lengths = [arguments.lengths_of(run.config.task) for run in runs]
    arguments.compiled.keep()
    results, sets = [], 0
    for run, run_lengths in zip(runs, lengths):
        parts = Parts()
        evaluation = evaluation_of(run, arguments, parts)
        results.append(measure(run, evaluation, run_lengths, parts))
        sets = max(sets, *map(evaluation.sets_at, run_lengths))
    if not is_leader():
        return
    # Here, as what draws charts takes a second to load.
    from softmax_jax.experiment.report import findings
    from softmax_jax.experiment.report.evaluated import evaluated, with_tests

    shown = with_tests([evaluated(run, result) for run, result in zip(runs, results)])
    models = {run.name: settings_of(run.config) for run in runs}
    settings = recorded_options(arguments) | {"sets": sets, "models": models}
    seeds = counted(sum({run.path: run.config.seeds for run in runs}.values()), "seed")
    with results_of("evaluate", arguments.output) as output, Log(functools.partial(print, file=sys.stderr), "drawing"):
        paths = findings.write(output, settings, shown, arguments.paper)
    print(f"evaluated {seeds}, {sets} sets of each length, in {time.perf_counter() - start:.0f} s\n")
    findings.show(plain_console(), shown, arguments.lengths, arguments.full)
    print(f"\nPicture: {picture_among(paths)}")
    print(f"Next: {next_step(arguments.checkpoint, runs[0], trust_option(*(run.config for run in runs)))}")


def next_step(paths: Sequence[Path], run: Loaded, trusted: str = "") -> str:
    """Returns the command to go on with: a refit of the temperatures to one run, or charts of what was measured.

    `trusted` are options that loading these runs takes.
    """
    if len(paths) == 1 and not run.labels and paths[0].resolve() == (SHIPPED / RECIPE).resolve():
        return f"{program('fit')}  # refits the curve from entropy to temperature to these models, in a few minutes"
    if len(paths) == 1 and (fit := fit_command(run)):
        return fit
    return f"{program('report')} {' '.join(map(typed_path, paths))}{trusted}  # the same in charts, and why"


def main() -> None:
    """Runs the command line."""
    example = f'{program("evaluate")} --normalizers softmax "ssmax(s=0.43)" --lengths 16 1024'
    with process.command():
        evaluate(parse(Arguments, description=__doc__, example=example))
