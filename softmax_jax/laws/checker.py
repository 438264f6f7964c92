"""`check`: which promises a normalizer keeps, with the smallest counterexample of each that it breaks."""

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

from softmax_jax.attention.attention import dot_product_attention
from softmax_jax.laws import laws
from softmax_jax.laws.laws import LAWS, Claims, Found, Law, Rounding, Rows, Weigh, Weighed, joined
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.parameters import number_names
from softmax_jax.normalizers.registry import NormalizerLike, as_normalizer

DTYPES = "float32", "bfloat16", "float16"
ROWS, N = 256, 65
"""Rows that one program weighs, and their entries: XLA unrolls loops of up to 64, which takes twice as long."""
ORDINARY, HOSTILE = 20, 44
LENGTHS = 16, 256, 4096, 65536
STEPS = 4.0 ** -np.arange(2, 12)
"""Steps of differences, the largest first: powers of 2, which no type rounds."""
COARSE = 3e-6
"""The error of weights that were computed in less than float32, which has some 1e-7, and half types 3e-5 and more."""
ONE_PASS = laws.masked, laws.empty, laws.finite, laws.smooth, laws.sums, laws.positive
"""The laws of long rows, which need no second program or pass."""
SHRINKS = 30
"""Times that a counterexample is made smaller."""
LONGEST = 190
"""Letters of a counterexample: three lines of a narrow terminal, with the names before it."""
QUICKLY = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""Compiles in half the time, for what must hold whatever the optimizer does: derivatives and transformations."""


@dataclasses.dataclass(frozen=True)
class Promise:
    """Holds what was found of one promise."""

    name: str
    holds: bool | None
    """None for what is measured and no promise."""
    said: str = ""
    """The counterexample, or the measured numbers."""
    claimed: bool = True
    """Whether the normalizer says that it keeps it."""

    @property
    def verdict(self) -> str:
        """Says it in a word."""
        words = {True: "holds", False: "BROKEN"} if self.claimed else {True: "yes", False: "no"}
        return "" if self.holds is None else words[self.holds]


class Checked(list[Promise]):
    """Every promise; printed, a table."""

    @property
    def broken(self) -> list[Promise]:
        """The promises that the normalizer claims and breaks."""
        return [one for one in self if one.claimed and one.holds is False]

    @property
    def lacking(self) -> list[Promise]:
        """The properties that it neither claims nor has."""
        return [one for one in self if not one.claimed and one.holds is False]

    def __repr__(self) -> str:
        width = max(len(one.name) for one in self)
        return "\n".join(f"{one.name:<{width}}  {one.verdict:<6}  {one.said}".rstrip() for one in self)

    __str__ = __repr__


@contextlib.contextmanager
def default_settings() -> Iterator[None]:
    """Sets what a process may set of JAX and numpy to its default, on which no verdict must depend; in this thread."""
    with (
        jax.enable_x64(False),
        jax.debug_nans(False),  # hostile rows have NaN weights, by promise
        jax.debug_infs(False),
        jax.disable_jit(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.default_matmul_precision("highest"),  # of which the default differs between devices
        jax.transfer_guard("allow"),
        jax.check_tracer_leaks(False),
        np.errstate(all="ignore"),
    ):
        yield


@default_settings()
def check(normalizer: NormalizerLike) -> Checked:
    """Returns what becomes of each promise of a normalizer: a name, a map, a function, or a `Normalizer`.

    Takes seconds. What every normalizer promises counts as claimed; what the class of a map says of it does too. The
    settings of the process, such as `jax_debug_nans`, change nothing. Raises TypeError for what cannot be called as
    one, saying how it was called.

    >>> import softmax_jax as sj
    >>> sj.check("softmax").broken
    []
    """
    checked = in_float32(as_normalizer(normalizer))
    made = of_shape(checked)
    if not made.holds:
        return Checked([made])
    with ThreadPoolExecutor(2) as pool:  # as XLA compiles on one core
        of_parts = [pool.submit(unless_raised, part, checked) for part in (of_rows, of_gradient, of_surroundings)]
        promises = [promise for of_part in of_parts for promise in of_part.result()]
    return Checked([made, *promises, *unless_raised(of_lengths, checked)])  # which measures time, alone


def unless_raised(part: Callable[[Normalizer], Iterator[Promise]], normalizer: Normalizer) -> list[Promise]:
    """Returns the promises of a part, and one that is broken if it raises."""
    promises: list[Promise] = []
    try:
        with default_settings():  # of the thread
            promises.extend(part(normalizer))
    except Exception as error:  # of many types, as the function may be the user's
        promises.append(Promise(f"No error: {(part.__doc__ or '').rstrip('.')}", False, _line(error)))
    return promises


def is_floating(number: Any) -> bool:
    """Returns True for a number that has a derivative, which a whole one has not."""
    return jnp.issubdtype(jnp.result_type(number), jnp.floating)


def of_type(normalizer: Normalizer, dtype: str) -> Normalizer:
    """Returns a normalizer whose floating numbers are arrays of a type."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype) if is_floating(leaf) else leaf, normalizer)


def in_float32(normalizer: Normalizer) -> Normalizer:
    """Returns a normalizer without the float64 of numbers that were made under `jax_enable_x64`."""
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.float32) if getattr(leaf, "dtype", None) == np.float64 else leaf, normalizer
    )


@jax.jit
def weigh(normalizer: Normalizer, logits: Any, where: Any) -> tuple[Any, Any]:
    """Returns weights, and the gradient of a fixed uneven sum of them."""
    weights, pull = jax.vjp(lambda z: normalizer(z, where=where), logits)
    return weights, pull(jnp.cos(jnp.arange(weights.size)).reshape(weights.shape).astype(weights.dtype))[0]


def weigher(normalizer: Normalizer, dtype: str) -> Weigh:
    """Returns a function that weighs up to `ROWS` rows in a type, all in one program."""

    def weigh_rows(rows: Rows) -> Weighed:
        count = len(rows.logits)
        with np.errstate(over="ignore"):
            logits = np.resize(rows.logits, (max(ROWS, count), rows.logits.shape[-1])).astype(jnp.dtype(dtype))
        found = weigh(normalizer, jnp.asarray(logits), jnp.asarray(np.resize(rows.where, logits.shape)))
        return Weighed(*(np.asarray(one, np.float64)[:count] for one in found))

    return weigh_rows


def of_shape(normalizer: Normalizer) -> Promise:
    """Weights have the shape and the type of the logits, of empty arrays too."""
    name = "Weights have the shape and the type of the logits"
    for dtype in DTYPES:
        for shape in (2, 3), (0, 3), (3, 0), (5,):
            logits, where = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)), jax.ShapeDtypeStruct(shape, jnp.bool_)
            call = f"f({dtype} of shape {shape}, axis -1, where)"
            try:
                made: Any = jax.eval_shape(lambda z, where: normalizer(z, -1, where), logits, where)
            except Exception as error:  # of many types, as the function may be the user's
                return Promise(name, False, f"{call} says: {_line(error)}")
            if (made.shape, made.dtype) != (logits.shape, logits.dtype):
                return Promise(name, False, f"{call} gives {made.dtype} of shape {made.shape}")
    return Promise(name, True)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:140]}"


def of_rows(normalizer: Normalizer) -> Iterator[Promise]:
    """Yields the promise of each law of rows, tried in every type."""
    claims = Claims.of(normalizer)
    for law in LAWS:
        said = next((f"{dtype}: {text}" for dtype in DTYPES if (text := counterexample(normalizer, law, dtype))), "")
        yield Promise(law.promise, not said, said, claims.include(law))
    yield from of_halves(normalizer)


def counterexample(normalizer: Normalizer, law: Law, dtype: str) -> str:
    """Returns the smallest row found that breaks a law, in words; nothing if none does."""
    if dtype == "float16" and law.find is laws.smooth:
        return ""  # whose largest number is 65,504: a slope may lie beyond it
    rows, rounding, weigh_rows = laws.ordinary(N, ORDINARY), Rounding.of(dtype), weigher(normalizer, dtype)
    if law.any_size:
        more = laws.hostile(dtype, N, HOSTILE)
        rows = joined(rows, more._replace(logits=more.logits.astype(np.float64)))
    found = law.find(weigh_rows, rows, rounding)
    if not found.broken.any():
        return ""
    place = int(found.broken.argmax())
    alone = law.find(weigh_rows, rows.take([place]), rounding)
    if not alone.broken.any():
        return f"{described(found, place)}, beside other rows"
    return described(shrunk(law, weigh_rows, rounding, rows.take([place]), alone))


def shrunk(law: Law, weigh_rows: Weigh, rounding: Rounding, row: Rows, found: Found) -> Found:
    """Hides entries of one row, or sets them to simple numbers, as long as the law stays broken by the row alone."""
    for _ in range(SHRINKS):
        smaller = simpler(row)
        places = np.flatnonzero(law.find(weigh_rows, smaller, rounding).broken) if len(smaller.logits) else []
        if not len(places):
            break
        row = smaller.take(places[:1])
        alone = law.find(weigh_rows, row, rounding)
        if not alone.broken.any():
            break
        found = alone
    return found


def simpler(row: Rows) -> Rows:
    """Returns rows that differ from one in entries that are hidden, or in a simpler number; the simplest first."""
    z, where = row.logits[0], row.where[0]
    made: list[tuple[np.ndarray, np.ndarray]] = []
    for size in (32, 8, 1):
        for places, hides in (np.flatnonzero(where), True), (np.flatnonzero(z), False):
            for first in range(0, places.size, size):
                chosen = np.isin(np.arange(z.size), places[first : first + size])
                made.append((np.where(chosen, 0.0, z), where & ~(chosen & hides)))
    for place in np.flatnonzero(np.isfinite(z)):
        for number in (1.0, np.sign(z[place]) * 2.0, np.round(z[place])):
            if abs(number) < abs(z[place]):
                made.append((np.where(np.arange(z.size) == place, number, z), where))
    made = made[: ROWS - 2]  # so that no further program is compiled where they have neighbours
    logits, masks = ([one[part] for one in made] for part in (0, 1))
    return Rows(np.array(logits).reshape(-1, z.size), np.array(masks, bool).reshape(-1, z.size), row.kinds * len(made))


def described(found: Found, row: int = 0) -> str:
    """Says a row, what it got, and what was wanted; without hidden entries that nothing is wrong with.

    Of a row that is still long it says the entries that are furthest off.
    """
    z, where, got = found.rows.logits[row], found.rows.where[row], found.got[row]
    wanted = np.zeros_like(got) if isinstance(found.wanted, str) else found.wanted[row]
    with np.errstate(invalid="ignore"):  # of equal infinities
        off = np.where((got == wanted) | (np.isnan(got) & np.isnan(wanted)), 0, np.abs(got - wanted))
    wrong = ~where & ((off != 0) if (off[~where] != 0).any() else (z != 0))
    kept = where | (wrong & (np.cumsum(wrong) == 1))
    places = np.flatnonzero(kept if kept.any() else np.arange(z.size) == 0)
    furthest = places[np.argsort(-np.nan_to_num(off[places], nan=np.inf), kind="stable")]
    counts = places.size, *(count for count in (8, 4, 2, 1) if count < places.size)
    texts = [_of_entries(found, row, np.sort(furthest[:count])) for count in counts]
    return next((text for text in texts if len(text) <= LONGEST), texts[-1])


def _of_entries(found: Found, row: int, places: np.ndarray) -> str:
    """Says a row at some of its entries, in as many digits as it takes to tell what it got from what was wanted."""
    logits, where, got, wanted = found.rows.logits[row], found.rows.where[row], found.got[row], found.wanted
    others = np.delete(where, places).sum()
    given = _listed(logits[places]) + (f" and {others} more" if others else "")
    given += "" if where[places].all() else f", visible {where[places].astype(int).tolist()}"
    if isinstance(wanted, str):
        got_said, wanted_said = _listed(got[places]), wanted
    else:
        pairs = [[_listed(numbers[places], digits) for numbers in (got, wanted[row])] for digits in (6, 9, 17)]
        got_said, wanted_said = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    if found.beside is not None:
        given += f" beside {_listed(found.beside.logits[0, places]) if found.beside.where.any() else 'a masked row'}"
        wanted_said += ", as alone"
    kind = "the gradient " if np.broadcast_to(found.gradient, len(found.got))[row] else ""
    return f"logits {given} got {kind}{got_said}; wanted {wanted_said}"


def _listed(numbers: np.ndarray, digits: int = 6) -> str:
    runs = [(text, len(list(run))) for text, run in itertools.groupby(f"{number:.{digits}g}" for number in numbers)]
    return f"[{', '.join(f'{text} × {times}' if times > 2 else ', '.join([text] * times) for text, times in runs)}]"


def of_halves(normalizer: Normalizer) -> Iterator[Promise]:
    """Yields whether the weights of half types are those of float32, rounded once, from the programs of the laws."""

    def find(weigh_rows: Weigh, rows: Rows, rounding: Rounding) -> Found:
        got, wanted = weigh_rows(rows).weights, weigher(normalizer, "float32")(rows).weights
        return Found(rounding.far(got, wanted), rows, got, wanted)

    law = Law("Half types are computed in float32", find, None, any_size=False)
    said = next((f"{dtype}: {text}" for dtype in DTYPES[1:] if (text := counterexample(normalizer, law, dtype))), "")
    yield Promise(law.promise, not said, said)


def of_lengths(normalizer: Normalizer) -> Iterator[Promise]:
    """Rows of 1 to 65,536 entries: what becomes of the largest weight, and the time beside softmax."""
    most, rng = LENGTHS[-1], np.random.default_rng(0)
    lengths = np.array([1, 2, 17, *LENGTHS, *LENGTHS])
    leads = np.array([0, 0, 0, *[2.0] * 4, *(2 * np.log(LENGTHS))])
    logits = np.where(leads[:, None] > 0, 0.25, rng.normal(size=(len(lengths), most)))
    logits[:, 0] += leads
    where = np.arange(most) < lengths[:, None]
    rows = Rows(logits, where, ["long"] * len(lengths))
    arrays = jnp.asarray(logits, jnp.float32), jnp.asarray(where)
    weighed = Weighed(*(np.asarray(one, np.float64) for one in weigh(normalizer, *arrays)))
    of_one_pass = (law for law in LAWS if law.find in ONE_PASS and Claims.of(normalizer).include(law))
    found = {law.promise: law.find(lambda _: weighed, rows, Rounding.of("float32")).broken for law in of_one_pass}
    said = [f"{name} at n = {lengths[broken.argmax()]:,}" for name, broken in found.items() if broken.any()]
    yield Promise("The same for rows of 1 to 65,536 entries", not said, f"broken: {'; '.join(said)}" if said else "")
    for name, largest in zip(("lead of 2", "lead of 2·log n"), weighed.weights[3:, 0].reshape(2, -1)):
        series = ", ".join(f"{weight:.3g}" for weight in largest)
        yield Promise(f"Largest weight at a {name}", None, f"{series} at n = {', '.join(f'{n:,}' for n in LENGTHS)}")
    own, softmax = (_seconds(one, *arrays) for one in (normalizer, as_normalizer("softmax")))
    yield Promise("Time with gradient", None, f"{own / softmax:.1f} × softmax at n = {most:,}")


def _seconds(normalizer: Normalizer, *arrays: Any) -> float:
    """Returns the least time of three runs of a compiled program."""

    def once() -> float:
        start = time.perf_counter()
        jax.block_until_ready(weigh(normalizer, *arrays))
        return time.perf_counter() - start

    return min([once() for _ in range(4)][1:])


class Slopes(NamedTuple):
    """Derivatives of the weights in the logits, then in the numbers: by both modes, and by differences."""

    forward: np.ndarray | None
    no_forward: str
    """What JAX says if it has no forward mode, as for a `jax.custom_vjp`."""
    reverse: np.ndarray
    moved: np.ndarray
    unsure: np.ndarray
    """A bound on the errors of the differences."""
    error: float
    """That of the weights, found from how they move."""


def as_function(normalizer: Normalizer, row: Any) -> tuple[Callable[[Any], Any], Any]:
    """Returns the weights as a function of one vector, of the logits and the numbers, and that vector."""
    leaves, structure = jax.tree.flatten(normalizer)
    places = [place for place, number in enumerate(leaves) if is_floating(number)]
    point, apart = ravel_pytree((row, [leaves[place] for place in places]))

    def weights(point: Any) -> Any:
        row, numbers = apart(point)
        moved = dict(zip(places, numbers))
        return structure.unflatten([moved.get(place, number) for place, number in enumerate(leaves)])(row)

    return weights, point


def keeps_type(normalizer: Normalizer, row: Any) -> bool:
    """Returns True if weights and gradient have the type of a row, and raise nothing in it."""
    weights, point = as_function(normalizer, row)

    def derivative(point: Any) -> Any:
        found, pull = jax.vjp(weights, point)
        return found, pull(found)

    try:
        made: Any = jax.eval_shape(derivative, point)
    except Exception:  # of many types, as the function may be the user's
        return False
    return all(one.dtype == point.dtype for one in jax.tree.leaves(made))


@functools.partial(QUICKLY, static_argnames="forward")
def slopes(normalizer: Normalizer, row: Any, shifts: Any, *, forward: bool) -> tuple[Any, Any, Any]:
    """Returns the weights at shifted points, and at the last of them the Jacobians by reverse and forward mode."""
    weights, point = as_function(normalizer, row)

    def at(point: Any) -> tuple[Any, Any, Any]:
        if forward:
            found, push = jax.linearize(weights, point)
            pull = jax.linear_transpose(push, point)
            pushed = jax.lax.map(push, jnp.eye(point.size, dtype=point.dtype)).T
        else:
            found, pull = jax.vjp(weights, point)
            pushed = None
        return found, jax.lax.map(lambda one: pull(one)[0], jnp.eye(found.size, dtype=found.dtype)), pushed

    # Slopes are needed at the point alone, but so the weights of all points are one computation, compiled once. Loops,
    # as not every function has a rule for vmap.
    found, pulled, pushed = jax.lax.map(at, point[None] + shifts)
    return found, pulled[-1], None if pushed is None else pushed[-1]


def jacobians(normalizer: Normalizer, row: Any) -> Slopes:
    """Returns the derivatives by automatic differentiation and by differences."""
    point = np.asarray(as_function(normalizer, row)[1])
    # Powers of 2, relative to numbers above 1.
    sizes = 2.0 ** np.ceil(np.log2(np.maximum(np.abs(point), 1.0)))
    steps = (STEPS[:, None, None] * np.diag(sizes)).reshape(-1, point.size)
    shifts = np.concatenate([steps, -steps, np.zeros((1, point.size))]).astype(point.dtype)
    problem = ""
    try:
        found, reverse, pushed = slopes(normalizer, row, jnp.asarray(shifts), forward=True)
    except Exception as error:  # of many types, as the function may be the user's; reverse mode alone must work
        problem = _line(error)
        found, reverse, pushed = slopes(normalizer, row, jnp.asarray(shifts), forward=False)
    weights = np.asarray(found, np.float64)
    up, down = weights[:-1].reshape(2, len(STEPS), point.size, -1)
    moved, unsure, error = differences(up, down, weights[-1], STEPS[:, None, None] * sizes[:, None])
    forward = None if pushed is None else np.asarray(pushed)
    return Slopes(forward, problem, np.asarray(reverse), moved.T, unsure.T, error)


def differences(
    up: np.ndarray, down: np.ndarray, weights: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns derivatives from weights at steps in each number, a bound on their errors, and the error of the weights.

    Steps h and h/4 give D(h) = (f(h) - f(-h)) / 2h = f' + c h² + O(h⁴), so R = D(h/4) + (D(h/4) - D(h)) / 15 is
    f' + O(h⁴). The error of R is bounded by the sum of three:

    1. the whole correction, |D(h/4) - D(h)| / 15, which is above the O(h⁴) that it leaves;
    2. |s(h) - 16 s(h/4)| / 16h with s(h) = f(h) - 2 f(0) + f(-h) = f'' h² + O(h⁴), which is O(h³) unless there is a
       kink within h. At a distance d it adds its change of slope times h - d to s(h), and up to half of that change to
       both D, which then may agree;
    3. 4 ε/h, if ε is the error of each weight.

    ε is measured, as a function may compute in float32 whatever it is given: it is at least s of the least step, where
    f'' h² is 1e-13; the rounding of float32 if that holds all weights; and |s(h) - 16 s(h/4)| / 16 of h from 2^-6 to
    2^-10, typically, which also shows the steps of half types, in which weights do not move at all under smaller h. The
    first two errors fall with h and the third rises, so each derivative is taken from the pair whose sum is the least.
    For softmax that is below 1e-9 in float64 and below 1e-5 in float32, where h = 1e-6 would leave an error of 0.01.
    """
    slope, bend = (up - down) / (2 * steps), up - 2 * weights + down
    uneven = np.abs(bend[:-1] - 16 * bend[1:]) / 16
    error = float(np.median(np.median(uneven[1:4].max(-1), 1)))  # as a few may lie at a kink, or between two roundings
    in_float32 = all((one == one.astype(np.float32)).all() for one in (up, down, weights))
    rounding = np.finfo(np.float32 if in_float32 else np.float64).eps * np.abs(weights)
    each = np.maximum(np.abs(bend[-1]).max(0), rounding + error)
    correction = np.diff(slope, axis=0) / 15
    unsure = np.abs(correction) + uneven / steps[:-1] + each / steps[1:]
    best = np.nan_to_num(unsure, nan=np.inf).argmin(0)[None]
    moved, unsure = (np.take_along_axis(of_pair, best, 0)[0] for of_pair in (slope[1:] + correction, unsure))
    return moved, unsure, error


def of_gradient(normalizer: Normalizer) -> Iterator[Promise]:
    """The gradient in logits and numbers, against differences."""
    row = np.random.default_rng(0).normal(size=6)
    with jax.enable_x64(True):
        typed = of_type(normalizer, "float64")
        found = jacobians(typed, jnp.asarray(row)) if keeps_type(typed, jnp.asarray(row)) else None
    if found is None:  # as float64 is asked of nobody
        typed = of_type(normalizer, "float32")
        found = jacobians(typed, jnp.asarray(row, jnp.float32))
    leaves = [leaf for leaf in zip(number_names(typed), jax.tree.leaves(typed)) if is_floating(leaf[1])]
    names = [f"z{place}" for place in range(row.size)] + [name for name, leaf in leaves for _ in range(leaf.size)]
    promises = {"The gradient is that of differences": range(row.size)}
    if leaves:
        promises["The gradient in its numbers is that of differences"] = range(row.size, len(names))
    fine = found.error <= COARSE
    for promise, columns in promises.items():
        said = unlike_differences(found, columns, names) if fine else ""
        coarse = "" if fine else "not compared, as the weights move in steps"
        yield Promise(promise, not said if fine else None, f"{said} at logits {_listed(row)}" if said else coarse)
    yield Promise("Weights move as finely as float32", fine, "" if fine else f"they move in steps of {found.error:.1g}")
    yield Promise("Forward mode has derivatives too", found.forward is not None, found.no_forward, claimed=False)


def unlike_differences(found: Slopes, columns: range, names: list[str]) -> str:
    """Returns the first derivative that differs from the differences by more than their bound allows, in words."""
    # Derivatives have the errors of the weights, more where terms cancel: half of their digits must be right.
    allowed = 1e-7 + 4 * found.unsure + (1e-6 + found.error**0.5) * np.abs(found.moved)
    for mode, got in {"jacfwd": found.forward, "jacrev": found.reverse}.items():
        far = np.zeros(allowed.shape, bool) if got is None else ~(np.abs(got - found.moved) <= allowed)
        for i, j in np.argwhere(far):
            if got is not None and j in columns:
                return f"{mode}: dw{i}/d{names[j]} is {got[i, j]:.6g}; wanted {found.moved[i, j]:.6g}"
    return ""


def of_surroundings(normalizer: Normalizer) -> Iterator[Promise]:
    """Weights wherever they are computed, against those of whole rows in one program."""
    rows = laws.ordinary(8, 4, seed=1)
    z, where = jnp.asarray(rows.logits, jnp.float32), jnp.asarray(rows.where)
    pad = (0, 0), (2, N - 10)
    padded = Rows(np.pad(rows.logits, pad), np.pad(rows.where, pad), rows.kinds)
    mesh = jax.make_mesh((1,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    across, one = PartitionSpec("devices"), jnp.eye(8, dtype=jnp.float32)

    def whole(z: Any, where: Any) -> Any:
        return normalizer(z, where=where)

    def in_blocks(z: Any, where: Any) -> Any:
        return dot_product_attention(
            z[:, None],
            one[:, None],
            one[:, None],
            mask=where[None],
            scale=1.0,
            normalizer=normalizer,
            implementation="streaming",
            block_size=2,
        )[:, 0]

    forms: dict[str, Callable[[Any, Any], Any]] = {
        "along another axis": lambda z, where: normalizer(z.T, 0, where.T).T,
        "under vmap": jax.vmap(whole),
        "under scan": lambda z, where: jax.lax.map(lambda one: whole(*one), (z, where)),
        "under shard_map": jax.shard_map(whole, mesh=mesh, in_specs=across, out_specs=across),
        "in blocks of queries": in_blocks,
    }
    alone: dict[str, Callable[[], Any]] = {
        "padded to more entries": lambda: weigher(normalizer, "float32")(padded).weights[:, 2:10],
        "outside of a compiled program": lambda: whole(z, where),
    }
    said: dict[str, str] = {}
    absent: set[str] = set()

    def together(z: Any, where: Any) -> tuple[Any, dict[str, Any]]:
        return whole(z, where), {name: form(z, where) for name, form in forms.items() if name not in said}

    try:
        whole_rows, found = QUICKLY(together)(z, where)
    except Exception:  # of many types, as the function may be the user's: which of them raise?
        for name, form in forms.items():
            try:
                jax.eval_shape(form, z, where)
            except Exception as error:  # as above
                said[name] = _line(error)
                if isinstance(error, NotImplementedError):  # JAX has no such rule for a part of it, as for callbacks
                    absent.add(name)
        whole_rows, found = QUICKLY(together)(z, where)
    for name, form in alone.items():
        try:
            found[name] = form()
        except Exception as error:  # as above
            said[name] = _line(error)
    wanted = np.asarray(whole_rows, np.float64)
    for name, weights in found.items():
        got = np.asarray(weights, np.float64)
        if got.shape != wanted.shape:
            said[name] = f"got the shape {got.shape}; wanted {wanted.shape}"
        elif (far := Rounding.of("float32").far(got, wanted)).any():
            said[name] = described(Found(far, rows, got, wanted), int(far.argmax()))
    for name in (*forms, *alone):
        yield Promise(f"The same {name}", name not in said, said.get(name, ""), claimed=name not in absent)
