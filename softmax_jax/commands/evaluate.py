"""Evaluates trained models on their task under any normalizer, at the lengths of training and far beyond."""

import dataclasses
import importlib
import sys
import time
from pathlib import Path
from typing import Literal

import polars as pl
import tyro

from softmax_jax.commands import options
from softmax_jax.measures import evaluation
from softmax_jax.measures.evaluation import DEFAULT_NORMALIZERS, key_of, named_normalizers
from softmax_jax.report import accuracy
from softmax_jax.report.charts import PaperOption
from softmax_jax.tasks.precision import AS_TRAINED, Rounding
from softmax_jax.training.config import changed, settings_of
from softmax_jax.training.distributed import ALONE, Cluster, is_leader, join
from softmax_jax.training.progress import with_progress
from softmax_jax.training.run_directory import SHIPPED, load_checkpoint


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    normalizers: tuple[str, ...] = DEFAULT_NORMALIZERS
    """Names, with numbers where wanted: softmax "ssmax(s=0.43)"; your own as my_module:relu; or "all" of them."""
    lengths: options.UnlessGiven[tuple[int, ...]] = ()
    """Items per set: the task's unless given, of max retrieval 2, 4, … 16384 (4096 under the notebook protocol)."""
    sets: options.UnlessGiven[int | None] = None
    """Sets per seed and length: as many as the task says unless given, 512 of max retrieval."""
    key: int = 0
    """Number of the draw of sets: 0 for every table; 1 and 2 fit_temperature.py's, 3 report.py's, 4 sharpest's."""
    rounding: tyro.conf.OmitArgPrefixes[Rounding] = AS_TRAINED
    checkpoint: Path = SHIPPED / "paper"
    """Directory of a run, or a Flax msgpack file of the published recreation's parameters."""
    trust_code: options.TrustCode = False
    output: options.UnlessGiven[Path | None] = None
    """Directory for evaluation.csv, evaluation.json and the chart; results/evaluate/TIME by default."""
    protocol: Literal["fresh", "notebook"] = "fresh"
    """fresh: new sets for every seed and length. notebook: the published recreation's stream of sets, whose
    accuracies compare with tables made from it (11 keys of 32 sets; --sets does not apply)."""
    paper: PaperOption = None
    compiled: tyro.conf.OmitArgPrefixes[options.CompiledPrograms] = options.KEPT
    cluster: tyro.conf.OmitArgPrefixes[Cluster] = ALONE

    def __post_init__(self) -> None:
        options.each_within("--lengths", self.lengths or (1024,), 1, 2**20, 1024)
        options.within("--sets", 512 if self.sets is None else self.sets, 1, 2**20, 512)
        options.within("--key", self.key, 0, 2**31 - 1, 3)
        if self.protocol == "notebook" and (self.sets, self.key) != (Arguments.sets, Arguments.key):
            raise ValueError(f"--sets is {self.sets}, --key {self.key}: --protocol notebook has its own, so omit both")
        options.normalizer_names(self.normalizers)
        options.check_directory("--output", self.output or options.RESULTS)


def row(frame: pl.DataFrame) -> str:
    """The accuracies of one length in a line.

    >>> row(pl.DataFrame({"normalizer": ["softmax", "softmax", "hardmax"], "accuracy": [98.0, 99.0, 100.0]}))
    '% right: softmax 98.5, hardmax 100.0'
    """
    means = frame.group_by("normalizer", maintain_order=True).agg(pl.mean("accuracy")).rows()
    return "% right: " + ", ".join(f"{name} {mean:.1f}" for name, mean in means)


def evaluate(asked: Arguments) -> None:
    """Loads, measures, prints, writes."""
    join(asked.cluster)
    start = time.perf_counter()
    config, parameters = load_checkpoint(asked.checkpoint)
    config = changed(config, **asked.rounding.given)
    named = named_normalizers(asked.normalizers, asked.checkpoint, parameters, config.normalizer)
    asked.compiled.keep()
    how = {"seeds": config.all_seeds, "key": key_of(asked.key), "trained_under": config.normalizer}
    how |= {"lengths": asked.lengths, "sets": asked.sets, "protocol": asked.protocol}
    own = importlib.import_module(config.task.evaluation) if config.task.evaluation else None
    plan = (own or evaluation).planned(parameters, named, task=config.task, **how)
    frames, seeds = plan.frames, options.counted(config.seeds, "seed")
    if is_leader():
        lengths = " ".join(map(str, dict.fromkeys(plan.lengths)))
        print(f"measuring {asked.checkpoint}: {seeds} under {', '.join(named)}; items {lengths}", file=sys.stderr)
        frames = with_progress(plan.frames, plan.lengths, "measuring", said=row)
    frame = pl.concat(frames)
    if not is_leader():
        return
    settings = dataclasses.asdict(asked) | {"sets": plan.sets, "seeds": config.all_seeds, "model": settings_of(config)}
    with options.results_of("evaluate", asked.output) as output:
        paths = (own or accuracy).show_and_write(output, settings, frame, config.task, asked.paper)
    seconds = f"{time.perf_counter() - start:.0f} s"
    print(f"evaluated {seeds} in {seconds}; wrote {', '.join(map(str, paths))}")


def main() -> None:
    """Runs the command line."""
    options.run(Arguments, __doc__, evaluate)
