"""Ten evaluation rows of a shipped model and three training losses, all of fixed keys, and how they are compared."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from softmax_jax.experiment.measures.evaluation import evaluate, frame_of
from softmax_jax.experiment.measures.runs import DEFAULT_NORMALIZERS
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.run import TrainState, build_run
from softmax_jax.experiment.training.run_directory import load_checkpoint
from softmax_jax.experiment.training.trainer import chunk_trainer
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import normalizer

HERE = Path(__file__).parent
SHIPPED = HERE.parents[1] / "checkpoints" / "paper_float32"
LENGTHS = (16, 1000)
SETS = 64
MEASURES = ("accuracy", "loss", "entropy", "max_weight", "extrapolated")
TRAINING = Config(MaxRetrieval(batch=64, min_items=7, max_items=8, width=32), steps=60, seeds=1, chunk=20)

ONE_SET = 100 / SETS
RELATIVE = 1e-4
"""What numbers may differ by, as a share of what was kept; beside it `ABSOLUTE`, for those near 0.

Compilers and CPUs sum in other orders, with instructions of other widths, and so may the next version of this code.
`python -m tests.golden.spread` measures by how much. A percent of a temperature or a learning rate is far more.
"""
ABSOLUTE = {"accuracy": ONE_SET, "extrapolated": ONE_SET}
"""In percent of sets, one set: rounding may decide between two answers that are all but equally likely."""
SMALLEST = 1e-6


def evaluation(normalizers: Mapping[str, Normalizer] | None = None) -> list[dict[str, Any]]:
    """Rows of the first shipped model; under other numbers of the default normalizers if they are given."""
    config, parameters = load_checkpoint(SHIPPED)
    seeds = config.all_seeds
    parameters = jax.tree.map(lambda leaf: leaf[:1], parameters)
    named = {name: normalizer(name) for name in (*DEFAULT_NORMALIZERS, "softpick")} | dict(normalizers or {})
    measured = evaluate(parameters, named, seeds=seeds[:1], lengths=LENGTHS, sets=SETS, measures=MEASURES)
    return frame_of(measured).to_dicts()


def training(trainer: Any, state: TrainState) -> list[dict[str, Any]]:
    """The loss of three chunks of training, one after the other."""
    losses = []
    for step in range(0, TRAINING.steps, TRAINING.chunk):
        state, metrics = trainer(state, step, TRAINING.chunk)
        losses.append({"steps": step + TRAINING.chunk, "loss": float(metrics.loss[0])})
    return losses


def numbers() -> dict[str, list[dict[str, Any]]]:
    """All that is kept."""
    run = build_run(TRAINING)
    return {"evaluation": evaluation(), "training": training(chunk_trainer(run), run.initial_state())}


def flat(found: dict[str, list[dict[str, Any]]]) -> dict[tuple[str, str], float]:
    """Each number by what it is a number of and by its name."""
    by_name = {}
    for part, key in (("evaluation", ("normalizer", "n", "seed")), ("training", ("steps",))):
        for row in found[part]:
            of = " ".join(f"{name} {row[name]}" for name in key)
            by_name |= {(f"{part}, {of}", name): value for name, value in row.items() if name not in key}
    return by_name


def allowed(name: str, kept: float) -> float:
    """By how much a number may differ from the one kept."""
    return ABSOLUTE.get(name, SMALLEST + RELATIVE * abs(kept))


def differences(found: dict[str, Any], kept: dict[str, Any]) -> list[str]:
    """A line for each number that is not the one kept."""
    ours, theirs = flat(found), flat(kept)
    lines = [f"{of}: {name} is only in one of the two" for of, name in ours.keys() ^ theirs.keys()]
    for (of, name), expected in theirs.items():
        value = ours.get((of, name), expected)
        # Not the other way round, or a NaN would pass.
        if not abs(value - expected) <= allowed(name, expected) * (1 + 1e-9):
            lines.append(f"{of}: {name} is {value:.7g}, kept is {expected:.7g} ± {allowed(name, expected):.2g}")
    return sorted(lines)


def release(version: str) -> tuple[int, int]:
    """The first two numbers of a version, which name its results.

    >>> release("0.12.0.1")
    (0, 12)
    """
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def path_of(version: str) -> Path:
    """The file of a version of jax."""
    return HERE / "jax-{}.{}.json".format(*release(version))


def kept(version: str) -> tuple[dict[str, Any], str]:
    """The numbers kept for a version of jax, or else for the newest before it, or else for the oldest; and which."""
    files = {release(path.stem.removeprefix("jax-")): path for path in HERE.glob("jax-*.json")}
    here = release(version)
    nearest = max((known for known in files if known <= here), default=min(files))
    said = f"those kept for jax {nearest[0]}.{nearest[1]}"
    if nearest != here:
        said += f", as there are none for jax {version} (`python -m tests.golden.write` keeps them)"
    return json.loads(files[nearest].read_text()), said


def largest_share(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """By the name of a number: the largest difference between the two, as a share of what is allowed."""
    ours, theirs, shares = flat(one), flat(other), {}
    for (of, name), value in theirs.items():
        share = abs(ours[of, name] - value) / allowed(name, value)
        shares[name] = max(shares.get(name, 0.0), share if math.isfinite(share) else math.inf)
    return shares
