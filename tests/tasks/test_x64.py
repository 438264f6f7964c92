"""What is drawn at random is float32 and int32 and has the same bits whatever `jax_enable_x64` says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from softmax_jax.tasks import TASKS
from softmax_jax.tasks.max_retrieval import MaxRetrieval
from softmax_jax.tasks.priorities import QUANTILES
from softmax_jax.tasks.retrieval import Copy, MultiQuery, Sort, TransformerMaxRetrieval
from softmax_jax.tasks.sequences import SequenceTask
from softmax_jax.tasks.task import dropout_key
from softmax_jax.training.trainer import build_model

SMALL = {"sets": 2, "hidden": 8, "heads": 2, "layers": 1}
ROOMS = {"signal": 32}
KINDS = {
    **{kind.name: kind(**SMALL) for kind in (TransformerMaxRetrieval, Sort, Copy, MultiQuery, TASKS["signal"])},
    "clrs_text": TASKS["clrs_text"](**SMALL, lengths=(4, 5)),
    "clrs_text by characters": TASKS["clrs_text"](**SMALL, lengths=(4, 5), tokenizer="character"),
    "near ties": MaxRetrieval(sets=2, width=8, nearest_of=4, min_items=2),
    **{f"max_retrieval, {name}": MaxRetrieval(sets=2, width=8, priority=name) for name in QUANTILES},
}


def numbers(tree):
    """The arrays of a tree, those of keys as their bits."""
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return [np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for leaf in jax.tree.leaves(tree)]


def drawn(task):
    """All that a task draws."""
    seed, room = jnp.int32(3), ROOMS.get(task.name, 8)
    keys = task.test_keys(seed, 7 if room == 8 else room, 4)
    structure, initialize = build_model(task, "ssmax")
    parameters = initialize(jax.random.key(1))
    batch = jax.jit(task.training_batch)(seed, jnp.int32(5))
    found = [batch, keys, task.draw(keys, jnp.full(4, 7, jnp.int32), room), parameters]
    if isinstance(task, SequenceTask):
        dropout = (
            task.scores(nnx.merge(structure, parameters), batch, nnx.Rngs(dropout=dropout_key(seed, seed))) * 1e-30
        )
        found.append(dropout.astype(jnp.float32))
    return found


def both(draw):
    """What is drawn with x64 off and on."""
    found = []
    for x64 in (False, True):
        with jax.enable_x64(x64):
            found.append(numbers(draw()))
    return found


def check(off, on):
    for one, other in zip(off, on, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", KINDS)
def test_every_task_draws_the_same(name):
    check(*both(lambda: drawn(KINDS[name])))
