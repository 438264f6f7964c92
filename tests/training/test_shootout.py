from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax.normalizers.registry import METHODS
from softmax_jax.tasks.retrieval import Kind, Retrieval
from softmax_jax.tasks.sequences import Task
from softmax_jax.tasks.signal import Signal
from softmax_jax.training.shootout import (
    LEARNED,
    Contender,
    Draws,
    EpochDone,
    Outcome,
    Recipe,
    batches_of,
    compete,
    keys_of,
    score_all,
    shared_evenly,
)

TASK = Signal(length=8, sequences=64, batch=32, features=16)
RECIPE = Recipe(hidden=16, heads=2, layers=1, epochs=2, learning_rate=1e-3)
NAMES = ("softmax", "shifted_softmax", "ssmax")
SEEDS = (0, 1, 2)  # which two devices cannot share evenly
LENGTHS = (8, 12)


def fought(names, task: Task = TASK, recipe=RECIPE, seeds=SEEDS, lengths=LENGTHS, tests_at=lambda length: (10, 2)):
    """The outcomes by name, and all epochs said on the way."""
    said = list(compete(names, task, recipe, seeds, lengths, tests_at))
    outcomes = {one.normalizer: one for one in said if isinstance(one, Outcome)}
    return outcomes, [one for one in said if isinstance(one, EpochDone)]


@pytest.fixture(scope="module")
def first():
    return fought(NAMES)


def test_every_normalizer_is_trained_every_epoch_and_tested_at_every_length(first):
    outcomes, epochs = first
    assert [(one.normalizer, one.epoch) for one in epochs] == [(name, epoch) for epoch in range(2) for name in NAMES]
    assert list(outcomes) == list(NAMES)
    for name, outcome in outcomes.items():
        assert outcome.seeds == SEEDS
        assert outcome.losses.shape == (3, 2)
        assert outcome.losses[:, 1].mean() == pytest.approx([e.loss for e in epochs if e.normalizer == name][1])
        assert [(test.length, test.seed) for test in outcome.tests] == [(n, seed) for n in LENGTHS for seed in SEEDS]
        # 20 sequences, so that an accuracy is a multiple of 5 %.
        assert all(round(test.accuracy / 5, 3) == round(test.accuracy / 5) for test in outcome.tests)
        assert len({test.loss for test in outcome.tests}) == 6
        assert outcome.seconds > 0


def test_shifting_the_logits_changes_nothing_and_scaling_them_does(first):
    """Shifted softmax is softmax; SSMax is not: every epoch shows it."""
    losses = {name: outcome.losses for name, outcome in first[0].items()}
    np.testing.assert_allclose(losses["shifted_softmax"], losses["softmax"], atol=1e-5)
    assert np.abs(losses["ssmax"] - losses["softmax"]).min() > 1e-5


def test_a_seed_trains_alike_whoever_trains_beside_it(first):
    alone, beside = fought(["ssmax"], seeds=(1,), lengths=(8,))[0]["ssmax"], first[0]["ssmax"]
    np.testing.assert_allclose(alone.losses[0], beside.losses[1], rtol=1e-5)
    np.testing.assert_allclose(alone.learned["s"][0], beside.learned["s"][1], rtol=1e-5)
    assert alone.tests[0] == pytest.approx(next(t for t in beside.tests if (t.length, t.seed) == (8, 1)), rel=1e-5)


def test_a_repeated_run_gives_equal_numbers(first):
    again = fought(["softmax"])[0]["softmax"]
    np.testing.assert_array_equal(again.losses, first[0]["softmax"].losses)
    assert again.tests == first[0]["softmax"].tests


def test_seeds_differ(first):
    for outcome in first[0].values():
        assert len(set(outcome.losses[:, 0].tolist())) == 3


def test_learned_numbers_move_from_their_start(first):
    learned = {name: outcome.learned for name, outcome in first[0].items()}
    assert learned["softmax"] == learned["shifted_softmax"] == {}
    assert learned["ssmax"]["s"].shape == (3, RECIPE.layers, RECIPE.heads)
    moved = np.abs(learned["ssmax"]["s"] - METHODS["ssmax"].numbers["s"])
    assert (moved > 1e-5).all()
    assert moved.max() < 0.1  # four steps of 0.001 each


@pytest.mark.parametrize("name", LEARNED)
def test_every_number_that_is_to_be_learned_is_one_of_its_method(name):
    contender = Contender(name, TASK, RECIPE)
    state = contender.initial_state(jnp.arange(1))
    for number, values in contender.learned(state.parameters).items():
        assert values.shape == (1, RECIPE.layers, RECIPE.heads)
        np.testing.assert_allclose(values, METHODS[name].numbers[number], rtol=1e-6)
    assert set(contender.learned(state.parameters)) == set(LEARNED[name])


def test_a_number_given_by_name_is_where_learning_starts():
    contender = Contender("ssmax(s=0.8)", TASK, RECIPE)
    state = contender.initial_state(jnp.arange(2))
    np.testing.assert_allclose(contender.learned(state.parameters)["s"], 0.8, rtol=1e-6)


def test_all_normalizers_start_from_the_same_parameters():
    names = ("softmax", "softpick")
    starts = [Contender(name, TASK, RECIPE).initial_state(jnp.arange(2)).parameters for name in names]
    jax.tree.map(np.testing.assert_array_equal, *starts)
    assert not np.array_equal(starts[0]["embed"]["kernel"][0], starts[0]["embed"]["kernel"][1])


def test_tests_are_the_mean_over_all_their_batches():
    contender = Contender("softmax", TASK, RECIPE)
    parameters, draws = contender.initial_state(jnp.arange(1)).parameters, Draws(TASK, jnp.arange(1))

    def test(sequences: int, batches: int):
        return score_all([contender], [parameters], draws, (0,), 8, sequences, batches)[0][0]

    whole, halves, other = test(40, 1), test(20, 2), test(20, 1)
    assert whole.loss == pytest.approx(halves.loss, rel=1e-5)
    assert whole.accuracy == pytest.approx(halves.accuracy)
    assert abs(other.loss - whole.loss) > 1e-6


def test_an_epoch_is_drawn_as_its_steps_are_one_by_one():
    draws = Draws(TASK, jnp.arange(2))
    epoch = draws.training(jnp.int32(1))
    assert epoch.inputs.shape == (2, TASK.steps_per_epoch, TASK.batch, TASK.length, TASK.features)
    key = keys_of(jnp.int32(1)).data
    single = TASK.training_batch(key, jnp.int32(TASK.steps_per_epoch + 1))
    np.testing.assert_allclose(epoch.inputs[1, 1], single.inputs, atol=1e-6)
    np.testing.assert_array_equal(epoch.answer[1, 1], single.answer)


@pytest.mark.parametrize("seeds", [(0,), (3, 5), (0, 1, 2)])
def test_devices_share_the_seeds_evenly_and_the_first_are_those_asked_for(seeds):
    shared = shared_evenly(seeds)
    assert tuple(shared[: len(seeds)].tolist()) == seeds
    assert len(shared) % min(jax.device_count(), len(seeds)) == 0
    assert len(set(shared.tolist())) == len(shared) < len(seeds) + jax.device_count()


@pytest.mark.parametrize("length", [2, 32, 300, 4096, 2**14])
def test_batches_hold_all_sequences_and_less_memory_than_attention_may_take(length):
    batch, batches = batches_of(200, length)
    assert batch * (batches - 1) < 200 <= batch * batches
    assert batch == 1 or batch * length**2 <= 2**22


def test_dropout_needs_a_key_and_is_left_out_of_tests():
    recipe = Recipe(hidden=16, heads=2, layers=1, dropout=0.5)
    contender = Contender("softmax", TASK, recipe)
    parameters = jax.tree.map(lambda leaf: leaf[0], contender.initial_state(jnp.arange(1)).parameters)
    batch = TASK.test_batch(jax.random.key(0), 8, jnp.int32(0), 4)
    kept, again, dropped = (contender.loss(parameters, batch, key)[0] for key in (None, None, jax.random.key(1)))
    assert kept == again
    assert abs(kept - dropped) > 1e-3


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"hidden": 10, "heads": 4}, "--hidden is 10.*multiple of --heads, 4"),
        ({"hidden": 0}, "--hidden is 0"),
        ({"heads": 0}, "--heads is 0"),
        ({"layers": 0}, "--layers is 0"),
        ({"epochs": 0}, "--epochs is 0"),
    ],
)
def test_sizes_that_make_no_model_are_refused_by_the_name_of_their_option(sizes, words):
    with pytest.raises(ValueError, match=words):
        Recipe(**sizes)


@pytest.mark.slow
def test_softmax_learns_to_name_the_hidden_signal():
    """92 % is usual, 25 % is chance."""
    recipe = Recipe(hidden=32, heads=4, epochs=6, learning_rate=1e-3)
    outcomes, _ = fought(["softmax"], Signal(), recipe, (0,), (32,), lambda length: (50, 4))
    assert outcomes["softmax"].tests[0].accuracy > 80


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "accuracy"), [("max-retrieval", 80), ("multi-query", 95), ("sort", 55), ("copy", 95)])
def test_softmax_learns_every_kind_of_retrieval(kind, accuracy):
    """Chance is 10 %; 96, 99, 70 and 99 % are usual."""
    recipe = Recipe(hidden=32, heads=2, layers=1, epochs=2, learning_rate=3e-3, dropout=0.0)
    task = Retrieval(kind, length=8, queries=8, steps_per_epoch=200)
    outcomes, _ = fought(["softmax"], task, recipe, (0,), (8,), lambda length: (50, 4))
    assert outcomes["softmax"].tests[0].accuracy > accuracy


def test_no_kind_is_left_out():
    assert set(get_args(Kind)) == {"max-retrieval", "multi-query", "sort", "copy"}
