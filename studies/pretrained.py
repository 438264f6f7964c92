"""Does a pretrained language model disperse, and would another normalizer help? SmolLM2-135M, 256 to 8,192 tokens.

Another normalizer is put into its heads: all, those of one layer, the sharpest. What its heads do is read by position.
A fact is hidden in a text and asked for at its end, with an oracle that helps the rows of the question. Numbers of each
head are learned on at most 512 tokens and tested on more.

    python -m studies.texts texts
    python -m studies.pretrained --texts texts/prose.txt texts/code.txt --output results/pretrained
    python -m studies.pretrained --collect docs/data/pretrained --page docs/language_models.md

Each unit of the work leaves a CSV file, and one that is there is not computed again. It takes minutes on a GPU of
80 GB, and days on two cores, where `--quick` takes five minutes.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import polars as pl
from jaxtyping import Array, Float, Int

from softmax_jax.experiment.commands.parse import each_once, parse, within
from softmax_jax.experiment.commands.process import one_line_errors
from softmax_jax.experiment.language_models import measures
from softmax_jax.experiment.language_models.decoder import hidden, losses, weigh_by
from softmax_jax.experiment.language_models.loading import Model, load
from softmax_jax.experiment.language_models.needles import Needles, make_needles
from softmax_jax.experiment.measures.units import Unit, compute, read, settings_file, slug
from softmax_jax.files import read_text, versions, write_json
from softmax_jax.refusal import Refusal
from studies.head_numbers import FAMILIES, HeadNumbers, by_numbers, head_numbers, learned_numbers
from studies.needles import Oracle, answer
from studies.pretrained_tables import FACTS, NUMBERS, SETS, collect

PASSAGES = {1024: 24, 4096: 4, 8192: 4}
"""Passages of each text by their tokens; the loss by position serves the shorter lengths. See `Study.passages_of`."""
NEEDLES = {256: 64, 512: 64, 1024: 64, 2048: 64, 4096: 32, 8192: 24}
"""Texts with a needle, by their tokens."""
TESTED_AT = {"text": (1024, 8192), "needle": (512, 4096, 8192)}
"""Tokens of what the learned numbers are tested on."""
OTHERS = ("softmax1", "softpick", "entmax15", "top_k(k=64)")
LEARNED_AT, STEPS, BATCH, RATE = 512, 40, 8, 0.02
HELPS = {"rank": (1, 0), "temperature": (0, 1), "both": (1, 1)}
Rows = Iterator[tuple[Any, ...]]
LEARNED = " learned on "
"""Between a family of numbers and what they were learned on."""
LOOKS = "looks_softmax"
HEAD_COLUMNS = ("text", "layer", "head", "below", *measures.HEAD_MEASURES)
MASKED_COLUMNS = ("heads", "text", "length", "passage", "loss")
NEEDLE_COLUMNS = ("normalizer", "facts", "length", "sample", "heads", "help", "rows", "right", "loss")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """Options of the command line."""

    model: str = "smollm2"
    """smollm2, a GGUF file, or a directory of safetensors."""
    texts: tuple[Path, ...] = ()
    """Files of text; needles are hidden in the first."""
    output: Path = Path("results/pretrained")
    """Directory for the CSV files."""
    units: str = "*"
    """Compute only the units whose names match this pattern, such as 'needles_*'."""
    most: int = 1_000_000
    """Most passages and texts of each length, for less time."""
    collect: Path | None = None
    """Put the files of all units together in this directory, and stop."""
    page: Path | None = None
    """A Markdown page to put the tables into, between its marks, when files are put together."""
    quick: bool = False
    """Take a look in five minutes, at 256 tokens."""

    def __post_init__(self) -> None:
        within("--most", self.most, 1, 2**30, 8)
        if not self.collect:
            each_once("--texts", [path.stem for path in self.texts])


@partial(jax.jit, static_argnames=("family", "sizes", "last"))
def learn(
    parameters: Any, tokens: Int[Array, "steps batch length"], family: str, units: Array, sizes: Any, last: bool
) -> tuple[Float[Array, "layers heads"], Float[Array, " steps"]]:
    """Learns one unit of each head by Adam, from the loss of all tokens or of the last; returns the losses too."""

    def loss(units: Array, tokens: Array) -> Array:
        after, _ = hidden(parameters, sizes, tokens[:-1], by_numbers, learned_numbers(family, units))
        return losses(parameters, after[-1:], tokens[-2:]).mean() if last else losses(parameters, after, tokens).mean()

    optimizer = optax.adam(RATE)

    def step(state: Any, tokens: Array) -> tuple[Any, Array]:
        units, moments = state
        # One text at a time takes less memory.
        values, slopes = jax.lax.map(lambda text: jax.value_and_grad(loss)(units, text), tokens)
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to the integer step
            updates, moments = optimizer.update(slopes.mean(0), moments)
        return (optax.apply_updates(units, updates), moments), values.mean()

    (units, _), values = jax.lax.scan(step, (units, optimizer.init(units)), tokens)
    return units, values


class Study:
    """The units of the study of one model."""

    def __init__(self, arguments: Arguments, model: Model):
        self.output, self.model, self.parameters, self.sizes = arguments.output, model, model.parameters, model.sizes
        self.shape = (len(model.parameters["layers"]["query"]), model.sizes.heads)
        self.no_oracle = Oracle(*jnp.zeros((3, 1, *self.shape), jnp.float32))
        texts = {path.stem: model.encode(read_text(path)) for path in arguments.texts}
        cut = {name: len(tokens) * 3 // 4 for name, tokens in texts.items()}
        self.tested = {name: tokens[: cut[name]] for name, tokens in texts.items()}
        self.others = {name: tokens[cut[name] :] for name, tokens in texts.items()}
        """What is learned from."""
        self.filler = next(iter(self.others.values()))
        """What needles are hidden in."""
        quick, self.most = arguments.quick, arguments.most
        self.passages, self.needles = ({128: 2, 256: 2}, {128: 4, 256: 4}) if quick else (PASSAGES, NEEDLES)
        self.tested_at = dict.fromkeys(TESTED_AT, (256,)) if quick else TESTED_AT
        self.learned_at, self.steps, self.batch = (128, 2, 2) if quick else (LEARNED_AT, STEPS, BATCH)
        self.edges = tuple(2**power for power in range(6, max(self.passages).bit_length()))

    def units(self) -> Iterator[Unit]:
        """Yields all units, the most important first."""
        learned = [f"{family}{LEARNED}{source}" for source in ("needle", "text") for family in FAMILIES]
        yield from self.loss_units(("softmax", "adaptive"), self.passages)
        yield from (Unit(f"heads_{text}", HEAD_COLUMNS, partial(self.heads, text)) for text in self.tested)
        yield Unit(LOOKS, ("layer", "head", "weight"), self.looks)
        yield from self.needle_units(("softmax",), (1, FACTS), self.needles)
        for name in learned:
            yield Unit(f"units_{slug(name)}", ("numbers", "layer", "head", "unit"), partial(self.learned, name))
        yield from self.loss_units(list(NUMBERS)[2:], self.passages)
        for text in self.tested:
            yield Unit(f"masked_{text}", MASKED_COLUMNS, partial(self.masked, text), f"heads_{text}")
        yield from self.loss_units(learned, self.tested_at["text"])
        yield from self.needle_units(learned, (FACTS,), self.tested_at["needle"])
        yield from self.loss_units(OTHERS, self.passages)

    def loss_units(self, names: Iterable[str], lengths: Iterable[int]) -> Iterator[Unit]:
        """Yields the units of losses with each normalizer, of each text and length."""
        for name, text, length in itertools.product(names, self.tested, lengths):
            needs = f"units_{slug(name)}" if LEARNED in name else ""
            rows = partial(self.losses, name, text, length)
            yield Unit(f"losses_{slug(name)}_{text}_{length}", measures.LOSS_COLUMNS, rows, needs)

    def needle_units(self, names: Iterable[str], facts: Iterable[int], lengths: Iterable[int]) -> Iterator[Unit]:
        """Yields the units of questions, with each normalizer, number of facts and length."""
        for name, length, count in itertools.product(names, lengths, facts):
            needs = f"units_{slug(name)}" if LEARNED in name else LOOKS
            rows = partial(self.needle, name, count, length)
            yield Unit(f"needles_{slug(name)}_{count}_{length}", NEEDLE_COLUMNS, rows, needs)

    def passages_of(self, text: str, length: int) -> Int[np.ndarray, "passages length"]:
        """Returns the passages of a length, in places that --most does not move.

        None shares a token with another, but for as many more of the longest, which begin behind short ones and meet
        the next ones at higher positions: four of 8,192 tokens do not show a difference of 0.5 %.
        """
        sizes = [size for size, count in self.passages.items() for _ in range(count)]
        tokens = self.tested[text]
        if (room := (len(tokens) - sum(sizes)) // len(sizes)) < 0:
            raise Refusal(f"{text} has {len(tokens)} tokens to test, not {sum(sizes)}: give a longer text")
        starts = np.cumsum([0, *(size + room for size in sizes)])
        places = [at for at, size in zip(starts, sizes) if size == length]
        if length == max(sizes):
            behind = starts[: self.passages[min(sizes)]] + min(sizes)
            places += list(behind[:: len(behind) // len(places)])
        return np.stack([tokens[at : at + length] for at in places[: self.most]])

    def numbers(self, name: str) -> HeadNumbers:
        """Returns numbers of each head, by the name of those of all heads or of what was learned."""
        family, learned, _ = name.partition(LEARNED)
        if not learned:
            return head_numbers(self.shape, **NUMBERS[name])
        units = read(self.output / f"units_{slug(name)}.csv")["unit"].to_numpy().reshape(self.shape)
        return learned_numbers(family, jnp.asarray(units, jnp.float32))

    def losses(self, name: str, text: str, length: int) -> Rows:
        """Yields the loss by position with a normalizer in all heads."""
        numbers, weigh = (None, weigh_by(name)) if name in OTHERS else (self.numbers(name), by_numbers)
        tokens = self.passages_of(text, length)
        passage_losses = measures.passage_losses(self.parameters, tokens, numbers, self.sizes, weigh, together(length))
        return measures.loss_rows(name, text, passage_losses, self.edges)

    def heads(self, text: str) -> Rows:
        """Yields what every head does by position, the mean over passages."""
        tokens = self.passages_of(text, max(self.passages))
        head_measures = measures.head_measures(self.parameters, tokens, self.sizes, self.edges)
        means = {name: each.mean(0, keepdims=True) for name, each in head_measures.items()}
        return ((text, *row[2:]) for row in measures.head_rows(text, means, self.edges))

    def masked(self, text: str) -> Rows:
        """Yields the loss with the adaptive temperature in no head, a layer, or a quarter of heads by entropy."""
        length, layer = min(self.passages), np.arange(self.shape[0])[:, None]
        heads = read(self.output / f"heads_{text}.csv").filter(below=length).sort("layer", "head")
        quarter = self.ranks(heads["entropy"]) * 4 // len(heads)
        masks = {"none": quarter < 0}
        masks |= {f"layer {index}": np.broadcast_to(layer == index, self.shape) for index in range(self.shape[0])}
        masks |= {f"quarter {1 + index}": quarter == index for index in range(4)}
        tokens = self.passages_of(text, length)[:8]
        for name, mask in masks.items():
            numbers = head_numbers(self.shape)._replace(adaptive=jnp.asarray(mask, jnp.float32))
            passage_losses = measures.passage_losses(
                self.parameters, tokens, numbers, self.sizes, by_numbers, len(tokens)
            )
            yield from (
                (name, text, length, place, loss) for place, loss in enumerate(np.asarray(passage_losses.mean(1)))
            )

    def answers(self, made: Needles, name: str, oracles: Oracle) -> tuple[np.ndarray, np.ndarray]:
        """Returns the log-probabilities of candidates, and the weights of the answer, under numbers of the heads."""
        given, at_once = (made.tokens, made.place, self.numbers(name), oracles), together(made.tokens.shape[1])
        text_options = {"candidates": made.candidates, "question": made.question}
        return jax.device_get(answer(self.parameters, *given, **text_options, sizes=self.sizes, together=at_once))

    def looks(self) -> Rows:
        """Yields the weight that each head gives to the answer, in the last row of a question."""
        length, texts = next(iter(self.needles.items()))
        made = make_needles(self.model, self.filler, length, texts, 1)
        _, weights = self.answers(made, "softmax", self.no_oracle)
        yield from ((*place, weight) for place, weight in np.ndenumerate(weights.mean(0)))

    def needle(self, name: str, facts: int, length: int) -> Rows:
        """Yields answers to questions under numbers of the heads; those of softmax with and without the oracle."""
        texts = min(self.needles[length], self.most)
        made = make_needles(self.model, self.filler, length, texts, 0, facts)
        kinds = {(0, "neither", "none"): self.no_oracle} | (self.oracles() if name == "softmax" else {})
        log_probabilities, _ = self.answers(
            made, name, jax.tree.map(lambda *each: jnp.concatenate(each), *kinds.values())
        )
        for text, (place, kind) in itertools.product(range(texts), enumerate(kinds)):
            logs, right = log_probabilities[text, place], made.answer[text]
            yield name, facts, length, text, *kind, int(logs.argmax() == right), -logs[right]

    def oracles(self) -> dict[tuple[int, str, str], Oracle]:
        """Returns each oracle by the number of heads, the help and the rows that it is given to."""
        rank, oracles = self.ranks(-read(self.output / f"{LOOKS}.csv")["weight"]), {}
        for heads, by, rows in itertools.product(SETS, HELPS, ("all", "last")):
            flags = (*HELPS[by], rows == "last")
            oracles[heads, by, rows] = Oracle(
                *(jnp.asarray(flag * (rank < heads)[None], jnp.float32) for flag in flags)
            )
        return oracles

    def ranks(self, values: pl.Series) -> Int[np.ndarray, "layers heads"]:
        """Returns the rank of every head by a number, 0 for the least."""
        return values.rank("ordinal").to_numpy().astype(np.int64).reshape(self.shape) - 1

    def learned(self, name: str) -> Rows:
        """Yields one number of each head, learned on short texts with a needle, or on text that has none."""
        family, source = name.split(LEARNED)
        shape, length = (self.steps, self.batch), self.learned_at
        if source == "needle":
            made = make_needles(self.model, self.filler, length, self.steps * self.batch, 2)
            tokens = np.concatenate([made.tokens, made.candidates[made.answer][:, None]], 1).reshape(*shape, -1)
        else:
            random = np.random.default_rng(3)
            starts = [random.integers(len(text) - length - 1, size=shape) for text in self.others.values()]
            cut = [text[at[..., None] + np.arange(length + 1)] for text, at in zip(self.others.values(), starts)]
            tokens = np.where((np.arange(self.batch) % 2 == 0)[None, :, None], cut[0], cut[-1])
        zeros = jnp.zeros(self.shape, jnp.float32)
        units, values = learn(self.parameters, tokens, family, zeros, self.sizes, source == "needle")
        print(f"  loss of the first 5 steps {values[:5].mean():.4f}, of the last 5 {values[-5:].mean():.4f}")
        return ((name, *place, unit) for place, unit in np.ndenumerate(units))


def together(length: int) -> int:
    """Returns how many texts of a length are computed together."""
    return min(16, max(1, 2**23 // length**2))


def study(arguments: Arguments) -> None:
    """Computes the units that are not there yet, or puts the files of units together."""
    if arguments.collect:
        return collect(arguments.output, arguments.collect, arguments.page)
    made = {"model": arguments.model, "texts": [path.name for path in arguments.texts], "quick": arguments.quick}
    known = settings_file(arguments.output, made, "units of another model, other texts or --quick")
    units = [unit for unit in Study(arguments, load(arguments.model)).units() if fnmatch(unit.name, arguments.units)]
    if not units:
        raise Refusal(f"--units is {arguments.units!r}: it matches no unit; give a pattern such as 'losses_*'")
    write_json(known, versions() | made)
    return compute(units, arguments.output)


if __name__ == "__main__":
    arguments = parse(Arguments, description=__doc__)
    with one_line_errors():
        study(arguments)
