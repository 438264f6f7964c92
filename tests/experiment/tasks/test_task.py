"""What every task promises to training and evaluation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from softmax_jax.experiment.measures.evaluation import evaluate
from softmax_jax.experiment.measures.sets import key_of
from softmax_jax.experiment.tasks import TASKS, task_class
from softmax_jax.experiment.tasks.hidden_signal import Signal
from softmax_jax.experiment.tasks.max_retrieval import QUANTILES, MaxRetrieval
from softmax_jax.experiment.tasks.retrieval import Sort
from softmax_jax.experiment.tasks.sequences import SequenceTask
from softmax_jax.experiment.tasks.set_complement import SetComplement
from softmax_jax.experiment.tasks.task import Task, data_key, dropout_key, parameter_key, sequence_key
from softmax_jax.experiment.training.config import Config
from softmax_jax.experiment.training.run import build_model, build_run
from softmax_jax.experiment.training.trainer import chunk_trainer
from softmax_jax.files import versions
from softmax_jax.normalizers.registry import METHODS, normalizer
from softmax_jax.refusal import Refusal
from studies import notebook
from studies.clrs_text.task import ClrsText
from tests.tiers import methods, rare_except

SMALL = {"length": 6, "batch": 6, "hidden": 8, "heads": 2}
OTHERS = {
    SetComplement: SMALL | {"classes": 4},
    MaxRetrieval: {"batch": 6, "min_items": 2, "max_items": 5, "width": 8},
    ClrsText: {"batch": 6, "algorithms": ("minimum",), "lengths": (4,), "hidden": 8, "heads": 2, "layers": 1},
}
MADE: list[Task] = [task(**OTHERS.get(task, SMALL)) for task in map(task_class, TASKS)]
SEED = jnp.int32(3)


# The others wait for the full tier: their own tests draw some batches of each by default.
HEART = ("max_retrieval",)


@pytest.fixture(
    params=[pytest.param(task, id=task.name, marks=[pytest.mark.full] * (task.name not in HEART)) for task in MADE]
)
def task(request):
    return request.param


# In one program: drawn operation by operation, each would be compiled by itself.
fresh_batch = jax.jit(lambda task, key, length, sets: task.test_batch(key, length, sets), static_argnums=(0, 2, 3))


def test_batches_are_functions_of_seed_and_step_of_which_none_comes_twice_and_test_sets_of_their_key(task):
    steps = jnp.array([4, *range(200), 99_999, 100_000, 1_000_000], jnp.int32)
    batches = jax.jit(jax.vmap(lambda step: task.training_batch(SEED, step)))(steps)
    once, again = (jax.tree.map(lambda leaf, at=at: leaf[at], batches) for at in (0, 5))  # both of step 4
    assert len(answers(once)) == task.batch
    assert identical(once, again)
    inputs = np.asarray(jax.tree.leaves(batches)[0]).reshape(len(steps), -1)
    assert len(np.unique(inputs, axis=0)) == len(steps) - 1
    once, again, other = (fresh_batch(task, jax.random.key(draw), 5, 4) for draw in (1, 1, 2))
    assert len(answers(once)) == 4
    assert identical(once, again)
    assert not identical(once, other)


def test_every_purpose_and_seed_has_a_key_of_its_own():
    keys = [key(jnp.int32(seed)) for seed in (0, 1, 2) for key in (parameter_key, data_key, sequence_key)]
    keys += [dropout_key(jnp.int32(seed), jnp.int32(step)) for seed in (0, 1, 2) for step in (0, 1, 2)]
    assert len(np.unique(jax.random.key_data(jnp.stack(keys)), axis=0)) == len(keys)


def answers(batch):
    """What each set is to be answered with, classes or shares of them, which every batch has last."""
    return jax.tree.leaves(batch)[-1]


def identical(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_a_function_on_visible_items_sees_all_of_them(task):
    batch = fresh_batch(task, jax.random.key(1), 5, 4)

    def total(parameters, batch, more):
        return parameters * answers(batch).sum() + more

    assert task.on_visible(total)(2, batch, 1) == total(2, batch, 1)


LEARNED = [name for name, method in METHODS.items() if method.learned]


@pytest.mark.parametrize("name", rare_except(LEARNED, "ssmax", "entmax", "sink_softmax"))
def test_every_number_that_is_to_be_learned_is_one_of_its_method_and_starts_there(name):
    task = Signal(length=6, hidden=8, heads=2)
    parameters = jax.tree.map(lambda leaf: leaf[None], jax.jit(build_model(task, name)[1])(jax.random.key(0)))
    learned = task.learned(parameters, name)
    assert tuple(learned) == METHODS[name].learned
    for number, values in learned.items():
        assert values.shape == (1, task.layers, task.heads)
        np.testing.assert_allclose(values, METHODS[name].numbers[number], rtol=1e-6)


@pytest.mark.parametrize(("name", "numbers"), methods([("asentmax", {"weight", "power"}), ("ssmax", set())]))
def test_models_train_numbers_of_the_query_where_the_method_was_published_with_them(name, numbers):
    _, initialize = build_model(Signal(length=6, hidden=8, heads=2), name)
    attention = jax.eval_shape(initialize, jax.random.key(0))["blocks"][1]["attention"]
    shapes = {number: leaf.shape for number, leaf in attention.items() if number.endswith("_of_query")}
    assert shapes == {f"{number}_of_query": (2, 4) for number in numbers}


@pytest.mark.parametrize(
    ("task", "length", "bounds"),
    [(MaxRetrieval(), 1, (2, 2**20)), (Signal(signal_length=5), 4, (5, 2**20)), (Sort(), 2**14 + 1, (2, 2**14))],
)
def test_a_length_without_test_sets_is_refused_with_the_option_and_the_bounds(task, length, bounds):
    rule = "it must be from {} to {}, such as 16".format(*bounds)
    with pytest.raises(Refusal, match=f"each of --lengths is {length}; {rule}$"):
        task.check_length("--lengths", length)
    for bound in bounds:
        task.check_length("--lengths", bound)


def test_long_sequences_are_fewer_and_read_in_batches_that_leave_memory():
    sets = [Sort().test_sets(length) for length in (64, 1024, 4096, 2**14)]
    assert sets == sorted(sets, reverse=True)
    assert (sets[0] >= 200, sets[-1]) == (True, 8)
    assert all(Sort().at_once(length) * length**2 <= 2**24 for length in (64, 1024, 4096))


def off_and_on(function):
    """The arrays that a function gives with x64 off and on, those of keys as their bits."""
    results = []
    for x64 in (False, True):
        with jax.enable_x64(x64):
            leaves = jax.tree.leaves(function())
            is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
            results.append([np.asarray(jax.random.key_data(x) if key else x) for x, key in zip(leaves, is_key)])
    return zip(*results, strict=True)


def check_the_same(function):
    for off, on in off_and_on(function):
        assert off.dtype == on.dtype
        np.testing.assert_array_equal(off, on)


def drawn(task):
    """All that a task draws, its parameters and dropout included."""
    seed, length = jnp.int32(3), 32 if task.name == "signal" else 7
    structure, initialize = build_model(task, "ssmax")
    parameters, batch = initialize(jax.random.key(1)), task.training_batch(seed, jnp.int32(5))
    draws = [parameters, batch, task.test_batch(key_of(2**31 - 1), length, 2)]
    if isinstance(task, SequenceTask):
        scores = task.scores(nnx.merge(structure, parameters), batch, nnx.Rngs(dropout=dropout_key(seed, seed)))
        draws.append((1e4 * scores).round())  # another draw is seen, another order of summation is not
    return draws


RETRIEVAL = MaxRetrieval(batch=2, width=8, min_items=2)
KINDS = {
    **{task.name: task for task in MADE},
    **{priority: dataclasses.replace(RETRIEVAL, priority=priority) for priority in QUANTILES if priority != "uniform"},
    "near ties": dataclasses.replace(RETRIEVAL, nearest_of=4),
    "characters": ClrsText(**OTHERS[ClrsText], tokenizer="smollm2"),
}


@pytest.mark.parametrize("name", rare_except(KINDS, "max_retrieval"))
def test_what_is_drawn_has_the_same_types_and_bits_whatever_x64_says(name):
    check_the_same(jax.jit(lambda: drawn(KINDS[name])))


@pytest.mark.full
def test_training_and_evaluation_give_the_same_numbers_whatever_x64_says():
    config = Config(MaxRetrieval(batch=4, width=8, min_items=6, max_items=6), schedule="cosine_decay_schedule")

    def trained():
        run = build_run(config)
        state, metrics = chunk_trainer(run)(run.initial_state(), 0, 6)
        options = {"seeds": [0], "lengths": (9,), "sets": 8, "measures": ("loss",)}
        (measured,) = evaluate(state.parameters, {"adaptive": normalizer("adaptive")}, **options)
        return [metrics[:3], measured.values]

    check_the_same(lambda: notebook.stream(4))
    with jax.numpy_dtype_promotion("standard"):  # as users have it
        for off, on in off_and_on(trained):
            np.testing.assert_allclose(on, off, rtol=1e-5, atol=1e-6)
    for x64 in (False, True):
        with jax.enable_x64(x64):
            assert versions()["x64"] == str(x64)  # as the record of a run says


def test_the_longest_set_of_training_is_the_one_whose_shape_test_sets_have(task):
    assert Task.longest.__get__(task) == task.longest
