"""The protocol of the board: which tasks at which sizes, how models are trained and tested, and its fingerprint."""

import dataclasses
import hashlib
import json
from typing import Any

from softmax_jax.experiment.tasks import task_class
from softmax_jax.experiment.tasks.sequences import SequenceTask

COLUMNS = "trained", "swapped"
"""How a model comes to a method: it is trained with it, or has it in place of the softmax that it was trained with."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One task with its sizes, and how long its models are trained."""

    name: str
    """The name of the task."""
    need: str
    """What a row of attention has to find, in words."""
    steps: int
    sizes: tuple[tuple[str, Any], ...] = ()
    """Settings of the task in which it differs from the others."""
    multiples: tuple[int, ...] = (1, 4, 16, 64)
    """Lengths to test at, as multiples of the length of training."""
    sets: int = 64
    """Test sets of each seed and length."""

    @property
    def task(self) -> SequenceTask:
        """The task at the sizes of the board."""
        kind: Any = task_class(self.name)
        return kind(**{"length": 16, "hidden": 32, "layers": 1, "dropout": 0.0} | dict(self.sizes))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths to test at."""
        return tuple(multiple * self.task.length for multiple in self.multiples)


@dataclasses.dataclass(frozen=True)
class Protocol:
    """All that decides the accuracies of a cell beside its method."""

    jobs: tuple[Job, ...]
    seeds: int = 6
    """Models of each cell; the unit of every test."""
    rates: tuple[float, ...] = (0.003, 0.01)
    """Peaks of the learning rate; each cell takes the one with the least loss on sets that no test has."""
    warm_up: int = 50
    """Steps in which the learning rate rises, before it falls as a cosine."""

    @property
    def floors(self) -> dict[str, float]:
        """The accuracy of the best answer that reads nothing, in percent, by task."""
        return {job.name: job.task.floor for job in self.jobs}

    @property
    def digest(self) -> str:
        """The SHA-256 of the protocol as JSON, with every setting of its tasks."""
        tasks = [[job.name, dataclasses.asdict(job.task)] for job in self.jobs]
        text = json.dumps([dataclasses.asdict(self), tasks], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


FOUR_QUERIES = (("queries", 4),)
PROTOCOL = Protocol(
    (
        Job("transformer_max_retrieval", "the largest of all items", 600, sets=128),
        Job("multi_query", "one item for each query", 600, FOUR_QUERIES),
        Job("sort", "the next item in order", 1000, (("length", 8), *FOUR_QUERIES)),
        Job("copy", "the item at a position", 600, FOUR_QUERIES),
        Job("set_complement", "all items", 300, sets=128),
        Job("trigger", "all items, or none", 1000, FOUR_QUERIES),
        Job("signal", "a pattern in noise", 300, (("pooling", "last"), ("sequences", 2048)), (1, 4, 16), sets=128),
    )
)
"""The protocol of the board that ships."""
