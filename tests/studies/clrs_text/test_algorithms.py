"""What instances are drawn, and answers that need no text; tests/parity compares all answers with the benchmark."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from studies.clrs_text.algorithms import ALGORITHMS, values_of
from tests.studies.clrs_text.instances import LENGTH, ROOM, drawn
from tests.tiers import full_except


@pytest.mark.parametrize(
    ("algorithm", "length", "room"),
    full_except(
        [("insertion_sort", LENGTH, ROOM), ("quickselect", LENGTH, ROOM), ("quickselect", 17, 17)], "insertion_sort"
    ),
)
def test_what_is_behind_the_length_is_no_part_of_an_answer(algorithm, length, room):
    """All algorithms are compared with those of the benchmark in tests/parity."""
    inputs, outputs = drawn(algorithm, length, room)
    ordered = np.sort(inputs["key"][:, :length])
    if algorithm == "quickselect":
        chosen = np.take_along_axis(inputs["key"], outputs["median"][:, None], 1)[:, 0]
        np.testing.assert_array_equal(chosen, ordered[:, length // 2])
    else:
        np.testing.assert_array_equal(outputs["pred"][:, :length], ordered)


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
