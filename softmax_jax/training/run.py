"""Trains a run from its directory to its end: chunks, metrics, checkpoints, progress, interruption."""

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from softmax_jax.runtime.command_line import one_line_errors, print_error
from softmax_jax.runtime.compilation_cache import CompileTime
from softmax_jax.runtime.distributed import any_process, gathered, leave
from softmax_jax.training.config import Config
from softmax_jax.training.interruption import Interruptions
from softmax_jax.training.optimizers import build_optimizer
from softmax_jax.training.run_directory import RunDirectory, started
from softmax_jax.training.trainer import Metrics, TrainState, build_model, chunk_trainer


class NotFiniteError(ArithmeticError):
    """The loss of a seed became infinite or NaN."""


class Interrupted(Exception):  # noqa: N818
    """The user stopped the run; its newest checkpoint continues it."""


class InterruptedAtOnce(Interrupted):
    """The user did not wait for the chunk under way, which is lost and may still be computed."""


@contextlib.contextmanager
def one_line_ends() -> Iterator[None]:
    """`one_line_errors`, and one line also for a run that was stopped (status 130) or whose loss got lost (1)."""
    with one_line_errors():
        try:
            yield
        except Interrupted as interruption:
            print(interruption, file=sys.stderr)
            if isinstance(interruption, InterruptedAtOnce):
                leave(130)  # an orderly exit would wait for the chunk
            raise SystemExit(130) from None
        except NotFiniteError as error:
            print_error(str(error))
            raise SystemExit(1) from None


def run(config: Config, workdir: Path | str, console: Console) -> TrainState:
    """Trains every seed to `config.steps`, continuing what the directory already holds.

    A continued run ends with the same bits as one that was never stopped, given as many devices; on another number
    sums round differently. Of several processes all call this, and an interruption of any of them stops all after
    the same chunk. Raises NotFiniteError when a loss
    is not finite, after the last good state was saved, Interrupted after Ctrl-C or SIGTERM, likewise,
    InterruptedAtOnce after a second Ctrl-C, when the chunks that were finished are saved, and ValueError,
    with nothing written, for an optimizer or a schedule that optax cannot build, an unknown normalizer, or a directory
    that another run is in; OSError when the disk is full, which loses no more than the steps since the newest
    checkpoint.
    """
    # Refuse what cannot be before anything is written.
    build_model(config.task, config.normalizer)
    config = started(config)
    build_optimizer(config)
    directory = RunDirectory(workdir, config)
    try:
        with Interruptions(console) as interruptions, _progress(config, console) as report:
            step, state = directory.resume()
            if step:
                console.print(f"continuing {workdir} at step {step}")
            step, state = _train(config, directory, step, state, report, interruptions, console)
            directory.save(step, state)
            if step == config.steps:
                directory.finish(state)
                return state
        raise Interrupted(f"stopped at step {step}; the same command continues {workdir}")
    finally:
        directory.close()


def _train(
    config: Config,
    directory: RunDirectory,
    step: int,
    state: TrainState,
    report: Callable[[int, list[dict[str, Any]]], None],
    interruptions: Interruptions,
    console: Console,
) -> tuple[int, TrainState]:
    """Chunk after chunk until the end or an interruption; the step reached and the state there."""
    train_chunk = chunk_trainer(config)
    while step < config.steps and not any_process(interruptions.asked):
        steps = min(config.chunk - step % config.chunk, config.steps - step)
        start = time.perf_counter()
        with CompileTime() as compiling:
            # The next state lives beside this one until its loss is known to be finite.
            chunk = functools.partial(train_chunk, state, step, steps)
            try:
                new_state, metrics = interruptions.wait_for(lambda chunk=chunk: jax.block_until_ready(chunk()))
            except KeyboardInterrupt:
                if jax.process_count() > 1:  # the others do not save with this one
                    raise
                directory.save(step, state)
                lost = "the chunk under way is lost, all before it is saved"
                raise InterruptedAtOnce(
                    f"stopped at once at step {step}: {lost}; the same command continues {directory.path}"
                ) from None
        seconds = time.perf_counter() - start - compiling.seconds
        if compiling.seconds:
            console.print(f"compiled in {compiling.seconds:.1f} s", soft_wrap=True, highlight=False)
        metrics = gathered(metrics)
        try:
            _check_finite(metrics, config, step, directory)
        except NotFiniteError:
            directory.save(step, state)
            raise
        step, state = step + steps, new_state
        lines = _lines(metrics, config, step, steps / seconds)
        directory.log(lines)
        report(step, lines)
        if step % (config.chunk * config.chunks_per_checkpoint) == 0:
            directory.save(step, state)
    return step, state


def _check_finite(metrics: Metrics, config: Config, step: int, directory: RunDirectory) -> None:
    for seed, bad_step in zip(config.all_seeds, metrics.first_bad_step):
        if bad_step >= 0:
            raise NotFiniteError(
                f"the loss of seed {seed} is not finite at step {bad_step}: try a smaller --learning-rate; "
                f"{directory.path} keeps the state of step {step}"
            )


def _lines(metrics: Metrics, config: Config, step: int, steps_per_second: float) -> list[dict[str, Any]]:
    """One line of metrics per seed."""
    columns = zip(config.all_seeds, *(np.asarray(column).tolist() for column in metrics[:3]))
    return [
        {
            "step": step,
            "seed": seed,
            "loss": loss,
            "cross_entropy": cross_entropy,
            "accuracy": accuracy,
            "steps_per_second": round(steps_per_second, 2),
        }
        for seed, loss, cross_entropy, accuracy in columns
    ]


@contextlib.contextmanager
def _progress(config: Config, console: Console) -> Iterator[Callable[[int, list[dict[str, Any]]], None]]:
    """A bar on a terminal, plain lines in a log: step, rate, mean loss and accuracy, time left."""

    def summary(lines: list[dict[str, Any]]) -> str:
        loss, accuracy = (np.mean([line[key] for line in lines]) for key in ("loss", "accuracy"))
        return f"loss {loss:.4f}  accuracy {accuracy:.2f} %  {lines[0]['steps_per_second']:.0f} steps/s"

    if console.is_terminal:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("compiling", total=config.steps)
            yield lambda step, lines: bar.update(task, completed=step, description=summary(lines))
        return

    def log(step: int, lines: list[dict[str, Any]]) -> None:
        left = (config.steps - step) / lines[0]["steps_per_second"]
        console.print(f"step {step}/{config.steps}  {summary(lines)}  {left:.0f} s left", soft_wrap=True)

    console.print("compiling", soft_wrap=True)
    yield log
