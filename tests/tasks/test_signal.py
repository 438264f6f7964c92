import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from softmax_jax.tasks.signal import NOISE, SPLITS, Signal

KEY = jax.random.key(3)
CHANCE = 1e-4
"""A sound generator fails one statistical test in so many keys."""


def rows(inputs):
    """Each sequence as bytes, to be compared exactly."""
    return [np.asarray(one).tobytes() for one in inputs]


def amplitude(label):
    return 2 * (1 + 0.3 * label)


def pattern(task, label):
    """The pattern of a class alone, of shape (signal_length, features)."""
    shape = np.zeros((task.signal_length, task.features))
    for step in range(task.signal_length):
        shape[step, (label * (task.features // task.classes) + 3 * step) % task.features] = amplitude(label)
    return shape


def test_no_two_sequences_are_alike_in_any_of_the_splits():
    task = Signal(length=8, features=16)
    drawn = [row for split in SPLITS for row in rows(task.examples(KEY, split, jnp.arange(200), task.length).inputs)]
    assert len(set(drawn)) == len(drawn) == 600


def test_the_batches_of_a_split_hold_its_sequences():
    task = Signal(length=8, features=16, sequences=60, batch=20)
    of_split = {split: set(rows(task.examples(KEY, split, jnp.arange(60), task.length).inputs)) for split in SPLITS}
    assert set(rows(task.training_batch(KEY, jnp.int32(1)).inputs)) < of_split["train"]
    assert set(rows(task.validation_batch(KEY, 60).inputs)) == of_split["validation"]
    tests = [rows(task.test_batch(KEY, task.length, jnp.int32(index), 20).inputs) for index in range(3)]
    assert {row for batch in tests for row in batch} == of_split["test"]


def test_models_of_different_keys_see_different_sequences():
    task = Signal(length=8, features=16)
    ours, theirs = (task.examples(key, "train", jnp.arange(50), 8).inputs for key in (KEY, jax.random.key(4)))
    assert not set(rows(ours)) & set(rows(theirs))


def test_classes_and_places_are_balanced():
    """As evenly as fair dice fall: chi-square on 4000 sequences."""
    task = Signal(length=6, features=16)
    batch = task.examples(KEY, "train", jnp.arange(4000), task.length)
    counts = np.bincount(batch.answer, minlength=task.classes)
    assert len(counts) == task.classes
    assert scipy.stats.chisquare(counts).pvalue > CHANCE
    assert counts.min() > 0.9 * 4000 / task.classes
    high = np.asarray(batch.inputs).max(2)
    places = np.array([np.convolve(row, np.ones(task.signal_length), "valid").argmax() for row in high])
    counts = np.bincount(places, minlength=4)
    assert len(counts) == 4
    assert scipy.stats.chisquare(counts).pvalue > CHANCE


@pytest.mark.parametrize(
    ("length", "classes", "signal_length", "features"),
    [(32, 4, 3, 64), (5, 2, 5, 8), (12, 7, 1, 16), (9, 8, 4, 8), (1, 3, 1, 32)],
)
def test_the_pattern_of_the_class_lies_at_one_place_and_the_rest_is_noise(length, classes, signal_length, features):
    task = Signal(length=length, classes=classes, signal_length=signal_length, features=features)
    batch = task.examples(KEY, "test", jnp.arange(200), length)
    assert batch.inputs.shape == (200, length, features)
    assert batch.mask is None
    assert set(np.unique(batch.answer)) == set(range(classes))
    rests = []
    for inputs, label in zip(np.asarray(batch.inputs), np.asarray(batch.answer)):
        shape, places = pattern(task, label), length - signal_length + 1
        start = max(range(places), key=lambda start: (inputs[start : start + signal_length] * shape).sum())
        rest = inputs.copy()
        rest[start : start + signal_length] -= shape
        rests.append(rest)
        assert np.abs(rest).max() < 6 * NOISE
    assert scipy.stats.kstest(np.concatenate(rests).ravel(), scipy.stats.norm(0, NOISE).cdf).pvalue > CHANCE


def test_an_epoch_takes_every_sequence_once_and_the_next_takes_another_order():
    task = Signal(length=8, features=16, sequences=60, batch=20)
    every = rows(task.examples(KEY, "train", jnp.arange(60), task.length).inputs)
    epochs = []
    for epoch in range(2):
        steps = epoch * task.steps_per_epoch + np.arange(task.steps_per_epoch, dtype=np.int32)
        epochs.append([row for step in steps for row in rows(task.training_batch(KEY, jnp.asarray(step)).inputs)])
        assert sorted(epochs[-1]) == sorted(every)
    assert epochs[0] != epochs[1]
    assert epochs[0] != every


@pytest.mark.parametrize(
    ("sequences", "batch", "steps", "taken"), [(50, 20, 2, 20), (12, 20, 1, 12), (20, 20, 1, 20), (3, 1, 3, 1)]
)
def test_batches_are_whole_and_never_take_a_sequence_twice(sequences, batch, steps, taken):
    task = Signal(length=4, features=8, sequences=sequences, batch=batch)
    assert task.steps_per_epoch == steps
    epoch = [rows(task.training_batch(KEY, jnp.int32(step)).inputs) for step in range(steps)]
    assert all(len(one) == taken for one in epoch)
    assert len({row for one in epoch for row in one}) == steps * taken


def test_a_batch_is_a_function_of_key_and_step():
    task = Signal(length=8, features=16)
    draw = jax.jit(task.training_batch)
    first = draw(KEY, jnp.int32(7))
    eager = task.training_batch(KEY, jnp.int32(7))
    np.testing.assert_allclose(first.inputs, eager.inputs, atol=1e-6)
    np.testing.assert_array_equal(first.answer, eager.answer)
    assert rows(first.inputs) == rows(draw(KEY, jnp.int32(7)).inputs)
    assert rows(first.inputs) != rows(draw(KEY, jnp.int32(8)).inputs)
    assert rows(first.inputs) != rows(draw(jax.random.key(4), jnp.int32(7)).inputs)


def test_sequences_may_be_tested_at_another_length():
    task = Signal(length=8, features=16)
    batch = task.test_batch(KEY, 40, jnp.int32(0), 5)
    assert batch.inputs.shape == (5, 40, 16)
    assert np.abs(batch.inputs).max((1, 2)).min() > amplitude(0) - 4 * NOISE


def test_the_answer_is_read_from_the_mean_or_the_last_position():
    scores = jax.random.normal(KEY, (3, 5, 4))
    np.testing.assert_allclose(Signal(pooling="mean").read(scores), np.asarray(scores).mean(1), atol=1e-6)
    np.testing.assert_array_equal(Signal(pooling="last").read(scores), scores[:, 4])


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"signal_length": 0}, "--signal-length is 0"),
        ({"length": 8, "signal_length": 9}, "--signal-length is 9.*at most the length, 8"),
        ({"length": 0}, "--length is 0; it must be from 1"),
        ({"classes": 1}, "--classes is 1"),
        ({"classes": 17, "features": 16}, "--classes is 17.*from 2 to 16"),
    ],
)
def test_sizes_that_make_no_task_are_refused_by_the_name_of_their_option(sizes, words):
    with pytest.raises(ValueError, match=words):
        Signal(**sizes)
