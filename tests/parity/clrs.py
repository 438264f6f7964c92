"""The text generator of dm-clrs without the packages that it imports and never calls."""

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from studies.clrs_text.algorithms import ALGORITHMS, Kind


def load() -> tuple[ModuleType, ModuleType, ModuleType]:
    """Its samplers, the formatter of their samples, and the module of greedy algorithms.

    Its own packages are made by path alone, as their `__init__` would import what trains models.
    """
    spec = importlib.util.find_spec("clrs")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    root = Path(spec.submodule_search_locations[0])
    for name in ("clrs", "clrs._src.clrs_text"):
        module = ModuleType(name)
        module.__path__ = [str(root.parent.joinpath(*name.split(".")))]
        sys.modules[name] = module
    for name, members in {
        "tensorflow": {"Tensor": type("Tensor", (), {})},
        "chex": {"assert_rank": lambda *_: None, "Array": Any, "Numeric": Any},
        "ml_collections": {},
        "tqdm": {},
    }.items():
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = stub = ModuleType(name)
            vars(stub).update(members)
    logging.getLogger("absl").setLevel(logging.ERROR)
    names = ("clrs._src.samplers", "clrs._src.clrs_text.clrs_utils", "clrs._src.algorithms.greedy")
    samplers, utils, greedy = map(importlib.import_module, names)
    return samplers, utils, greedy


def samples(
    modules: tuple[ModuleType, ...], algorithm: str, length: int, count: int, decimals: int
) -> Iterator[tuple[dict[str, np.ndarray], tuple[str, str]]]:
    """The inputs of samples, as this project holds them, with question and answer of the original."""
    samplers, utils, *_ = modules
    how: dict[str, Any] = {"track_max_steps": False, "truncate_decimals": decimals}
    sampler, _ = samplers.build_sampler(algorithm, num_samples=-1, seed=length, length=length, **how)
    for _ in range(count):
        sample = sampler.next(1)
        data = {point.name: np.asarray(point.data)[0] for point in sample.features.inputs}
        inputs = {name: as_held(data[name], kind, decimals) for name, kind in ALGORITHMS[algorithm].inputs.items()}
        yield inputs, utils.format_clrs_example(algorithm, sample)


def as_held(values: np.ndarray, kind: Kind, decimals: int) -> np.ndarray:
    """Codes of decimals, which the original has truncated; of letters, which come one-hot, their numbers."""
    if kind.is_decimal:
        size = np.rint(np.abs(values) * 10**decimals).astype(np.int32)
        return np.where(np.signbit(values), ~size, size)
    return (values.argmax(-1) if values.ndim > 1 else values).astype(np.int32)
