from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from softmax_jax.experiment.measures import evaluation, one_set
from softmax_jax.experiment.measures.evaluation import Evaluation, evaluate, frame_of
from softmax_jax.experiment.measures.one_set import attended, heads_of
from softmax_jax.experiment.measures.over_sets import models_of, on_every_set
from softmax_jax.experiment.measures.references import TRUE_ITEM, under_true_key
from softmax_jax.experiment.measures.sets import key_of, rooms_of, set_keys
from softmax_jax.experiment.measures.table import EVALUATION, calibration_error
from softmax_jax.experiment.tasks import retrieval_model
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval, sample
from softmax_jax.experiment.tasks.retrieval import Sort
from softmax_jax.experiment.training.run import build_model
from softmax_jax.experiment.training.run_directory import SHIPPED, load_checkpoint
from softmax_jax.normalizers.registry import METHODS, normalizer
from studies.clrs_text.task import ClrsText

SEEDS = (4, 5)
WIDTH = 8
TASK = MaxRetrieval(width=WIDTH)
SUM_TO_ONE = [name for name, method in METHODS.items() if getattr(method.map, "sums_to_one", False)]


@pytest.fixture(scope="module")
def parameters():
    _, initialize = build_model(TASK)
    return jax.vmap(initialize)(jax.random.split(jax.random.key(0), len(SEEDS)))


SOFTMAX = {"softmax": normalizer("softmax")}


def measured_frame(parameters, names, lengths, sets):
    named = {name: normalizer(name) for name in names}
    return frame_of(Evaluation(TASK, parameters, named, SEEDS, sets).over(lengths))


def numbers(frame):
    return frame.select(*EVALUATION).to_numpy()


@pytest.mark.full
def test_rows_equal_a_plain_loop_over_models_sets_and_normalizers(parameters):
    structure, _ = build_model(TASK)
    names = "softmax", "adaptive", "ssmax", "entmax15", "softpick", "sink_softmax", "signed_l1", "hardmax"
    frame = measured_frame(parameters, names, (9,), 8)
    keys = set_keys(SEEDS, 9, 8)
    read = nnx.jit(lambda model, batch, normalizer: model(batch, normalizer))
    for row in frame.to_dicts():
        index = SEEDS.index(row["seed"])
        model = nnx.merge(structure, jax.tree.map(lambda leaf, index=index: leaf[index], parameters))
        correct, losses, entropies, largest, confidence = [], [], [], [], []
        for key in keys[index]:
            batch = sample(key, 1, 9)
            out = read(model, batch, normalizer(row["normalizer"]))
            scores = np.asarray(out.scores[0], np.float64)
            confidence.append(np.exp(scores - scores.max()).sum() ** -1)
            weights = np.abs(np.asarray(out.weights[0], np.float64))
            correct.append(scores.argmax() == batch.answer[0])
            losses.append(np.log(np.exp(scores).sum()) - scores[batch.answer[0]])
            shares = weights[weights > 0] / weights.sum()
            entropies.append(-(shares * np.log(shares)).sum())
            largest.append(weights.max())
        calibration = calibration_error(np.stack([confidence, correct], 1))
        expected: Any = (100 * np.mean(correct), np.mean(losses), np.mean(entropies), np.mean(largest), calibration)
        assert np.allclose([row[name] for name in EVALUATION], expected, atol=1e-3)


@pytest.mark.full
def test_short_sets_are_read_together_as_they_are_alone(parameters):
    """At lengths that share a program, in which items beyond a set's own are masked."""
    together = measured_frame(parameters, ["softmax", "softpick"], (2, 9, 40), 8)
    for n in (2, 9, 40):
        alone = measured_frame(parameters, ["softmax", "softpick"], (n,), 8)
        assert np.allclose(numbers(together.filter(n=n)), numbers(alone), rtol=1e-5)


@pytest.mark.full
def test_long_sets_which_are_encoded_block_by_block_are_evaluated_alike(parameters, monkeypatch):
    n = retrieval_model.BLOCK + 40
    whole = measured_frame(parameters, ["softmax", "softpick"], (n,), 2)
    monkeypatch.setattr(retrieval_model, "LONGEST_WHOLE", 1)
    jax.clear_caches()
    heads_of.cache_clear()
    by_block = measured_frame(parameters, ["softmax", "softpick"], (n,), 2)
    assert np.allclose(numbers(by_block), numbers(whole), rtol=1e-4)


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
    parameters = jax.vmap(build_model(task)[1])(jax.random.split(jax.random.key(0), 1))
    model = nnx.merge(build_model(task)[0], jax.tree.map(lambda leaf: 3 * leaf[0], parameters))
    batch = task.test_batch(jax.random.key(5), 6, 1)
    for name in ("softmax", "softpick"):
        scores, rows = attended(lambda: task.scores(model, batch, None), normalizer(name))
        direct = task.answers(model(batch.inputs, batch.mask, normalizer=normalizer(name)))
        np.testing.assert_allclose(scores, direct, rtol=1e-4, atol=1e-5)
        assert rows.weights.shape == (2 * 2 * 9, 9)
        np.testing.assert_allclose(rows.weights, normalizer(name)(rows.logits, where=rows.where), rtol=1e-4, atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("names", [["hardmax"], SUM_TO_ONE], ids=len)
def test_weights_sum_to_one_in_one_program_with_the_logits(names):
    # The compiler fuses the last product of the logits with what comes after it. In this program the largest logit
    # less the maximum of its row is then not 0 in half of the rows, so a hardmax by differences gives them no weight.
    config, parameters = load_checkpoint(SHIPPED / "paper")
    two, task = jax.tree.map(lambda leaf: leaf[:2], parameters), config.task

    def sums(models, key, normalizers):
        batch = task.test_batch(key, 16, 1)
        return jnp.stack([models[0](batch, weigh).weights.sum() for weigh in normalizers])

    keys = set_keys(config.all_seeds[:2], 16, 64)
    every = tuple(map(normalizer, names))
    total = on_every_set(sums, models_of(task), two, keys, 64, every)
    np.testing.assert_allclose(total, 1, rtol=1e-5)


def test_every_number_of_a_key_draws_other_sets_and_0_the_usual_ones():
    usual, *others = (
        np.asarray(jax.random.key_data(set_keys(SEEDS, 16, 4, key))) for key in (None, *map(key_of, (0, 1, 2**31 - 1)))
    )
    assert np.array_equal(others[0], usual)
    assert len({one.tobytes() for one in others}) == 3
    assert len(np.unique(usual.reshape(-1, 2), axis=0)) == 4 * len(SEEDS)


def test_lengths_share_the_program_of_the_longest_up_to_256_or_1024_items():
    rooms = rooms_of(TASK, (2, 256, 257, 1024, 1025))
    assert rooms == {2: 256, 256: 256, 257: 1024, 1024: 1024, 1025: 1025}


def test_a_number_of_several_rows_is_that_of_all_rows_of_all_sets():
    beta, sets = np.array([[1.0, 3.0], [5.0, 6.0], [9.0, 12.0]]), 3
    rows = np.stack([np.full(beta.shape, 4.0), beta, np.ones(beta.shape)], -1)  # n, β and a spread of each
    measured = evaluation.Measured(4, ("softmax",), (7,), {"beta": rows.reshape(1, sets, 1, 2, 3)}, rows=2)
    assert measured.frame().rows() == [("softmax", 4, 7, 6.0)]


@pytest.mark.parametrize("count", [1, 64, 65, 130, 320])
def test_the_rows_to_look_at_lie_at_equal_distances_up_to_the_last(count):
    rows = one_set._flat(jnp.arange(count)[:, None], -1)[:, 0]
    assert len(rows) <= one_set.ROWS < 2 * len(rows) or len(rows) == count
    assert rows[-1] == count - 1
    assert len(np.unique(np.diff(rows))) <= 1


def test_sets_of_every_length_seed_and_place_have_a_key_of_their_own():
    keys = [np.asarray(jax.random.key_data(set_keys(SEEDS, length, 4))) for length in (16, 17, 1024)]
    assert len(np.unique(np.reshape(keys, (-1, 2)), axis=0)) == 3 * len(SEEDS) * 4


@pytest.mark.parametrize(("sets", "expected"), [(3, [3, 3]), ({16: 5}, [5, 512]), (None, [512, 512])])
def test_sets_are_as_many_as_is_said_for_the_length_or_as_the_task_has(parameters, sets, expected):
    evaluated = Evaluation(TASK, parameters, SOFTMAX, SEEDS, sets)
    assert [evaluated.sets_at(length) for length in (16, 64)] == expected


def test_a_large_evaluation_in_parts_is_that_of_all_sets_at_once(parameters, monkeypatch):
    """Each set has a number of its own, drawn from its key in the place of a loss."""
    drawn = lambda models, key_and_length, normalizers: {"loss": jax.random.uniform(key_and_length[0], (1,))}  # noqa: E731
    monkeypatch.setattr(evaluation, "SetMeasures", lambda *_: drawn)
    done: list[float] = []
    whole = Evaluation(TASK, parameters, SOFTMAX, SEEDS, 8, ("loss",)).at(9)
    monkeypatch.setattr(evaluation, "ITEMS_TO_DIVIDE", 1)
    in_parts = Evaluation(TASK, parameters, SOFTMAX, SEEDS, 8, ("loss",), done=done.append).at(9)
    np.testing.assert_array_equal(in_parts.values["loss"], whole.values["loss"])
    assert len(np.unique(whole.values["loss"])) == 8 * len(SEEDS)
    assert done == [9 / evaluation.PARTS] * evaluation.PARTS


@pytest.mark.full
def test_a_transformer_is_evaluated_on_its_task_as_it_was_trained_and_under_others():
    task = Sort(batch=2, length=4, hidden=8, heads=2, layers=1)
    trained = jax.vmap(build_model(task, "ssmax")[1])(jax.random.split(jax.random.key(0), len(SEEDS)))
    named = {"softmax": normalizer("softmax"), "as trained": None}
    options = {"seeds": SEEDS, "lengths": (4, 8), "sets": 4, "task": task, "trained_under": "ssmax"}
    frame = frame_of(evaluate(trained, named, **options))
    assert frame.columns == ["normalizer", "n", "seed", *EVALUATION]
    assert frame.filter(normalizer="as trained")["entropy"].null_count() == len(SEEDS) * 2
    assert (frame.filter(normalizer="softmax")["entropy"] > 0).all()
    assert len(frame) == len(named) * len(SEEDS) * 2
    with pytest.raises(ValueError, match="the task sort ranks no items"):
        evaluate(trained, named, **options, references=(TRUE_ITEM,))
    softmax, as_trained = (frame.filter(normalizer=name)["loss"].to_numpy() for name in named)
    assert not np.allclose(as_trained, softmax)


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
def test_mistakes_are_named_before_anything_is_computed(parameters, changed, words):
    given = {"normalizers": {"softmax": normalizer("softmax")}, "seeds": SEEDS, "lengths": (4,)} | changed
    given = {"parameters": parameters} | given
    with pytest.raises(ValueError, match=words):
        evaluate(**given)
