import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax.experiment.tasks.retrieval import CODE, POSITIONS, Copy, MultiQuery, Sort, TransformerMaxRetrieval
from tests.tiers import full_except

SEED = 5
CLASSES = 10
LENGTH, QUERIES = 12, 6
# The codes hold sines and cosines of places. The longest period of each kind and the largest place:
LONGEST_PERIOD = {TransformerMaxRetrieval: 2, Sort: 2, Copy: 2 * POSITIONS}
KINDS = [*LONGEST_PERIOD, MultiQuery]


def made(kind, sets=64):
    return kind(length=LENGTH, batch=sets, **({} if kind is TransformerMaxRetrieval else {"queries": QUERIES}))


def split(task, batch, sequence):
    """One sequence as visible items (code, class) and queries, in NumPy."""
    inputs, items = batch.inputs[sequence], batch.inputs.shape[1] - task.queries
    count = int(batch.mask[sequence, :items].sum())
    return inputs[:count, :CODE], inputs[:count, CODE:-1].argmax(1), inputs[items:, :CODE]


def places(kind, code):
    """The place by the angle of the longest wave, which never completes half a turn."""
    angle = np.arctan2(code[:, CODE // 2 - 1], code[:, CODE - 1])
    return angle / (2 * np.pi) * LONGEST_PERIOD[kind]


@functools.cache
def drawn(task, length=LENGTH, sets=64):
    """Test sequences."""
    return jax.device_get(jax.jit(lambda: task.test_batch(jax.random.key(3), length, sets))())


@functools.cache
def trained_on(task, seed=SEED, steps=(0, 1)):
    """Batches of training, of one program for each task."""
    draw = jax.jit(task.training_batch)
    return [jax.device_get(draw(jnp.int32(seed), jnp.int32(step))) for step in steps]


def targets_of(kind, codes, queries):
    """The items whose class is the answer, but for the next in order that sorting asks for: the one of this code."""
    if kind is TransformerMaxRetrieval:
        return [places(kind, codes).argmax()]
    return [np.flatnonzero((codes == query).all(1)).item() for query in queries]


@pytest.mark.parametrize("kind", full_except(KINDS, TransformerMaxRetrieval))
def test_a_query_is_answered_by_the_class_of_the_item_it_asks_for(kind):
    """And sorting and copying ask in ascending order of the places, at which the items to copy lie."""
    task = made(kind)
    for batch in (*trained_on(task), drawn(task, 3 * LENGTH, 8)):
        for sequence, answers in enumerate(batch.answer):
            codes, classes, queries = split(task, batch, sequence)
            assert kind is not TransformerMaxRetrieval or not queries.any()
            targets = targets_of(kind, codes, queries)
            if kind in (Sort, Copy):
                assert (np.diff(places(kind, queries)) >= 0).all()
            if kind is Copy:
                assert (np.diff(places(kind, codes)) > 0).all()
            if kind is Sort:
                order = list(places(kind, codes).argsort())
                targets = [order[min(order.index(shown) + 1, len(order) - 1)] for shown in targets]
            np.testing.assert_array_equal(answers, classes[targets])
    scores = jax.random.normal(jax.random.key(0), (3, 10, CLASSES))  # which are read at the queries
    np.testing.assert_array_equal(task.answers(scores), scores[:, 10 - task.queries :])


@pytest.mark.full
@pytest.mark.parametrize(("kind", "largest"), [(TransformerMaxRetrieval, 1), (Sort, 1), (Copy, POSITIONS)])
def test_places_span_their_range_at_every_length(kind, largest):
    """No place in long sequences that short ones never show."""
    task = kind(length=64, queries=2, batch=200)
    short, long = [], []
    for batch in trained_on(task):
        for sequence in range(task.batch):
            codes, _, _ = split(task, batch, sequence)
            (short if len(codes) < 10 else long if len(codes) > 50 else []).extend(places(kind, codes) / largest)
    for shares in (short, long):
        assert np.mean(shares) == pytest.approx(0.5, abs=0.06)
        assert -1e-3 <= min(shares) < 0.05
        assert 0.95 < max(shares) <= 1 + 1e-3


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_lengths_run_from_two_to_the_longest_and_what_is_beyond_is_zero_and_masked(kind):
    """In training; in tests the length is the one asked for, and every answer and every item is asked for."""
    task = made(kind)
    for batch, expected in ((trained_on(task)[0], range(2, LENGTH + 1)), (drawn(task, 3, 300), [3])):
        items = batch.inputs.shape[1] - task.queries
        assert items == max(expected)
        mask, inputs = batch.mask, batch.inputs
        lengths = mask[:, :items].sum(1)
        assert set(lengths.tolist()) == set(expected)
        np.testing.assert_array_equal(mask[:, :items], np.arange(items) < lengths[:, None])
        assert mask[:, items:].all()
        assert not inputs[~mask].any()
        flags = inputs[..., -1]
        np.testing.assert_array_equal(flags, np.broadcast_to(np.arange(items + task.queries) >= items, flags.shape))
        assert inputs[:, :items, CODE:-1].sum(2)[mask[:, :items]].tolist() == [1] * lengths.sum()
        assert not inputs[:, items:, CODE:-1].any()
    assert set(np.unique(batch.answer)) == set(range(CLASSES))
    of_sequences = (split(task, batch, sequence) for sequence in range(300))
    counts = np.bincount([target for codes, _, queries in of_sequences for target in targets_of(kind, codes, queries)])
    assert len(counts) == 3
    assert counts.min() > 0.2 * counts.sum()


def test_a_length_without_a_pair_is_refused():
    with pytest.raises(ValueError, match=rf"lengths is 1; it must be from 2 to {POSITIONS}"):
        Sort().test_batch(jax.random.key(0), 1, 4)
