"""`check`: which promises a normalizer keeps, with the smallest counterexample of each that it breaks."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from softmax_jax.attention.attention import dot_product_attention
from softmax_jax.laws import laws
from softmax_jax.laws.counterexamples import N, counterexample, describe, listed, weigh, weigher
from softmax_jax.laws.derivatives import QUICKLY, as_type, is_floating, jacobians, keeps_type, unlike_differences
from softmax_jax.laws.laws import LAWS, Claims, Finding, Law, Rounding, Rows, Weigh, Weighed
from softmax_jax.normalizers.normalizer import Normalizer
from softmax_jax.normalizers.parameters import number_names
from softmax_jax.normalizers.registry import NormalizerLike, as_normalizer
from softmax_jax.normalizers.segments import segments

DTYPES = "float32", "bfloat16", "float16"
LENGTHS = 16, 256, 4096, 65536
COARSE = 3e-6
"""The error of weights that were computed in less than float32, which has some 1e-7, and half types 3e-5 and more."""
ONE_PASS = laws.masked, laws.empty, laws.finite, laws.smooth, laws.sums, laws.positive
"""The laws of long rows, which need no second program or pass."""


@dataclasses.dataclass(frozen=True)
class Promise:
    """The result for one promise."""

    name: str
    holds: bool | None
    """None for what is measured and no promise."""
    evidence: str = ""
    """The counterexample, or the measured numbers."""
    claimed: bool = True
    """Whether the normalizer claims to keep it."""

    @property
    def verdict(self) -> str:
        """The result in a word."""
        words = {True: "holds", False: "BROKEN"} if self.claimed else {True: "yes", False: "no"}
        return "" if self.holds is None else words[self.holds]


class Checked(list[Promise]):
    """The promises of a normalizer. Printed, they are a table."""

    @property
    def broken(self) -> list[Promise]:
        """The promises that the normalizer claims and breaks."""
        return [promise for promise in self if promise.claimed and promise.holds is False]

    @property
    def lacking(self) -> list[Promise]:
        """The properties that the normalizer neither claims nor has."""
        return [promise for promise in self if not promise.claimed and promise.holds is False]

    def __repr__(self) -> str:
        width = max(len(promise.name) for promise in self)
        lines = (f"{promise.name:<{width}}  {promise.verdict:<6}  {promise.evidence}" for promise in self)
        return "\n".join(line.rstrip() for line in lines)

    __str__ = __repr__


@contextlib.contextmanager
def default_settings() -> Iterator[None]:
    """Sets in this thread what a process may set of JAX and numpy to its default, as no verdict may depend on it."""
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
    """Tests every promise of a normalizer: a name, a map, a function, or a `Normalizer`. Takes seconds.

    What every normalizer promises counts as claimed, and so does what the class of a map declares. The settings of the
    process, such as `jax_debug_nans`, change nothing.

    Returns:
        The promises, with a counterexample for each that is broken. Printed, they are a table.

    Raises:
        TypeError: For what cannot be called as a normalizer, saying how it was called.

    Example:
        >>> import softmax_jax as sj
        >>> sj.check("softmax").broken
        []
    """
    checked = in_float32(as_normalizer(normalizer))
    shape = check_shape(checked)
    if not shape.holds:
        return Checked([shape])
    with ThreadPoolExecutor(2) as pool:  # as XLA compiles on one core
        parts = [pool.submit(catch_errors, part, checked) for part in (check_rows, check_gradient, check_surroundings)]
        promises = [promise for part in parts for promise in part.result()]
    return Checked([shape, *promises, *catch_errors(check_lengths, checked)])  # which measures time, alone


Part = Callable[[Normalizer], Iterator[Promise]]


def catch_errors(part: Part, normalizer: Normalizer) -> list[Promise]:
    """Returns the promises of a part, and one that is broken if it raises."""
    promises: list[Promise] = []
    try:
        with default_settings():  # of the thread
            promises.extend(part(normalizer))
    except Exception as error:  # of many types, as the function may be the user's
        promises.append(Promise(f"No error: {TITLES[part]}", False, _line(error)))
    return promises


def in_float32(normalizer: Normalizer) -> Normalizer:
    """Returns a normalizer without the float64 of numbers that were made under `jax_enable_x64`."""
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.float32) if getattr(leaf, "dtype", None) == np.float64 else leaf, normalizer
    )


def check_shape(normalizer: Normalizer) -> Promise:
    """Returns the promise that weights have the shape and the type of the logits, of empty arrays too."""
    name = "Weights have the shape and the type of the logits"
    for dtype in DTYPES:
        for shape in (2, 3), (0, 3), (3, 0), (5,):
            logits, where = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)), jax.ShapeDtypeStruct(shape, jnp.bool_)
            call = f"f({dtype} of shape {shape}, axis -1, where)"
            try:
                weights: Any = jax.eval_shape(lambda z, where: normalizer(z, -1, where), logits, where)
            except Exception as error:  # of many types, as the function may be the user's
                return Promise(name, False, f"{call} says: {_line(error)}")
            if (weights.shape, weights.dtype) != (logits.shape, logits.dtype):
                return Promise(name, False, f"{call} gives {weights.dtype} of shape {weights.shape}")
    return Promise(name, True)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:140]}"


def check_rows(normalizer: Normalizer) -> Iterator[Promise]:
    """Yields the promise of each law of rows, tried in every type."""
    claims = Claims.of(normalizer)
    for law in LAWS:
        yield _promise(normalizer, law, DTYPES, claims.include(law))
    yield from check_half_types(normalizer)


def _promise(normalizer: Normalizer, law: Law, dtypes: Sequence[str], claimed: bool = True) -> Promise:
    """Returns the promise of a law, with a counterexample from the first type that has one."""
    texts = ((dtype, counterexample(normalizer, law, dtype)) for dtype in dtypes)
    evidence = next((f"{dtype}: {text}" for dtype, text in texts if text), "")
    return Promise(law.promise, not evidence, evidence, claimed)


def check_half_types(normalizer: Normalizer) -> Iterator[Promise]:
    """Yields whether the weights of half types are those of float32, rounded once, from the programs of the laws."""

    def find(weigh_rows: Weigh, rows: Rows, rounding: Rounding) -> Finding:
        actual, expected = weigh_rows(rows).weights, weigher(normalizer, "float32")(rows).weights
        return Finding(rounding.far(actual, expected), rows, actual, expected)

    yield _promise(normalizer, Law("Half types are computed in float32", find, None, any_size=False), DTYPES[1:])


def check_lengths(normalizer: Normalizer) -> Iterator[Promise]:
    """Yields the laws of rows of 1 to 65,536 entries, what the largest weight does, and the time beside softmax."""
    most, rng = LENGTHS[-1], np.random.default_rng(0)
    lengths = np.array([1, 2, 17, *LENGTHS, *LENGTHS])
    leads = np.array([0, 0, 0, *[2.0] * 4, *(2 * np.log(LENGTHS))])
    logits = np.where(leads[:, None] > 0, 0.25, rng.normal(size=(len(lengths), most)))
    logits[:, 0] += leads
    where = np.arange(most) < lengths[:, None]
    rows = Rows(logits, where, ["long"] * len(lengths))
    arrays = jnp.asarray(logits, jnp.float32), jnp.asarray(where)
    weighed = Weighed(*(np.asarray(array, np.float64) for array in weigh(normalizer, *arrays)))
    claimed = (law for law in LAWS if law.find in ONE_PASS and Claims.of(normalizer).include(law))
    broken = {law.promise: law.find(lambda _: weighed, rows, Rounding.of("float32")).broken for law in claimed}
    evidence = [f"{name} at n = {lengths[marks.argmax()]:,}" for name, marks in broken.items() if marks.any()]
    text = f"broken: {'; '.join(evidence)}" if evidence else ""
    yield Promise("The same for rows of 1 to 65,536 entries", not evidence, text)
    for name, largest in zip(("lead of 2", "lead of 2·log n"), weighed.weights[3:, 0].reshape(2, -1)):
        series = ", ".join(f"{weight:.3g}" for weight in largest)
        yield Promise(f"Largest weight at a {name}", None, f"{series} at n = {', '.join(f'{n:,}' for n in LENGTHS)}")
    seconds, softmax_seconds = (_seconds(timed, *arrays) for timed in (normalizer, as_normalizer("softmax")))
    yield Promise("Time with gradient", None, f"{seconds / softmax_seconds:.1f} × softmax at n = {most:,}")


def _seconds(normalizer: Normalizer, *arrays: Any) -> float:
    """Returns the least time of three runs of a compiled program."""

    def once() -> float:
        start = time.perf_counter()
        jax.block_until_ready(weigh(normalizer, *arrays))
        return time.perf_counter() - start

    return min([once() for _ in range(4)][1:])


def check_gradient(normalizer: Normalizer) -> Iterator[Promise]:
    """Yields whether the gradients in logits and numbers are those of differences."""
    row = np.random.default_rng(0).normal(size=6)
    with jax.enable_x64(True):
        typed = as_type(normalizer, "float64")
        slopes = jacobians(typed, jnp.asarray(row)) if keeps_type(typed, jnp.asarray(row)) else None
    if slopes is None:  # as float64 is required of nobody
        typed = as_type(normalizer, "float32")
        slopes = jacobians(typed, jnp.asarray(row, jnp.float32))
    leaves = [leaf for leaf in zip(number_names(typed), jax.tree.leaves(typed)) if is_floating(leaf[1])]
    names = [f"z{place}" for place in range(row.size)] + [name for name, leaf in leaves for _ in range(leaf.size)]
    promises = {"The gradient is that of differences": range(row.size)}
    if leaves:
        promises["The gradient in its numbers is that of differences"] = range(row.size, len(names))
    fine = slopes.error <= COARSE
    for promise, columns in promises.items():
        evidence = unlike_differences(slopes, columns, names) if fine else ""
        coarse = "" if fine else "not compared, as the weights move in steps"
        text = f"{evidence} at logits {listed(row)}" if evidence else coarse
        yield Promise(promise, not evidence if fine else None, text)
    yield Promise(
        "Weights move as finely as float32", fine, "" if fine else f"they move in steps of {slopes.error:.1g}"
    )
    problem = "" if slopes.problem is None else _line(slopes.problem)
    yield Promise("Forward mode has derivatives too", slopes.forward is not None, problem, claimed=False)


Form = Callable[[Any, Any], Any]
"""From logits and mask to weights."""


def _forms(normalizer: Normalizer) -> dict[str, Form]:
    """Returns the ways to weigh rows within one program, by what a message calls them; the first is the plain way."""
    mesh = jax.make_mesh((1,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    across, identity = PartitionSpec("devices"), jnp.eye(8, dtype=jnp.float32)[:, None]

    def whole(z: Any, where: Any) -> Any:
        return normalizer(z, where=where)

    def in_blocks(z: Any, where: Any) -> Any:
        options: Any = {"normalizer": normalizer, "implementation": "streaming", "block_size": 2}
        return dot_product_attention(z[:, None], identity, identity, mask=where[None], scale=1.0, **options)[:, 0]

    return {
        PLAIN: whole,
        "along another axis": lambda z, where: normalizer(z.T, 0, where.T).T,
        "under vmap": jax.vmap(whole),
        "under scan": lambda z, where: jax.lax.map(lambda row: whole(*row), (z, where)),
        "under shard_map": jax.shard_map(whole, mesh=mesh, in_specs=across, out_specs=across),
        "in blocks of queries": in_blocks,
        "over segments": functools.partial(weigh_interleaved, normalizer),
    }


def weigh_interleaved(normalizer: Normalizer, z: Any, where: Any) -> Any:
    """Returns the weights of rows, computed over segments whose entries lie in turn."""
    rows, n = z.shape
    ids = np.tile(np.arange(rows), n)
    weights = segments(z.T.reshape(-1, 1), ids, normalizer, rows, where=where.T.reshape(-1, 1))
    return weights.reshape(n, rows).T


PLAIN = "whole rows in one program"


def check_surroundings(normalizer: Normalizer) -> Iterator[Promise]:
    """Yields whether weights are those of whole rows in one program wherever they are computed."""
    rows = laws.ordinary(8, 4, seed=1)
    z, where = jnp.asarray(rows.logits, jnp.float32), jnp.asarray(rows.where)
    pad = (0, 0), (2, N - 10)
    padded = Rows(np.pad(rows.logits, pad), np.pad(rows.where, pad), rows.kinds)
    apart: dict[str, Callable[[], Any]] = {
        "padded to more entries": lambda: weigher(normalizer, "float32")(padded).weights[:, 2:10],
        "outside of a compiled program": lambda: normalizer(z, where=where),
    }
    forms = _forms(normalizer)
    weights, errors = _together(forms, z, where)
    for name, form in apart.items():
        try:
            weights[name] = form()
        except Exception as error:  # of many types, as the function may be the user's
            errors[name] = error
    expected = np.asarray(weights.pop(PLAIN), np.float64)
    for name in (*forms, *apart):
        if name in errors:
            # JAX has no such rule for a part of it, as for callbacks: that breaks no promise.
            lacks_rule = isinstance(errors[name], NotImplementedError) and name in forms
            yield Promise(f"The same {name}", False, _line(errors[name]), claimed=not lacks_rule)
        elif name in weights:
            evidence = _unlike(np.asarray(weights[name], np.float64), expected, rows)
            yield Promise(f"The same {name}", not evidence, evidence)


def _together(forms: dict[str, Form], z: Any, where: Any) -> tuple[dict[str, Any], dict[str, Exception]]:
    """Returns the weights by each form, compiled as one program, and the errors of forms that raise."""
    errors: dict[str, Exception] = {}

    def together(z: Any, where: Any) -> dict[str, Any]:
        return {name: form(z, where) for name, form in forms.items() if name not in errors}

    try:
        return QUICKLY(together)(z, where), errors
    except Exception:  # of many types, as the function may be the user's: which of them raise?
        for name, form in forms.items():
            try:
                jax.eval_shape(form, z, where)
            except Exception as error:
                errors[name] = error
    if PLAIN in errors:
        raise errors[PLAIN]
    return QUICKLY(together)(z, where), errors


def _unlike(actual: np.ndarray, expected: np.ndarray, rows: Rows) -> str:
    """Returns a row whose weights are not those expected, in words; nothing if there is none."""
    if actual.shape != expected.shape:
        return f"got the shape {actual.shape}; wanted {expected.shape}"
    far = Rounding.of("float32").far(actual, expected)
    return describe(Finding(far, rows, actual, expected), int(far.argmax())) if far.any() else ""


TITLES: dict[Part, str] = {
    check_rows: "The laws of rows",
    check_gradient: "The gradient in logits and numbers, against differences",
    check_surroundings: "Weights wherever they are computed, against those of whole rows in one program",
    check_lengths: "Rows of 1 to 65,536 entries",
}
"""What a part of the check is called if it raises."""
