import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.task import dropout_key
from softmax_jax.experiment.training import trainer
from softmax_jax.experiment.training.config import Config, changed
from softmax_jax.experiment.training.optimizers import build_schedule
from softmax_jax.experiment.training.run import TrainState, build_run
from softmax_jax.normalizers.registry import normalizer

SMALL = Config(MaxRetrieval(batch=16, min_items=2, max_items=4, width=8), steps=40, seeds=2, chunk=20)


def all_close(a, b, **tolerance):
    return all(np.allclose(x, y, **tolerance) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))


def parameters_of(run):
    """The first parameters of the first seed."""
    return jax.tree.map(lambda leaf: leaf[0], jax.device_get(run.initial_state().parameters))


def training_batch(task, seed, step):
    return jax.jit(task.training_batch)(jnp.int32(seed), jnp.int32(step))


@pytest.mark.full
def test_trimmed_gradient_equals_the_padded_one():
    run = build_run(SMALL)
    parameters, gradient = parameters_of(run), trainer.padded_gradient(run)
    padded, trimmed = jax.jit(gradient), jax.jit(run.task.on_visible(gradient))
    for step in range(6):
        batch = training_batch(run.task, 3, step)
        assert all_close(padded(parameters, batch), trimmed(parameters, batch), atol=1e-6)


@pytest.mark.full
def test_the_loss_is_that_of_the_answers_under_the_training_normalizer():
    run = build_run(changed(SMALL, normalizer="temperature(0.01)"))
    parameters, batch = parameters_of(run), training_batch(run.task, 0, 0)
    (cross_entropy, _), _ = jax.jit(trainer.padded_gradient(run))(parameters, batch)
    model = nnx.merge(run.structure, parameters)
    expected, other = (
        optax.softmax_cross_entropy_with_integer_labels(model(batch, normalizer(name)).scores, batch.answer).mean()
        for name in (run.config.normalizer, "softmax")
    )
    assert np.isclose(cross_entropy, expected, rtol=1e-6)
    assert not np.isclose(expected, other, rtol=1e-4)


def test_the_penalty_has_its_own_gradient():
    weights = {"kernel": jnp.array([[1.0, -2.0], [3.0, 0.5]]), "bias": jnp.array([4.0])}
    penalty, gradient = trainer.add_penalty(0.5, weights, jnp.float32(0), jax.tree.map(jnp.zeros_like, weights))
    expected, slope = jax.value_and_grad(lambda w: 0.5 * sum((leaf**2).sum() for leaf in w.values()))(weights)
    np.testing.assert_allclose(penalty, expected, rtol=1e-6)
    assert all_close(gradient, slope, rtol=1e-6)


class Numbered(MaxRetrieval):
    """Whose batches are the number of their step, and their seed."""

    def training_batch(self, seed, step) -> Any:
        return jnp.stack([step, seed])


def test_every_step_of_a_chunk_has_its_own_batch_and_key_of_the_dropout():
    """The gradient is what is seen of them, and plain descent adds it up; the first three batches are left out."""
    task = Numbered(batch=16, min_items=2, max_items=4, width=8)
    run = build_run(Config(task, seeds=2, l2=0.0, optimizer="sgd", learning_rate=1.0, first_batch=3))
    seed, parameters = jnp.int32(7), {"seen": jnp.zeros(3)}
    state = TrainState(parameters, run.optimizer.init(parameters), seed)

    def seen(batch, key):
        return jnp.append(batch.astype(jnp.float32), jax.random.uniform(key))

    def gradient(parameters, *batch_and_key):
        return (jnp.float32(0), jnp.float32(0)), {"seen": seen(*batch_and_key)}

    by_hand = jax.jit(jax.vmap(lambda step: seen(jnp.stack([step, seed]), dropout_key(seed, step))))(jnp.arange(8, 12))
    assert len(set(by_hand[:, 2].tolist())) == 4
    train = functools.partial(trainer.train_steps, run, gradient, first_step=jnp.int32(5), steps=4)
    after, _ = jax.jit(train)(state)
    np.testing.assert_allclose(after.parameters["seen"], -by_hand.sum(0), rtol=1e-6)


WARMUP = "warmup_constant_schedule(warmup_steps=4)"


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({"schedule": WARMUP}, {0: 0, 2: 5e-4, 4: 1e-3, 40: 1e-3}),
        ({"schedule": "cosine_decay_schedule", "schedule_options": {"alpha": 0.1}}, {0: 1e-3, 40: 1e-4}),
        ({"schedule": "cosine_onecycle_schedule"}, {12: 1e-3}),
    ],
)
def test_a_schedule_ends_with_the_steps_and_is_at_the_learning_rate_where_its_kind_says(settings, rates):
    schedule: Any = build_schedule(changed(SMALL, **settings))
    with jax.numpy_dtype_promotion("standard"):  # as training calls it
        np.testing.assert_allclose([schedule(step) for step in rates], list(rates.values()), rtol=1e-4, atol=1e-9)


@pytest.mark.full
def test_an_optimizer_may_be_a_chain_and_a_schedule_may_warm_up():
    chain = "chain(clip_by_global_norm(0.5), sgd(momentum=0.9))"
    warmup = optax.schedules.warmup_constant_schedule(0.0, 1e-3, 4)
    theirs: Any = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(warmup, 0.9))
    parameters: Any = {"kernel": jnp.ones((2, 2))}
    updates: list[Any] = []
    for optimizer in (build_run(changed(SMALL, optimizer=chain, schedule=WARMUP)).optimizer, theirs):
        state: Any = optimizer.init(parameters)
        with jax.numpy_dtype_promotion("standard"):  # as training calls it
            for step in range(6):
                update, state = optimizer.update({"kernel": jnp.full((2, 2), 3.0 + step)}, state, parameters)
                updates += jax.tree.leaves(update)
    np.testing.assert_allclose(updates[:6], updates[6:])
    assert [bool(update.any()) for update in updates[:6]] == [False] + 5 * [True]


@pytest.mark.full
def test_batches_that_are_drawn_at_once_divide_the_steps_and_fit():
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(training_batch(SMALL.task, 0, 0)))
    for steps in (1, 7, 60, 500):
        at_once = trainer.batches_at_once(SMALL.task, steps)
        assert steps % at_once == 0
        assert at_once == steps or at_once * size <= trainer.DRAWN_BYTES
    assert trainer.batches_at_once(changed(SMALL, batch=2**14, max_items=64).task, 500) == 1


class Whole(MaxRetrieval):
    """Whose batches no devices divide."""

    @property
    def least_sets(self) -> Any:
        return None


@pytest.mark.full
def test_seeds_that_devices_cannot_share_evenly_train_alike_whatever_the_others_are():
    task = Whole(batch=4, min_items=2, max_items=2, width=4)
    run = build_run(Config(task, seeds=3, l2=0.0, optimizer="sgd", learning_rate=0.1))
    train = trainer.chunk_trainer(run)

    def trained(seeds, of):
        state, metrics = train(run.initialize(np.array(seeds, np.int32)), 0, 4)
        assert metrics.loss.shape == (3,)
        return jax.tree.map(lambda leaf: leaf[of], state.parameters)

    assert all_close(trained((0, 1, 2), 2), trained((2, 7, 9), 0), atol=1e-5)
