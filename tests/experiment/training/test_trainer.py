import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from softmax_jax.experiment.tasks.hidden_signal import Signal
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from softmax_jax.experiment.tasks.task import dropout_key
from softmax_jax.experiment.training import trainer as training
from softmax_jax.experiment.training.config import Config, changed
from softmax_jax.experiment.training.optimizers import build_optimizer, build_schedule
from softmax_jax.normalizers.registry import normalizer

SMALL = Config(MaxRetrieval(sets=16, min_items=2, max_items=4, width=8), steps=40, seeds=2, chunk=20)


def all_close(a, b, **tolerance):
    return all(np.allclose(x, y, **tolerance) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))


def train(config, chunks):
    state, step = training.initial_state(config), 0
    metrics: Any = None
    train_chunk = training.chunk_trainer(config)
    for steps in chunks:
        state, metrics = train_chunk(state, step, steps)
        step += steps
    return state, metrics


@pytest.mark.full
@pytest.mark.parametrize(("matmul", "off"), [("float32", 1e-6), ("bfloat16", 1e-4)])
def test_trimmed_gradient_equals_the_padded_one(matmul, off):
    config = changed(SMALL, matmul=matmul)
    parameters = jax.tree.map(lambda leaf: leaf[0], jax.device_get(training.initial_state(config).parameters))
    gradient = training.padded_gradient(config)
    padded, trimmed = jax.jit(gradient), jax.jit(config.task.on_visible(gradient))
    for step in range(6):
        batch = config.task.training_batch(jnp.int32(3), jnp.int32(step))
        assert all_close(padded(parameters, batch), trimmed(parameters, batch), atol=off)


@pytest.mark.full
def test_training_batches_have_one_length_within_the_range_and_are_reused_as_often_as_asked():
    config = changed(SMALL, steps_per_batch=10)
    batches = [config.task.training_batch(jnp.int32(0), jnp.int32(step)) for step in range(0, 400, 9)]
    assert all(len(set(batch.mask.sum(1).tolist())) == 1 for batch in batches)
    assert {int(batch.mask[0].sum()) for batch in batches} == {2, 3, 4}
    assert np.array_equal(batches[0].query, batches[1].query)  # steps 0, 9 and 18
    assert not np.array_equal(batches[1].query, batches[2].query)


@pytest.mark.full
def test_a_batch_of_near_ties_is_harder_to_tell_apart():
    batches = [changed(SMALL, nearest_of=count).task.training_batch(jnp.int32(0), jnp.int32(3)) for count in (1, 16)]
    gaps = [-np.diff(jax.lax.top_k(jnp.where(b.mask, b.items[..., 0], -1), 2)[0]).mean() for b in batches]
    assert gaps[1] < gaps[0] / 5
    assert np.array_equal(batches[0].mask, batches[1].mask)


@pytest.mark.full
def test_the_loss_is_that_of_the_answers_under_the_training_normalizer_plus_the_penalty():
    config = changed(SMALL, normalizer="temperature(0.01)")
    parameters = jax.tree.map(lambda leaf: leaf[0], jax.device_get(training.initial_state(config).parameters))
    batch = config.task.training_batch(jnp.int32(0), jnp.int32(0))
    (cross_entropy, _), bare_gradient = jax.jit(training.padded_gradient(config))(parameters, batch)
    model = nnx.merge(training.build_model(config.task)[0], parameters)
    scores, others = (model(batch, normalizer(name)).scores for name in (config.normalizer, "softmax"))
    expected, other = (
        optax.softmax_cross_entropy_with_integer_labels(of_one, batch.answer).mean() for of_one in (scores, others)
    )
    assert np.isclose(cross_entropy, expected, rtol=1e-6)
    assert not np.isclose(expected, other, rtol=1e-4)
    loss, gradient = training.penalized(config, parameters, cross_entropy, bare_gradient)
    squares = sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(parameters))
    assert np.isclose(loss - cross_entropy, config.l2 * squares, rtol=1e-4)
    penalty = jax.tree.map(lambda a, b: a - b, gradient, bare_gradient)
    assert all_close(penalty, jax.tree.map(lambda leaf: 2 * config.l2 * leaf, parameters), atol=1e-6)


def test_the_penalty_has_its_own_gradient():
    weights = {"kernel": jnp.array([[1.0, -2.0], [3.0, 0.5]]), "bias": jnp.array([4.0])}
    penalty, gradient = training.penalized(SMALL, weights, jnp.float32(0), jax.tree.map(jnp.zeros_like, weights))
    expected, slope = jax.value_and_grad(lambda w: SMALL.l2 * sum((leaf**2).sum() for leaf in w.values()))(weights)
    np.testing.assert_allclose(penalty, expected, rtol=1e-6)
    assert all_close(gradient, slope, rtol=1e-6)


class Numbered(MaxRetrieval):
    """Whose batches are the number of their step, and their seed."""

    def training_batch(self, seed, step) -> Any:
        return jnp.stack([step, seed])


def test_every_step_of_a_chunk_has_its_own_batch_and_key_of_the_dropout():
    """The gradient is what is seen of them, and plain descent adds it up."""
    task = Numbered(sets=16, min_items=2, max_items=4, width=8)
    config = Config(task, steps=40, seeds=2, chunk=20, l2=0.0, optimizer="sgd", learning_rate=1.0)
    seed, parameters = jnp.int32(7), {"seen": jnp.zeros(3)}
    state = training.TrainState(parameters, build_optimizer(config).init(parameters), seed)

    def seen(batch, key):
        return jnp.append(batch.astype(jnp.float32), jax.random.uniform(key))

    def gradient(parameters, *batch_and_key):
        return (jnp.float32(0), jnp.float32(0)), {"seen": seen(*batch_and_key)}

    by_hand = jax.jit(jax.vmap(lambda step: seen(jnp.stack([step, seed]), dropout_key(seed, step))))(jnp.arange(5, 9))
    assert len(set(by_hand[:, 2].tolist())) == 4
    run = functools.partial(training.train_steps, config, gradient, first_step=jnp.int32(5), steps=4)
    after, _ = jax.jit(run)(state)
    np.testing.assert_allclose(after.parameters["seen"], -by_hand.sum(0), rtol=1e-6)


@pytest.mark.full
def test_any_optax_optimizer_and_schedule():
    config = changed(
        SMALL,
        optimizer="adamw",
        optimizer_options={"weight_decay": 0.1},
        schedule="cosine_decay_schedule",
        schedule_options={"alpha": 0.1},
    )
    schedule = build_schedule(config)
    assert np.isclose(schedule(0), 1e-3)
    assert np.isclose(schedule(config.steps), 1e-4)
    _, first = train(changed(config, learning_rate=1e-2), [1])
    _, last = train(changed(config, learning_rate=1e-2), [20, 20])
    assert (np.asarray(last.cross_entropy) < np.asarray(first.cross_entropy)).all()
    one_cycle: Any = build_schedule(changed(SMALL, schedule="cosine_onecycle_schedule"))
    with jax.numpy_dtype_promotion("standard"):  # as training calls it
        assert np.isclose(max(float(one_cycle(step)) for step in range(SMALL.steps)), 1e-3, rtol=0.05)


def test_a_schedule_that_warms_up_starts_at_0_and_ends_at_the_learning_rate():
    rate: Any = build_schedule(changed(SMALL, schedule="warmup_constant_schedule(warmup_steps=4)"))
    with jax.numpy_dtype_promotion("standard"):  # as training calls it
        np.testing.assert_allclose([rate(0), rate(2), rate(4), rate(40)], [0, 5e-4, 1e-3, 1e-3], rtol=1e-6)


@pytest.mark.full
def test_an_optimizer_may_be_a_chain_and_a_schedule_may_warm_up():
    rate = "warmup_constant_schedule(warmup_steps=4)"
    clipped = changed(SMALL, optimizer="chain(clip_by_global_norm(0.5), sgd(momentum=0.9))", schedule=rate)
    ours: Any = build_optimizer(clipped)
    theirs: Any = optax.chain(
        optax.clip_by_global_norm(0.5), optax.sgd(optax.schedules.warmup_constant_schedule(0.0, 1e-3, 4), 0.9)
    )
    parameters = {"kernel": jnp.ones((2, 2))}
    states = [optimizer.init(parameters) for optimizer in (ours, theirs)]
    with jax.numpy_dtype_promotion("standard"):  # as training calls it
        for step in range(6):
            gradient = {"kernel": jnp.full((2, 2), 3.0 + step)}
            (update, ours_state), (expected, theirs_state) = (
                optimizer.update(gradient, state, parameters) for optimizer, state in zip((ours, theirs), states)
            )
            states = [ours_state, theirs_state]
            assert all_close(update, expected)
            assert (step > 0) == bool(jnp.any(update["kernel"]))


@pytest.mark.full
def test_batches_that_are_drawn_at_once_divide_the_steps_and_fit():
    size = sum(leaf.nbytes for leaf in SMALL.task.training_batch(jnp.int32(0), jnp.int32(0)))
    for steps in (1, 7, 60, 500):
        at_once = training.drawn_at_once(SMALL, steps)
        assert steps % at_once == 0
        assert at_once == steps or at_once * size <= training.DRAWN_BYTES
    large = changed(SMALL, sets=2**14, max_items=64)
    assert training.drawn_at_once(large, 500) == 1


@pytest.mark.full
def test_seeds_that_devices_cannot_share_evenly_train_as_each_alone():
    task = Signal(length=6, features=8, sequences=8, sets=4, hidden=8, heads=2)
    config = Config(task, steps=4, seeds=3, l2=0.0, optimizer="sgd", learning_rate=0.1, chunk=4)
    together, metrics = train(config, [4])
    assert metrics.loss.shape == (3,)
    for seed in range(3):
        alone, _ = train(changed(config, seeds=1, first_seed=seed), [4])
        assert all_close(
            jax.tree.map(lambda leaf, i=seed: leaf[i : i + 1], together.parameters), alone.parameters, atol=1e-5
        )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"optimizer": "chain"}, "chain"),
        ({"optimizer": "chain(clip_by_globl_norm(1.0), adam)"}, "did you mean 'clip_by_global_norm'"),
        ({"optimizer": "chain(clip(1.0), adam"}, "calls of such"),
        ({"schedule": "linear"}, "constant_schedule"),
        ({"optimizer_options": {"momentun": 0.9}}, "momentun"),
        ({"schedule_options": {"warmup": 1.0}}, "warmup"),
        ({"schedule_options": {"value": 0.5}}, "must be given as --learning-rate"),
        ({"schedule": "warmup_cosine_decay_schedule"}, "warmup_steps"),
    ],
)
def test_unknown_optimizers_schedules_and_options_are_named(change, words):
    with pytest.raises(ValueError, match=words):
        build_optimizer(changed(SMALL, **change))


@pytest.mark.parametrize("change", [{"steps": 0}, {"max_items": 1}, {"l2": float("nan")}, {"learning_rate": 0.0}])
def test_settings_that_make_no_sense_are_refused(change):
    (name,) = change
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} is"):
        changed(SMALL, **change)
