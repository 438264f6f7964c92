"""Questions and answers against dm-clrs on its own draws, as `pytest -m parity` runs them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax.tasks.clrs_algorithms import ALGORITHMS
from softmax_jax.tasks.clrs_tokens import answer_parts, question_parts, text_of
from tests.parity import clrs

pytestmark = pytest.mark.parity
MODULES = clrs.load()
LENGTHS = (2, 3, 4, 5, 10, 11, 12, 15, 16, 17, 19, 23, 28, 31, 64)
SAMPLES = 200


class StableNumpy:
    """NumPy whose argsort keeps equals in order; its own order of them differs from machine to machine."""

    argsort = staticmethod(functools.partial(np.argsort, kind="stable"))

    def __getattr__(self, name):
        return getattr(np, name)


def texts(algorithm, inputs, decimals):
    """Question and answer of each of these inputs, which are of one length."""
    length = len(next(iter(inputs[0].values())))
    stacked = {name: jnp.asarray(np.stack([one[name] for one in inputs])) for name in inputs[0]}
    solve = jax.jit(jax.vmap(lambda one: ALGORITHMS[algorithm].solve(one, jnp.int32(length), decimals)))
    outputs = jax.tree.map(np.asarray, solve(stacked))
    for index, one in enumerate(inputs):
        answer = {name: values[index] for name, values in outputs.items()}
        yield tuple(
            text_of(parts(algorithm), fields, decimals)
            for parts, fields in ((question_parts, one), (answer_parts, answer))
        )


@pytest.mark.parametrize("decimals", [1, 3, 5])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_question_and_answer_are_those_of_the_original(algorithm, decimals, monkeypatch):
    monkeypatch.setattr(MODULES[2], "np", StableNumpy())
    for length in LENGTHS:
        if length >= ALGORITHMS[algorithm].least:
            inputs, theirs = zip(*clrs.samples(MODULES, algorithm, length, SAMPLES, decimals))
            assert list(texts(algorithm, inputs, decimals)) == list(theirs)


def test_activities_that_end_at_different_times_need_no_order_of_equals():
    inputs, theirs = zip(*clrs.samples(MODULES, "activity_selector", 31, 500, 6))
    ours = list(texts("activity_selector", inputs, 6))
    differ = [len(set(one["f"].tolist())) == 31 for one in inputs]
    assert sum(differ) > 300
    assert [a for a, kept in zip(ours, differ) if kept] == [b for b, kept in zip(theirs, differ) if kept]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_original_has_no_shorter_instances(algorithm):
    with pytest.raises((TypeError, ValueError)):
        list(clrs.samples(MODULES, algorithm, ALGORITHMS[algorithm].least - 1, 1, 3))
