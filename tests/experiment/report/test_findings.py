"""The findings of runs: sentences by their numbers, the first table, and where a new measure appears."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from softmax_jax.experiment.configs import load_preset
from softmax_jax.experiment.measures.ceiling import accuracy_of_ties
from softmax_jax.experiment.measures.evaluation import Measured, frame_of
from softmax_jax.experiment.measures.references import TRUE_ITEM
from softmax_jax.experiment.measures.runs import has_published_recipe, lengths_to_show
from softmax_jax.experiment.measures.significance import detectable, paired_p_value
from softmax_jax.experiment.measures.table import EVALUATION, Measure, Seen, values_of as values_of_set
from softmax_jax.experiment.report.accuracy import ACCURACY
from softmax_jax.experiment.report.evaluated import Evaluated, with_tests
from softmax_jax.experiment.report.findings import accuracy_table, draw_runs, show, write
from softmax_jax.experiment.report.replication import replication
from softmax_jax.experiment.report.sections import result_table
from softmax_jax.experiment.report.sentences import answers, falls, helps, remarks, why
from softmax_jax.experiment.tasks.max_retrieval import MaxRetrieval
from tests.experiment.report.charts import printed
from tests.experiment.report.test_playground import linear

LENGTHS = (64, 256)
SOFTMAX = (0.0, 0.1, 0.3)
ROW = {"ssmax": (2.0, 2.11, 2.29), "softmax": SOFTMAX, "entmax15": SOFTMAX, "hardmax": (-1.0, 0.3, 1.2)}


def run_of(accuracies, lengths=LENGTHS, name="x", task=MaxRetrieval(), **fields):  # noqa: B008
    """A run with these accuracies above 90 % by seed under each normalizer, at all lengths or by length."""
    rows = [
        (normalizer, n, seed, 90.0 + accuracy)
        for n in lengths
        for normalizer, found in accuracies.items()
        for seed, accuracy in enumerate(found[n] if isinstance(found, dict) else found)
    ]
    frame = pl.DataFrame(rows, ["normalizer", "n", "seed", "accuracy"], orient="row")
    return Evaluated(name, task, tuple(name for name in accuracies if name != TRUE_ITEM), [], frame, **fields)


def numbers_of(sentence):
    """The numbers of a sentence that have decimals."""
    return re.findall(r"\d+\.\d+", str(sentence))


def test_what_falls_is_said_from_the_longest_length_of_training_on():
    by_length = {4: (9.0,), 8: (9.0,), 16: (5.0,), 64: (-40.0,)}
    assert numbers_of(falls(run_of({"softmax": by_length}, (4, 8, 16, 64)))) == ["95.0", "50.0"]
    of_one = run_of({"softmax": SOFTMAX}, (16,))
    assert numbers_of(falls(of_one)) == ["90.1"]
    assert draw_runs([of_one]).to_dict()["title"]["text"] == "softmax: 90.1 % right at 16 items"


@pytest.mark.parametrize(
    ("hardmax", "task", "numbers"),
    [
        ((0.0, 0.1, 0.8), MaxRetrieval(), ["52.0", "38.3", "1.1", "90.3", "99.0"]),
        # No other answers more.
        ((-50.0,) * 3, MaxRetrieval(matmul="bfloat16"), ["52.0", "40.0", "99.0", "0.004"]),
    ],
)
def test_why_says_what_was_regained_where_half_is_lost_and_what_hardmax_answers_but_takes_no_difference(
    hardmax, task, numbers
):
    run = run_of(
        {"softmax": {16: (9.0,) * 3, 64: (-38.0,) * 3}, "hardmax": hardmax, TRUE_ITEM: (9.0,) * 3}, (16, 64), task=task
    )
    assert numbers_of(why(run)) == numbers
    assert why(run_of({"softmax": SOFTMAX, "hardmax": hardmax})) is None
    assert list(answers(run)) == ["What falls", "Why", "What helps"]


def drawn(effect, normalizers=4, lengths=10, seeds=10):
    """A run whose normalizers draw the same accuracies as softmax, but for one cell with an effect."""
    random, names = np.random.default_rng(0), ("ssmax", "entmax15", "sparsemax", "hardmax")[:normalizers]
    sizes = [2 ** (5 + place) for place in range(lengths)]
    softmax = {n: random.normal(-40, 1, seeds) for n in sizes}
    found = {name: {n: softmax[n] + random.normal(0, 1, seeds) for n in sizes} for name in names}
    found["ssmax"][sizes[3]] = softmax[sizes[3]] + effect + random.normal(0, 1, seeds)
    return run_of({"softmax": softmax} | found, sizes)


def test_an_effect_in_one_of_forty_cells_must_survive_all_forty():
    run = drawn(1.2)
    values = {cell[:2]: np.array(cell[2]) for cell in run.frame.group_by("normalizer", "n").agg("accuracy").rows()}
    gains = [(values[name, n] - values["softmax", n]).tolist() for name, n in run.tested]
    alone = [paired_p_value(gain, [0.0] * 10) or 1 for gain in gains]
    assert len(alone) == 40
    assert min(alone) < 0.05 / 10 < 0.05 < 40 * min(alone)  # seen by a test over its ten lengths, not over all
    sentence = str(helps(run))
    assert "No normalizer swapped in at test time is shown to gain" in sentence
    assert "Holm over 4 normalizers at 10 lengths" in sentence
    least = [detectable(gain, 0.05 / 40) or 0 for gain in gains]
    assert " points, by normalizer and length, would" in sentence
    assert " points, by normalizer, would" in str(
        helps(run_of({"softmax": SOFTMAX, "ssmax": (-40.5, -39.8, -40.6), "hardmax": (-39.0, -43.0, -40.0)}, (64,)))
    )
    assert numbers_of(sentence)[1:] == [f"{min(least):.1f}", f"{max(least):.1f}"]


def test_a_gain_that_survives_is_named_with_its_interval_and_with_what_is_not_told_apart_from_it():
    run = drawn(6.0)
    rival = run.full_frame.filter(normalizer="ssmax").with_columns(
        normalizer=pl.lit("adaptive"), accuracy=pl.col("accuracy") + 0.1 * (pl.col("seed") % 2 - 0.6)
    )
    run = dataclasses.replace(
        run, normalizers=(*run.normalizers, "adaptive"), full_frame=pl.concat([run.full_frame, rival])
    )
    best = run.summary.row(run.summary["gain"].arg_max() or 0, named=True)
    sentence = str(helps(run))
    assert (best["normalizer"], best["n"]) == ("ssmax", 256)
    gain = f"{best['gain']:.1f} ± {best['gain_interval']:.1f} points at 256 items"
    assert (
        f"gains that are shown (p < 0.05, Holm over 5 normalizers at 10 lengths) is that of ssmax: {gain}" in sentence
    )
    assert f"(p = {best['p_value']:.1g})" in sentence
    rival_row = run.summary.filter(normalizer="adaptive", n=256).row(0, named=True)
    theirs = f"adaptive, {rival_row['gain']:.1f} ± {rival_row['gain_interval']:.1f} points, which is shown."
    assert f"Not told apart from it there: {theirs}" in sentence
    assert "2 gains and no losses" in sentence


def test_a_larger_gain_that_is_not_shown_is_said_to_be_not_shown_wherever_it_is_named():
    lengths = {16: (9.0, 9.1, 8.9), 64: (-38.0, -38.2, -37.8)}
    steady, wild = (
        lengths | {64: tuple(a + b for a, b in zip(lengths[64], by))} for by in ((3, 3.1, 2.9), (9, 1, 2.5))
    )
    found = {"softmax": lengths, "adaptive": steady, "ssmax": wild, "hardmax": lengths, TRUE_ITEM: lengths}
    run = run_of(found, (16, 64))
    gains = run.summary.filter(n=64).sort("gain")["normalizer"].to_list()
    assert gains[-2:] == ["adaptive", "ssmax"]
    sentence = str(helps(run))
    assert "the largest of the gains that are shown (p < 0.05" in sentence
    assert "is that of adaptive: 3.0" in sentence
    rest = r"ssmax, 4\.2 ± \d+\.\d points, which is not shown\. Shown are 1 gain and no losses"
    assert re.search(f"Not told apart from it there: {rest}", sentence)
    assert re.search(r"ssmax, answers 4\.2 ± \d+\.\d points more, which is not shown\.", str(why(run)))


def test_of_one_seed_why_and_what_helps_are_about_one_length():
    lengths = {16: (9.0,), 64: (-37.0,), 256: (-60.0,)}
    raised = {n: (value + 20 * n / 64,) for n, (value,) in lengths.items()}
    run = run_of({"softmax": lengths, "ssmax": raised, "hardmax": lengths, TRUE_ITEM: lengths}, (16, 64, 256))
    assert str(why(run)).startswith("At 64 items, where nearest to half are right, it answers 53.0 %.")
    assert "ssmax gains most, 20.0 points at 64 items, from 53.0 % to 73.0 %" in str(helps(run))
    assert run.summary.filter(normalizer="ssmax", n=256)["gain"].item() == 80  # more, but elsewhere


def test_of_one_seed_there_is_no_test_and_nothing_is_said_where_there_is_nothing_to_compare():
    run = run_of({"softmax": (-40.0,), "hardmax": (-30.0,), "ssmax": (-29.0,)})
    said = "ssmax gains most, 11.0 points at 64 items, from 50.0 % to 61.0 %: no test, as there is one seed."
    assert said in str(helps(run))
    run = run_of({"softmax": (-40.0,), "ssmax": (-41.0,)})
    assert helps(run) == "No normalizer swapped in at test time gains at 64 items: no test, as there is one seed."
    for names in (["softmax"], ["softmax", "softpick"], ["softmax", "entmax15"]):  # alone, by its offset, and a copy
        run = run_of(dict.fromkeys(names, SOFTMAX), (64,))
        assert helps(run) is None
        assert "What helps" not in printed(show, [run])


def test_training_lengths_ceilings_floors_copies_and_rows_that_rest_on_an_offset_are_no_part_of_the_family():
    ceiling, floor, open_row = (9.6, 9.7, 9.8), (-80.0, -79.5, -80.6), (-60.0, -61.0, -59.5)
    lengths = {16: SOFTMAX, 64: ceiling, 256: floor, 1024: open_row}
    found = {"ssmax": lengths | {16: ceiling}, "softpick": lengths, "entmax15": lengths | {16: floor}}
    run = run_of({"softmax": lengths, "hardmax": lengths} | found, (16, 64, 256, 1024))
    assert run.tested == [("ssmax", 1024), ("entmax15", 1024)]
    raised = run_of({"softmax": floor, "ssmax": open_row}, (256,))
    assert raised.tested == [("ssmax", 256)]  # no floor where one of two rises above it
    assert "Nothing was tested" in str(helps(run_of({"softmax": SOFTMAX, "ssmax": (1.0, 2.0, 1.1)}, (8, 16))))


class Texts(MaxRetrieval):
    """A task whose tests are over sets."""

    tests_over_sets = True


def test_a_task_with_tests_over_sets_has_one_unit_in_its_table_and_its_sentence():
    names, sets = ("softmax", "ssmax", "hardmax"), 40
    right = np.stack([np.arange(sets) < count for count in (10, 30, 29)], -1)
    measured = [Measured(n, names, (0, 1), {"accuracy": 100.0 * np.stack([right, right])}) for n in LENGTHS]
    runs = [Evaluated(name, Texts(), names, measured, frame_of(measured)) for name in ("sort", "search")]
    run, _ = with_tests(runs)
    p = run.summary.filter(normalizer="ssmax")["p_value"].to_list()
    assert p == pytest.approx([8 * 2 * 0.5**40] * 2, rel=1e-6)  # 40 of 80 sets, in 8 cells of two parts
    assert run.summary["interval"].null_count() == run.summary["gain_interval"].null_count() == len(run.summary)
    assert f"ssmax: 50.0 points at 64 items, from 25.0 % to 75.0 % (p = {p[0]:.1g})" in str(helps(run))
    assert "Not told apart from it there: hardmax, 47.5 points, which is shown." in str(helps(run))
    rows, notes = accuracy_table([run], LENGTHS)
    assert (rows["ssmax"], rows["ssmax, gain"]) == (["75.0"] * 2, ["+50.0*"] * 2)
    assert not any("(t)" in note or "t-test" in note for note in notes)


MEASURED = [Measured(64, (), (), {"loss": np.ones((1, 4))})]


def near_published(shift=0.0, ssmax=True):
    """Models that lie this far above both published rows, with two published lengths and one that is not."""
    rows = {
        name: {n: tuple(row.get(n, 50.0) - 90 + shift + spread for spread in (-0.5, 0.0, 0.5)) for n in (64, 100, 1024)}
        for name, row in ACCURACY.items()
    }
    run = run_of(rows | ({"ssmax": rows["adaptive"]} if ssmax else {}), (64, 100, 1024), published=ACCURACY)
    return dataclasses.replace(run, measured=MEASURED)


def test_agreement_is_the_distance_of_each_row_and_the_mean_gain_beside_what_nulls_score():
    sentence = str(replication(near_published(2.0)))
    gain = np.mean([ACCURACY["adaptive"][n] - ACCURACY["softmax"][n] for n in (64, 1024)])
    copy, nothing = (
        np.sqrt(np.mean([(value(n) - ACCURACY["adaptive"][n]) ** 2 for n in (64, 1024)]))
        for value in (lambda n: ACCURACY["softmax"][n] + 2, lambda n: accuracy_of_ties(8, n))
    )
    numbers = ["2.0", "2.0", f"{gain:.1f}", "0.0", f"{gain:.1f}", f"{copy:.1f}", "2.0", f"{nothing:.1f}"]
    assert numbers_of(sentence) == numbers
    assert "2 lengths" in sentence
    assert "as near, so nearness alone shows nothing" in sentence  # as no model lies nearer
    assert "come no nearer" in str(replication(near_published(0.1, ssmax=False)))


def test_nothing_of_the_paper_stands_beside_a_run_of_another_recipe():
    more_seeds = dataclasses.replace(load_preset("paper"), seeds=2, first_seed=10)
    others = load_preset("paper_float32"), load_preset("quick"), dataclasses.replace(more_seeds, steps=200)
    assert has_published_recipe(more_seeds)
    assert not any(map(has_published_recipe, others))
    run = near_published()
    other = dataclasses.replace(run, published={})
    for shown, of in ((True, run), (False, other)):
        text = printed(show, [of]) + printed(show, [of], (), True) + draw_runs([of]).to_json() + result_table([of])
        assert ("ublished" in text) == shown
    assert replication(other) is None
    assert replication(dataclasses.replace(run, normalizers=("softmax",))) is None


MINE = f"{linear.__module__}:{linear.__name__}"


@pytest.mark.full
def test_rows_that_depend_on_an_offset_of_the_logits_are_named_unless_one_was_trained_with():
    names = ["softmax", "softpick", "ssmax", "ssmax(s=0.4, cap=30)", "jax.nn:softmax", MINE, TRUE_ITEM]
    assert [remark.split(": ")[0] for remark in remarks(names)] == [f"softpick, ssmax(s=0.4, cap=30), {MINE}"]
    assert remarks(["softpick, as trained", *names]) == []


def test_the_table_begins_with_the_baseline_marks_gains_beyond_chance_and_names_copies():
    run = run_of(ROW | {"sparsemax": (1.0, 2.6, 0.4)}, published=ACCURACY)
    rows, notes = accuracy_table([run], LENGTHS)
    names = ["ssmax", "ssmax, gain", "hardmax", "hardmax, gain", "sparsemax", "sparsemax, gain"]
    assert list(rows) == ["softmax", "softmax, published", *names]
    assert rows["softmax"] == ["90.1±0.4"] * 2
    assert rows["softmax, published"] == ["94.3†", "81.3†"]
    assert rows["ssmax, gain"] == ["+2.0±0.0*"] * 2
    assert [cell.endswith("*") for cell in rows["sparsemax, gain"]] == [False] * 2
    assert notes[0] == "same as softmax: entmax15"
    legend = "* p < 0.05 (paired t-test, Holm over normalizers and lengths beyond training)"
    assert [legend in note for note in notes] == [False, False, True, False]
    rows, notes = accuracy_table([dataclasses.replace(run, normalizers=("softmax", "hardmax"))], (128, 100000))
    assert "softmax, published" not in rows  # the cell of 128 items has no source that could be read
    assert "*" not in "".join(notes)


def test_a_run_that_was_trained_under_another_normalizer_is_about_that():
    run = run_of({"ssmax, as trained": SOFTMAX, "softmax": (-5.0, -5.1, -4.9)}, name="mine")
    rows, notes = accuracy_table([run, run_of({"softmax": SOFTMAX})], [64])
    assert list(rows) == ["mine: ssmax, as trained", "mine: softmax", "mine: softmax, gain", "x: softmax"]
    assert "gain: points over the normalizer of the training" in notes[1]
    assert list(answers(run)) == ["What falls", "What helps"]
    assert "attention with ssmax" in falls(run)


def test_lengths_are_shown_evenly_of_those_that_were_asked_for_or_are_long_and_all_fits_the_terminal():
    assert lengths_to_show([2**power for power in range(1, 15)], (2, 16), 3) == [2, 128, 16384]
    assert lengths_to_show([4, 8], (), 6) == [4, 8]
    assert lengths_to_show([4, 40, 48, 56, 64], (), 3) == [40, 48, 64]
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
    frame = run_of({"softmax": SOFTMAX, "hardmax": ROW["hardmax"]}).frame
    frame = frame.with_columns(loss=0.5, second=pl.col("seed") / 10 + (pl.col("normalizer") == "hardmax"))
    run = Evaluated("x", MaxRetrieval(), ("softmax", "hardmax"), MEASURED, frame)
    write(tmp_path, {}, [run])
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
