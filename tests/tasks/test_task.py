"""What every task promises to training and evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from softmax_jax.normalizers.registry import normalizer
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.tasks.task import Task

TASKS: list[Task] = [MaxRetrieval(sets=6, min_items=2, max_items=5, width=8)]
SEED = jnp.int32(3)


@pytest.fixture(params=TASKS, ids=lambda task: task.name)
def task(request):
    return request.param


def drawn(task, length, sets):
    keys = task.test_keys(SEED, length, sets)
    return task.draw(keys, jnp.full(sets, length), task.room(length))


def test_training_batches_are_functions_of_seed_and_step(task):
    once, again, other = (task.training_batch(SEED, jnp.int32(step)) for step in (4, 4, 5))
    assert len(once.answer) == task.sets
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(once), jax.tree.leaves(again)))
    assert not all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(once), jax.tree.leaves(other)))


def test_a_function_on_visible_items_sees_all_of_them(task):
    batch = task.training_batch(SEED, jnp.int32(0))

    def total(parameters, batch, more):
        return parameters * batch.answer.sum() + more

    assert task.on_visible(total)(2, batch, 1) == total(2, batch, 1)


def test_a_model_is_read_under_several_normalizers_as_under_each(task):
    model = task.build("ssmax(s=0.7)", nnx.Rngs(0))
    batch = drawn(task, 5, 4)
    both = task.read(model, [normalizer("softmax"), None], batch)
    assert both.scores.shape[:2] == (4, 2)
    assert np.array_equal(both.answer, batch.answer)
    np.testing.assert_allclose(both.scores[:, 1], task.scores(model, batch, None), rtol=1e-5, atol=1e-6)
    alone = task.read(model, [normalizer("softmax")], batch)
    np.testing.assert_allclose(both.scores[:, 0], alone.scores[:, 0], rtol=1e-5, atol=1e-6)
    assert not np.allclose(both.scores[:, 0], both.scores[:, 1])
