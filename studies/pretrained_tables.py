"""Tables of what `studies.pretrained` measured, from the files of its units."""

import itertools
from pathlib import Path

import numpy as np
import polars as pl

from softmax_jax.experiment.language_models import measures
from softmax_jax.experiment.measures.units import read
from softmax_jax.experiment.report.tables import markdown_table, put_into
from softmax_jax.files import read_text, write_csv, write_whole
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
COST_CELLS, HEAD_CELLS = (tuple(itertools.product(("prose", "code"), (short, 8192))) for short in (1024, 256))
"""Text and bin of the columns of both tables."""
SHOWN = {"entropy": "entropy (nats)", "first": "weight of the first token", "sinks": "share of rows that give it > 0.3"}
KINDS = ("losses", "heads", "looks", "needles", "units", "masked")
"""How the names of units begin; the files of a kind are put together. The units of `units` are those of each head."""


def losses_table(losses: pl.DataFrame) -> str:
    """Returns what normalizers that were read to the end cost, in nats a token, a column for each of `COST_CELLS`."""
    rows = {}
    for name, text, below, loss, more, _, half in measures.paired_losses(losses).sort("normalizer").rows():
        cell = f"{loss:.3f}" if name == "softmax" else f"{more:+.3f} ± {half:.3f}"
        rows.setdefault(name, {})[text, below] = cell
    order = [*NUMBERS, *sorted(rows.keys() - NUMBERS.keys())]
    named = [name for name in order if COST_CELLS[1] in rows.get(name, {})]
    cells = [[name, *(rows[name].get(cell, "–") for cell in COST_CELLS)] for name in named]
    return markdown_table(["normalizer", *map(called, COST_CELLS)], cells)


def called(cell: tuple[str, int]) -> str:
    """Returns the text and the tokens of a bin as the head of a column."""
    text, below = cell
    return f"{text}, {below // 2:,} – {below:,}"


def heads_table(heads: pl.DataFrame) -> str:
    """Returns the means over all heads: a row for each measure, a column for each of `HEAD_CELLS`."""
    means = heads.group_by("text", "below").agg(pl.mean(*SHOWN)).rows_by_key(("text", "below"), named=True, unique=True)
    rows = [[title, *(f"{means[cell][name]:.2f}" for cell in HEAD_CELLS)] for name, title in SHOWN.items()]
    return markdown_table(["mean over heads", *map(called, HEAD_CELLS)], rows)


def needles_table(needles: pl.DataFrame) -> str:
    """Returns the share of the questions about one of several facts that is answered right, by length and help.

    The help is that to the heads of `SETS` in the middle, in all rows of the question or in its last row.
    """
    questions = needles.filter(pl.col("heads").is_in((0, SETS[1])), facts=FACTS, normalizer="softmax")
    kinds = {"no help": ("neither", "none")}
    kinds |= {f"{by}, {rows}": (by, rows) for by, rows in itertools.product(("rank", "temperature"), ("all", "last"))}
    shares = [pl.col("right").filter(help=by, rows=rows).mean().alias(name) for name, (by, rows) in kinds.items()]
    rows = questions.group_by("length").agg(pl.n_unique("sample"), *shares).sort("length").rows()
    cells = [[f"{length:,}", str(texts), *(f"{share:.0%}" for share in each)] for length, texts, *each in rows]
    return markdown_table(["tokens", "questions", *kinds], cells)


def collect(output: Path, directory: Path, page: Path | None) -> None:
    """Writes one CSV file of each kind of unit, and the tables of those that are there into the page."""
    frames = {kind: pl.concat(map(read, paths)) for kind in KINDS if (paths := sorted(output.glob(f"{kind}_*.csv")))}
    if not frames:
        raise Refusal(f"{output} has no units to put together: name the --output of a run")
    for kind, frame in frames.items():
        write_csv(directory / f"{kind}.csv", frame.columns, frame.rows())
    if page:
        tables = {"losses": losses_table, "heads": heads_table, "needles": needles_table}
        made = {kind: table(frames[kind]) for kind, table in tables.items() if kind in frames}
        write_whole(page, put_into(read_text(page), made))
