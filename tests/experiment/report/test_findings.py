"""The findings of runs: sentences by their numbers, the first table, and where a new measure appears."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.measures.evaluation import Measured
from softmax_jax.experiment.measures.references import TRUE_ITEM
from softmax_jax.experiment.measures.runs import lengths_to_show
from softmax_jax.experiment.measures.significance import detectable
from softmax_jax.experiment.measures.table import EVALUATION, Measure, Seen, values_of as values_of_set
from softmax_jax.experiment.report.evaluated import Evaluated
from softmax_jax.experiment.report.findings import accuracy_table, show, write
from softmax_jax.experiment.report.sections import result_table
from softmax_jax.experiment.report.sentences import answers, falls, helps, remarks, why
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from tests.experiment.report.charts import printed

LENGTHS = (16, 64)


def run_of(accuracies, lengths=LENGTHS, name="x", task=MaxRetrieval()):  # noqa: B008
    """A run with these accuracies above 90 % by seed under each normalizer, at all lengths or by length."""
    rows = [
        (normalizer, n, seed, 90.0 + accuracy)
        for n in lengths
        for normalizer, found in accuracies.items()
        for seed, accuracy in enumerate(found[n] if isinstance(found, dict) else found)
    ]
    frame = pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy"], orient="row")
    return Evaluated(name, task, tuple(name for name in accuracies if name != TRUE_ITEM), [], frame)


SOFTMAX = (0.0, 0.1, 0.3)
ROW = {"ssmax": (2.0, 2.1, 2.2), "softmax": SOFTMAX, "softpick": SOFTMAX, "hardmax": (-1.0, 0.3, 1.2)}


def numbers_of(sentence):
    """The numbers of a sentence that have decimals."""
    return re.findall(r"\d+\.\d+", str(sentence))


def test_what_falls_is_said_from_the_longest_length_of_training_on():
    by_length = {4: (9.0,), 8: (9.0,), 16: (5.0,), 64: (-40.0,)}
    assert MaxRetrieval().longest == 16
    assert numbers_of(falls(run_of({"softmax": by_length}, (4, 8, 16, 64)))) == ["95.0", "50.0"]
    assert numbers_of(falls(run_of({"softmax": SOFTMAX}, (16,)))) == ["90.1"]


@pytest.mark.parametrize(
    ("accuracies", "task", "numbers"),
    [
        ((52.0, 90.0, 99.0), MaxRetrieval(), ["52.0", "38.0", "9.0", "1.0"]),
        ((50.0, 40.0, 90.0), MaxRetrieval(), ["50.0", "40.0", "10.0"]),  # nothing is lost to dispersion
        ((52.0, 90.0, 100.0), MaxRetrieval(), ["52.0", "38.0", "10.0"]),  # nor to the value
        ((52.0, 90.0, 99.0), MaxRetrieval(matmul="bfloat16"), ["52.0", "38.0", "9.0", "1.0", "0.004"]),
    ],
)
def test_what_is_lost_adds_up_where_half_is_lost_and_rounding_is_named(accuracies, task, numbers):
    names = ("softmax", "hardmax", TRUE_ITEM)
    run = run_of({name: {16: (9.0,), 64: (value - 90,)} for name, value in zip(names, accuracies)}, task=task)
    assert numbers_of(why(run)) == numbers
    assert list(answers(run))[:2] == ["What falls", "Why"]


@pytest.mark.parametrize(
    ("accuracies", "name", "numbers"),
    [
        ({"softmax": SOFTMAX, "softpick": (8.0, 8.1, 8.2), "ssmax": (2.0, 2.1, 2.2)}, "ssmax", ["2.0", "90.1", "92.1"]),
        ({"softmax": (-40.0,) * 3, "hardmax": (-31.0, -30.0, -29.0)}, "hardmax", ["10.0", "50.0", "60.0"]),
        ({"softmax": (-40.0,), "hardmax": (-30.0,), "ssmax": (-29.0,)}, "ssmax", ["11.0", "50.0", "61.0", "60.0"]),
        ({"softmax": (-40.0,) * 3, "hardmax": (-49.0, -39.0, -31.0)}, "No normalizer", None),
    ],
)
def test_a_gain_is_named_if_it_is_beyond_chance_and_rests_on_no_offset(accuracies, name, numbers):
    sentence = str(helps(run_of(accuracies, (16,))))
    assert name in sentence
    assert numbers is None or [number for number in numbers_of(sentence) if float(number) >= 1] == numbers


def test_what_would_have_been_found_is_the_gain_that_the_test_finds_under_each_normalizer():
    run = run_of({"softmax": SOFTMAX, "ssmax": (0.2, 0.0, 0.3), "entmax15": (3.0, -3.0, 1.0)})
    least = max(detectable(gains) or 0 for gains in ([0.2, -0.1, 0.0], [3.0, -3.1, 0.7]))
    assert numbers_of(helps(run)) == ["0.05", f"{least:.1f}"]


@pytest.mark.parametrize("names", [["softmax"], ["softmax", "softpick"]])
def test_nothing_helps_where_there_is_nothing_to_compare(names):
    run = run_of(dict.fromkeys(names, SOFTMAX), (16,))
    assert helps(run) is None
    assert "What helps" not in printed(show, [run])


def shares(logits, axis=-1, where=None):
    """Weights in proportion to logits above 0."""
    above = jnp.where(logits > 0 if where is None else where, jnp.maximum(logits, 0), 0)
    return above / jnp.maximum(above.sum(axis, keepdims=True), 1e-6)


@pytest.mark.full
@pytest.mark.parametrize(
    ("names", "named"),
    [
        (["softmax", "softpick", "hardmax", "sink_softmax(sink=1.0)"], ["softpick, sink_softmax(sink=1.0)"]),
        (["softmax", "hardmax", "entmax15"], []),
        (["softpick, as trained", "softmax", "softmax1"], []),
        (["ssmax", "ssmax(s=0.4, cap=30)"], ["ssmax(s=0.4, cap=30)"]),
        (["jax.nn:softmax", f"{__name__}:shares", "the true item alone"], [f"{__name__}:shares"]),
    ],
)
def test_rows_that_depend_on_an_offset_of_the_logits_are_named(names, named):
    assert [remark.split(": ")[0] for remark in remarks(names)] == named


def test_the_table_begins_with_the_baseline_marks_gains_beyond_chance_and_names_what_is_the_same():
    run = run_of({**ROW, "entmax15": (1.0, 2.6, 0.4)})
    rows, notes = accuracy_table([run], LENGTHS)
    names = ["ssmax", "ssmax, gain", "hardmax", "hardmax, gain", "entmax15", "entmax15, gain"]
    assert list(rows) == ["softmax", "softmax, published", *names]
    assert rows["softmax"] == ["90.1±0.4"] * 2
    assert rows["softmax, published"] == ["98.6", "94.3"]
    rows_at_32, _ = accuracy_table([run_of({"softmax": SOFTMAX}, (16, 32))], (16, 32))
    assert rows_at_32["softmax, published"] == ["98.6", "–"]  # which has no source
    assert rows["ssmax, gain"] == ["+2.0±0.1*"] * 2
    assert rows["hardmax, gain"][0].startswith("+0.0±")
    p = {row["normalizer"]: row["p_value"] for row in run.summary.to_dicts()}
    assert p["ssmax"] < 0.05 < p["entmax15"] < 1
    assert [cell.endswith("*") for cell in rows["entmax15, gain"]] == [False] * 2
    assert notes[0] == "same as softmax: softpick"


def test_a_run_that_was_trained_under_another_normalizer_is_about_that_and_holds_nothing_against_the_paper():
    run = run_of({"ssmax, as trained": SOFTMAX, "softmax": (-5.0, -5.1, -4.9)}, name="mine")
    rows, notes = accuracy_table([run, run_of({"softmax": SOFTMAX})], [16])
    mine = ["mine: ssmax, as trained", "mine: softmax", "mine: softmax, gain"]
    assert list(rows) == [*mine, "x: softmax", "x: softmax, published"]
    assert "gain: points over the normalizer of the training" in notes[0] + notes[1]
    assert list(answers(run)) == ["What falls", "What helps"]
    assert "attention with ssmax" in falls(run)


def test_six_lengths_are_shown_of_those_that_were_asked_for_or_are_long():
    assert lengths_to_show([2**power for power in range(1, 15)], (2, 16), most=3) == [2, 512, 16384]
    assert lengths_to_show([4, 8]) == [4, 8]


def test_all_that_is_printed_fits_the_terminal_and_a_long_name_stands_above_its_cells():
    names = {"adaptive_refit_train": (20.1, 29.0, 11.1), **ROW}
    text = printed(show, [run_of(names, (16, 64, 256, 1024, 4096, 16384))], width=80)
    assert max(map(len, text.splitlines())) <= 80


SECOND = Measure(lambda seen: -jnp.sort(-seen.weights)[1], "Second largest weight", "of 1", ".2f")


def test_a_new_measure_is_one_entry_that_reaches_every_file_and_table(tmp_path, monkeypatch):
    """A second weight, measured of sets; loss and calibration stay in the full table alone."""
    monkeypatch.setitem(EVALUATION, "second", SECOND)
    row = jnp.array([0.5, 0.25, 0.125, 0.125])
    seen = Seen(row, jnp.int32(0), row[0], row[0], weights=row, where=row > 0)
    assert values_of_set(["second"], seen, jax.tree.map(lambda leaf: leaf[None], seen))["second"].tolist() == [0.25]
    frame = run_of({"softmax": SOFTMAX, "hardmax": SOFTMAX}).frame
    frame = frame.with_columns(loss=0.5, second=pl.col("seed") / 10 + (pl.col("normalizer") == "hardmax"))
    run = Evaluated(
        "x", MaxRetrieval(), ("softmax", "hardmax"), [Measured(16, (), (), {"loss": np.ones((1, 4))})], frame
    )
    write(tmp_path, {"lengths": ()}, [run])
    assert pl.read_csv(tmp_path / "evaluation.csv")["second"].to_list() == frame["second"].to_list()
    assert json.loads((tmp_path / "evaluation.json").read_text())["summary"][0]["second"] == pytest.approx(0.1)
    second = [["second", "0.10", "0.10"], ["second", "1.10", "1.10"]]
    for full, losses in ((False, []), (True, [["loss", "0.500", "0.500"]] * 2)):
        text = printed(show, [run], (), full)
        words = [line.split() for line in text.splitlines()]
        assert [line for line in words if line[:1] == ["second"]] == second
        assert [line for line in words if line[:1] == ["loss"]] == losses
        assert full or "second: Second largest weight, of 1" in text
    on_page = re.findall(r'scope="row">(.*?, second)</th>\s*<td>(.*?)</td>', result_table([run]))
    assert on_page == [("softmax, second", "0.10"), ("hardmax, second", "1.10")]
    monkeypatch.setitem(EVALUATION, "second", SECOND._replace(tables="none"))
    assert ["second", "0.10", "0.10"] not in [line.split() for line in printed(show, [run]).splitlines()]
    assert ", second<" not in result_table([run])
