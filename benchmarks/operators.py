"""Where the time of a training step goes, by kind of operation: one seed on all cores, and ten seeds.

    python -m benchmarks.operators

The profile is of the compiled loop of train.py at the paper's setting, as XLA's own events tell it. A share is of the
time that all cores spent in operations; waiting for another core counts as one. Compilers fuse neighbours, and a fused
operation counts as what it ends with.
"""

import collections
import dataclasses
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
from jax.profiler import ProfileData
from rich.console import Console
from rich.table import Table

from benchmarks.timing import duration, machine
from softmax_jax.commands.options import one_device_per_core, parse, within
from softmax_jax.training import trainer
from softmax_jax.training.config import Config

CONTAINERS = {"while", "conditional", "call"}
"""Instructions whose time is that of others."""
KINDS = (
    ("waits between cores", r"all-reduce|psum"),
    ("matrix products", r"dot"),
    ("draws", rf"/{trainer.DRAW}/"),
    ("gathering the gradient into one vector", rf"/{trainer.MEAN}/"),
    ("the optimizer", rf"/{trainer.UPDATE}/"),
    ("sums and largest numbers", r"reduce"),
    ("gelu, softmax and the rest of the model", r"jvp"),
)
"""What an operation is: the first whose pattern its instruction or its path in the program has."""
OTHERS = "copies and control"
INSTRUCTION = re.compile(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*? ([\w\-]+)\(.*?(?:op_name="([^"]*)"|$)', re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What the command line may say."""

    steps: int = 200
    """Training steps to profile."""

    def __post_init__(self) -> None:
        within("--steps", self.steps, 1, 10_000, 200)


def kind_of(instruction: str, path: str) -> str:
    """The kind of an operation, from its instruction and its path in the program.

    >>> kind_of("fusion", "jit(train_chunk)/while/body/update/add")
    'the optimizer'
    """
    return next((kind for kind, pattern in KINDS if re.search(pattern, f"{instruction} {path}")), OTHERS)


def kinds_of(program: str) -> dict[str, str]:
    """The kind of every operation of a compiled program by its name, less those that hold others."""
    found = INSTRUCTION.findall(program)
    return {name: kind_of(instruction, path) for name, instruction, path in found if instruction not in CONTAINERS}


def seconds_by_kind(run: Callable[[], object], program: str) -> dict[str, float]:
    """Runs a compiled program once: the seconds that all cores spent in each kind of operation."""
    kinds, seconds = kinds_of(program), collections.Counter[str]()
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            jax.block_until_ready(run())
        (path,) = Path(directory).rglob("*.xplane.pb")
        events = [
            (dict(event.stats).get("hlo_op"), event.duration_ns)
            for plane in ProfileData.from_file(str(path)).planes
            for line in plane.lines
            for event in line.events
        ]
    for name, nanoseconds in events:
        if name in kinds:
            seconds[kinds[str(name)]] += nanoseconds / 1e9
    return dict(seconds.most_common())


def profile(seeds: int, steps: int) -> dict[str, float]:
    """Seconds of a step of one of these seeds, summed over the cores, by kind of operation."""
    config = Config(seeds=seeds)
    state = trainer.initial_state(config)
    compiled = jax.jit(trainer.chunk_trainer(config), static_argnums=2).lower(state, 0, steps).compile()
    jax.block_until_ready(compiled(state, 0))
    by_kind = seconds_by_kind(lambda: compiled(state, 0), compiled.as_text() or "")
    return {kind: seconds / steps / seeds for kind, seconds in by_kind.items()}


def main() -> None:
    """Profiles and prints."""
    arguments = parse(Arguments, description=__doc__)
    one_device_per_core()
    profiles = {"one seed on all cores": profile(1, arguments.steps), "ten seeds": profile(10, arguments.steps)}
    table = Table("a training step, of one seed", *(text for name in profiles for text in (name, "share")))
    for kind in dict.fromkeys(kind for by_kind in profiles.values() for kind in by_kind):
        cells = []
        for by_kind in profiles.values():
            seconds = by_kind.get(kind, 0.0)
            cells += [duration(seconds), f"{100 * seconds / sum(by_kind.values()):.0f} %"]
        table.add_row(kind, *cells)
    Console(width=120).print(table)
    print(machine())


if __name__ == "__main__":
    main()
