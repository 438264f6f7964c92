r"""What devices send each other in training: as a formula, and as a compiled program says it.

Divided over $d$ devices a gradient takes an all-reduce in every step, in which a ring sends $2\,\frac{d-1}{d}$ of its
bytes from each device.
"""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from softmax_jax.experiment.tasks.retrieval_model import CLASSES, FEATURES

FLOAT = 4
"""Bytes of a number: parameters, gradients and measures are float32."""


def parameter_count(width: int) -> int:
    """Numbers in the max-retrieval model: 7w² + 31w + 10.

    >>> parameter_count(128)
    118666
    """
    return 7 * width**2 + (FEATURES + 1 + CLASSES) * width + 9 * width + CLASSES


def all_reduce_bytes(payload: int, devices: int) -> float:
    """Bytes that each of the devices sends in a ring all-reduce of so many bytes: 2(d − 1)/d of them.

    >>> [all_reduce_bytes(100, devices) for devices in (1, 2, 4)]
    [0.0, 100.0, 150.0]
    """
    return 2 * (devices - 1) / devices * payload


def training_bytes(seeds: int, width: int, steps: int, by_seed: int, by_set: int) -> float:
    """Bytes that each device sends in `steps` training steps: gradients every step, three measures of it at the end.

    `by_seed` and `by_set` are the parts into which the mesh divides seeds and sets.

    >>> training_bytes(2, 128, steps=1, by_seed=2, by_set=1)
    0.0
    >>> training_bytes(1, 128, steps=1, by_seed=1, by_set=4) == 2 * 3 / 4 * 4 * (118_666 + 3)
    True
    """
    payload = FLOAT * (parameter_count(width) + 3) * steps
    return all_reduce_bytes(seeds // by_seed * payload, by_set)


class Collective(NamedTuple):
    """A communication of a compiled program."""

    kind: str
    payload: int
    """Bytes of its result on each device."""
    devices: int
    """Devices that take part together."""
    times: int
    """How often a run of the program does it."""


COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute", "collective-broadcast")
SIZES = {"pred": 1, "s8": 1, "u8": 1, "s32": 4, "u32": 4, "f32": 4, "f16": 2, "bf16": 2, "s64": 8, "u64": 8, "f64": 8}


def collectives(program: str) -> list[Collective]:
    """The communications in the text of a compiled program, as `jax.jit(f).lower(x).compile().as_text()` gives it.

    Those inside loops count as often as the loop runs. Raises ValueError for a loop around one whose number of runs
    the compiler does not state.
    """
    computations = re.finditer(r"^(?:ENTRY )?%?([\w.-]+) [^\n]*\{\n(.*?)^\}", program, re.M | re.S)
    bodies = {match[1]: match[2] for match in computations}
    entry = re.search(r"^ENTRY %?([\w.-]+)", program, re.M)
    return list(_within(entry[1], bodies, 1)) if entry else []


def _within(name: str, bodies: dict[str, str], times: int) -> Iterator[Collective]:
    for line in bodies[name].splitlines():
        if match := re.search(rf"= (.*?) ({'|'.join(COLLECTIVES)})(?:-start)?\(", line):
            yield Collective(match[2], _bytes_of(match[1]), _group_size(line), times)
        runs = 1
        called = re.findall(r"(?:body|calls|to_apply|true_computation|false_computation)=%?([\w.-]+)", line)
        called += re.findall(r"%?([\w.-]+)", (re.search(r"branch_computations=\{(.*?)\}", line) or ("", ""))[1])
        inside = [collective for name in called for collective in _within(name, bodies, times)]
        if " while(" in line and inside:
            count = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
            if count is None:
                raise ValueError(f"the compiler does not say how often this loop runs: {line.strip()[:120]}")
            runs = int(count[1])
        yield from (collective._replace(times=collective.times * runs) for collective in inside)


def _bytes_of(shape: str) -> int:
    """Bytes of a result, as in `(f32[2,3]{1,0}, pred[])`."""
    arrays = re.findall(r"(\w+)\[([\d,]*)\]", shape)
    return sum(SIZES[kind] * math.prod(map(int, filter(None, sizes.split(",")))) for kind, sizes in arrays)


def _group_size(line: str) -> int:
    """Devices of a group, written out as {{0,1},{2,3}}, by shape as [2,2]<=[4], or as axes of a mesh."""
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
        return listed[1].count(",") + 1
    if shaped := re.search(r"replica_groups=\[(?:\d+,)*(\d+)\]<=", line):
        return int(shaped[1])
    if axes := re.search(r"replica_groups=mesh\[(.*?)\][^{]*\{(.*?)\}", line):  # as in mesh['a'=2,'b'=4] {'b'}
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", axes[1]))
        return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", axes[2]))
    raise ValueError(f"no groups of devices in: {line.strip()[:120]}")


def moved_bytes(program: str) -> float:
    """Bytes that each device sends when a compiled program runs once, if rings carry its all-reduces.

    Raises ValueError for other communications, which training does not need.
    """
    sent = collectives(program)
    if others := {collective.kind for collective in sent} - {"all-reduce"}:
        raise ValueError(f"the program also holds {', '.join(sorted(others))}")
    return float(sum(part.times * all_reduce_bytes(part.payload, part.devices) for part in sent))
