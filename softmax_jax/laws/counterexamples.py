"""The smallest counterexample of a law that a normalizer breaks, in one line."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softmax_jax.laws import laws
from softmax_jax.laws.laws import Finding, Law, Rounding, Rows, Weigh, Weighed, joined
from softmax_jax.normalizers.normalizer import Normalizer

ROWS, N = 256, 65
"""Rows that one program weighs, and their entries: XLA unrolls loops of up to 64, which takes twice as long."""
ORDINARY, HOSTILE = 20, 44
SHRINKS = 30
"""Times that a counterexample is made smaller."""
LONGEST = 190
"""Letters of a counterexample: three lines of a narrow terminal, with the names before it."""


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
        arrays = weigh(normalizer, jnp.asarray(logits), jnp.asarray(np.resize(rows.where, logits.shape)))
        return Weighed(*(np.asarray(array, np.float64)[:count] for array in arrays))

    return weigh_rows


def counterexample(normalizer: Normalizer, law: Law, dtype: str) -> str:
    """Returns a row that breaks a law, made as small as it can, in words; nothing if none does."""
    if dtype == "float16" and law.find is laws.smooth:
        return ""  # whose largest number is 65,504: a slope may lie beyond it
    rows, rounding, weigh_rows = laws.ordinary(N, ORDINARY), Rounding.of(dtype), weigher(normalizer, dtype)
    if law.any_size:
        hostile = laws.hostile(dtype, N, HOSTILE)
        rows = joined(rows, hostile._replace(logits=hostile.logits.astype(np.float64)))
    finding = law.find(weigh_rows, rows, rounding)
    if not finding.broken.any():
        return ""
    place = int(finding.broken.argmax())
    alone = law.find(weigh_rows, rows.take([place]), rounding)
    if not alone.broken.any():
        return f"{describe(finding, place)}, beside other rows"
    shrunk = shrink(law, weigh_rows, rounding, rows.take([place]), alone)
    return describe(shrunk, with_hidden=holds_without_hidden(law, weigh_rows, rounding, shrunk.rows))


def holds_without_hidden(law: Law, weigh_rows: Weigh, rounding: Rounding, row: Rows) -> bool:
    """Says whether a row that breaks a law keeps it once its hidden entries are left out."""
    (visible,) = row.where
    if not visible.any():
        return False
    alone = Rows(row.logits[:, visible], row.where[:, visible], row.kinds)
    return not law.find(weigh_rows, alone, rounding).broken.any()


def shrink(law: Law, weigh_rows: Weigh, rounding: Rounding, row: Rows, finding: Finding) -> Finding:
    """Hides entries of a row, or sets them to simple numbers, as long as the row breaks the law by itself."""
    for _ in range(SHRINKS):
        smaller = simpler_rows(row)
        places = np.flatnonzero(law.find(weigh_rows, smaller, rounding).broken) if len(smaller.logits) else []
        if not len(places):
            break
        row = smaller.take(places[:1])
        alone = law.find(weigh_rows, row, rounding)
        if not alone.broken.any():
            break
        finding = alone
    return finding


def simpler_rows(row: Rows) -> Rows:
    """Returns rows that differ from one in entries that are hidden, or in a simpler number; the simplest first."""
    z, where = row.logits[0], row.where[0]
    candidates: list[tuple[np.ndarray, np.ndarray]] = []
    for size in (32, 8, 1):
        for places, hides in (np.flatnonzero(where), True), (np.flatnonzero(z), False):
            for first in range(0, places.size, size):
                chosen = np.isin(np.arange(z.size), places[first : first + size])
                candidates.append((np.where(chosen, 0.0, z), where & ~(chosen & hides)))
    for place in np.flatnonzero(np.isfinite(z)):
        for number in (1.0, np.sign(z[place]) * 2.0, np.round(z[place])):
            if abs(number) < abs(z[place]):
                candidates.append((np.where(np.arange(z.size) == place, number, z), where))
    candidates = candidates[: ROWS - 2]  # so that no further program is compiled where they have neighbours
    logits = np.array([numbers for numbers, _ in candidates]).reshape(-1, z.size)
    masks = np.array([mask for _, mask in candidates], bool).reshape(-1, z.size)
    return Rows(logits, masks, row.kinds * len(candidates))


def describe(finding: Finding, row: int = 0, *, with_hidden: bool = False) -> str:
    """Returns a row, what it got and what the law expects, in words; hidden entries only if they are wrong.

    With `with_hidden` it has one hidden entry in any case. Of a row that is still long it has the entries that are
    furthest off.
    """
    z, where, actual = finding.rows.logits[row], finding.rows.where[row], finding.actual[row]
    expected = np.zeros_like(actual) if isinstance(finding.expected, str) else finding.expected[row]
    with np.errstate(invalid="ignore"):  # of equal infinities
        off = np.where((actual == expected) | (np.isnan(actual) & np.isnan(expected)), 0, np.abs(actual - expected))
    wrong = ~where & ((off != 0) if (off[~where] != 0).any() else (z != 0))
    if with_hidden and not wrong.any():
        wrong = ~where
    kept = where | (wrong & (np.cumsum(wrong) == 1))
    places = np.flatnonzero(kept if kept.any() else np.arange(z.size) == 0)
    furthest = places[np.argsort(-np.nan_to_num(off[places], nan=np.inf), kind="stable")]
    counts = places.size, *(count for count in (8, 4, 2, 1) if count < places.size)
    texts = [_describe_entries(finding, row, np.sort(furthest[:count])) for count in counts]
    return next((text for text in texts if len(text) <= LONGEST), texts[-1])


def _describe_entries(finding: Finding, row: int, places: np.ndarray) -> str:
    """Returns a row at some of its entries in words, in the digits that tell what it got from what is expected."""
    logits, where = finding.rows.logits[row], finding.rows.where[row]
    actual, expected = finding.actual[row], finding.expected
    others = np.delete(where, places).sum()
    given = listed(logits[places]) + (f" and {others} more" if others else "")
    given += "" if where[places].all() else f", visible {where[places].astype(int).tolist()}"
    if isinstance(expected, str):
        actual_text, expected_text = listed(actual[places]), expected
    else:
        pairs = [[listed(numbers[places], digits) for numbers in (actual, expected[row])] for digits in (6, 9, 17)]
        actual_text, expected_text = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    if finding.beside is not None:
        given += f" beside {listed(finding.beside.logits[0, places]) if finding.beside.where.any() else 'a masked row'}"
        expected_text += ", as alone"
    kind = "the gradient " if np.broadcast_to(finding.gradient, len(finding.actual))[row] else ""
    return f"logits {given} got {kind}{actual_text}; wanted {expected_text}"


def listed(numbers: np.ndarray, digits: int = 6) -> str:
    """Returns numbers as text, equal ones in a row as one with their count.

    >>> listed(np.array([0.5, 0.0, 0.0, 0.0]))
    '[0.5, 0 × 3]'
    """
    runs = [(text, len(list(run))) for text, run in itertools.groupby(f"{number:.{digits}g}" for number in numbers)]
    return f"[{', '.join(f'{text} × {times}' if times > 2 else ', '.join([text] * times) for text, times in runs)}]"
