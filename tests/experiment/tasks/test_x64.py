"""What is drawn at random has the same types and bits whatever `jax_enable_x64` says, and so has what comes of it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from softmax_jax.experiment.measures.evaluation import evaluate
from softmax_jax.experiment.measures.sets import key_of
from softmax_jax.experiment.tasks import TASKS, task_class
from softmax_jax.experiment.tasks.max_retrieval import QUANTILES, MaxRetrieval
from softmax_jax.experiment.tasks.sequences import SequenceTask
from softmax_jax.experiment.tasks.task import dropout_key
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.run import build_model, build_run
from softmax_jax.experiment.training.trainer import chunk_trainer
from softmax_jax.files import versions
from softmax_jax.normalizers.registry import normalizer
from studies import notebook
from studies.clrs_text.task import ClrsText

SIZES: dict[str, Any] = {"batch": 2, "hidden": 8, "heads": 2, "layers": 1}
NUMBERS: dict[str, Any] = {"clrs_text": {"lengths": (4,)}}
KINDS = {
    "max_retrieval": MaxRetrieval(batch=2, width=8),
    "near ties": MaxRetrieval(batch=2, width=8, nearest_of=4, min_items=2),
    **{priority: MaxRetrieval(batch=2, width=8, priority=priority) for priority in QUANTILES if priority != "uniform"},
    **{name: task_class(name)(**SIZES, **NUMBERS.get(name, {})) for name in TASKS if name != MaxRetrieval.name},
    "characters": ClrsText(**SIZES, lengths=(4,), tokenizer="smollm2"),
}
FIRST = ("max_retrieval",)
"""The kinds of the full tier; the others are rare."""


def numbers(tree):
    """The arrays of a tree, those of keys as their bits."""
    leaves = jax.tree.leaves(tree)
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return [np.asarray(jax.random.key_data(leaf) if key else leaf) for leaf, key in zip(leaves, keys)]


def off_and_on(function):
    """What a function gives with x64 off and on."""
    results = []
    for x64 in (False, True):
        with jax.enable_x64(x64):
            results.append(numbers(function()))
    return results


def check_the_same(function):
    for off, on in zip(*off_and_on(function), strict=True):
        assert off.dtype == on.dtype
        np.testing.assert_array_equal(off, on)


def drawn(task):
    """All that a task draws, its parameters and dropout included."""
    seed, length = jnp.int32(3), 32 if task.name == "signal" else 7
    if getattr(task, "priority", "uniform") != "uniform":  # which has the parameters of the uniform one
        return task.training_batch(seed, jnp.int32(5))
    structure, initialize = build_model(task, "ssmax")
    parameters = initialize(jax.random.key(1))
    batch = task.training_batch(seed, jnp.int32(5))
    draws = [parameters, batch, task.test_batch(key_of(2**31 - 1), length, 2)]
    if isinstance(task, SequenceTask):
        scores = task.scores(nnx.merge(structure, parameters), batch, nnx.Rngs(dropout=dropout_key(seed, seed)))
        draws.append((1e4 * scores).round())  # another draw is seen, another order of summation is not
    return draws


@pytest.mark.parametrize(
    "name", [pytest.param(kind, marks=pytest.mark.full if kind in FIRST else pytest.mark.rare) for kind in KINDS]
)
def test_every_task_draws_the_same(name):
    check_the_same(jax.jit(lambda: drawn(KINDS[name])))


@pytest.mark.full
def test_sets_that_are_drawn_otherwise_are_the_same():
    check_the_same(lambda: notebook.stream(4))


@pytest.mark.full
def test_training_and_evaluation_give_the_same_numbers():
    task = MaxRetrieval(batch=4, width=8, min_items=6, max_items=6)
    config = Config(task, steps=6, schedule="cosine_decay_schedule")

    def trained():
        run = build_run(config)
        state, metrics = chunk_trainer(run)(run.initial_state(), 0, 6)
        named = {"adaptive": normalizer("adaptive")}
        measured = evaluate(state.parameters, named, seeds=[0], lengths=(9,), sets=8, measures=("loss", "accuracy"))
        return [metrics[:3], [length.values for length in measured]]

    with jax.numpy_dtype_promotion("standard"):  # as users have it
        pairs = zip(*off_and_on(trained), strict=True)
    for off, on in pairs:
        np.testing.assert_allclose(on, off, rtol=1e-5, atol=1e-6)


def test_the_record_of_a_run_says_so():
    for x64 in (False, True):
        with jax.enable_x64(x64):
            assert versions()["x64"] == str(x64)
