"""Draws loss and accuracy of a training by step, and says in sentences what the models have learned."""

import dataclasses
from pathlib import Path
from typing import Any

import altair as alt
import jax
import numpy as np
import polars as pl

from softmax_jax.experiment.measures.evaluation import Evaluation
from softmax_jax.experiment.measures.significance import over_seeds
from softmax_jax.experiment.measures.table import BASELINE
from softmax_jax.experiment.report import charts
from softmax_jax.experiment.report.chart_files import save_chart
from softmax_jax.experiment.report.charts import BY_NORMALIZER
from softmax_jax.experiment.report.tables import with_interval
from softmax_jax.experiment.tasks.task import Task
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.run import Parameters, build_run
from softmax_jax.experiment.training.run_directory import read_metrics
from softmax_jax.refusal import Refusal

BEYOND = 4
"""Times the longest training length at which models are tested too."""
LEARNED = {0.9: "learned", 0.5: "partly learned", 0.1: "learned little of"}
"""What models have done with their training lengths, by the share of an untrained model's errors that is gone."""


@dataclasses.dataclass(frozen=True)
class Reached:
    """Accuracies in percent of each seed on held-out sets of one length, and of the same models untrained."""

    length: int
    sets: int
    trained: list[float]
    untrained: list[float]


def reached(config: Config, parameters: Parameters) -> list[Reached]:
    """Tests trained models at the longest training length and at `BEYOND` times it, on the sets of `evaluate.py`.

    Empty for a task of several parts, which has tables of its own; a length that the task does not have is left out.
    """
    task = config.task
    if len(task.parts()) > 1:
        return []
    lengths = [n for n in (task.longest, BEYOND * task.longest) if has_sets(task, n)]
    untrained = build_run(config).initial_state().parameters
    fields: dict[str, Any] = {"seeds": config.all_seeds, "measures": ("accuracy",), "trained_under": config.normalizer}
    accuracies = []
    for models in (parameters, jax.device_get(untrained)):
        evaluation = Evaluation(task, models, {config.normalizer: None}, **fields)
        accuracies.append([measured.frame()["accuracy"].to_list() for measured in evaluation.over(lengths)])
    return [Reached(n, task.test_sets(n), *pair) for n, *pair in zip(lengths, *accuracies)]


def has_sets(task: Task, length: int) -> bool:
    """Says whether a task has test sets of a length."""
    try:
        task.check_length("length", length)
        jax.eval_shape(lambda key: task.test_batch(key, length, 1), jax.random.key(0))
    except Refusal:
        return False
    return True


def learned(results: list[Reached]) -> str:
    """Says whether models have learned their training lengths, and what they score beyond.

    >>> learned([Reached(16, 512, [98.0], [10.0])])[:79]
    'It has learned its training lengths: 98.0 % of held-out sets of 16, the longest'
    """
    if not results:
        return "This task has tables of its own, so the models are not tested here."
    first, *others = results
    chance, seeds = float(np.mean(first.untrained)), len(first.trained)
    gone = (float(np.mean(first.trained)) - chance) / max(100 - chance, 1)
    verdict = next((words for share, words in LEARNED.items() if gone >= share), "not learned")
    who = f"It has {verdict} its" if seeds == 1 else f"The models have {verdict} their"
    drawn = f"{first.sets} sets, one seed" if seeds == 1 else f"{first.sets} sets for each of {seeds} seeds"
    sentences = [
        f"{who} training lengths: {with_interval(first.trained)} % of held-out sets of {first.length}, the longest, "
        f"are right (untrained {chance:.1f} %; {drawn}).",
        *(f"At {far.length}, {BEYOND} times that, {with_interval(far.trained)} % are." for far in others),
    ]
    if verdict != LEARNED[0.9]:
        sentences.append("More --steps continue this run; another --learning-rate is another run.")
    return " ".join(sentences)


def training_chart(metrics: pl.DataFrame) -> charts.Chart:
    """Draws accuracy above loss by training step, the means of the seeds with their 95 % bands."""
    steps, seeds = max(metrics["step"].to_list()), metrics["seed"].n_unique()
    last = metrics.filter(step=steps).select(pl.mean("accuracy", "cross_entropy")).row(0)
    loss = over_seeds(metrics, ["step"], "cross_entropy").with_columns(
        low=pl.max_horizontal("low", pl.col("value") / 10)
    )
    axes = {
        "accuracy": charts.percent_axis("accuracy (% of the batch)"),
        "loss": charts.log_axis("cross-entropy (nats)", [*loss["low"], *loss["high"]]),
    }
    scale = alt.Scale(domain=[0, steps], nice=False)
    x = alt.X("step:Q", title="training step", scale=scale, axis=alt.Axis(tickMinStep=1))
    panels = []
    for (name, axis), frame in zip(axes.items(), (over_seeds(metrics, ["step"], "accuracy", 0.0, 100.0), loss)):
        colour = charts.colour_by("curve", {name: BY_NORMALIZER[BASELINE]}, legend=False)
        layers = charts.lines(frame.with_columns(curve=pl.lit(name)), x, axis, colour, point=len(frame) == 1)
        panels.append(alt.layer(*layers).properties(width=560, height=180))
    title = f"After {steps:,} steps {last[0]:.1f} % of a batch are right, at a cross-entropy of {last[1]:.3f} nats"
    origin = charts.mean_of(seeds, ", 95 % band")
    note = f"means over the steps between two lines of metrics, without the penalty on weights; {origin}"
    return alt.vconcat(*panels).properties(title=charts.chart_title(title, note))


def draw_training(run: Path) -> Path:
    """Writes training.png and training.svg into the directory of a run; returns the path of the first."""
    metrics = pl.DataFrame(read_metrics(run))
    return save_chart(training_chart(metrics), run / "training")[0]
