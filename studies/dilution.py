"""Does a model fail by rank or by dilution, and does that say where a law of β by length helps?

    python -m studies.texts texts
    python -m studies.dilution --texts texts/prose.txt texts/code.txt --output results/dilution
    python -m studies.dilution --output results/dilution --collect docs/data/dilution

A row is *outranked* where another entry than the one asked for has the largest weight, and *diluted* where the largest
weight is below one half. A wrong answer is put down to rank, dilution, both or neither by these two, in the heads that
write most of the answer on other texts: u · W_O v · weight. Then rows of the same heads are changed, and what is found
more and what is lost are counted.

Asked are SmolLM2-135M about facts in texts, apart and near copies; small transformers that are trained here on 16
items and asked about up to 64 times as many, one of them to count; the shipped decoder of CLRS-Text; and the shipped
heads of max retrieval. Each cell leaves a CSV file, and one that is there is not computed again. The shipped heads take
five minutes of processor time, all cells about twenty, `--quick` little more than one.
"""

import dataclasses
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Shaped

from softmax_jax.experiment.commands.parse import each_once, parse
from softmax_jax.experiment.commands.process import one_line_errors
from softmax_jax.experiment.configs import load_preset
from softmax_jax.experiment.language_models.loading import load
from softmax_jax.experiment.language_models.needles import NAMES, WORDS
from softmax_jax.experiment.measures.units import Unit, collect, compute, read, settings_file, slug
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.retrieval import MultiQuery, Retrieval, Sort, TransformerMaxRetrieval
from softmax_jax.experiment.training.config import Config, changed
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.experiment.training.train import train
from softmax_jax.files import read_text, versions, write_json
from studies import front
from studies.clrs_text.task import ClrsText
from studies.common import CHECKPOINTS
from studies.dilution_readers import (
    HELPS,
    Asked,
    Change,
    Count,
    Each,
    Reader,
    ask_clrs,
    ask_decoder,
    ask_head,
    ask_transformer,
    change,
    draw_facts,
    draw_instances,
    draw_sequence,
    draw_sets,
    law_numbers,
)
from studies.dilution_tables import CLASSES
from studies.head_numbers import head_numbers

HEADS = (1, 3, 5, 20)
"""Heads that are changed, besides all."""
SMALLEST = 128
"""Tokens at which the law leaves the rows of SmolLM2 as they are."""
TASKS = (MultiQuery, TransformerMaxRetrieval, Sort, Count)
"""Tasks of the small transformers."""
ALGORITHMS = ("minimum", "binary_search")
"""Algorithms of CLRS-Text that answer with a node."""
TRAINED_AT, QUERIES = 16, 16
COLUMNS = (
    *("family", "seed", "length", "text", "heads", "asked", "missed", *CLASSES, "first", "weight"),
    *(f"{help_name}_{count}" for help_name in HELPS for count in ("gained", "lost")),
)
"""Of a text and some heads: questions, those answered wrong and why, the share of the heads that give what is asked for
the largest weight, that weight, and the questions that only one of both answers right, with each change and without."""
Rows = Iterator[tuple[Any, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """Options of the command line."""

    texts: tuple[Path, ...] = ()
    """Files of text that facts are hidden in; without them SmolLM2 is left out."""
    output: Path = Path("results/dilution")
    """Directory for the CSV files of the cells and the trained models."""
    collect: Path | None = None
    """Put the files of all cells together in this directory, and stop."""
    quick: bool = False
    """Take a look in a few minutes: short texts, one trained task of few steps, few sets."""

    def __post_init__(self) -> None:
        if self.texts:
            each_once("--texts", [path.stem for path in self.texts])


def fact_readers(arguments: Arguments) -> Iterator[Reader]:
    """Yields SmolLM2, asked for facts apart and for near copies."""
    model = load("smollm2")
    texts = [model.encode(read_text(path)) for path in arguments.texts]

    def draw(near: bool, length: int, index: int, tested: bool) -> Any:
        halves = np.array_split(texts[index % len(texts)], 2)
        words, names = (front.WORDS, front.NAMES) if tested else (WORDS, NAMES)
        return draw_facts(model, halves[tested], length, index, near, words, names)

    layers = len(model.parameters["layers"]["query"])
    for family, near in {"facts": False, "near copies": True}.items():
        yield Reader(
            family=family,
            shape=(layers, model.sizes.heads),
            reference=SMALLEST,
            lengths=(256,) if arguments.quick else (256, 512, 1024),
            models=lambda: [model.parameters],
            seeds=1,
            texts=2 if arguments.quick else 8,
            draw=partial(draw, near),
            ask=partial(ask_decoder, sizes=model.sizes),
        )


def keys_of(length: int, index: int, tested: bool) -> Any:
    """Returns the key of a test set, apart from those of training."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(2**20 + tested), length), index)


def trained_reader(arguments: Arguments, kind: type[Retrieval]) -> Reader:
    """Returns small transformers that are trained on one retrieval task, under softmax."""
    steps, seeds = (200, 1) if arguments.quick else (1_500, 3)
    preset = load_preset(MultiQuery.name)  # those of the other tasks have the same settings
    config = changed(preset, length=TRAINED_AT, queries=QUERIES, steps=steps, seeds=seeds, chunk=100)
    assert isinstance(config.task, Retrieval)
    task = kind(**dataclasses.asdict(config.task))
    config = dataclasses.replace(config, task=task)
    sizes = {field: getattr(task, field) for field in ("queries", "classes", "hidden", "heads", "layers")}

    def models() -> list[Any]:
        state = train(config, arguments.output / "runs" / kind.name, plain_console())
        return by_seed(config, state.parameters)

    return Reader(
        family=kind.name,
        shape=(task.layers, task.heads),
        reference=TRAINED_AT + QUERIES,
        lengths=(TRAINED_AT, 64) if arguments.quick else (TRAINED_AT, 64, 256, 1024),
        models=models,
        seeds=seeds,
        texts=2 if arguments.quick else 8,
        draw=lambda *place: draw_sequence(task, place[0], keys_of(*place)),
        ask=partial(ask_transformer, task=MultiQuery(**sizes)),  # one program for all tasks
    )


def clrs_reader(arguments: Arguments, algorithm: str) -> Reader:
    """Returns the decoder that is shipped, asked by an algorithm of CLRS-Text for one of up to four times its nodes."""
    config, parameters = load_checkpoint(SHIPPED / ClrsText.name)
    task = config.task
    assert isinstance(task, ClrsText)
    question, _ = task.slots(algorithm, task.longest)
    return Reader(
        family=algorithm,
        shape=(task.layers, task.heads),
        reference=question,
        lengths=(task.longest, 48) if arguments.quick else (task.longest, 40, 48, 64, 128),
        models=lambda: by_seed(config, parameters),
        seeds=1,
        texts=2 if arguments.quick else 8,
        draw=lambda *place: draw_instances(task, algorithm, place[0], keys_of(*place)),
        ask=partial(ask_clrs, task=task),
    )


def head_reader(arguments: Arguments, name: str) -> Reader:
    """Returns the heads of max retrieval that are shipped under a name."""
    config, parameters = load_checkpoint(SHIPPED / name)
    task = config.task
    assert isinstance(task, MaxRetrieval)
    return Reader(
        family=name,
        shape=(1, 1),
        reference=task.longest,
        lengths=(16, 64) if arguments.quick else (16, 64, 256, 1024, 4096, 16384),
        models=lambda: by_seed(config, parameters),
        seeds=1 if arguments.quick else 5,
        texts=2 if arguments.quick else 8,
        draw=lambda *place: draw_sets(task, place[0], keys_of(*place)),
        ask=partial(ask_head, task=MaxRetrieval(width=task.width, matmul=task.matmul, rounded=task.rounded)),
    )


def by_seed(config: Config, parameters: Any) -> list[Any]:
    """Returns the parameters of each seed."""
    return [jax.tree.map(lambda leaf, seed=seed: jnp.asarray(leaf[seed]), parameters) for seed in range(config.seeds)]


def largest_heads(write: Each, heads: int) -> Each:
    """Returns 1 for the heads that write most, 0 for all others."""
    return (write.ravel().argsort().argsort() >= write.size - heads).reshape(write.shape).astype(np.float32)


def heads_mean(values: Shaped[np.ndarray, "questions layers heads"], shares: Each) -> Float[np.ndarray, " questions"]:
    """Returns the mean over the heads, weighted by what they write."""
    return (values * shares).sum((1, 2)) / shares.sum()


def classes_of(asked: Asked, shares: Each) -> dict[str, Bool[np.ndarray, " questions"]]:
    """Returns which questions fall into each class, by the heads that hold more than half of what is written."""
    weight, largest = np.asarray(asked.weight), np.asarray(asked.largest)
    outranked, diluted = (heads_mean(flags, shares) > 0.5 for flags in (weight < largest, largest < 0.5))
    return {name: (outranked == ranks) & (diluted == dilutes) for name, (ranks, dilutes) in CLASSES.items()}


class Study:
    """The cells of the study."""

    def __init__(self, output: Path, readers: list[Reader]):
        self.output, self.readers = output, readers
        self.models = {reader.family: cache(reader.models) for reader in readers}

    def units(self) -> Iterator[Unit]:
        """Yields all cells: the first model of each family, then the others, so that a part of the work is balanced."""
        for seed in range(max(reader.seeds for reader in self.readers)):
            readers = [reader for reader in self.readers if seed < reader.seeds]
            for place in range(max(len(reader.lengths) for reader in readers)):
                for reader in (each for each in readers if place < len(each.lengths)):
                    name = heads_name(reader, seed)
                    if place == 0:
                        heads = partial(self.heads, reader, seed)
                        yield Unit(name, ("family", "seed", "layer", "head", "write"), heads)
                    length = reader.lengths[-1 - place]  # the longest, which have most misses, first
                    rows = partial(self.cell, reader, seed, length)
                    yield Unit(slug(f"cells {reader.family} {seed} {length}"), COLUMNS, rows, name)

    def heads(self, reader: Reader, seed: int) -> Rows:
        """Yields what each head writes of the answer, the mean over questions in short texts that are not tested."""
        model, numbers = self.models[reader.family]()[seed], head_numbers(reader.shape)
        plain = jax.tree.map(lambda array: array[None], change("none", np.zeros(reader.shape), reader.reference))
        texts = (reader.draw(reader.lengths[0], index, False) for index in range(reader.texts))
        writes = [np.asarray(reader.ask(model, text, numbers, plain).write).mean(0) for text in texts]
        for place, write in np.ndenumerate(np.mean(writes, 0)):
            yield reader.family, seed, *place, f"{write:.6g}"

    def cell(self, reader: Reader, seed: int, length: int) -> Rows:
        """Yields the rows of all texts of a length."""
        model, plain = self.models[reader.family]()[seed], head_numbers(reader.shape)
        heads = read(self.output / f"{heads_name(reader, seed)}.csv")
        write = heads["write"].cast(pl.Float64).to_numpy().reshape(reader.shape)
        everywhere = law_numbers(np.ones(reader.shape, np.float32), reader.reference)
        counts = sorted({count for count in HEADS if count < write.size} | {write.size})
        masks = {count: largest_heads(write, count) for count in counts}
        changes = [change("none", masks[write.size], reader.reference)]
        changes += [change(help_name, mask, reader.reference) for mask in masks.values() for help_name in HELPS]
        stacked: Change = jax.tree.map(lambda *each: jnp.stack(each), *changes)
        law = jax.tree.map(lambda array: array[-1:], stacked)  # in all heads, and so in all rows
        for index in range(reader.texts):
            text = reader.draw(length, index, True)
            asked = jax.tree.map(np.array, reader.ask(model, text, plain, stacked))
            right, helped = asked.right[0], asked.right[1:]
            if reader.shape[0] > 1:  # in one layer no rows count but those that ask
                helped[-1] = reader.ask(model, text, everywhere, law).right[0]
            for (count, mask), each in zip(masks.items(), helped.reshape(len(masks), len(HELPS), -1)):
                shares = mask * np.maximum(write, 0)
                classes = [(chosen & ~right).sum() for chosen in classes_of(asked, shares).values()]
                first = heads_mean(asked.weight >= asked.largest, shares).mean()
                weight = heads_mean(asked.weight, shares).mean()
                nets = [number for one in each for number in ((one & ~right).sum(), (right & ~one).sum())]
                missed = len(right), (~right).sum(), *classes
                yield reader.family, seed, length, index, count, *missed, f"{first:.4f}", f"{weight:.4f}", *nets


def heads_name(reader: Reader, seed: int) -> str:
    """Returns the name of the file of a model's heads."""
    return slug(f"heads {reader.family} {seed}")


def study(arguments: Arguments) -> None:
    """Computes the cells that are not there yet, or puts their files together."""
    if arguments.collect:
        collect(arguments.output, arguments.collect, ("cells", "heads"))
        return None
    made = {"texts": [path.name for path in arguments.texts], "quick": arguments.quick}
    known = settings_file(arguments.output, made, "cells of other texts or --quick")
    write_json(known, versions() | made)
    heads = [head_reader(arguments, path.name) for path in CHECKPOINTS]
    readers = list(fact_readers(arguments)) if arguments.texts else []
    readers += [trained_reader(arguments, kind) for kind in TASKS[: 1 if arguments.quick else None]]
    readers += [clrs_reader(arguments, algorithm) for algorithm in ALGORITHMS]
    units = [
        unit for each in (heads, readers) for unit in Study(arguments.output, each).units()
    ]  # the quick ones first
    return compute(units, arguments.output)


if __name__ == "__main__":
    arguments = parse(Arguments, description=__doc__)
    with one_line_errors():
        study(arguments)
