"""The algorithms of CLRS-Text: what each is given and what it answers, as functions of keys that compile.

A number with d decimals is held as a whole number, its code: k stands for k / 10ᵈ if it is not negative, and for
-(-k - 1) / 10ᵈ if it is. So -1 is the -0.0 that truncation makes of -0.0004, and the numbers of a set drawn from
[-1, 1) and truncated are the codes from -10ᵈ to 10ᵈ - 1, all alike. Arrays have room for more nodes than an instance
may have; what stands behind its length is not looked at.

Source: the samplers and algorithms of dm-clrs 2.0.3 (Markeeva et al., "The CLRS-Text algorithmic reasoning language
benchmark", arXiv 2406.04229). Given its inputs, the answers are the same, ties and roundings of sums included.
"""

import enum
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, Shaped

Inputs = Mapping[str, Int[Array, "..."]]
"""Codes or whole numbers by the name of the field: a vector with room for the nodes, or one number."""
LETTERS = 4
"""Of the strings to search in."""
MOST = np.int32(2**31 - 1)


class Kind(enum.Enum):
    """What a field holds."""

    DECIMALS = enum.auto()
    DECIMAL = enum.auto()
    INTEGERS = enum.auto()
    INTEGER = enum.auto()

    @property
    def is_list(self) -> bool:
        """Whether it holds a number for each node."""
        return self in (Kind.DECIMALS, Kind.INTEGERS)

    @property
    def is_decimal(self) -> bool:
        """Whether its numbers have decimals, and so are codes."""
        return self in (Kind.DECIMALS, Kind.DECIMAL)


class Algorithm(NamedTuple):
    """One algorithm: the names of what goes in and comes out, in the order of the text, and how either is made."""

    inputs: Mapping[str, Kind]
    outputs: Mapping[str, Kind]
    draw: Callable[[Key[Array, ""], Int[Array, ""], int, int], Inputs]
    """From key, length, room and decimals to inputs."""
    solve: Callable[[Inputs, Int[Array, ""], int], Inputs]
    """From inputs, length and decimals to outputs."""
    least: int = 2
    """The fewest nodes of an instance."""


def codes_of(values: Float[np.ndarray, "*shape"], decimals: int) -> Int[np.ndarray, "*shape"]:
    """The codes of numbers between -1 and 1, truncated to so many decimals.

    >>> codes_of(np.array([0.5489, 0.0, -0.0004, -0.153]), 3).tolist()
    [548, 0, -1, -154]
    """
    truncated = np.trunc(values * 10**decimals)
    size = np.abs(truncated).astype(np.int32)
    return np.where(np.signbit(truncated), ~size, size)


def values_of(codes: Int[np.ndarray, "*shape"], decimals: int) -> Float[np.ndarray, "*shape"]:
    """The numbers of codes, in float64.

    >>> values_of(np.array([548, 0, -1, -154]), 3).tolist()
    [0.548, 0.0, -0.0, -0.153]
    """
    return np.where(codes < 0, -(~codes).astype(np.float64), codes.astype(np.float64)) / 10**decimals


def _behind(length: Int[Array, ""], values: Shaped[Array, " room"], filler: Any) -> Shaped[Array, " room"]:
    """The values with a filler behind the length."""
    return jnp.where(jnp.arange(len(values), dtype=jnp.int32) < length, values, filler)


def _draw_key(key: Key[Array, ""], length: Int[Array, ""], room: int, decimals: int) -> Inputs:
    return {"key": jax.random.randint(key, (room,), 0, 10**decimals, jnp.int32)}


def _minimum(inputs: Inputs, length: Int[Array, ""], decimals: int) -> Inputs:
    return {"min": _behind(length, inputs["key"], MOST).argmin().astype(jnp.int32)}


def _sorted(inputs: Inputs, length: Int[Array, ""], decimals: int) -> Inputs:
    return {"pred": jnp.sort(_behind(length, inputs["key"], MOST))}


def _draw_search(key: Key[Array, ""], length: Int[Array, ""], room: int, decimals: int) -> Inputs:
    key, target = jax.random.split(key)
    ascending = _sorted(_draw_key(key, length, room, decimals), length, decimals)["pred"]
    return {"key": ascending, "target": jax.random.randint(target, (), 0, 10**decimals, jnp.int32)}


def _binary_search(inputs: Inputs, length: Int[Array, ""], decimals: int) -> Inputs:
    """The first node that is no smaller than the target, or else the last."""
    smaller = _behind(length, inputs["key"] < inputs["target"], False)
    return {"return": jnp.minimum(smaller.sum(dtype=jnp.int32), length - 1)}


class _Partition(NamedTuple):
    """Quickselect in the middle of a partition: nodes from `first` to `last` by the value of the last."""

    values: Int[Array, " room"]
    places: Int[Array, " room"]
    first: Int[Array, ""]
    last: Int[Array, ""]
    sought: Int[Array, ""]
    """The rank sought, counted from `first`."""
    kept: Int[Array, ""]
    """Where the next node that is no larger goes."""
    seen: Int[Array, ""]
    """The node that is looked at."""
    found: Int[Array, ""]
    """Where the median was in the beginning; -1 until it is known."""


def _quickselect(inputs: Inputs, length: Int[Array, ""], decimals: int) -> Inputs:
    """The node of rank length // 2. Which one of equals that is depends on the swaps, so they are made."""
    zero = jnp.zeros_like(length)
    places = jnp.arange(len(inputs["key"]), dtype=jnp.int32)
    start = _Partition(inputs["key"], places, zero, length - 1, length // 2, zero, zero, zero - 1)

    def step(state: _Partition) -> _Partition:
        at_pivot = state.seen == state.last
        swap = at_pivot | (state.values[state.seen] <= state.values[state.last])
        where_to = jnp.where(swap, state.seen, state.kept)
        exchange = places.at[state.kept].set(where_to).at[where_to].set(state.kept)
        values, places_now = state.values[exchange], state.places[exchange]
        rank = state.kept - state.first
        first = jnp.where(at_pivot & (rank < state.sought), state.kept + 1, state.first)
        last = jnp.where(at_pivot & (rank > state.sought), state.kept - 1, state.last)
        return _Partition(
            values,
            places_now,
            first,
            last,
            jnp.where(at_pivot & (rank < state.sought), state.sought - rank - 1, state.sought),
            jnp.where(at_pivot, first, state.kept + swap.astype(jnp.int32)),
            jnp.where(at_pivot, first, state.seen + 1),
            jnp.where(at_pivot & (rank == state.sought), places_now[state.kept], state.found),
        )

    return {"median": jax.lax.while_loop(lambda state: state.found < 0, step, start).found}


def _draw_signed(key: Key[Array, ""], length: Int[Array, ""], room: int, decimals: int) -> Inputs:
    return {"key": jax.random.randint(key, (room,), -(10**decimals), 10**decimals, jnp.int32)}


@functools.lru_cache
def _all_values(decimals: int) -> Float[np.ndarray, " codes"]:
    """The number of each code from the least up. A compiled division by a constant is rounded otherwise."""
    return values_of(np.arange(-(10**decimals), 10**decimals), decimals)


def _maximum_subarray(inputs: Inputs, length: Int[Array, ""], decimals: int) -> Inputs:
    """Kadane's scan, with sums in float64: rounded otherwise, sums that tie would be told apart otherwise."""
    with jax.enable_x64(True):
        values = jnp.asarray(_all_values(decimals))[inputs["key"] + 10**decimals]
        values = _behind(length, values, -jnp.inf)

        def step(state: tuple[Array, ...], node: tuple[Array, Array]) -> tuple[tuple[Array, ...], None]:
            start, end, best, first, total = state
            here, value = node
            extends = total + value >= value
            first, total = jnp.where(extends, first, here), jnp.where(extends, total + value, value)
            better = total > best
            winner = jnp.where(better, first, start), jnp.where(better, here, end), jnp.where(better, total, best)
            return (*winner, first, total), None

        zero = jnp.int32(0)
        nodes = jnp.arange(1, len(values), dtype=jnp.int32), values[1:]
        (start, end, *_), _ = jax.lax.scan(step, (zero, zero, values[0], zero, values[0]), nodes)
    return {"start": start, "end": end}


def _draw_strings(key: Key[Array, ""], length: Int[Array, ""], room: int, decimals: int) -> Inputs:
    """A string and then the one to find in it, which was put there, though never at its very end."""
    letters_key, place_key = jax.random.split(key)
    letters = jax.random.randint(letters_key, (room,), 0, LETTERS, jnp.int32)
    nodes = jnp.arange(room, dtype=jnp.int32)
    needle = jnp.where(length < 5, 1, length // 5)
    haystack = length - needle
    place = jax.random.randint(place_key, (), 0, haystack - needle, jnp.int32)
    needle_letters = letters[jnp.clip(haystack + nodes - place, 0, room - 1)]
    put = (nodes >= place) & (nodes < place + needle)
    return {"string": (nodes >= haystack).astype(jnp.int32), "key": jnp.where(put, needle_letters, letters)}


def _first_match(inputs: Inputs, length: Int[Array, ""], decimals: int) -> Inputs:
    """Where the second string first begins in the first; at its own place if it does not."""
    nodes = jnp.arange(len(inputs["key"]), dtype=jnp.int32)
    haystack = _behind(length, inputs["string"] == 0, False).sum(dtype=jnp.int32)

    def matches(count: Int[Array, ""], so_far: Shaped[Array, " room"]) -> Shaped[Array, " room"]:
        following = jnp.roll(inputs["key"], -count)
        return so_far & (following == inputs["key"][haystack + count])

    begins = jax.lax.fori_loop(0, length - haystack, matches, nodes <= 2 * haystack - length)
    return {"match": jnp.where(begins.any(), begins.argmax().astype(jnp.int32), haystack)}


def _draw_activities(key: Key[Array, ""], length: Int[Array, ""], room: int, decimals: int) -> Inputs:
    times = jax.random.randint(key, (2, room), 0, 10**decimals, jnp.int32)
    return {"s": times.min(0), "f": times.max(0)}


def _select_activities(inputs: Inputs, length: Int[Array, ""], decimals: int) -> Inputs:
    """In the order of their ends, the earlier node first of equals, each that begins no sooner than the last ended."""
    order = jnp.argsort(_behind(length, inputs["f"], MOST)).astype(jnp.int32)

    def step(free: Int[Array, ""], node: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        chosen = (inputs["s"][node] >= free) & (node < length)
        return jnp.where(chosen, inputs["f"][node], free), chosen.astype(jnp.int32)

    _, chosen = jax.lax.scan(step, jnp.int32(0), order)
    return {"selected": jnp.zeros_like(chosen).at[order].set(chosen)}


KEY = {"key": Kind.DECIMALS}
ALGORITHMS: dict[str, Algorithm] = {
    "minimum": Algorithm(KEY, {"min": Kind.INTEGER}, _draw_key, _minimum),
    "binary_search": Algorithm(KEY | {"target": Kind.DECIMAL}, {"return": Kind.INTEGER}, _draw_search, _binary_search),
    "quickselect": Algorithm(KEY, {"median": Kind.INTEGER}, _draw_key, _quickselect),
    "find_maximum_subarray_kadane": Algorithm(
        KEY, {"start": Kind.INTEGER, "end": Kind.INTEGER}, _draw_signed, _maximum_subarray
    ),
    "kmp_matcher": Algorithm(
        {"string": Kind.INTEGERS, "key": Kind.INTEGERS}, {"match": Kind.INTEGER}, _draw_strings, _first_match, least=3
    ),
    "activity_selector": Algorithm(
        {"s": Kind.DECIMALS, "f": Kind.DECIMALS}, {"selected": Kind.INTEGERS}, _draw_activities, _select_activities
    ),
    "insertion_sort": Algorithm(KEY, {"pred": Kind.DECIMALS}, _draw_key, _sorted),
}
"""By the names of dm-clrs."""
