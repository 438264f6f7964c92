import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from softmax_jax.experiment.tasks.hidden_signal import NOISE, Signal

CHANCE = 1e-4
"""A sound generator fails one statistical test in this many keys."""


def rows(inputs):
    """Each sequence as bytes, to be compared exactly."""
    return [np.asarray(sequence).tobytes() for sequence in inputs]


def pattern(task, label):
    """The pattern of a class, of shape (signal_length, features)."""
    shape = np.zeros((task.signal_length, task.features))
    for step in range(task.signal_length):
        shape[step, (label * (task.features // task.classes) + 3 * step) % task.features] = 2 * (1 + 0.3 * label)
    return shape


def drawn(task, sets, seed=3):
    return jax.jit(lambda: task.test_batch(jax.random.key(seed), task.length, sets))()


training_batch = jax.jit(lambda task, seed, step: task.training_batch(seed, step), static_argnums=0)


def epoch_of(task, epoch=0, seed=3):
    """The batches of an epoch, each as rows."""
    steps = epoch * task.steps_per_epoch + np.arange(task.steps_per_epoch, dtype=np.int32)
    return [rows(training_batch(task, jnp.int32(seed), jnp.asarray(step)).inputs) for step in steps]


def test_classes_and_places_are_balanced():
    """As evenly as fair dice fall: chi-square on 4000 sequences."""
    task = Signal(length=6, features=16)
    batch = drawn(task, 4000)
    high = np.asarray(batch.inputs).max(2)
    places = np.array([np.convolve(row, np.ones(task.signal_length), "valid").argmax() for row in high])
    for values in (np.asarray(batch.answer), places):
        counts = np.bincount(values, minlength=4)
        assert len(counts) == 4
        assert scipy.stats.chisquare(counts).pvalue > CHANCE


@pytest.mark.full
@pytest.mark.parametrize(
    ("length", "classes", "signal_length", "features"), [(32, 4, 3, 64), (5, 2, 5, 8), (12, 7, 1, 16)]
)
def test_the_pattern_of_the_class_lies_at_one_place_and_the_rest_is_noise(length, classes, signal_length, features):
    task = Signal(length=length, classes=classes, signal_length=signal_length, features=features)
    batch = drawn(task, 200)
    assert (batch.inputs.shape, batch.mask) == ((200, length, features), None)
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


@pytest.mark.full
@pytest.mark.parametrize(("sequences", "sets", "steps", "size"), [(50, 20, 2, 20), (12, 20, 1, 12)])
def test_an_epoch_takes_no_sequence_twice_and_the_next_takes_another_order_and_tests_and_seeds_others(
    sequences, sets, steps, size
):
    task = Signal(length=8, features=16, sequences=sequences, batch=sets)
    assert [len(batch) for batch in epoch_of(task)] == [size] * steps
    first, second = ([row for batch in epoch_of(task, epoch) for row in batch] for epoch in range(2))
    assert len(set(first)) == steps * size
    assert first != second
    assert len({*first, *second}) <= sequences
    others = [row for batch in epoch_of(task, seed=4) for row in batch] + rows(drawn(task, sequences).inputs)
    assert len({*first, *others}) == len(first + others)


def test_the_answer_is_read_from_the_mean_or_the_last_position():
    scores = jax.random.normal(jax.random.key(0), (3, 5, 4))
    np.testing.assert_allclose(Signal(pooling="mean").answers(scores), np.asarray(scores).mean(1), atol=1e-6)
    np.testing.assert_array_equal(Signal(pooling="last").answers(scores), scores[:, 4])
