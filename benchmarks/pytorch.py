"""What `sites` and `swap` add to a PyTorch model of 24 layers: to its tracing, to its compilation, and to a step.

    python -m benchmarks.pytorch --write

Needs `pip install -r requirements/torch.txt`. The contenders take turns, so that slow phases of the machine meet all.
With --write the times go to docs/data/torch_cost.csv.
"""

import dataclasses
import functools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import softmax_jax as sj
from benchmarks.timing import machine, processor_time, take_turns
from softmax_jax.experiment.commands.parse import parse
from softmax_jax.experiment.report.tables import markdown_table
from softmax_jax.files import write_csv

LAYERS, WIDTH, HEADS, LENGTH, WORDS = 24, 256, 8, 512, 1024
DATA = Path(__file__).parents[1] / "docs" / "data" / "torch_cost.csv"
COLUMNS = ("what", "function", "seconds", "least", "most", "times", "rounds")
"""Seconds are medians of processor time, which other programs on the machine disturb less; `times` is one
over that of the function of torchax in the same part."""
OF_TORCHAX = "the function of torchax"
SWAPS = {"swapped to softmax": "softmax", "swapped to SSMax": "ssmax"}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    quick: bool = False
    """Fewer rounds and layers."""
    write: bool = False
    """Write docs/data/torch_cost.csv."""


def build(layers: int) -> tuple[Any, Callable[..., jax.Array]]:
    """Returns the weights of a random Llama and the function of its logits."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
    )
    weights, apply = sj.from_torch(transformers.LlamaForCausalLM(config).eval())
    return weights, lambda weights, tokens: apply(weights, tokens, use_cache=False)["logits"]


def time_parts(quick: bool) -> list[tuple[str, ...]]:
    """Times the tracing, the compilation and a step of every contender; returns the rows of the table."""
    weights, apply = build(2 if quick else LAYERS)
    arguments = weights, jnp.arange(LENGTH, dtype=jnp.int32)[None] % WORDS
    functions = {OF_TORCHAX: apply} | {name: sj.swap(apply, normalizer) for name, normalizer in SWAPS.items()}

    def trace(function: Callable[..., Any]) -> Any:
        return jax.jit(lambda *arguments: function(*arguments)).trace(*arguments)  # JAX knows no new lambda yet

    def seconds_of(work: Callable[[Callable[..., Any]], Any]) -> dict[str, Callable[[], float]]:
        return {name: processor_time(functools.partial(work, function)) for name, function in functions.items()}

    compiled = {name: trace(function).lower().compile() for name, function in functions.items()}
    steps = {name: processor_time(functools.partial(step, *arguments)) for name, step in compiled.items()}
    tracing = seconds_of(trace) | {"sites": processor_time(lambda: sj.sites(apply)(*arguments))}
    compiling = seconds_of(lambda function: trace(function).lower().compile())
    parts = {
        "tracing": take_turns(tracing, 1 if quick else 5),
        "tracing and compiling": take_turns(compiling, 1 if quick else 3),
        "a step": take_turns(steps, 3 if quick else 25),
    }
    return [
        (part, name, *(f"{of(values):.4g}" for of in (statistics.median, min, max)), f"{times:.3f}", f"{len(values)}")
        for part, seconds in parts.items()
        for name, values in seconds.items()
        for times in [statistics.median(values) / statistics.median(seconds[OF_TORCHAX])]
    ]


def main() -> None:
    """Measures, prints, writes."""
    arguments = parse(Arguments, description=__doc__)
    jax.config.update("jax_enable_compilation_cache", False)
    rows = time_parts(arguments.quick)
    print(markdown_table(COLUMNS, rows), machine(), sep="\n")
    if arguments.write:
        write_csv(DATA, COLUMNS, rows)


if __name__ == "__main__":
    main()
