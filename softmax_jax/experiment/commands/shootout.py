"""Trains one small transformer under several normalizers, with nothing else changed, and compares them."""

import dataclasses
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import polars as pl
from rich.console import Console

from softmax_jax.experiment import program
from softmax_jax.experiment.commands import process
from softmax_jax.experiment.commands.output import (
    RESULTS,
    check_directory,
    picture_among,
    results_of,
    trust_option,
    typed_path,
)
from softmax_jax.experiment.commands.parse import (
    PaperOption,
    Quick,
    UnlessGiven,
    each_within,
    normalizer_names,
    parse,
    within,
)
from softmax_jax.experiment.configs import PRESETS, load_preset
from softmax_jax.experiment.measures.evaluation import evaluate, frame_of
from softmax_jax.experiment.measures.frames import read_json_lines
from softmax_jax.experiment.measures.significance import half_width
from softmax_jax.experiment.report import shootout as report
from softmax_jax.experiment.report.chart_files import save_chart
from softmax_jax.experiment.report.shootout import Outcomes
from softmax_jax.experiment.report.tables import with_interval
from softmax_jax.experiment.tasks import TASKS, task_class
from softmax_jax.experiment.tasks.sequences import SequenceTask
from softmax_jax.experiment.training.config import Config, changed, settings_of
from softmax_jax.experiment.training.progress import plain_console, with_progress
from softmax_jax.experiment.training.run_directory import METRICS, load_checkpoint
from softmax_jax.experiment.training.train import train
from softmax_jax.files import versions, write_csv, write_json
from softmax_jax.normalizers.checks import did_you_mean
from softmax_jax.normalizers.registry import all_names, normalizer
from softmax_jax.refusal import Refusal

CHANGES = ("seeds", "length", "hidden", "heads", "classes", "signal_length", "pooling")
"""Options that are settings of the preset."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line; settings that are left out are those of the preset of the task."""

    normalizers: tuple[str, ...] = ("softmax", "ssmax", "softpick", "shifted_softmax", "signed_l1")
    """Names, with numbers where wanted: softmax "ssmax(s=0.43)"; your own as my_module:relu; or "all" of them."""
    task: str = "signal"
    """signal: classify sequences by a hidden pattern. transformer-max-retrieval, sort, copy, multi-query: name the
    class of one item among many. set-complement: the class that no item has. trigger: the average of all items, or 0.
    max_retrieval: the largest item on the paper's model. Your own as my_module:Task."""
    test_lengths: UnlessGiven[tuple[int, ...]] = ()
    """Lengths to test at; the length of training, and for the others than signal also 4, 16 and 64 times it."""
    workdir: UnlessGiven[Path | None] = None
    """Directory for the runs, which are continued where they were stopped; runs/shootout/TASK by default."""
    output: UnlessGiven[Path | None] = None
    """Directory for the tables and charts; results/shootout/TIME by default."""
    paper: PaperOption = None
    seeds: int = 5
    """Models per normalizer, trained together."""
    length: int | None = None
    """Positions in a sequence (32), or the most items in training (64; set-complement and trigger 16)."""
    epochs: int | None = None
    """15 for the signal (25 steps each), 6 for set-complement, 15 for trigger, 30 for the others (100 steps each)."""
    hidden: int | None = None
    """Width of the transformer (64; set-complement and trigger 32)."""
    heads: int | None = None
    """Attention heads in each of its layers (4)."""
    classes: int | None = None
    """Patterns to tell apart (4), or classes of items (10)."""
    signal_length: int | None = None
    """Steps of the pattern (3); of the signal alone."""
    pooling: Literal["mean", "last"] | None = None
    """What the answer is read from (the mean over positions); of the signal alone."""
    causal: bool = False
    """Let no position see a later one."""
    quick: Quick = False

    def __post_init__(self) -> None:
        normalizer_names(self.normalizers)
        each_within("--test-lengths", self.test_lengths or (64,), 2, 2**20, 64)
        within("--epochs", 15 if self.epochs is None else self.epochs, 1, 2**20, 15)
        check_directory("--workdir", self.runs)
        check_directory("--output", self.output or RESULTS / "shootout")
        task = self.config().task
        for length in self.test_lengths:
            task.check_length("--test-lengths", length)

    @property
    def runs(self) -> Path:
        """Returns the directory of the runs."""
        return self.workdir or Path("runs") / "shootout" / (directory_name(self.task) + "-quick" * self.quick)

    def config(self) -> Config:
        """Returns the recipe of the task with these options. Raises Refusal for an option that the task lacks."""
        recipe = recipe_of(self.task)
        changes = {name: getattr(self, name) for name in CHANGES}
        changes |= {"steps": self.epochs and self.epochs * recipe.chunk, "causal": self.causal or None}
        return changed(recipe, **{name: value for name, value in changes.items() if value is not None})


def recipe_of(task: str) -> Config:
    """Returns the preset of a task's name, or that of the small transformer's max retrieval with this task.

    Raises Refusal for a name that is neither in the table of tasks nor of a module, for a task that is evaluated in
    its own way, and for `max-retrieval`, which once was the transformer's.
    """
    if task == "max-retrieval":
        raise Refusal(
            "--task is max-retrieval: it must be transformer-max-retrieval, on the small transformer, or "
            "max_retrieval, on the model of the paper"
        )
    name = task if ":" in task else task.replace("-", "_")
    if name not in TASKS and ":" not in task:
        rule = f"it must be one of {', '.join(TASKS)}; one of your own is written my_module:Task"
        raise Refusal(f"--task is {task!r}: {did_you_mean(task, TASKS)}{rule}")
    kind = task_class(name)
    if kind.grouped_by:
        command = f"{program('train')} {name} --normalizer softmax --workdir runs/{name}_softmax"
        raise Refusal(f"--task is {task}, which has tables of its own: type {command}, and so on, and then evaluate.py")
    if name in PRESETS:
        return load_preset(name)
    return dataclasses.replace(load_preset("transformer_max_retrieval"), task=kind())


def compete(
    config: Config, normalizers: Sequence[str], lengths: Sequence[int], directory: Path | str, console: Console
) -> Outcomes:
    """Trains these settings under each normalizer, continuing its run in the directory, and tests all alike.

    Arguments:
        config: The settings of training.
        normalizers: The names of the normalizers.
        lengths: The lengths to test at, beside the length of training; those of the task if there are none.
        directory: Where each normalizer's run has a directory of its own.
        console: Where to print progress; a quiet one prints none.

    Raises:
        Refusal, NotFiniteError, Interrupted: as `train` does.
    """
    task = config.task
    sets = {length: task.test_sets(length) for length in sorted({task.longest, *(lengths or task.test_lengths)})}
    for length in sets:  # a length that the task refuses, before the training
        jax.eval_shape(lambda key, n=length: task.test_batch(key, n, 1), jax.random.key(0))
    tests, losses, learned, seconds = [], [], {}, {}
    for name in normalizers:
        workdir = Path(directory) / directory_name(name)
        console.print(f"{name}: {workdir}", soft_wrap=True)
        train(changed(config, normalizer=name), workdir, console)
        _, parameters = load_checkpoint(workdir)
        settings: dict[str, Any] = {"task": task, "trained_under": name, "measures": ("accuracy", "loss")}
        measured = evaluate(
            parameters, {name: None}, seeds=config.all_seeds, lengths=tuple(sets), sets=sets, **settings
        )
        if not console.quiet:
            measured = with_progress(measured, list(sets), f"testing {name}")
        tests.append(frame_of(measured))
        metrics = read_json_lines(workdir / METRICS, "seed", "step", "loss", "steps_per_second").with_columns(
            normalizer=pl.lit(name), epoch=pl.col("step") // config.chunk
        )
        losses.append(metrics.sort("seed", "epoch").select("normalizer", "seed", "epoch", "loss"))
        learned[name] = task.learned(parameters, name) if isinstance(task, SequenceTask) else {}
        seconds[name] = float((config.chunk / metrics.filter(seed=config.first_seed)["steps_per_second"]).sum())
    return Outcomes(pl.concat(tests), pl.concat(losses), learned, seconds)


def directory_name(run: str) -> str:
    """Returns the name of the directory of a run.

    >>> directory_name("entmax(alpha=1.5)")
    'entmax-alpha-1.5'
    """
    return re.sub(r"[^a-z0-9.]+", "-", run.lower()).strip("-")


def write_outcomes(output: Path, command: dict[str, Any], config: Config, outcomes: Outcomes) -> list[Path]:
    """Writes shootout.csv, losses.csv, lengths.csv and shootout.json; returns where."""
    epochs = config.steps // config.chunk
    last = outcomes.losses.filter(epoch=epochs).select("normalizer", "seed", train_loss="loss")
    at_training = outcomes.tests.filter(n=config.task.longest).join(last, ["normalizer", "seed"], maintain_order="left")
    seconds = pl.col("normalizer").replace_strict(outcomes.seconds) / config.seeds
    tables = {
        "shootout": at_training.select(
            "normalizer", "seed", test_accuracy="accuracy", test_loss="loss", train_loss="train_loss", seconds=seconds
        ),
        "losses": outcomes.losses,
        "lengths": outcomes.tests.select("normalizer", "seed", length="n", accuracy="accuracy", loss="loss"),
    }
    for name, table in tables.items():
        write_csv(output / f"{name}.csv", table.columns, table.rows())
    task: Any = config.task
    settings = {
        "command": command,
        "task": dataclasses.asdict(task),
        "recipe": settings_of(config) | {"epochs": epochs},
        "versions": versions(),
        "learned": jax.tree.map(np.ndarray.tolist, outcomes.learned),
    }
    write_json(output / "shootout.json", settings)
    return [*(output / f"{name}.csv" for name in tables), output / "shootout.json"]


def shoot_out(arguments: Arguments) -> None:
    """Looks at the normalizers, trains under each, writes, prints."""
    config = arguments.config()
    start, console = time.perf_counter(), plain_console(width=max(plain_console().width, 120))
    names = tuple(all_names()) if "all" in arguments.normalizers else arguments.normalizers
    named = {name: normalizer(name) for name in names}
    swept = report.sweep(named)
    report.print_looks(console, named, swept)
    outcomes = compete(config, names, arguments.test_lengths, arguments.runs, console)
    charts = report.look_charts(named, swept) | report.outcome_charts(outcomes, config.task.longest)
    with results_of("shootout", arguments.output) as output:
        command = dataclasses.asdict(arguments) | {"workdir": str(arguments.runs), "output": str(output)}
        paths = write_outcomes(output, command, config, outcomes)
        for name, chart in charts.items():
            paths += save_chart(chart, output / name, arguments.paper)
    report.print_outcomes(console, config, outcomes)
    print(f"trained {len(names)} × {config.seeds} models in {time.perf_counter() - start:.0f} s\n")
    lengths = sorted({config.task.longest, max(outcomes.tests["n"].to_list())})
    console.print(*(best_at(n, outcomes.tests) for n in lengths), highlight=False)
    print(f"Accuracy by normalizer: {picture_among([output / 'accuracy.png', *paths])}")
    print(f"Next: {following(names, arguments.runs, config)}")


def best_at(n: int, tests: pl.DataFrame) -> str:
    """Says which normalizer is best at a length, and what it gains over the first of the others.

    >>> rows = [("softmax", 8, 0, 90.0), ("softmax", 8, 1, 91.0), ("ssmax", 8, 0, 93.0), ("ssmax", 8, 1, 94.2)]
    >>> best_at(8, pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy"], orient="row"))
    'At length 8 ssmax is best: 93.6 % right, 3.1 ± 1.3 points above softmax (2 seeds, beyond chance).'
    """
    by_name = dict(tests.filter(n=n).group_by("normalizer", maintain_order=True).agg("accuracy").rows())
    best = max(by_name, key=lambda name: np.mean(by_name[name]))
    others = [name for name in by_name if name != best]
    sentence = f"At length {n} {best} is best: {np.mean(by_name[best]):.1f} % right"
    if not others:
        return f"At length {n} {best} answers {np.mean(by_name[best]):.1f} % right."
    gains = np.subtract(by_name[best], by_name[others[0]]).tolist()
    half, seeds = half_width(gains), len(gains)
    if half is None:
        return f"{sentence}, {gains[0]:.1f} points above {others[0]} (one seed, so no interval)."
    chance = "beyond chance" if np.mean(gains) > half else "not beyond chance"
    return f"{sentence}, {with_interval(gains)} points above {others[0]} ({seeds} seeds, {chance})."


def following(names: Sequence[str], runs: Path, config: Config) -> str:
    """Returns the command that tests the runs that were just trained under other normalizers too."""
    trained = (changed(config, normalizer=name) for name in names)
    places = " ".join(typed_path(runs / directory_name(name)) for name in names)
    return f"{program('evaluate')} --checkpoint {places}{trust_option(*trained)}"


def main() -> None:
    """Runs the command line."""
    example = f'{program("shootout")} --normalizers softmax "ssmax(s=0.43)" --test-lengths 64 256'
    with process.command():
        shoot_out(parse(Arguments, description=__doc__, example=example, quick={"seeds": 2, "epochs": 4}))
