import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softmax_jax as sj
from softmax_jax.experiment.report.chart_files import specification, svg
from softmax_jax.experiment.report.playground import (
    POSITIONS,
    SLIDERS,
    START,
    playground_chart,
    playground_frame,
    playground_logits,
    playground_numbers,
)
from tests.experiment.report.charts import texts_of, values_of


def linear(logits, axis=-1, where=None):
    """A normalizer of a reader's own, with weights of both signs."""
    visible = logits if where is None else jnp.where(where, logits, 0)
    return visible / (1 + jnp.sum(jnp.abs(visible), axis, keepdims=True))


SHOWN = {"softmax": sj.normalizer("softmax"), "mine": sj.Normalizer(linear)}


def weights_and_entropy(normalizer, logits):
    weights = normalizer(logits, where=jnp.ones(len(logits), bool))
    return weights, sj.weight_entropy(weights)


@pytest.fixture(scope="module")
def numbers():
    return playground_numbers(SHOWN)


def test_the_best_item_comes_first_and_more_items_leave_the_others_where_they_are():
    logits = playground_logits(10, gap=4.0, noise=1.5)
    assert (len(logits), logits[0]) == (1025, 4.0)
    assert np.abs(logits[1:]).max() <= 1.5
    assert np.ptp(logits[1:]) > 2.98
    assert (playground_logits(4, 4.0, 1.5) == logits[:17]).all()


def test_each_position_has_the_numbers_of_its_row_alone(numbers):
    for position in [(0, 0, 0), (6, 4, 1), (12, 10, 5), (4, 3, 2)]:
        logits = jnp.asarray(playground_logits(*position), jnp.float32)
        for name, normalizer in SHOWN.items():
            weights, entropy = jax.jit(weights_and_entropy)(normalizer, logits)
            expected = weights[0], np.abs(weights[1:]).max(), entropy
            np.testing.assert_allclose(numbers[name][:, POSITIONS.index(position)], expected, rtol=1e-4, atol=1e-6)


def test_the_picture_shows_the_numbers_of_the_position_where_the_chart_looks_them_up(numbers):
    chart = playground_chart(numbers)
    texts = {tuple(text.split()[:2]) for text in texts_of(svg(specification(chart))) if text and "nats" in text}
    frame = playground_frame(numbers)
    assert frame["normalizer"].to_list() == list(SHOWN)
    assert texts == {(f"{best:.4f}", f"{entropy:.2f}") for _, best, _, entropy in frame.rows()}
    assert POSITIONS[START] == tuple(start for _, _, start in SLIDERS.values())
    # The expression of the page, read as Python, for every position of the sliders.
    steps = [step for layer in chart.to_dict()["layer"] for step in layer["transform"]]
    (expression,) = {
        step["calculate"].removeprefix("datum.best_by_position[").removesuffix("]")
        for step in steps
        if step["as"] == "best"
    }
    places = [eval(expression, dict(zip(SLIDERS, position))) for position in POSITIONS]
    assert places == list(range(len(POSITIONS)))
    rows = values_of(chart)
    assert {len(row["best_by_position"]) for row in rows} == {len(POSITIONS)}
    # A slider that is moved computes anew: what is read must not have been written over.
    assert not {step["as"] for step in steps} & set(rows[0])
