"""The order of methods on scores that are made by hand."""

import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.board.order import order_methods, put_to_ends, ranks_of
from softmax_jax.experiment.measures.significance import corrected, paired_p_value
from softmax_jax.experiment.report.board import about_tasks, board_chart, gain_cell, sentences

SEEDS = 6
NOISE = np.array([0.0, 0.3, -0.2, 0.1, -0.3, 0.2])
"""The same for all methods, as of paired seeds."""


def frame(accuracies, noise=NOISE, columns=("trained",)):
    """Rows of methods by task and length, each with the noise of the seeds and a tenth of its own."""
    own = np.random.default_rng(1)
    rows = [
        (method, task, column, n, seed, accuracy + noise[seed] + own.normal(0, 0.05))
        for method, by_task in accuracies.items()
        for task, by_length in by_task.items()
        for column in columns
        for n, accuracy in by_length.items()
        for seed in range(SEEDS)
    ]
    return pl.DataFrame(rows, ["method", "task", "column", "n", "seed", "accuracy"], orient="row")


FLOORS = {"a": 10.0, "b": 50.0}
METHODS = {
    "softmax": {"a": {16: 99.0, 64: 60.0}, "b": {16: 80.0, 64: 51.0}},
    "better": {"a": {16: 99.4, 64: 70.0}, "b": {16: 90.0, 64: 50.5}},
    "same": {"a": {16: 99.2, 64: 60.0}, "b": {16: 80.0, 64: 50.2}},
    "worse": {"a": {16: 98.9, 64: 30.0}, "b": {16: 60.0, 64: 50.0}},
}
LADDER = {f"step {step}": {"a": {16: 99.0, 64: 35.0 + step}, "b": {16: 65.0 + step, 64: 50.0}} for step in (0, 5, 10)}
"""Three more methods, so that one pair that cannot be told apart does not keep a task from ordering."""
MORE = METHODS | LADDER


def cell(order, method, task):
    return order.scores.filter(method=method, task=task).row(0, named=True)


def test_a_length_at_which_all_lie_at_one_end_does_not_count():
    order = order_methods(frame(METHODS), FLOORS)
    assert order.tasks.select("task", "lengths").rows() == [("a", 1), ("b", 1)]
    assert cell(order, "better", "a")["gain"] == pytest.approx(10, abs=0.2)  # 64 items only


def test_a_cell_at_an_end_counts_against_one_that_is_not():
    """The ceiling is 100 for every seed of a cell there; one that falls off it loses the distance to 100."""
    lost = METHODS | {"worse": {"a": {16: 50.0, 64: 30.0}, "b": {16: 60.0, 64: 50.0}}}
    held = put_to_ends(frame(lost), FLOORS).filter(task="a", n=16)
    by_method = dict(held.group_by("method").agg(pl.col("accuracy").unique()).rows())
    assert by_method["softmax"] == by_method["better"] == [100.0]
    assert len(by_method["worse"]) == SEEDS
    order = order_methods(frame(lost), FLOORS)
    assert cell(order, "worse", "a")["gain"] == pytest.approx(-(50 + 30) / 2, abs=0.5)
    assert cell(order, "same", "a")["gain"] == pytest.approx(0, abs=0.1)


def test_p_is_paired_over_seeds_and_corrected_for_the_whole_board():
    rows = frame(METHODS)
    order = order_methods(rows, FLOORS)
    counted = put_to_ends(rows, FLOORS).sort("seed")
    seeds = {
        key: values
        for *key, values in counted.group_by("method", "task").agg("accuracy").rows()
        for key in [tuple(key)]
    }
    names = [(method, task) for task in FLOORS for method in METHODS if method != "softmax"]
    expected = dict(zip(names, corrected([paired_p_value(seeds[name], seeds["softmax", name[1]]) for name in names])))
    for method, task in names:
        assert cell(order, method, task)["p"] == pytest.approx(expected[method, task])
    assert cell(order, "better", "a")["p"] < 0.001
    assert cell(order, "same", "a")["p"] > 0.05
    assert cell(order, "softmax", "a")["p"] is None


def test_ranks_have_intervals_that_hold_what_cannot_be_told_apart():
    order = order_methods(frame(MORE), FLOORS)
    for name, rank in (("better", 1), ("worse", 7)):
        row = cell(order, name, "a")
        assert (row["rank"], row["low"], row["high"]) == (rank, rank, rank)
    for name in ("softmax", "same"):
        assert (cell(order, name, "a")["low"], cell(order, name, "a")["high"]) == (2, 3)
    assert ranks_of(np.array([[1.0, 1.0, 3.0]])).tolist() == [[2.5, 2.5, 1.0]]
    places = {method: numbers for method, *numbers in order.places.select("method", "rank", "gains", "losses").rows()}
    assert places["better"] == [1, 2, 0]
    assert places["worse"] == [7, 0, 2]


def test_a_task_whose_halves_rank_otherwise_does_not_order():
    """Every other seed of one task ranks the methods the other way round."""
    flipped = frame(MORE)
    odd = (pl.col("task") == "b") & (pl.col("seed") % 2 == 1) & (pl.col("n") == 16)
    flipped = flipped.with_columns(accuracy=pl.when(odd).then(150 - pl.col("accuracy")).otherwise("accuracy"))
    order = order_methods(flipped, FLOORS)
    assert order.tasks.select("task", "orders").rows() == [("a", True), ("b", False)]
    assert order.tasks["agreement"][1] < 0
    assert "b trained (-" in about_tasks(order)
    assert order.places.filter(method="better")["rank"].item() == 1  # of the task a only


def test_a_method_that_lacks_a_task_is_left_out():
    order = order_methods(frame(METHODS | {"half": {"a": {16: 99.0, 64: 65.0}}}), FLOORS)
    assert "half" not in order.scores["method"]


def test_the_sentences_name_what_is_shown():
    order = order_methods(frame(MORE, columns=("trained", "swapped")), FLOORS)
    place, shown, _ = sentences(order, ["worse"])
    assert place.startswith(
        "Of 7 methods worse has place 7 trained, after step 0 (mean rank 7.0 on 2 tasks, 7 to 7); place 7 swapped"
    )
    assert "to gain on none and to lose on a trained (-30.0 ±" in shown
    assert "Holm over 24 tests" in shown
    assert [gain_cell(gain, p) for gain, p in ((-0.4, None), (0.4, 0.2), (-12.3, 0.01))] == ["0", "0", "-12*"]
    best, counts, _ = sentences(order)
    assert "trained, better is first (mean rank 1.0 on 2 tasks, 1 to 1)" in best
    assert counts.startswith("4 cells are shown to gain over softmax and 16 to lose")
    assert len(board_chart(order).to_dict()["hconcat"]) == 2
