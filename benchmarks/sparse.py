"""Time of the sparse maps against softmax and against sorting, forward and backward, on this machine, in one run.

    python -m benchmarks.sparse

The sort-based forms are what one writes first in JAX. Where PyTorch and the package `entmax` are installed, its
exact maps take part too, and its shortcut that looks at the 100 largest logits alone. The contenders take turns,
so that slow phases of the machine meet all. The time of softmax itself lay between 2.8 and 11 ms in one run, so ratios
of two runs differ.

Where α or q is an array, every entry is raised to a power by logarithm and exponential. XLA computes that fast inside a
sum and slowly where the powers are written out, as weights and slopes are, so these take more than 2.5 times as long.

Tried without gain: a start from the largest of each place before that from the four largest; a logarithm of 1 + x with
the lost digits put back; `pow`; softmax of top-k over logits with -inf for the others.
"""

import dataclasses
import functools
import os
import statistics
from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import softmax_jax as sj
from benchmarks.timing import Result, machine, milliseconds, take_turns, timed
from softmax_jax.experiment.commands.parse import parse, within
from softmax_jax.normalizers.threshold_families import TSALLIS

SHAPES = (1024, 4096), (64, 65536)
STEP = "one step of the search of entmax, forward alone"


def sorted_sparsemax(logits: jax.Array) -> jax.Array:
    """Sparsemax by sorting the row."""
    z = logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True))
    u = -jnp.sort(-z)
    tau = (jnp.cumsum(u, -1) - 1) / jnp.arange(1, z.shape[-1] + 1)
    support = jnp.sum(u > tau, -1, keepdims=True)
    return jnp.maximum(z - jnp.take_along_axis(tau, support - 1, -1), 0)


def sorted_entmax15(logits: jax.Array) -> jax.Array:
    """Entmax at α = 1.5 by sorting the row."""
    z = (logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True))) / 2
    u, k = -jnp.sort(-z), jnp.arange(1, z.shape[-1] + 1)
    mean, squares = jnp.cumsum(u, -1) / k, jnp.cumsum(u**2, -1) / k
    inside = 1 / k - (squares - mean**2)
    tau = mean - jnp.sqrt(jnp.where(inside > 0, inside, 1)) * (inside > 0)
    support = jnp.sum(tau <= u, -1, keepdims=True)
    return jnp.maximum(z - jnp.take_along_axis(tau, support - 1, -1), 0) ** 2


def one_step(logits: jax.Array) -> jax.Array:
    """The sums of entmax's weights at some threshold: what one step of its search takes."""
    return TSALLIS.weigh(logits, jnp.ones((len(logits), 1)), jnp.full((), 0.5)).sum(-1)


def with_jax(weigh: Callable[[jax.Array], jax.Array], logits: np.ndarray, cotangent: np.ndarray) -> Callable[[], Any]:
    """A function that computes the weights and the gradient once."""

    @jax.jit
    def both(logits: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights, pull = jax.vjp(weigh, logits)
        return weights, pull(cotangent)[0]

    arrays = jnp.asarray(logits), jnp.asarray(cotangent)
    return lambda: jax.block_until_ready(both(*arrays))


def with_torch(weigh: Callable[[Any], Any], logits: np.ndarray, cotangent: np.ndarray) -> Callable[[], Any]:
    """The same in PyTorch."""
    torch = import_module("torch")
    leaf, direction = torch.tensor(logits, requires_grad=True), torch.tensor(cotangent)
    return lambda: torch.autograd.grad(weigh(leaf), leaf, direction)


def contenders(logits: np.ndarray, cotangent: np.ndarray) -> dict[str, Callable[[], Any]]:
    """By name, softmax first."""
    maps = {
        "jax.nn.softmax": jax.nn.softmax,
        "sparsemax": sj.sparsemax,
        "sparsemax, sorted in JAX": sorted_sparsemax,
        "entmax15": sj.entmax15,
        "entmax15, sorted in JAX": sorted_entmax15,
        "entmax(alpha=1.5)": sj.entmax,
        "entmax, α in an array": functools.partial(sj.entmax, alpha=jnp.float32(1.5)),
        "stieltjes": sj.stieltjes,
        "stieltjes, q in an array": functools.partial(sj.stieltjes, q=jnp.float32(4)),
        "top_k_softmax": sj.top_k_softmax,
    }
    runs = {name: with_jax(weigh, logits, cotangent) for name, weigh in maps.items()}
    step, array = jax.jit(one_step), jnp.asarray(logits)
    runs[STEP] = lambda: step(array)
    try:
        torch, peer = import_module("torch"), import_module("entmax")
    except ImportError:
        return runs
    torch.set_num_threads(os.cpu_count())
    theirs: dict[str, Callable[[Any], Any]] = {
        "torch softmax": lambda z: torch.softmax(z, -1),
        "torch entmax: sparsemax, exact": lambda z: peer.sparsemax(z, dim=-1),
        "torch entmax: sparsemax, k=100": lambda z: peer.sparsemax(z, dim=-1, k=100),
        "torch entmax: entmax15, exact": lambda z: peer.entmax15(z, dim=-1),
        "torch entmax: entmax15, k=100": lambda z: peer.entmax15(z, dim=-1, k=100),
    }
    return runs | {name: with_torch(weigh, logits, cotangent) for name, weigh in theirs.items()}


PEERS: dict[str, tuple[str, ...]] = {
    "sparsemax": ("sparsemax, sorted in JAX", "torch entmax: sparsemax, exact"),
    "entmax15": ("entmax15, sorted in JAX", "torch entmax: entmax15, exact"),
    "entmax(alpha=1.5)": (),
    "stieltjes": (),
    "top_k_softmax": (),
    STEP: (),
}
"""What each of ours is compared with besides softmax, as far as it takes part."""


def times(shape: tuple[int, int], rounds: int) -> dict[str, list[float]]:
    """Seconds of every contender on rows of that shape, all in turn."""
    rng = np.random.default_rng(0)
    logits, cotangent = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    turns = {name: second_call(run) for name, run in contenders(logits, cotangent).items()}
    take_turns(turns, 1)  # compiles
    return take_turns(turns, rounds)


def second_call(run: Callable[[], Any]) -> Callable[[], float]:
    """A turn of two calls, of which the second counts: the first claims memory that the turn before gave back."""
    seconds = timed(run)

    def turn() -> float:
        run()
        return seconds()

    return turn


def measure(quick: bool) -> list[Result]:
    """Our sparse maps against softmax and against the same maps by sorting, forward and backward."""
    results = []
    for rows, length in SHAPES:
        seconds = times((rows, length), 7 if quick else 15)
        softmax = next(iter(seconds))
        for name, peers in PEERS.items():
            title = f"{name}{'' if name == STEP else ', forward and backward'}, {rows} rows of {length}"
            among = [softmax, *(peer for peer in peers if peer in seconds)]
            results += [Result(title, peer, seconds[name], seconds[peer], "s per call") for peer in among]
    return results


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    rounds: int = 7
    """Turns of every contender."""

    def __post_init__(self) -> None:
        within("--rounds", self.rounds, 1, 10_000, 7)


def main() -> None:
    """Runs every contender in turn and prints the medians."""
    arguments = parse(Arguments, description=__doc__)
    for shape in SHAPES:
        seconds = times(shape, arguments.rounds)
        softmax = statistics.median(next(iter(seconds.values())))
        table = Table(f"{shape[0]} rows of {shape[1]}", "ms: min", "median", "max", "times softmax (medians)")
        for name, values in seconds.items():
            table.add_row(name, *milliseconds(values, 1), f"{statistics.median(values) / softmax:.1f}")
        Console(width=110).print(table)
    print(machine())


if __name__ == "__main__":
    main()
