"""What a swap costs: JAX's attention with its softmax swapped, against the same products written with the normalizer.

    python -m benchmarks.swapping

Forward and backward. The contenders take turns, so that slow phases of the machine meet all. JAX has the heads behind
the queries in its products, for which XLA on CPUs transposes all logits; our own dense attention has them before.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import softmax_jax as sj
from benchmarks.timing import Result, machine, print_results, take_turns, timed
from softmax_jax.experiment.commands.parse import parse

ITEMS, HEADS, SIZE = 1024, 4, 64
NAMES = ("softmax", "adaptive", "ssmax", "entmax15")
ORIGINAL = "jax.nn.dot_product_attention as it is"


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    quick: bool = False
    """Fewer rounds."""


def attentions() -> dict[str, Callable[..., jax.Array]]:
    """By name: the original and, for each normalizer, the swap, the same products around it, and our own attention."""
    original = functools.partial(jax.nn.dot_product_attention, implementation="xla")
    contenders: dict[str, Callable[..., jax.Array]] = {ORIGINAL: original}
    for name in NAMES:
        contenders[f"a swap to {name}"] = sj.swap(original, name)
        contenders[f"{name} between the same products"] = functools.partial(with_products_of_jax, sj.normalizer(name))
        attention = functools.partial(sj.dot_product_attention, normalizer=name, implementation="dense")
        contenders[f"{name} attention, dense"] = attention
    return contenders


def with_products_of_jax(normalizer: sj.Normalizer, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Attention with its arrays laid out as in `jax.nn.dot_product_attention`."""
    logits = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(SIZE)
    return jnp.einsum("bhqk,bkhd->bqhd", normalizer(logits), value)


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
    """The swap to softmax against the original, and each against the same products and against our own attention."""
    rng = np.random.default_rng(0)
    arrays = tuple(jnp.asarray(rng.normal(size=(1, ITEMS, HEADS, SIZE)), jnp.float32) for _ in range(3))
    runs = {name: run_of(attend, arrays) for name, attend in attentions().items()}
    seconds = take_turns(runs, 3 if quick else 25)
    pairs = [("a swap to softmax", ORIGINAL)]
    for name in NAMES:
        pairs += [(f"a swap to {name}", f"{name} {peer}") for peer in ("between the same products", "attention, dense")]
    what = f"{ITEMS} queries and keys, {HEADS} heads of {SIZE}, forward and backward"
    return [Result(f"{ours}, {what}", peer, seconds[ours], seconds[peer], "s per call") for ours, peer in pairs]


def main() -> None:
    """Measures and prints."""
    arguments = parse(Arguments, description=__doc__)
    print_results(measure(arguments.quick))
    print(machine())


if __name__ == "__main__":
    main()
