"""Questions and answers against dm-clrs on its own draws, as `pytest tests/parity` runs them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from studies.clrs_text.algorithms import ALGORITHMS, codes_of, values_of
from studies.clrs_text.texts import answer_parts, question_parts, text_of
from tests.parity import clrs

MODULES = clrs.load()
LENGTHS = (2, 3, 4, 5, 11, 16, 17, 31, 64)
ROOM = max(LENGTHS)
SAMPLES = 40


class StableNumpy:
    """NumPy whose argsort keeps equals in order; its own order of them differs from machine to machine."""

    argsort = staticmethod(functools.partial(np.argsort, kind="stable"))

    def __getattr__(self, name):
        return getattr(np, name)


@functools.cache
def solver(algorithm, decimals):
    """The answers to many instances of one length, in room for all lengths, so that it is compiled once."""
    one = ALGORITHMS[algorithm]
    return jax.jit(jax.vmap(lambda inputs, length: one.solve(inputs, length, decimals), in_axes=(0, None)))


def texts(algorithm, inputs, decimals):
    """Question and answer of each of these inputs, which are of one length."""
    length = len(next(iter(inputs[0].values())))
    stacked = {name: np.stack([one[name] for one in inputs]) for name in inputs[0]}
    roomy = {name: np.pad(v, ((0, 0), (0, ROOM - length))) if v.ndim > 1 else v for name, v in stacked.items()}
    outputs = jax.tree.map(np.asarray, solver(algorithm, decimals)(roomy, jnp.int32(length)))
    for index, one in enumerate(inputs):
        answer = {name: np.asarray(v[index, :length] if v.ndim > 1 else v[index]) for name, v in outputs.items()}
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


def test_numbers_are_truncated_as_in_the_original():
    sampler, _ = MODULES[0].build_sampler("minimum", 1, seed=0, length=4, track_max_steps=False, truncate_decimals=3)
    drawn = np.random.default_rng(0).uniform(-1, 1, 100_000)
    (theirs,) = sampler._trunc_array([drawn])
    np.testing.assert_array_equal(values_of(codes_of(drawn, 3), 3), theirs)
    np.testing.assert_array_equal(np.signbit(values_of(codes_of(drawn, 3), 3)), np.signbit(theirs))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_original_has_no_shorter_instances(algorithm):
    with pytest.raises((TypeError, ValueError)):
        list(clrs.samples(MODULES, algorithm, ALGORITHMS[algorithm].least - 1, 1, 3))
