"""What a swap costs: attention that JAX wrote with its softmax swapped, against the same written with the normalizer.

    python -m benchmarks.swapping

Forward and backward. The contenders take turns, so that slow phases of the machine meet all.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import softmax_jax as sj
from benchmarks.timing import Result, machine, print_results, take_turns, timed
from softmax_jax.commands.options import parse

ITEMS, HEADS, SIZE = 1024, 4, 64
NAMES = ("softmax", "adaptive", "ssmax", "entmax15")
ORIGINAL = "jax.nn.dot_product_attention as it is"


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    quick: bool = False
    """Fewer rounds."""


def attentions() -> dict[str, Callable[..., jax.Array]]:
    """By name: the original, and for each normalizer the swap and our own dense attention."""
    original = functools.partial(jax.nn.dot_product_attention, implementation="xla")
    swapped: dict[str, Callable[..., jax.Array]] = {f"a swap to {name}": sj.swap(original, name) for name in NAMES}
    dense = functools.partial(sj.dot_product_attention, implementation="dense")
    written = {f"{name} attention, dense": functools.partial(dense, normalizer=name) for name in NAMES}
    return {ORIGINAL: original} | swapped | written


def run_of(attend: Callable[..., jax.Array], arrays: tuple[jax.Array, ...]) -> Callable[[], float]:
    """The seconds of one call, forward and backward."""

    def both(*arrays: jax.Array) -> Any:
        output, pull = jax.vjp(attend, *arrays)
        return pull(output)

    compiled = jax.jit(both)
    run = timed(lambda: compiled(*arrays))
    run()  # compiles
    return run


def measure(quick: bool) -> list[Result]:
    """Each swap against our own attention, and the swap to softmax against the original."""
    rng = np.random.default_rng(0)
    arrays = tuple(jnp.asarray(rng.normal(size=(1, ITEMS, HEADS, SIZE)), jnp.float32) for _ in range(3))
    runs = {name: run_of(attend, arrays) for name, attend in attentions().items()}
    seconds = take_turns(runs, 3 if quick else 25)
    pairs = [("a swap to softmax", ORIGINAL), *((f"a swap to {name}", f"{name} attention, dense") for name in NAMES)]
    what = f"{ITEMS} queries and keys, {HEADS} heads of {SIZE}, forward and backward"
    return [Result(f"{ours}, {what}", peer, seconds[ours], seconds[peer], "s per call") for ours, peer in pairs]


def main() -> None:
    """Measures and prints."""
    asked = parse(Arguments, description=__doc__)
    print_results(measure(asked.quick))
    print(machine())


if __name__ == "__main__":
    main()
