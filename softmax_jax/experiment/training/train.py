"""Trains a run from its directory to its end: chunks, progress, interruption."""

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.distributed import any_process, gathered
from softmax_jax.experiment.training.progress import Log
from softmax_jax.experiment.training.run import Run, TrainState, build_run, resolve_start
from softmax_jax.experiment.training.run_directory import Chunk, RunDirectory
from softmax_jax.experiment.training.soundness import require_sound
from softmax_jax.experiment.training.trainer import Metrics, chunk_trainer
from softmax_jax.refusal import NotFiniteError

POLLING_SECONDS = 0.005
"""How long to sleep between two looks at a chunk: signals are heard while this process sleeps, not while it waits."""
Report = Callable[[Chunk | str], None]
"""Shows a chunk, or what is done before the next one, on a terminal or in a log."""


class Interrupted(KeyboardInterrupt):
    """The user stopped the run; its newest checkpoint continues it."""


def train(config: Config, workdir: Path | str, console: Console) -> TrainState:
    """Trains every seed to `config.steps`, continuing what the directory already holds.

    A continued run ends with the same bits as one that was never stopped, given as many devices; on another number
    sums round differently. Of several processes all call this, and an interruption of any of them stops all after
    the same chunk.

    Raises:
        NotFiniteError: when a loss is not finite, after the last good state was saved.
        Interrupted: after Ctrl-C or SIGTERM, after the last state was saved.
        Refusal: with nothing written, for what `build_run` and `require_sound` refuse and for a directory that another
            run is in; and when the disk is full, which loses no more than the steps since the newest checkpoint.
    """
    run = build_run(resolve_start(config))
    require_sound(config.task, config.normalizer)
    directory = RunDirectory(run, workdir)
    with _heard_signals(console) as signals, _progress(run.config, console) as report:
        step, state = directory.record(functools.partial(_chunks, run, signals, report, console))
    if step < run.config.steps:
        raise Interrupted(f"stopped at step {step}; the same command continues {workdir}")
    return state


@contextlib.contextmanager
def _heard_signals(console: Console) -> Iterator[list[int]]:
    """Yields a list that gets the number of a Ctrl-C or a SIGTERM. A second Ctrl-C ends the process at once."""
    heard: list[int] = []

    def hear(number: int, frame: Any) -> None:
        heard.append(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        console.print("Stopping after this chunk and saving. Ctrl-C again to stop now.", soft_wrap=True)

    previous = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield heard
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _chunks(
    run: Run, signals: list[int], report: Report, console: Console, step: int, state: TrainState
) -> Iterator[Chunk]:
    """Yields each chunk of training from a step and its state on, until the last step or a signal."""
    config = run.config
    compiled: dict[int, Callable[..., tuple[TrainState, Metrics]]] = {}
    if step:
        console.print(f"continuing at step {step}")
    while step < config.steps:
        steps = min(config.chunk - step % config.chunk, config.steps - step)
        if steps not in compiled:
            report("compiling")
            start = time.perf_counter()
            compiled[steps] = compiled_chunk(run, state, steps)
            console.print(f"compiled in {time.perf_counter() - start:.1f} s", soft_wrap=True, highlight=False)
            report(f"training from step {step}")
        start = time.perf_counter()
        # The next state lives beside this one until its loss is known to be finite.
        new_state, metrics = compiled[steps](state, np.int32(step))
        while not all(leaf.is_ready() for leaf in jax.tree.leaves(metrics)):
            time.sleep(POLLING_SECONDS)
        seconds = time.perf_counter() - start
        metrics = gathered(metrics)
        _require_finite(metrics, config, step)
        step, state = step + steps, new_state
        chunk = Chunk(step, state, _lines(metrics, config, step, steps / seconds))
        report(chunk)
        yield chunk
        if any_process(bool(signals)):
            return


def compiled_chunk(run: Run, state: TrainState, steps: int) -> Callable[..., tuple[TrainState, Metrics]]:
    """Returns the compiled program of (state, first step) for that many steps."""
    return chunk_trainer(run).lower(state, np.int32(0), steps).compile()


def _require_finite(metrics: Metrics, config: Config, step: int) -> None:
    """Raises NotFiniteError for the first seed with a loss that is not, of a chunk that began at this step."""
    for seed, bad_step in zip(config.all_seeds, metrics.first_bad_step):
        if bad_step >= 0:
            raise NotFiniteError(
                f"the loss of seed {seed} is not finite at step {bad_step}: try a smaller --learning-rate; "
                f"the run keeps the state of step {step}"
            )


def _lines(metrics: Metrics, config: Config, step: int, steps_per_second: float) -> list[dict[str, Any]]:
    """Returns a line of metrics for each seed."""
    means = {name: getattr(metrics, name).tolist() for name in ("loss", "cross_entropy", "accuracy")}
    return [
        {"step": step, "seed": seed}
        | {name: values[row] for name, values in means.items()}
        | {"steps_per_second": round(steps_per_second, 2)}
        for row, seed in enumerate(config.all_seeds)
    ]


@contextlib.contextmanager
def _progress(config: Config, console: Console) -> Iterator[Report]:
    """Yields what reports a chunk: a bar on a terminal, lines in a log, with mean metrics, rate and time left."""

    def summary(lines: list[dict[str, Any]]) -> str:
        loss, accuracy = (np.mean([line[key] for line in lines]) for key in ("loss", "accuracy"))
        return f"loss {loss:.4f}  accuracy {accuracy:.2f} %  {lines[0]['steps_per_second']:.0f} steps/s"

    if console.is_terminal:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task("", total=config.steps)

            def show(news: Chunk | str) -> None:
                if isinstance(news, str):
                    bar.update(task, description=news)
                else:
                    bar.update(task, completed=news.step, description=summary(news.lines))

            yield show
        return

    def write(news: Chunk | str) -> None:
        if isinstance(news, str):
            log.begin(news)
            return
        left = (config.steps - news.step) / news.lines[0]["steps_per_second"]
        log.print(f"step {news.step}/{config.steps}  {summary(news.lines)}  {left:.0f} s left")
        log.begin(f"training from step {news.step}")

    with Log(functools.partial(console.print, soft_wrap=True), "starting") as log:
        yield write
