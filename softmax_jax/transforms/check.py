"""`check`: which promises a normalizer keeps, with the smallest counterexample of each that it breaks."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

from softmax_jax.attention.attention import dot_product_attention
from softmax_jax.normalizers import laws
from softmax_jax.normalizers.laws import LAWS, Claims, Found, Law, Rounding, Rows, Weigh, Weighed, joined
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.numbers import number_names
from softmax_jax.normalizers.registry import NormalizerLike, as_normalizer

DTYPES = "float32", "bfloat16", "float16"
ROWS, N = 256, 65
"""Rows that one program weighs, and their entries: XLA unrolls loops of up to 64, which takes twice as long."""
ORDINARY, HOSTILE = 20, 44
LENGTHS = 16, 256, 4096, 65536
STEP = 1e-6
"""Of differences in float64."""
ONE_PASS = laws.masked, laws.empty, laws.finite, laws.smooth, laws.sums, laws.positive
"""The laws of long rows, which need no second program or pass."""
SHRINKS = 30
"""Times that a counterexample is made smaller."""
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

    def __repr__(self) -> str:
        width = max(len(one.name) for one in self)
        return "\n".join(f"{one.name:<{width}}  {one.verdict:<6}  {one.said}".rstrip() for one in self)

    __str__ = __repr__


def check(normalizer: NormalizerLike) -> Checked:
    """Returns what becomes of each promise of a normalizer: a name, a map, a function, or a `Normalizer`.

    Takes seconds. What every normalizer promises counts as claimed; what the class of a map says of it does too. Raises
    TypeError for what cannot be called as one, saying how it was called.

    >>> import softmax_jax as sj
    >>> sj.check("softmax").broken
    []
    """
    checked = as_normalizer(normalizer)
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
        promises.extend(part(normalizer))
    except Exception as error:  # of many types, as the function may be the user's
        promises.append(Promise(f"No error: {(part.__doc__ or '').rstrip('.')}", False, _line(error)))
    return promises


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
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


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
    return shrunk(law, weigh_rows, rounding, rows.take(np.flatnonzero(found.broken)[:1]))


def shrunk(law: Law, weigh_rows: Weigh, rounding: Rounding, row: Rows) -> str:
    """Hides entries of one row, or sets them to simple numbers, as long as the law stays broken; says what is left."""
    for _ in range(SHRINKS):
        smaller = simpler(row)
        places = np.flatnonzero(law.find(weigh_rows, smaller, rounding).broken) if len(smaller.logits) else []
        if not len(places):
            break
        row = smaller.take(places[:1])
    found = law.find(weigh_rows, row, rounding)
    return described(found)


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
    made = made[:ROWS]
    logits, masks = ([one[part] for one in made] for part in (0, 1))
    return Rows(np.array(logits).reshape(-1, z.size), np.array(masks, bool).reshape(-1, z.size), row.kinds * len(made))


def described(found: Found) -> str:
    """Says a row, what it got, and what was wanted; without hidden entries that nothing is wrong with."""
    z, where, got = found.rows.logits[0], found.rows.where[0], found.got[0]
    wanted = found.wanted if isinstance(found.wanted, str) else found.wanted[0]
    wrong = ~where & ((got != 0) | (z != 0))
    kept = where | (wrong & (np.cumsum(wrong) == 1))
    kept = kept if kept.any() else np.arange(z.size) == 0
    hidden = "" if where[kept].all() else f", visible {where[kept].astype(int).tolist()}"
    said = wanted if isinstance(wanted, str) else _listed(wanted[kept])
    return f"logits {_listed(z[kept])}{hidden} got {_listed(got[kept])}; wanted {said}"


def _listed(numbers: np.ndarray) -> str:
    runs = [(text, len(list(run))) for text, run in itertools.groupby(f"{number:.6g}" for number in numbers)]
    return f"[{', '.join(f'{text} × {times}' if times > 2 else ', '.join([text] * times) for text, times in runs)}]"


def of_halves(normalizer: Normalizer) -> Iterator[Promise]:
    """Yields whether the weights of half types are those of float32, rounded once, from the programs of the laws."""
    name = "Half types are computed in float32"
    rows = laws.ordinary(N, ORDINARY)
    wanted = weigher(normalizer, "float32")(rows).weights
    for dtype in DTYPES[1:]:
        got = weigher(normalizer, dtype)(rows).weights
        far = Rounding.of(dtype).far(got, wanted)
        if far.any():
            place = np.flatnonzero(far)[:1]
            said = described(Found(far, rows.take(place), got[place], wanted[place]))
            yield Promise(name, False, f"{dtype}: {said}")
            return
    yield Promise(name, True)


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


def is_floating(number: Any) -> bool:
    """Returns True for a number that has a derivative, which a whole one has not."""
    return jnp.issubdtype(jnp.result_type(number), jnp.floating)


@QUICKLY
def jacobians(normalizer: Normalizer, row: Any) -> tuple[Any, Any, Any]:
    """Returns the derivatives of the weights in the logits, then in the numbers: by both modes, and by differences."""
    leaves, structure = jax.tree.flatten(normalizer)
    places = [place for place, number in enumerate(leaves) if is_floating(number)]
    point, apart = ravel_pytree((row, [leaves[place] for place in places]))

    def weights(point: Any) -> Any:
        row, numbers = apart(point)
        moved = dict(zip(places, numbers))
        return structure.unflatten([moved.get(place, number) for place, number in enumerate(leaves)])(row)

    def slopes(point: Any) -> tuple[Any, Any, Any]:
        found, push = jax.linearize(weights, point)
        pull = jax.linear_transpose(push, point)
        forward = jax.vmap(push, out_axes=1)(jnp.eye(point.size))
        return found, forward, jax.vmap(lambda cotangent: pull(cotangent)[0])(jnp.eye(found.size))

    # Slopes are needed at the point alone, but so the weights of all points are one computation, compiled once.
    steps = STEP * jnp.diag(jnp.maximum(jnp.abs(point), 1.0))
    found, forward, reverse = jax.vmap(slopes)(point[None] + jnp.concatenate([steps, -steps, 0 * steps[:1]]))
    up, down, _ = jnp.split(found, (point.size, 2 * point.size))
    return forward[-1], reverse[-1], (up - down).T / (2 * jnp.diag(steps)[None])


def of_gradient(normalizer: Normalizer) -> Iterator[Promise]:
    """The gradient in logits and numbers, against differences in float64."""
    row = np.random.default_rng(0).normal(size=6)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64) if is_floating(leaf) else leaf, normalizer)
        forward, reverse, moved = map(np.asarray, jacobians(wide, jnp.asarray(row)))
    leaves = [leaf for leaf in zip(number_names(wide), jax.tree.leaves(wide)) if is_floating(leaf[1])]
    names = [f"z{place}" for place in range(row.size)] + [name for name, leaf in leaves for _ in range(leaf.size)]
    promises = {"The gradient is that of differences in float64": range(row.size)}
    if leaves:
        promises["The gradient in its numbers is that of differences"] = range(row.size, len(names))
    for promise, columns in promises.items():
        said = (
            f"{mode}: dw{i}/d{names[j]} is {got[i, j]:.6g}; wanted {moved[i, j]:.6g} at logits {_listed(row)}"
            for mode, got in {"jacfwd": forward, "jacrev": reverse}.items()
            for i, j in np.argwhere(~np.isclose(got, moved, rtol=1e-6, atol=1e-7))
            if j in columns
        )
        first = next(said, "")
        yield Promise(promise, not first, first)


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
        whole_rows, found = QUICKLY(together)(z, where)
    for name, form in alone.items():
        try:
            found[name] = form()
        except Exception as error:  # as above
            said[name] = _line(error)
    wanted = np.asarray(whole_rows, np.float64)
    for name, weights in found.items():
        got = np.asarray(weights, np.float64)
        far = Rounding.of("float32").far(got, wanted) if got.shape == wanted.shape else np.ones(len(wanted), bool)
        place = np.flatnonzero(far)[:1]
        if len(place):
            said[name] = described(Found(far, rows.take(place), got[place], wanted[place]))
    for name in (*forms, *alone):
        yield Promise(f"The same {name}", name not in said, said.get(name, ""))
