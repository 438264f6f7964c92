"""Tables of what `studies.pretrained` measured, from the files of its units."""

import itertools
from pathlib import Path

import numpy as np
import polars as pl

from softmax_jax.experiment.language_models import measures
from softmax_jax.experiment.measures import units
from softmax_jax.experiment.report.tables import markdown_table, put_into
from softmax_jax.files import read_text, write_whole
from softmax_jax.refusal import Refusal

FACTS = 8
"""Needles in a text, of which one is asked for, where one alone is always found."""
NUMBERS = {
    "softmax": {},
    "adaptive": {"adaptive": 1.0},
    "ssmax(s=0.18)": {"beta": 0.0, "s": 0.18},
    "temperature(0.95)": {"beta": 1 / 0.95},
    "temperature(1.1)": {"beta": 1 / 1.1},
    "grok2": {"beta": 0.0, "s": 1 / np.log(1024), "low": 1.0},
    "1 + 0.1 log+(n / 1024)": {"beta": 1 - 0.1 * np.log(1024), "s": 0.1, "low": 1.0},
    "first token halved": {"first": -np.log(2)},
}
"""Normalizers that are softmax with numbers of each head, which one program computes."""
SETS = (5, 20, 1_000_000)
"""Heads that the oracle helps: those that give the answer most weight."""
CELLS = tuple(itertools.product(("prose", "code"), (1024, 8192)))
"""Text and bin of the columns of the table of losses."""
NEEDLE_LENGTHS = (256, 1024, 4096)
"""Tokens of the columns of the table of questions; the file has more."""
KINDS = ("losses", "heads", "looks", "needles", "units", "masked")
"""How the names of units begin; the files of a kind are put together. The units of `units` are those of each head."""


def losses_table(losses: pl.DataFrame) -> str:
    """Returns the loss under softmax and what the normalizers of `NUMBERS` cost more, in nats a token, by `CELLS`.

    The head of a column says of how many passages the costs are.
    """
    rows, counts = {}, {}
    for name, text, below, loss, more, passages, half in measures.paired_losses(losses).rows():
        cell = f"{loss:.3f}" if name == "softmax" else f"{more:+.3f} ± {half:.3f}"
        rows.setdefault(name, {})[text, below] = cell
        if name in NUMBERS and name != "softmax":
            counts.setdefault((text, below), set()).add(passages)
    cells = [[name, *(rows[name].get(cell, "–") for cell in CELLS)] for name in NUMBERS]
    header = [f"{called(cell)} ({' or '.join(map(str, sorted(counts[cell])))} passages)" for cell in CELLS]
    return markdown_table(["normalizer", *header], cells)


def called(cell: tuple[str, int]) -> str:
    """Returns the text and the tokens of a bin as the head of a column."""
    text, below = cell
    return f"{text}, {below // 2:,} – {below:,}"


def needles_table(needles: pl.DataFrame) -> str:
    """Returns the questions about one of several facts that are answered right, by length and helped heads.

    The help is the temperature that gives the answer most weight in the last row of the question.
    """
    shown = pl.col("rows").is_in(["last", "none"]) & pl.col("length").is_in(NEEDLE_LENGTHS)
    questions = needles.filter(shown, facts=FACTS, normalizer="softmax").sort("length")
    counts = questions.group_by("heads", "help", "length", maintain_order=True).agg(pl.sum("right"), pl.len())
    right = {tuple(key): str(value) for *key, value, _ in counts.rows()}
    texts = dict(counts.filter(heads=0).select("length", "len").rows())
    kinds = {"no help": (0, "neither")}
    kinds |= {f"{'all' if heads == SETS[-1] else heads} heads": (heads, "temperature") for heads in SETS}
    cells = [[kind, *(right[*key, length] for length in texts)] for kind, key in kinds.items()]
    header = (f"{length:,} tokens (of {count})" for length, count in texts.items())
    return markdown_table(["help", *header], cells)


def collect(output: Path, directory: Path, page: Path | None) -> None:
    """Writes one CSV file of each kind of unit, and the tables of those that are there into the page."""
    kinds = [kind for kind in KINDS if any(output.glob(f"{kind}_*.csv"))]
    if not kinds:
        raise Refusal(f"{output} has no units to put together: name the --output of a run")
    frames = units.collect(output, directory, kinds)
    if page:
        tables = {"losses": losses_table, "needles": needles_table}
        made = {kind: table(frames[kind]) for kind, table in tables.items() if kind in frames}
        write_whole(page, put_into(read_text(page), made))
