"""The answers against plain Python, which knows no room and no ties of float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from studies.clrs_text.algorithms import ALGORITHMS, values_of
from tests.studies.clrs_text.instances import COUNT, LENGTH, ROOM, drawn, without_room
from tests.tiers import full_except

DECIMALS = 3


def minimum(key):
    return {"min": int(np.argmin(key))}


def binary_search(key, target):
    return {"return": min(int(np.searchsorted(key, target)), len(key) - 1)}


def find_maximum_subarray_kadane(key):
    values = values_of(key, DECIMALS)
    sums = {(i, j): round(sum(values[i : j + 1]), 6) for i in range(len(key)) for j in range(i, len(key))}
    return max(sums.values()), sums


def kmp_matcher(string, key):
    haystack, needle = key[string == 0].tolist(), key[string == 1].tolist()
    found = [i for i in range(len(haystack)) if haystack[i : i + len(needle)] == needle]
    return {"match": found[0]}


def activity_selector(s, f):
    chosen, free = np.zeros(len(s), int), -1
    for node in np.argsort(f, kind="stable"):
        if s[node] >= free:
            chosen[node], free = 1, f[node]
    return {"selected": chosen}


PLAIN = {
    "minimum": minimum,
    "binary_search": binary_search,
    "kmp_matcher": kmp_matcher,
    "activity_selector": activity_selector,
}


WITHOUT_ROOM = [pytest.param(name, 17, 17, marks=pytest.mark.full) for name in ("quickselect", "kmp_matcher")]


@pytest.mark.parametrize(
    ("algorithm", "length", "room"),
    [*full_except([(name, LENGTH, ROOM) for name in ALGORITHMS], "minimum"), *WITHOUT_ROOM],
)
def test_answers_are_right(algorithm, length, room):
    inputs, outputs = drawn(algorithm, length, room)
    for index in range(COUNT):
        given, got = (without_room(fields, length, index) for fields in (inputs, outputs))
        if algorithm == "find_maximum_subarray_kadane":
            best, sums = find_maximum_subarray_kadane(**given)
            assert sums[int(got["start"]), int(got["end"])] == best
        elif algorithm == "quickselect":
            assert given["key"][got["median"]] == np.sort(given["key"])[length // 2]
        elif algorithm == "insertion_sort":
            np.testing.assert_array_equal(got["pred"], np.sort(given["key"]))
        else:
            for name, value in PLAIN[algorithm](**given).items():
                np.testing.assert_array_equal(got[name], value)


@pytest.mark.full
def test_a_needle_is_a_fifth_of_the_nodes_and_never_at_the_very_end():
    inputs, outputs = drawn("kmp_matcher", LENGTH, ROOM)
    assert (inputs["string"][:, :LENGTH].sum(1) == LENGTH // 5).all()
    assert outputs["match"].max() == LENGTH - 2 * (LENGTH // 5) - 1
    assert set(np.unique(inputs["key"])) == set(range(4))


def test_signed_numbers_hold_both_zeros():
    draw = ALGORITHMS["find_maximum_subarray_kadane"].draw
    codes = np.asarray(draw(jax.random.key(0), jnp.int32(500), 500, 1)["key"])
    assert set(codes) == set(range(-10, 10))
    zeros = values_of(codes, 1)[np.isin(codes, (0, -1))]
    assert set(np.signbit(zeros)) == {True, False}
