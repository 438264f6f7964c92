"""All that waits for a GPU, in five parts of a few minutes each: python -m benchmarks.gpu --part 1 ... 5

1 runs the tests that need one. 2 trains the preset `paper`, ten seeds of 100,000 steps. 3 times attention forward and
backward at 4k, 16k and 64k keys against JAX's own kernel. 4 evaluates sets of up to 2^20 items. 5 writes what there is
to benchmarks/results/DATE-DEVICE.json and the tables of the pages. Parts 1 to 4 need nothing of each other, and each
keeps what it has measured in `--output`: begun again it goes on. `--small` runs the same code at sizes for a CPU, and
leaves the pages as they are.
"""

import dataclasses
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import softmax_jax as sj
from benchmarks import table
from benchmarks.all import RESULTS
from benchmarks.costs import mean_multiply_adds, products_alone
from benchmarks.evaluation import NORMALIZERS
from benchmarks.timing import Result, device_name, machine, take_turns, timed
from softmax_jax.experiment.commands.output import check_directory
from softmax_jax.experiment.commands.parse import parse, within
from softmax_jax.experiment.commands.process import KEPT, one_line_errors
from softmax_jax.experiment.configs import load_preset
from softmax_jax.experiment.measures.evaluation import evaluate
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.config import changed
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.experiment.training.train import train
from softmax_jax.files import read_json, write_json
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.refusal import Refusal

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests" / "gpu"
HEADS, SIZE = 8, 128
OF_JAX = "jax.nn.dot_product_attention"
Records = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Options of the command line."""

    part: int
    """Which part, from 1 to 5."""
    small: bool = False
    """Sizes for a CPU, to see that all works; the pages stay as they are."""
    output: Path = Path("runs") / "gpu"
    """Directory for what each part has measured so far, and for the run."""

    def __post_init__(self) -> None:
        within("--part", self.part, 1, len(PARTS), 1)
        check_directory("--output", self.output)

    def kept(self, name: str, measure: Callable[[], Records]) -> None:
        """Measures once, and keeps the records in a file of that name."""
        path = self.output / f"{name}.json"
        if not path.exists():
            write_json(path, measure())
        for record in read_json(path):
            print(f"{name}: {table.comparison(record)}" if "ratio" in record else f"{name}: {record}", flush=True)


def tests(arguments: Arguments) -> None:
    """Runs the tests that need a GPU, on the device that JAX finds; leaves with their status if one fails."""
    # Several processes compile side by side, which share the memory of one device. "" lets JAX choose the device.
    environment = os.environ | {"JAX_PLATFORMS": "", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-m", "pytest", "-n", "auto", str(TESTS), "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, check=False, text=True, stdout=subprocess.PIPE)
    print(ended.stdout)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "tests.txt").write_text(ended.stdout)
    if ended.returncode:
        raise SystemExit(ended.returncode)


def training(arguments: Arguments) -> None:
    """Trains `paper`; the time is that of its chunks, without compiling, also of a run that was stopped in between."""
    config = changed(load_preset("paper"), seeds=10, steps=100_000, chunk=5_000)
    if arguments.small:
        config = changed(config, seeds=2, steps=40, chunk=20)

    def measure() -> Records:
        assert isinstance(config.task, MaxRetrieval)
        floor = products_alone(config.seeds * config.steps * mean_multiply_adds(config.task))
        floor()  # compiles
        directory = arguments.output / "paper"
        train(config, directory, Console())
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        rates = {line["step"]: line["steps_per_second"] for line in lines}
        seconds = sum(config.chunk / rate for rate in rates.values())
        name = f"{config.seeds} seeds of {config.steps:,} steps of paper, trained"
        return [Result(name, "their matrix products alone", [seconds], [floor()], "s").record()]

    arguments.kept("training", measure)


def attention(arguments: Arguments) -> None:
    """Attention forward and backward in bfloat16, causal, one length after the other."""
    on_gpu = jax.default_backend() == "gpu"
    for length in (256, 512) if arguments.small else (2**12, 2**14, 2**16):
        heads, size = (2, 64) if arguments.small else (HEADS, SIZE)
        measure = functools.partial(measured_attention, length, heads, size, kernel="cudnn" if on_gpu else "xla")
        arguments.kept(f"attention_{length}", measure)


def measured_attention(
    length: int, heads: int, size: int, *, kernel: Literal["xla", "cudnn"], rounds: int = 7
) -> Records:
    """Times ours in turns with JAX's kernel; what cannot run is left out by name."""
    generator = np.random.default_rng(0)
    arrays = [jnp.asarray(generator.normal(size=(1, length, heads, size)), jnp.bfloat16) for _ in range(3)]
    riding = functools.partial(sj.dot_product_attention, is_causal=True, implementation=kernel)
    blocks = functools.partial(sj.dot_product_attention, is_causal=True, implementation="streaming")
    ours: dict[str, Callable[..., jax.Array]] = {
        OF_JAX: functools.partial(jax.nn.dot_product_attention, is_causal=True, implementation=kernel),
        "adaptive in two calls": functools.partial(riding, normalizer="adaptive"),
        "softmax with a sink": functools.partial(riding, normalizer="sink_softmax"),
        "entmax15 in blocks": functools.partial(blocks, normalizer="entmax15"),
    }
    runs = {name: functools.partial(both_ways, attend, arrays) for name, attend in ours.items()}
    compiled: dict[str, Callable[[], float]] = {}
    for name, make in runs.items():
        try:
            compiled[name] = make()
            compiled[name]()  # compiles
        except Exception as error:
            compiled.pop(name, None)
            print(f"{name} is left out at {length}: {' '.join(str(error).split())[:200]}")
    seconds = take_turns(compiled, rounds)
    what = f"attention forward and backward, {length:,} keys, {heads} heads of {size}, bfloat16"
    return [
        Result(f"{name}: {what}", OF_JAX, times, seconds[OF_JAX], "s per call").record()
        for name, times in seconds.items()
        if name != OF_JAX
    ]


def both_ways(attend: Callable[..., jax.Array], arrays: list[jax.Array]) -> Callable[[], float]:
    """A function that runs attention and its derivative once, and gives the seconds."""

    @jax.jit
    def program(*arrays: jax.Array) -> Any:
        output, pull = jax.vjp(attend, *arrays)
        return pull(output)

    return timed(lambda: program(*arrays))


def evaluation(arguments: Arguments) -> None:
    """Sets of up to 2^20 items under the default normalizers, for two of the shipped models."""
    config, parameters = load_checkpoint(SHIPPED / "paper_float32")
    parameters = jax.tree.map(lambda leaf: leaf[:2], parameters)
    named = {name: normalizer(name) for name in NORMALIZERS}
    first, *longer = (2**8, 2**10) if arguments.small else (2**12, 2**16, 2**20)
    items = longer[-1]

    def per_item(length: int) -> float:
        def once() -> None:
            options = {"seeds": config.all_seeds[:2], "lengths": (length,), "sets": items // length}
            list(evaluate(parameters, named, **options))

        once()  # compiles
        return timed(once, 2 * items)()

    def measure(length: int) -> Records:
        ours, theirs = [per_item(length)], [per_item(first)]
        return [Result(f"an item in sets of {length:,} items", f"one in sets of {first:,}", ours, theirs, "s").record()]

    for length in longer:
        arguments.kept(f"evaluation_{length}", functools.partial(measure, length))


def results(arguments: Arguments) -> None:
    """The result file of all parts, and the tables of the pages from all result files."""
    records = [record for path in sorted(arguments.output.glob("*.json")) for record in read_json(path)]
    if not records:
        raise Refusal(f"{arguments.output} holds no results: run the parts 2 to 4 before with the same --output")
    directory = arguments.output / "results" if arguments.small else RESULTS
    path = directory / f"{time.strftime('%Y-%m-%d')}-{device_name()}.json"
    write_json(path, records)
    print(f"wrote {path}")
    if not arguments.small:
        table.write(table.newest(RESULTS))


PARTS: tuple[Callable[[Arguments], None], ...] = (tests, training, attention, evaluation, results)


def main() -> None:
    """Runs one part."""
    arguments = parse(Arguments, description=__doc__)
    with one_line_errors():
        KEPT.keep()
        start = time.perf_counter()
        PARTS[arguments.part - 1](arguments)
        print(f"part {arguments.part}: {time.perf_counter() - start:.0f} s, {device_name()}; {machine()}")


if __name__ == "__main__":
    main()
