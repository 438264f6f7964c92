import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from studies.clrs_text.algorithms import ALGORITHMS
from studies.clrs_text.rows import NONE
from studies.clrs_text.task import ClrsText

SEED = jnp.int32(3)
SMALL = ClrsText(algorithms=("minimum", "insertion_sort"), lengths=(4, 7), hidden=16, heads=2, layers=1)
SPELLED = dataclasses.replace(SMALL, tokenizer="smollm2")


@functools.cache
def batch(task):
    return jax.tree.map(np.asarray, jax.jit(task.training_batch)(SEED, jnp.int32(0)))


@functools.cache
def model(task):
    return task.build("softmax", nnx.Rngs(0))


def texts(task):
    """Every text of a batch: the one in the rows, its answer, and where its tokens lie."""
    of = batch(task)
    for copy in range(task.batch):
        for index in range(len(task.algorithms) * len(task.lengths)):
            there = of.text[copy] == index
            answer = of.answer[copy][(of.text_index[copy] == index) & (of.weight[copy] > 0)]
            yield *(task.vocabulary.decode(part.tolist()) for part in (of.tokens[copy][there], answer)), there


@pytest.mark.full
@pytest.mark.parametrize("task", [SMALL, SPELLED])
def test_a_batch_has_a_text_of_every_algorithm_and_length_in_rows(task):
    found = []
    for text, answer, there in texts(task):
        name, rest = text.split(":\n", 1)
        numbers = rest[rest.index("[") + 1 : rest.index("]")].split()
        found.append((name, len(numbers)))
        assert (there.sum(1) > 0).sum() == 1
        _, shown = text.rsplit(":\n", 1)
        assert answer.startswith(shown)  # whose last token nothing follows, so it is in no row
        right = {
            "minimum": f"{numbers.index(min(numbers))}\n\n",
            "insertion_sort": f"[{' '.join(sorted(numbers, key=float))}]\n\n",
        }
        assert answer == right[name]
    wanted = [(name, length) for name in task.algorithms for length in task.lengths] * task.batch
    assert found == wanted


@pytest.mark.full
@pytest.mark.parametrize("task", [SMALL, SPELLED])
def test_answers_are_read_where_the_token_before_them_stands(task):
    of = batch(task)
    tokens, text = of.tokens[0].reshape(-1), of.text[0].reshape(-1)
    counted = of.weight[0] > 0
    following = of.answer[0][counted]
    read, of_text = of.read[0][counted], of.text_index[0][counted]
    np.testing.assert_array_equal(text[read], of_text)
    last = np.append(of_text[1:] != of_text[:-1], True)
    np.testing.assert_array_equal(tokens[read[~last] + 1], following[~last])
    np.testing.assert_allclose(of.weight[0].sum(), len(task.algorithms) * len(task.lengths), rtol=1e-6)


@pytest.mark.full
def test_no_text_sees_another_or_a_slot_without_a_token():
    of = jax.tree.map(jnp.asarray, batch(SMALL))
    scores = SMALL.scores(model(SMALL), of, None)
    other = of._replace(tokens=jnp.where(of.text == 1, (of.tokens + 1) % 1000, of.tokens))
    changed = np.abs(SMALL.scores(model(SMALL), other, None) - scores).max(-1) > 1e-5
    assert set(np.asarray(of.text_index)[changed]) == {1}
    assert (of.text == NONE).any()
    moved = of._replace(tokens=jnp.where(of.text == NONE, 7, of.tokens))
    counted = of.weight > 0
    np.testing.assert_allclose(SMALL.scores(model(SMALL), moved, None)[counted], scores[counted], atol=1e-5)


@pytest.mark.full
def test_nothing_is_wrong_behind_the_end_of_an_answer():
    one = dataclasses.replace(SPELLED, algorithms=("insertion_sort",))
    of = jax.jit(lambda: one.test_batch(jax.random.key(3), 5, 4))()
    nothing = of.weight == 0
    assert nothing.any()
    assert (one.scores(model(SPELLED), of, None).argmax(-1) == of.answer)[nothing].all()


@pytest.mark.full
def test_an_answer_is_right_if_all_its_tokens_are():
    of = jax.tree.map(jnp.asarray, batch(SMALL))
    scores = jax.nn.one_hot(of.answer, SMALL.vocabulary.size)
    assert SMALL.right(scores, of).all()
    last = (of.text_index[0] == 2) & (of.weight[0] > 0)
    at = int(jnp.flatnonzero(last)[-1])
    wrong = scores.at[0, at].set(jax.nn.one_hot(of.answer[0, at] + 1, SMALL.vocabulary.size))
    assert SMALL.right(wrong, of)[0].tolist() == [True, True, False, True]
    assert float(SMALL.accuracy(wrong, of)) == 87.5


def test_only_single_answers_are_tested_beyond_64():
    for name, algorithm in ALGORITHMS.items():
        longest = dataclasses.replace(SMALL, algorithms=(name,)).test_lengths[-1]
        assert longest == (64 if any(kind.is_list for kind in algorithm.outputs.values()) else 256)
