"""What segments cost: each normalizer over the edges of each node against `jraph.segment_softmax`.

Needs jraph: `pip install jraph`.

    python -m benchmarks.segments

Ten edges a node, in any order and sorted; the weights, and these with their gradient. The contenders take turns, so
that slow phases of the machine meet all. Times are of all cores together.
"""

import dataclasses
import functools
import importlib
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl

import softmax_jax as sj
from benchmarks.timing import Result, machine, print_results, processor_time, take_turns
from softmax_jax.experiment.commands.parse import parse
from softmax_jax.experiment.report.tables import markdown_table
from softmax_jax.files import write_csv
from softmax_jax.refusal import require

EDGES, NODES = 10**6, 10**5
NAMES = (
    "softmax", "temperature", "ssmax", "llama4", "adaptive", "softpick", "sparsemax", "entmax15", "stieltjes", "top_k",
)  # fmt: skip
PEER = "jraph.segment_softmax"
COLUMNS = "order", "pass", "normalizer", "milliseconds", "jraph", "ratio"


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    quick: bool = False
    """Fewer rounds."""
    output: Path | None = None
    """A CSV file for the medians and their ratios."""


def runs_of(ids: jax.Array, is_sorted: bool, with_gradient: bool) -> dict[str, Callable[[], float]]:
    """Returns the runs by contender, compiled."""
    logits = jnp.asarray(np.random.default_rng(0).normal(size=EDGES), jnp.float32)
    contenders: dict[str, Callable[..., jax.Array]] = {PEER: importlib.import_module("jraph").segment_softmax}
    contenders |= {name: functools.partial(sj.segments, normalizer=name) for name in NAMES}
    runs = {}
    for name, weigh in contenders.items():

        def once(logits: jax.Array, ids: jax.Array, weigh: Callable[..., jax.Array] = weigh) -> Any:
            options = {"segment_ids": ids, "num_segments": NODES, "indices_are_sorted": is_sorted}
            if not with_gradient:
                return weigh(logits, **options)
            weights, pull = jax.vjp(lambda z: weigh(z, **options), logits)
            return weights, pull(jnp.cos(logits))

        runs[name] = processor_time(functools.partial(jax.jit(once), logits, ids))
        runs[name]()  # compiles
    return runs


def measure_each(quick: bool) -> Iterator[tuple[str, str, dict[str, list[float]]]]:
    """Yields the order of the edges, the pass, and the seconds of each contender."""
    ids = np.random.default_rng(1).integers(0, NODES, EDGES).astype(np.int32)
    for order, placed in {"any order": ids, "sorted": np.sort(ids)}.items():
        for part in ("weights", "weights and gradient"):
            runs = runs_of(jnp.asarray(placed), order == "sorted", part != "weights")
            yield order, part, take_turns(runs, 3 if quick else 15)


def times_table(frame: pl.DataFrame) -> str:
    """Returns the ratios to the time of jraph, by normalizer, order and pass."""
    passes = frame.select("order", "pass").unique(maintain_order=True).rows()
    names = frame["normalizer"].unique(maintain_order=True)
    ratios = {(order, part, name): ratio for order, part, name, _, _, ratio in frame.rows()}
    rows = [[name, *(f"{ratios[order, part, name]:.1f}" for order, part in passes)] for name in names]
    return markdown_table(["time / jraph's", *(f"{part}, {order}" for order, part in passes)], rows)


def main() -> None:
    """Measures, prints and writes."""
    arguments = parse(Arguments, description=__doc__)
    require("this benchmark", "jraph", install="jraph")
    rows, results = [], []
    for order, part, seconds in measure_each(arguments.quick):
        peer = statistics.median(seconds[PEER])
        for name in NAMES:
            ours = statistics.median(seconds[name])
            rows.append((order, part, name, f"{1e3 * ours:.1f}", f"{1e3 * peer:.1f}", f"{ours / peer:.2f}"))
            what = f"{name}, {EDGES:,} edges of {NODES:,} nodes, {order}, {part}"
            results.append(Result(what, PEER, seconds[name], seconds[PEER], "s per call"))
    print_results(results)
    print(machine())
    if arguments.output is not None:
        write_csv(arguments.output, COLUMNS, rows)


if __name__ == "__main__":
    main()
