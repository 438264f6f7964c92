"""Who computes what: all devices as one mesh of seeds × sets, on one device, several, or those of several hosts.

Seeds never need each other, so they are divided first. Devices that are left over divide the sets of a batch, which
costs one all-reduce of a seed's gradient per training step and nothing in an evaluation. What a seed draws depends on
its number, the step and the place of a set in its batch, never on the mesh.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh

SEEDS, SETS = "seeds", "sets"
"""The axes of the mesh."""


class Habits(NamedTuple):
    """How training goes best on a kind of device."""

    one_seed_at_a_time: bool
    """Whether a device trains its seeds one after the other, each on its visible items alone, or all side by side."""
    least_sets: int
    """Sets of a batch that a device must keep for dividing them further to be worth an all-reduce in every step."""


def habits() -> Habits:
    """Those of this machine's devices.

    A CPU core keeps one seed in its cache, and a set costs it about 10 µs where the all-reduce of the paper's model
    costs some hundred. An accelerator is filled by many seeds at once and has fast links.
    """
    return Habits(True, 32) if jax.default_backend() == "cpu" else Habits(False, 1)


def shares(seeds: int, sets: int, devices: int, processes: int = 1, least_sets: int = 1) -> tuple[int, int]:
    """Into how many equal parts seeds and sets are divided: parts of seeds × parts of sets ≤ devices.

    As many devices work as can, equally many of each process; of equal choices the one that divides the seeds more,
    as only divided sets communicate. A part has at least `least_sets` sets, unless a process would be left without
    work; raises ValueError if one is nevertheless.

    >>> shares(10, 128, 2), shares(10, 128, 8), shares(3, 128, 8), shares(1, 100, 8)
    ((2, 1), (2, 4), (1, 8), (1, 5))
    >>> shares(10, 128, 64), shares(10, 128, 64, least_sets=32)
    ((2, 32), (10, 4))
    """
    choices = [
        (by_seed * by_set, by_seed, by_set)
        for by_seed in range(1, min(seeds, devices) + 1)
        for by_set in range(1, min(sets, devices // by_seed) + 1)
        if seeds % by_seed == 0 and sets % by_set == 0 and by_seed * by_set % processes == 0
    ]
    if not choices:
        raise ValueError(
            f"{seeds} seeds of {sets} sets do not divide evenly among {processes} processes: "
            "let a multiple of the processes divide seeds × sets"
        )
    worthwhile = [choice for choice in choices if choice[2] == 1 or sets // choice[2] >= least_sets]
    _, by_seed, by_set = max(worthwhile or choices)
    return by_seed, by_set


def device_mesh(seeds: int, sets: int = 1, least_sets: int = 1) -> Mesh:
    """The mesh with axes ("seeds", "sets") on which so many seeds, with so many sets each, are computed.

    The devices that share a seed are neighbours: of one process where they can be, since they alone communicate.
    """
    devices = available_devices()
    by_process = [list(group) for _, group in itertools.groupby(devices, lambda device: device.process_index)]
    usable = min(map(len, by_process)) * len(by_process)
    by_seed, by_set = shares(seeds, sets, usable, len(by_process), least_sets)
    if by_seed * by_set == len(devices):
        return jax.make_mesh((by_seed, by_set), (SEEDS, SETS), axis_types=(AxisType.Auto,) * 2, devices=devices)
    each = by_seed * by_set // len(by_process)
    chosen = np.array([device for group in by_process for device in group[:each]]).reshape(by_seed, by_set)
    return Mesh(chosen, (SEEDS, SETS), axis_types=(AxisType.Auto,) * 2)


def available_devices() -> Sequence[Any]:
    """The devices of every process, those of one process after another."""
    return sorted(jax.devices(), key=lambda device: (device.process_index, device.id))


def own_sets(batch: Any, parts: int) -> Any:
    """The part of this device of a batch that every device of a seed has drawn whole; call it under the mesh.

    Drawing is cheap beside a training step, and a part of the same draw is the same to the bit.
    """
    if parts == 1:
        return batch

    def part(leaf: jax.Array) -> jax.Array:
        size = leaf.shape[0] // parts
        return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index(SETS) * size, size)

    return jax.tree.map(part, batch)


def mean_over_sets(tree: Any, parts: int) -> Any:
    """The mean over the devices that share a seed, on each of them; call it under the mesh."""
    if parts == 1:
        return tree
    # All leaves as one vector: devices wait for each other once, not once a leaf.
    vector, as_tree = ravel_pytree(tree)
    return as_tree(jax.lax.pmean(vector, SETS))
