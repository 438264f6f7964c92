"""What does tuning under another normalizer gain? Small decoders on CLRS-Text, from several base models.

    python -m studies.clrs_text.study --workdir runs/clrs_text_study

Base models train under softmax, side by side. From each, two runs for every regime train on for a tenth of its steps,
on batches of their own. Base models are tested under other regimes too ("swapped"), tuned ones under their own
("tuned"): seven algorithms at the lengths of the paper. One program tunes every regime, because a regime is data: the
numbers of β = constant + slope·log n + adaptive·β(H) for each head, and which of them train. Two regimes tune at once.

Nothing here draws, so it runs where there is an accelerator and no browser. It writes answers.csv and numbers.csv after
each regime and continues where it was stopped; `studies.clrs_text.page` makes tables and the picture from these files.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from flax import nnx
from jaxtyping import Array, Bool
from rich.console import Console

from softmax_jax.experiment.commands import process
from softmax_jax.experiment.commands.output import check_directory
from softmax_jax.experiment.commands.parse import UnlessGiven, each_once, parse, within
from softmax_jax.experiment.commands.process import KEPT
from softmax_jax.experiment.configs import load_preset
from softmax_jax.experiment.measures.frames import read_csv
from softmax_jax.experiment.training.config import Config, changed, settings_of
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.experiment.training.run import Parameters, TrainState, build_run
from softmax_jax.experiment.training.train import train
from softmax_jax.experiment.training.trainer import train_steps
from softmax_jax.files import versions, write_csv, write_json
from softmax_jax.normalizers.checks import one_of
from softmax_jax.normalizers.execution import on_cpu
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.refusal import NotFiniteError, Refusal
from studies.clrs_text.decoder import Decoder
from studies.clrs_text.regimes import NUMBERS, REGIMES, SOFTMAX, SWAPPED, TUNED, HeadScale, data_of, with_head_numbers
from studies.clrs_text.task import TEST_LENGTHS, TEST_SETS, ClrsText, Purpose

TUNED_STEPS, TUNED_RATE = 10, 0.3
"""Tuning takes this part of the steps, at this share of the learning rate, which falls to 0."""
PER_BASE = 4
"""Models of a stage from each base model: two runs under each of two regimes."""
AT_ONCE = 5
"""Test sets of every algorithm and length that are read at once."""
KEYS = ("stage", "regime", "seed", "run")
ANSWERS = (*KEYS, "algorithm", "n", "right", "sets")
HEADS = (*KEYS, "layer", "head", *NUMBERS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """Options of the command line."""

    seeds: int = 6
    """Base models."""
    together: int = 6
    """Base models that train side by side, with all their tuning runs, before the next ones start."""
    regimes: tuple[str, ...] = tuple(REGIMES)
    """What to tune under, in this order."""
    sets: int = TEST_SETS
    """Test sets of every algorithm and length of each base model."""
    steps: UnlessGiven[int | None] = None
    """Training steps of each base model; those of the preset by default."""
    precision: Literal["highest", "tensorfloat32"] = "highest"
    """Of the products in training, on an accelerator that has both; tests have the highest."""
    workdir: Path = Path("runs") / "clrs_text_study"
    """Directory for the runs and the results; what is finished there is kept."""

    def __post_init__(self) -> None:
        within("--seeds", self.seeds, 1, 2**10, 6)
        within("--together", self.together, 1, self.seeds, min(6, self.seeds))
        if self.seeds % self.together:
            raise Refusal(f"--seeds is {self.seeds}: it must be a multiple of --together, {self.together}")
        within("--sets", self.sets, AT_ONCE, 2**14, TEST_SETS)
        if self.sets % AT_ONCE:
            raise Refusal(f"--sets is {self.sets}: it must be a multiple of {AT_ONCE}, such as {TEST_SETS}")
        if self.steps is not None:
            within("--steps", self.steps, TUNED_STEPS, 2**31 - 1, 1000)
        each_once("--regimes", self.regimes)
        for name in self.regimes:
            one_of("--regimes", name, REGIMES)
        check_directory("--workdir", self.workdir)

    def base(self, first_seed: int) -> Config:
        """Returns the settings of base models that train side by side."""
        preset = load_preset(ClrsText.name)
        base_settings = {"first_seed": first_seed, "seeds": self.together, "steps": self.steps or preset.steps}
        return changed(preset, **base_settings, **({} if on_cpu() else {"chunk": 750, "chunks_per_checkpoint": 100}))


def tuning(base: Config) -> Config:
    """Returns the settings of tuning; a model's own regime and batches are no settings."""
    steps, rate = max(1, base.steps // TUNED_STEPS), TUNED_RATE * base.learning_rate
    return changed(base, steps=steps, learning_rate=rate, schedule="cosine_decay_schedule")


def task_of(config: Config) -> ClrsText:
    """Returns the task of a run, known to be CLRS-Text."""
    assert isinstance(config.task, ClrsText)
    return config.task


@functools.cache
def structure_of(task: ClrsText) -> nnx.GraphDef:
    """Returns the structure of the decoder whose heads have numbers of their own."""
    sizes: dict[str, Any] = {"hidden": task.hidden, "heads": task.heads, "layers": task.layers}
    normalizer = Normalizer(jax.nn.softmax, HeadScale())

    def build() -> Decoder:
        return Decoder(task.vocabulary.features(), normalizer, NUMBERS, **sizes, rngs=nnx.Rngs(0))

    return nnx.split(nnx.eval_shape(build))[0]


def for_each_model(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function of the same arguments for many models: side by side, or one by one on CPU cores."""
    return (
        (lambda *arguments: jax.lax.map(lambda model_arguments: function(*model_arguments), arguments))
        if on_cpu()
        else jax.vmap(function)
    )


class Programs:
    """The two programs of a study, compiled beside what else runs: one tunes, one tests."""

    def __init__(self, base: Config, models: int, sets: int):
        self.base, self.config, self.task = base, tuning(base), task_of(base)
        self.tested = dataclasses.replace(self.task, lengths=TEST_LENGTHS, batch=AT_ONCE)
        self.batches = sets // AT_ONCE
        like = jax.eval_shape(self._decoder)
        parameters = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((models, *leaf.shape), leaf.dtype), like)
        whole, regimes = jax.ShapeDtypeStruct((models,), jnp.int32), data_of([SOFTMAX] * models)
        pool = ThreadPoolExecutor(2)
        self._tune = pool.submit(lambda: jax.jit(self._tuned).lower(parameters, whole, whole, *regimes).compile())
        self._test = pool.submit(lambda: jax.jit(self._right).lower(parameters, whole).compile())
        pool.shutdown(wait=False)

    def tune(self, parameters: Parameters, models: Sequence["Model"]) -> Parameters:
        """Returns the parameters of these models after tuning.

        Raises NotFiniteError for a loss that is not finite.
        """
        seeds, runs = (np.array([getattr(model, name) for model in models], np.int32) for name in ("seed", "run"))
        first = (self.base.steps + self.config.steps * runs).astype(np.int32)
        tuned, bad = self._tune.result()(parameters, seeds, first, *data_of([model.regime for model in models]))
        if (np.asarray(bad) >= 0).any():
            raise NotFiniteError("the loss of a tuned model is not finite: try a smaller --learning-rate")
        return tuned

    def right(self, parameters: Parameters, seeds: Sequence[int]) -> Bool[np.ndarray, "models texts sets"]:
        """Returns whether each answer is right to its end; texts as `ClrsText.right` has them."""
        right = np.asarray(self._test.result()(parameters, np.array(seeds, np.int32)))
        return right.transpose(1, 3, 0, 2).reshape(right.shape[1], right.shape[3], -1)

    def _decoder(self) -> Parameters:
        """Returns the parameters of a decoder whose heads have numbers of their own, for their shapes."""
        model = self.task.build(SOFTMAX, nnx.Rngs(0))
        parameters = nnx.to_pure_dict(nnx.state(model, nnx.Param))
        return with_head_numbers(parameters, self.task.heads, jnp.zeros(len(NUMBERS), jnp.float32))

    def _tuned(
        self, parameters: Parameters, seeds: Array, first: Array, values: Array, learned: Array
    ) -> tuple[Parameters, Array]:
        structure, heads, run = structure_of(self.task), self.task.heads, build_run(self.config)

        def tune_model(
            parameters: Parameters, seed: Array, first: Array, values: Array, learned: Array
        ) -> tuple[Parameters, Array]:
            def loss(parameters: Parameters, batch: Any, dropout_key: Any) -> tuple[Array, Array]:
                model = nnx.merge(structure, with_head_numbers(parameters, heads, values, learned))
                scores = self.task.scores(model, batch, None)
                return self.task.loss(scores, batch), self.task.accuracy(scores, batch)

            parameters = with_head_numbers(parameters, heads, values)
            state = TrainState(parameters, run.optimizer.init(parameters), seed)
            gradient, steps = jax.value_and_grad(loss, has_aux=True), self.config.steps
            state, metrics = train_steps(run, gradient, state, first_step=first, steps=steps)
            return with_head_numbers(state.parameters, heads, values, learned), metrics.first_bad_step

        return for_each_model(tune_model)(parameters, seeds, first, values, learned)

    def _right(self, parameters: Parameters, seeds: Array) -> Bool[Array, "batches models sets texts"]:
        structure, task = structure_of(self.task), self.tested

        def at_step(step: Array) -> Bool[Array, "models sets texts"]:
            def answer_model(parameters: Parameters, seed: Array) -> Bool[Array, "sets texts"]:
                batch = task.draw_batch(Purpose.TEST, seed, step)
                return task.right(task.scores(nnx.merge(structure, parameters), batch, None), batch)

            return for_each_model(answer_model)(parameters, seeds)

        with jax.default_matmul_precision("highest"):
            return jax.lax.map(at_step, jnp.arange(self.batches, dtype=jnp.int32))


class Model(NamedTuple):
    """The stage, regime, seed and run that a row of results belongs to."""

    stage: str
    regime: str
    seed: int
    run: int


def stages(arguments: Arguments, seeds: Sequence[int]) -> Iterator[tuple[str, list[Model]]]:
    """Yields the name and the models of each stage of some seeds: as many models in every stage, for one program.

    Two regimes tune at once, a last one alone with twice the runs. Base models are tested after the second stage.
    """
    pairs = [arguments.regimes[place : place + 2] for place in range(0, len(arguments.regimes), 2)]
    tunings = [(TUNED, names, PER_BASE // len(names)) for names in pairs]
    starts = [name for name in arguments.regimes if name != "constant"][:PER_BASE]  # as that starts as softmax
    swapped = (SWAPPED, tuple(starts + starts[:1] * (PER_BASE - len(starts))), 1)
    for stage, names, runs in (*tunings[:2], swapped, *tunings[2:]):
        models = [Model(stage, name, seed, run) for name in names for seed in seeds for run in range(runs)]
        yield "_".join([stage, *dict.fromkeys(names)]), models


def kept(path: Path, compute: Callable[[], dict[str, pl.DataFrame]]) -> dict[str, pl.DataFrame]:
    """Returns the frames of a directory, which are computed once."""
    if not (path / "numbers.csv").exists():
        for name, frame in compute().items():  # the numbers last
            write_csv(path / f"{name}.csv", frame.columns, frame.rows())
    return {name: read_csv(path / f"{name}.csv") for name in ("answers", "numbers")}


def measured(programs: Programs, base: Parameters, seeds: Sequence[int], models: list[Model]) -> dict[str, Any]:
    """Returns the answers and the head numbers of the models of a stage, tuned first where it says so."""
    rows = np.array([seeds.index(model.seed) for model in models])
    parameters = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[rows]), base)
    values, _ = data_of([model.regime for model in models])
    heads = programs.task.heads
    parameters = jax.vmap(lambda model_parameters, numbers: with_head_numbers(model_parameters, heads, numbers))(
        parameters, values
    )
    if models[0].stage == TUNED:
        parameters = programs.tune(parameters, models)
    right = programs.right(parameters, [model.seed for model in models])
    texts = [(name, n) for name in programs.tested.algorithms for n in programs.tested.lengths]
    answers = [
        (*model, *text, int(right[index, place].sum()), right.shape[2])
        for index, model in enumerate(models)
        for place, text in enumerate(texts)
    ]
    by_layer = [jax.tree.map(np.asarray, block["attention"]) for block in parameters["blocks"].values()]
    numbers = [
        (*model, layer, head, *(round(float(layer_numbers[name][index, head, 0, 0]), 5) for name in NUMBERS))
        for index, model in enumerate(models)
        for layer, layer_numbers in enumerate(by_layer)
        for head in range(heads)
    ]
    frames = {"answers": (ANSWERS, answers), "numbers": (HEADS, numbers)}
    return {name: pl.DataFrame(rows, columns, orient="row") for name, (columns, rows) in frames.items()}


def study(arguments: Arguments) -> None:
    """Trains, tunes and tests what is not there yet, and writes what there is after every stage."""
    KEPT.keep()
    jax.config.update("jax_default_matmul_precision", arguments.precision)
    console = plain_console()
    made = {"settings": settings_of(arguments.base(0)), "versions": versions(), "precision": arguments.precision}
    write_json(arguments.workdir / "study.json", made | {"tuned_steps": tuning(arguments.base(0)).steps})
    programs, stage_frames = None, []
    for first in range(0, arguments.seeds, arguments.together):
        config, directory = arguments.base(first), arguments.workdir / f"seeds_from_{first}"
        programs = programs or Programs(config, PER_BASE * arguments.together, arguments.sets)
        base = train(config, directory / "base", console).parameters
        for name, models in stages(arguments, config.all_seeds):
            measure = functools.partial(measured, programs, base, config.all_seeds, models)
            stage_frames.append(kept(directory / name, measure))
            write(arguments.workdir, stage_frames, console)


def write(workdir: Path, stage_frames: Sequence[dict[str, pl.DataFrame]], console: Console) -> None:
    """Writes the answers and the numbers of all stages so far, and prints the newest accuracies."""
    for name in stage_frames[0]:
        frame = pl.concat([frames[name] for frames in stage_frames]).unique(maintain_order=True)
        write_csv(workdir / f"{name}.csv", frame.columns, frame.rows())
    newest = stage_frames[-1]["answers"].group_by("stage", "regime", maintain_order=True)
    for stage, regime, right, sets in newest.agg(pl.sum("right", "sets")).rows():
        console.print(f"{stage} {regime}: {100 * right / sets:.2f} % of all answers", highlight=False)


if __name__ == "__main__":
    with process.command():
        study(parse(Arguments, description=__doc__))
