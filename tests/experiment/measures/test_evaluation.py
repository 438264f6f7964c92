import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softmax_jax.experiment.measures import evaluation, one_set
from softmax_jax.experiment.measures.evaluation import Evaluation, evaluate
from softmax_jax.experiment.measures.one_set import attended
from softmax_jax.experiment.measures.references import TRUE_ITEM, under_true_key
from softmax_jax.experiment.measures.sets import key_of, rooms_of, set_keys
from softmax_jax.experiment.measures.table import EVALUATION, calibration_error
from softmax_jax.experiment.tasks.retrieval import Sort
from softmax_jax.normalizers.registry import METHODS, normalizer
from studies.clrs_text.task import ClrsText
from tests.experiment.measures.models import SEEDS, TASK, blank, model_of, parameters_of

SUM_TO_ONE = [name for name, method in METHODS.items() if getattr(method.map, "sums_to_one", False)]
SOFTMAX = {"softmax": normalizer("softmax")}


def test_under_a_true_key_the_largest_logit_is_that_of_the_true_item():
    rho = jnp.array([[0.9, 0.5, -jnp.inf, 0.1], [0.2, 0.3, 0.8, -0.6]])
    logits = jnp.array([[1.0, 3.0, 9.0, 0.0], [0.0, 1.0, 5.0, 2.0]])
    found = under_true_key(rho, logits[:, None], where=rho[:, None] > -jnp.inf)[:, 0]
    exchanged = jnp.array([[3.0, 1.0, -jnp.inf, 0.0], [0.0, 1.0, 5.0, 2.0]])
    np.testing.assert_allclose(found, jax.nn.softmax(exchanged), atol=1e-7)


def test_calibration_compares_confidence_and_accuracy_bin_by_bin():
    sure_and_half_right, unsure_and_right = [[0.95, right] for right in (1, 0)], [[0.15, 1.0]] * 2
    assert np.isclose(calibration_error(np.array(sure_and_half_right + unsure_and_right)), (45 + 85) / 2)
    assert calibration_error(np.array([[1.0, 1.0]])) == 0


@pytest.mark.full
def test_rows_of_many_heads_are_those_of_the_model_under_each_normalizer():
    """Of every layer, head and query, against a plain look at the model; the last layer depends on the others."""
    task = Sort(batch=2, length=4, queries=3, hidden=8, heads=2, layers=2, dropout=0.0)
    model, batch = model_of(0, task), task.test_batch(jax.random.key(5), 6, 1)
    for name in ("softmax", "softpick"):
        scores, rows = attended(lambda: task.scores(model, batch, None), normalizer(name))
        direct = task.answers(model(batch.inputs, batch.mask, normalizer=normalizer(name)))
        np.testing.assert_allclose(scores, direct, rtol=1e-4, atol=1e-5)
        assert rows.weights.shape == (2 * 2 * 9, 9)
        np.testing.assert_allclose(rows.weights, normalizer(name)(rows.logits, where=rows.where), rtol=1e-4, atol=1e-6)


def test_sets_of_every_key_length_seed_and_place_have_a_key_of_their_own():
    draws = [(length, None) for length in (16, 17, 1024)] + [(16, key_of(number)) for number in (1, 2**31 - 1)]
    keys = [np.asarray(jax.random.key_data(set_keys(SEEDS, length, 4, key))) for length, key in draws]
    assert len(np.unique(np.reshape(keys, (-1, 2)), axis=0)) == len(draws) * len(SEEDS) * 4
    assert np.array_equal(jax.random.key_data(set_keys(SEEDS, 16, 4, key_of(0))), keys[0])  # the usual ones
    assert np.array_equal(jax.random.key_data(set_keys(SEEDS, 16, 2)), keys[0][:, :2])  # fewer are the first of more
    # Lengths share the program of the longest of up to 256 or 1,024 items.
    assert rooms_of(TASK, (2, 256, 257, 1024, 1025)) == {2: 256, 256: 256, 257: 1024, 1024: 1024, 1025: 1025}


def test_a_number_of_several_rows_is_that_of_all_rows_of_all_sets():
    beta, sets = np.array([[1.0, 3.0], [5.0, 6.0], [9.0, 12.0]]), 3
    rows = np.stack([np.full(beta.shape, 4.0), beta, np.ones(beta.shape)], -1)  # n, β and a spread of each
    measured = evaluation.Measured(4, ("softmax",), (7,), {"beta": rows.reshape(1, sets, 1, 2, 3)}, rows=2)
    assert measured.frame().rows() == [("softmax", 4, 7, 6.0)]


@pytest.mark.parametrize("count", [64, 65, 320])
def test_the_rows_to_look_at_lie_at_equal_distances_up_to_the_last(count):
    rows = one_set._flat(jnp.arange(count)[:, None], -1)[:, 0]
    assert len(rows) <= one_set.ROWS < 2 * len(rows) or len(rows) == count
    assert rows[-1] == count - 1
    assert len(np.unique(np.diff(rows))) <= 1


@pytest.mark.full
@pytest.mark.parametrize(("sets", "expected"), [(3, [3, 3]), ({16: 5}, [5, 512]), (None, [512, 512])])
def test_sets_are_as_many_as_is_said_for_the_length_or_as_the_task_has(sets, expected):
    evaluated = Evaluation(TASK, blank(), SOFTMAX, SEEDS, sets)
    assert [evaluated.sets_at(length) for length in (16, 64)] == expected


@pytest.mark.full
def test_a_large_evaluation_in_parts_is_that_of_all_sets_at_once(monkeypatch):
    """Each set has a number of its own, drawn from its key in the place of a loss."""
    drawn = lambda models, key_and_length, normalizers: {"loss": jax.random.uniform(key_and_length[0], (1,))}  # noqa: E731
    monkeypatch.setattr(evaluation, "SetMeasures", lambda *_: drawn)
    done: list[float] = []
    whole = Evaluation(TASK, parameters_of(), SOFTMAX, SEEDS, 8, ("loss",)).at(9)
    monkeypatch.setattr(evaluation, "ITEMS_TO_DIVIDE", 1)
    in_parts = Evaluation(TASK, parameters_of(), SOFTMAX, SEEDS, 8, ("loss",), done=done.append).at(9)
    np.testing.assert_array_equal(in_parts.values["loss"], whole.values["loss"])
    assert len(np.unique(whole.values["loss"])) == 8 * len(SEEDS)
    assert done == [9 / evaluation.PARTS] * evaluation.PARTS


def test_an_evaluation_compiles_what_it_computes_and_no_program_to_cut_arrays(monkeypatch, caplog):
    drawn = lambda models, key_and_length, normalizers: {"loss": jax.random.uniform(key_and_length[0], (1,))}  # noqa: E731
    monkeypatch.setattr(evaluation, "SetMeasures", lambda *_: drawn)
    monkeypatch.setattr(evaluation, "ITEMS_TO_DIVIDE", 1)
    evaluated = Evaluation(TASK, parameters_of(), SOFTMAX, SEEDS, 28, ("loss",))
    jax.config.update("jax_log_compiles", True)  # in the thread that compiles, too
    try:
        evaluated.at(9)
    finally:
        jax.config.update("jax_log_compiles", False)
    programs = {match[1] for match in re.finditer(r"Finished XLA compilation of jit\((.+?)\) in", caplog.text)}
    assert {"_on_devices"} <= programs <= {"_on_devices", "_set_keys", "_built"}


@pytest.mark.full
def test_a_transformer_is_evaluated_on_its_task_as_it_was_trained_and_under_others():
    task = Sort(batch=2, length=4, hidden=8, heads=2, layers=1)
    trained, named = parameters_of(task, "ssmax"), SOFTMAX | {"as trained": None}
    options = {"seeds": SEEDS, "lengths": (8,), "sets": 4, "task": task, "trained_under": "ssmax"}
    (frame,) = (measured.frame() for measured in evaluate(trained, named, **options))
    assert frame.columns == ["normalizer", "n", "seed", *EVALUATION]
    assert frame.filter(normalizer="as trained")["entropy"].null_count() == len(SEEDS)
    assert (frame.filter(normalizer="softmax")["entropy"] > 0).all()
    softmax, as_trained = (frame.filter(normalizer=name)["loss"].to_numpy() for name in named)
    assert not np.allclose(as_trained, softmax)
    with pytest.raises(ValueError, match="the task sort ranks no items"):
        evaluate(trained, named, **options, references=(TRUE_ITEM,))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seeds": (4,)}, "1 seeds"),
        ({"parameters": {"kernel": np.ones(3)}}, "max-retrieval model"),
        ({"normalizers": {}}, "at least one"),
        ({"lengths": (0,)}, "each of lengths is 0"),
        ({"task": ClrsText(algorithms=("minimum", "quickselect"))}, "task has 2 parts"),
    ],
)
def test_mistakes_are_named_before_anything_is_computed(changed, words):
    given = {"parameters": blank(), "normalizers": SOFTMAX, "seeds": SEEDS, "lengths": (4,)} | changed
    with pytest.raises(ValueError, match=words):
        evaluate(**given)
