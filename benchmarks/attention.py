"""Time and memory of streaming attention against dense attention and JAX's own, forward and backward, in one run.

    python -m benchmarks.attention

The contenders take turns, so that slow phases of the machine meet all. Memory is what the compiled program needs
beside its arguments and results. From these ratios comes `STREAM_ABOVE`, the number of logits above which
`dot_product_attention` streams unless told otherwise.

Four habits of XLA on CPUs are behind the times. It hands an operation to its library only if there is no comparison in
it, so softmax of whole rows is written without any. It puts the keys of an einsum first and then transposes all logits,
unless heads stand before queries. It fuses a product into the sum over it, in a loop that takes several times as long
as both apart.

A fourth: of a product that sums over the rows of both factors it transposes the first, and in the gradient of the keys,
dzᵀ q, that is the larger array. JAX writes the derivative so, and `Inputs.logits` turns it around where a block has one
head: softmax takes 0.7 to 0.8 of the time without that, entmax15 0.7 to 0.9, adaptive 0.8, forward and backward, at
1,024 to 4,096 keys and 4 or 16 heads (`benchmarks.growth`, two AVX-512 cores, November 2026).

Tried for adaptive, forward and backward, each with a gain below 1.3 ×: blocks of half the logits, which stay in cache;
the whole derivative through β by hand, with the row's numbers kept.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import softmax_jax as sj
from benchmarks.timing import Result, machine, milliseconds
from softmax_jax.experiment.commands.parse import each_once, parse, within

HEADS, SIZE = 4, 64
COMPARED = (2048, 2048)
SIZES = (512, 1024), (1024, 1024), COMPARED, (4096, 4096), (64, 65536)
"""Queries and keys, of one batch entry; at `COMPARED` in the file of all benchmarks."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program, what it needs, and how long its turns took."""

    run: Callable[[], Any]
    temporary: int
    seconds: list[float] = dataclasses.field(default_factory=list)


def attentions(names: tuple[str, ...]) -> dict[str, Callable[..., jax.Array]]:
    """JAX's attention, then each normalizer dense and in blocks of queries, by name."""
    contenders: dict[str, Callable[..., jax.Array]] = {"jax.nn.dot_product_attention": jax.nn.dot_product_attention}
    for name in names:
        attend = functools.partial(sj.dot_product_attention, normalizer=name)
        contenders[f"{name}, dense"] = functools.partial(attend, implementation="dense")
        contenders[f"{name}, blocks"] = functools.partial(attend, implementation="streaming")
    return contenders


def programs(queries: int, keys: int, names: tuple[str, ...], backward: bool) -> dict[str, Program]:
    """The contenders, compiled and run once."""
    rng = np.random.default_rng(0)
    shapes = (1, queries, HEADS, SIZE), (1, keys, HEADS, SIZE), (1, keys, HEADS, SIZE)
    arrays = tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
    compiled = {}
    for name, attend in attentions(names).items():

        def both(*arrays: jax.Array, attend: Callable[..., jax.Array] = attend) -> Any:
            output, pull = jax.vjp(attend, *arrays)
            return pull(output)

        program = jax.jit(both if backward else attend).lower(*arrays).compile()

        def run(program: Any = program) -> Any:
            return jax.block_until_ready(program(*arrays))

        run()
        memory = program.memory_analysis()
        assert memory is not None
        compiled[name] = Program(run, memory.temp_size_in_bytes)
    return compiled


def let_turns(contenders: dict[str, Program], rounds: int) -> None:
    """Lets the contenders take turns."""
    for _ in range(rounds):
        for program in contenders.values():
            start = time.perf_counter()
            program.run()
            program.seconds.append(time.perf_counter() - start)


def measure(quick: bool) -> list[Result]:
    """Attention in blocks against the dense form and JAX's own, forward and backward, at `COMPARED`."""
    queries, keys = COMPARED
    names = ("softmax", "adaptive")
    contenders = programs(queries, keys, names, backward=True)
    let_turns(contenders, 3 if quick else 9)
    seconds = {name: program.seconds for name, program in contenders.items()}
    jax_attention = next(iter(seconds))
    results = []
    for name in names:
        ours = seconds[f"{name}, blocks"]
        what = f"{name} attention in blocks, forward and backward, {queries} queries and keys, {HEADS} heads of {SIZE}"
        results += [Result(what, peer, ours, seconds[peer], "s per call") for peer in (f"{name}, dense", jax_attention)]
    return results


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    rounds: int = 7
    """Turns of every contender."""
    names: tuple[str, ...] = ("softmax", "adaptive", "entmax15")
    """Normalizers to measure."""

    def __post_init__(self) -> None:
        within("--rounds", self.rounds, 1, 10_000, 7)
        each_once("--names", self.names)
        for name in self.names:
            sj.normalizer(name)


def main() -> None:
    """Runs every contender in turn and prints the medians."""
    arguments = parse(Arguments, description=__doc__)
    for queries, keys in SIZES:
        for backward in (False, True):
            contenders = programs(queries, keys, arguments.names, backward)
            let_turns(contenders, arguments.rounds)
            jax_median = statistics.median(next(iter(contenders.values())).seconds)
            what = "forward and backward" if backward else "forward"
            title = (
                f"{queries} queries, {keys} keys, {HEADS} heads of {SIZE}: {HEADS * queries * keys:,} logits, {what}"
            )
            table = Table(title, "ms: min", "median", "max", "times jax.nn", "MB")
            for name, program in contenders.items():
                ratio = statistics.median(program.seconds) / jax_median
                cells = milliseconds(program.seconds, 1)
                table.add_row(name, *cells, f"{ratio:.2f}", f"{program.temporary / 1e6:.1f}")
            Console(width=120).print(table)
    print(machine())


if __name__ == "__main__":
    main()
