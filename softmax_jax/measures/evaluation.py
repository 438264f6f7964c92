"""The evaluation: one pass over fresh sets, each read once under every normalizer while the measures look on."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Array, Bool, Float, Key

from softmax_jax.measures.known_items import KnownItems, pays
from softmax_jax.measures.long_sets import LONGEST_WHOLE, read_by_blocks
from softmax_jax.measures.pipeline import two_at_a_time
from softmax_jax.measures.sets import (
    NOTEBOOK_LENGTHS,
    as_given,
    draw_with_room,
    for_each_seed,
    fresh_batches,
    notebook_batches,
    on_devices,
    set_by_set,
)
from softmax_jax.measures.statistics import corrected, half_width, paired_p_value
from softmax_jax.measures.table import EVALUATION, KEYS, MEASURES, Seen
from softmax_jax.normalizers import checks, maps
from softmax_jax.normalizers.maps import soft_cap
from softmax_jax.normalizers.normalizer import Normalizer, SoftCapped
from softmax_jax.normalizers.registry import normalizer
from softmax_jax.normalizers.scales import EntropyPolynomial
from softmax_jax.tasks.max_retrieval import Batch, MaxRetrieval
from softmax_jax.tasks.task import Reading, Task
from softmax_jax.training.distributed import gathered
from softmax_jax.training.trainer import Parameters, build_model

SHARED = 128, 512, 2048
"""Sets of at most so many items are read sooner by one program, among more masked ones, than by one for each length."""
LENGTHS = tuple(2**power for power in range(1, 15))
PROTOCOLS = "fresh", "notebook"
SETS = 512
"""Of each seed and length, unless the task or the caller says otherwise."""
DEFAULT_NORMALIZERS = ("softmax", "adaptive", "ssmax", "softpick", "hardmax")
BASELINE = "softmax"
TRUE_ITEM = "the true item alone"
"""In the place of a normalizer's name: all weight on the item with the largest ρ."""
TRUE_KEY = "softmax under a true key"
"""In the place of a name: softmax, once the item with the largest ρ has taken the largest logit of its row."""


class Measured(NamedTuple):
    """What was measured of every set of one length."""

    n: int
    normalizers: tuple[str, ...]
    seeds: tuple[int, ...]
    values: dict[str, Float[np.ndarray, "seeds sets normalizers *numbers"]]
    """By the name of the measure."""

    @property
    def sets(self) -> int:
        """Sets of each seed."""
        return next(iter(self.values.values())).shape[1]

    def frame(self) -> pl.DataFrame:
        """The keys and, for each measure that can be aggregated, a column: a row per normalizer and seed."""
        keys = [(name, self.n, seed) for name in self.normalizers for seed in self.seeds]
        columns = {
            name: [aggregate(values[index, :, at]) for at in range(values.shape[2]) for index in range(len(values))]
            for name, values in self.values.items()
            if (aggregate := MEASURES[name].aggregate)
        }
        measures = pl.DataFrame(columns, dict.fromkeys(columns, pl.Float64))
        return pl.DataFrame(keys, dict(zip(KEYS, (pl.String, pl.Int64, pl.Int64))), orient="row").hstack(measures)


def evaluate(
    parameters: Parameters,
    normalizers: Mapping[str, Normalizer | None],
    *,
    seeds: Sequence[int],
    lengths: Sequence[int] = LENGTHS,
    sets: int | Mapping[int, int] = SETS,
    measures: Sequence[str] = tuple(EVALUATION),
    references: Sequence[str] = (),
    protocol: str = "fresh",
    key: Key[Array, ""] | None = None,
    task: Task | None = None,
    trained_under: str = BASELINE,
) -> Iterator[Measured]:
    """Yields, length by length, the measures of every set under every normalizer and reference.

    A reference, `TRUE_ITEM` or `TRUE_KEY`, is told which item has the largest ρ; max retrieval alone has them.
    `parameters` have a leading axis over `seeds`; they are those of max retrieval unless a task is named, whose model
    was `trained_under` a normalizer: None in the place of one stands for that, with the numbers that it learned.
    Protocol "fresh" draws `sets` new sets for every seed and length from `key`, the
    same for every normalizer; "notebook" ignores `sets` and `key`. Fresh sets of more than `LONGEST_WHOLE` items are
    encoded block by block, and where rounding leaves fewer items than are read, each of those is encoded once. Compiles
    once for the lengths that share a room, as `rooms_of` has it, which are masked to their own; under "notebook"
    once a length. Measures that the task cannot have are left out. Raises, before it computes or yields anything,
    unless its arguments fit each other.
    """
    task = task_of(parameters) if task is None else task
    check_seeds(parameters, seeds)
    checks.one_of("protocol", protocol, PROTOCOLS)
    own_items = type(task) is MaxRetrieval  # whose items the notebook and the pass over blocks draw themselves
    if protocol == "notebook" and not own_items:
        raise ValueError(
            f"--protocol is notebook: its sets must be those of max retrieval, and the run's are {task.name}"
        )
    if not normalizers:
        raise ValueError(
            "normalizers is empty; it must have at least one: give {'softmax': softmax_jax.normalizer(...)}"
        )
    for length in lengths:
        checks.whole("each of lengths", length, 1, 16, 2**20)
    count = sets if isinstance(sets, Mapping) else dict.fromkeys(lengths, sets)
    everywhere = tuple(normalizers.values())
    if isinstance(task, MaxRetrieval):  # which learns none
        everywhere = tuple(one or normalizer(trained_under) for one in everywhere)
    structure, rooms = build_model(task, trained_under)[0], rooms_of(task, lengths)

    def values_at(items: int) -> dict[str, Array]:
        room, draw = rooms[items], as_given
        by_blocks = own_items and protocol == "fresh" and items > LONGEST_WHOLE
        look = looker(task, tuple(measures), tuple(references), room if by_blocks else None)
        if protocol == "notebook":
            batches = notebook_batches(seeds, items)
        else:
            batches = fresh_batches(task, seeds, items, count[items], key, room)
            draw = as_given if by_blocks else draw_with_room(task, room)
        placed, batches, shared = on_devices(parameters, batches, everywhere)
        of_seed = math.prod(jax.tree.leaves(batches)[0].shape[1:3]) * room
        prepare = KnownItems if pays(task, of_seed) else as_given
        options = {"structure": structure, "draw": draw, "prepare": prepare}
        return jax.block_until_ready(for_each_seed(look, placed, batches, shared, **options))

    # Two sets of a million items at once would take twice the memory.
    at_each = (map if max(lengths) > LONGEST_WHOLE else two_at_a_time)(values_at, lengths)
    names = (*normalizers, *references)
    return (_gathered(items, names, tuple(seeds), values, measures) for items, values in zip(lengths, at_each))


class Plan(NamedTuple):
    """An evaluation that yields a frame at each length, in this order."""

    sets: int
    lengths: list[int]
    frames: Iterator[pl.DataFrame]


def planned(
    parameters: Parameters,
    normalizers: Mapping[str, Normalizer | None],
    *,
    task: Task,
    lengths: Sequence[int],
    sets: int | None,
    protocol: str,
    **options: Any,
) -> Plan:
    """The evaluation of the table of measures: at the task's own lengths without `lengths`, on `SETS` without `sets`.

    The options are those of `evaluate`, and it raises the same.
    """
    asked = list(lengths or (NOTEBOOK_LENGTHS if protocol == "notebook" else task.test_lengths))
    options |= {"lengths": asked, "sets": sets or SETS, "measures": (*EVALUATION, "extrapolated")}
    measured = evaluate(parameters, normalizers, task=task, protocol=protocol, **options)
    return Plan(sets or SETS, asked, (of_length.frame() for of_length in measured))


def rooms_of(task: Task, lengths: Sequence[int]) -> dict[int, int]:
    """The items that the program for each length has room for: lengths of max retrieval share those of `SHARED`.

    >>> rooms_of(MaxRetrieval(), (2, 16, 100, 512, 1000, 4096))
    {2: 112, 16: 112, 100: 112, 512: 512, 1000: 1024, 4096: 4096}
    """

    def room(length: int) -> int:
        most = next((most for most in SHARED if length <= most), length) if type(task) is MaxRetrieval else length
        return task.room(max(other for other in lengths if other <= most))

    return {length: room(length) for length in lengths}


def _gathered(
    items: int, normalizers: tuple[str, ...], seeds: tuple[int, ...], values: Mapping[str, Array], order: Sequence[str]
) -> Measured:
    """Brings the parts of all processes together; not called by the threads, as processes must gather in one order."""
    whole = set_by_set(gathered(dict(values)))
    return Measured(items, normalizers, seeds, {name: whole[name] for name in order if name in whole})


@functools.cache
def looker(
    task: Task, measures: tuple[str, ...], references: tuple[str, ...], blocks_of: int | None
) -> Callable[..., Any]:
    """What a program does with a batch; one function object for each, so that the compiled code is found again."""

    def everyone(normalizers: Sequence[Any], rho: Any) -> tuple[Any, ...]:
        return (*normalizers, *(Normalizer(functools.partial(REFERENCES[name], rho)) for name in references))

    def look(model: Any, normalizers: Sequence[Any], batch: Any) -> dict[str, Array]:
        if blocks_of is not None and isinstance(task, MaxRetrieval):
            reading, rho = read_by_blocks(
                model, functools.partial(everyone, normalizers), batch, blocks_of, task.priority
            )
        else:
            rho = jnp.where(batch.mask, batch.items[..., 0], -jnp.inf) if isinstance(batch, Batch) else None
            reading = task.read(model, everyone(normalizers, rho), batch)
        return values_of(measures, everyone(normalizers, rho), reading, rho)

    return look


def true_item_alone(rho: Float[Array, "sets items"], logits: Array, axis: int = -1, where: Any = None) -> Array:
    """All weight on the item with the largest ρ; ρ is -inf at places without an item."""
    return jax.nn.one_hot(rho.argmax(-1), rho.shape[-1], dtype=logits.dtype).reshape(logits.shape)


def under_true_key(rho: Float[Array, "sets items"], logits: Array, axis: int = -1, where: Any = None) -> Array:
    """Softmax of the same logits in another order: the largest belongs to the item with the largest ρ."""
    rows, visible, items = logits.reshape(rho.shape), rho > -jnp.inf, jnp.arange(rho.shape[-1])[None]
    first, true = (row.argmax(-1)[:, None] for row in (jnp.where(visible, rows, -jnp.inf), rho))
    of_first, of_true = (jnp.take_along_axis(rows, place, -1) for place in (first, true))
    rows = jnp.where(items == true, of_first, jnp.where(items == first, of_true, rows))
    return maps.softmax(rows, -1, visible).reshape(logits.shape)


REFERENCES = {TRUE_ITEM: true_item_alone, TRUE_KEY: under_true_key}


def values_of(
    measures: Sequence[str], normalizers: Sequence[Any], reading: Reading, rho: Float[Array, "sets items"] | None
) -> dict[str, Float[Array, "sets normalizers *numbers"]]:
    """The measures of every set of a batch under every normalizer."""
    seen = Seen(reading.scores, reading.answer, reading.logits, reading.where, reading.weights, rho=rho)
    axes = Seen(scores=0, answer=None, weights=0, beta=0, extrapolates=0)  # pyright: ignore[reportArgumentType]
    if seen.logits is not None:
        of_rows = [row_facts(one, seen.logits, seen.where) for one in normalizers]
        seen = seen._replace(
            beta=jnp.stack([beta for beta, _ in of_rows], 1),
            extrapolates=jnp.stack([beyond for _, beyond in of_rows], 1),
        )
    return {
        name: jax.vmap(jax.vmap(MEASURES[name].of_set, in_axes=(axes,)))(seen)
        for name in measures
        if all(getattr(seen, field) is not None for field in MEASURES[name].needs)
    }


def row_facts(
    one: Normalizer, logits: Float[Array, "sets items"], where: Any
) -> tuple[Float[Array, " sets"], Bool[Array, " sets"]]:
    """The inverse temperature of each row, NaN unless the map is softmax; whether a fit is asked beyond its range."""
    if isinstance(one.map, SoftCapped):
        logits, one = soft_cap(logits, one.map.cap), one.map.of
    scale = one.scale
    is_softmax = isinstance(one.map, maps.Softmax) and one.shift_invariant
    beta = jnp.ones((), jnp.float32) if scale is None else scale(logits, -1, where)
    beyond = jnp.zeros((), bool)
    if isinstance(scale, EntropyPolynomial) and scale.entropy_range is not None:
        beyond = scale.extrapolates(logits, -1, where)
    beta = jnp.where(is_softmax, beta, jnp.nan)
    return jnp.broadcast_to(beta, (len(logits), 1))[:, 0], jnp.broadcast_to(beyond, (len(logits), 1))[:, 0]


def task_of(parameters: Parameters, task: Task | None = None) -> MaxRetrieval:
    """The task if it is max retrieval, or else that at the width of these parameters.

    Raises ValueError for parameters of another model.
    """
    try:
        of_width = MaxRetrieval(width=parameters["item_in"]["kernel"].shape[-1])
        return task if isinstance(task, MaxRetrieval) else of_width
    except (TypeError, KeyError, IndexError, AttributeError):
        raise ValueError(
            "the parameters must be those of the max-retrieval model: name a run of max retrieval"
        ) from None


def check_seeds(parameters: Parameters, seeds: Sequence[int]) -> None:
    """Raises ValueError unless the parameters have a leading axis over these seeds."""
    shapes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(parameters)}
    if shapes != {(len(seeds),)}:
        raise ValueError(
            f"parameters have leading axes {sorted(shapes)} for {len(seeds)} seeds; it must be one of the seeds: give "
            "as many seeds, or add the axis with leaf[None]"
        )


def frame_of(measured: Iterable[Measured]) -> pl.DataFrame:
    """The frame of several lengths."""
    return pl.concat(of_length.frame() for of_length in measured)


def summarize(frame: pl.DataFrame, baseline: str = BASELINE) -> pl.DataFrame:
    """Means over seeds, with Student's t interval of the accuracy and the paired t-test against the baseline.

    The p-values are corrected for the number of tests in the frame.
    """
    measures = [name for name in frame.columns if name not in KEYS]
    groups = frame.group_by("normalizer", "n", maintain_order=True)
    accuracies = {(name, n): values for name, n, values in groups.agg("accuracy").rows()}
    p_values = [
        None if name == baseline else paired_p_value(values, accuracies.get((baseline, n), []))
        for (name, n), values in accuracies.items()
    ]
    columns = {"interval": list(map(half_width, accuracies.values())), "p_value": corrected(p_values)}
    found = pl.DataFrame(columns, dict.fromkeys(columns, pl.Float64))
    return groups.agg(pl.mean(*measures)).hstack(found)
