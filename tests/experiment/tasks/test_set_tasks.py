"""The tasks on all items of a set, and on none."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from softmax_jax.experiment.measures.evaluation import evaluate, frame_of
from softmax_jax.experiment.tasks import name_of, task_class
from softmax_jax.experiment.tasks.set_complement import SetComplement
from softmax_jax.experiment.tasks.trigger import TOLERANCE, TRIGGERED, Trigger
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.progress import plain_console
from softmax_jax.experiment.training.run_directory import load_checkpoint
from softmax_jax.experiment.training.train import train
from softmax_jax.normalizers.registry import normalizer
from tests.tiers import full_except

CLASSES, LENGTH = 5, 12
KINDS = [SetComplement, Trigger]


def made(kind, sets=64):
    return kind(length=LENGTH, classes=CLASSES, batch=sets)


def batches(task):
    """A training batch and longer test sets, as numpy."""
    training = jax.jit(task.training_batch)(jnp.int32(3), jnp.int32(0))
    tests = jax.jit(lambda: task.test_batch(jax.random.key(3), 4 * LENGTH, 64))()
    return [jax.tree.map(np.asarray, batch) for batch in (training, tests)]


def shown(task, batch, sequence):
    """The classes of the visible items, by numpy, and the features of the queries behind them."""
    items = batch.inputs.shape[1] - task.queries
    inputs, visible = batch.inputs[sequence, :items], batch.mask[sequence, :items]
    assert not inputs[~visible].any()
    assert (inputs[visible].sum(1) == 1).all()
    return inputs[visible].argmax(1), batch.inputs[sequence, items:]


@pytest.mark.full
def test_every_class_but_the_answer_is_among_the_items():
    task = made(SetComplement)
    lengths = []
    for batch in batches(task):
        for sequence, answer in enumerate(batch.answer):
            classes, query = shown(task, batch, sequence)
            assert set(range(CLASSES)) - set(classes.tolist()) == set(answer.tolist())
            np.testing.assert_array_equal(query, [[0] * CLASSES + [1]])
            lengths.append(len(classes))
        assert set(batch.answer.ravel().tolist()) == set(range(CLASSES))
        firsts = {int(shown(task, batch, sequence)[0][0]) for sequence in range(task.batch)}
        assert firsts == set(range(CLASSES))  # the order says nothing
    assert set(lengths) == {*range(CLASSES - 1, LENGTH + 1), 4 * LENGTH}
    with pytest.raises(ValueError, match=f"lengths is 3; it must be from {CLASSES - 1} to"):
        task.test_batch(jax.random.key(0), CLASSES - 2, 4)


@pytest.mark.full
def test_a_query_asks_for_the_average_of_the_items_if_it_has_the_trigger_and_for_nothing_if_not():
    task = made(Trigger)
    triggers, tops = [], []
    for batch in batches(task):
        for sequence, shares in enumerate(batch.shares):
            classes, queries = shown(task, batch, sequence)
            average = np.bincount(classes, minlength=CLASSES) / len(classes)
            assert (queries[:, CLASSES] == 1).all()
            np.testing.assert_allclose(shares, queries[:, -1:] * average, atol=1e-6)
            triggers += queries[:, -1].tolist()
            tops.append(average.max())
    assert np.mean(triggers) == pytest.approx(TRIGGERED, abs=0.05)
    assert np.std(tops[64:]) > TOLERANCE  # one answer for all long sets would be wrong for most of them


@pytest.mark.parametrize("kind", full_except(KINDS, Trigger))
def test_the_oracle_is_right_and_the_floor_is_what_one_answer_for_all_scores(kind):
    task = made(kind, 400)
    batch = jax.jit(task.training_batch)(jnp.int32(1), jnp.int32(2))

    @jax.jit
    def judged(batch):
        oracle = task.oracle(batch)
        constant = jnp.zeros_like(oracle)  # of equal scores the first class is the largest
        return [(task.accuracy(scores, batch), task.loss(scores, batch)) for scores in (oracle, constant)]

    (accuracy, loss), (of_constant, loss_of_constant) = judged(batch)
    assert accuracy == 100
    assert of_constant == pytest.approx(task.floor, abs=5)
    assert loss < loss_of_constant


@pytest.mark.full
def test_an_average_that_is_off_by_more_than_the_tolerance_is_wrong_and_costs_what_the_normal_distribution_says():
    task = made(Trigger)
    batch = jax.jit(task.training_batch)(jnp.int32(1), jnp.int32(2))
    for error, accuracy in (0.9 * TOLERANCE, 100), (1.1 * TOLERANCE, 0):
        scores = batch.shares.at[..., 1].add(error)
        assert float(task.accuracy(scores, batch)) == accuracy
        assert float(task.loss(scores, batch)) == pytest.approx((error / TOLERANCE) ** 2 / 2, rel=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_learns_a_batch(kind):
    task = kind(length=LENGTH, classes=CLASSES, hidden=16, heads=2, layers=1)
    structure, state = nnx.split(task.build("softmax", nnx.Rngs(0)), nnx.Param)
    batch = jax.jit(task.training_batch)(jnp.int32(0), jnp.int32(0))
    optimizer = optax.sign_sgd(0.005)

    def loss(state):
        return task.loss(task.scores(nnx.merge(structure, state), batch, None), batch)

    @jax.jit
    def step(state, moments):
        value, gradient = jax.value_and_grad(loss)(state)
        updates, moments = optimizer.update(gradient, moments)
        return value, optax.apply_updates(state, updates), moments

    moments, losses = optimizer.init(state), []
    for _ in range(60):
        value, state, moments = step(state, moments)
        losses.append(float(value))
    assert losses[-1] < losses[0] / 2


def test_the_tasks_are_found_by_name_and_know_what_guessing_scores():
    assert [name_of(task_class(name)()) for name in ("set_complement", "trigger")] == ["set_complement", "trigger"]
    assert (SetComplement().floor, Trigger().floor) == (10.0, 50.0)


@pytest.mark.rare
@pytest.mark.parametrize("kind", KINDS)
def test_models_of_the_task_are_trained_and_evaluated_at_longer_lengths(tmp_path, kind):
    """Through the trainer and the evaluation that all commands use; the numbers of a trigger have no calibration."""
    task = kind(length=LENGTH, classes=CLASSES, hidden=4, heads=2, batch=8)
    config = Config(task, steps=4, chunk=2, seeds=2, l2=0.0)
    train(config, tmp_path, plain_console())
    _, parameters = load_checkpoint(tmp_path)
    sets = dict.fromkeys((LENGTH, 2 * LENGTH), 4)
    names = {name: normalizer(name) for name in ("softmax", "ssmax")}
    measured = evaluate(parameters, names, task=task, seeds=(0, 1), lengths=tuple(sets), sets=sets)
    frame = frame_of(list(measured))
    assert frame.height == 2 * len(sets) * len(names)
    assert frame["accuracy"].is_between(0, 100).all()
    assert frame["max_weight"].is_between(0, 1).all()
    assert ("calibration" in frame.columns) == (kind is SetComplement)
