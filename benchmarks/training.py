"""Cost of a training step against a plain port of the same model, on this machine, in one run.

    python -m benchmarks.training

The plain port is what one writes first: stock Flax Linen layers and attention, items padded to 16 with a mask,
one jitted step per Python call. Ours is the loop of train.py with its own device settings: for one seed, and for
a seed on each core, whose time is divided by the seeds. Each contender runs in a process of its own, in turn,
so that neither sees the other's settings and slow phases of the machine meet both.
"""

import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen
from rich.console import Console
from rich.table import Table

from benchmarks.timing import machine, milliseconds
from softmax_jax import training
from softmax_jax.command_line import one_device_per_core, parse
from softmax_jax.config import Config
from softmax_jax.tasks.max_retrieval import CLASSES, FEATURES

PEER = "plain port"


class PlainPort(linen.Module):
    """The model from stock Flax layers alone."""

    width: int

    @linen.compact
    def __call__(self, items: Any, query: Any, mask: Any) -> Any:
        items = linen.gelu(linen.Dense(self.width)(items))
        items = linen.gelu(linen.Dense(self.width)(items))
        query = linen.gelu(linen.Dense(self.width)(query))
        query = linen.gelu(linen.Dense(self.width)(query))
        attention = linen.MultiHeadDotProductAttention(num_heads=1, qkv_features=self.width)
        out = attention(query[:, None, :], items, items, mask=mask[:, None, None, :])[:, 0]
        out = linen.gelu(linen.Dense(self.width)(out))
        return linen.Dense(CLASSES)(out)


def plain_port() -> tuple[Callable[[int], Any], int]:
    """A function that trains the plain port for some steps, and the number of seeds it trains."""
    config = Config()
    model, optimizer = PlainPort(config.width), training.build_optimizer(config)
    mask = jnp.ones((1, config.max_items), bool)
    parameters = model.init(jax.random.key(0), jnp.ones((1, config.max_items, FEATURES)), jnp.ones((1, 1)), mask)

    def loss(parameters: Any, batch: Any) -> Any:
        scores: Any = model.apply(parameters, batch.items, batch.query, batch.mask)
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels(scores, batch.answer).mean()
        return cross_entropy + config.l2 * sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(parameters))

    @jax.jit
    def step(parameters: Any, state: Any, index: Any) -> Any:
        batch = training.training_batch(config, jnp.int32(0), index)
        value, gradient = jax.value_and_grad(loss)(parameters, batch)
        updates, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    def train(steps: int) -> Any:
        carry, value = (parameters, optimizer.init(parameters)), None
        for index in range(steps):
            *carry, value = step(*carry, jnp.int32(index))
        return value

    return train, 1


def ours(seeds: int) -> tuple[Callable[[int], Any], int]:
    """The same for the loop of train.py."""
    one_device_per_core()
    config = Config(seeds=seeds or jax.device_count())
    state = training.initial_state(config)
    train_chunk = training.chunk_trainer(config)
    return lambda steps: train_chunk(state, 0, steps)[1].loss, config.seeds


CONTENDERS = {PEER: plain_port, "ours, one seed": lambda: ours(1), "ours, a seed per core": lambda: ours(0)}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    rounds: int = 3
    """Turns of every contender."""
    steps: int = 500
    """Training steps per measurement."""
    contender: str | None = None
    """Measure this one alone and print its seconds per step; what the benchmark calls itself with."""


def measure(contender: str, steps: int, repeats: int = 3) -> list[float]:
    """Seconds per step and seed, after one run that compiles."""
    train, seeds = CONTENDERS[contender]()
    jax.block_until_ready(train(steps))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(train(steps))
        seconds.append((time.perf_counter() - start) / steps / seeds)
    return seconds


def main() -> None:
    """Runs every contender in turn and prints the ratios."""
    arguments = parse(Arguments, description=__doc__)
    if arguments.contender:
        print(json.dumps(measure(arguments.contender, arguments.steps)))
        return
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(arguments.rounds):
        for name in CONTENDERS:
            options = ["--contender", name, "--steps", str(arguments.steps)]
            command = [sys.executable, "-m", "benchmarks.training", *options]
            seconds[name] += json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    table = Table("contender", "ms per step and seed: min", "median", "max", "times faster (medians)")
    for name, values in seconds.items():
        ratio = statistics.median(seconds[PEER]) / statistics.median(values)
        table.add_row(name, *milliseconds(values, 2), f"{ratio:.2f}")
    Console(width=110).print(table)
    print(machine())


if __name__ == "__main__":
    main()
