"""The evaluation: fresh sets of any length, each read under every normalizer while the measures look on."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Array, Float, Key

from softmax_jax.experiment.measures.one_set import SetMeasures, heads_of
from softmax_jax.experiment.measures.over_sets import as_they_compile, models_of, on_every_set, set_by_set
from softmax_jax.experiment.measures.sets import rooms_of, set_keys
from softmax_jax.experiment.measures.table import BASELINE, EVALUATION, KEYS, MEASURES
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.task import Task
from softmax_jax.experiment.training.distributed import gathered, on_host
from softmax_jax.experiment.training.run import Parameters
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.registry import method_of, normalizer
from softmax_jax.refusal import Refusal

PARTS = 4
"""Number of parts in which the sets of a long length are computed; a progress bar moves after each."""
ITEMS_TO_DIVIDE = 2**21
"""Items of a seed from which a length is computed in parts: about a second for ten seeds on two cores."""


class Measured(NamedTuple):
    """The measures of every set of one length."""

    n: int
    normalizers: tuple[str, ...]
    seeds: tuple[int, ...]
    values: dict[str, Float[np.ndarray, "seeds sets normalizers *numbers"]]
    """By the name of the measure; of several rows of attention, each has its numbers."""
    rows: int = 1
    """Rows of attention of a set; if they are several, measures that look at rows have an axis of them."""

    @property
    def sets(self) -> int:
        """Sets of each seed."""
        return next(iter(self.values.values())).shape[1]

    def frame(self) -> pl.DataFrame:
        """The keys and, for each measure that can be aggregated, a column: a row per normalizer and seed."""
        keys = [(name, self.n, seed) for name in self.normalizers for seed in self.seeds]
        columns = {}
        for name, values in self.values.items():
            if aggregate := MEASURES[name].aggregate:
                cells = [values[index, :, place] for place in range(values.shape[2]) for index in range(len(values))]
                if self.rows > 1 and MEASURES[name].of_row:
                    cells = [cell.reshape(-1, *cell.shape[2:]) for cell in cells]
                columns[name] = list(map(aggregate, cells))
        measures = pl.DataFrame(columns, dict.fromkeys(columns, pl.Float64)).fill_nan(None)
        return pl.DataFrame(keys, dict(zip(KEYS, (pl.String, pl.Int64, pl.Int64))), orient="row").hstack(measures)


def frame_of(measured: Iterable[Measured]) -> pl.DataFrame:
    """Returns the frame of several lengths."""
    return pl.concat(measured_length.frame() for measured_length in measured)


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """Trained models, the normalizers to read them under, and what to measure on which sets.

    Every normalizer reads the same sets. Raises ValueError unless the fields fit each other, before anything is
    computed.
    """

    task: Task
    parameters: Parameters
    """Those of a trained model for each of `seeds`, in a leading axis."""
    normalizers: Mapping[str, Normalizer | None]
    """By name. Each replaces all softmaxes of attention, as `swap` does. None means the normalizer of training with its
    learned numbers."""
    seeds: Sequence[int]
    sets: int | Mapping[int, int] | None = None
    """Sets per seed, or those by length; without a number as many as the task says."""
    measures: Sequence[str] = tuple(EVALUATION)
    """Names in `table.MEASURES`. Those that the task cannot have are left out."""
    references: Sequence[str] = ()
    """Names in `references.REFERENCES`, for a task with `priorities`."""
    key: Key[Array, ""] | None = None
    """The key that sets are drawn from, as of `sets.key_of`; that of every table without one."""
    trained_under: str = BASELINE
    done: Callable[[float], None] = lambda items: None
    """Called with each part of a length's items that is computed."""

    def __post_init__(self) -> None:
        check_seeds(self.parameters, self.seeds)
        if not self.normalizers:
            example = "{'softmax': softmax_jax.normalizer(...)}"
            raise Refusal(f"normalizers is empty; it must have at least one: give {example}")
        if len(parts := self.task.parts()) > 1:
            names = ", ".join(parts)
            raise Refusal(f"task has {len(parts)} parts: {names}; they must be evaluated one by one: take task.parts()")
        if self.references and not heads_of(self.task, self.task.test_lengths[0]).ranked:
            names = ", ".join(self.references)
            raise Refusal(f"references are {names}: the task {self.task.name} ranks no items, so give none")

    @functools.cached_property
    def replacing(self) -> tuple[Normalizer | None, ...]:
        """The normalizers in order; None stands for one that learned numbers in training."""
        learned = method_of(self.trained_under)[0].learned
        trained = None if learned else normalizer(self.trained_under)
        return tuple(chosen or trained for chosen in self.normalizers.values())

    def sets_at(self, length: int) -> int:
        """Returns the number of sets of each seed at a length."""
        if isinstance(self.sets, int):
            return self.sets
        return (self.sets or {}).get(length, self.task.test_sets(length))

    def at(self, length: int) -> Measured:
        """Returns the measures of every set of one length."""
        return next(self.over((length,)))

    def over(self, lengths: Sequence[int] = ()) -> Iterator[Measured]:
        """Yields the measures of one length after the other; without `lengths` those of the task.

        Lengths that share a program by `rooms_of` compile it once, and while one is computed, the next compile. Raises
        ValueError for a length that the task does not have, before anything is computed.
        """
        lengths = tuple(lengths or self.task.test_lengths)
        for length in lengths:
            self.task.check_length("lengths", length)
        rooms = rooms_of(self.task, lengths)
        items = sum(rooms[length] * self.sets_at(length) for length in lengths)
        trained_under = self.trained_under if None in self.replacing else None
        models = models_of(self.task, self.parameters, trained_under, items)
        parts = as_they_compile(self._parts(models, length, rooms[length]) for length in lengths)
        return (self._measured(length, self._computed(length, calls)) for length, calls in zip(lengths, parts))

    def _parts(self, models: Any, length: int, room: int) -> list[tuple[Any, ...]]:
        """Returns the arguments of `on_every_set` for each part of the sets, in a program with room for more items."""
        sets = self.sets_at(length)
        keys = set_keys(self.seeds, length, sets, self.key)
        drawn = keys, np.full(keys.shape, length, np.int32)
        measures = SetMeasures(self.task, room, tuple(self.measures), tuple(self.references))
        size = sets // (math.gcd(sets, PARTS) if sets * room >= ITEMS_TO_DIVIDE else 1)
        cuts = [slice(start, start + size) for start in range(0, sets, size)]
        parts = [jax.tree.map(lambda leaf, cut=cut: on_host(lambda array: array[:, cut], leaf), drawn) for cut in cuts]
        return [(measures, models, part, self.task.at_once(room), self.replacing) for part in parts]

    def _computed(self, length: int, calls: Sequence[tuple[Any, ...]]) -> list[dict[str, Array]]:
        """Computes the measures of all sets of a length, part by part."""
        results = []
        for call in calls:
            results.append(jax.block_until_ready(on_every_set(*call)))
            self.done(length / len(calls))
        return results

    def _measured(self, length: int, parts: Sequence[dict[str, Array]]) -> Measured:
        """Brings the parts of all processes together."""
        wholes = [set_by_set(gathered(dict(values))) for values in parts]
        values = {name: np.concatenate([part[name] for part in wholes], 1) for name in wholes[0]}
        rows = max((values[name].shape[3] for name in values if MEASURES[name].of_row), default=1)
        if rows == 1:
            values = {name: array[:, :, :, 0] if MEASURES[name].of_row else array for name, array in values.items()}
        values = {name: values[name] for name in self.measures if name in values}
        return Measured(length, (*self.normalizers, *self.references), tuple(self.seeds), values, rows)


def evaluate(
    parameters: Parameters,
    normalizers: Mapping[str, Normalizer | None],
    *,
    lengths: Sequence[int] = (),
    task: Task | None = None,
    **fields: Any,
) -> Iterator[Measured]:
    """Yields, length by length, the measures of every set under every normalizer and reference.

    The `fields` are those of `Evaluation`, and it raises the same. The task is max retrieval unless one is named.
    """
    return Evaluation(task or task_of(parameters), parameters, normalizers, **fields).over(lengths)


def task_of(parameters: Parameters) -> MaxRetrieval:
    """Returns max retrieval at the width of these parameters. Raises ValueError for those of another model."""
    try:
        width = parameters["item_in"]["kernel"].shape[-1]
    except (TypeError, KeyError, IndexError, AttributeError):
        raise Refusal(
            "the parameters are not those of the max-retrieval model: name their task with task=..."
        ) from None
    return MaxRetrieval(width=width)


def check_seeds(parameters: Parameters, seeds: Sequence[int]) -> None:
    """Raises ValueError unless the parameters have a leading axis over these seeds."""
    shapes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(parameters)}
    if shapes != {(len(seeds),)}:
        raise Refusal(
            f"parameters have leading axes {sorted(shapes)} for {len(seeds)} seeds; it must be one of the seeds: give "
            "as many seeds, or add the axis with leaf[None]"
        )
