"""The evaluation: one pass over fresh sets, each read under every normalizer while the measures look on."""

import enum
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxtyping import Array, Bool, Float, Key

from softmax_jax.experiment.measures.heads import HeadRows, attended, under_each
from softmax_jax.experiment.measures.significance import (
    corrected,
    detectable,
    half_width,
    max_t_p_values,
    paired_p_value,
)
from softmax_jax.experiment.measures.table import EVALUATION, KEYS, MEASURES, Seen
from softmax_jax.experiment.tasks import notebook
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.retrieval_model import LONGEST_WHOLE
from softmax_jax.experiment.tasks.task import Task
from softmax_jax.experiment.training.distributed import SEEDS, SETS, device_mesh, gathered, placed
from softmax_jax.experiment.training.run import Parameters, build_model
from softmax_jax.files import typed
from softmax_jax.normalizers import checks, maps
from softmax_jax.normalizers.maps import soft_cap
from softmax_jax.normalizers.normalizer import Normalizer, SoftCapped
from softmax_jax.normalizers.registry import METHODS, method_of, normalizer
from softmax_jax.normalizers.row import weigh
from softmax_jax.normalizers.scales import EntropyPolynomial
from softmax_jax.refusal import Refusal
from softmax_jax.temperature import FITS, fits_beside, fits_directory

PROTOCOLS = "fresh", "notebook"
DEFAULT_NORMALIZERS = ("softmax", "adaptive", "ssmax", "softpick", "hardmax")
BASELINE = "softmax"
TRUE_ITEM = "the true item alone"
"""In the place of a normalizer's name: all weight on the item of the largest priority."""
TRUE_KEY = "softmax under a true key"
"""In the place of a name: softmax, once the item of the largest priority has taken the largest logit of its row."""
PARTS = 4
"""A length of many items is computed in so many parts of its sets: each moves a bar, and makes its own `KnownItems`."""
ITEMS_TO_DIVIDE = 2**21
"""Of a seed: about a second for ten seeds on two cores."""
TEST_KEY = 2**31
"""The number of the key of test sets, beyond the seeds of training."""


@enum.unique
class Draw(enum.IntEnum):
    """The purposes of numbered draws of sets."""

    TABLES = 0
    FIT = 1
    COMPARISON_OF_FITS = 2
    REPORT = 3
    SHARPEST = 4


def key_of(draw: int) -> Key[Array, ""]:
    """Returns the key of a numbered draw."""
    return jax.random.key(TEST_KEY + draw)


class Measured(NamedTuple):
    """The measures of every set of one length."""

    n: int
    normalizers: tuple[str, ...]
    seeds: tuple[int, ...]
    values: dict[str, Float[np.ndarray, "seeds sets normalizers *numbers"]]
    """By the name of the measure; of several rows of attention, each has its numbers."""
    rows: int = 1
    """Rows of attention of a set, which those measures have as an axis that look at rows, if they are several."""

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
                of_each = [values[index, :, at] for at in range(values.shape[2]) for index in range(len(values))]
                if self.rows > 1 and MEASURES[name].of_row:
                    of_each = [of_sets.reshape(-1, *of_sets.shape[2:]) for of_sets in of_each]
                columns[name] = list(map(aggregate, of_each))
        measures = pl.DataFrame(columns, dict.fromkeys(columns, pl.Float64)).fill_nan(None)
        return pl.DataFrame(keys, dict(zip(KEYS, (pl.String, pl.Int64, pl.Int64))), orient="row").hstack(measures)


def evaluate(
    parameters: Parameters,
    normalizers: Mapping[str, Normalizer | None],
    *,
    seeds: Sequence[int],
    lengths: Sequence[int] | None = None,
    sets: int | Mapping[int, int] | None = None,
    measures: Sequence[str] = tuple(EVALUATION),
    references: Sequence[str] = (),
    protocol: str = "fresh",
    key: Key[Array, ""] | None = None,
    task: Task | None = None,
    trained_under: str = BASELINE,
    done: Callable[[float], None] = lambda items: None,
) -> Iterator[Measured]:
    """Yields, length by length, the measures of every set under every normalizer and reference.

    `parameters` have a leading axis over `seeds`; they are those of max retrieval unless a task is named, whose model
    was `trained_under` a normalizer: None in the place of one stands for that, with the numbers that it learned. Every
    other replaces all softmaxes of attention, as `swap` does. Measures of weights look at the rows of these; measures
    that a task cannot have are left out. A reference, `TRUE_ITEM` or `TRUE_KEY`, is for a task with `priorities`.

    Protocol "fresh" draws `sets` new sets of each of `lengths` for every seed from `key`, the same for every
    normalizer; without `sets` or `lengths` they are as many as the task says. "notebook" takes those of the published
    recreation of max retrieval. Compiles once for the lengths that share a program by `rooms_of`. `done` is told, from
    other threads, each part of a length's items that is computed. Raises, before it computes or yields anything, unless
    its arguments fit each other.
    """
    task = task or task_of(parameters)
    check_seeds(parameters, seeds)
    checks.one_of("protocol", protocol, PROTOCOLS)
    fresh = protocol == "fresh"
    if not fresh and task.name != MaxRetrieval.name:
        raise Refusal(f"--protocol is notebook: its sets must be those of max retrieval, and the run's are {task.name}")
    if not normalizers:
        raise Refusal("normalizers is empty; it must have at least one: give {'softmax': softmax_jax.normalizer(...)}")
    lengths = lengths_of(task, lengths, protocol)
    for length in lengths:
        checks.whole("each of lengths", length, 1, 16, 2**20)
    own = None if method_of(trained_under)[0].learned else normalizer(trained_under)
    every = tuple(one or own for one in normalizers.values())
    names = (*normalizers, *references)
    heads = Heads(False, False) if set(every) == {None} else heads_of(task, lengths[0])
    if references and not heads.ranked:
        raise Refusal(f"references are {', '.join(references)}: the task {task.name} ranks no items, so give none")

    rooms = rooms_of(task, lengths) if fresh else dict.fromkeys(lengths)

    def count_at(length: int) -> int:
        if not fresh:
            return notebook.SETS * len(notebook.SEEDS)
        return sets if isinstance(sets, int) else (sets or {}).get(length, task.test_sets(length))

    def program_at(length: int) -> tuple[Callable[..., Any], Callable[..., Any], int]:
        room = rooms[length]
        compute = measuring(task, room, tuple(measures), tuple(references), heads)
        items = (room or length) * count_at(length)  # the same for all lengths of one program
        models = models_of(task, trained_under if None in every else None, items)
        return compute, models, task.at_once(room or length)

    # Made before the threads below ask for them: at the same moment each would make its own, and compile that.
    programs = {length: program_at(length) for length in lengths}

    def values_at(length: int) -> list[dict[str, Array]]:
        if fresh:
            keys = set_keys(seeds, length, count_at(length), key)
            drawn = keys, jnp.full(keys.shape, length, jnp.int32)
        else:
            of_seed = notebook.test_sets(length)
            drawn = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(seeds), *leaf.shape)), of_seed)
        compute, models, at_once = programs[length]
        sets = count_at(length)
        parts = math.gcd(sets, PARTS) if sets * (rooms[length] or length) >= ITEMS_TO_DIVIDE else 1
        found, size = [], sets // parts
        for start in range(0, sets, size):
            of_part = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=size, axis=1)
            some = drawn if size == sets else jax.tree.map(of_part, drawn)
            found.append(jax.block_until_ready(on_every_set(compute, models, parameters, some, at_once, every)))
            done(length / parts)
        return found

    # Two sets of a million items at once would take twice the memory.
    at_each = (map if max(lengths) > LONGEST_WHOLE else two_at_a_time)(values_at, lengths)
    return (_gathered(length, names, tuple(seeds), values, measures) for length, values in zip(lengths, at_each))


Argument = TypeVar("Argument")
Result = TypeVar("Result")


def two_at_a_time(function: Callable[[Argument], Result], arguments: Iterable[Argument]) -> Iterator[Result]:
    """Yields the results in order, always with the next call under way.

    XLA compiles on one core: this lets it compile for the next argument while the computation of one runs.
    """
    pool = ThreadPoolExecutor(2)
    try:
        yield from pool.map(function, arguments)
    finally:
        pool.shutdown(cancel_futures=True)


class Plan(NamedTuple):
    """An evaluation that yields a frame at each length, in this order."""

    sets: int
    """The most of a seed and length."""
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
    """Returns the evaluation of the table of measures; without `lengths` and `sets` they are those of the task.

    The options are those of `evaluate`, and it raises the same. With hardmax among the normalizers comes the true item
    alone, which together say what is lost to what.
    """
    lengths = list(lengths_of(task, lengths, protocol))
    options |= {"lengths": lengths, "sets": sets, "measures": (*EVALUATION, "extrapolated")}
    options["references"] = (TRUE_ITEM,) if "hardmax" in normalizers and heads_of(task, lengths[0]).ranked else ()
    measured = evaluate(parameters, normalizers, task=task, protocol=protocol, **options)
    return Plan(sets or max(map(task.test_sets, lengths)), lengths, (of_length.frame() for of_length in measured))


def rooms_of(task: Task, lengths: Sequence[int]) -> dict[int, int]:
    """Returns the items that the program for each length has room for: the longest of those that share it.

    >>> rooms_of(MaxRetrieval(), (2, 16, 100, 512, 1000, 4096))
    {2: 100, 16: 100, 100: 100, 512: 1000, 1000: 1000, 4096: 4096}
    """
    most = {length: min((n for n in task.shared if length <= n), default=length) for length in lengths}
    return {length: max(other for other in lengths if other <= most[length]) for length in lengths}


def lengths_of(task: Task, lengths: Sequence[int] | None, protocol: str = "fresh") -> tuple[int, ...]:
    """Returns the lengths to test at: those asked for, or else those of the protocol or the task."""
    return tuple(lengths or (notebook.LENGTHS if protocol == "notebook" else task.test_lengths))


def set_keys(
    seeds: Sequence[int], length: int, sets: int, key: Key[Array, ""] | None = None
) -> Key[Array, "seeds sets"]:
    """Returns a key for each test set of each seed. A set depends on these arguments and its place alone."""
    key = key_of(Draw.TABLES) if key is None else key

    def of_seed(seed: Array) -> Key[Array, " sets"]:
        return jax.random.split(jax.random.fold_in(jax.random.fold_in(key, seed), length), sets)

    return jax.vmap(of_seed)(jnp.asarray(seeds, jnp.int32))


@functools.cache
def models_of(task: Task, trained_under: str | None = None, items: int = 0) -> Callable[[Parameters], tuple[Any, Any]]:
    """Returns a function from the parameters of a seed to its model under softmax, and the one as it was trained.

    The first is the fastest for so many items of test sets. One function object for the same arguments, so that
    compiled programs are found again.
    """
    structure, initialize = build_model(task, BASELINE)
    like = jax.eval_shape(initialize, jax.random.key(0))

    def models(parameters: Parameters) -> tuple[Any, Any]:
        under_softmax = task.for_testing(nnx.merge(structure, _those_of(like, parameters)), items)
        if trained_under is None:
            return under_softmax, None
        return under_softmax, nnx.merge(build_model(task, trained_under)[0], parameters)

    return models


def _those_of(like: Any, parameters: Any) -> Any:
    """Returns the parameters without the numbers that a normalizer learned."""
    return {name: _those_of(like[name], parameters[name]) for name in like} if isinstance(like, dict) else parameters


class Heads(NamedTuple):
    """Two facts about the attention of a task's model."""

    alone: bool
    """Says whether a set has one row of attention."""
    ranked: bool
    """Says whether the task gives each item of that row its priority."""


@functools.cache
def heads_of(task: Task, length: int) -> Heads:
    """Returns what the attention of a task's model is like on sets of a length.

    Raises ValueError as `probe` does: for a model without a softmax, and for one that cannot be read.
    """
    structure, initialize = build_model(task, BASELINE)

    def seen(key: Key[Array, ""]) -> tuple[HeadRows, Any]:
        model, batch = nnx.merge(structure, initialize(key)), task.test_batch(key, length, 1)
        _, rows = attended(functools.partial(task.scores, model, batch, None), functools.partial(weigh, maps.softmax))
        return rows, task.priorities(batch)

    rows, rho = jax.eval_shape(seen, jax.random.key(0))
    return Heads(len(rows.logits) == 1, rho is not None and rho.shape == rows.logits.shape)


@functools.cache
def measuring(
    task: Task, room: int | None, measures: tuple[str, ...], references: tuple[str, ...], heads: Heads
) -> Callable[..., dict[str, Array]]:
    """Returns the measures of one set as a function of the models; it is drawn with this room, or given without one.

    One function object for the same arguments, so that compiled programs are found again.
    """

    def of_set(models: tuple[Any, Any], drawn: Any, normalizers: Sequence[Normalizer | None]) -> dict[str, Array]:
        if room is None:
            batch = jax.tree.map(lambda leaf: leaf[None], drawn)
        else:
            key, length = drawn
            batch = task.test_set(key, length, room)
        model, as_trained = models
        rho: Any = task.priorities(batch)
        others = [one for one in normalizers if one is not None]
        others += [Normalizer(functools.partial(REFERENCES[name], rho)) for name in references]

        def look(scores: Array, rows: HeadRows, index: Array) -> dict[str, Array]:
            facts = [row_facts(one, rows) for one in others]
            beta, beyond = (jnp.stack(fact)[index] for fact in zip(*facts))
            known = {"beta": beta, "extrapolates": beyond, "rho": rho if heads.ranked else None}
            of_set = look_at_set(task, scores, batch)
            return values_of(measures, of_set, of_set._replace(**rows._asdict(), **known))

        weighers = [functools.partial(weigh, one) for one in others]
        scores = functools.partial(task.scores, model, batch, None)
        values = under_each(heads.alone, weighers, scores, look) if others else {}
        if None not in normalizers:
            return values
        of_own = values_of(measures, look_at_set(task, task.scores(as_trained, batch, None), batch))
        place = list(normalizers).index(None)
        return {
            name: jnp.insert(values[name], place, of_own.get(name, jnp.nan), 0) if values else of_own[name][None]
            for name in (values or of_own)
        }

    return of_set


def on_every_set(
    compute: Callable[..., Any],
    models_of: Callable[[Parameters], Any],
    parameters: Parameters,
    drawn: Any,
    at_once: int,
    everywhere: Any = (),
) -> Any:
    """Returns `compute(models, set, everywhere)` of every set of every seed: leaves with axes (seeds, batches, sets).

    `drawn` has leading axes (seeds, sets), `parameters` has one of seeds. Seeds are divided among the devices, and
    batches of at most `at_once` sets among those left over; no device waits for another.
    """
    seeds, sets = jax.tree.leaves(drawn)[0].shape[:2]
    of_device = sets // device_mesh(seeds, sets).shape[SETS]
    per_batch = max(size for size in range(1, min(at_once, of_device) + 1) if of_device % size == 0)
    batches = jax.tree.map(lambda leaf: leaf.reshape(seeds, sets // per_batch, per_batch, *leaf.shape[2:]), drawn)
    mesh = device_mesh(seeds, sets // per_batch)
    specs = (P(SEEDS), P(SEEDS, SETS), P())
    where = (NamedSharding(mesh, spec) for spec in specs)
    arguments = [placed(tree, sharding) for tree, sharding in zip((parameters, batches, everywhere), where)]
    return _on_devices(*arguments, compute=compute, models_of=models_of, mesh=mesh)


@functools.partial(jax.jit, static_argnames=("compute", "models_of", "mesh"))
def _on_devices(
    parameters: Parameters,
    batches: Any,
    everywhere: Any,
    *,
    compute: Callable[..., Any],
    models_of: Callable[[Parameters], Any],
    mesh: jax.sharding.Mesh,
) -> Any:
    def on_device(parameters: Parameters, batches: Any, everywhere: Any) -> Any:
        def one_seed(of_seed: tuple[Parameters, Any]) -> Any:
            models = models_of(of_seed[0])
            return jax.lax.map(jax.vmap(lambda one: compute(models, one, everywhere)), of_seed[1])

        return jax.lax.map(one_seed, (parameters, batches))

    specs = (P(SEEDS), P(SEEDS, SETS), P())
    spread = jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=P(SEEDS, SETS), check_vma=False)
    return spread(parameters, batches, everywhere)


def set_by_set(tree: Any) -> Any:
    """Returns numpy arrays with leading axes (seeds, sets) from leaves of (seeds, batches, sets of a batch, ...)."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(len(leaf), -1, *leaf.shape[3:]), tree)


def _gathered(
    items: int, normalizers: tuple[str, ...], seeds: tuple[int, ...], parts: Sequence[Any], order: Sequence[str]
) -> Measured:
    """Brings the parts of all processes together; not called by the threads, as processes must gather in one order."""
    wholes = [set_by_set(gathered(dict(values))) for values in parts]
    whole = {name: np.concatenate([part[name] for part in wholes], 1) for name in wholes[0]}
    rows = max((whole[name].shape[3] for name in whole if MEASURES[name].of_row), default=1)
    if rows == 1:
        whole = {name: of[:, :, :, 0] if MEASURES[name].of_row else of for name, of in whole.items()}
    return Measured(items, normalizers, seeds, {name: whole[name] for name in order if name in whole}, rows)


def look_at_set(task: Task, scores: Array, batch: Any) -> Seen:
    """Returns what measures may see of one set as a whole."""
    answer = batch.answer[0] if hasattr(batch, "answer") else None
    return Seen(scores[0], answer, task.accuracy(scores, batch), task.loss(scores, batch))


def values_of(
    measures: Sequence[str], of_set: Seen, of_rows: Seen | None = None
) -> dict[str, Float[Array, "*numbers"]]:
    """Returns the measures of one set; those of its rows have a leading axis of these."""
    values = {}
    for name in measures:
        measure = MEASURES[name]
        seen = of_rows if measure.of_row else of_set
        if seen is None or any(getattr(seen, field) is None for field in measure.needs):
            continue
        shared = {field: of is None or field in OF_SET for field, of in seen._asdict().items()}
        axes: Any = seen._replace(**{field: None if same else 0 for field, same in shared.items()})
        values[name] = jax.vmap(measure.of_set, in_axes=(axes,))(seen) if measure.of_row else measure.of_set(seen)
    return values


def row_facts(one: Normalizer, rows: HeadRows) -> tuple[Float[Array, " rows"], Bool[Array, " rows"]]:
    """Returns the inverse temperature of each row, NaN unless the map is softmax; and whether a fit is asked beyond."""
    logits = rows.logits
    if isinstance(one.map, SoftCapped):
        logits, one = soft_cap(logits, one.map.cap), one.map.of
    scale = one.scale
    is_softmax = isinstance(one.map, maps.Softmax) and one.shift_invariant
    beta = jnp.ones((), jnp.float32) if scale is None else scale(logits, -1, rows.where)
    beyond = jnp.zeros((), bool)
    if isinstance(scale, EntropyPolynomial) and scale.entropy_range is not None:
        beyond = scale.extrapolates(logits, -1, rows.where)
    beta = jnp.where(is_softmax, beta, jnp.nan)
    return jnp.broadcast_to(beta, (len(logits), 1))[:, 0], jnp.broadcast_to(beyond, (len(logits), 1))[:, 0]


def true_item_alone(rho: Float[Array, "sets items"], logits: Array, axis: int = -1, where: Any = None) -> Array:
    """Gives all weight to the item with the largest ρ; ρ is -inf at places without an item."""
    return jax.nn.one_hot(rho.argmax(-1), rho.shape[-1], dtype=logits.dtype).reshape(logits.shape)


def under_true_key(rho: Float[Array, "sets items"], logits: Array, axis: int = -1, where: Any = None) -> Array:
    """Returns the softmax of the same logits in another order: the largest belongs to the item with the largest ρ."""
    rows, visible, items = logits.reshape(rho.shape), rho > -jnp.inf, jnp.arange(rho.shape[-1])[None]
    first, true = (row.argmax(-1)[:, None] for row in (jnp.where(visible, rows, -jnp.inf), rho))
    of_first, of_true = (jnp.take_along_axis(rows, place, -1) for place in (first, true))
    rows = jnp.where(items == true, of_first, jnp.where(items == first, of_true, rows))
    return maps.softmax(rows, -1, visible).reshape(logits.shape)


OF_SET = ("scores", "answer", "accuracy", "loss")
"""What all rows of a set have in common."""
REFERENCES = {TRUE_ITEM: true_item_alone, TRUE_KEY: under_true_key}


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


AS_TRAINED = ", as trained"
"""After the name of the normalizer that a model was trained under, with the numbers that it learned."""


def named_normalizers(
    specs: Sequence[str],
    checkpoint: Path | str,
    parameters: Parameters,
    trained_under: str = BASELINE,
    fits_by_default: bool = True,
) -> dict[str, Normalizer | None]:
    """Returns the normalizers to show by name; "all" includes the fits beside the checkpoint, the default if asked to.

    First the one that the model was trained under, with the numbers that it learned, unless that is softmax.
    Raises as `fits_beside`, which says whether those were made from the checkpoint's parameters, and ValueError for
    the name of a fit that is not there.
    """
    with_fits = tuple(specs) == ("all",) or (fits_by_default and tuple(specs) == DEFAULT_NORMALIZERS)
    fits = fits_beside(checkpoint, parameters) if with_fits or not FITS.keys().isdisjoint(specs) else {}
    for name in specs:
        if name in FITS.keys() - fits.keys():
            here, there = typed(checkpoint), typed(fits_directory(checkpoint))
            remedy = f"run fit_temperature.py --checkpoint {here} --output {there}"
            raise Refusal(f"--normalizers has {name}: there is no such fit beside {checkpoint}: {remedy}")
    specs = tuple(METHODS) if tuple(specs) == ("all",) else tuple(specs)
    if with_fits:
        after = specs.index("adaptive") + 1
        specs = (*specs[:after], *fits, *specs[after:])
    trained: dict[str, Normalizer | None] = {} if trained_under == BASELINE else {trained_under + AS_TRAINED: None}
    return trained | {
        spec: normalizer(f"adaptive(fit={str(fits[spec])!r})" if spec in fits else spec) for spec in specs
    }


def frame_of(measured: Iterable[Measured]) -> pl.DataFrame:
    """The frame of several lengths."""
    return pl.concat(of_length.frame() for of_length in measured)


def summarize(frame: pl.DataFrame, baseline: str = BASELINE, family: str = "normalizer") -> pl.DataFrame:
    """Returns means over seeds, with Student's t interval of the accuracy, and the gain in accuracy over the baseline.

    `gain` is its mean over the seeds of both, `gain_interval` half its 95 % interval. `p_value` is of the paired t-test
    corrected by Holm for the tests of one family, `p_max_t` by flips of signs: a family has one "normalizer" at all
    lengths, or one "n" under all normalizers. `detectable` is the gain that the test would find in 80 % of the cases.
    Where the accuracies of all seeds are those of the baseline, or differ from them alike, there is no test.
    """
    measures = [name for name in frame.columns if name not in KEYS]
    groups = frame.group_by("normalizer", "n", maintain_order=True)
    accuracies = {(name, n): values for name, n, values in groups.agg("accuracy").rows()}
    columns: dict[str, list[float | None]] = {"interval": list(map(half_width, accuracies.values()))}
    columns |= {
        name: [None] * len(accuracies) for name in ("gain", "gain_interval", "p_value", "p_max_t", "detectable")
    }
    families: dict[str | int, dict[int, np.ndarray]] = {}
    for place, ((name, n), values) in enumerate(accuracies.items()):
        reference = accuracies.get((baseline, n), [])
        if name == baseline or len(values) != len(reference):
            continue
        differences = np.subtract(values, reference)
        columns["gain"][place] = float(differences.mean())
        columns["gain_interval"][place] = half_width(differences.tolist())
        columns["detectable"][place] = detectable(differences.tolist())
        if differences.any() and (p := paired_p_value(values, reference)) is not None:
            columns["p_value"][place] = p
            families.setdefault(n if family == "n" else name, {})[place] = differences
    for members in families.values():
        by_holm = corrected([columns["p_value"][place] for place in members])
        for place, holm, max_t in zip(members, by_holm, max_t_p_values(np.stack(list(members.values())))):
            columns["p_value"][place], columns["p_max_t"][place] = holm, max_t
    found = pl.DataFrame(columns, dict.fromkeys(columns, pl.Float64))
    return groups.agg(pl.mean(*measures)).hstack(found)
