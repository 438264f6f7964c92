"""The promises that hold for every row of logits: each is a function that finds the rows on which it is broken.

`softmax_jax.check` tries them on one normalizer; the tests try them on all, in every type and form of attention.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from softmax_jax.normalizers.maps import Map
from softmax_jax.normalizers.normalizer import Normalizer, SoftCapped
from softmax_jax.normalizers.row import is_low


class Rows(NamedTuple):
    """Rows of logits with their masks; `kinds` says in messages what each is."""

    logits: np.ndarray
    where: np.ndarray
    kinds: list[str]

    def turned(self) -> "Rows":
        """Returns the same rows in the opposite order of their entries."""
        return Rows(self.logits[:, ::-1], self.where[:, ::-1], self.kinds)

    def take(self, places: Any) -> "Rows":
        """Returns some of the rows."""
        kinds = np.array(self.kinds, object)[places].tolist()
        return Rows(self.logits[places], self.where[places], kinds)

    def visible(self) -> np.ndarray:
        """Returns True at the visible entries above -inf."""
        return self.where & (self.logits != -np.inf)

    def lawful(self) -> np.ndarray:
        """Returns True for rows without a visible NaN or +inf."""
        return ~np.asarray((self.where & ~(self.logits < np.inf)).any(-1))


def joined(*parts: Rows) -> Rows:
    """Returns all rows, in the type of the first."""
    dtype = parts[0].logits.dtype
    logits = np.concatenate([part.logits.astype(dtype) for part in parts])
    return Rows(logits, np.concatenate([part.where for part in parts]), [kind for part in parts for kind in part.kinds])


class Weighed(NamedTuple):
    """Weights of rows and the gradient of some sum of them, in float64."""

    weights: np.ndarray
    gradient: np.ndarray


Weigh = Callable[[Rows], Weighed]


class Rounding(NamedTuple):
    """The rounding of a type: the step at 1, and the least number."""

    eps: float
    least: float

    @classmethod
    def of(cls, dtype: str) -> "Rounding":
        """Returns the rounding of a type by its name."""
        return cls(float(jnp.finfo(dtype).eps), float(jnp.finfo(dtype).smallest_subnormal))

    def total(self, n: int) -> float:
        """Returns the error that a sum of n weights may have."""
        return n * self.least + (4 + n**0.5) * self.eps

    def far(self, actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """Returns True for rows with a number further off than two roundings, of float32 at least."""
        allowed = 2e-7 + self.least + max(2e-5, self.eps) * np.abs(expected)
        same = (actual == expected) | (
            np.isnan(actual) & np.isnan(expected)
        )  # inf - inf is NaN, and so is a NaN on one side
        with np.errstate(invalid="ignore"):
            near = np.abs(actual - expected) <= allowed
        return np.asarray(~(same | near).all(-1))


class Finding(NamedTuple):
    """The rows that break a law, with what they got, weights or gradient, and what the law expects."""

    broken: np.ndarray
    rows: Rows
    actual: np.ndarray
    expected: np.ndarray | str
    gradient: np.ndarray | bool = False
    """True where the gradient of a row is wrong: `actual` and `expected` are that, and its weights are right."""
    beside: Rows | None = None
    """The row that lay beside them, where that matters."""


class Law(NamedTuple):
    """A promise, the claim that a normalizer must make for it to apply, and whether it holds for rows of any size."""

    promise: str
    find: Callable[[Weigh, Rows, Rounding], Finding]
    claim: str | None
    any_size: bool


LAWS: list[Law] = []


def law(claim: str | None = None, *, any_size: bool = True) -> Callable[[Any], Any]:
    """Adds the decorated function to `LAWS`; its docstring is the promise."""

    def add(find: Any) -> Any:
        LAWS.append(Law(find.__doc__.rstrip("."), find, claim, any_size))
        return find

    return add


class Claims(NamedTuple):
    """Declared properties. A plain function declares none; only the universal laws apply."""

    shift_invariant: bool = False
    sums_to_one: bool = False
    never_negative: bool = False
    same_in_any_order: bool = True
    monotone: bool = False

    @classmethod
    def of(cls, normalizer: Normalizer) -> "Claims":
        """Returns the claims of the map; a cap takes its invariance to shifts."""
        inner: Any = normalizer.map
        while isinstance(inner, SoftCapped):
            inner = inner.of.map
        if not isinstance(inner, Map):
            return cls()
        return cls(normalizer.shift_invariant, inner.sums_to_one, not inner.signed, not inner.by_position)

    def include(self, law: Law) -> bool:
        """Returns True if a normalizer of these claims must obey a law."""
        return law.claim is None or getattr(self, law.claim)


def _what_is_wrong(rows: Rows, wrong: Weighed, actual: Weighed, expected: Weighed | str) -> Finding:
    """Returns the weights of each row in which one is wrong, else its gradient; `wrong` is True at wrong entries."""
    in_weights, in_gradient = (np.asarray(entries.any(-1)) for entries in wrong)

    def shown(weighed: Weighed) -> np.ndarray:
        return np.where(in_weights[:, None], *weighed)

    rule = expected if isinstance(expected, str) else shown(expected)
    return Finding(in_weights | in_gradient, rows, shown(actual), rule, gradient=~in_weights)


@law()
def masked(weigh: Weigh, rows: Rows, rounding: Rounding) -> Finding:
    """A masked entry has weight 0 and sends back no gradient."""
    weighed, counts = weigh(rows), ~rows.where & rows.lawful()[:, None]
    wrong = Weighed(*(counts & (numbers != 0) for numbers in weighed))
    return _what_is_wrong(rows, wrong, weighed, "0 where masked")


@law()
def behind(weigh: Weigh, rows: Rows, rounding: Rounding) -> Finding:
    """What is behind the mask, NaN and infinity included, changes nothing."""
    junk = np.resize([np.nan, np.inf, -np.inf, 3e38], (len(rows.logits), 1))
    dirty, clean = (rows._replace(logits=np.where(rows.where, rows.logits, hidden)) for hidden in (junk, 0.0))
    actual, expected, counts = weigh(dirty), weigh(clean), rows.lawful()[:, None]
    wrong = (counts & (left != right) & ~(np.isnan(left) & np.isnan(right)) for left, right in zip(actual, expected))
    return _what_is_wrong(dirty, Weighed(*wrong), actual, expected)


@law()
def empty(weigh: Weigh, rows: Rows, rounding: Rounding) -> Finding:
    """An empty row gets 0, with gradient 0."""
    weighed, counts = weigh(rows), (rows.lawful() & ~rows.visible().any(-1))[:, None]
    return _what_is_wrong(rows, Weighed(*(counts & (numbers != 0) for numbers in weighed)), weighed, "0")


@law()
def lowest(weigh: Weigh, rows: Rows, rounding: Rounding) -> Finding:
    """A logit of -inf has weight 0."""
    weights = weigh(rows).weights
    wrong = rows.where & ~rows.visible() & (weights != 0)
    return Finding(rows.lawful() & wrong.any(-1), rows, weights, "0 at -inf")


def _added(weigh: Weigh, rows: Rows, rounding: Rounding, low: np.ndarray) -> Finding:
    """Compares rows that hide by a number with the same rows under a mask; those that are empty are left out."""
    added = Rows(np.where(rows.where, rows.logits, low), np.ones_like(rows.where), rows.kinds)
    actual, counts = weigh(added), np.asarray(rows.where.any(-1))
    expected = Weighed(*(np.where(rows.where, numbers, 0) for numbers in weigh(rows)))
    far = (counts & rounding.far(left, right) for left, right in zip(actual, expected))
    hidden = (counts[:, None] & ~rows.where & np.asarray(numbers != 0) for numbers in actual)
    wrong = Weighed(*(entries | row[:, None] for entries, row in zip(hidden, far)))
    return _what_is_wrong(added, wrong, actual, expected)


@law(any_size=False)
def infinite(weigh: Weigh, rows: Rows, rounding: Rounding) -> Finding:
    """-inf hides as the mask does."""
    return _added(weigh, rows, rounding, np.full(rows.logits.shape, -np.inf))


@law(any_size=False)
def low(weigh: Weigh, rows: Rows, rounding: Rounding) -> Finding:
    """A number of -10,000 or less that is added hides as the mask does."""
    lowest = -6e4 if rounding.least > 1e-9 else -2e38  # of float16
    return _added(weigh, rows, rounding, rows.logits + np.resize([-1e4, -2e4, lowest], (len(rows.logits), 1)))


@law()
def finite(weigh: Weigh, rows: Rows, rounding: Rounding) -> Finding:
    """Weights are finite for logits of any size, -inf included."""
    weights = weigh(rows).weights
    return Finding(rows.lawful() & ~np.isfinite(weights).all(-1), rows, weights, "finite weights")


@law()
def smooth(weigh: Weigh, rows: Rows, rounding: Rounding) -> Finding:
    """The gradient is finite for logits of any size, -inf included."""
    gradient = weigh(rows).gradient
    return Finding(rows.lawful() & ~np.isfinite(gradient).all(-1), rows, gradient, "finite numbers", gradient=True)


@law()
def poisoned(weigh: Weigh, rows: Rows, rounding: Rounding) -> Finding:
    """NaN or +inf makes the weights of its row NaN."""
    weights = weigh(rows).weights
    return Finding(~rows.lawful() & (rows.visible() & ~np.isnan(weights)).any(-1), rows, weights, "NaN above -inf")


def _neighbours(n: int, rounding: Rounding) -> Iterator[Rows]:
    """Yields rows to lie beside others: tame ones, both ends of the type, infinite, NaN, masked."""
    largest = 6e4 if rounding.least > 1e-9 else 3e38  # of float16
    for number in (0.0, largest, -largest, -np.inf, np.inf, np.nan):
        yield Rows(np.full((1, n), number), np.ones((1, n), bool), ["neighbour"])
    yield Rows(np.full((1, n), np.nan), np.zeros((1, n), bool), ["masked neighbour"])


@law(any_size=False)
def alone(weigh: Weigh, rows: Rows, rounding: Rounding) -> Finding:
    """A row is weighed by itself, whatever rows lie beside it."""

    def between(first: Rows, last: Rows) -> Weighed:
        # On both sides, as what sums along the batch may reach rows on one side only.
        return Weighed(*(numbers[1:-1] for numbers in weigh(joined(first, rows, last))))

    expected = between(rows.take([0]), rows.take([-1]))

    def beside(neighbour: Rows) -> Finding:
        actual = between(neighbour, neighbour)
        far = Weighed(*(rounding.far(left, right)[:, None] for left, right in zip(actual, expected)))
        return _what_is_wrong(rows, far, actual, expected)._replace(beside=neighbour)

    findings = [beside(neighbour) for neighbour in _neighbours(rows.logits.shape[-1], rounding)]
    return next((finding for finding in findings if finding.broken.any()), findings[-1])


@law("sums_to_one")
def sums(weigh: Weigh, rows: Rows, rounding: Rounding) -> Finding:
    """Weights sum to 1."""
    weights = weigh(rows).weights
    off = ~(np.abs(weights.sum(-1) - 1) <= rounding.total(rows.logits.shape[-1]))
    return Finding(rows.lawful() & rows.visible().any(-1) & off, rows, weights, "a sum of 1")


@law("never_negative")
def positive(weigh: Weigh, rows: Rows, rounding: Rounding) -> Finding:
    """No weight is negative."""
    weights = weigh(rows).weights
    return Finding(rows.lawful() & (weights < 0).any(-1), rows, weights, "weights of 0 or more")


@law("shift_invariant", any_size=False)
def shifted(weigh: Weigh, rows: Rows, rounding: Rounding) -> Finding:
    """A constant added to the row changes nothing."""
    # Steps of 1/2 and a shift of 64 are what half types carry without rounding.
    logits, shift = (rows.logits, 1e4) if rounding.eps < 1e-6 else (np.round(2 * rows.logits) / 2, 64.0)
    moved = rows._replace(logits=logits + np.resize([shift, -shift], (len(logits), 1)))
    actual, expected = weigh(moved).weights, weigh(rows._replace(logits=logits)).weights
    return Finding(rounding.far(actual, expected), moved, actual, expected)


@law("same_in_any_order")
def permuted(weigh: Weigh, rows: Rows, rounding: Rounding) -> Finding:
    """A permuted row has its weights permuted."""
    actual, expected = weigh(rows.turned()).weights, weigh(rows).weights[:, ::-1]
    far = (np.abs(actual - expected) > rounding.total(actual.shape[-1])).any(-1)
    return Finding(rows.lawful() & far, rows.turned(), actual, expected)


@law("monotone")
def rising(weigh: Weigh, rows: Rows, rounding: Rounding) -> Finding:
    """A larger logit has no smaller weight."""
    weights, visible = weigh(rows).weights, rows.visible()
    order = np.argsort(np.where(visible, rows.logits, -np.inf), -1, kind="stable")
    rises = np.diff(np.take_along_axis(weights, order, -1), axis=-1) >= -rounding.total(weights.shape[-1])
    largest = np.max(rows.logits, -1, keepdims=True, initial=-np.inf, where=visible)
    with np.errstate(invalid="ignore", over="ignore"):  # of infinities and the ends of float64
        weighed = visible & ~is_low(rows.logits, largest)
    counted = np.take_along_axis(weighed, order, -1)[:, :-1]
    return Finding(rows.lawful() & ~(rises | ~counted).all(-1), rows, weights, "weights in the order of the logits")


def broken(
    weigh: Weigh, rows: Rows, rounding: Rounding, claims: Claims, any_size: bool
) -> Iterator[tuple[str, Finding]]:
    """Yields each claimed law that some of the rows break; with `any_size` the rows may hold any number."""
    for law in LAWS:
        if (law.any_size or not any_size) and claims.include(law):
            finding = law.find(weigh, rows, rounding)
            if finding.broken.any():
                yield law.promise, finding


def finite_kinds(dtype: str, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns, by name, a row each of finite logits or some of -inf."""
    limits = jnp.finfo(dtype)
    top, least = float(limits.max), float(limits.smallest_subnormal)
    below_top = float(np.nextafter(np.asarray(top, jnp.dtype(dtype)), np.asarray(0, jnp.dtype(dtype))))
    place = np.arange(n) == rng.integers(n)
    signs, unit, power = rng.choice([-1.0, 1.0], n), rng.normal(size=n), 10.0 ** rng.integers(-3, 4)
    size = top ** rng.uniform(-1, 1, n)
    return {
        "all the largest": np.full(n, top),
        "all the lowest": np.full(n, -top),
        "both ends": signs * top,
        "the largest among the lowest": np.where(place, top, -top),
        "the lowest among the largest": np.where(place, -top, top),
        "the largest among zeros": top * place,
        "the lowest among zeros": -top * place,
        "the largest and its neighbour": rng.choice([top, below_top], n),
        "the lowest and its neighbour": -rng.choice([top, below_top], n),
        "subnormal": signs * least * rng.integers(1, 100, n),
        "the smallest normal": signs * float(limits.tiny),
        "any size": signs * size,
        "any negative": -size,
        "all equal": np.full(n, unit[0] * power),
        "one above equals": unit[0] + power * place,
        "one finite among -inf": np.where(place, rng.choice([0.0, 1.0, -1.0, top, -top]), -np.inf),
        "ordinary and -inf": np.where(rng.random(n) < 0.5, -np.inf, unit),
        "all -inf": np.full(n, -np.inf),
        "ordinary": power * unit,
    }


def poisoned_kinds(dtype: str, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns, by name, a row each that holds NaN or +inf."""
    place, row = np.arange(n) == rng.integers(n), rng.normal(size=n)
    ends = np.where(rng.random(n) < 0.5, -np.inf, float(jnp.finfo(dtype).max))
    return {
        "one NaN": np.where(place, np.nan, row),
        "one +inf": np.where(place, np.inf, row),
        "all NaN": np.full(n, np.nan),
        "all +inf": np.full(n, np.inf),
        "one NaN among -inf and the largest": np.where(place, np.nan, ends),
        "one +inf among -inf and the largest": np.where(place, np.inf, ends),
    }


def hostile(dtype: str, n: int, rows: int, seed: int = 0) -> Rows:
    """Returns adversarial rows under full, random, sparse, prefix and empty masks."""
    rng = np.random.default_rng(seed)
    logits, kinds = [], []
    while len(logits) < rows:
        kinds_of_rows = finite_kinds(dtype, n, rng) | poisoned_kinds(dtype, n, rng)
        logits += kinds_of_rows.values()
        kinds += kinds_of_rows
    lengths = rng.integers(1, n + 1, (rows, 1))
    masks = [
        np.ones((rows, n), bool),
        rng.random((rows, n)) < 0.7,
        np.arange(n) < lengths,
        rng.random((rows, n)) < 0.1,
        np.zeros((rows, n), bool),
    ]
    turn = rng.choice(len(masks), (rows, 1), p=[0.4, 0.2, 0.2, 0.1, 0.1])
    where = np.select([turn == place for place in range(len(masks))], masks, False)
    return Rows(np.asarray(logits[:rows]).astype(jnp.dtype(dtype)), where, kinds[:rows])


def ordinary(n: int, rows: int, seed: int = 0) -> Rows:
    """Returns rows of multiples of 1/16 up to 8, which every type holds, under masks of several densities."""
    rng = np.random.default_rng(seed)
    where = rng.random((rows, n)) < np.resize([1.1, 0.7, 0.4, -1], (rows, 1))
    return Rows(rng.integers(-128, 129, (rows, n)) / 16, where, ["ordinary"] * rows)
