import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax.tasks.retrieval import CODE, POSITIONS, Copy, MultiQuery, Sort, TransformerMaxRetrieval
from tests.tiers import full_except

SEED = jnp.int32(5)
CLASSES = 10
LENGTH, QUERIES = 12, 6
# The codes hold sines and cosines of places. The longest period of each kind and the largest place:
LONGEST_PERIOD = {TransformerMaxRetrieval: 2, Sort: 2, Copy: 2 * POSITIONS}
KINDS = [*LONGEST_PERIOD, MultiQuery]


def made(kind, **sizes):
    return kind(length=LENGTH, **({} if kind is TransformerMaxRetrieval else {"queries": QUERIES}), **sizes)


def split(task, batch, sequence):
    """One sequence as visible items (code, class) and queries, in NumPy."""
    inputs, items = np.asarray(batch.inputs[sequence]), batch.inputs.shape[1] - task.queries
    count = int(batch.mask[sequence, :items].sum())
    return inputs[:count, :CODE], inputs[:count, CODE:-1].argmax(1), inputs[items:, :CODE]


def places(kind, code):
    """The place by the angle of the longest wave, which never completes half a turn."""
    angle = np.arctan2(code[:, CODE // 2 - 1], code[:, CODE - 1])
    return angle / (2 * np.pi) * LONGEST_PERIOD[kind]


def same_code(codes, wanted):
    """The one index of an item with exactly this code."""
    (index,) = np.flatnonzero((codes == wanted).all(1))
    return index


@functools.cache
def compiled(task):
    """Training and test batches of a task."""

    def test(length, sets):
        return task.test_batch(jax.random.key(3), length, sets)

    return jax.jit(task.training_batch), jax.jit(test, static_argnums=(0, 1))


def batches(task):
    train, test = compiled(task)
    yield train(SEED, jnp.int32(0))
    yield train(SEED, jnp.int32(1))
    yield test(3 * LENGTH, 8)


@pytest.mark.parametrize("kind", full_except(KINDS, Sort))
def test_a_query_is_answered_by_the_class_of_the_item_it_asks_for(kind):
    task = made(kind)
    for batch in batches(task):
        for sequence, answers in enumerate(np.asarray(batch.answer)):
            codes, classes, queries = split(task, batch, sequence)
            if kind is TransformerMaxRetrieval:
                assert not queries.any()
                found = [places(kind, codes).argmax()]
            else:
                found = [same_code(codes, query) for query in queries]
                if kind is Sort:
                    order = list(places(kind, codes).argsort())
                    found = [order[min(order.index(shown) + 1, len(order) - 1)] for shown in found]
            np.testing.assert_array_equal(answers, classes[found])


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_answer_and_every_item_is_asked_for(kind):
    task = made(kind)
    batch = compiled(task)[1](3, 300)
    assert set(np.unique(batch.answer)) == set(range(CLASSES))
    found = []
    for sequence in range(300):
        codes, _, queries = split(task, batch, sequence)
        found += (
            [places(kind, codes).argmax()]
            if kind is TransformerMaxRetrieval
            else [same_code(codes, q) for q in queries]
        )
    counts = np.bincount(found, minlength=3)
    assert len(counts) == 3
    assert counts.min() > 0.2 * len(found)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "largest"), [(TransformerMaxRetrieval, 1), (Sort, 1), (Copy, POSITIONS)])
def test_places_span_their_range_at_every_length(kind, largest):
    """No place in long sequences that short ones never show."""
    task = kind(length=64, queries=2, sets=200)
    draw, _ = compiled(task)
    short, long = [], []
    for step in range(2):
        batch = jax.tree.map(np.asarray, draw(SEED, jnp.int32(step)))
        for sequence in range(task.sets):
            codes, _, _ = split(task, batch, sequence)
            found = places(kind, codes)
            assert found.min() >= -1e-3 * largest
            assert found.max() <= largest * (1 + 1e-3)
            (short if len(codes) < 10 else long if len(codes) > 50 else []).extend(found / largest)
    for found in (short, long):
        assert np.mean(found) == pytest.approx(0.5, abs=0.06)
        assert min(found) < 0.05
        assert max(found) > 0.95


@pytest.mark.full
@pytest.mark.parametrize("kind", [Sort, Copy])
def test_queries_go_through_ascending_places(kind):
    task = made(kind)
    batch = compiled(task)[1](20, 10)
    for sequence in range(10):
        codes, _, queries = split(task, batch, sequence)
        asked = places(kind, queries)
        assert (np.diff(asked) >= 0).all()
        assert np.ptp(asked) > 0
        if kind is Copy:
            assert (np.diff(places(kind, codes)) > 0).all()


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_items_beyond_the_length_are_zero_and_masked(kind):
    task = made(kind)
    for batch in batches(task):
        items = batch.inputs.shape[1] - task.queries
        mask = np.asarray(batch.mask)
        lengths = mask[:, :items].sum(1)
        np.testing.assert_array_equal(mask[:, :items], np.arange(items) < lengths[:, None])
        assert mask[:, items:].all()
        assert not np.asarray(batch.inputs)[~mask].any()
        flags = np.asarray(batch.inputs)[..., -1]
        np.testing.assert_array_equal(flags, np.broadcast_to(np.arange(items + task.queries) >= items, flags.shape))
        assert np.asarray(batch.inputs)[:, :items, CODE:-1].sum(2)[mask[:, :items]].tolist() == [1] * lengths.sum()
        assert not np.asarray(batch.inputs)[:, items:, CODE:-1].any()


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_training_lengths_run_from_two_to_the_longest_and_test_lengths_are_the_one_asked_for(kind):
    task = made(kind, sets=64)
    train, test = compiled(task)
    mask = train(SEED, jnp.int32(0)).mask
    assert mask.shape == (64, LENGTH + task.queries)
    assert set(np.asarray(mask[:, :LENGTH].sum(1)).tolist()) == set(range(2, LENGTH + 1))
    for length in (2, 9):
        mask = test(length, 4).mask
        assert mask.shape == (4, length + task.queries)
        assert bool(mask.all())


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_no_sequence_is_drawn_twice_and_none_of_the_test_in_training(kind):
    """By items alone: sequences of 10 items or more, of which no two are alike by chance."""
    task = made(kind)
    train, test = compiled(task)
    drawn = [train(SEED, jnp.int32(step)) for step in range(5)]
    drawn += [test(LENGTH, 160), train(jnp.int32(6), jnp.int32(0))]
    sequences = [
        np.asarray(inputs[:LENGTH]).tobytes()
        for batch in drawn
        for inputs, mask in zip(batch.inputs, batch.mask)
        if mask[:LENGTH].sum() >= 10
    ]
    assert len(sequences) > 5 * 32
    assert len(set(sequences)) == len(sequences)


def test_scores_are_read_at_the_queries():
    scores = jax.random.normal(jax.random.key(0), (3, 10, CLASSES))
    np.testing.assert_array_equal(made(Copy).answers(scores), scores[:, 10 - QUERIES :])
    np.testing.assert_array_equal(made(TransformerMaxRetrieval).answers(scores), scores[:, 9:])


def test_sizes_that_make_no_task_are_refused_by_the_name_of_their_option():
    with pytest.raises(ValueError, match="--length is 1"):
        Sort(length=1)
    with pytest.raises(ValueError, match=rf"a length is 1.*to {POSITIONS}"):
        Sort().test_batch(jax.random.key(0), 1, 4)
